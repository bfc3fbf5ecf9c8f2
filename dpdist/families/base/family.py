"""What every family of releases is: a spec, a plan, stages that share an attempt, and claims that an audit attacks.

A family is one `Family` record in `dpdist.families.base.registry.FAMILIES`. Sizing, command line, evaluation and audit
ask the record and the plan; they never ask for a type.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from dpdist.errors import SpecError
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.events import Event
from dpdist.privacy.guarantee import Guarantee
from dpdist.privacy.testing import Canaries, Claim
from dpdist.schema.schema import Schema
from dpdist.schema.spec import ReleaseSpec

if TYPE_CHECKING:
    from dpdist.data.operators import Operator
    from dpdist.families.base.attempt import Attempt
    from dpdist.families.base.workload import Layout, Work
    from dpdist.publish.manifest import Manifest
    from dpdist.publish.parts import PartFormat


class Plan(Protocol):
    """What the plans of all families say: noise, guarantee, charge, checks, memory, tasks. A plan reads no record."""

    @property
    def spec(self) -> ReleaseSpec:
        """What is planned."""

    @property
    def kind(self) -> str:
        """Kind of guarantee, as the ledger's policies name it."""

    @property
    def event(self) -> Event | None:
        """The charge; None where the release is not differentially private, so that nothing composes with it."""

    @property
    def epsilon(self) -> float:
        """Epsilon of the charge at `delta`."""

    @property
    def delta(self) -> float:
        """Delta at which the guarantee is stated."""

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises, the first thing first."""

    @property
    def refusal(self) -> str | None:
        """Why the release must not run as the spec stands, and what to change; None where nothing stands against it."""

    @property
    def released(self) -> Schema:
        """The attributes of the released records."""

    @property
    def form(self) -> PartFormat:
        """How the parts of the release are written."""

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""

    def resources(self) -> dict[str, Any]:
        """Memory and tasks, from public sizes only."""

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""

    def explain(self) -> str:
        """The plan for people."""


SpecT = TypeVar("SpecT", bound=ReleaseSpec)
PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True)
class Stage(Generic[SpecT, PlanT]):
    """A step of a release that can be repeated: it finds what it stored, and noise is a function of the key.

    Parameters
    ----------
    name : str
        For people: progress, logs, tasks of a flow.
    run : callable
        Takes the attempt and returns the stage's result, a frozen object that later stages ask for by its type
        (`Attempt.result`); None where nothing follows.
    """

    name: str
    run: Callable[[Attempt[SpecT, PlanT]], object]


Truth: TypeAlias = tuple[str, str, Floats]
"""What kind of statistic it is (``count``, ``entropy``, ``mean``), of what, and its true values."""

AsReleased: TypeAlias = tuple[Schema, Callable[[Codes], Codes]]
"""The schema by which real records are read, and what turns their codes into columns like the released ones."""


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """What ``dpdist plan --solve`` is asked for; None where an option is not given.

    Attributes
    ----------
    epsilon : float or None
        Of the whole release.
    pass_rate : float or None
        Lowest expected pass rate that is acceptable.
    public_table : Path or None
        A public table of the same schema.
    write : Path or None
        Where to write the completed spec: the file `source` with the overrides `settings` and what was found.
    source : Path
    settings : sequence of str
    """

    epsilon: float | None = None
    pass_rate: float | None = None
    public_table: Path | None = None
    write: Path | None = None
    source: Path
    settings: Sequence[str] = ()

    def refuse(self, *options: str, go_with: str) -> None:
        """Refuse options that would be passed over.

        Raises
        ------
        SpecError
            One of them is given.
        """
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
    # plan and `dpdist.families.base.workload.Layout` to the work of all stages, for sizing. Without it one pass over
    # the table is sized
    workload: Callable[[PlanT, Layout], Sequence[Work]] | None = None
    # spec and `SolveRequest` to what ``dpdist plan --solve`` shows. Without it nothing is solved
    solve: Callable[[SpecT, SolveRequest], Solution] | None = None
    # for families that release statistics: plan to the operator that computes them on a table, and what turns its
    # summary into their true values (`Truth`), in the order of the release. An evaluation compares the two
    truth: Callable[[PlanT], tuple[Operator, Callable[[Any], list[Truth]]]] | None = None
    # manifest and spec (None if it is not known) to the schema by which real records are read, and what turns their
    # codes into columns like the released ones; None where the release holds records like those of the table. An
    # evaluation then trains models on them and compares nothing else
    as_released: Callable[[Manifest, SpecT | None], AsReleased | None] | None = None
    # plan, records of a smaller table and their ratio to those of the whole one, to the plan of a release of the
    # smaller table with the same noise. With it, an adversary who knows the mechanism can run the release on tables of
    # its own (`dpdist.evaluate.attacks.shadow`)
    shadow: Callable[[PlanT, int, float], PlanT] | None = None

    @property
    def spec_class(self) -> type[SpecT]:
        """Class of its specs."""
        found: type[SpecT] = pkgutil.resolve_name(self.spec) if isinstance(self.spec, str) else self.spec
        return found


def imported(path: str) -> Callable[..., Any]:
    """A function that is imported when it is first called.

    Parameters
    ----------
    path : str
        ``module:function``.
    """

    def call(*arguments: Any) -> Any:
        return pkgutil.resolve_name(path)(*arguments)

    return call
