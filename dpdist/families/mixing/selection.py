"""Orders tried on the table itself: their mixtures are all charged, one is chosen and released.

A secret coin holds a share of the records out. Each candidate mixes the others, within its share of the budget. A
discriminant learned from its mixtures is scored by the held-out records that it gets right, and the noisy largest
score decides (`dpdist.families.mixing.order.OrderSelection`). The mixtures of the chosen order are released as they
were tried:
nothing is drawn again.

A record is either mixed, by every candidate, or held out. Given the coins of all others, the law of the release with it
is an average of the two cases, so it costs the larger of both: the choice, at half the epsilon, is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpdist.families.mixing.calibration import least_scale
from dpdist.families.mixing.order import OrderSelection, common_noise
from dpdist.families.mixing.plan import MixingPlan, planned
from dpdist.families.mixing.spec import MixingSpec, OrderSearchSpec
from dpdist.families.mixing.stages import MARGIN, TOLERANCE, class_events
from dpdist.privacy import accountant
from dpdist.privacy.events import ApproximateDP, Composed, Event, Parallel
from dpdist.schema.schema import Schema


@dataclass(frozen=True, kw_only=True)
class SelectionPlan(MixingPlan):
    """A `MixingPlan` whose order is chosen among candidates; `order` is the largest of them.

    Attributes
    ----------
    candidates : tuple of MixingPlan
        One of each order, with its noise.
    choice : OrderSelection
    """

    candidates: tuple[MixingPlan, ...]
    choice: OrderSelection

    @cached_property
    def event(self) -> Event:
        """The charge: a record is mixed by every candidate, or held out for the choice."""
        mixed = _mixed_events(self.candidates)
        return Parallel((*mixed, self.choice.event), label="mixed, or held out")

    @cached_property
    def released(self) -> Schema:
        """The attributes of the released records, whichever order is chosen."""
        reaches = [candidate.released for candidate in self.candidates]
        return max(reaches, key=lambda schema: (schema.attributes[0].bounds or (0, 0))[1])

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest; the chosen order is added when it is."""
        out = super().public_parameters()
        for name in ("order", "sigma_over_clip", "noise_multiplier", "label_sigma"):
            del out[name]
        for part in out["classes"]:
            del part["sampling_rate"]
        return {
            **out,
            "candidates": [parameters_of(candidate) for candidate in self.candidates],
            "held_out": str(1 - self.spec.mixed_share),
            "choice_epsilon": self.choice.epsilon,
        }

    def explain(self) -> str:
        """The plan for people."""
        text = super().explain()
        lines = [line for line in text.splitlines() if not line.startswith("Mixtures ")]
        tried = ", ".join(f"{one.order} (noise {one.sigma_over_clip:.4g})" for one in self.candidates)
        place = next(i for i, line in enumerate(lines) if line.startswith("Resources "))
        lines.insert(
            place,
            f"Orders      {tried}, in {self.encoding.width} coordinates; noise in units of the clipping norm. The best "
            f"on {float(1 - self.spec.mixed_share):.0%} of the records, by noisy scores, is released",
        )
        return "\n".join(lines)


def parameters_of(plan: MixingPlan) -> dict[str, Any]:
    """What a candidate is, in public numbers."""
    return {
        "order": plan.order,
        "sigma_over_clip": plan.sigma_over_clip,
        "noise_multiplier": plan.sigma_over_clip * plan.order / 2,
        "label_sigma": plan.label_sigma,
    }


def plan_selection(
    spec: MixingSpec, search: OrderSearchSpec, sizes: Mapping[str, tuple[int, int]], *, epsilon: float, delta: float
) -> SelectionPlan:
    """Plan a release that tries orders.

    Parameters
    ----------
    sizes : mapping of str to (int, int)
        Confirmed minimum and mixtures of each class.
    epsilon, delta : float
        Budget of the mixtures of all candidates, by basic composition with the other stages.

    Raises
    ------
    SpecError, AccountingError
        As `dpdist.families.mixing.plan.plan`.
    """
    count, privacy = len(search.candidates), spec.privacy
    drafts = []
    for order in search.candidates:
        draft = planned(spec, order=order, sigma_over_clip=1.0)
        sigma = common_noise(sizes, order=order, epsilon=epsilon / count, delta=delta / count, tolerance=TOLERANCE)
        drafts.append(replace(draft, sigma_over_clip=sigma))

    def scaled(scale: float) -> tuple[MixingPlan, ...]:
        return tuple(replace(draft, sigma_over_clip=scale * draft.sigma_over_clip) for draft in drafts)

    def cost(scale: float) -> float:
        return max(accountant.epsilon(event, delta=privacy.delta) for event in _mixed_events(scaled(scale)))

    scale = least_scale(
        cost, epsilon=privacy.epsilon * (1 - MARGIN), delta=privacy.delta, start=1.0, tolerance=3 * TOLERANCE
    )
    largest = max(drafts, key=lambda draft: draft.order)
    return SelectionPlan(
        spec=spec,
        encoding=largest.encoding,
        moments=largest.moments,
        classes=largest.classes,
        order=largest.order,
        sigma_over_clip=scale * largest.sigma_over_clip,
        candidates=scaled(scale),
        choice=OrderSelection(epsilon=privacy.epsilon / 2),
    )


def _mixed_events(candidates: Sequence[MixingPlan]) -> tuple[Event, ...]:
    """What is done to a record of each class that is mixed."""
    first = candidates[0]
    events = []
    for place, part in enumerate(first.classes):
        (one,) = class_events((part,), first.moments, first.encoding.width, first.sigma_over_clip)
        more = []
        for other in candidates[1:]:
            (event,) = class_events((other.classes[place],), None, other.encoding.width, other.sigma_over_clip)
            if not isinstance(event, Composed):
                raise TypeError("a class is a composition")
            more += [event.events[1], *(e for e in event.events if isinstance(e, ApproximateDP))]  # not its check
        events.append(Composed((one, *more), label="a class, by all candidates"))
    return tuple(dict.fromkeys(events))
