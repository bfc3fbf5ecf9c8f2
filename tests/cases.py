"""A small release of every family: a made-up table, a ledger and a spec. What tests of all families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import releases

from dpdist.families.registry import build_spec
from dpdist.ledger import Ledger
from dpdist.spec import ReleaseSpec, override

MODES = ("in-process", "threads", "embedded", "address")
"""Executors, by the names that specs give them (`cluster.mode`)."""


@dataclass(frozen=True)
class Case:
    """One family, or one variant of it, made small.

    Attributes
    ----------
    name : str
    settings : mapping
        What its spec says of its own: kind, schema, privacy and the sections of the family, by dotted path.
    table : callable
        A number of rows to a made-up table that fits the schema.
    rows : int
        Rows of the table: a number that stands nowhere else, so that it can be looked for where it must not be.
    bad : (str, object)
        A column, and a value outside its domain.
    modes : sequence of str
        The executors on which it can run.
    """

    name: str
    settings: Mapping[str, Any]
    table: Callable[[int], pa.Table]
    rows: int
    bad: tuple[str, Any]
    modes: tuple[str, ...] = MODES

    def write(self, folder: Path, table: pa.Table | None = None) -> None:
        """Write the table (or another one) below a folder, in row groups that are read apart."""
        made = self.table(self.rows) if table is None else table
        pq.write_table(made, folder / "table.parquet", row_group_size=max(1, made.num_rows // 6))

    def spec(self, folder: Path, **changes: Any) -> ReleaseSpec:
        """The spec of a release of a table below `folder`; `changes` by dotted path, with ``__`` for the dots."""
        tree: dict[str, Any] = {
            "name": "first",
            "dataset": "people",
            "data": {"path": str(folder / "table.parquet"), "minimum_records": self.rows * 4 // 5},
            "output": {"path": str(folder / "release"), "rows_per_part": 1_000},
            "ledger": f"sqlite:///{folder}/ledger.db",
            "work": str(folder / "work"),
        }
        settings = {path.replace("__", "."): value for path, value in changes.items()}
        return build_spec(override(tree, {**self.settings, **settings}))

    def project(self, folder: Path, **changes: Any) -> ReleaseSpec:
        """Write the table and a ledger below `folder`; return the spec of a release."""
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder)
        spec = self.spec(folder, **changes)
        with closing(Ledger.open(spec.ledger)) as ledger:
            ledger.create_dataset("people", epsilon=100, delta="1e-3", guarantees=("dp", "pd-per-record", "pml", "lid"))
        return spec

    def spoil(self, folder: Path) -> None:
        """Put the value outside the domain into the table, in the middle."""
        column, value = self.bad
        table = pq.read_table(folder / "table.parquet")
        values = table[column].to_pylist()
        values[len(values) // 2] = value
        number = table.schema.get_field_index(column)
        self.write(folder, table.set_column(number, column, pa.array(values, table[column].type)))


HISTOGRAM = Case(
    name="histogram",
    settings={
        "kind": "histogram",
        "schema": releases.SCHEMA,
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "histograms": [{"columns": ["age", "sex"]}, {"columns": ["age"]}, {"columns": ["score"]}],
        "entropies": {"of": [1], "orders": [1, 2], "share": 0.5},
    },
    table=releases.table,
    rows=6_011,
    bad=("region", "planted-value"),
)

SYNTHESIS = Case(
    name="synthesis",
    settings={
        "kind": "synthesis",
        "schema": releases.SCHEMA,
        "privacy": {"epsilon": 4, "delta": 1e-7},
        "model": {"rounds": 2, "balance": 20},
        "synthesis": {"records": 2_500},
    },
    table=releases.table,
    rows=6_029,
    bad=("region", "planted-value"),
)

CASES = [HISTOGRAM, SYNTHESIS]
"""The shipped families, each variant of its own."""
