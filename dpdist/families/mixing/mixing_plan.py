"""What a mixing release will do and cost, before it reads a record: noise, guarantee, charge, checks, memory.

The charge: a noisy count of each class against its declared minimum, and the mixtures of each class, one class per
record (in parallel; the records of a unit may be in several); noisy means and deviations of the table if it is scaled
by them; what the samplers lose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from dpdist.errors import AccountingError
from dpdist.families.base.plan import Needs, Plan, core_seconds
from dpdist.families.mixing.budget import ClassPlan, common_noise, divide_budget
from dpdist.families.mixing.mixture import BLOCK_BYTES, SHARD_BYTES
from dpdist.families.mixing.scaling import LEAST_DEVIATION, Encoding, MomentPlan, vector_schema
from dpdist.families.mixing.spec import MixingSpec
from dpdist.privacy import accountant
from dpdist.privacy.calibrate import least_scale
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, Parallel
from dpdist.privacy.formatting import Fact
from dpdist.privacy.mixtures import event_of_units
from dpdist.privacy.noise import SAMPLER_DELTA
from dpdist.spec.schema import Schema
from dpdist.spec.validation import change

MARGIN = 5e-4  # of epsilon, left unspent: the pair of several classes is found on a lattice


@dataclass(frozen=True, kw_only=True)
class MixingPlan(Plan):
    """Everything a mixing release will do and cost, before it reads a record."""

    spec: MixingSpec
    encoding: Encoding  # by the declared domains
    moments: MomentPlan | None  # noise of the means and deviations; None where scaling is by bounds
    classes: tuple[ClassPlan, ...]
    order: int
    sigma_over_clip: float  # noise in each coordinate of every mixture, in units of the clipping norm

    noise_name: ClassVar[str] = "Noise of a mixture over the clipping norm"

    @property
    def noises(self) -> int:
        """Draws of noise that hide each coordinate."""
        return 1

    @cached_property
    def event(self) -> Event:
        """The charge."""
        return Parallel(self.events, label="classes") if len(self.events) > 1 else self.events[0]

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """What is done to the records of each class, equal costs once; of units, to those of all classes."""
        table = () if self.moments is None else (self.moments.event,)
        sigma, unit = self.sigma_over_clip, self.classes[0].mixtures.unit
        if unit > 1:
            of_units = event_of_units([part.mixtures for part in self.classes], sigma)
            failing = math.fsum(sorted(part.check.delta for part in self.classes)[-unit:])
            least = min(part.check.scale for part in self.classes)
            checks = ApproximateDP(unit / least, failing, label="checks of the classes")
            lost = ApproximateDP(0.0, min(math.fsum(map(self.lost, self.classes)), 1.0), label="samplers")
            return (Composed((checks, *of_units, *table, lost), label="all classes"),)
        events = []
        for part in self.classes:
            lost = ApproximateDP(0.0, min(self.lost(part), 1.0), label="samplers")
            events.append(Composed((part.check.event, part.mixtures.event(sigma), *table, lost), label="a class"))
        return tuple(dict.fromkeys(events))

    def lost(self, part: ClassPlan) -> float:
        """What the samplers of a class lose of delta."""
        width = self.encoding.width
        draws = part.mixtures.records * (2 * part.mixtures.order + self.noises * width + 2)  # rows, some drawn again
        return (draws + (0 if self.moments is None else 2 * width + 1)) * SAMPLER_DELTA

    def filled(self, sigma: float) -> Self:
        """This plan with noise that fills the budget, `sigma` at most: stages cost less together than one by one."""

        def cost(scale: float) -> float:
            events = replace(self, sigma_over_clip=scale).events
            return max(accountant.epsilon(event, delta=privacy.delta) for event in events)

        privacy = self.spec.privacy
        noise = least_scale(cost, epsilon=privacy.epsilon * (1 - MARGIN), delta=privacy.delta, start=sigma)
        return replace(self, sigma_over_clip=noise)

    @cached_property
    def delta(self) -> float:
        """Delta at which the guarantee is stated."""
        return self.spec.privacy.delta

    @cached_property
    def released(self) -> Schema:
        """The attributes of the released records: those of the table, or the coordinates of the vectors."""
        if self.spec.mixing.release == "records":
            return self.spec.table
        # Bound of released coordinates, far beyond the noise; `clip` is None where it follows from noisy moments
        norm = self.encoding.largest_norm / LEAST_DEVIATION if self.clip is None else self.clip
        reach = 2.0 ** math.ceil(math.log2(norm * math.sqrt(self.order) * (2 + 40 * self.sigma_over_clip)))
        return vector_schema(self.encoding, self.spec.label, reach=reach)

    @property
    def clip(self) -> float | None:
        """Clipping norm; None where it follows from the noisy moments."""
        if self.spec.mixing.clip is not None:
            return self.spec.mixing.clip
        return self.encoding.largest_norm if self.moments is None else None

    @property
    def label_sigma(self) -> float:
        """Deviation of the published noise on labels, whose mean a record moves by at most ``sqrt(2) / l``; else 0."""
        return self.sigma_over_clip / math.sqrt(2) if self.spec.mixing.noise_on_labels == "paper" else 0.0

    @property
    def records(self) -> int:
        """Mixtures of all classes."""
        return sum(part.mixtures.records for part in self.classes)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        mixing = self.spec.mixing
        return {
            "class": mixing.label,
            "classes": [
                {
                    "value": part.value,
                    "declared_minimum": mixing_class.minimum,
                    "confirmed_minimum": part.check.minimum,
                    "check_scale": part.check.scale,
                    "check_threshold": part.check.threshold,
                    "records": part.mixtures.records,
                    "sampling_rate": part.mixtures.sampling_rate,
                }
                for part, mixing_class in zip(self.classes, mixing.classes.values(), strict=True)
            ],
            "order": self.order,
            "sigma_over_clip": self.sigma_over_clip,
            "noise_multiplier": self.sigma_over_clip * self.order / 2,
            "clip": self.clip,
            "clip_norm": "L2",
            "coordinates": self.encoding.width,
            "scaling": mixing.scaling,
            "scaling_sigma": None if self.moments is None else self.moments.sigma,
            "label_sigma": self.label_sigma,
            "release": mixing.release,
            "spread": mixing.spread,
            "event": self.event.to_json(),
        }

    def needs(self) -> Needs:
        """Memory, tasks and time, from public sizes only."""
        coordinates = 4 * self.encoding.width
        block = BLOCK_BYTES // coordinates
        vectors = coordinates * max(part.mixtures.minimum for part in self.classes)
        mixed = coordinates * max(part.mixtures.records for part in self.classes)
        restored = self.spec.mixing.spread == "restored"  # which needs covariances; eight are added at a time
        covariances = 8 * self.encoding.width**2 * 9 if restored else 0
        return self.bounding(
            Needs(
                partitions=self.partitions,
                tasks=self.partitions
                + 4 * sum(max(8, math.ceil(part.mixtures.records / block)) for part in self.classes),
                task_bytes=max(2 * min(vectors, SHARD_BYTES) + 2 * min(mixed, BLOCK_BYTES), covariances),
                copied_bytes=self.spec.data.minimum_records * self.row_bytes,
                seconds=core_seconds(read=self.values, drawn=self.records * self.encoding.width),
            )
        )

    def noise_at(self, at_most: int) -> float:
        """The noise of this order before stages are composed; infinite where classes are too small."""
        try:
            return common_noise(divide_budget(change(self.spec, {"unit.at_most": at_most})), self.order)
        except AccountingError:
            return math.inf

    def errors(self) -> list[Fact]:
        """The noise in each coordinate."""
        text = (
            f"noise of {self.sigma_over_clip:.4g} times the clipping norm in each coordinate of a mixture of "
            f"{self.order} records"
        )
        return [Fact("Error", text, {"sigma_over_clip": self.sigma_over_clip, "order": self.order})]

    def details(self) -> list[Fact]:
        """Classes, mixtures, scaling and labels."""
        facts = []
        for part in self.classes:
            mixtures = part.mixtures
            text = (
                f"{self.spec.mixing.label} = {part.value}: {mixtures.records:,} mixtures, sampling rate "
                f"{mixtures.sampling_rate:.3g}; at least {mixtures.minimum:,} records are confirmed by a count with "
                f"noise of scale {part.check.scale:.3g}, or the class is left out"
            )
            facts.append(Fact("Class", text, {"mixtures": mixtures.records, "confirmed": mixtures.minimum}))
        clip = "the noisy root mean square norm" if self.clip is None else f"norm {self.clip:.4g}"
        text = f"in {self.encoding.width} coordinates, clipped to {clip}"
        facts.append(Fact("Mixtures", text, {"coordinates": self.encoding.width}))
        if self.moments is not None:
            text = f"noisy means and deviations, noise {self.moments.sigma:.4g} on each sum"
            facts.append(Fact("Scaling", text, {"sigma": self.moments.sigma}))
        if self.label_sigma:
            text = f"published noise of deviation {self.label_sigma:.3g}; it protects nothing"
            facts.append(Fact("Labels", text, {"sigma": self.label_sigma}))
        return facts
