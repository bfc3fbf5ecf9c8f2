"""The plan of a federated release: what each client does and is charged, and what the average carries.

The charge is that of one client. Clients hold disjoint records, so it is also that of all of them together. It does not
depend on which clients take part: fewer of them share the same protection with more noise each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.errors import SpecError
from dpdist.families.base.family import mebibytes
from dpdist.families.mixing.federated.messages import (
    MESSAGES_HELD,
    CorrelatedNoise,
    block_rows,
    correlated_noise,
    local_noise,
    require_fine_grid,
)
from dpdist.families.mixing.federated.spec import FederatedSpec
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import Mixer
from dpdist.privacy.guarantee import FederatedPrivacy, Guarantee


@dataclass(frozen=True, kw_only=True)
class FederatedPlan(MixingPlan):
    """A `MixingPlan` of every client. Class minima, orders and noise are those of each client by itself."""

    def __post_init__(self) -> None:
        require_fine_grid(self.mixer(self.classes[0].code), self.shared(len(self.federated.clients)))

    @property
    def federated(self) -> FederatedSpec:
        """The clients and whom they trust."""
        if self.spec.federated is None:
            raise SpecError("federated: the spec has no clients")
        return self.spec.federated

    @property
    def noises(self) -> int:
        """Draws of noise that hide each coordinate: one of every client, and a mask of every pair."""
        clients = len(self.federated.clients)
        pairs = clients * (clients - 1) // 2 if self.federated.trust == "correlated" else 0
        return clients + pairs

    @property
    def largest_norm(self) -> float:
        """Clipping norm of every client: declared, or that of the domain."""
        return self.clip or self.encoding.largest_norm

    def mixer(self, code: int) -> Mixer:
        """How a client mixes a class; its noise is what a message alone would need."""
        clip = self.largest_norm
        return Mixer(order=self.order, clip=clip, sigma=self.sigma_over_clip * clip, name=f"mixing/{code}")

    def shared(self, clients: int) -> CorrelatedNoise:
        """The noise of each of so many clients. Raises AccountingError: no honest client would be among them."""
        sigma = self.sigma_over_clip * self.largest_norm
        if self.federated.trust == "local":
            return local_noise(sigma, clients=clients)
        return correlated_noise(sigma, clients=clients, colluding=self.federated.colluding)

    @property
    def block(self) -> int:
        """Mixtures in a message."""
        return block_rows(self.encoding.width, clients=len(self.federated.clients))

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

    def resources(self) -> dict[str, Any]:
        """Memory and tasks: of a client, and of the coordinator (`publisher_bytes`), which holds a block of all."""
        needs, federated = super().resources(), self.federated
        message = 8 * self.encoding.width * min(self.block, max(part.mixtures.records for part in self.classes))
        return {
            **needs,
            "task_bytes": max(needs["task_bytes"], MESSAGES_HELD * message),
            "publisher_bytes": (len(federated.clients) + MESSAGES_HELD) * message,
        }

    def details(self) -> list[str]:
        """Those of a client, and the round."""
        federated, listed = self.federated, len(self.federated.clients)
        shared = self.shared(listed)
        lines = [
            f"Clients     {listed}, of which {federated.minimum} must be ready; each mixes its own records, is charged "
            "in its own ledger and sends noisy sums only. Minima, order and noise above are those of each client",
        ]
        if federated.trust == "local":
            lines.append("Trust       local: every message is private by itself")
        else:
            lines.append(
                f"Trust       correlated noise against a coordinator and {federated.colluding} colluding clients; own "
                f"noise {shared.sigma / self.largest_norm:.4g}, masks {shared.mask_sigma / self.largest_norm:.4g} of "
                "the norm"
            )
        lines.append(
            f"Average     of {listed} clients: {listed * self.order} records a mixture, noise of "
            f"{shared.average / self.largest_norm:.4g} of the norm in each coordinate"
        )
        lines.append(f"Coordinator {mebibytes(self.resources()['publisher_bytes'])} for the messages of all clients")
        return [*super().details(), *lines]
