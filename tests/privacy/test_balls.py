"""Balls hold the exact number; binomial quantiles beside exact sums and another implementation."""

import itertools
import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from threading import Event

import pytest
from flint import arb, ctx
from scipy.stats import binom

from dpdist.errors import AccountingError
from dpdist.privacy.balls import ball, lower_quantile, trials_needed, upper_quantile, working_precision


@pytest.mark.parametrize("value", [0, -7, 0.1, 2.0**-60, Fraction(1, 3)])
def test_a_ball_holds_its_number(value: float | Fraction) -> None:
    with working_precision(80):
        exact = Fraction(value)
        assert (ball(value) * exact.denominator).contains(arb(exact.numerator))


def test_threads_do_not_change_each_others_precision() -> None:
    before = ctx.prec

    def compute(bits: int) -> bool:
        for _ in range(200):
            with working_precision(bits):
                third = ball(Fraction(1, 3))
                if ctx.prec != bits or not 2.0 ** -(bits + 4) < float(third.rad()) < 2.0 ** -(bits - 4):
                    return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(compute, (64, 128, 256, 512)))
    assert ctx.prec == before


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_computes_can_compute() -> None:
    computing, forked = Event(), Event()

    def compute() -> None:
        with working_precision(64):
            computing.set()
            forked.wait(0.2)  # the fork waits for the end of this

    with ThreadPoolExecutor(1) as pool:
        pool.submit(compute)
        assert computing.wait(10)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)  # ends a child that waits for ever
            with working_precision(80):
                os._exit(0)
        forked.set()
        assert os.waitpid(child, 0)[1] == 0


# --- quantiles of binomial counts ----------------------------------------------------------------------------------

RATES = (0.0, 1e-6, 0.03, 0.3, 0.9, 1.0)
PROBABILITIES = (1e-30, 1e-9, 0.07, 0.999)


def tails(trials: int, rate: float, most: int | None = None) -> list[Fraction]:
    """``Pr[Bin <= k]`` for every k, or up to the largest that matters, exactly."""
    succeeding, whole = Fraction(rate).as_integer_ratio()
    failing = whole - succeeding
    kept = range((trials if most is None else most) + 1)
    masses = (math.comb(trials, k) * succeeding**k * failing ** (trials - k) for k in kept)
    return [Fraction(total, whole**trials) for total in itertools.accumulate(masses)]


@pytest.mark.parametrize("trials", [1, 2, 7, 40])
@pytest.mark.parametrize("rate", RATES)
def test_small_quantiles_equal_exact_sums(trials: int, rate: float) -> None:
    at_most = tails(trials, rate)
    for probability in PROBABILITIES:
        assert lower_quantile(probability, trials=trials, rate=rate) == next(
            k for k, tail in enumerate(at_most) if tail >= probability
        )
        assert upper_quantile(probability, trials=trials, rate=rate) == next(
            k for k, tail in enumerate(at_most) if 1 - tail <= probability
        )


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.97])
@pytest.mark.parametrize("successes", [1, 3, 12])
def test_trials_needed_equal_exact_sums(successes: int, rate: float) -> None:
    for probability in (1e-9, 0.07, 0.999):
        needed = trials_needed(probability, successes=successes, rate=rate)
        assert tails(needed, rate, successes)[successes - 1] <= probability
        assert needed == successes or tails(needed - 1, rate, successes)[successes - 1] > probability
    assert trials_needed(0.1, successes=successes, rate=1.0) == successes


@pytest.mark.parametrize("trials", [10**6, 10**8, 10**9])
@pytest.mark.parametrize("rate", [1e-7, 3e-4, 0.4, 0.999])
def test_large_quantiles_agree_with_another_implementation(trials: int, rate: float) -> None:
    for probability in (1e-12, 1e-6, 0.4):
        low = lower_quantile(probability, trials=trials, rate=rate)
        assert binom.cdf(low, trials, rate) >= probability * (1 - 1e-4)
        assert low == 0 or binom.cdf(low - 1, trials, rate) < probability * (1 + 1e-4)
        high = upper_quantile(probability, trials=trials, rate=rate)
        assert binom.sf(high, trials, rate) <= probability * (1 + 1e-4)
        assert high == 0 or binom.sf(high - 1, trials, rate) > probability * (1 - 1e-4)


def test_tails_beyond_double_precision() -> None:
    at_most = tails(900, 0.25)
    for probability in (1e-40, 1e-90):
        low = lower_quantile(probability, trials=900, rate=0.25)
        assert at_most[low] >= probability > at_most[low - 1]
        high = upper_quantile(probability, trials=900, rate=0.25)
        assert 1 - at_most[high] <= probability < 1 - at_most[high - 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: lower_quantile(0.0, trials=3, rate=0.5),
        lambda: upper_quantile(1.0, trials=3, rate=0.5),
        lambda: upper_quantile(0.1, trials=0, rate=0.5),
        lambda: lower_quantile(0.1, trials=3, rate=1.5),
        lambda: trials_needed(0.1, successes=3, rate=0.0),
        lambda: trials_needed(0.1, successes=0, rate=0.5),
        lambda: trials_needed(0.1, successes=10**6, rate=1e-12),
        lambda: trials_needed(0.1, successes=1, rate=1e-300),
        lambda: trials_needed(0.1, successes=1, rate=5e-324),
    ],
)
def test_bad_input(call) -> None:
    with pytest.raises(AccountingError):
        call()
