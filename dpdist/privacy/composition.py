r"""Dominating pairs composed on one lattice of losses, with tails that stay accurate for millions of them.

The losses of composed pairs add. Fast Fourier transforms add them (as in `dp_accounting`), with an error of
the order of ``count * 2^-52`` of the *whole* mass: for a million compositions as large as delta = 1e-9. So
they are tilted first. With

    K(t) = sum_j count_j ln E[e^{t l_j}],        p_t(l) = p(l) e^{t l - K(t)},

p_t is again a product of distributions, and it is centred on epsilon when t minimises ``K(t) - t epsilon``.
Transforming p_t and undoing the tilt leaves an error *relative* to the tail, and what is left is bounded
and added:

    delta(epsilon) <= infinite mass + sum_{l > epsilon} e^{K(t) - t l} p_t(l) (1 - e^{epsilon - l})
                      + e^{K(t) - t epsilon} error.

The same K gives the Renyi bound ``delta <= infinite mass + e^{K(t) - t epsilon} t^t / (t+1)^(t+1)``
(Canonne, Kamath and Steinke 2020, Proposition 12): a check, and what remains where no lattice serves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import AccountingError
from dpdist.privacy.arrays import Floats
from dpdist.privacy.pair import DominatingPair

MOST_DRAWS = 1 << 40
"""Beyond it, what rounding adds to each draw would be more than the draws' own losses."""

TRUNCATION = 1e-15
"""Mass that a sum of draws leaves out on either side, and folds into the rest."""

_NEGLIGIBLE = 1e-24  # mass of losses that may become infinite
_CERTAIN = 1 - 1e-12  # probability of an infinite loss from which delta is taken for 1
_SMALLEST, _LARGEST = 2**12, 2**18  # losses on the lattice, about
_TOLERANCE = 1e-6  # relative error of a delta of a profile above which another tail is computed
_FEW = 1024  # losses that are enough to choose a tilt


@dataclass(frozen=True, eq=False)
class Piece:
    """A pair composed with itself."""

    build: Callable[[float], DominatingPair]  # the pair, for a lattice interval
    count: int  # how many times
    variance: float  # of one loss, about; sets the lattice
    reach: float  # largest loss worth a place on the lattice
    exact: bool = True  # whether the pair does not depend on the interval
    symmetric: bool = False  # whether adding a record gives the same law of losses as its removal

    @classmethod
    def of(cls, pair: DominatingPair, count: int = 1, *, symmetric: bool = False) -> Piece:
        """An exact pair; its reach leaves out losses of negligible mass."""
        outer = np.argsort(-np.abs(pair.losses))
        mass = np.cumsum(np.maximum(pair.upper, pair.lower)[outer]) * count
        kept = outer[np.searchsorted(mass, _NEGLIGIBLE) :]
        reach = float(np.abs(pair.losses[kept]).max(initial=0.0))
        return cls(lambda _: pair, count, pair.variance, reach, symmetric=symmetric)


class Composition:
    """Pieces on one lattice; delta and epsilon in either direction (``reverse`` is the record's absence).

    The interval is a twelfth of the root mean square of the single losses, which adds about 0.1 % to the variance,
    within limits on the size of the lattice.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.count = sum(piece.count for piece in pieces)
        if not self.count <= MOST_DRAWS:
            raise AccountingError(f"at most {MOST_DRAWS:,} draws of noise are composed, got {self.count:,}")
        self.variance = max(math.fsum(piece.count * piece.variance for piece in pieces), 1e-24)
        reach = max(piece.reach for piece in pieces)
        width = reach + 16 * math.sqrt(self.variance)
        interval = max(min(math.sqrt(self.variance / self.count) / 12, width / _SMALLEST), width / _LARGEST)
        self.interval = 2.0 ** math.floor(math.log2(interval))
        self.parts = [
            (*piece.build(self.interval).on_lattice(self.interval, reach=reach), piece.count) for piece in pieces
        ]
        # Of symmetric mechanisms a bound in one direction is one in the other, too.
        self.directions = (False,) if all(piece.symmetric for piece in pieces) else (False, True)
        self.error = 2.0**-49 * self.count + 4 * TRUNCATION * len(pieces)

    def infinite(self, reverse: bool) -> float:
        """Probability that any of the losses is infinite."""
        masses = ((pair.lower_infinite if reverse else pair.upper_infinite, n) for _, pair, n in self.parts)
        return -math.expm1(math.fsum(n * math.log1p(-min(mass, 1 - 2.0**-53)) for mass, n in masses))

    def cumulant(self, tilts: Floats, reverse: bool) -> Floats:
        """K(t) at each tilt."""
        return _cumulant([(pair, count) for _, pair, count in self.parts], tilts, reverse)

    @cached_property
    def _few(self) -> list[tuple[DominatingPair, int]]:
        """The pairs on few losses, with nearly the same K: enough to choose a tilt."""
        return [(pair.coarse(_FEW), count) for _, pair, count in self.parts]

    def tail(self, tilt: float, reverse: bool) -> Tail:
        """delta as a function of epsilon, accurate around the mean of the tilted loss."""
        cumulant = float(self.cumulant(np.array([tilt]), reverse)[0])
        losses, mass = self._tilted(tilt, reverse)
        least = max((cumulant - 80) / tilt, 0.0) if tilt > 0 else 0.0  # of the losses that are kept
        first = int(np.searchsorted(losses, least))
        losses, mass = losses[first:], mass[first:]
        with np.errstate(under="ignore"):
            mass *= np.exp(cumulant - tilt * losses)
            sums = _from_above(mass)
            mass *= np.exp(-losses)
        return Tail(losses, sums, _from_above(mass), self.infinite(reverse), cumulant, tilt, self.error)

    def _tilted(self, tilt: float, reverse: bool) -> tuple[Floats, Floats]:
        """Losses, and ``p_t`` at them."""
        start, masses = 0, []
        for offset, pair, count in self.parts:
            mass = pair.lower[::-1] if reverse else pair.upper
            first = -(offset + len(mass) - 1) if reverse else offset
            losses = (first + np.arange(len(mass))) * self.interval
            log_moment = float(pair.log_moment([tilt + 1], reverse=reverse)[0])
            with np.errstate(divide="ignore", under="ignore"):
                masses.append((np.exp(np.log(mass) + tilt * losses - log_moment), count))
            start += first * count
        least, total = sum_of_draws(masses)
        losses = (start + least + np.arange(len(total), dtype=np.float64)) * self.interval
        return losses, np.maximum(total, 0.0, out=total)

    @cached_property
    def _tilts(self) -> Floats:
        return np.geomspace(1e-3, 1e3, 121) / math.sqrt(self.variance)

    @cached_property
    def _few_cumulants(self) -> dict[bool, Floats]:
        """Approximate K at `_tilts`, in either direction."""
        return {reverse: _cumulant(self._few, self._tilts, reverse) for reverse in (False, True)}

    def renyi(self, delta: float, reverse: bool) -> tuple[float, float]:
        """(epsilon by Renyi moments, the tilt that gives it); infinity where infinite losses alone exceed delta."""
        rest = delta - self.infinite(reverse)
        if rest <= 0:
            return math.inf, 0.0

        def bound(t: Floats, cumulant: Floats) -> Floats:
            return (cumulant - t * np.log1p(1 / t) - np.log1p(t) - math.log(rest)) / t

        t = self._tilts
        best = int(np.argmin(bound(t, self._few_cumulants[reverse])))
        t = np.geomspace(t[max(best - 1, 0)], t[min(best + 1, len(t) - 1)], 32)
        best = int(np.argmin(bound(t, _cumulant(self._few, t, reverse))))
        tilt = t[best : best + 1]
        return max(float(bound(tilt, self.cumulant(tilt, reverse))[0]), 0.0), float(tilt[0])

    def epsilon(self, delta: float, reverse: bool) -> tuple[float, float]:
        """(by privacy-loss distribution, by Renyi moments)."""
        renyi, tilt = self.renyi(delta, reverse)
        if math.isinf(renyi):
            return math.inf, renyi
        tail = self.tail(tilt, reverse)
        found = tail.epsilon(delta)
        # below it the error may be all that there is, where few losses chose the tilt wrongly
        if math.isinf(found) or tail.error_at(np.array([found - self.interval]))[0] > delta / 100:
            found = min(found, self.tail(0.0, reverse).epsilon(delta))
        return found, renyi

    def delta(self, epsilon: float, reverse: bool) -> float:
        """Upper bound of delta at one epsilon."""
        if self.infinite(reverse) > _CERTAIN:
            return 1.0
        t, cumulants = self._tilts, self._few_cumulants[reverse]
        tail = self.tail(float(t[np.argmin(cumulants - t * epsilon)]), reverse)
        t = t[[np.argmin(cumulants - t * (epsilon + np.log1p(1 / t)) - np.log1p(t))]]
        exponent = float((self.cumulant(t, reverse) - t * (epsilon + np.log1p(1 / t)) - np.log1p(t))[0])
        at = np.array([epsilon])
        found = min(float(tail.delta(at)[0]), self.infinite(reverse) + math.exp(min(exponent, 0.0)))
        if tail.error_at(at)[0] > found / 100:
            found = min(found, float(self.tail(0.0, reverse).delta(at)[0]))
        return found

    def profile(self, size: int, reverse: bool) -> tuple[Floats, Floats]:
        """Epsilons from 0 to where delta is negligible, denser towards 0, and upper bounds of delta at them."""
        if self.infinite(reverse) > _CERTAIN:
            return np.zeros(1), np.ones(1)
        negligible = self.infinite(reverse) * (1 + 2.0**-40) + 1e-22
        top, scale = self.renyi(negligible, reverse)[0], math.sqrt(self.variance) / 8
        epsilons = scale * np.sinh(np.linspace(0, math.asinh(max(top, self.interval) / scale), size))
        targets = (self.infinite(reverse) + 10.0**-power for power in (1, 4, 8, 12, 16, 20))
        tilts = np.unique([0.0, *(self.renyi(target, reverse)[1] for target in targets)])
        # logarithms of the error of each tail at each epsilon, but for the factor `error`
        logs = self.cumulant(tilts, reverse) - np.multiply.outer(epsilons, tilts)
        nearest, deltas, rest = np.argmin(logs, axis=1), np.ones(size), np.ones(size, bool)
        while rest.any():  # a tail is accurate around one epsilon; two or three are often enough for all
            index = int(np.sort(nearest[rest])[np.count_nonzero(rest) // 2])
            tail = self.tail(float(tilts[index]), reverse)
            np.minimum(deltas, tail.delta(epsilons), out=deltas)
            rest &= (nearest != index) & (tail.error_at(epsilons) > _TOLERANCE * deltas)
        deltas[-1] = min(deltas[-1], negligible)
        return epsilons, deltas


def _cumulant(parts: Sequence[tuple[DominatingPair, int]], tilts: Floats, reverse: bool) -> Floats:
    total: Floats = np.zeros(len(tilts))
    for pair, count in parts:
        total += count * pair.log_moment(tilts + 1, reverse=reverse)
    return total


def _from_above(mass: Floats) -> Floats:
    """Sums of each mass and those after it, and 0."""
    sums = np.zeros(len(mass) + 1)
    np.cumsum(mass[::-1], out=sums[-2::-1])
    return sums


@dataclass(frozen=True, eq=False)
class Tail:
    """delta as a function of epsilon >= 0, from sums over the losses above it.

    With i the first loss above epsilon,
    ``delta = infinite + sums_i - e^epsilon weights_i + e^(cumulant - tilt epsilon) error``.
    """

    losses: Floats
    sums: Floats
    weights: Floats
    infinite: float
    cumulant: float
    tilt: float
    error: float

    def error_at(self, epsilons: Floats) -> Floats:
        """Bound of the error of the sums at each epsilon."""
        with np.errstate(under="ignore"):
            return self.error * np.exp(np.minimum(self.cumulant - self.tilt * epsilons, 80))

    def _extra(self, epsilons: Floats) -> Floats:
        return self.infinite + self.error_at(epsilons)

    def delta(self, epsilons: Floats) -> Floats:
        """Upper bound of delta at each epsilon."""
        first = np.searchsorted(self.losses, epsilons, side="right")
        weights = self.weights[first]
        grown = np.where(weights > 0, np.exp(np.minimum(epsilons, 700)) * weights, 0.0)
        return np.minimum(np.maximum(self.sums[first] - grown, 0.0) + self._extra(epsilons), 1.0)

    def epsilon(self, delta: float) -> float:
        """The least epsilon with ``delta(epsilon) <= delta``; infinity where none exists in sight."""
        if self.delta(np.zeros(1))[0] <= delta:
            return 0.0
        good = np.flatnonzero(self.delta(self.losses) <= delta)
        if not len(good):
            return math.inf
        first = int(good[0])
        left = float(self.losses[first - 1]) if first else 0.0
        # Between two losses the sums are constant; the error is taken at the left one.
        rest = float(self.sums[first] + self._extra(np.array([left]))[0]) - delta
        if rest <= 0 or self.weights[first] <= 0:
            return float(self.losses[first])
        with np.errstate(over="ignore"):  # then the answer is the loss
            return float(np.clip(math.log(rest / self.weights[first]), left, self.losses[first]))


def sum_of_draws(parts: Sequence[tuple[Floats, int]]) -> tuple[int, Floats]:
    """The sum of this many draws from each distribution on 0, 1, ...: its least value that is kept, and the masses.

    By one Fourier transform of each distribution and one of their product. What is left out is folded into the rest.
    """
    windows = [_window(mass, count) for mass, count in parts]
    low, high = (sum(ends) for ends in zip(*windows, strict=True))
    size = _fast_size(max(high - low + 1, *(len(mass) for mass, _ in parts)))
    product: NDArray[np.complex128] | float = 1.0
    for mass, count in parts:
        one_value = len(mass) == 1
        product = product * (float(mass[0]) ** count if one_value else _raised(np.fft.rfft(mass, size), count))
    if isinstance(product, float):
        return low, np.array([product])
    return low, np.roll(np.fft.irfft(product, size), -(low % size))[: high - low + 1]


def _window(mass: Floats, count: int) -> tuple[int, int]:
    """Ends of the sum of `count` draws, each left behind with probability `TRUNCATION` at most."""
    most = count * (len(mass) - 1)
    if count == 1 or not most:
        return 0, most
    places = np.arange(len(mass), dtype=np.float64)
    places -= mass @ places
    mean = -count * float(places[0])
    low, high = mean - _deviation(mass, -places, count), mean + _deviation(mass, places, count)
    return max(math.floor(low), 0), min(math.ceil(high), most)


def _deviation(mass: Floats, values: Floats, count: int) -> float:
    """The sum of `count` draws of values of mean 0 is above this with probability `TRUNCATION` at most.

    By Bernstein's inequality or by Chernoff's, whichever is nearer.
    """
    mass, values = mass[mass > 0], values[mass > 0]
    variance, logarithm = count * float(mass @ values**2), math.log(1 / TRUNCATION)
    linear = logarithm * float(values.max()) / 3
    found = linear + math.sqrt(linear**2 + 2 * variance * logarithm)
    middle = math.sqrt(2 * logarithm / variance) if variance > 0 else 0.0
    for tilt in (middle / 4, middle / 2, middle) if middle else ():
        with np.errstate(over="ignore", under="ignore"):
            moment = float(mass @ np.exp(tilt * values))
        found = min(found, (count * math.log(moment) + logarithm) / tilt)
    return found * (1 + 2.0**-30)


def _raised(values: NDArray[np.complex128], power: int) -> NDArray[np.complex128]:
    """Powers by repeated squaring."""
    found = values if power & 1 else np.ones_like(values)
    while power := power >> 1:
        values = values * values
        found = found * values if power & 1 else found
    return found


def _fast_size(least: int) -> int:
    """A length of at least so much for which Fourier transforms are fast: a power of 2 times a small odd number."""
    return min(k << max(math.ceil(math.log2(least / k)), 0) for k in (1, 3, 5, 9, 15))
