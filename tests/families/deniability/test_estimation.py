"""From noisy counts to probabilities: projections, shrinkage, raking, and the network they make."""

import io
import math
from fractions import Fraction
from itertools import accumulate, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import integer_schema

from dpdist.errors import UnreadableFile
from dpdist.families.base.calibration import project
from dpdist.families.base.network import WEIGHT_BITS, Network, draw, thresholds_from_weights
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


# --- The network against brute force on small domains


WORD = 1 << 64


def _probability(network: Network, i: int, row: int, value: int) -> Fraction:
    ends = [0, *map(int, network.thresholds[i][row]), WORD]
    return Fraction(ends[value + 1] - ends[value], WORD)


@pytest.mark.parametrize("seed", range(5))
def test_configuration_is_mixed_radix_with_the_first_parent_most_significant(seed, random_network, random_codes):
    sizes = (3, 7, 2, 5, 11)
    network = random_network(seed, sizes, parents=3)
    codes = random_codes(seed, sizes, 500)
    for i, parents in enumerate(network.parents):
        expected = []
        for record in zip(*codes, strict=True):
            index = 0
            for p in parents:
                index = index * network.bucket_counts[p] + int(network.bucket_maps[p][record[p]])
            expected.append(index)
        found = network.configuration(i, codes)
        assert found.dtype == np.int64
        assert found.tolist() == expected
        assert max(expected) < network.configurations(i) == len(network.thresholds[i])


def test_probabilities_sum_to_one_over_all_records(random_network):
    sizes = (3, 4, 2, 3)
    network = random_network(1, sizes)
    records = [np.array(column, np.uint8) for column in zip(*product(*map(range, sizes)), strict=True)]
    total = Fraction(0)
    for k in range(len(records[0])):
        probability = Fraction(1)
        for i in range(len(sizes)):
            row = int(network.configuration(i, records)[k])
            probability *= _probability(network, i, row, int(records[i][k]))
        total += probability
    assert total == 1


@pytest.mark.parametrize("seed", range(3))
def test_log_probability_is_that_of_the_exact_threshold_differences(seed, random_network):
    network = random_network(seed, (3, 9, 4, 1))
    for i, size in enumerate(network.cardinalities):
        for row in range(network.configurations(i)):
            values = np.arange(size)
            found = network.log_probability(i, np.full(size, row), values)
            exact = [_probability(network, i, row, v) for v in range(size)]
            expected = [math.log(p.numerator) - math.log(p.denominator) for p in exact]
            np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)


def test_log_probability_of_certain_and_impossible_values():
    thresholds = np.array([[0, 0], [0, WORD - 1], [5, 5]], np.uint64)
    network = _two(thresholds)
    rows, values = np.divmod(np.arange(9), 3)
    found = network.log_probability(1, rows, values).reshape(3, 3)
    unit = -64 * math.log(2)
    assert found[0].tolist() == [-math.inf, -math.inf, 0.0]
    assert found[1, 0] == -math.inf
    assert found[1, 1] == pytest.approx(0.0, abs=1e-15)
    assert found[1, 2] == pytest.approx(unit)
    assert found[2, 0] == pytest.approx(unit + math.log(5))
    assert found[2, 1] == -math.inf


def test_damaged_bytes_are_refused(random_network):
    data = random_network(2, (3, 4)).to_bytes()
    other, pickled = io.BytesIO(), io.BytesIO()
    np.savez(other, header=np.frombuffer(b'{"format": "other"}', np.uint8))
    np.savez(pickled, header=np.array([{"a": 1}], dtype=object))
    for bad in (b"", b"not an npz", data[: len(data) // 2], other.getvalue(), pickled.getvalue()):
        with pytest.raises(UnreadableFile, match="begin a new attempt"):
            Network.from_bytes(bad)


def _two(child: np.ndarray) -> Network:
    values = child.shape[1] + 1
    return Network(
        cardinalities=(3, values),
        bucket_maps=(np.arange(3, dtype=np.uint32), np.zeros(values, np.uint32)),
        bucket_counts=(3, 1),
        parents=((), (0,)),
        order=(0, 1),
        thresholds=(thresholds_from_weights(np.ones((1, 3))), child),
    )


# --- Thresholds against exact rational arithmetic, and draws against their definition


def _exact(weights: list[int]) -> list[int]:
    total = sum(weights)
    return [min(WORD * c // total, WORD - 1) for c in list(accumulate(weights))[:-1]]


@given(st.lists(st.integers(0, (1 << WEIGHT_BITS) // 8), min_size=1, max_size=8).filter(any))
def test_integer_weights_are_exact(weights: list[int]) -> None:
    assert thresholds_from_weights(np.array([weights])).tolist() == [_exact(weights)]


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(1e-9, 1.0)), min_size=1, max_size=70).filter(
        any
    )
)
def test_float_weights_follow_the_stated_rounding(weights: list[float]) -> None:
    bits = WEIGHT_BITS - (len(weights) - 1).bit_length()
    exponent = next(e for e in range(-1100, 1100) if max(weights) < Fraction(2) ** e)
    integers = [max(round(Fraction(w) * Fraction(2) ** (bits - exponent)), int(w > 0)) for w in weights]
    assert sum(integers) <= 1 << WEIGHT_BITS
    assert thresholds_from_weights(np.array([weights])).tolist() == [_exact(integers)]


def test_support_is_preserved_and_probabilities_are_close() -> None:
    weights = np.array([[1e-12, 0.0, 3.0, 1.0, 1e-30], [0.0, 0.0, 2.0, 0.0, 5.0]])
    thresholds = thresholds_from_weights(weights)
    ends = np.hstack([np.zeros((2, 1)), thresholds.astype(object), np.full((2, 1), WORD)])
    width = np.diff(ends, axis=1)
    assert ((width > 0) == (weights > 0)).all()
    probabilities = (width / WORD).astype(float)
    np.testing.assert_allclose(probabilities, weights / weights.sum(1, keepdims=True), atol=2.0**-40)


def test_a_row_whose_last_weights_are_zero_leaves_one_unit_to_the_last_value() -> None:
    assert thresholds_from_weights([[1, 0, 0], [0, 4, 0]]).tolist() == [[WORD - 1, WORD - 1], [0, WORD - 1]]


@pytest.mark.parametrize(
    "weights",
    [
        [1.0, 2.0],
        np.empty((2, 0)),
        [[1.0, -1.0]],
        [[np.nan, 1.0]],
        [[np.inf, 1.0]],
        [[0.0, 0.0]],
        [["a", "b"]],
        [[True, False]],
    ],
)
def test_what_is_no_table_of_weights_is_refused(weights: object) -> None:
    with pytest.raises(ValueError, match="weights"):
        thresholds_from_weights(weights)


@pytest.mark.parametrize("weights", [[[1 << 48, 1]], [[1 << 62] * 5]])
def test_integer_weights_that_are_too_large_are_refused(weights: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at most 2\\^48"):
        thresholds_from_weights(np.array(weights))


@pytest.mark.parametrize("values", [2, 3, 5, 64, 257])
def test_draw_counts_the_thresholds_at_most_the_word(values: int) -> None:
    random = np.random.default_rng(values)
    weights = random.integers(0, 3, (40, values)) + (np.arange(values) == values // 2)
    thresholds = thresholds_from_weights(weights)
    row = random.integers(0, 40, 20_000)
    words = random.integers(0, WORD, 20_000, dtype=np.uint64)
    edge = thresholds[row[:9_000], random.integers(0, values - 1, 9_000)]  # at, below and above a threshold
    words[:9_000] = edge - np.tile(np.array([0, 1, WORD - 1], np.uint64), 3_000)
    words[9_000:9_002] = [0, WORD - 1]
    drawn = draw(thresholds, row, words)
    assert drawn.dtype == np.min_scalar_type(values - 1)
    np.testing.assert_array_equal(drawn, (thresholds[row] <= words[:, None]).sum(axis=1))


def test_draw_has_the_stated_frequencies_and_would_show_others(chi_square) -> None:
    random = np.random.default_rng(7)
    weights = random.integers(1, 1_000, (3, 30))
    row = np.repeat(np.arange(3), 100_000)
    drawn = draw(thresholds_from_weights(weights), row, random.integers(0, WORD, len(row), dtype=np.uint64))
    seen = np.zeros((3, 30))
    np.add.at(seen, (row, drawn), 1)
    expected = 100_000 * weights / weights.sum(axis=1, keepdims=True)
    other = np.where(np.arange(30) < 15, 1.3, 1.0) * weights
    other = 100_000 * other / other.sum(axis=1, keepdims=True)
    for i in range(3):
        assert chi_square(seen[i], expected[i]) > 1e-20
        assert chi_square(seen[i], other[i]) < 1e-20
