"""From the spec of a mixing release to its frozen plan, central or federated. Reads no record.

The charge of a federated release is that of one client, and so of all, who hold disjoint records. It does not depend on
which clients take part: fewer of them share the same protection with more noise each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpdist.errors import SpecError
from dpdist.families.base.family import AsReleased
from dpdist.families.base.plan import Needs
from dpdist.families.mixing.budget import ClassPlan, best_order, common_noise, divide_budget
from dpdist.families.mixing.federated import messages
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import Mixer
from dpdist.families.mixing.restore import LARGEST_WIDTH
from dpdist.families.mixing.scaling import Encoding
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated.plan import ClientsPlan
from dpdist.privacy.arrays import Codes
from dpdist.privacy.formatting import Fact
from dpdist.privacy.mixtures import ClassMixtures

if TYPE_CHECKING:
    from dpdist.publish.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class FederatedPlan(ClientsPlan, MixingPlan):
    """A `MixingPlan` of every client. Class minima, orders and noise are those of each client by itself."""

    spec: MixingSpec

    def __post_init__(self) -> None:
        messages.require_fine_grid(self.mixer(self.classes[0].code), self.shared(len(self.federated.clients)))

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

    def shared(self, clients: int) -> messages.CorrelatedNoise:
        """The noise of each of this many clients. Raises AccountingError: no honest client would be among them."""
        sigma = self.sigma_over_clip * self.largest_norm
        if self.federated.trust == "local":
            return messages.local_noise(sigma, clients=clients)
        return messages.correlated_noise(sigma, clients=clients, colluding=self.federated.colluding)

    @property
    def block(self) -> int:
        """Mixtures in a message."""
        return messages.block_rows(self.encoding.width, clients=len(self.federated.clients))

    def needs(self) -> Needs:
        """Memory and tasks: of a client, and of the coordinator (the driver), which holds a block of all."""
        found = super().needs()
        message = 8 * self.encoding.width * min(self.block, max(part.mixtures.records for part in self.classes))
        return replace(
            found,
            task_bytes=max(found.task_bytes, messages.MESSAGES_HELD * message),
            driver_bytes=(len(self.federated.clients) + messages.MESSAGES_HELD) * message,
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


def plan(spec: MixingSpec) -> MixingPlan:
    """Plan a mixing release. Raises SpecError: settings contradict each other; AccountingError: no valid guarantee."""
    mixing, divided = spec.mixing, divide_budget(spec)
    width = divided.encoding.width
    if width > LARGEST_WIDTH and mixing.spread == "restored":
        raise SpecError(
            f"mixing.spread: {width:,} coordinates are too many for their covariance (at most {LARGEST_WIDTH:,}): "
            "declare fewer values, or bins, or set spread to mixtures"
        )
    order = best_order(divided) if mixing.order == "auto" else mixing.order
    return planned(spec, order=order, sigma_over_clip=1.0).filled(common_noise(divided, order))


def planned(spec: MixingSpec, *, order: int, sigma_over_clip: float) -> MixingPlan:
    """The plan of a release whose order and noise are chosen. Raises SpecError, AccountingError: as `plan`."""
    divided = divide_budget(spec)
    unit = spec.records_of_a_unit
    # A unit's records fewer than confirmed must still fill a mixture, or the class's presence alone would tell.
    small = [value for value, (minimum, _) in divided.sizes.items() if minimum - unit < order]
    if small:
        raise SpecError(
            f"mixing.order: {order} records are more than are confirmed of class {', '.join(map(repr, small))}; lower "
            "the order, or leave the class out of mixing.classes"
        )
    classes = []
    parts = zip(divided.sizes.items(), spec.class_codes, divided.checks, strict=True)
    for (value, (minimum, records)), code, check in parts:
        mixtures = ClassMixtures(minimum=minimum, order=order, records=records, unit=unit)
        classes.append(ClassPlan(value=value, code=code, check=check, mixtures=mixtures))
    kind = MixingPlan if spec.federated is None else FederatedPlan
    made = kind(
        spec=spec,
        encoding=divided.encoding,
        moments=divided.moments,
        classes=tuple(classes),
        order=order,
        sigma_over_clip=sigma_over_clip,
    )
    losses = list(map(made.lost, classes))
    lost = max(losses) if unit == 1 else sum(losses)  # a unit may be in several classes
    if not lost <= spec.privacy.delta / 2:
        raise SpecError(
            f"mixing.classes: the samplers of this many mixtures lose {lost:.2g} of delta, too much of privacy.delta = "
            f"{spec.privacy.delta:g}: release fewer mixtures, or raise privacy.delta"
        )
    return made


def as_released(manifest: Manifest, spec: MixingSpec | None) -> AsReleased | None:
    """How real records become vectors like the released ones; None where the release holds records. Raises SpecError:
    the spec is not given, is not that of the release, or scales by moments that are not public.
    """
    settings = manifest.spec.get("mixing")
    if not isinstance(settings, dict) or settings.get("release") != "vectors":
        return None
    if spec is None:
        raise SpecError("a release of vectors is compared by means of its spec, which holds the schema: give --spec")
    if spec.kind != manifest.kind or spec.mixing.scaling != "bounds":
        raise SpecError("--spec: expected the mixing spec of this release, with mixing.scaling: bounds")
    return spec.table, partial(_vectors, plan(spec).encoding, spec.table.names.index(spec.label.name))


def _vectors(encoding: Encoding, label: int, codes: Codes) -> Codes:
    """A column for each coordinate, and the class."""
    rows = encoding.encode([column for place, column in enumerate(codes) if place != label])
    return [*np.ascontiguousarray(rows.T, np.float64), codes[label]]
