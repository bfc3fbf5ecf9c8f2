"""The last stage of every family that releases records: decode and write the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpdist.cluster.executor import Executor
from dpdist.cluster.tasks import Deferred
from dpdist.families.base.attempt import Attempt
from dpdist.publish.graph import written_parts


@dataclass(frozen=True, eq=False)
class ReleasedRecords:
    """The records of a release before they are written.

    Attributes
    ----------
    parts : sequence of Deferred of Codes
        Part p holds the released records from ``p * output.rows_per_part`` on.
    executor : Executor or None
        Where the parts are, if not with the executor of the attempt.
    """

    parts: Sequence[Deferred]
    executor: Executor | None = None


def write_records(attempt: Attempt[Any, Any]) -> None:
    """Write the released records in parts of a fixed number of rows."""
    released = attempt.result(ReleasedRecords)
    executor = released.executor or attempt.executor
    with attempt.stage("writing") as progress:
        graphs = written_parts(
            executor,
            released.parts,
            schema=attempt.plan.released,
            form=attempt.plan.form,
            store=attempt.output,
            attempt=attempt.id,
            key=attempt.key,
            rows_per_part=attempt.spec.output.rows_per_part,
        )
        attempt.parts = tuple(executor.compute(graphs, progress=progress))
