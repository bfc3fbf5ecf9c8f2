"""From noisy counts to probabilities: projections, shrinkage, raking, and the network they make."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import integer_schema

from dpdist.families.base.calibration import project
from dpdist.families.base.network import Network
from dpdist.families.deniability import estimation
from dpdist.families.deniability.estimation import estimate_network, fit, pool, rake, shrink
from dpdist.families.deniability.parameters import NoisyTables, count_tables, exact_tables
from dpdist.families.deniability.structure import Structure
from dpdist.privacy.noise import Noise


def test_shrinkage_follows_the_noise():
    random = np.random.default_rng(0)
    predicted = random.gamma(1.0, 50.0, (20, 30))
    noisy = predicted + random.normal(0, 30, predicted.shape)
    np.testing.assert_allclose(shrink(predicted, noisy, 0.0), noisy)
    np.testing.assert_allclose(shrink(predicted, noisy, 1e12), predicted, atol=1e-3)
    # All of the difference is noise: little of it is kept. None of it is: nearly all is.
    moved = np.abs(shrink(predicted, noisy, 900.0) - predicted).mean()
    assert moved < 0.35 * np.abs(noisy - predicted).mean()
    moved = np.abs(shrink(predicted, noisy, 9.0) - predicted).mean()
    assert moved > 0.9 * np.abs(noisy - predicted).mean()


def test_raking_reaches_consistent_margins():
    random = np.random.default_rng(2)
    truth, start = random.random((3, 4, 5)) + 0.1, random.random((3, 4, 5)) + 0.1
    targets = [((1,), truth.sum(axis=1, keepdims=True)), ((0,), truth.sum(axis=0, keepdims=True))]
    raked = start
    for _ in range(30):
        raked = rake(raked, targets, truth.sum(-1, keepdims=True))
    for axes, target in targets:
        np.testing.assert_allclose(raked.sum(axis=axes, keepdims=True), target, rtol=1e-8)
    np.testing.assert_allclose(raked.sum(-1), truth.sum(-1), rtol=1e-8)


def _sparse_table(seed: int):
    """A conditional table with sparse rows, its noisy counts, and the noise variance."""
    random = np.random.default_rng(seed)
    base = random.dirichlet(np.full(80, 0.1))
    first, second = random.gamma(2.0, 1.0, (6, 80)), random.gamma(2.0, 1.0, (5, 80))
    probability = base * first[:, None, :] * second[None, :, :]
    probability /= probability.sum(-1, keepdims=True)
    rows = random.dirichlet(np.ones(30)) * 20_000
    counts = random.poisson(probability.reshape(30, 80) * rows[:, None])
    scale = 15.0
    noise = random.geometric(-np.expm1(-1 / scale), (2, 30, 80))
    return counts, counts + noise[0] - noise[1], 2 * scale**2


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_beats_clipping_at_zero(seed):
    counts, noisy, variance = _sparse_table(seed)
    expected = counts.sum(axis=1).astype(float)

    def error(table):
        conditional = table / table.sum(axis=1, keepdims=True)
        truth = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        row = counts.sum(axis=1) / counts.sum()
        cells = np.abs(conditional - truth).sum(axis=1) @ row / 2
        pair = np.abs(((conditional - truth) * row[:, None]).reshape(6, 5, 80).sum(axis=1)).sum() / 2
        return cells, pair

    fitted = error(fit(noisy.astype(float), variance, expected=expected, sizes=(6, 5), prior=0.01))
    clipped = error(np.maximum(noisy, 0) + 1e-9)
    projected = error(project(noisy, total=counts.sum()) + 1e-9)
    assert fitted[0] < 0.6 * clipped[0]
    assert fitted[1] < 0.5 * clipped[1]
    assert fitted[0] < 0.8 * projected[0]
    assert fitted[1] < 0.8 * projected[1]


def test_without_noise_the_fit_is_the_dirichlet_posterior_mean():
    counts, _, _ = _sparse_table(0)
    rows = counts.sum(axis=1).astype(float)
    fitted = fit(counts.astype(float), 0.0, expected=rows, sizes=(6, 5), prior=1e-6)
    seen = rows > 0
    conditional = fitted[seen] / fitted[seen].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(conditional, counts[seen] / rows[seen, None], atol=1e-5)


def test_generated_records_have_the_counts_given_each_parent_although_parents_are_generated_independent():
    random = np.random.default_rng(5)
    joint = random.dirichlet(np.ones(12)).reshape(3, 4)  # of the parents, in the data
    child = random.dirichlet(np.ones(6), (3, 4))
    table = (joint[..., None] * child * 1e6).round().reshape(12, 6)
    generated = (joint.sum(1)[:, None] * joint.sum(0)).ravel() * table.sum()  # the network has no edge between them
    fitted = fit(table, 0.0, expected=generated, sizes=(3, 4), prior=1e-9)
    conditional = fitted / fitted.sum(axis=1, keepdims=True)
    made = (conditional * generated[:, None]).reshape(3, 4, 6)
    plain = (table / table.sum(axis=1, keepdims=True) * generated[:, None]).reshape(3, 4, 6)
    for axis in (0, 1):
        truth = table.reshape(3, 4, 6).sum(axis=axis)
        assert np.abs(made.sum(axis=axis) - truth).sum() < 0.05 * np.abs(plain.sum(axis=axis) - truth).sum()


def test_the_prior_makes_every_value_possible():
    counts, noisy, variance = _sparse_table(1)
    fitted = fit(noisy.astype(float), variance, expected=counts.sum(axis=1) * 1.0, sizes=(6, 5), prior=0.1)
    assert (fitted > 0).all()
    strong = fit(noisy.astype(float), variance, expected=counts.sum(axis=1) * 1.0, sizes=(6, 5), prior=1e7)
    conditional = strong / strong.sum(axis=1, keepdims=True)
    assert conditional.min() > 0.05 / 80 * 0.99  # the even share of the prior


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_noisy_table_gives_a_valid_posterior(seed):
    random = np.random.default_rng(seed)
    sizes = tuple(random.integers(1, 4, random.integers(0, 4)).tolist())
    rows, values = int(np.prod(sizes, dtype=int)), int(random.integers(1, 6))
    table = random.normal(0, 10.0 ** random.integers(0, 5), (rows, values)).round()
    expected = np.maximum(random.normal(0, 100, rows), 0)
    posterior = fit(table, float(random.choice([0.0, 1.0, 1e6])), expected=expected, sizes=sizes, prior=0.01)
    assert posterior.shape == table.shape
    assert np.isfinite(posterior).all()
    assert (posterior > 0).all()


SIZES, WIDTHS = (6, 4, 5, 3), (2, 1, 1, 1)
SCHEMA = integer_schema(SIZES, WIDTHS)
MAPS = [attribute.bucket_map for attribute in SCHEMA.attributes]
STRUCTURE = Structure(
    cardinalities=SIZES, bucket_counts=(3, 4, 5, 3), parents=((1,), (), (0, 1), (0, 1, 2)), order=(1, 0, 2, 3)
)


@pytest.fixture(scope="module")
def counts():
    """Counts of records drawn along the structure."""
    random = np.random.default_rng(11)
    n = 40_000
    b = random.integers(0, 4, n)
    a = np.minimum((b + random.integers(0, 4, n)), 5)
    c = np.where(random.random(n) < 0.7, (a // 2 + b) % 5, random.integers(0, 5, n))
    d = np.where(random.random(n) < 0.6, (a // 2 + b + c) % 3, random.integers(0, 3, n))
    codes = [column.astype(np.uint8) for column in (a, b, c, d)]
    return count_tables(codes, structure=STRUCTURE, bucket_maps=MAPS)


def _noisy(counts, scale, seed):
    exact = exact_tables(counts, STRUCTURE)
    noise = Noise(bytes([seed]) * 32)
    tables = tuple(
        table + noise.discrete_laplace(f"x/{i}", table.size, scale=scale).reshape(table.shape)
        for i, table in enumerate(exact.tables)
    )
    return NoisyTables(noise="laplace", scales=(scale,) * 4, tables=tables)


def _probabilities(network: Network, i: int) -> np.ndarray:
    rows, values = network.configurations(i), network.cardinalities[i]
    grid = np.array(list(product(range(rows), range(values))))
    return np.exp(network.log_probability(i, grid[:, 0], grid[:, 1])).reshape(rows, values)


def test_without_noise_the_network_has_the_frequencies(counts, monkeypatch):
    exact = exact_tables(counts, STRUCTURE)
    monkeypatch.setattr(estimation, "PRIOR", 1e-6)
    network = estimate_network(exact, STRUCTURE, SCHEMA, noise=Noise(bytes(32)))
    assert (network.parents, network.order) == (STRUCTURE.parents, STRUCTURE.order)
    for i, table in enumerate(exact.tables):
        truth = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        weight = table.sum(axis=1) / table.sum()
        error = np.abs(_probabilities(network, i) - truth).sum(axis=1) @ weight / 2
        assert error < 0.01


def test_posterior_samples_scatter_around_the_mean(counts):
    noisy = _noisy(counts, 5.0, 4)
    mean = _probabilities(estimate_network(noisy, STRUCTURE, SCHEMA, noise=Noise(bytes(32))), 1)[0]
    total = 40_000
    scores = []
    for key in range(30):
        network = estimate_network(noisy, STRUCTURE, SCHEMA, noise=Noise(bytes([key]) * 32), estimate="sample")
        scores.append((_probabilities(network, 1)[0] - mean) / np.sqrt(mean * (1 - mean) / total))
    assert 0.7 < np.std(scores) < 1.4
    assert abs(np.mean(scores)) < 1.0


def test_pooling_lowers_the_error_of_the_margins(counts):
    exact = [table.astype(float) for table in exact_tables(counts, STRUCTURE).tables]
    before = after = 0.0
    for seed in range(30):
        noisy = _noisy(counts, 10.0, seed)
        raw = [table.astype(float) for table in noisy.tables]
        pooled = pool(raw, noisy.variances, STRUCTURE, MAPS)
        before += sum(np.abs(a.sum(0) - b.sum(0)).sum() for a, b in zip(raw, exact, strict=True))
        after += sum(np.abs(a.sum(0) - b.sum(0)).sum() for a, b in zip(pooled, exact, strict=True))
        # Tables without common attributes in others are left alone: attribute 3 has no children.
        np.testing.assert_allclose(pooled[3], raw[3], atol=1e-9)
    assert after < 0.95 * before
    for a, b in zip(pool(exact, (0.0,) * 4, STRUCTURE, MAPS), exact, strict=True):
        np.testing.assert_array_equal(a, b)
