"""Orders tried on the table itself: their mixtures are all charged, one is chosen and released.

A secret coin holds a share of the records out. Each candidate mixes the others, within its share of the budget. A
discriminant learned from its mixtures is scored by the held-out records that it gets right, and the noisy largest
score decides (`OrderSelection`). The mixtures of the chosen order are released as they were tried: nothing is drawn
again.

A record is either mixed, by every candidate, or held out: the release is a random split of two stages
(`dpdist.privacy.pair`), which costs less than the dearer of them. A record must move no score but its own, so scores
are exact: a matrix product of floats rounds a row by the rows that stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpdist.families.mixing.budget import BudgetShares, common_noise
from dpdist.families.mixing.mixing_plan import MARGIN, MixingPlan
from dpdist.families.mixing.mixture import Rows, clip_rows
from dpdist.families.mixing.restore import MixtureSums
from dpdist.families.mixing.scaling import Encoding
from dpdist.families.mixing.spec import MOST_CANDIDATES
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.calibrate import least_scale
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, Parallel, RandomSplit
from dpdist.privacy.formatting import Fact
from dpdist.privacy.grid import grid_below, round_to_grid
from dpdist.privacy.noise import SAMPLER_DELTA, Noise
from dpdist.spec.schema import Schema


@dataclass(frozen=True, kw_only=True)
class OrderSelection:
    """A charged choice among orders: the noisy largest of their scores on held-out records.

    The score of an order is the number of held-out records that a model of its mixtures gets right. One record changes
    every score by 0 or 1 in the same direction, so discrete Laplace noise of scale ``1 / epsilon`` is
    epsilon-differentially private (report noisy max for monotone scores, Dwork and Roth 2014, Claim 3.9).
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

    def errors(self) -> list[Fact]:
        """The noise in each coordinate, by order."""
        noises = {f"order {one.order}": one.sigma_over_clip for one in self.candidates}
        shown = ", ".join(f"{noise:.4g} ({order})" for order, noise in noises.items())
        return [Fact("Error", f"noise of {shown} times the clipping norm in each coordinate of a mixture", noises)]

    def details(self) -> list[Fact]:
        """Those of any order, and the candidates."""
        tried = ", ".join(f"{one.order} (noise {one.sigma_over_clip:.4g})" for one in self.candidates)
        text = (
            f"{tried}, in {self.encoding.width} coordinates; noise in units of the clipping norm. The best on "
            f"{float(1 - self.spec.mixed_share):.0%} of the records, by noisy scores, is released"
        )
        return [*(fact for fact in super().details() if fact.title != "Mixtures"), Fact("Orders", text)]


def parameters_of(plan: MixingPlan) -> dict[str, Any]:
    """What a candidate is, in public numbers."""
    return {
        "order": plan.order,
        "sigma_over_clip": plan.sigma_over_clip,
        "noise_multiplier": plan.sigma_over_clip * plan.order / 2,
        "label_sigma": plan.label_sigma,
    }


def plan_selection(drafts: Sequence[MixingPlan], divided: BudgetShares) -> SelectionPlan:
    """Plan a release that tries orders, from a draft of each. Raises AccountingError: no noise meets the budget."""
    spec, count = drafts[0].spec, len(drafts)
    privacy, own = spec.privacy, replace(divided, epsilon=divided.epsilon / count, delta=divided.delta / count)
    drafts = [replace(draft, sigma_over_clip=common_noise(own, draft.order)) for draft in drafts]

    def scaled(scale: float) -> tuple[MixingPlan, ...]:
        return tuple(replace(draft, sigma_over_clip=scale * draft.sigma_over_clip) for draft in drafts)

    choice = OrderSelection(epsilon=privacy.epsilon / 2)

    def cost(scale: float) -> float:
        return accountant.epsilon(_split(scaled(scale), choice), delta=privacy.delta)

    scale = least_scale(cost, epsilon=privacy.epsilon * (1 - MARGIN), delta=privacy.delta, start=1.0)
    candidates = scaled(scale)
    largest = max(candidates, key=lambda one: one.order)
    own_fields = {each.name: getattr(largest, each.name) for each in fields(largest)}
    return SelectionPlan(**own_fields, candidates=candidates, choice=choice)


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
        (one,) = replace(first, classes=(part,)).events
        more: list[Event] = []
        for other in candidates[1:]:
            (event,) = replace(other, classes=(other.classes[place],), moments=None).events
            if not isinstance(event, Composed):
                raise TypeError("a class is a composition")
            more += [event.events[1], *(e for e in event.events if isinstance(e, ApproximateDP))]  # not its check
        events.append(Composed((one, *more), label="a class, by all candidates"))
    return tuple(dict.fromkeys(events))


_RIDGE = 1e-3  # of the largest eigenvalue
_WEIGHT_STEP = 2.0**-26  # of the largest weight: rows have 2**13 steps, so products sum to far below 2**53
_SCORED = 1 << 16  # rows scored at a time


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Linear scores of classes; a row belongs to the class with the largest."""

    places: tuple[int, ...]  # of the classes
    weights: Floats  # float64[d, classes]: on a grid, so that products with rows on a grid are exact
    offsets: Floats  # float64[classes]

    def __post_init__(self) -> None:
        largest = max(float(np.abs(self.weights).max()), 2.0**-800)
        object.__setattr__(self, "weights", round_to_grid(self.weights, grid=grid_below(largest * _WEIGHT_STEP)))

    def correct(self, rows: Rows, place: int) -> int:
        """How many float32[n, d] rows of a class, from `clip_rows`, are classified as its own."""
        told = (rows.astype(np.float64) @ self.weights + self.offsets).argmax(axis=1)
        return int(np.count_nonzero(np.array(self.places)[told] == place)) if place in self.places else 0


def discriminant(sums: Mapping[int, MixtureSums], *, order: int, sigma: float) -> Discriminant:
    """Fisher's discriminant of classes whose rows have one covariance, from their mixtures, by place of the class.

    Mixtures of l rows have the covariance ``C / l + sigma^2 I``. Weights are public numbers of mixtures.
    """
    count = sum(one.count for one in sums.values())
    means = np.stack([one.total / one.count for one in sums.values()], axis=1)
    within = sum((one.outer - np.outer(one.total, one.total) / one.count for one in sums.values()), np.float64(0))
    values, vectors = np.linalg.eigh(np.asarray(within) / count)
    values = np.maximum(order * (values - sigma**2), 0.0)
    inverse = (vectors / (values + _RIDGE * max(float(values.max()), sigma**2))) @ vectors.T
    weights = inverse @ means
    priors = np.log([one.count / count for one in sums.values()])
    return Discriminant(tuple(sums), weights, priors - np.einsum("dk,dk->k", means, weights) / 2)


def score(codes: Sequence[Codes], encoding: Encoding, clip: float, told: Discriminant) -> int:
    """How many records a discriminant gets right, given the codes of each class; confidential."""
    right = 0
    for place, columns in enumerate(codes):
        for start in range(0, len(columns[0]), _SCORED):
            rows = encoding.encode([column[start : start + _SCORED] for column in columns])
            right += told.correct(clip_rows(rows, clip=clip), place)
    return right
