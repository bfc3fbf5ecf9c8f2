"""A small release of every family: a made-up table, a ledger and a spec. What tests of all families share."""

from collections.abc import Callable, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import federations
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import releases

from dpdist.data.inputs import source_of
from dpdist.data.source import fingerprint
from dpdist.ledger import Books
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.undeclared import undeclared
from dpdist.spec.validation import override

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
    bad : (str, object) or None
        A column, and a value outside its domain; None where no value is outside.
    modes : sequence of str
        The executors on which it can run, the nearest first.
    """

    name: str
    settings: Mapping[str, Any]
    table: Callable[[int], pa.Table]
    rows: int
    bad: tuple[str, Any] | None
    modes: tuple[str, ...] = MODES

    def write(self, folder: Path, table: pa.Table | None = None) -> None:
        """Write the table (or another one) below a folder, in row groups that are read apart."""
        made = self.table(self.rows) if table is None else table
        pq.write_table(made, folder / "table.parquet", row_group_size=max(1, made.num_rows // 6))

    def spec(self, folder: Path, **changes: Any) -> ReleaseSpec:
        """The spec of a release of a table below `folder`; `changes` by dotted path, with ``__`` for the dots."""
        tree = releases.placed(folder, records=self.rows * 4 // 5, rows_per_part=1_000)
        return load(override(tree, {**deepcopy(self.settings), **releases.dotted(changes)}))

    def project(self, folder: Path, **changes: Any) -> ReleaseSpec:
        """Write the table and a ledger below `folder`; return the spec of a release."""
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder)
        spec = self.spec(folder, **changes)
        with closing(Books.open(spec.ledger)) as ledger:
            ledger.create_dataset("people", epsilon=100, delta="1e-3", guarantees=("dp", "pd-per-record", "pml", "lid"))
        if spec.protects_only_units:
            self.admit(folder)
        return spec

    def admit(self, folder: Path, *, dataset: str = "people") -> None:
        """Let a contract of the data set declare what the spec does, and admit the files as they are, unchecked."""
        spec = self.spec(folder)
        tree = {
            "schema": spec.table,
            "data": {"path": str(folder / "table.parquet"), "extra_columns": "ignore"},
            "unit": spec.unit or "record",
            "minimum_records": 10 * self.rows,
            "epsilon": 100,
            "delta": "1e-3",
        }
        contract = Contract.model_validate(tree)
        with closing(Books.open(spec.ledger)) as ledger:
            ledger.amend(dataset, contract, reason="declared")
            source = source_of(contract.data)
            ledger.admit_input(dataset, fingerprint=fingerprint(source), contract=contract.digest)

    def spoilt(self, table: pa.Table) -> pa.Table:
        """The table with the value outside the domain in its middle."""
        assert self.bad is not None
        column, value = self.bad
        values = table[column].to_pylist()
        values[len(values) // 2] = value
        return table.set_column(table.schema.get_field_index(column), column, pa.array(values, table[column].type))

    def spoil(self, folder: Path) -> None:
        """Put the value outside the domain into the table below `folder`."""
        self.write(folder, self.spoilt(pq.read_table(folder / "table.parquet")))
        if self.spec(folder).protects_only_units:
            self.admit(folder)


DENIABILITY = Case(
    name="plausible deniability",
    settings={
        "kind": "plausible-deniability",
        "schema": releases.SCHEMA,
        "privacy": {
            "model": {"epsilon": 2, "delta": 1e-7},
            "deniability": {"k": 20, "gamma": 4, "epsilon0": 1},
            "accept_per_record": True,
        },
        "split": {"structure": 0.3, "parameters": 0.4, "seeds": 0.3},
        "synthesis": {"records": 2_500, "omega": [3, 4, 5], "minimum_pass_rate": 0.1},
    },
    table=releases.table,
    rows=30_011,
    bad=("region", "planted-value"),
)

REGRESSION = replace(
    DENIABILITY,
    name="plausible deniability, regression",
    settings={**DENIABILITY.settings, "model": {"regression": ["age", "score"]}},
    rows=30_013,
)

MIXING = Case(
    name="mixing",
    settings={
        "kind": "mixing",
        "schema": federations.SCHEMA,
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "mixing": {
            "class": "class",
            "classes": {"low": {"minimum": 3_000, "records": 1_200}, "high": {"minimum": 2_000, "records": 800}},
            "order": 16,
        },
    },
    table=partial(federations.table, seed=0),
    rows=7_019,
    bad=("sex", "planted-value"),
)


def survey(rows: int) -> pa.Table:
    """An invented table with a response, numbers and categories."""
    rng = np.random.default_rng(1)
    age = rng.integers(18, 91, rows)
    region, grade = rng.integers(0, 3, rows), np.clip(age // 30, 1, 3) - 1
    return pa.table(
        {
            "income": np.exp(rng.normal(9 + 0.01 * age, 0.5)),
            "region": np.array(["n", "s", "w"])[region],
            "spend": 5 * age + 200 * (region == 1) + rng.normal(0, 30, rows),
            "age": age,
            "grade": np.array(["low", "mid", "high"])[grade],
        }
    )


SURVEY: dict[str, Any] = {
    "attributes": [
        {"name": "income", "kind": "number", "bounds": [0, 1_000_000]},
        {"name": "region", "kind": "categorical", "values": ["n", "s", "w"]},
        {"name": "spend", "kind": "number", "bounds": [-100, 2000], "out_of_domain": "clip"},
        {"name": "age", "kind": "integer", "bounds": [18, 90]},
        {"name": "grade", "kind": "ordinal", "values": ["low", "mid", "high"]},
    ]
}


@dataclass(frozen=True)
class FederatedCase(Case):
    """A case whose records are held by two clients, each with a ledger and an identity that is always the same."""

    def write(self, folder: Path, table: pa.Table | None = None) -> None:
        """Write the tables of the clients."""
        for name in CLIENTS:
            self._member(folder, name)

    def _member(self, folder: Path, name: str) -> dict[str, Any]:
        seed = CLIENTS.index(name)
        return federations.member(folder, name, rows=self.rows, seed=seed, key=bytes([seed + 1]) * 32)

    def spec(self, folder: Path, **changes: Any) -> ReleaseSpec:
        """As `Case.spec`; the clients are made where they are not there."""
        changes["federated__clients"] = [self._member(folder, name) for name in CLIENTS]
        return super().spec(folder, **{"data": {"minimum_records": 2_000}, **changes})

    def spoil(self, folder: Path) -> None:
        """Put the value outside the domain into the table of the first client."""
        own = folder / CLIENTS[0]
        pq.write_table(self.spoilt(pq.read_table(own / "people.parquet")), own / "people.parquet")


CLIENTS = ("east", "west")

FEDERATED = FederatedCase(
    name="federated mixing",
    settings={
        "kind": "mixing",
        "schema": federations.SCHEMA,
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "mixing": {
            "class": "class",
            "classes": {"low": {"minimum": 1_200, "records": 1_200}, "high": {"minimum": 800, "records": 800}},
            "order": 8,
        },
        "federated": {"trust": "correlated"},
    },
    table=partial(federations.table, seed=0),
    rows=3_019,
    bad=("sex", "planted-value"),
    modes=("address", "embedded"),
)

LID = Case(
    name="two-stage lid",
    settings={
        "kind": "two-stage",
        "schema": SURVEY,
        "privacy": {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.002}},
        "prediction": {"response": "spend", "log": {"income": 1000}, "keep": ["region"]},
    },
    table=survey,
    rows=419,
    bad=("grade", "planted-value"),
)

PARTIES = replace(
    LID,
    name="two-stage parties",
    settings={
        **LID.settings,
        "prediction": {"response": "spend", "log": {"income": 1000}, "parties": {"column": "region"}},
    },
    rows=263,
)

PRIVATE = replace(
    LID,
    name="two-stage private",
    settings={
        **LID.settings,
        "privacy": {"guarantee": "dp", "epsilon": 5, "delta": 1e-6},
        "prediction": {"response": "spend", "log": {"income": 1000}, "records": 700},
    },
    rows=1_213,
)

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

ADAPTIVE = Case(
    name="histogram with adaptive bins",
    settings={
        "kind": "histogram",
        "schema": releases.SCHEMA,
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "histograms": [
            {"columns": ["age", "sex"], "adaptive": {"age": 5}},
            {"columns": ["score"], "adaptive": {"score": 3}},
            {"columns": ["region"]},
        ],
        "counts": {"total": "common"},
        "entropies": {"of": [0], "orders": [1], "share": 0.4},
    },
    table=releases.table,
    rows=6_053,
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


def visits(rows: int) -> pa.Table:
    """The invented table with ids: some patients have many records, anywhere in the table, and some rows have no id."""
    ids = np.random.default_rng(2).integers(0, rows // 3, rows) ** 2 // (rows // 3) + PATIENT
    return releases.table(rows).append_column("patient_id", pa.array(ids, mask=ids % 97 == 0))


PATIENT = 730_004_000
"""The first of the ids: looked for where they must not be."""

PATIENTS = Case(
    name="histogram of patients",
    settings={
        "kind": "histogram",
        "schema": releases.SCHEMA,
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "histograms": [{"columns": ["age", "sex"]}, {"columns": ["score"]}],
        "unit": {"by": "patient_id", "at_most": 3},
    },
    table=visits,
    rows=6_037,
    bad=("region", "planted-value"),
)


def persons(rows: int, *, seed: int = 3) -> pa.Table:
    """Invented persons of invented households, in any order: some households have many, some persons have no id."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.geometric(0.4, rows), 9)
    house = np.repeat(np.arange(rows), sizes)[:rows]
    place = np.arange(rows) - np.flatnonzero(np.diff(house, prepend=-1))[house]
    region, grade = (rng.integers(0, k, rows)[house] for k in (4, 5))
    age = np.where((place > 1) & (rng.random(rows) < 0.8), rng.integers(0, 18, rows), 18 + rng.integers(0, 70, rows))
    made = pa.table(
        {
            "region": pa.array(np.array(["north", "south", "east", "west"])[region]),
            "order": pa.array(place * 2 + 1),
            "age": pa.array(age),
            "sex": pa.array(rng.integers(1, 3, rows)),
            "score": pa.array(np.clip(grade + rng.integers(0, 3, rows), 0, 7)),
            "employed": pa.array(np.where((age > 17) & (rng.random(rows) < 0.7), "yes", "no")),
            "household": pa.array(house + PATIENT, mask=rng.random(rows) < 0.01),
        }
    )
    return made.take(rng.permutation(rows))


RELATIONAL = Case(
    name="relational",
    settings={
        "kind": "relational",
        "schema": {
            "attributes": [
                *releases.SCHEMA["attributes"],
                {"name": "order", "kind": "integer", "bounds": [1, 7], "out_of_domain": "clip"},
            ],
            "rules": [{"impossible": "age < 15 and employed = 'yes'", "broken": "drop"}],
        },
        "privacy": {"epsilon": 4, "delta": 1e-7},
        "unit": {"by": "household", "at_most": 4},
        "parent": {"attributes": ["region"], "records": 480},
        "members": {
            "order": "order",
            "kinds": {"children": "age < 15"},
            "previous": ["age"],
            "crossed": [["order", "sex"]],
        },
    },
    table=persons,
    rows=6_043,
    bad=("region", "planted-value"),
)

DISCOVERY = Case(
    name="discovery",
    settings={
        "kind": "discovery",
        "columns": {"region": "text", "age": "integer", "sex": "text", "score": [0, 7], "employed": "text"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
    },
    table=releases.table,
    rows=6_047,
    bad=None,
)

DISCOVERING = Case(
    name="synthesis that finds values",
    settings={
        "kind": "synthesis",
        "schema": {
            "attributes": [
                undeclared("region", "text"),
                undeclared("age", "integer"),
                {"name": "sex", "kind": "integer", "bounds": [1, 2]},
                undeclared("score", [0, 400], bins=8),
                undeclared("employed", "text"),
            ]
        },
        "discover": {"columns": ["region", "age", "score", "employed"]},
        "privacy": {"epsilon": 4, "delta": 1e-7},
        "model": {"rounds": 2, "balance": 20},
        "synthesis": {"records": 2_500},
    },
    table=releases.table,
    rows=6_053,
    bad=None,
)

CASES = [
    DENIABILITY,
    REGRESSION,
    HISTOGRAM,
    ADAPTIVE,
    PATIENTS,
    MIXING,
    FEDERATED,
    LID,
    PARTIES,
    PRIVATE,
    SYNTHESIS,
    DISCOVERING,
    RELATIONAL,
    DISCOVERY,
]
"""The shipped families, each variant of its own."""
