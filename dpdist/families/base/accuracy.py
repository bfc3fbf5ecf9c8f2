"""The stage that measures the accuracy of released records, for any family whose release is records of its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar

from dpdist.accuracy.intervals import CellErrors, sentence
from dpdist.accuracy.measured import Accuracy, measure_accuracy
from dpdist.accuracy.tables import Tables, tables_operator
from dpdist.data.operators import Operator
from dpdist.families.base.attempt import Attempt, ReleasedRecords
from dpdist.families.base.passes import Passes
from dpdist.privacy.arrays import Codes
from dpdist.storage.stored import Stored

STAGE = "accuracy"
_MEMORY_FOR_PARTS = 0.25  # share of the workers' memory that released parts may take until they are written


@dataclass(frozen=True)
class ReleaseAccuracy(Stored):
    """The measured accuracy of a release: drawn once, stored, read back. Public."""

    FILE: ClassVar[str] = "accuracy.json"

    accuracy: Accuracy


def count_tables(attempt: Attempt[Any, Any], *, small: bool = False) -> Tables:
    """The tables of the private records, by one pass; kept for later stages of this process."""
    operator = tables_operator(attempt.spec.table.cardinalities, small=small)
    tables: Tables = Passes(attempt).run(operator, stage="counting")
    attempt.keep(tables)
    return tables


def accuracy_stage(attempt: Attempt[Any, Any], *, mu: float, records: int) -> ReleaseAccuracy:
    """Measure the accuracy of the records that an earlier stage has drawn; it is mu-GDP. Counts are compared at the
    scale of `records`, which is public or was released before.
    """
    released = _held(attempt)

    def make() -> ReleaseAccuracy:
        try:
            exact = attempt.result(Tables)
        except LookupError:  # an earlier process counted them, or the family does not
            exact = count_tables(attempt)
        noise = attempt.noise
        published = released_tables(attempt, released)
        return ReleaseAccuracy(measure_accuracy(exact, published, records=records, mu=mu, noise=noise))

    return published_accuracy(attempt, make)


def published_accuracy(attempt: Attempt[Any, Any], make: Callable[[], ReleaseAccuracy]) -> ReleaseAccuracy:
    """The accuracy as it is made, or was stored; the manifest states it."""
    found = attempt.stored(ReleaseAccuracy, make)
    attempt.public["accuracy"] = found.accuracy.to_json() | {"sentence": sentence(CellErrors(found.accuracy))}
    return found


def _held(attempt: Attempt[Any, Any]) -> ReleasedRecords:
    """The released parts, held in the workers' memory until they are written, where they fit."""
    released, spec = attempt.result(ReleasedRecords), attempt.spec
    row = sum(attribute.dtype.itemsize for attribute in spec.table.attributes)
    rows = len(released.parts) * spec.output.rows_per_part
    if attempt.work.exists(ReleaseAccuracy.FILE) or rows * row > _MEMORY_FOR_PARTS * attempt.executor.memory:
        return released
    held = ReleasedRecords(attempt.executor.persist(released.parts), released.executor, released.key)
    attempt.keep(held)
    return held


def released_tables(attempt: Attempt[Any, Any], released: ReleasedRecords) -> Tables:
    """The tables of the released records."""
    cardinalities = attempt.spec.table.cardinalities
    operator = tables_operator(cardinalities)
    executor = released.executor or attempt.executor
    task = executor.tasks(STAGE)
    counted = [task("count", _part_tables, part, operator) for part in released.parts]
    total = task.tree("sum", partial(_sum, operator), counted, fan_in=operator.fan_in)
    with attempt.stage(STAGE) as progress:
        summary = executor.compute([total], progress=progress)[0]
    found: Tables = operator.finish(summary)
    return found


def _part_tables(codes: Codes, operator: Operator) -> Any:
    return operator.compact(operator.chunk(codes))


def _sum(operator: Operator, parts: list[Any]) -> Any:
    return reduce(operator.combine, parts)
