"""What every family of releases is: a spec, a plan, stages that share an attempt, and claims that an audit attacks.

A family is one `Family` record, found by its entry point (`dpdist.families.base.registry`). Command line, evaluation
and audit ask the record and the plan; they never ask for a type.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from dpdist.errors import SpecError
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.events import Event
from dpdist.privacy.formatting import number_of, upwards
from dpdist.privacy.guarantee import DifferentialPrivacy, Guarantee, explained
from dpdist.privacy.testing import Canaries, Claim
from dpdist.publish.part_format import PartFormat
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema
from dpdist.spec.strict import OwnFields
from dpdist.spec.unit import MOST_RECORDS_OF_A_UNIT, adjacency_words

if TYPE_CHECKING:
    import pyarrow as pa

    from dpdist.data.operators import Operator
    from dpdist.families.base.attempt import Attempt
    from dpdist.families.base.linked import LinkedRows
    from dpdist.publish.manifest import Manifest
    from dpdist.spec.described import Described


_SORTED_BYTES = 128  # of a row while its block is sorted


@dataclass(frozen=True, kw_only=True)
class Plan(OwnFields):
    """What a release will do, promise, cost and need, from its spec alone. A plan reads no record.

    A family overrides what it says otherwise or in more detail. A member that follows from nothing else may be a field
    of the subclass instead, as in ``event: Event = field()``.
    """

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

    @property
    def charged(self) -> str:
        """What is charged, in words; both numbers are rounded upwards."""
        return f"epsilon {upwards(self.epsilon)} at delta {upwards(self.delta)}"

    @cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises, the first thing first."""
        epsilon, delta = self.epsilon, self.delta
        return (
            DifferentialPrivacy(
                epsilon=epsilon,
                delta=delta,
                adjacency="add/remove",
                covers="the whole release",
                **self.spec.protected,
            ),
        )

    @property
    def covers(self) -> str:
        """What `epsilon` and `delta` are about."""
        return "the whole release"

    @property
    def refusal(self) -> str | None:
        """Why the release must not run as the spec stands, and what to change; None where nothing stands against it."""
        return None

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

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        raise NotImplementedError

    def resources(self) -> dict[str, Any]:
        """Memory and tasks, from public sizes only."""
        raise NotImplementedError

    def bounding(self, needs: dict[str, Any]) -> dict[str, Any]:
        """What `resources` found, and what bounding the records of the units needs besides."""
        if self.spec.unit is None:
            return needs
        from dpdist.families.base.bounding import sizes_for

        rows, partitions = self.spec.data.minimum_records, needs["partitions"]
        held = sum(attribute.dtype.itemsize for attribute in self.spec.table.attributes) + 2 * 8
        shards, blocks = sizes_for(rows)
        largest = max(rows // partitions, rows // shards)
        return needs | {
            "bounding_bytes": rows * held,
            "task_bytes": max(needs["task_bytes"], 3 * largest * held + _SORTED_BYTES * (rows // shards // blocks)),
            "tasks_about": needs["tasks_about"] + partitions * (shards + 2) + shards,
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "guarantees": [guarantee.to_json() for guarantee in self.guarantees],
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "covers": self.covers,
            "parameters": self.public_parameters(),
            "resources": self.resources(),
            "spec_sha256": self.spec.fingerprint,
        }

    def explain(self) -> str:
        """The plan for people."""
        spec, needs = self.spec, self.resources()
        kind = spec.kind if self.event is not None else f"{spec.kind}, NOT differentially private"
        return "\n".join(
            [
                f"Release {spec.name} ({kind}) of data set {spec.dataset}",
                "",
                *explained(self.guarantees),
                "",
                *self.charge_lines(),
                *self.details(),
                *self.unit_lines(),
                f"Resources   about {number_of(needs['partitions'], 'partition')}, {needs['tasks_about']} tasks; "
                f"{self.held(needs)}{mebibytes(needs['task_bytes'])} per running task",
            ]
        )

    def charge_lines(self) -> list[str]:
        """The lines of `explain` that say what is charged."""
        return [f"Charge      {self.charged} ({self.adjacency})"]

    @property
    def adjacency(self) -> str:
        """What neighbouring tables differ by, in words."""
        return adjacency_words(self.spec.unit)

    noise_name: ClassVar[str] = ""  # what `noise_at` is, for families that protect units

    def noise_at(self, at_most: int) -> float:
        """How far off a typical released number is, if at most so many records of each unit are used."""
        raise NotImplementedError

    def unit_lines(self) -> list[str]:
        """The lines of `explain` that say what the bound on the records of a unit, or on weights, costs."""
        unit, weight = self.spec.unit, self.spec.weight
        if unit is not None:
            used = (
                f"Unit        at most {number_of(unit.at_most, 'record')} of each {unit.name} (column {unit.by!r}) are "
                "used, and none without an id."
            )
            return [f"{used} {self.noise_name} at this epsilon, by unit.at_most: {self._by_bound(unit.at_most)}"]
        if weight is not None:
            used = f"Weights     a record counts as its weight (column {weight.by!r}), {weight.at_most:,} at most"
            used += ", which heavier ones count as." if weight.above == "clip" else "."
            return [f"{used} {self.noise_name} at this epsilon, by weight.at_most: {self._by_bound(weight.at_most)}"]
        return []

    def _by_bound(self, at_most: int) -> str:
        """The noise, by bounds around the chosen one."""
        bounds = sorted({1, max(at_most // 4, 1), max(at_most // 2, 1), at_most, 2 * at_most})
        return ", ".join(
            f"{self.noise_at(bound):.4g} for {bound:,}" for bound in bounds if bound <= MOST_RECORDS_OF_A_UNIT
        )

    def details(self) -> list[str]:
        """The lines of `explain` that only this family has."""
        return []

    def held(self, needs: dict[str, Any]) -> str:
        """What is held in memory besides the running tasks, for `explain`; ends in a separator unless empty."""
        return ""


def mebibytes(count: float) -> str:
    """So many bytes in MiB."""
    return f"{count / 2**20:,.0f} MiB"


SpecT = TypeVar("SpecT", bound=ReleaseSpec)
PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True)
class Stage(Generic[SpecT, PlanT]):
    """A step of a release that can be repeated: it finds what it stored, and noise is a function of the key."""

    name: str  # for people: progress, logs, tasks of a flow
    # takes the attempt and returns the stage's result, a frozen object that later stages ask for by its type
    # (`Attempt.result`); None where nothing follows
    run: Callable[[Attempt[SpecT, PlanT]], object]


Truth: TypeAlias = tuple[str, str, Floats]
"""What kind of statistic it is (``count``, ``entropy``, ``mean``), of what, and its true values."""

AsReleased: TypeAlias = tuple[Schema, Callable[[Codes], Codes]]
"""The schema by which real records are read, and what turns their codes into columns like the released ones."""


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """What ``dpdist plan --solve`` is asked for; None where an option is not given."""

    epsilon: float | None = None  # of the whole release
    accuracy: float | None = None  # largest expected error of two-way tables, in total variation
    pass_rate: float | None = None  # lowest expected pass rate that is acceptable
    public_table: Path | None = None  # a public table of the same schema
    # where to write the completed spec: the file `source` with the overrides `settings` and what was found
    write: Path | None = None
    source: Path
    settings: Sequence[str] = ()

    def refuse(self, *options: str, go_with: str) -> None:
        """Refuse options that would be passed over. Raises SpecError: one of them is given."""
        given = [f"--{option.replace('_', '-')}" for option in options if getattr(self, option) is not None]
        if given:
            raise SpecError(f"{', '.join(given)}: only with {go_with}")


class Solution(Protocol):
    """What ``dpdist plan --solve`` found."""

    @property
    def plan(self) -> Plan | None:
        """The plan of the completed spec; None where none is completed."""

    def to_json(self) -> dict[str, Any]:
        """The solution as a JSON object."""

    def explain(self) -> str:
        """The solution for people."""


def no_claims(plan: Any) -> tuple[Claim, ...]:
    """Nothing to audit."""
    return ()


def no_canaries(plan: Any) -> tuple[Canaries, ...]:
    """Nothing that can be audited in one run."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Family(Generic[SpecT, PlanT]):
    """A family of releases."""

    kind: str  # the `kind` of its specs
    # class of its specs, or its path ``module:class`` where it is imported when it is first needed
    spec: type[SpecT] | str
    plan: Callable[[SpecT], PlanT]  # spec to plan. Reads no record
    # plan to the stages of a release, in order. The last one leaves `Attempt.parts`
    stages: Callable[[PlanT], Sequence[Stage[SpecT, PlanT]]]
    # plan to the stated guarantees that an audit attacks, each with the stages or functions that a release runs
    claims: Callable[[PlanT], tuple[Claim, ...]] = no_claims
    # plan to the mechanisms that can be audited in one run
    canaries: Callable[[PlanT], tuple[Canaries, ...]] = no_canaries
    # spec and `SolveRequest` to what ``dpdist plan --solve`` shows. Without it nothing is solved
    solve: Callable[[SpecT, SolveRequest], Solution] | None = None
    # for families that release statistics: plan and the manifest's parameters to the operator that computes them on a
    # table, and what turns its summary into their true values (`Truth`), in the order of the release. An evaluation
    # compares the two
    truth: Callable[[PlanT, Mapping[str, Any]], tuple[Operator, Callable[[Any], list[Truth]]]] | None = None
    # manifest and spec (None if it is not known) to the schema by which real records are read, and what turns their
    # codes into columns like the released ones; None where the release holds records like those of the table. An
    # evaluation then trains models on them and compares nothing else
    as_released: Callable[[Manifest, SpecT | None], AsReleased | None] | None = None
    # plan, records of a smaller table and their ratio to those of the whole one, to the plan of a release of the
    # smaller table with the same noise. With it, an adversary who knows the mechanism can run the release on tables of
    # its own (`dpdist.evaluation.attacks.shadow`)
    shadow: Callable[[PlanT, int, float], PlanT] | None = None

    # spec to a digest of what it reads of public tables, None where it names none: which these are is a matter of
    # paths, which are no part of a spec's fingerprint, so attempts are bound to the digest besides
    public_tables: Callable[[SpecT], str | None] | None = None

    # manifest and spec (None if it is not known) to how released rows are parents with members, where they are. An
    # evaluation then compares both tables and what is within a parent, and its attacks have whole parents as targets
    linked: Callable[[Manifest, SpecT | None], LinkedRows] | None = None

    # manifest and released table to what they say about each column: ``dpdist schema draft`` makes a schema of it
    described: Callable[[Manifest, pa.Table], list[Described]] | None = None

    @property
    def spec_class(self) -> type[SpecT]:
        """Class of its specs."""
        found: type[SpecT] = pkgutil.resolve_name(self.spec) if isinstance(self.spec, str) else self.spec
        return found


def imported(path: str) -> Callable[..., Any]:
    """A function, given as ``module:function``, that is imported when it is first called."""

    def call(*arguments: Any) -> Any:
        return pkgutil.resolve_name(path)(*arguments)

    return call


def family_in(package: str, kind: str, spec: str, **more: str) -> Family[Any, Any]:
    """A family in modules of a package, each of them imported when it is first needed.

    Parameters
    ----------
    package : str
        The package; it has ``plan:plan``, ``stages:stages`` and ``claims:claims``.
    kind : str
        The `kind` of its specs.
    spec : str
        Class of its specs, as ``module:class`` in the package.
    **more : str
        Other members of `Family`, as ``module:function``.
    """
    paths = {name: f"{name}:{name}" for name in ("plan", "stages", "claims")} | more
    members: dict[str, Any] = {name: imported(f"{package}.{path}") for name, path in paths.items()}
    return Family(kind=kind, spec=f"{package}.{spec}", **members)
