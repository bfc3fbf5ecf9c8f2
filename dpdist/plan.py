"""From a spec to a frozen plan: noise, guarantee, charge, checks, memory and tasks. Touches no record."""

from __future__ import annotations

from typing import Any, Protocol

from dpdist.privacy.events import Event
from dpdist.privacy.guarantee import Guarantee
from dpdist.spec import ReleaseSpec


class Plan(Protocol):
    """What every family's plan says."""

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

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""

    def explain(self) -> str:
        """The plan for people."""


def make_plan(spec: ReleaseSpec) -> Plan:
    """Plan a release, whatever its family.

    Raises
    ------
    SpecError
        Settings contradict each other.
    AccountingError
        No valid guarantee at these parameters.
    """
    from dpdist.synthesis.plan import plan

    return plan(spec)
