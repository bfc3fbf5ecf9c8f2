"""What a release will do, promise, cost and need, from its spec alone. A plan reads no record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from dpdist.data.records import BATCH_ROWS
from dpdist.privacy import accountant
from dpdist.privacy.accountant import most_right
from dpdist.privacy.event import Event
from dpdist.privacy.formatting import Fact, lines_of, mebibytes, number_of, upwards
from dpdist.privacy.guarantee import DifferentialPrivacy, Guarantee, explained
from dpdist.publish.part_format import PartFormat
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema
from dpdist.spec.strict import OwnFields
from dpdist.spec.unit import MOST_RECORDS_OF_A_UNIT, adjacency_words

_VALUE_BYTES = 64  # of a value while it is read and encoded
_SORTED_BYTES = 128  # of a row while its block is sorted
_SHOWN = 1 << 19  # bytes: half a MiB, else it says 0
_BOUNDS = range(1, MOST_RECORDS_OF_A_UNIT + 1)

# values a second of one core, and seconds for what does not grow with the table (docs/benchmarks.md, synthesis)
_READ, _DRAWN, _START = 5e7, 1.5e6, 1.5
_MOST_SECONDS = 100  # that are not told in minutes
_LOADED = 128 << 20  # bytes of a process with its libraries


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a release takes, about, from public sizes only."""

    partitions: int  # of the table
    tasks: int
    task_bytes: int  # of a running task
    held_bytes: int = 0  # that all workers hold together, each a part
    copied_bytes: int = 0  # that every worker holds whole
    driver_bytes: int = 0  # of the process that fits and publishes
    seconds: float = 0.0  # of one core

    def facts(self) -> Iterator[Fact]:
        """Time and memory for people."""
        seconds = math.ceil(self.seconds)
        text = number_of(math.ceil(seconds / 60), "minute") if seconds > _MOST_SECONDS else number_of(seconds, "second")
        yield Fact("Time", f"about {text} of one core; cores share reading and drawing", {"seconds": seconds})
        held = {
            f"{mebibytes(self.task_bytes)} per running task": math.inf,
            f"{mebibytes(self.held_bytes)} that workers hold together, or read again": self.held_bytes,
            f"{mebibytes(self.copied_bytes)} on every worker": self.copied_bytes,
            f"{mebibytes(_LOADED + self.driver_bytes)} in the driver": _LOADED,
        }
        numbers = {name: value for name, value in asdict(self).items() if name.endswith("_bytes")}
        yield Fact("Memory", "about " + ", ".join(text for text, size in held.items() if size >= _SHOWN), numbers)


def core_seconds(*, read: float, drawn: float = 0.0) -> float:
    """About how many seconds one core needs to read and count values, and to draw and write them."""
    return _START + read / _READ + drawn / _DRAWN


@dataclass(frozen=True, kw_only=True)
class Plan(OwnFields):
    """What a release will do, promise, cost and need, from its spec alone.

    A family overrides what it says otherwise or in more detail. A member that follows from nothing else may be a field
    of the subclass instead, as in ``event: Event = field()``.
    """

    noise_name: ClassVar[str] = ""  # what `noise_at` is, for families that protect units

    spec: ReleaseSpec

    @cached_property
    def event(self) -> Event | None:
        """The charge; None where the release is not differentially private, so that nothing composes with it."""
        raise NotImplementedError

    @cached_property
    def delta(self) -> float:
        """Delta at which the guarantee is stated."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """Kind of guarantee, as the ledger's policies name it."""
        return "dp"

    @cached_property
    def epsilon(self) -> float:
        """Epsilon of the charge at `delta`; infinite where nothing is charged."""
        return math.inf if self.event is None else accountant.epsilon(self.event, delta=self.delta)

    @cached_property
    def right(self) -> float | None:
        """The most that a guess of `dpdist.privacy.formatting.GUESS` is right; None where nothing is charged."""
        return None if self.event is None else most_right(self.event)

    @property
    def charged(self) -> str:
        """What is charged, in words; both numbers are rounded upwards."""
        return f"epsilon {upwards(self.epsilon)} at delta {upwards(self.delta)}"

    @cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises, the first thing first."""
        of = {"epsilon": self.epsilon, "delta": self.delta, "right": self.right, **self.spec.protected}
        return (DifferentialPrivacy(adjacency="add/remove", covers="the whole release", **of),)

    @property
    def refusal(self) -> str | None:
        """Why the release must not run as the spec stands, and what to change; None where nothing stands against it."""
        return None

    def rehearse_hooks(self) -> None:
        """Call the user's functions that the spec names on made-up records. Raises SpecError: one does not do what it
        must. Plans of released specs are made without this: it runs code that they name.
        """

    @cached_property
    def released(self) -> Schema:
        """The attributes of the released records."""
        return self.spec.table

    @cached_property
    def form(self) -> PartFormat:
        """How the parts of the release are written."""
        return PartFormat(values=self.spec.output.values, bins=self.spec.output.bins)

    @property
    def partitions(self) -> int:
        """Partitions of the table, about."""
        return self.spec.cluster.partitions or max(1, round(self.spec.data.minimum_records / (1 << 20)))

    @property
    def row_bytes(self) -> int:
        """Bytes of an encoded record."""
        return sum(attribute.dtype.itemsize for attribute in self.spec.table.attributes)

    @property
    def values(self) -> int:
        """Values of the table, about."""
        return self.spec.data.minimum_records * len(self.spec.table.attributes)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        event = None if self.event is None else self.event.to_json()
        return {"minimum_records": self.spec.data.minimum_records, "event": event}

    def needs(self) -> Needs:
        """Memory, tasks and time, from public sizes only: those of one pass over the table."""
        return self.bounding(
            Needs(
                partitions=self.partitions,
                tasks=self.partitions + math.ceil(self.partitions / 7) + 2,
                task_bytes=_VALUE_BYTES * len(self.spec.table.attributes) * BATCH_ROWS,
                seconds=core_seconds(read=self.values),
            )
        )

    def bounding(self, needs: Needs) -> Needs:
        """The needs with what bounding the records of the units takes."""
        if self.spec.unit is None:
            return needs
        from dpdist.families.base.bounding import sizes_for

        rows, held = self.spec.data.minimum_records, self.row_bytes + 2 * 8
        shards, blocks = sizes_for(rows)
        largest = max(rows // needs.partitions, rows // shards)
        sorting = 3 * largest * held + _SORTED_BYTES * (rows // shards // blocks)
        tasks = needs.tasks + needs.partitions * (shards + 2) + shards
        return replace(needs, task_bytes=max(needs.task_bytes, sorting), tasks=tasks)

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "guarantees": [guarantee.to_json() for guarantee in self.guarantees],
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "parameters": self.public_parameters(),
            "needs": asdict(self.needs()),
            "facts": [fact.to_json() for fact in self.facts()],
            "spec_sha256": self.spec.fingerprint,
        }

    def facts(self) -> list[Fact]:
        """What the plan says: what people ask first, then how it is done."""
        spec, needs = self.spec, self.needs()
        kind = spec.kind if self.event is not None else f"{spec.kind}, NOT differentially private"
        tasks = f"about {needs.tasks:,}, of about {number_of(needs.partitions, 'partition')}"
        return [
            Fact("Release", f"{spec.name} ({kind}) of data set {spec.dataset}"),
            *(replace(fact, detail=fact.title == "Meaning") for fact in explained(self.guarantees)),
            *self.errors(),
            *needs.facts(),
            *self.bounds(),
            *(replace(fact, detail=True) for fact in (*self.charges(), *self.details())),
            Fact("Tasks", tasks, {"tasks": needs.tasks, "partitions": needs.partitions}, detail=True),
        ]

    def explain(self) -> str:
        """The plan as text, a line for each fact."""
        return "\n".join(lines_of(self.facts()))

    def errors(self) -> list[Fact]:
        """How far off the released numbers are expected to be."""
        return []

    def charges(self) -> list[Fact]:
        """What is charged, and for which neighbours."""
        return [Fact("Charge", f"{self.charged} ({self.adjacency})", {"epsilon": self.epsilon, "delta": self.delta})]

    def details(self) -> list[Fact]:
        """How it is done: what only this family says."""
        return []

    @property
    def adjacency(self) -> str:
        """What neighbouring tables differ by, in words."""
        return adjacency_words(self.spec.unit)

    def noise_at(self, at_most: int) -> float:
        """How far off a typical released number is, if at most this many records of each unit are used."""
        raise NotImplementedError

    def bounds(self) -> list[Fact]:
        """What the bound on the records of a unit, or on weights, costs."""
        unit, weight = self.spec.unit, self.spec.weight
        if unit is not None:
            used = f"at most {number_of(unit.at_most, 'record')} of each {unit.name} (column {unit.by!r}) are used"
            return [self._bound("Unit", f"{used}, and none without an id", "unit", unit.at_most)]
        if weight is not None:
            used = f"a record counts as its weight (column {weight.by!r}), {weight.at_most:,} at most"
            above = ", which heavier ones count as" if weight.above == "clip" else ""
            return [self._bound("Weights", used + above, "weight", weight.at_most)]
        return []

    def _bound(self, title: str, used: str, setting: str, chosen: int, within: range = _BOUNDS) -> Fact:
        """The noise, by bounds around the chosen one."""
        tried = {within[0], *(max(bound, within[0]) for bound in (chosen // 4, chosen // 2, chosen, 2 * chosen))}
        noise = {bound: self.noise_at(bound) for bound in sorted(tried.intersection(within))}
        shown = ", ".join(f"{value:.4g} for {bound:,}" for bound, value in noise.items())
        text = f"{used}. {self.noise_name} at this epsilon, by {setting}.at_most: {shown}"
        return Fact(title, text, {f"at_most {bound}": value for bound, value in noise.items()})


@dataclass(frozen=True, kw_only=True)
class EventPlan(Plan):
    """The plan of a release that reads its table in passes and is charged one event (add/remove)."""

    event: Event = field()  # the charge
    delta: float = 0.0  # at which the guarantee is stated
