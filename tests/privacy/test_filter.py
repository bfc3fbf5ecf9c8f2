"""Filters against the best adaptive strategy, found exactly by dynamic programming over outcomes.

Who chooses the next mechanism knows the likelihood ratio of what came before and what each filter has left; nothing
else helps. With losses on one lattice, the largest hockey-stick divergence over all strategies is a recursion over the
numbers of mechanisms used of each kind.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import HISTOGRAM

from dpdist.errors import AccountingError, GuaranteeRefused, SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.base.registry import make_plan
from dpdist.ledger.records import Account as Sums
from dpdist.ledger.records import Price
from dpdist.lifecycle.conformity import refuse
from dpdist.model.account import GaussianAccount
from dpdist.privacy import accountant, events
from dpdist.privacy.deniability import SeedRecords, record_pair
from dpdist.privacy.event import Event
from dpdist.privacy.filter import NOTHING_TAKEN, Cost, Filter, Portfolio, exact_sum
from dpdist.privacy.gdp import largest_mu_squared
from dpdist.privacy.noise import Noise
from dpdist.privacy.pair import DominatingPair
from dpdist.privacy.pieces import dominating_pair
from dpdist.privacy.selection import Candidates

INTERVAL = 0.02
Counts = tuple[int, ...]
Pairs = Sequence[DominatingPair]


def on_lattice(pair: DominatingPair) -> DominatingPair:
    return pair.on_lattice(INTERVAL)[1]


def picks(low: float, high: float) -> DominatingPair:
    """A pick among three of which one record makes one likelier and two less likely (exponential mechanism)."""
    lower = np.array([math.expm1(high), -math.expm1(-low)]) / (math.exp(high) - math.exp(-low))
    losses = np.array([-low, high])
    return DominatingPair(losses, lower * np.exp(losses), lower)


def kinds(*, gaussian: float, laplace: float, response: float, pick: float, seeds: int) -> list[DominatingPair]:
    """Five mechanisms: Gaussian, Laplace, randomised response, a pick, a record with a seed."""
    return [
        on_lattice(pair)
        for pair in (
            dominating_pair(events.Gaussian(gaussian)),
            dominating_pair(events.DiscreteLaplace(laplace)),
            dominating_pair(events.ApproximateDP(response)),
            picks(pick, 2 * pick),
            record_pair(k=seeds, gamma=1.5, epsilon0=0.3, passing_mass=200.0),
        )
    ]


def masses(pair: DominatingPair, half: int, reverse: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """P and Q at the losses -half .. half of the lattice, and P's mass where Q has none."""
    index = np.rint(pair.losses / INTERVAL).astype(int) * (-1 if reverse else 1) + half
    p, q = (pair.lower, pair.upper) if reverse else (pair.upper, pair.lower)
    spread = [np.bincount(index, mass, 2 * half + 1) for mass in (p, q)]
    return spread[0], spread[1], pair.lower_infinite if reverse else pair.upper_infinite


def reach(pairs: Pairs) -> int:
    return max(round(float(np.abs(pair.losses).max()) / INTERVAL) for pair in pairs)


def best_strategy(pairs: Pairs, admits: Callable[[Counts], bool], *, steps: int, epsilon: float) -> float:
    """The largest delta at epsilon over all strategies of up to `steps` admitted mechanisms, both directions."""
    half, worst = reach(pairs), 0.0
    for reverse in (False, True):
        laws = [masses(pair, half, reverse)[1:] for pair in pairs]
        values: dict[Counts, np.ndarray] = {}
        for total in range(steps, -1, -1):
            ratio = np.exp(np.arange(-total * half, total * half + 1) * INTERVAL)
            for counts in itertools.product(range(total + 1), repeat=len(pairs)):
                if sum(counts) != total or not admits(counts):
                    continue
                best = np.maximum(ratio - math.exp(epsilon), 0.0)  # stopping here
                for kind, (lower, infinite) in enumerate(laws):
                    after = values.get((*counts[:kind], counts[kind] + 1, *counts[kind + 1 :]))
                    if after is not None:
                        best = np.maximum(best, np.correlate(after, lower, "valid") + infinite * ratio)
                values[counts] = best
        worst = max(worst, float(values[(0,) * len(pairs)][0]))
    return worst


def fixed_delta(pairs: Pairs, counts: Counts, epsilon: float) -> float:
    """Delta of mechanisms that are fixed beforehand, the worse direction."""
    half, worst = reach(pairs), 0.0
    for reverse in (False, True):
        law, finite = np.ones(1), 1.0
        for pair, count in zip(pairs, counts, strict=True):
            upper, _, infinite = masses(pair, half, reverse)
            for _ in range(count):
                law, finite = np.convolve(law, upper), finite * (1 - infinite)
        losses = (np.arange(len(law)) - len(law) // 2) * INTERVAL
        worst = max(worst, float(law @ np.maximum(-np.expm1(epsilon - losses), 0.0)) + 1 - finite)
    return worst


def sums(pairs: Pairs, one: Filter) -> Callable[[Counts], bool]:
    """Whether a filter holds after this many mechanisms of each kind."""
    costs = [one.cost(pair) for pair in pairs]

    @functools.cache
    def holds(counts: Counts) -> bool:
        taken = NOTHING_TAKEN
        for cost, count in zip(costs, counts, strict=True):
            for _ in range(count):
                taken += cost
        return one.holds(taken)

    return holds


CASES = [
    ("3/2", "1e-4", {"gaussian": 8.0, "laplace": 1.963, "response": 0.3, "pick": 0.2, "seeds": 60}),
    ("1", "1e-6", {"gaussian": 8.0, "laplace": 1.963, "response": 0.3, "pick": 0.2, "seeds": 60}),
    ("2", "1e-3", {"gaussian": 4.0, "laplace": 3.0, "response": 0.5, "pick": 0.1, "seeds": 40}),
    ("1/2", "1e-2", {"gaussian": 6.0, "laplace": 8.0, "response": 0.1, "pick": 0.06, "seeds": 90}),
]


@pytest.mark.parametrize(("epsilon", "delta", "parameters"), CASES)
def test_no_strategy_of_eight_mechanisms_exceeds_the_cap(
    epsilon: str, delta: str, parameters: dict[str, float]
) -> None:
    pairs = kinds(**parameters)  # type: ignore[arg-type]
    portfolio = Portfolio.standard(epsilon=Fraction(epsilon), delta=Fraction(delta))
    holds = [sums(pairs, one) for one in portfolio.filters]
    for one, rule in zip(portfolio.filters, holds, strict=True):
        assert best_strategy(pairs, rule, steps=8, epsilon=float(Fraction(epsilon))) <= float(one.delta) * (1 + 1e-9)
    found = best_strategy(
        pairs, lambda counts: any(rule(counts) for rule in holds), steps=8, epsilon=float(Fraction(epsilon))
    )
    assert 0.03 * float(Fraction(delta)) < found <= float(Fraction(delta))


def test_recomposition_is_no_filter() -> None:
    """Admitting what composes to the cap, as if it had been fixed beforehand, gives away 2.6 times the delta."""
    epsilon, delta, parameters = CASES[0]
    pairs = kinds(**parameters)  # type: ignore[arg-type]
    at, cap = float(Fraction(epsilon)), float(delta)
    rule = functools.cache(lambda counts: fixed_delta(pairs, counts, at) <= cap)
    assert best_strategy(pairs, rule, steps=8, epsilon=at) > 2.6 * cap


def test_failures_that_widen_the_gaussian_limit_are_no_filter() -> None:
    """mu may not grow by what the failures leave of delta: a strategy that sees rare outcomes uses both."""
    at, cap = 1.0, Fraction("1e-4")
    whole = float(largest_mu_squared(epsilon=Fraction(1), delta=cap * Fraction(9, 10)))
    pairs = [
        on_lattice(dominating_pair(events.Gaussian((whole / 4) ** -0.5))),
        DominatingPair(np.zeros(1), np.full(1, 1 - 9e-5), np.full(1, 1 - 9e-5), 9e-5, 9e-5),
    ]
    moving = functools.cache(
        lambda counts: (
            counts[1] * 9e-5 < float(cap)
            and counts[0] * whole / 4
            <= float(largest_mu_squared(epsilon=Fraction(1), delta=cap - counts[1] * Fraction("9e-5")))
        )
    )
    assert best_strategy(pairs, moving, steps=5, epsilon=at) > 1.2 * float(cap)
    assert (
        best_strategy(pairs, sums(pairs, Filter.at("gaussian", epsilon=Fraction(1), delta=cap)), steps=5, epsilon=at)
        <= cap
    )


def test_a_filter_attains_its_delta() -> None:
    """Gaussians up to the limit reach what the filter leaves beside failures, but for the lattice."""
    one = Filter.at("gaussian", epsilon=Fraction(1), delta=Fraction("1e-4"))
    pair = on_lattice(dominating_pair(events.Gaussian(float(one.limit / 4) ** -0.5 * 1.01)))
    found = best_strategy([pair], sums([pair], one), steps=8, epsilon=1.0)
    assert 0.6e-4 < found <= 1e-4
    basic = Filter.at("basic", epsilon=Fraction(1), delta=Fraction("1e-4"))
    failing = DominatingPair(np.array([0.0]), np.array([1 - 2.5e-5]), np.array([1 - 2.5e-5]), 2.4e-5, 2.4e-5)
    assert best_strategy([failing], sums([failing], basic), steps=8, epsilon=1.0) == pytest.approx(9.6e-5, rel=1e-3)


EVENTS: list[Event] = [
    events.Gaussian(noise_multiplier=30.0),
    events.Gaussian(noise_multiplier=30.0, count=7),
    events.DiscreteLaplace(scale=20.0),
    events.DiscreteLaplace(scale=200.0, sensitivity=3, count=40),
    events.SubsampledGaussian(sampling_rate=0.01, noise_multiplier=3.0, count=50),
    SeedRecords(k=2000, gamma=2.0, epsilon0=0.02, passing_mass=367_500.0, records=100),
    events.Composed((events.Gaussian(40.0), events.DiscreteLaplace(50.0), events.ApproximateDP(0.0, 2.0**-50))),
    events.Replacement(events.DiscreteLaplace(scale=20.0)),
    events.LaplaceLeakage(scale=30.0, alpha=0.001, failure=1e-14),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.type)
def test_costs_bound_the_event(event: Event) -> None:
    """The guarantee that each filter would state of one release alone is a true one, and near the accountant's."""
    portfolio = Portfolio.standard(epsilon=Fraction(4), delta=Fraction("1e-8"))
    stated = []
    for one, cost in zip(portfolio.filters, portfolio.costs(event), strict=True):
        epsilon = one.epsilon_of(cost)
        assert epsilon is not None
        stated.append(float(epsilon))
        assert accountant.epsilon(event, delta=float(one.delta)) <= float(epsilon) * (1 + 1e-5)
    assert min(stated) < 1.15 * accountant.epsilon(event, delta=float(portfolio.filters[0].delta))


def test_gaussian_costs_are_exact() -> None:
    one = Filter.at("gaussian", epsilon=Fraction(1), delta=Fraction("1e-9"))
    event = events.Composed((events.Gaussian(8.0, count=3), events.ApproximateDP(0.0, 1e-12), events.Gaussian(4.0)))
    assert one.cost(event) == Cost(Fraction(3, 64) + Fraction(1, 16), Fraction("1e-12"))
    order = Filter.at("renyi", epsilon=Fraction(1), delta=Fraction("1e-9"), order=Fraction(41))
    assert order.cost(event) == Cost(Fraction(41, 2) * Fraction(7, 64), Fraction("1e-12"))


def test_pure_costs_are_exact() -> None:
    assert exact_sum(events.Composed((events.ApproximateDP(0.1, 1e-10),) * 3)) == Cost(
        Fraction(3, 10), Fraction("3e-10")
    )
    assert exact_sum(events.DiscreteLaplace(scale=10.0, sensitivity=2, count=3)) == Cost(Fraction(6, 10), Fraction(0))
    assert exact_sum(events.Composed((events.DiscreteLaplace(10.0), events.Gaussian(3.0)))) is None
    four = Filter.at("basic", epsilon=Fraction(4), delta=Fraction("1e-8"))
    assert four.cost(events.DiscreteLaplace(scale=1.0)) == Cost(Fraction(1), Fraction(0))
    assert four.cost(events.ApproximateDP(0.1, 1e-10)) == Cost(Fraction(1, 10), Fraction("1e-10"))
    pure = Filter.at("basic", epsilon=Fraction(4), delta=Fraction(0))
    assert not pure.holds(pure.cost(events.Gaussian(5.0)))
    assert pure.holds(pure.cost(events.DiscreteLaplace(scale=1.0, count=4)))


def test_what_no_amount_bounds_ends_a_filter() -> None:
    one = Filter.at("gaussian", epsilon=Fraction(1), delta=Fraction("1e-9"))
    cost = one.cost(events.ApproximateDP(0.5, 1e-3))
    assert (cost.amount, one.used(cost), one.epsilon_of(cost)) == (None, None, None)
    assert not one.holds(cost)
    assert not one.holds(NOTHING_TAKEN + cost)


@pytest.mark.parametrize("delta", ["0", "1e-300", "1e-9", "1/3"])
@pytest.mark.parametrize("epsilon", ["1e-6", "1", "1000000"])
def test_a_portfolio_stays_within_its_delta(epsilon: str, delta: str) -> None:
    portfolio = Portfolio.standard(epsilon=Fraction(epsilon), delta=Fraction(delta))
    assert sum(one.delta for one in portfolio.filters) <= Fraction(delta)
    assert len(portfolio.filters) == (1 if Fraction(delta) < Fraction("1e-290") else 5)
    for one in portfolio.filters:
        assert one.holds(NOTHING_TAKEN)
        assert not one.holds(Cost(one.limit + 1, Fraction(0)))
        assert not one.holds(Cost(Fraction(0), one.failure + Fraction("1e-400")))
        if one.limit:
            at = one.epsilon_of(Cost(one.limit, Fraction(0)))
            assert at is not None
            assert float(at) == pytest.approx(float(Fraction(epsilon)), rel=1e-6)


def test_portfolios_that_are_none() -> None:
    one = Filter.at("basic", epsilon=Fraction(1), delta=Fraction("1e-9"))
    with pytest.raises(AccountingError, match="add up"):
        Portfolio(Fraction(1), Fraction("1.5e-9"), (one, one))
    with pytest.raises(AccountingError, match="needs filters"):
        Portfolio(Fraction(1), Fraction("1e-9"), ())
    with pytest.raises(AccountingError, match="above 1"):
        Filter.at("renyi", epsilon=Fraction(1), delta=Fraction("1e-9"), order=Fraction(1))


# --- Guards of accounts and filters: what is no number, or none that is finite, is never admitted


ODD: list[Any] = [math.nan, math.inf, -math.inf]


def account(mu: float = 1.0) -> GaussianAccount:
    return GaussianAccount(mu, Noise(bytes(32)))


@pytest.mark.parametrize("odd", ODD)
def test_the_account_of_a_synthesis(odd: float) -> None:
    """A total that was NaN was not above the limit, nor was any that came after it."""
    with pytest.raises(AccountingError, match="an account is of a finite mu"):
        account(odd)
    one = account()
    for name, act in (
        ("spent", lambda: one._spend("step", odd, 1)),
        ("negative", lambda: one._spend("step", -0.1, 1)),
        ("scale", lambda: one.pick("p", Candidates(np.zeros(2, np.int64), scale=1.0), scale=odd, allowed=bool)),
    ):
        with pytest.raises(AccountingError):
            act()
        assert (one.lines, one.draws) == ([], 0), name
    one._spend("all", 1.0, 1)
    with pytest.raises(AccountingError, match="over its account"):
        one._spend("more", 1e-9, 1)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", ["basic", "gaussian"])
def test_a_filter(kind: Any, odd: float) -> None:
    found = Filter.at(kind, epsilon=Fraction(1), delta=Fraction("1e-6"))
    assert found.holds(Cost(Fraction(0), Fraction(0)))
    if odd > 0 or math.isnan(odd):  # a cost below 0 is a matter of Fraction and of the events
        assert not found.holds(Cost(odd, Fraction(0)))
        assert not found.holds(Cost(Fraction(0), odd))
    assert not dataclasses.replace(found, limit=math.nan).holds(Cost(Fraction(0), Fraction(0)))
    if not odd < 0:
        with pytest.raises(AccountingError):
            Portfolio(Fraction(1), Fraction("1e-6"), (dataclasses.replace(found, delta=odd),))
    for make in (Cost.from_json, Fraction):  # what the ledger stores is exact
        with pytest.raises((ValueError, OverflowError)):
            make([str(odd), "0"] if make == Cost.from_json else odd)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_the_ledger(odd: Any) -> None:
    portfolio = Portfolio.standard(epsilon=Fraction(1), delta=Fraction("1e-6"))
    price = Price(tuple(Cost(odd, Fraction(0)) for _ in portfolio.filters), odd)
    assert Sums.of(portfolio, ()).costs_of(portfolio, price) is None


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_plan(odd: float, tmp_path: Path) -> None:
    plan = make_plan(HISTOGRAM.spec(tmp_path, privacy__limit=5))
    refuse(plan)
    plan.__dict__["epsilon"] = odd
    with pytest.raises(GuaranteeRefused, match="above 27"):
        refuse(plan)
    plan.__dict__["kind"] = "lid"  # not about epsilon; the limit of the spec is
    with pytest.raises(GuaranteeRefused):
        refuse(plan)
    for lost in (10**30, math.inf, math.nan):
        with pytest.raises((SpecError, AccountingError)):
            GaussianPlan.of(epsilon=1.0, delta=1e-6, draws=lost)  # type: ignore[arg-type]
