"""Thresholds against high-precision arithmetic, digits against what they add up to, privacy from the thresholds."""

import bisect
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from mpmath import mpf

from dpdist.privacy import _thresholds
from dpdist.privacy._thresholds import ThresholdTable
from dpdist.privacy.balls import ball
from dpdist.privacy.noise import SAMPLER_DELTA

UNIT = 2**128


@pytest.fixture(autouse=True)
def high_precision() -> Iterator[None]:
    with mpmath.workdps(90):
        yield


def exact(value: Fraction) -> mpf:
    return mpf(value.numerator) / value.denominator


@cache
def thresholds(table: ThresholdTable) -> list[int]:
    return [(high << 64) + low for high, low in zip(table.high.tolist(), table.low.tolist(), strict=True)]


def probabilities(table: ThresholdTable) -> dict[int, int]:
    """``2**128 * P(Z = v)``, as drawn."""
    edges = [0, *thresholds(table), UNIT]
    return {v - table.bound: edges[v + 1] - edges[v] for v in range(2 * table.bound + 1)}


def laplace_tail(scale: Fraction) -> Callable[[int], mpf]:
    q = mpmath.exp(-1 / exact(scale))
    return lambda v: q ** (v + 1) / (1 + q)


def laplace_digit_tail(scale: Fraction, base: int) -> Callable[[int], mpf]:
    q = mpmath.exp(-1 / exact(scale))
    weights = [q**r for r in range(base)]
    total = sum(weights) ** 2
    # the difference of two remainders exceeds v: one is r, the other above r + v
    above = [mpf(0)]
    for weight in reversed(weights):
        above.append(above[-1] + weight)
    above.reverse()  # above[r] = sum of the weights from r on
    return lambda v: sum(weights[r] * above[r + v + 1] for r in range(base - v - 1)) / total


def gaussian_tail(sigma: Fraction) -> Callable[[int], mpf]:
    return lambda v: mpmath.erfc((v + mpf(0.5)) / (exact(sigma) * mpmath.sqrt(2))) / 2


def discrete_gaussian_tail(variance: Fraction) -> Callable[[int], mpf]:
    last = int(21 * math.sqrt(variance)) + 40
    weights = [mpmath.exp(-mpf(k * k) / (2 * exact(variance))) for k in range(last)]
    total = 2 * mpmath.fsum(weights) - 1
    return lambda v: mpmath.fsum(weights[v + 1 :]) / total


Make = Callable[[], tuple[ThresholdTable, Callable[[int], mpf]]]


def cases() -> Iterator[tuple[str, Make]]:
    """What makes a table and its tail, by name."""
    tables = _thresholds
    for scale in map(Fraction, ["1/50", "0.1", "0.5", "1", "17.3", "1000", "1024"]):
        yield f"laplace {scale}", lambda s=scale: (tables.laplace_table(s), laplace_tail(s))
        yield f"gaussian {scale}", lambda s=scale: (tables.rounded_gaussian_table(s), gaussian_tail(s))
    for scale, base in [(Fraction(5), 7), (Fraction(2**40), 64), (Fraction(1, 3), 16)]:
        yield (
            f"digit {scale} {base}",
            lambda s=scale, b=base: (tables.laplace_digit(s, b), laplace_digit_tail(s, b)),
        )
    for variance in (Fraction(7), Fraction(1, 3), Fraction(40_000, 7)):
        yield (
            f"discrete gaussian {variance}",
            lambda v=variance: (tables.discrete_gaussian_table(v), discrete_gaussian_tail(v)),
        )


@pytest.fixture(params=[pytest.param(cache(make), id=name) for name, make in cases()])
def made(request: pytest.FixtureRequest, high_precision: None) -> tuple[ThresholdTable, Callable[[int], mpf]]:
    """A table and its tail."""
    make: Make = request.param
    return make()


class TestThresholds:
    def test_right_to_the_last_unit(self, made: tuple[ThresholdTable, Callable[[int], mpf]]) -> None:
        table, tail = made
        edges = thresholds(table)
        # all of a small table; of a large one the centre, the end and a sample
        chosen = {*range(60), *range(table.bound - 20, table.bound), *range(0, table.bound, 401)}
        for v in sorted(chosen & set(range(table.bound))):
            p = tail(v)
            assert edges[table.bound - 1 - v] == int(mpmath.floor(UNIT * p))
            assert edges[table.bound + v] == int(mpmath.floor(UNIT * (1 - p)))
            assert table.high[table.bound + v] == int(mpmath.floor(2**64 * (1 - p)))
        assert UNIT * tail(table.bound) < 1  # nothing that 128 bits can hold was cut off
        assert edges == sorted(edges)
        assert all(a + b == UNIT - 1 for a, b in zip(edges, reversed(edges), strict=True))

    @pytest.mark.parametrize("scale", [Fraction(2**40), Fraction(10**6), Fraction(12345, 7)])
    def test_largest_digit_in_closed_form(self, scale: Fraction) -> None:
        base = _thresholds.LAPLACE_BASE
        (_, table), *_ = _thresholds.laplace(scale)
        tail = laplace_digit_tail(scale, base)
        edges = thresholds(table)
        for v in (0, 1, 2000, base - 3, base - 2):
            assert edges[table.bound - 1 - v] == int(mpmath.floor(UNIT * tail(v)))
        assert table.bound == base - 1

    def test_close_calls_are_settled_at_a_higher_precision(self) -> None:
        seen = []

        def tail(precision: int) -> Iterator[arb]:
            seen.append(precision)
            yield arb(1) / 2 - arb(2) ** -400
            yield arb(0)

        assert _thresholds._certified_floors(tail) == [2**127 - 1]
        assert seen == [192, 256, 512]
        assert ctx.prec == 53

    def test_undecidable_thresholds_are_refused(self) -> None:
        with pytest.raises(ArithmeticError, match="separates a threshold"):
            _thresholds._certified_floors(lambda precision: iter([arb(0.5, 1e-9)]))

    def test_threads_build_the_same_tables(self) -> None:
        scales = [Fraction(n, 3) for n in range(1, 25)]
        expected = [thresholds(_thresholds.laplace_table(scale)) for scale in scales]
        together = threading.Barrier(4)

        def build(worker: int) -> list[list[int]]:
            together.wait()
            return [thresholds(_thresholds.laplace_table(scale)) for scale in scales]

        with ThreadPoolExecutor(4) as pool:
            assert all(built == expected for built in pool.map(build, range(4)))


class TestDraw:
    def test_equals_a_search_over_128_bits(self, made: tuple[ThresholdTable, Callable[[int], mpf]]) -> None:
        """Of random words, and of words at and beside thresholds with second words at and beside theirs."""
        table, _ = made
        rng, edges = np.random.default_rng(0), thresholds(table)
        beside = rng.integers(0, max(table.high.size, 1), 3_000)
        steps = rng.integers(-1, 2, (2, beside.size)).astype(np.uint64)
        words, seconds = rng.integers(0, 2**64, (2, 5_000), dtype=np.uint64)
        if table.high.size:
            words[: beside.size] = table.high[beside] + steps[0]  # beyond an end it is any word
            seconds[: beside.size // 2] = (table.low[beside] + steps[1])[: beside.size // 2]
        drawn = table.draw(words, lambda: seconds)
        pairs = zip(words.tolist(), seconds.tolist(), strict=True)
        assert drawn.dtype == np.int64
        assert drawn.tolist() == [bisect.bisect_right(edges, (high << 64) + low) - table.bound for high, low in pairs]


class TestDigits:
    """The sum of the digits has the distribution that one table would have."""

    @staticmethod
    def probability(digits: _thresholds.Digits, value: int) -> Fraction:
        """``P(sum of factor * digit = value)`` from the thresholds themselves."""
        cells = [(factor, probabilities(table), table.bound) for factor, table in digits]
        partial = {value: Fraction(1)}
        for level, (factor, mass, _) in enumerate(cells):
            rest = cells[level + 1 :]
            step = rest[0][0] if rest else 0
            reach = sum(above * bound for above, _, bound in rest)
            following: dict[int, Fraction] = {}
            for wanted, weight in partial.items():
                for digit, cell in mass.items():
                    left = wanted - factor * digit
                    if abs(left) <= reach and (left == 0 if step == 0 else left % step == 0):
                        following[left] = following.get(left, Fraction(0)) + weight * Fraction(cell, UNIT)
            partial = following
        return partial.get(0, Fraction(0))

    @pytest.mark.parametrize("scale", [Fraction(5000), Fraction(12345, 7)])
    def test_laplace(self, scale: Fraction) -> None:
        digits = _thresholds.laplace(scale)
        assert len(digits) == 2
        tail = laplace_tail(scale)
        for value in (0, 1, 4095, 4096, -4097, 12_288, -100_000):
            expected = tail(abs(value) - 1) - tail(abs(value)) if value else 1 - 2 * tail(0)
            assert abs(exact(self.probability(digits, value)) - expected) < mpf(2) ** -120

    @pytest.mark.parametrize("sigma", [Fraction(1025), Fraction(40_000), Fraction(10**6)])
    def test_gaussian(self, sigma: Fraction) -> None:
        digits = _thresholds.gaussian(sigma)
        assert len(digits) == 2 + (sigma > 2**18)
        tail = gaussian_tail(sigma)
        # three digits are enumerated at the centre only: their convolution has 10**5 terms
        for value in (0, 1, 255, 256, -257, 3000) if len(digits) == 2 else (128,):
            expected = tail(value - 1) - tail(value) if value > 0 else tail(-value - 1) - tail(-value)
            found = exact(self.probability(digits, value))
            assert abs(found - expected) < expected * mpf(2) ** -107 + mpf(2) ** -120

    @pytest.mark.parametrize("sigma", [1024.0001, 2.0**18, 1e6, 2.0**33, 2.0**45])
    def test_variances_add_up(self, sigma: float) -> None:
        *low, (factor, _) = _thresholds.gaussian(Fraction(sigma))
        assert [f for f, _ in low] == [256**i for i in range(len(low))]
        top = Fraction(sigma) ** 2
        for f, _ in low:
            top -= Fraction(f * _thresholds.GAUSSIAN_DIGIT) ** 2
        variance = top / factor**2
        assert (3 * 256**2 * 16 / 9 / 256**2) < variance <= _thresholds.WIDEST_TABLE**2
        (_, table) = _thresholds.gaussian(Fraction(sigma))[-1]
        assert thresholds(table) == thresholds(_thresholds.discrete_gaussian_table(variance))


class TestPrivacy:
    """The hockey-stick divergence between neighbours, exactly, from the thresholds as drawn."""

    @staticmethod
    def delta(table: ThresholdTable, factor: mpf, shift: int) -> mpf:
        mass = probabilities(table)
        excess = (p - factor * mass.get(v + shift, 0) for v, p in mass.items())
        return mpmath.fsum(e for e in excess if e > 0) / UNIT

    @pytest.mark.parametrize("scale", [Fraction(1, 20), Fraction(1, 2), Fraction(1), Fraction(173, 10), Fraction(300)])
    def test_laplace_is_pure_but_for_the_sampler(self, scale: Fraction) -> None:
        table = _thresholds.laplace_table(scale)
        e_epsilon = mpmath.exp(1 / exact(scale))
        for shift in (1, -1):
            assert self.delta(table, e_epsilon, shift) < SAMPLER_DELTA
            assert self.delta(table, e_epsilon ** mpf(0.9), shift) > 1e-12  # the test would see less noise

    @pytest.mark.parametrize("sigma", [Fraction(1, 2), Fraction(2), Fraction(173, 10), Fraction(300)])
    @pytest.mark.parametrize("epsilon", [0.01, 0.3, 2.0, 10.0])
    def test_gaussian_is_no_worse_than_the_continuous_one(self, sigma: Fraction, epsilon: float) -> None:
        table = _thresholds.rounded_gaussian_table(sigma)
        s = exact(sigma)
        normal = mpmath.ncdf
        continuous = normal(1 / (2 * s) - epsilon * s) - mpmath.exp(epsilon) * normal(-1 / (2 * s) - epsilon * s)
        for shift in (1, -1):
            assert self.delta(table, mpmath.exp(epsilon), shift) < continuous + SAMPLER_DELTA


@pytest.mark.parametrize("sigma", [Fraction(20), Fraction(77777, 1000), Fraction(1024)])
def test_polynomials_give_the_thresholds_of_the_error_function(
    sigma: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _thresholds.rounded_gaussian_table.__wrapped__(sigma)
    monkeypatch.setattr(_thresholds, "_FEWEST", 1 << 30)
    direct = _thresholds.rounded_gaussian_table.__wrapped__(sigma)
    assert np.array_equal(made.high, direct.high)
    assert np.array_equal(made.low, direct.low)


def test_what_a_polynomial_leaves_out_is_within_its_ball() -> None:
    """One centre after another."""
    with ctx.workprec(256):
        centres = [ball(Fraction(centre)) for centre in (0, Fraction(13, 10), 9)]
        offsets = [ball(Fraction(k, 8)) for k in (-1, 0, 1)]
        found = _thresholds._halves_of_erfc(centres, _thresholds._powers(offsets, 256))
    with ctx.workprec(1024):
        for (centre, offset), value in zip(itertools.product(centres, offsets), found, strict=True):
            assert value.contains((centre + offset).erfc() / 2)
            assert value.rad() < 2.0**-200


@pytest.mark.parametrize("sigma", [Fraction(161, 10), Fraction(200), Fraction(1024)])
def test_a_table_of_the_values_near_0_draws_what_the_whole_table_draws(sigma: Fraction) -> None:
    """Of words at and beside all thresholds, and of the first and the last ones."""
    ((_, central),) = _thresholds.gaussian(sigma)
    assert isinstance(central, _thresholds.Central)
    whole = _thresholds.rounded_gaussian_table(sigma)
    assert 6 * sigma <= central.near.bound < whole.bound / 2
    ends = np.array([0, 2**64 - 1], np.uint64)
    words = np.concatenate([whole.high - np.uint64(1), whole.high, whole.high + np.uint64(1), ends])
    words = np.random.default_rng(0).permutation(words)
    mixed = np.random.default_rng(1).integers(0, 2**64 - 1, len(words), np.uint64, endpoint=True)
    for seconds in (np.zeros_like(words), mixed, ~np.zeros_like(words)):
        values = central.draw(words, lambda seconds=seconds: seconds)
        np.testing.assert_array_equal(values, whole.draw(words, lambda seconds=seconds: seconds))
        assert np.abs(values).max() > 1.5 * central.near.bound


def test_the_whole_table_is_made_for_draws_beyond_the_values_near_0(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Fraction] = []
    original = _thresholds.rounded_gaussian_table
    monkeypatch.setattr(_thresholds, "rounded_gaussian_table", lambda sigma: [made.append(sigma), original(sigma)][1])
    central, words = _thresholds.Central.of(Fraction(50)), np.arange(1, 1001, dtype=np.uint64) << np.uint64(54)
    central.draw(words, lambda: words)
    assert made == []
    central.draw(np.array([1], np.uint64), lambda: words)
    assert made == [50]


def test_tables_of_thirty_scales_are_kept() -> None:
    """A run of an audit draws at the scales of the run before."""
    scales = [Fraction(50 + k, 7) for k in range(30)]
    first = [_thresholds.gaussian(scale) for scale in scales]
    assert all(_thresholds.gaussian(scale) is digits for scale, digits in zip(scales, first, strict=True))
