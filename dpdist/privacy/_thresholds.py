"""Symmetric distributions on the integers as exact thresholds on uniform words.

A draw is a uniform U on [0, 1), read from keyed words of 64 bits, and a comparison with the thresholds
``T_v = floor(2**128 * P(Z <= v))``: Z is the number of thresholds that U has reached, counted from the smallest
value. The first word decides alone, by comparison with ``floor(2**64 * P(Z <= v))``, unless it is *equal* to
one of these (less than one draw in 2**46); then the next 64 bits of U are read from a second word. So a draw
costs one word and is within 2**-110 of its distribution in total variation. 64 bits alone cannot give that:
10**5 thresholds rounded to 64 bits may be off by 2**-49.

Thresholds are certified: they come from ball arithmetic (Arb), at a precision where the floor is the same
over the whole ball (`dpdist.privacy.balls`). No floating-point logarithm, exponential or error function is involved.

Wide distributions are sums of independent narrow ones, one per digit, so that no table is large:

- *Discrete Laplace, base b, exact.* With ``q = exp(-1/scale)``, a geometric variable is b times a geometric
  variable of ratio ``q**b`` plus a remainder, truncated geometric on [0, b) and independent of it. A discrete
  Laplace variable is the difference of two geometric ones. Hence ``Z = b*Z' + D``, with Z' discrete Laplace
  of scale ``scale/b`` and D the difference of two remainders.
- *Gaussian, base B.* Let K be discrete Gaussian, ``P(k) ~ exp(-k**2 / (2*s**2))``, and W continuous
  ``N(0, t**2)``. With ``S**2 = B**2 * s**2 + t**2`` and ``r = B*s*t/S``, the density of ``B*K + W`` at x is
  proportional to ``exp(-x**2 / (2*S**2)) * sum_k exp(-(B*k - m)**2 / (2*r**2))`` for some m = m(x). By
  Poisson summation the sum is ``1 + 2*sum_j exp(-2*(pi*j*r/B)**2) * cos(2*pi*j*m/B)`` up to a constant [1]_.
  Here ``t = 3*B`` and ``S >= 4*B``, so ``(r/B)**2 >= 63/16``: the sum is constant, and the law is
  ``N(0, S**2)``, to a relative 2**-110. Because ``B*K`` is an integer, the integer nearest to ``B*K + W`` is ``B*K``
  plus the integer nearest to W. The same identity on the integers splits K.

References
----------
.. [1] Micciancio, Walter, *Gaussian sampling over the integers: efficient, generic, constant-time*, 2017.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.balls import ball, working_precision

if TYPE_CHECKING:
    from flint import arb, arb_mat

WIDEST_TABLE = 1024  # the largest scale or deviation served by one table
KEPT = 32  # tables, of a megabyte at most: a synthesis of some attributes draws at about thirty scales
LAPLACE_BASE = 4096
GAUSSIAN_BASE = 256
GAUSSIAN_DIGIT = 768  # the deviation of a Gaussian digit, three times the base

_ALWAYS_ZERO = Fraction(1, 90)  # below this scale P(Z != 0) < 2**-128, for both families
_RADIUS = Fraction(1, 8)  # of Taylor polynomials of erfc
_FEWEST = 8  # values of a block that are worth a polynomial
_BLOCKS = 9  # blocks at a time: a table of the values near 0 has twice as many
_NEAR = 6  # deviations
_NARROW = 16  # up to this deviation, the whole table is soon made
_GUIDE_BITS = 18  # 2**18 guide entries of 2 bytes stay in a core's cache
_UNDECIDED = np.iinfo(np.int16).min


@dataclass(frozen=True, eq=False, slots=True)
class ThresholdTable:
    """A symmetric distribution on the integers, as thresholds on a 128-bit uniform word."""

    # high, low: uint64[2 * bound]: the thresholds ``high * 2**64 + low`` of the values ``-bound, ..., bound - 1``,
    # ascending
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    # int16[2**bits]: the value for every word with these leading bits, ``_UNDECIDED`` if a threshold starts with them
    # too
    guide: NDArray[np.int16]

    @classmethod
    def from_tail(cls, tail: Iterable[int]) -> ThresholdTable:
        """Build the table from ``floor(2**128 * P(Z > v))``, v = 0, 1, 2, ..."""
        packed = b"".join(value.to_bytes(16, "little") for value in tail)
        low, high = np.frombuffer(packed, dtype="<u8").astype(np.uint64).reshape(-1, 2).T
        # P(Z <= -v - 1) = P(Z > v), and floor(2**128 * (1 - p)) is the complement of floor(2**128 * p)
        high, low = np.concatenate([high[::-1], ~high]), np.concatenate([low[::-1], ~low])
        bits = min(max(high.size.bit_length() + 4, 8), _GUIDE_BITS)
        starting = np.bincount((high >> np.uint64(64 - bits)).astype(np.int64), minlength=1 << bits)
        value = np.cumsum(starting) - high.size // 2
        decided = (starting == 0) & (np.abs(value) < -_UNDECIDED)
        return cls(high, low, np.where(decided, value, _UNDECIDED).astype(np.int16))

    @property
    def bound(self) -> int:
        """Values lie in ``[-bound, bound]``."""
        return self.high.size // 2

    def draw(self, words: NDArray[np.uint64], second_words: Callable[[], NDArray[np.uint64]]) -> NDArray[np.int64]:
        """Return one value a word; ``second_words()`` are the next 64 bits of each draw, read only on a tie."""
        shift = np.uint64(65 - self.guide.size.bit_length())
        guessed = self.guide[(words >> shift).view(np.int64)]
        values = guessed.astype(np.int64)
        undecided = np.flatnonzero(guessed == _UNDECIDED)
        wanted = words[undecided]
        passed = self.high.searchsorted(wanted, side="right")
        ties = np.flatnonzero(self.high[passed - 1] == wanted)
        if ties.size:
            for j, second in zip(ties, second_words()[undecided[ties]], strict=True):
                tied = slice(self.high.searchsorted(wanted[j]), passed[j])
                passed[j] = tied.start + self.low[tied].searchsorted(second, side="right")
        values[undecided] = passed - self.bound
        return values


@dataclass(frozen=True, eq=False)
class Central:
    """The rounded Gaussian distribution by a table of the values near 0.

    The few draws beyond it, two in 10**9, are looked up in the whole table, which is made then: the values are the
    same. Most tables serve some hundred draws, and this is half of the work.
    """

    sigma: Fraction
    near: ThresholdTable

    @classmethod
    def of(cls, sigma: Fraction) -> Central:
        """The table of the values up to `_NEAR` deviations."""
        return cls(sigma, ThresholdTable.from_tail(_tail_of_gaussian(sigma, most=math.ceil(_NEAR * sigma))))

    def draw(self, words: NDArray[np.uint64], second_words: Callable[[], NDArray[np.uint64]]) -> NDArray[np.int64]:
        """As `ThresholdTable.draw` of the whole table."""
        values = self.near.draw(words, second_words)
        beyond = np.flatnonzero(np.abs(values) == self.near.bound)  # it has this value or one that is further out
        if beyond.size:
            whole = rounded_gaussian_table(self.sigma)
            values[beyond] = whole.draw(words[beyond], lambda: second_words()[beyond])
        return values


Digits = tuple[tuple[int, ThresholdTable | Central], ...]
"""Independent tables and the factor of each: the draw is the sum of factor times value."""


@lru_cache(maxsize=KEPT)
def laplace(scale: Fraction) -> Digits:
    """Digits of the discrete Laplace distribution, ``P(z) ~ exp(-|z| / scale)``."""
    digits = []
    factor = 1
    while scale > WIDEST_TABLE:
        digits.append((factor, laplace_digit(scale, LAPLACE_BASE)))
        factor *= LAPLACE_BASE
        scale /= LAPLACE_BASE
    return (*digits, (factor, laplace_table(scale)))


@lru_cache(maxsize=KEPT)
def gaussian(sigma: Fraction) -> Digits:
    """Digits of the rounded Gaussian distribution, the integer nearest to ``N(0, sigma**2)``."""
    if sigma <= _NARROW:
        return ((1, rounded_gaussian_table(sigma)),)
    if sigma <= WIDEST_TABLE:
        return ((1, Central.of(sigma)),)
    digits = [(1, rounded_gaussian_table(Fraction(GAUSSIAN_DIGIT)))]
    factor = GAUSSIAN_BASE
    variance = (sigma**2 - GAUSSIAN_DIGIT**2) / GAUSSIAN_BASE**2
    while variance > WIDEST_TABLE**2:
        digits.append((factor, discrete_gaussian_table(Fraction(GAUSSIAN_DIGIT**2))))
        factor *= GAUSSIAN_BASE
        variance = (variance - GAUSSIAN_DIGIT**2) / GAUSSIAN_BASE**2
    return (*digits, (factor, discrete_gaussian_table(variance)))


def laplace_table(scale: Fraction) -> ThresholdTable:
    """``P(z) ~ q**|z|`` with ``q = exp(-1 / scale)``: ``P(Z > v) = q**(v + 1) / (1 + q)``."""

    def tail(precision: int) -> Iterator[arb]:
        q = (-ball(1 / scale)).exp()
        probability = q / (1 + q)
        while True:
            yield probability
            probability *= q

    return ThresholdTable.from_tail([] if scale < _ALWAYS_ZERO else _certified_floors(tail))


def laplace_digit(scale: Fraction, base: int) -> ThresholdTable:
    """The difference of two remainders: ``P(d) ~ q**|d| - q**(2*base - |d|)`` for ``|d| < base``."""

    def tail(precision: int) -> Iterator[arb]:
        q = (-ball(1 / scale)).exp()
        to_base = q**base
        norm = (1 + q) * (1 - to_base) ** 2
        rising, falling = q, to_base * to_base
        for _ in range(base - 1):
            yield (rising - to_base - to_base * q + falling) / norm
            rising, falling = rising * q, falling / q

    return ThresholdTable.from_tail(_certified_floors(tail))


@lru_cache(maxsize=KEPT)
def rounded_gaussian_table(sigma: Fraction) -> ThresholdTable:
    """The integer nearest to ``N(0, sigma**2)``: ``P(Z > v) = erfc((v + 1/2) / (sigma * sqrt(2))) / 2``."""
    return ThresholdTable.from_tail(_tail_of_gaussian(sigma))


def _tail_of_gaussian(sigma: Fraction, *, most: int | None = None) -> list[int]:
    """``floor(2**128 * P(Z > v))`` for v = 0, 1, 2, ... up to the first zero, or for this many."""

    def tail(precision: int) -> Iterator[arb]:
        unit = 1 / (ball(2 * sigma) * ball(Fraction(2)).sqrt())
        each = int(2 * _RADIUS * math.sqrt(2) * float(sigma)) - 1  # values of a block, all within the radius
        if each < _FEWEST:
            for v in itertools.count():
                yield ((2 * v + 1) * unit).erfc() / 2
        powers = _powers([(2 * v - each) * unit for v in range(each + 1)], precision)
        for start in itertools.count(0, _BLOCKS * (each + 1)):
            firsts = range(start, start + _BLOCKS * (each + 1), each + 1)
            yield from _halves_of_erfc([(2 * v + 1 + each) * unit for v in firsts], powers)

    return [] if sigma < _ALWAYS_ZERO else _certified_floors(lambda precision: itertools.islice(tail(precision), most))


def _powers(offsets: list[arb], precision: int) -> arb_mat:
    """Powers of the offsets for as many terms as the precision needs, one row a term."""
    from flint import arb_mat

    return arb_mat([[t**n for t in offsets] for n in range(precision * 3 // 16)])


def _halves_of_erfc(centres: list[arb], powers: arb_mat) -> list[arb]:
    """``erfc(centre + t) / 2`` for each centre, at offsets up to `_RADIUS`, one centre after another.

    All are one product of matrices: of Taylor coefficients and of powers. A ball holds what the polynomials leave out.

    The derivative of order n is ``(2 / sqrt(pi)) H_{n-1}(x) e^{-x^2}`` but for its sign, and ``|H_m(x)| <= 1.0865
    sqrt(2^m m!) e^{x^2 / 2}`` (Cramer's inequality), so n terms leave out at most ``1.23 sqrt(2^{n-1} / (n-1)!) |t|^n /
    n``.
    """
    from flint import arb, arb_mat, arb_series, ctx

    terms = powers.nrows()
    cap, ctx.cap = ctx.cap, terms
    try:
        series = [list(arb_series([centre, 1], prec=terms).erfc() / 2) for centre in centres]
    finally:
        ctx.cap = cap
    left_out = (
        arb(123) / 100 * (arb(2) ** (terms - 1) / math.factorial(terms - 1)).sqrt() * ball(_RADIUS) ** terms / terms
    )
    remainder = arb(0, left_out.upper())
    coefficients = arb_mat([[row[0] + remainder, *row[1:], *[arb(0)] * (terms - len(row))] for row in series])
    values: list[arb] = (coefficients * powers).entries()
    return values


@lru_cache(maxsize=KEPT)
def discrete_gaussian_table(variance: Fraction) -> ThresholdTable:
    """``P(k) ~ exp(-k**2 / (2 * variance))`` on the integers."""

    def tail(precision: int) -> Iterator[arb]:
        last = int(float(1.4 * precision * variance) ** 0.5) + 2
        rate = -ball(1 / (2 * variance))
        weights = [(rate * (k * k)).exp() for k in range(last + 1)]
        # beyond `last` the weights fall faster than a geometric series of ratio exp(-last / variance)
        rest = weights[last] / (ball(last / variance).exp() - 1)
        above = [rest.union(0 * rest)]
        for weight in reversed(weights):
            above.append(above[-1] + weight)
        norm = 2 * above[-1] - weights[0]
        return (mass / norm for mass in reversed(above[:-1]))

    return ThresholdTable.from_tail(_certified_floors(tail))


def exponential_weights(gaps: Sequence[int], scale: Fraction) -> list[int]:
    """``floor(2**128 * exp(-gap / scale))`` for each gap, an integer of at least 0; 0 from ``gap >= 90 * scale`` on."""
    limit = math.ceil(90 * scale)  # exp(-90) < 2**-129
    near = sorted({gap for gap in gaps if 0 < gap < limit})

    def weights(precision: int) -> Iterator[arb]:
        rate = -ball(1 / scale)
        return ((rate * gap).exp() for gap in near)

    weight_of = dict(zip(near, _certified_floors(weights), strict=False))  # the floors end at the first zero
    weight_of[0] = 1 << 128
    return [weight_of.get(gap, 0) for gap in gaps]


def _certified_floors(tail: Callable[[int], Iterator[arb]]) -> list[int]:
    """Return ``floor(2**128 * p)`` for the p that ``tail(precision)`` encloses, up to the first zero."""
    from flint import arb

    for precision in (192, 256, 512, 1024, 2048, 4096):
        floors = []
        with working_precision(precision):
            unit = arb(1 << 128)
            for enclosure in tail(precision):
                floor = (enclosure * unit).floor().unique_fmpz()
                if not floor:  # None: the ball is too wide to tell
                    break
                floors.append(int(floor))
            else:
                return floors
        if floor is not None:
            return floors
    raise ArithmeticError("no precision up to 4096 bits separates a threshold from an integer")
