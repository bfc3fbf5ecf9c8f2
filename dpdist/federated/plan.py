"""What the plan of a federated release says beyond that of a curator: the clients' guarantee, and who they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.errors import SpecError
from dpdist.families.base.plan import Plan
from dpdist.federated.spec import FederatedRelease, FederatedSpec
from dpdist.privacy.guarantee import FederatedPrivacy, Guarantee


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
