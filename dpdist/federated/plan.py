"""What the plan of a federated release says beyond that of a curator: the clients' guarantee, and who they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.errors import SpecError
from dpdist.families.base.plan import Plan
from dpdist.federated.spec import FederatedRelease, FederatedSpec
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

    def client_facts(self, wider: float) -> list[Fact]:
        """Who answers, and what that costs: the noise is `wider` than that of one curator."""
        spec, federated = self.spec, self.federated
        listed, least = len(federated.clients), spec.least_clients
        text = f"{listed}; at least {least} must be ready; each is charged in its own ledger, and " + (
            "sends masked tables: only their noisy sum is seen" if spec.is_masked else "adds its own noise"
        )
        noise = f"{wider:.3g} times that of one curator, against {federated.colluding} colluding clients"
        return [
            Fact("Clients", text, {"listed": listed, "minimum": least}),
            Fact("Noise of the sums", noise, {"times": wider, "colluding": federated.colluding}),
        ]

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        return {**super().public_parameters(), "federated": self.spec.public()["federated"]}
