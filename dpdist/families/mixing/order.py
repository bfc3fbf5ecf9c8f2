"""Choosing the order of the mixtures: from public numbers alone, or by a charged comparison on held-out records.

Trying orders on private data spends budget. What an order does to the noise is public: more rows in a mixture need less
noise, but leave less of the rows' spread in it. Both are seen before a record is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpdist.errors import AccountingError
from dpdist.families.mixing.accounting import ClassMixtures
from dpdist.families.mixing.spec import MOST_CANDIDATES
from dpdist.privacy.events import ApproximateDP
from dpdist.privacy.noise import SAMPLER_DELTA, Noise

ORDERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Orders that are compared unless others are given."""

_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class OrderChoice:
    """What an order means for the noise.

    Attributes
    ----------
    order : int
        Rows in a mixture, l.
    sigma_over_clip : float
        Noise in each coordinate, in units of the clipping norm c.
    noise_to_mean : float
        Norm of the noise of one mixture over c, the largest norm of a class mean: ``sigma sqrt(d) / c``.
    noise_to_spread : float
        Norm of the noise over ``c / sqrt(l)``, the largest spread of noiseless mixtures around the class mean:
        ``sigma sqrt(d l) / c``.
    """

    order: int
    sigma_over_clip: float
    noise_to_mean: float
    noise_to_spread: float

    def to_json(self) -> dict[str, Any]:
        """The choice as a JSON object."""
        return asdict(self)


def compare_orders(
    classes: Mapping[str, tuple[int, int]],
    *,
    width: int,
    epsilon: float,
    delta: float,
    orders: Sequence[int] = ORDERS,
) -> tuple[OrderChoice, ...]:
    """The noise of each order at the same budget; reads no record and spends nothing.

    Parameters
    ----------
    classes : mapping of str to (int, int)
        For each class the confirmed minimum of its rows, and its mixtures. All classes have the noise of the one that
        needs most; orders as large as a class are left out.
    width : int
        Coordinates of a row, d.
    epsilon, delta : float
        Budget of the mixtures.
    orders : sequence of int

    Raises
    ------
    AccountingError
        The budget is not valid, or no class can fill any order.
    """
    choices = [_choice(order, classes, width, epsilon, delta) for order in _fillable(classes, orders)]
    return tuple(choices)


def best_order(
    classes: Mapping[str, tuple[int, int]],
    *,
    width: int,
    epsilon: float,
    delta: float,
    orders: Sequence[int] = ORDERS,
) -> OrderChoice:
    """The order that leaves most of the rows' spread visible (the least `noise_to_spread`), at no cost.

    Parameters and errors are those of `compare_orders`. The ratio falls and then rises with the order (noise falls fast
    at first, and then hardly), so the search goes down from the largest, which is the quickest to account for.
    """
    best: OrderChoice | None = None
    for order in reversed(_fillable(classes, orders)):
        choice = _choice(order, classes, width, epsilon, delta)
        if best is not None and choice.noise_to_spread > best.noise_to_spread:
            break
        best = choice
    if best is None:
        raise AccountingError("mixing: there is no order to choose from")
    return best


def _fillable(classes: Mapping[str, tuple[int, int]], orders: Sequence[int]) -> list[int]:
    smallest = min(minimum for minimum, _ in classes.values())
    fillable = sorted({order for order in orders if 1 <= order < smallest})
    if not fillable:
        raise AccountingError("mixing: the smallest class has no more records than the smallest order; lower it")
    return fillable


def _choice(
    order: int, classes: Mapping[str, tuple[int, int]], width: int, epsilon: float, delta: float
) -> OrderChoice:
    sigma = common_noise(classes, order=order, epsilon=epsilon, delta=delta, tolerance=_TOLERANCE)
    mean = sigma * math.sqrt(width)
    return OrderChoice(order=order, sigma_over_clip=sigma, noise_to_mean=mean, noise_to_spread=mean * math.sqrt(order))


def common_noise(
    classes: Mapping[str, tuple[int, int]], *, order: int, epsilon: float, delta: float, tolerance: float = 1e-4
) -> float:
    """Noise over clip that keeps every class within the budget.

    One noise for all classes: were it larger in small classes, its size alone would tell classes apart in what is
    released, but not in real records.
    """
    mixtures = {ClassMixtures(minimum=minimum, order=order, records=records) for minimum, records in classes.values()}
    dearest, *others = sorted(mixtures, key=lambda one: one.sampling_rate**2 * one.records, reverse=True)
    sigma = dearest.sigma_over_clip(epsilon=epsilon, delta=delta, tolerance=tolerance)
    for one in others:
        if one.epsilon(sigma, delta=delta) > epsilon:
            sigma = one.sigma_over_clip(epsilon=epsilon, delta=delta, tolerance=tolerance)
    return sigma


@dataclass(frozen=True, kw_only=True)
class OrderSelection:
    """A charged choice among orders: the noisy largest of their scores on held-out records.

    The score of an order is the number of held-out records that a model trained on its mixtures gets right. One
    record changes every score by 0 or 1, all in the same direction, so the index of the largest score with discrete
    Laplace noise of scale ``1 / epsilon`` is epsilon-differentially private (report noisy max for monotone scores,
    Dwork and Roth 2014, Claim 3.9). The mixtures of every candidate are charged by themselves: they read the other
    records.

    Attributes
    ----------
    epsilon : float
        Budget of the choice.
    """

    epsilon: float

    @property
    def event(self) -> ApproximateDP:
        """The charge of the choice, samplers included."""
        return ApproximateDP(self.epsilon, MOST_CANDIDATES * SAMPLER_DELTA, label="choice of the order")

    def choose(self, noise: Noise, scores: Sequence[int], *, name: str = "mixing/order") -> int:
        """Index of the chosen candidate; the first where several are largest."""
        noisy = noise.discrete_laplace(name, len(scores), scale=1 / self.epsilon)
        noisy += scores
        return int(noisy.argmax())
