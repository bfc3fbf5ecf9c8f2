"""Continuous attributes without bins, enumerated on a grid: resampled ones cost nothing, kept ones let nothing pass."""

import math

import numpy as np
import pytest

from dpdist.privacy.deniability import pass_probability

K, EPSILON0, GAMMA = 3, 0.7, 2.0


def released(seeds: np.ndarray, laws: np.ndarray, density: np.ndarray | None = None) -> np.ndarray:
    """The law of a released record, from each seed's law of its discrete part, float64[kinds, values], and the density
    of the continuous part given it, float64[values, cells]: buckets are relative to that density.
    """
    candidates = laws[seeds]  # of each seed
    buckets = np.floor(-np.log(candidates) / math.log(GAMMA))
    alike = (buckets[:, None, :] == buckets[None, :, :]).sum(axis=1)
    mass = (candidates * pass_probability(alike, k=K, epsilon0=EPSILON0)).sum(axis=0)
    joint = mass / mass.sum()
    return joint if density is None else (joint[:, None] * density).ravel()


def test_a_continuous_attribute_that_is_always_resampled_costs_nothing() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        laws, seeds = rng.dirichlet(np.ones(4), 3), rng.integers(0, 3, 6)
        density = rng.dirichlet(np.full(40, 0.3), 4)  # on a grid of 40 cells, given each value of the discrete part
        more = np.append(seeds, rng.integers(0, 3))
        for alpha in (1.0, 1.2, 2.0, 5.0):
            for one, other in ((seeds, more), (more, seeds)):
                parts = [released(table, laws) for table in (one, other)]
                whole = [released(table, laws, density) for table in (one, other)]
                discrete, all_of_it = (np.maximum(p - alpha * q, 0).sum() for p, q in (parts, whole))
                assert all_of_it == pytest.approx(discrete, abs=1e-12)


def test_a_continuous_attribute_that_is_kept_lets_nothing_pass_as_its_grid_becomes_finer() -> None:
    values, passed = np.random.default_rng(2).random(200), []
    for cells in (5, 50, 10**3, 10**6, 10**9):
        _, codes, counts = np.unique((values * cells).astype(np.int64), return_inverse=True, return_counts=True)
        passed.append(float(pass_probability(counts[codes], k=K, epsilon0=EPSILON0).mean()))
    assert passed == sorted(passed, reverse=True)
    assert passed[-1] == pytest.approx(pass_probability(1, k=K, epsilon0=EPSILON0))
    assert passed[-1] <= math.exp(-EPSILON0 * (K - 1))
