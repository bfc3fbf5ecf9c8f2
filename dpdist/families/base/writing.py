"""The last stage of every family that releases records: tasks decode and write the parts, where the records are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dpdist.cluster.executor import Executor
from dpdist.cluster.tasks import Deferred
from dpdist.families.base.attempt import Attempt
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.publish.part_format import PartFormat, PartRecord
from dpdist.publish.parts import decode, part_name, write_part
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

_How = tuple[Schema, PartFormat, Store, str, KeyRef, Callable[[pa.Table], pa.Table] | None]


@dataclass(frozen=True, eq=False)
class ReleasedRecords:
    """The records of a release before they are written."""

    parts: Sequence[Deferred]  # of Codes: part p holds the released records from ``p * output.rows_per_part`` on
    executor: Executor | None = None  # where the parts are, if not with the executor of the attempt
    key: KeyRef | None = None  # of the values in their bins, if not that of the attempt
    finish: Callable[[pa.Table], pa.Table] | None = None  # the last step of each decoded part, if there is one


def write_records(attempt: Attempt[Any, Any]) -> None:
    """Write the released records in parts of a fixed number of rows."""
    released, plan, rows = attempt.result(ReleasedRecords), attempt.plan, attempt.spec.output.rows_per_part
    executor = released.executor or attempt.executor
    with attempt.stage("writing") as progress:
        task = executor.tasks("write")
        key, finish = released.key or attempt.key, released.finish
        how = task.constant("how", (plan.released, plan.form, attempt.output, attempt.id, key, finish))
        parts = [task("part", _write, how, part, index, index * rows) for index, part in enumerate(released.parts)]
        attempt.parts = tuple(executor.compute(parts, progress=progress))


def _write(how: _How, codes: Codes, index: int, start: int) -> PartRecord:
    schema, form, store, attempt, key, finish = how
    table = decode(schema, codes, form=form, noise=load_noise(key), start=start)
    return write_part(store, part_name(attempt, index), finish(table) if finish else table)
