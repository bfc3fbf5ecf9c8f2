"""Random splits against exact enumeration of small adaptive mechanisms."""

import itertools
import math
import time

import numpy as np
import pytest
from privacy.test_gdp import pair_of

from dpdist.privacy import accountant
from dpdist.privacy.deniability import SeedRecords
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace, Gaussian, RandomSplit, SubsampledGaussian
from dpdist.privacy.pair import NOTHING, parallel_pair, split_pair
from dpdist.privacy.pieces import dominating_pair

EPSILONS = np.linspace(0, 3, 61)


def divergences(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """H_{e^eps} at all epsilons."""
    return np.maximum(p[None] - np.exp(EPSILONS)[:, None] * q[None], 0).sum(axis=1)


def noisy_count(count: int, scale: float, top: int = 40) -> np.ndarray:
    """Masses of a count with discrete Laplace noise, clipped to -top .. top."""
    edges = np.arange(-top, top) - count  # Pr[Z <= edge]
    tail = np.exp(-np.where(edges < 0, -edges, edges + 1) / scale) / (1 + math.exp(-1 / scale))
    return np.diff(np.where(edges < 0, tail, 1 - tail), prepend=0.0, append=1.0)


def adaptive(records: tuple[int, ...], shares: tuple[float, ...], scales: tuple[float, ...]) -> np.ndarray:
    """Law of the outputs: stage 1 counts ones in split 1; stage 2 counts ones, or zeros, as stage 1's parity says."""
    total = 0.0
    for coins in itertools.product(range(len(shares)), repeat=len(records)):
        weight = math.prod(shares[coin] for coin in coins)
        ones, zeros = (
            [sum(r == v and c == s for r, c in zip(records, coins, strict=True)) for s in (0, 1)] for v in (1, 0)
        )
        first = noisy_count(ones[0], scales[0])
        second = np.array([noisy_count((ones, zeros)[y % 2][1], scales[1]) for y in range(len(first))])
        total = total + weight * first[:, None] * second
    return np.asarray(total).ravel()


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.2, 0.8), (0.3, 0.3, 0.4)])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.7, 2.5)])
def test_adaptive_counts_stay_below_the_bound_and_attain_it(
    shares: tuple[float, ...], scales: tuple[float, float]
) -> None:
    stages = [(q, DiscreteLaplace(scale)) for q, scale in zip(shares, scales, strict=False)]
    stages += [(q, None) for q in shares[2:]]
    pair = dominating_pair(RandomSplit(tuple(stages)))
    for records in ((), (1,), (0, 1), (1, 1, 0)):
        without = adaptive(records, shares, scales)
        for added in (0, 1):
            with_it = adaptive((*records, added), shares, scales)
            for reverse, found in ((False, divergences(with_it, without)), (True, divergences(without, with_it))):
                bound = pair.hockey_stick(EPSILONS, reverse=reverse)
                assert (found <= bound + 1e-12).all()


def test_the_bound_is_attained_by_counts_that_a_record_changes_for_certain() -> None:
    shares, scales = (0.3, 0.5, 0.2), (1.0, 0.6)
    empty = np.multiply.outer(noisy_count(0, scales[0]), noisy_count(0, scales[1])).ravel()
    first = np.multiply.outer(noisy_count(1, scales[0]), noisy_count(0, scales[1])).ravel()
    second = np.multiply.outer(noisy_count(0, scales[0]), noisy_count(1, scales[1])).ravel()
    one = shares[0] * first + shares[1] * second + shares[2] * empty
    event = RandomSplit(((0.3, DiscreteLaplace(1.0)), (0.5, DiscreteLaplace(0.6)), (0.2, None)))
    pair = dominating_pair(event)
    np.testing.assert_allclose(pair.hockey_stick(EPSILONS), divergences(one, empty), atol=1e-13)
    np.testing.assert_allclose(pair.hockey_stick(EPSILONS, reverse=True), divergences(empty, one), atol=1e-13)


def test_random_adaptive_mechanisms_with_certain_and_impossible_outputs() -> None:
    """Stage 2's mechanism depends on stage 1's output; a stage's pair is the worst over what it may have seen."""
    rng = np.random.default_rng(5)
    closest = 0.0
    for _ in range(300):
        masses = rng.dirichlet(np.ones(3), size=(2, 4))  # with or without the record; stage 1, stage 2 after 3 outputs
        masses[rng.random(masses.shape) < 0.15] = 0
        masses += 1e-300
        masses /= masses.sum(axis=-1, keepdims=True)
        masses[masses < 1e-200] = 0
        (p1, p2), (q1, q2) = ((m[0], m[1:]) for m in masses)
        share = rng.uniform(0.1, 0.9)
        without = (q1[:, None] * q2).ravel()
        with_it = (share * p1[:, None] * q2 + (1 - share) * q1[:, None] * p2).ravel()
        second = parallel_pair([pair_of(p, q) for p, q in zip(p2, q2, strict=True)])
        pair = split_pair([(share, pair_of(p1, q1)), (1 - share, second)])
        for reverse, found in ((False, divergences(with_it, without)), (True, divergences(without, with_it))):
            bound = pair.hockey_stick(EPSILONS, reverse=reverse)
            assert (found <= bound + 1e-12).all()
            closest = max(closest, float((found / np.maximum(bound, 1e-300))[bound > 1e-3].max(initial=0)))
    assert closest > 0.99


def test_poisson_sampling_is_the_split_with_a_free_stage() -> None:
    split, sampled = RandomSplit(((0.3, Gaussian(2.0)), (0.7, None))), SubsampledGaussian(0.3, 2.0)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 1.5):
        exact, found = accountant.delta(sampled, epsilon=epsilon), accountant.delta(split, epsilon=epsilon)
        assert exact * (1 - 1e-4) <= found <= exact * 1.01


RELEASE = RandomSplit(
    (
        (0.3, Composed((DiscreteLaplace(20.0), Gaussian(44.6, 66)), label="structure")),
        (0.3, Gaussian(18.2, 11, label="parameters")),
        (
            0.4,
            Composed(
                (
                    DiscreteLaplace(20.0),
                    DiscreteLaplace(800.0, 40),
                    ApproximateDP(0, 1e-10),
                    SeedRecords(2000, 2, 0.02, 300_000, 10_000),
                ),
                label="seeds",
            ),
        ),
    )
)


def test_a_release_costs_less_than_its_worst_stage() -> None:
    stages: list[tuple[float, Event]] = [(q, event) for q, event in RELEASE.stages if event is not None]
    worst = max(accountant.epsilon(event, delta=1e-9) for _, event in stages)
    assert accountant.epsilon(RELEASE, delta=1e-9) < 0.7 * worst
    for epsilon in (0.0, 0.1, 0.3, 0.6):
        average = sum(q * accountant.delta(event, epsilon=epsilon) for q, event in stages)
        assert accountant.delta(RELEASE, epsilon=epsilon) <= average * (1 + 1e-3)


def test_three_stages_take_less_than_two_seconds_each_way() -> None:
    accountant.epsilon(DiscreteLaplace(3.0, count=2), delta=1e-9)  # imports
    other = RandomSplit(tuple((q, Composed((event, DiscreteLaplace(33.0)))) for q, event in RELEASE.stages))
    start = time.process_time()
    accountant.epsilon(other, delta=1e-9)
    assert time.process_time() - start < 4


def test_releases_compose_over_a_data_set() -> None:
    one = accountant.epsilon(RELEASE, delta=1e-9)
    two = accountant.epsilon(Composed((RELEASE, RELEASE)), delta=1e-9)
    assert one < two < 2 * one


def test_parallel_parts_cost_the_worst_at_every_epsilon() -> None:
    left, right = dominating_pair(ApproximateDP(0.3, 1e-3)), dominating_pair(DiscreteLaplace(1.0))
    both = parallel_pair([left, right])
    for reverse in (False, True):
        worst = np.maximum(left.hockey_stick(EPSILONS, reverse=reverse), right.hockey_stick(EPSILONS, reverse=reverse))
        found = both.hockey_stick(EPSILONS, reverse=reverse)
        assert (found >= worst - 1e-15).all()
        at_losses = np.array([0.0, 0.3, 1.0])
        worst = np.maximum(left.hockey_stick(at_losses), right.hockey_stick(at_losses))
        np.testing.assert_allclose(both.hockey_stick(at_losses, reverse=reverse), worst, atol=1e-15)
    assert parallel_pair([]) is NOTHING
    assert parallel_pair([left]) is left


def test_a_stage_with_a_large_failure_probability_is_accounted() -> None:
    stage = Composed((ApproximateDP(2.0, 0.0), ApproximateDP(0.0, 1e-4)))
    whole = RandomSplit(((0.5, stage), (0.5, None)))
    assert math.log((1 + math.exp(2)) / 2) * 0.99 < accountant.epsilon(whole, delta=1e-3) <= 2


def test_of_two_divisions_among_count_tables_neither_dominates() -> None:
    """By all signs of the losses; so what the tables share is charged as one mechanism, whatever the division is."""

    def exact(*parts: float) -> np.ndarray:
        signs = np.array(list(itertools.product([1, -1], repeat=len(parts))))
        mass = np.prod(1 / (1 + np.exp(-signs * parts)), axis=1)
        return np.maximum(mass[:, None] - np.exp(EPSILONS) * mass[::-1, None], 0).sum(axis=0)

    even, uneven, all_in_one = exact(0.5, 0.5), exact(0.7, 0.3), exact(1.0)
    assert (even > uneven * 1.01).any()
    assert (uneven > even * 1.01).any()
    for t, found in ((0.0, even), (0.2, uneven)):
        share = (1 + math.exp(-1)) / (1 + math.exp(-1) + 2 * math.exp(-0.5) * math.cosh(t))
        np.testing.assert_allclose(found, share * all_in_one + (1 - share) * exact(2 * t), atol=1e-15)
        assert (found <= all_in_one + 1e-15).all()
        pair = dominating_pair(Composed((DiscreteLaplace(1 / (0.5 + t)), DiscreteLaplace(1 / (0.5 - t)))))
        np.testing.assert_allclose(pair.hockey_stick(EPSILONS), found, atol=2e-3)
