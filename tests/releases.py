"""Small releases for tests: a made-up table, a spec around it and a ledger."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import make_plan
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.ledger import Books
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema
from dpdist.spec.validation import override

SCHEMA: dict[str, Any] = {
    "attributes": [
        {"name": "region", "kind": "categorical", "values": ["north", "south", "east", "west"]},
        {"name": "age", "kind": "integer", "bounds": [0, 99], "bins": {"count": 20}, "buckets": {"width": 4}},
        {"name": "sex", "kind": "categorical", "values": [1, 2], "labels": ["female", "male"]},
        {"name": "score", "kind": "ordinal", "values": [0, 1, 2, 3, 4, 5, 6, 7]},
        {"name": "employed", "kind": "categorical", "values": ["yes", "no"]},
    ]
}
KEY = "00112233445566778899aabbccddeeff" * 2


def integer_schema(sizes: Sequence[int], widths: Sequence[int] = ()) -> Schema:
    """Integers from 0 with this many values, in buckets of these widths (of a value each, if none are given)."""
    attributes = [
        {"name": f"a{i}", "kind": "integer", "bounds": [0, size - 1], "buckets": {"width": width}}
        for i, (size, width) in enumerate(zip(sizes, widths or [1] * len(sizes), strict=True))
    ]
    return Schema.model_validate({"attributes": attributes})


@lru_cache(maxsize=8)
def table(rows: int, *, seed: int = 0) -> pa.Table:
    """An invented table of the schema above, with dependences."""
    rng = np.random.default_rng(seed)
    region = rng.choice(4, rows, p=[0.4, 0.3, 0.2, 0.1])
    age = np.clip(rng.normal(45 + 3 * region, 18, rows), 0, 99).astype(int)
    sex = rng.integers(1, 3, rows)
    score = np.clip(age // 16 + rng.integers(0, 3, rows), 0, 7)
    employed = rng.random(rows) < np.where((age > 18) & (age < 66), 0.8, 0.15)
    return pa.table(
        {
            "region": pa.array(np.array(["north", "south", "east", "west"])[region]),
            "age": pa.array(age),
            "sex": pa.array(sex),
            "score": pa.array(score),
            "employed": pa.array(np.where(employed, "yes", "no")),
        }
    )


def fund(url: str, dataset: str = "people", **account: Any) -> None:
    """Create a data set in a ledger."""
    with closing(Books.open(url)) as ledger:
        ledger.create_dataset(dataset, **{"epsilon": "50", "delta": "1e-5"} | account)


def placed(folder: Path, *, records: int, **output: Any) -> dict[str, Any]:
    """What a spec says of places, for a release of the table below `folder`; it declares this many records."""
    return {
        "name": "first",
        "dataset": "people",
        "data": {"path": str(folder / "table.parquet"), "minimum_records": records},
        "output": {"path": str(folder / "release"), **output},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
    }


def in_memory(name: str = "first", **changes: Any) -> dict[str, Any]:
    """A small synthesis of a table in memory, in the current folder."""
    return {
        "kind": "synthesis",
        "name": name,
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"minimum_records": 2_500},
        "output": {"path": f"out/{name}", "rows_per_part": 1_000},
        "work": "work",
        "privacy": {"epsilon": 2, "delta": 1e-7},
        "model": {"rounds": 1, "balance": 0},
    } | changes


class Crash(Exception):
    """Stands for a power cut: not an error dpdist raises or handles."""


def crashing(stage: str = "synthesising", text: str = "") -> Callable[[str, int, int], None]:
    """What ends a run when a stage begins, as its ``progress``."""

    def progress(name: str, *_: int) -> None:
        if name == stage:
            raise Crash(text)

    return progress


def project(folder: Path, *, rows: int = 30_000, epsilon: str = "50", **changes: Any) -> PlausibleDeniabilitySpec:
    """Write a table and a ledger below `folder`; return a spec for them.

    `changes` are settings by dotted path, with ``__`` for the dots.
    """
    data = folder / "table.parquet"
    if not data.exists():
        pq.write_table(table(rows), data, row_group_size=7_000)
    if not (folder / "ledger.db").exists():
        fund(f"sqlite:///{folder}/ledger.db", epsilon=epsilon, guarantees=("dp", "pd-per-record"))
    return _spec(folder, changes)


def dotted(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted path, from names with ``__`` for the dots."""
    return {path.replace("__", "."): value for path, value in changes.items()}


def plan() -> Plan:
    """The plan of such a release: made once in a process, it makes those that follow faster."""
    return make_plan(_spec(Path("nowhere"), {}))


def _spec(folder: Path, changes: dict[str, Any]) -> PlausibleDeniabilitySpec:
    tree: dict[str, Any] = {
        **placed(folder, records=25_000, rows_per_part=1_000),
        "kind": "plausible-deniability",
        "schema": SCHEMA,
        "cluster": {"mode": "threads"},
        "privacy": {
            "model": {"epsilon": 2, "delta": 1e-7},
            "deniability": {"k": 20, "gamma": 4, "epsilon0": 1},
            "accept_per_record": True,
        },
        "split": {"structure": 0.3, "parameters": 0.4, "seeds": 0.3},
        "synthesis": {"records": 2_500, "omega": [3, 4, 5], "minimum_pass_rate": 0.1},
    }
    spec = load(override(tree, dotted(changes)))
    assert isinstance(spec, PlausibleDeniabilitySpec)
    return spec
