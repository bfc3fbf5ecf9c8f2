"""Orders tried on the table itself: their mixtures are all charged, one is chosen and released.

A secret coin holds a share of the records out. Each candidate mixes the others, within its share of the budget. A
discriminant learned from its mixtures is scored by the held-out records that it gets right, and the noisy largest
score decides (`OrderSelection`). The mixtures of the chosen order are released as they were tried: nothing is drawn
again.

A record is either mixed, by every candidate, or held out: the release is a random split of two stages
(`dpdist.privacy.split`), which costs less than the dearer of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpdist.families.mixing.budget import MARGIN, TOLERANCE, Budget, class_events
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.order import common_noise
from dpdist.families.mixing.spec import MOST_CANDIDATES
from dpdist.privacy import accountant
from dpdist.privacy.calibrate import least_scale
from dpdist.privacy.events import ApproximateDP, Composed, Event, Parallel, RandomSplit
from dpdist.privacy.noise import SAMPLER_DELTA, Noise
from dpdist.schema.schema import Schema


@dataclass(frozen=True, kw_only=True)
class OrderSelection:
    """A charged choice among orders: the noisy largest of their scores on held-out records.

    The score of an order is the number of held-out records that a model trained on its mixtures gets right. One record
    changes every score by 0 or 1, all in the same direction, so the index of the largest score with discrete Laplace
    noise of scale ``1 / epsilon`` is epsilon-differentially private (report noisy max for monotone scores, Dwork and
    Roth 2014, Claim 3.9). The mixtures of every candidate are charged by themselves: they read the other records.
    """

    epsilon: float  # budget of the choice

    @property
    def event(self) -> ApproximateDP:
        """The charge of the choice, samplers included."""
        return ApproximateDP(self.epsilon, MOST_CANDIDATES * SAMPLER_DELTA, label="choice of the order")

    def choose(self, noise: Noise, scores: Sequence[int], *, name: str = "mixing/order") -> int:
        """Index of the chosen candidate; the first where several are largest."""
        noisy = noise.discrete_laplace(name, len(scores), scale=1 / self.epsilon)
        noisy += scores
        return int(noisy.argmax())


@dataclass(frozen=True, kw_only=True)
class SelectionPlan(MixingPlan):
    """A `MixingPlan` whose order is chosen among candidates; `order` is the largest of them."""

    candidates: tuple[MixingPlan, ...]  # one of each order, with its noise
    choice: OrderSelection

    @cached_property
    def event(self) -> Event:
        """The charge: a record is mixed by every candidate, or held out for the choice."""
        return _split(self.candidates, self.choice)

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


def plan_selection(drafts: Sequence[MixingPlan], divided: Budget) -> SelectionPlan:
    """Plan a release that tries orders.

    Parameters
    ----------
    drafts : sequence of MixingPlan
        One of each order, with any noise.
    divided : Budget
        What the mixtures of all candidates may cost together.

    Raises
    ------
    AccountingError
        No noise meets the budget.
    """
    spec = drafts[0].spec
    count, privacy = len(drafts), spec.privacy
    share = {"epsilon": divided.epsilon / count, "delta": divided.delta / count, "tolerance": TOLERANCE}
    drafts = [
        replace(draft, sigma_over_clip=common_noise(divided.sizes, order=draft.order, **share)) for draft in drafts
    ]

    def scaled(scale: float) -> tuple[MixingPlan, ...]:
        return tuple(replace(draft, sigma_over_clip=scale * draft.sigma_over_clip) for draft in drafts)

    choice = OrderSelection(epsilon=privacy.epsilon / 2)

    def cost(scale: float) -> float:
        return accountant.epsilon(_split(scaled(scale), choice), delta=privacy.delta)

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
        choice=choice,
    )


def _split(candidates: Sequence[MixingPlan], choice: OrderSelection) -> RandomSplit:
    """What is done to the records that are mixed, and to those that are held out."""
    events, share = _mixed_events(candidates), float(candidates[0].spec.mixed_share)
    mixed = events[0] if len(events) == 1 else Parallel(events, label="classes")
    return RandomSplit(((share, mixed), (1 - share, choice.event)), label="mixed, or held out")


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
