"""From events to the dominating pairs that stand for them, and the pairs of the basic mechanisms.

Gaussian noise on a Poisson sample, with noise multiplier s and sampling rate q, has the pair
``A = (1 - q) N(0, s^2) + q N(1, s^2)`` against ``B = N(0, s^2)`` (Zhu, Dong and Wang 2022). The loss
``ln dA/dB (x) = ln(1 - q + q e^{(2x - 1)/(2 s^2)})`` rises with x, so the losses between two places of the lattice are
those of an interval of x. Both masses of the interval go to its two ends so that both are kept: the profile is exact at
the lattice, and its chord (in ``e^epsilon``) between, which is the least that any pair on the lattice can have
(Doroshenko et al. 2022, "Connect the dots").

Where the c records of a unit are sampled one by one, A is ``sum_j w_j N(j, s^2)`` with the binomial weights w, and the
loss ``ln sum_j w_j e^{(2 j x - j^2) / (2 s^2)}`` rises with x, too. Newton's method finds x from above: without its
first term the logarithm of the sum is convex in x, with a slope of at least ``1 / s^2``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from dpdist.errors import AccountingError
from dpdist.privacy.arrays import Floats
from dpdist.privacy.composition import Composition, Piece
from dpdist.privacy.event import Event
from dpdist.privacy.pair import LARGEST_EPSILON, NOTHING, DominatingPair, Side

TAIL = 9.67
"""The lattice ends this many deviations from the means: 2e-22 of the mass is beyond."""


def largest_loss(multiplier: float, rate: float) -> float:
    """The loss at `TAIL` deviations beyond the mean with the record; `LARGEST_EPSILON` at most."""
    full = min((0.5 / multiplier + TAIL) / multiplier, LARGEST_EPSILON)
    return math.log1p(rate * math.expm1(full))


def sampled_gaussian_pair(multiplier: float, rate: float, interval: float) -> DominatingPair:
    """The pair on multiples of ``interval``.

    Parameters
    ----------
    multiplier : float
        Standard deviation of the noise over the sensitivity.
    rate : float
        Probability that the sample holds the record, in (0, 1].
    interval : float
        Between two losses of the lattice.
    """
    top = largest_loss(multiplier, rate)
    least = -top if rate == 1 else max(math.log1p(-rate), -top)
    nodes = np.arange(math.floor(least / interval), math.ceil(top / interval) + 1, dtype=np.float64) * interval
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        inner = np.log1p(-(1 - rate) * np.exp(-nodes))  # NaN below the least loss
    ends = multiplier * (nodes - math.log(rate) + inner) + 0.5 / multiplier
    ends = np.concatenate([[-math.inf], np.where(np.isnan(ends), -math.inf, ends), [math.inf]])
    without, shifted = _masses(ends), _masses(ends - 1 / multiplier)
    return _on_lattice(nodes, (1 - rate) * without + rate * shifted, without, interval)


def _on_lattice(nodes: Floats, upper: Floats, lower: Floats, interval: float) -> DominatingPair:
    """The pair with these losses, from the masses below the first of them, between them, and above the last."""
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = np.log(upper[1:-1]) - np.log(lower[1:-1]) - nodes[:-1]
    # where the masses are too small for a ratio the whole interval has its largest loss
    rest = np.clip(np.nan_to_num(rest, nan=interval, posinf=interval, neginf=interval), 0.0, interval)
    spread: list[Floats] = []
    for mass, sign in ((upper, -1.0), (lower, 1.0)):
        right = mass[1:-1] * (np.expm1(sign * rest) / math.expm1(sign * interval))
        spread.append(np.append(mass[1:-1] - right, 0.0) + np.append(0.0, right))
    # beyond the lattice the smaller mass stays at its end, and what the larger one has more is infinite
    below, above = upper[0], lower[-1]
    spread[0][0] += below
    spread[1][0] += below * math.exp(min(-nodes[0], LARGEST_EPSILON))
    spread[0][-1] += above * math.exp(min(nodes[-1], LARGEST_EPSILON))
    spread[1][-1] += above
    return DominatingPair(
        nodes,
        spread[0],
        spread[1],
        max(upper[-1] - above * math.exp(min(nodes[-1], LARGEST_EPSILON)), 0.0),
        max(lower[0] - below * math.exp(min(-nodes[0], LARGEST_EPSILON)), 0.0),
    )


def _masses(ends: Floats) -> Floats:
    """Standard normal masses between ascending ends, each from the tail that is nearer, so that it does not cancel."""
    scaled = ends / math.sqrt(2)
    above = np.fromiter(map(math.erfc, scaled), np.float64, len(ends)) / 2
    below = np.fromiter(map(math.erfc, -scaled), np.float64, len(ends)) / 2
    with np.errstate(invalid="ignore"):
        right = ends[:-1] + ends[1:] > 0
    return np.where(right, above[:-1] - above[1:], below[1:] - below[:-1])


_DROPPED = 1e-30  # weight of the most records, which is given to all of them: that costs more
_QUADRATURE = 4_001
_STEPS = 60  # of Newton's method and of bisection, at most


@dataclass(frozen=True)
class SampledUnit:
    """Gaussian noise on a Poisson sample of the records of a unit."""

    multiplier: float  # standard deviation of the noise over what one record moves
    rate: float  # probability that the sample holds a record, in (0, 1]
    records: int  # of the unit

    @cached_property
    def weights(self) -> tuple[Floats, Floats]:
        """Numbers of records and the probabilities that the sample holds this many."""
        from scipy.stats import binom

        most = np.asarray(binom.isf(_DROPPED, self.records, self.rate))
        last = min(int(most) + 1, self.records)
        number = np.arange(last + 1, dtype=np.float64)
        weight = np.asarray(binom.pmf(number, self.records, self.rate))
        if last < self.records:
            number, weight = np.append(number, self.records), np.append(weight, binom.sf(last, self.records, self.rate))
        return number[weight > 0], weight[weight > 0]

    @cached_property
    def _end(self) -> float:
        """Beyond it is less than 2e-22 of the mass with the unit."""
        from scipy.special import ndtr

        number, weight = self.weights
        low, high = TAIL * self.multiplier, float(number[-1]) + TAIL * self.multiplier
        for _ in range(_STEPS):
            middle = (low + high) / 2
            beyond = weight @ ndtr((number - middle) / self.multiplier)
            low, high = (middle, high) if beyond > 2e-22 else (low, middle)
        return high

    @property
    def variance(self) -> float:
        """About that of a loss, by quadrature: the few samples with many records would spoil a bound by moments."""
        number, weight = self.weights
        x = np.linspace(-TAIL * self.multiplier, self._end, _QUADRATURE)
        squares, without = self.loss(x) ** 2, np.exp(-(x**2) / (2 * self.multiplier**2))
        with_unit = weight @ np.exp(-((x - number[:, None]) ** 2) / (2 * self.multiplier**2))
        return float(max((mass @ squares) / mass.sum() for mass in (without, with_unit)))

    @cached_property
    def largest_loss(self) -> float:
        """The loss beyond which less than 2e-22 of the mass with the unit is; `LARGEST_EPSILON` at most."""
        return min(float(self.loss(np.array([self._end]))[0]), LARGEST_EPSILON)

    def _exponents(self, x: Floats) -> Floats:
        """Logarithms of the terms of the ratio at x, a row for each number of records."""
        number, weight = self.weights
        exponents: Floats = np.log(weight)[:, None] + np.outer(number, x / self.multiplier**2)
        return exponents - (number**2 / (2 * self.multiplier**2))[:, None]

    def loss(self, x: Floats) -> Floats:
        """The losses at x, in units of what a record moves."""
        return np.asarray(np.logaddexp.reduce(self._exponents(x), axis=0))

    def _places(self, losses: Floats) -> Floats:
        """Where the losses are these; minus infinity where all are larger."""
        number, weight = self.weights
        with np.errstate(invalid="ignore", divide="ignore"):
            rest = losses + (np.log1p(-weight[0] * np.exp(-losses)) if number[0] == 0 else 0.0)
        inside = np.isfinite(rest)
        wanted, at = rest[inside], slice(int(number[0] == 0), None)
        own = number[at, None]
        x = ((wanted - np.log(weight[at, None])) * self.multiplier**2 / own + own / 2).min(axis=0)
        for _ in range(_STEPS):
            terms = self._exponents(x)[at]
            value = np.logaddexp.reduce(terms, axis=0)
            step = (value - wanted) * self.multiplier**2 / (own * np.exp(terms - value)).sum(axis=0)
            x -= np.maximum(step, 0.0)
            if np.all(step <= 1e-13 * (np.abs(x) + self.multiplier)):
                break
        places = np.full(len(losses), -math.inf)
        places[inside] = x
        return places

    def pair(self, interval: float) -> DominatingPair:
        """The pair on multiples of ``interval``."""
        number, weight = self.weights
        top = self.largest_loss
        least = max(math.log(weight[0]), -top) if number[0] == 0 else -top
        nodes = np.arange(math.floor(least / interval), math.ceil(top / interval) + 1, dtype=np.float64) * interval
        ends = np.concatenate([[-math.inf], self._places(nodes) / self.multiplier, [math.inf]])
        upper = sum(w * _masses(ends - j / self.multiplier) for j, w in zip(number, weight, strict=True))
        return _on_lattice(nodes, np.asarray(upper), _masses(ends), interval)


def discrete_laplace(scale: float, sensitivity: int, count: int) -> Piece:
    """Discrete Laplace noise around the sensitivity (A) against around 0 (B).

    The loss at z is ``(|z| - |z - sensitivity|)/scale``: constant outside 0 .. sensitivity, in steps of ``2/scale``
    inside. Runs of z (beyond 2048 steps; else single ones) are replaced by their two ends with both masses kept, a
    mean-preserving spread: as ``ln A/B`` of a run is the middle of its ends, A's share of the far end is
    ``1/(1 + e^{-width/2})``, and so is B's of the near one.
    """
    rate, top = 1 / scale, sensitivity / scale
    stop = np.unique(np.linspace(0, sensitivity - 1, min(sensitivity, 2048)).round())[1:]
    start = np.append(1.0, stop[:-1] + 1)[: len(stop)]
    near, far = (2 * start - sensitivity) * rate, (2 * stop - sensitivity) * rate
    with np.errstate(under="ignore"):
        run = math.tanh(rate / 2) * np.expm1(-rate * (stop - start + 1)) / math.expm1(-rate)
        upper, lower = run * np.exp(-rate * (sensitivity - stop)), run * np.exp(-rate * start)
        share = 1 / (1 + np.exp((near - far) / 2))
    common = 1 / (1 + math.exp(-rate))
    rare = common * math.exp(-top)
    pair = DominatingPair(
        np.concatenate([[-top], near, far, [top]]),
        np.concatenate([[rare], upper * (1 - share), upper * share, [common]]),
        np.concatenate([[common], lower * share, lower * (1 - share), [rare]]),
    ).ascending()
    return Piece.of(pair, count, symmetric=True)


def approximate(epsilon: float, delta: float) -> Piece:
    """Randomised response that fails with probability delta dominates every (epsilon, delta)-DP mechanism."""
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    unlikely = likely * math.exp(-epsilon)
    pair = DominatingPair(
        np.array([-epsilon, epsilon]), np.array([unlikely, likely]), np.array([likely, unlikely]), delta, delta
    )
    return Piece.of(pair, symmetric=True)


def require_protection(multiplier: float) -> None:
    """Refuse a Gaussian mechanism whose noise is less than a hundredth of the sensitivity."""
    if multiplier < 0.01:
        raise AccountingError(
            f"a Gaussian mechanism with noise multiplier {multiplier:g} protects nothing: use at least 0.01"
        )


@lru_cache(maxsize=128)
def gaussian(multiplier: float, rate: float = 1.0, count: int = 1) -> Piece:
    """The Gaussian mechanism on a Poisson sample."""
    require_protection(multiplier)
    mu = 1 / multiplier
    variance = min(mu**2 + mu**4 / 4, rate**2 * math.expm1(min(mu**2, 700.0)) + 1e-24)

    @lru_cache(maxsize=4)
    def build(interval: float) -> DominatingPair:
        return sampled_gaussian_pair(multiplier, rate, interval)

    return Piece(build, count, variance, largest_loss(multiplier, rate), exact=False, symmetric=rate == 1.0)


@lru_cache(maxsize=128)
def sampled_units(multiplier: float, rate: float, records: int, count: int) -> Piece:
    """The Gaussian mechanism on a Poisson sample of the records of a unit."""
    require_protection(multiplier)
    sampled = SampledUnit(multiplier, rate, records)
    return Piece(lru_cache(maxsize=4)(sampled.pair), count, sampled.variance, sampled.largest_loss, exact=False)


def flat(events: Iterable[Event]) -> Iterator[Event]:
    """The mechanisms that events are composed of, in their order."""
    stack = list(events)[::-1]
    while stack:
        event = stack.pop()
        parts = event.parts()
        if parts is None:
            yield event
        else:
            stack.extend(parts[::-1])


def gaussian_parts(event: Event) -> tuple[Fraction, Fraction, tuple[Event, ...]]:
    """Of a composition: the Gaussians as their precision, what only fails as its probability, and all else."""
    precision, failure, rest = Fraction(0), Fraction(0), []
    for part in flat([event]):
        own = part.gaussian()
        if own is None:
            rest.append(part)
        else:
            precision, failure = precision + own[0], failure + own[1]
    return precision, failure, tuple(rest)


def pieces(events: Iterable[Event]) -> list[Piece]:
    """The pieces of a composition; all its Gaussians are one, exactly (their precisions add)."""
    found: list[Piece] = []
    precision = Fraction(0)
    for event in flat(events):
        own, failure = event.gaussian() or (Fraction(0), Fraction(0))
        precision += own
        if not own:
            found.append(piece_of(event))
        elif failure:
            found.append(approximate(0.0, math.nextafter(float(failure), 1.0)))
    return [*found, gaussian(1 / math.sqrt(precision))] if precision else found


@lru_cache(maxsize=64)
def composition(event: Event) -> Composition | None:
    """The composition of an event; None where it costs nothing."""
    found = pieces([event])
    return Composition(found) if found else None


@lru_cache(maxsize=64)
def dominating_pair(event: Event) -> DominatingPair:
    """One pair that dominates the event: exact for a single discrete mechanism, else on up to 3000 losses."""
    found = pieces([event])
    if not found:
        return NOTHING
    if len(found) == 1 and found[0].count == 1 and found[0].exact:
        return found[0].build(0.0)
    whole = Composition(found)
    sides = [Side.from_profile(*whole.profile(1500, reverse)) for reverse in whole.directions]
    return DominatingPair.from_sides(sides[0], sides[-1])


@lru_cache(maxsize=512)
def extreme(event: Event) -> tuple[float, float]:
    """The largest finite loss (infinity where none exists) and a bound of the mass of infinite loss, exactly."""
    parts, own = event.parts(), event.extreme()
    if parts is not None:
        ends = [extreme(part) for part in parts]
        return math.fsum(loss for loss, _ in ends), math.fsum(mass for _, mass in ends)
    if own is not None:
        return own
    piece = piece_of(event)
    if not piece.exact:
        return math.inf, 0.0
    pair = piece.build(0.0)
    mass = max(pair.upper_infinite, pair.lower_infinite)
    infinite = mass if piece.count == 1 else -math.expm1(piece.count * math.log1p(-min(mass, 1 - 2.0**-53)))
    return piece.count * float(np.abs(pair.losses).max(initial=0.0)), infinite


@lru_cache(maxsize=512)
def piece_of(event: Event) -> Piece:
    """The piece of one mechanism."""
    return event.piece()
