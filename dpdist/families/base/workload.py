"""What a release has to do, in units of work: what sizing multiplies by measured costs. Reads no record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from dpdist.privacy.formatting import number_of

if TYPE_CHECKING:
    from dpdist.families.base.family import Plan

Unit: TypeAlias = Literal["read", "increment", "table", "cell", "key", "candidate", "write"]
"""A unit of work: a cost of `dpdist.sizing.simulation.Costs`."""

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A size of cluster."""

    workers: int
    memory: int  # of each worker, in GiB
    partitions: int

    @property
    def parts(self) -> tuple[str, str]:
        """How many workers and partitions, in words."""
        return number_of(self.workers, "worker"), number_of(self.partitions, "partition")

    @property
    def bytes(self) -> int:
        """Memory of all workers together, in bytes."""
        return self.workers * self.memory * GIB


@dataclass(frozen=True, kw_only=True)
class Work:
    """A stage: equal tasks, a tree over their summaries if there are any, and work of the driver."""

    name: str
    tasks: int
    units: Mapping[Unit, float]  # units of work of all tasks together
    summary: int = 0  # bytes of a task's summary; 0 for no tree
    fan_in: int = 8  # summaries that are added at a time
    driver: Mapping[Unit, float] | None = None  # units of work of the driver, after the tasks
    spread: int = 0  # bytes that every worker must have before it begins, passed on from worker to worker


def values_read(plan: Plan) -> float:
    """Values of the table that a pass reads."""
    return float(plan.spec.data.minimum_records * len(plan.spec.table.attributes))


def one_pass(plan: Plan, layout: Layout) -> list[Work]:
    """One pass over the table: what is known of every family."""
    return [Work(name="reading", tasks=layout.partitions, units={"read": values_read(plan)}, summary=1 << 16)]
