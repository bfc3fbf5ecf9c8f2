"""What the plans of all families say: noise, guarantee, charge, checks, memory and tasks. A plan touches no record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from dpdist.privacy.events import Event
from dpdist.privacy.guarantee import Guarantee
from dpdist.schema.schema import Schema
from dpdist.spec import ReleaseSpec

if TYPE_CHECKING:
    from dpdist.publish.parts import PartFormat


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
