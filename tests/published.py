"""A small release of a synthesis of which only the folder is left."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from releases import SCHEMA, fund, placed, table

from dpdist.lifecycle.run import run_release
from dpdist.spec.reader import load

ROWS = 6_000
"""Records of the table, `releases.table(ROWS)`."""


def published(folder: Path, *, fixed_key: str | None = None, **changes: Any) -> Path:
    """A release; only its folder is left."""
    made = folder / "made"
    made.mkdir()
    pq.write_table(table(ROWS), made / "table.parquet")
    fund(f"sqlite:///{made}/ledger.db")
    spec: dict[str, Any] = {
        **placed(made, records=5_000),
        "output": {"path": str(folder / "release"), "rows_per_part": 1_000},
        "kind": "synthesis",
        "schema": SCHEMA,
        "cluster": {"mode": "in-process"},
        "privacy": {"epsilon": 8, "delta": 1e-7},
        "model": {"rounds": 1, "balance": 10},
        "synthesis": {"records": 2_500},
    }
    run_release(load(spec | changes), fixed_key=fixed_key)
    shutil.rmtree(made)
    return folder / "release"
