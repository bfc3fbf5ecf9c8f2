"""A tiny universe: all neighbouring tables that keep a contract, all specs that it admits, and how each release ends.

How a release ends must be the same for both tables of a pair, or follow from a noisy check that is charged.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations_with_replacement, product
from typing import Any

import pyarrow as pa
import pytest

from dpdist.cluster.executor import InProcess
from dpdist.data.encode import TableEncoder
from dpdist.data.operators import gather_operator
from dpdist.data.records import BATCH_ROWS, EncodedBatch, RecordsInMemory
from dpdist.data.report import check
from dpdist.errors import AccountingError, CheckFailed, DpdistError, GuaranteeRefused, SpecError
from dpdist.families.base.attempt import silent
from dpdist.families.base.graph import run_pass
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import Rehearsal
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.noise import Noise
from dpdist.spec.contract import Contract
from dpdist.spec.part import departures
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema
from dpdist.storage.store import MemoryStore

JOB: dict[str, Any] = {"name": "job", "kind": "categorical", "values": ["nurse", "cook", "clerk"]}
AGE: dict[str, Any] = {"name": "age", "kind": "integer", "bounds": [0, 1], "missing": "drop"}
CONTRACT = Contract.model_validate(
    {
        "schema": {"attributes": [JOB, AGE]},
        "data": {"path": "people.parquet"},
        "minimum_records": 100_000,
        "minima": {"job": {"nurse": 1_000, "cook": 1_000}},
        "epsilon": 4,
        "delta": "1e-6",
    }
)
RECORDS = list(product(["nurse", "cook", "clerk"], [0, 1, None]))
Person = tuple[str, int | None]
TABLES = list(chain.from_iterable(combinations_with_replacement(range(len(RECORDS)), size) for size in range(3)))


def neighbours() -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All pairs that differ by one record."""
    for table in TABLES:
        if len(table) < 2:
            yield from ((table, tuple(sorted((*table, person)))) for person in range(len(RECORDS)))


# What an analyst may choose, and much that no analyst may.
JOBS = [
    JOB,
    {**JOB, "out_of_domain": "drop"},
    {**JOB, "missing": "drop"},
    {**JOB, "missing_values": ["nurse"], "missing": "drop"},
    {**JOB, "values": ["nurse"], "out_of_domain": "drop"},
    {**JOB, "values": ["nurse", "other"], "aliases": {"cook": "other", "clerk": "other"}},
    {**JOB, "values": ["nurse", "cook"], "aliases": {"clerk": "cook"}},
    {**JOB, "values": ["all"], "aliases": {"nurse": "all", "cook": "all", "clerk": "all"}},
    {**JOB, "buckets": {"groups": [["nurse"], ["cook", "clerk"]]}},
]
AGES = [
    AGE,
    {**AGE, "missing": "refuse"},
    {**AGE, "missing": {"category": "none"}},
    {**AGE, "bounds": [0, 0], "out_of_domain": "drop"},
    {**AGE, "bounds": [0, 0], "out_of_domain": "clip"},
    {**AGE, "bins": {"edges": [0]}},
    {**AGE, "labels": ["young", "old"]},
]
SCHEMAS = [[*jobs, *ages] for jobs in [[], *([one] for one in JOBS)] for ages in [[], *([one] for one in AGES)]][1:]
PRIVACY: list[dict[str, Any]] = [
    {"epsilon": "0.003"},
    {"epsilon": 2, "delta": 1e-7},
    {"epsilon": 1, "adjacency": "replacement"},
]
COUNTS: list[dict[str, Any]] = [{}, {"entropies": [1]}]
ENTROPIES: list[dict[str, Any] | None] = [None, {"orders": [1, 2], "share": "1/2"}]
DATA: list[dict[str, Any]] = [
    {"minimum_records": 1},
    {"minimum_records": 100_000},
    {"minimum_records": 100_001},
    {"minimum_records": 1, "csv": {"comment": "n"}},
]


def specs() -> Iterator[dict[str, Any]]:
    """Histograms with and without entropies, syntheses, and mixtures."""
    for attributes, data in product(SCHEMAS, DATA):
        base = {
            "name": "one",
            "dataset": "people",
            "schema": Schema.model_validate({"attributes": attributes}),
            "data": {"path": "people.parquet", **data},
            "output": {"path": "out", "rows_per_part": 1_000},
        }
        for privacy, counts, entropies in product(PRIVACY, COUNTS, ENTROPIES):
            yield {
                **base,
                "kind": "histogram",
                "privacy": privacy,
                "histograms": "each column",
                "counts": counts,
                "entropies": entropies,
            }
        model = {"rounds": 1, "balance": 0}
        yield {**base, "kind": "synthesis", "privacy": PRIVACY[1], "model": model, "synthesis": {"records": 5}}
        for least in (1_000, 1_001):
            classes = {"nurse": {"minimum": least, "records": 3}, "cook": {"minimum": 1_000, "records": 3}}
            mixing = {"class": "job", "classes": classes, "order": 2}
            yield {**base, "kind": "mixing", "privacy": {"epsilon": 8, "delta": 1e-5}, "mixing": mixing}


@dataclass(frozen=True, eq=False, repr=False)
class Encoded(RecordsInMemory):
    """Records as a file gives them, with what the policies met."""

    batch: EncodedBatch | None = None

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The one batch."""
        if self.batch is not None:
            yield self.batch

    @cached_property
    def seen(self) -> tuple[Any, ...]:
        """All that a stage can see of the records: kept codes, and whether a policy refuses."""
        codes, report = run_pass(self, gather_operator())
        try:
            check(report, self.schema)
        except DpdistError as error:
            return (type(error).__name__,)
        return tuple(sorted(zip(*(column.tolist() for column in codes), strict=True)))


def encoded(schema: Schema, table: tuple[int, ...]) -> Encoded:
    columns = {"job": pa.array([RECORDS[i][0] for i in table], pa.string())}
    columns["age"] = pa.array([RECORDS[i][1] for i in table], pa.int64())
    made = TableEncoder(schema).encode(pa.record_batch(columns))
    batch = EncodedBatch(0, 0, made.codes, made.keep, made.report)
    return Encoded(schema, made.codes, [(0, len(table))], made.report, batch=batch)


@dataclass(frozen=True)
class Ended:
    """How a release ended, whether its charge stays, and whether noise decided."""

    how: str
    charged: bool
    by_noise: bool


def ended(spec: ReleaseSpec, plan: Any, table: Encoded) -> Ended:
    """Run the stages of a release, as `dpdist.lifecycle.run.Run` does, but for files and ledger."""
    told, drawn = list[bool](), list[str]()
    attempt = Rehearsal(
        spec=spec,
        plan=plan,
        table=table,
        executor=InProcess(),
        key=KeyRef.fixed("00112233445566778899aabbccddeeff" * 2),
        id="one",
        work=MemoryStore(),
        output=MemoryStore(),
        progress=silent,
        before_noise=lambda: told.append(True),
    )
    how = "published"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Noise, "discrete_laplace", _noted(Noise.discrete_laplace, drawn))
        try:
            for stage in stages_of(plan):
                attempt.run(stage)
        except DpdistError as error:
            how = type(error).__name__
    by_noise = how == CheckFailed.__name__ and any(name.startswith("checks/") for name in drawn)
    return Ended(how, bool(told), by_noise)


def _noted(draw: Any, drawn: list[str]) -> Any:
    def noted(self: Noise, name: str, *args: Any, **kwargs: Any) -> Any:
        drawn.append(name)
        return draw(self, name, *args, **kwargs)

    return noted


def admitted() -> tuple[list[tuple[ReleaseSpec, Any]], Counter[str]]:
    """The specs that the contract admits with their plans, and what became of all."""
    found, outcomes = [], Counter[str]()
    for tree in specs():
        if departures(tree["schema"], CONTRACT.table):  # whatever the rest of the spec is
            outcomes["no part"] += 1
            continue
        try:
            spec = load(tree)
        except SpecError:
            outcomes["no spec"] += 1
            continue
        try:
            plan = make_plan(spec)
        except (SpecError, AccountingError, GuaranteeRefused):
            outcomes["no plan"] += 1
            continue
        if CONTRACT.departures(spec, event=plan.event) or plan.kind not in CONTRACT.guarantees:
            outcomes["no part"] += 1
            continue
        outcomes["admitted"] += 1
        found.append((spec, plan))
    return found, outcomes


@pytest.mark.slow
def test_how_a_release_ends_tells_nothing() -> None:
    found, outcomes = admitted()
    pairs = list(neighbours())
    assert len(pairs) == 90
    assert sum(outcomes.values()) > 4_000
    assert outcomes["admitted"] > 250
    assert {spec.kind for spec, _ in found} == {"histogram", "synthesis", "mixing"}
    encodings = {
        schema: {table: encoded(schema, table) for table in TABLES} for schema in {spec.table for spec, _ in found}
    }
    for spec, plan in found:
        known: dict[tuple[Any, ...], Ended] = {}
        largest = 2 if spec.kind == "histogram" else 1  # the others take longer
        tables = {table: made for table, made in encodings[spec.table].items() if len(table) <= largest}
        for made in tables.values():
            if made.seen not in known:
                known[made.seen] = ended(spec, plan, made)
        ends = {table: known[made.seen] for table, made in tables.items()}
        assert all(one.charged for one in ends.values()), spec
        for a, b in (pair for pair in pairs if len(pair[1]) <= largest):
            assert ends[a] == ends[b] or ends[a].by_noise or ends[b].by_noise, (spec, RECORDS, a, b)
        assert {one.how for one in ends.values() if not one.by_noise} <= {"published"}, spec


def test_the_test_has_power() -> None:
    """Without the contract the same specs tell tables apart."""
    told = set()
    for attributes in SCHEMAS:
        schema = Schema.model_validate({"attributes": attributes})
        seen = [encoded(schema, table).seen for table in TABLES]
        told.add(len({one == ("OutOfDomain",) for one in seen}))
    assert told == {1, 2}
