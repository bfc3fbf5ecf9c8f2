"""The plan of a federated release: what each client does and is charged, and what the average carries.

The charge is that of one client, and so of all, who hold disjoint records. It does not depend on which clients take
part: fewer of them share the same protection with more noise each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpdist.families.base.plan import Needs
from dpdist.families.mixing.federated.messages import (
    MESSAGES_HELD,
    CorrelatedNoise,
    block_rows,
    correlated_noise,
    local_noise,
    require_fine_grid,
)
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import Mixer
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated.plan import ClientsPlan
from dpdist.privacy.formatting import Fact


@dataclass(frozen=True, kw_only=True)
class FederatedPlan(ClientsPlan, MixingPlan):
    """A `MixingPlan` of every client. Class minima, orders and noise are those of each client by itself."""

    spec: MixingSpec

    def __post_init__(self) -> None:
        require_fine_grid(self.mixer(self.classes[0].code), self.shared(len(self.federated.clients)))

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
        """The noise of each of this many clients. Raises AccountingError: no honest client would be among them."""
        sigma = self.sigma_over_clip * self.largest_norm
        if self.federated.trust == "local":
            return local_noise(sigma, clients=clients)
        return correlated_noise(sigma, clients=clients, colluding=self.federated.colluding)

    @property
    def block(self) -> int:
        """Mixtures in a message."""
        return block_rows(self.encoding.width, clients=len(self.federated.clients))

    def needs(self) -> Needs:
        """Memory and tasks: of a client, and of the coordinator (the driver), which holds a block of all."""
        found = super().needs()
        message = 8 * self.encoding.width * min(self.block, max(part.mixtures.records for part in self.classes))
        return replace(
            found,
            task_bytes=max(found.task_bytes, MESSAGES_HELD * message),
            driver_bytes=(len(self.federated.clients) + MESSAGES_HELD) * message,
        )

    def details(self) -> list[Fact]:
        """Those of a client, and the round."""
        federated, listed, norm = self.federated, len(self.federated.clients), self.largest_norm
        shared = self.shared(listed)
        clients = (
            f"{listed}; at least {federated.minimum} must be ready; each mixes its own records, is charged in its own "
            "ledger and sends noisy sums only. Minima, order and noise above are those of each client"
        )
        trust = "local: every message is private by itself"
        if federated.trust != "local":
            trust = (
                f"correlated noise against a coordinator and {federated.colluding} colluding clients; own noise "
                f"{shared.sigma / norm:.4g}, masks {shared.mask_sigma / norm:.4g} of the norm"
            )
        average = (
            f"of {listed} clients: {listed * self.order} records a mixture, noise of {shared.average / norm:.4g} of "
            "the norm in each coordinate"
        )
        return [
            *super().details(),
            Fact("Clients", clients, {"listed": listed, "minimum": federated.minimum}),
            Fact("Trust", trust, {"colluding": federated.colluding, "sigma": shared.sigma / norm}),
            Fact("Average", average, {"noise": shared.average / norm}),
        ]
