"""What every family of releases is: a spec, a plan, stages that share an attempt, and claims that an audit attacks.

A family is one `Family` record in `dpdist.families.registry.FAMILIES`. Sizing, command line, evaluation and audit ask
the record and the plan; they never ask for a type.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dpdist.privacy.events import Event
from dpdist.privacy.guarantee import Guarantee
from dpdist.privacy.testing import Canaries, Claim
from dpdist.schema.schema import Schema
from dpdist.spec import ReleaseSpec

if TYPE_CHECKING:
    from dpdist.families.attempt import Attempt
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
    def event(self) -> Event:
        """The charge."""

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


def no_claims(plan: Any) -> tuple[Claim, ...]:
    """Nothing to audit."""
    return ()


def no_canaries(plan: Any) -> tuple[Canaries, ...]:
    """Nothing that can be audited in one run."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Family(Generic[SpecT, PlanT]):
    """A family of releases.

    Parameters
    ----------
    kind : str
        The `kind` of its specs.
    spec : type
        Class of its specs.
    plan : callable
        Spec to plan. Reads no record.
    stages : callable
        Plan to the stages of a release, in order. The last one leaves `Attempt.parts`.
    claims : callable
        Plan to the stated guarantees that an audit attacks, each with the stages or functions that a release runs.
    canaries : callable
        Plan to the mechanisms that can be audited in one run.
    """

    kind: str
    spec: type[SpecT]
    plan: Callable[[SpecT], PlanT]
    stages: Callable[[PlanT], Sequence[Stage[SpecT, PlanT]]]
    claims: Callable[[PlanT], tuple[Claim, ...]] = no_claims
    canaries: Callable[[PlanT], tuple[Canaries, ...]] = no_canaries


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
