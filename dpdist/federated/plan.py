"""What the plan of a federated release says beyond that of a curator: the clients' guarantee, and who they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.errors import SpecError
from dpdist.families.base.plan import Plan
from dpdist.federated.spec import FederatedRelease, FederatedSpec, SummedRelease
from dpdist.privacy.formatting import Fact
from dpdist.privacy.guarantee import FederatedPrivacy, Guarantee


def require_one_curator(plan: Plan) -> None:
    """Refuse to audit what runs at clients. Raises SpecError."""
    if isinstance(plan, ClientsPlan):
        raise SpecError(
            "federated releases are not audited from their spec; leave out `federated` to audit a central one"
        )


@dataclass(frozen=True, kw_only=True)
class ClientsPlan(Plan):
    """A plan of every client."""

    spec: FederatedRelease

    @property
    def federated(self) -> FederatedSpec:
        """The clients and whom they trust."""
        if self.spec.federated is None:
            raise SpecError("federated: the spec has no clients")
        return self.spec.federated

    @cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises, and what the protocol does."""
        federated = self.federated
        client = FederatedPrivacy(
            epsilon=self.epsilon, delta=self.delta, trust=federated.trust, colluding=federated.colluding
        )
        return (*super().guarantees, client)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        return {**super().public_parameters(), "federated": self.spec.public()["federated"]}


@dataclass(frozen=True, kw_only=True)
class SummedPlan(ClientsPlan):
    """A plan of noisy sums over clients."""

    spec: SummedRelease

    @property
    def wider(self) -> float:
        """Deviation of the noise in the sums of all listed clients, over that of one curator."""
        return self.spec.widening(len(self.federated.clients))

    def details(self) -> list[Fact]:
        """Those of a curator, and who answers."""
        federated, listed, wider = self.federated, len(self.federated.clients), self.wider
        text = (
            f"{listed}; at least {self.spec.least_clients} must be ready; each is charged in its own ledger, and "
            + ("sends masked tables: only their noisy sum is seen" if self.spec.is_masked else "adds its own noise")
        )
        if self.spec.unit is not None:
            at = federated.unit_at or listed
            text += f". A unit is at {at} of them at most: that many times the noise of one that is at one"
        noise = f"{wider:.3g} times that of one curator, against {federated.colluding} colluding clients"
        return [
            *super().details(),
            Fact("Clients", text, {"listed": listed, "minimum": self.spec.least_clients}),
            Fact("Noise of the sums", noise, {"times": wider, "colluding": federated.colluding}),
        ]
