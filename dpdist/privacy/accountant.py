"""Events in, (epsilon, delta) out.

The accountant turns events into dominating pairs (`dpdist.privacy.pieces`), composes them
(`dpdist.privacy.composition`) and reports the smallest of three bounds, rounded upwards, for the worse of
the two directions of add/remove: privacy-loss distributions, Renyi moments, and the sum of the largest
losses.

It also runs backwards: the least noise that meets a budget, and the kind of noise that needs least.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

from dpdist.errors import AccountingError
from dpdist.privacy import gdp
from dpdist.privacy.calibrate import ABOVE, least_scale, require_budget, round_up
from dpdist.privacy.deniability import SeedRecords, composed_published, theorem1
from dpdist.privacy.event import Event
from dpdist.privacy.events import DiscreteLaplace, Gaussian, Parallel
from dpdist.privacy.formatting import GUESS, shown
from dpdist.privacy.pieces import composition, extreme, gaussian_parts, require_protection

_ROUNDING_DOWN = Context(prec=6, rounding=ROUND_FLOOR)


@lru_cache(maxsize=4096)
def _epsilons(event: Event, delta: float) -> tuple[float, float]:
    whole = composition(event)
    if whole is None:
        return 0.0, 0.0
    both = [whole.epsilon(delta, reverse) for reverse in whole.directions]
    return max(one for one, _ in both), max(other for _, other in both)


@lru_cache(maxsize=4096)
def gaussian_only(event: Event) -> tuple[Fraction, Fraction]:
    """Precision and failure of a composition of Gaussian mechanisms, whose account has a closed form; else (0, 0)."""
    precision, failed, rest = gaussian_parts(event)
    if rest or not precision:
        return Fraction(0), Fraction(0)
    require_protection(1 / math.sqrt(precision))
    return precision, failed


def epsilon(event: Event, *, delta: float) -> float:
    """Least epsilon at which the event is (epsilon, delta)-DP (add/remove), rounded upwards; delta is 0 for events that
    are purely differentially private. Raises AccountingError: delta is not in [0, 1), or no finite epsilon exists.

    >>> from dpdist.privacy.events import Gaussian
    >>> epsilon(Gaussian(noise_multiplier=2.0), delta=1e-9)
    2.90974
    """
    if not 0 <= delta < 1:
        raise AccountingError(f"delta must be in [0, 1), got {delta!r}")
    if isinstance(event, Parallel) and event.events:
        return max(epsilon(part, delta=delta) for part in event.events)
    precision, failed = gaussian_only(event)
    if precision:
        value = (
            gdp.least_epsilon(mu_squared=precision, delta=rest) if (rest := Fraction(delta) - failed) > 0 else math.inf
        )
    else:
        largest, failure = extreme(event)
        value = largest if failure <= delta else math.inf
        if delta > 0:
            value = min(value, *_epsilons(event, float(delta)))
    if math.isinf(value):
        raise AccountingError(
            f"no finite epsilon at delta = {delta:g}: the mechanism fails with a larger probability; raise delta "
            "or the noise or, for released records, raise k"
        )
    return shown(value)


def delta(event: Event, *, epsilon: float) -> float:
    """Least delta at which the event is (epsilon, delta)-DP (add/remove), rounded upwards. Raises AccountingError:
    epsilon is negative or not finite.
    """
    if not 0 <= epsilon < math.inf:
        raise AccountingError(f"epsilon must be finite and not negative, got {epsilon!r}")
    return profile(event)(epsilon)


def profile(event: Event) -> Callable[[float], float]:
    """`delta` as a function of epsilon, for several of them."""
    if isinstance(event, Parallel) and event.events:
        parts = [profile(part) for part in event.events]
        return lambda epsilon: max(part(epsilon) for part in parts)
    precision, failed = gaussian_only(event)
    if precision:
        return lambda epsilon: min(
            shown(gdp.delta_at(mu_squared=precision, epsilon=Fraction(epsilon)) + float(failed)), 1.0
        )
    whole, (largest, failure) = composition(event), extreme(event)
    if whole is None:
        return lambda epsilon: 0.0

    def found(epsilon: float) -> float:
        value = max(whole.delta(float(epsilon), reverse) for reverse in whole.directions)
        return shown(min(value, failure) if epsilon >= largest else value)

    return found


def summary(event: Event, *, delta: float) -> dict[str, Any]:
    """What the event costs at this delta, as a JSON object: by PLD, by Renyi moments, and the smaller."""
    by_pld, by_renyi = _epsilons(event, float(delta))
    return {
        "epsilon": epsilon(event, delta=delta),
        "delta": delta,
        "adjacency": "add/remove",
        "epsilon_pld": shown(by_pld) if math.isfinite(by_pld) else None,
        "epsilon_renyi": shown(by_renyi) if math.isfinite(by_renyi) else None,
        "event": event.to_json(),
    }


def plausible_deniability(
    *, k: int, gamma: float, epsilon0: float, passing_mass: float, records: int, delta: float
) -> dict[str, Any]:
    """What R seed-dependent records cost: the whole release, one record, and the published theorem composed.
    Raises AccountingError: a parameter is out of range, or no finite epsilon exists at this delta.

    `delta` is that of the whole release, and the most that one record's may be; the others are those of
    `dpdist.privacy.deniability.SeedRecords`. Returns the JSON object of `summary`, with ``epsilon`` for the whole
    release, and ``epsilon_one_record`` (a release of one record), ``epsilon_per_record`` and ``delta_per_record`` (PD
    Theorem 1), ``epsilon_published_composition`` (the theorem over all records); the published ones are null where it
    gives nothing.
    """
    event, one = (
        SeedRecords(k=k, gamma=gamma, epsilon0=epsilon0, passing_mass=passing_mass, records=count)
        for count in (records, 1)
    )
    try:
        record = theorem1(k=k, gamma=gamma, epsilon0=epsilon0, delta=delta)
    except AccountingError:
        record = None  # no t reaches delta
    composed = composed_published(k=k, gamma=gamma, epsilon0=epsilon0, records=records, delta=delta)
    return {
        **summary(event, delta=delta),
        "epsilon_one_record": epsilon(one, delta=delta),
        "epsilon_per_record": record and record.epsilon,
        "delta_per_record": record and record.delta,
        "epsilon_published_composition": composed if math.isfinite(composed) else None,
    }


# --- what it means for one guess about one record ---------------------------------------------------------------------

_ERROR = 1 + 1e-9  # of `erfc` and `inv_cdf`, and more
_CLOSE = 0.02  # of epsilon
_RATIO = (math.sqrt(5) - 1) / 2
_LARGEST = 60.0


@lru_cache(maxsize=1024)
def most_right(event: Event, *, guess: float = GUESS) -> float:
    """The most that whoever guesses right with probability `guess` is right with the release, rounded upwards.

    Whoever is right with probability p without the release is right with it on a set of outputs that the pair of the
    release gives at most the probability ``inf_e (exp(e) p + delta(e))``: every term of it is a bound, and the infimum
    is the trade-off curve of the pair [1]_. The guess may be about presence, an attribute or the whole record, by
    whoever knows all others; p is the chance that the same guess is right where the record does not take part.

    .. [1] Hayes, Balle, Mahloujifar, *Bounding training data reconstruction in DP-SGD*, NeurIPS 2023, section 3.

    >>> from dpdist.privacy.events import Gaussian
    >>> most_right(Gaussian(noise_multiplier=1 / 0.182))
    0.0160026
    """
    if not 0 < guess < 1:
        raise AccountingError(f"the chance of a guess is between 0 and 1, got {guess!r}")
    precision, failed = gaussian_only(event)
    if precision:
        moved = NormalDist().inv_cdf(guess) + math.sqrt(precision)
        return min(shown(math.erfc(-moved / math.sqrt(2)) / 2 * _ERROR + float(failed)), 1.0)
    of = profile(event)

    def bound(epsilon: float) -> float:
        if epsilon < 0:  # the same of being wrong
            return 1 - math.exp(epsilon) * (1 - guess - of(-epsilon))
        return math.exp(epsilon) * guess + of(epsilon)

    low, high = -min(math.log(1 / (1 - guess)), _LARGEST), min(math.log(1 / guess), _LARGEST)
    best, (largest, _) = bound(0.0), extreme(event)
    if 0 < largest < _LARGEST:
        best = min(best, bound(largest))  # where the curve of a pure guarantee has its corner
    near, far = high - _RATIO * (high - low), low + _RATIO * (high - low)
    at_near, at_far = bound(near), bound(far)
    while high - low > _CLOSE:  # golden sections: the bound is convex, and any of its values holds
        best = min(best, at_near, at_far)
        if at_near <= at_far:
            high, far, at_far = far, near, at_near
            near = high - _RATIO * (high - low)
            at_near = bound(near)
        else:
            low, near, at_near = near, far, at_far
            far = low + _RATIO * (high - low)
            at_far = bound(far)
    return min(shown(best * _ERROR), 1.0)


# --- calibration ------------------------------------------------------------------------------------------------------


def calibrate(event_of: Callable[[float], Event], *, epsilon: float, delta: float, start: float = 1.0) -> float:
    """Least scale, on the grid of `dpdist.privacy.calibrate`, whose event is within (epsilon, delta), for a family that
    leaks less at a larger scale; the search begins at `start`. Raises AccountingError: no scale meets the budget, or
    the budget is not valid.
    """
    return least_scale(lambda scale: _at(event_of(scale), delta), epsilon=epsilon, delta=delta, start=start)


def _at(event: Event, delta: float) -> float:
    return epsilon(event, delta=delta)


def calibrate_gaussian(*, sensitivity: float, epsilon: float, delta: float, count: int = 1) -> float:
    """Least standard deviation of the Gaussian mechanism (Balle and Wang 2018, Theorem 8), rounded upwards, for
    ``count`` composed statistics of this L2 sensitivity each. What it costs by `epsilon`, which is rounded upwards to
    six digits, is within the budget.
    """
    require_budget(epsilon=epsilon, delta=delta)
    if delta == 0:
        raise AccountingError("Gaussian noise needs delta > 0; use Laplace noise at delta = 0")
    below = Fraction(_ROUNDING_DOWN.create_decimal(Decimal(epsilon))) * (1 - Fraction(1, 10**10))
    mu_squared = gdp.largest_mu_squared(epsilon=below, delta=Fraction(delta))
    multiplier = ABOVE / math.sqrt(mu_squared)
    return multiplier * sensitivity * math.sqrt(count) * (1 + 1e-12)


def calibrate_discrete_laplace(*, epsilon: float, delta: float, sensitivity: int = 1, count: int = 1) -> float:
    """Scale of the discrete Laplace noise on ``count`` integers that one record changes by at most ``sensitivity``."""
    require_budget(epsilon=epsilon, delta=delta)
    basic = sensitivity * count / epsilon * (1 + 1e-12)
    if delta == 0:
        return basic
    scale = calibrate(
        lambda scale: DiscreteLaplace(scale=scale, sensitivity=sensitivity, count=count),
        epsilon=epsilon,
        delta=delta,
        start=basic,
    )
    return min(basic, scale)


def laplace_deviation(scale: float) -> float:
    """Standard deviation of discrete Laplace noise, rounded upwards to 20 bits."""
    deviation = math.sqrt(2 * math.exp(-1 / scale)) / -math.expm1(-1 / scale)
    return round_up(deviation, bits=20) if deviation else 0.0


@dataclass(frozen=True)
class NoiseChoice:
    """The noise that `choose_noise` picked."""

    kind: Literal["laplace", "gaussian"]
    scale: float  # Laplace scale or Gaussian standard deviation, in the unit of the statistic
    standard_deviation: float  # of the noise on each statistic, in the same unit
    event: Event  # what to charge


def choose_noise(
    *, count: int, epsilon: float, delta: float, sensitivity: float = 1.0, grid: float = 1.0, label: str = ""
) -> NoiseChoice:
    """Laplace or Gaussian noise, whichever deviates less, for ``count`` statistics that one record can change:
    entropies, or count tables (one cell of each), by `sensitivity` each at most. Raises AccountingError: the budget is
    not valid.

    The noise lives on a lattice, the `grid` (1 for counts). Statistics that are not on it are rounded to it first,
    which is charged.

    >>> choose_noise(count=1, epsilon=1.0, delta=1e-9).kind, choose_noise(count=60, epsilon=1.0, delta=1e-9).kind
    ('laplace', 'gaussian')
    """
    require_budget(epsilon=epsilon, delta=delta)
    if count < 1 or not sensitivity > 0 or not grid > 0:
        raise AccountingError(f"expected a positive count, sensitivity and grid, got {count}, {sensitivity}, {grid}")
    steps = 1 if sensitivity == grid == 1 else math.floor(sensitivity / grid) + 1

    def laplace(scale: float) -> NoiseChoice:
        event = DiscreteLaplace(scale=scale, sensitivity=steps, count=count, label=label)
        return NoiseChoice("laplace", scale * grid, laplace_deviation(scale) * grid, event)

    if delta > 0:
        sigma = calibrate_gaussian(sensitivity=steps * grid, epsilon=epsilon, delta=delta, count=count)
        event = Gaussian(noise_multiplier=sigma / (steps * grid), count=count, label=label)
        gaussian = NoiseChoice("gaussian", sigma, math.sqrt(sigma * sigma + grid * grid / 12), event)
        # Laplace noise of the same deviation, the inverse of `deviation` above, must be within the budget.
        even = laplace(round_up(1 / (2 * math.asinh(grid / (math.sqrt(2) * gaussian.standard_deviation))), bits=20))
        if not _at(even.event, delta) <= epsilon:
            return gaussian
    return laplace(calibrate_discrete_laplace(epsilon=epsilon, delta=delta, sensitivity=steps, count=count))
