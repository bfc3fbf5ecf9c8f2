"""Stage 1: scales, kernel densities, Latin hypercube, matching, and what is disclosed."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gaussian_kde, norm

from dpdist.data.records import slices
from dpdist.errors import CheckFailed, SpecError
from dpdist.families.prediction.columns import Scale, snapped, to_units
from dpdist.families.prediction.first_stage import (
    BANDWIDTHS,
    CELLS,
    FIRST_STAGES,
    FOLDS,
    PAPER_BANDWIDTHS,
    Target,
    cell_count,
    cell_counts,
    correlation,
    fit_marginal,
    generator,
    latin_hypercube,
    likelihoods,
    nearest_correlation,
    score_sums,
    silverman,
    smooth,
)
from dpdist.families.prediction.lid import inputs
from dpdist.families.prediction.lid.method import ALPHAS, BlockLayout, Disclosure, Method, largest_alpha, shuffled
from dpdist.families.prediction.spec import FIRST_STAGE_NAMES
from dpdist.privacy.noise import Noise
from dpdist.spec.kinds import load_hook

UNIT = Scale(name="x", low=0, high=1)
AGE = Scale(name="age", low=18, high=64, discrete=True)
MONEY = Scale(name="money", low=-1e5, high=1e7, log=10.0)
NOISE = Noise(bytes(range(32)))


@given(st.lists(st.floats(-2e5, 2e7), min_size=1, max_size=30))
def test_scales_go_back_and_forth_within_bounds(values: list[float]) -> None:
    array = np.array(values)
    for scale in (Scale(name="a", low=-1e5, high=1e7), MONEY):
        units = scale.units(array)
        assert ((units >= 0) & (units <= 1)).all()
        assert np.allclose(scale.values(units), np.clip(array, scale.low, scale.high), rtol=1e-6, atol=1e-6)


def test_discrete_scales_hold_every_value_in_the_middle_of_its_cell() -> None:
    ages = np.arange(18, 65)
    units = AGE.units(ages)
    assert np.allclose(units, (np.arange(47) + 0.5) / 47)
    assert (AGE.values(units) == ages).all()
    assert (AGE.values(units + 0.4 / 47) == ages).all()
    assert snapped([AGE], np.array([[0.0], [1.0]])).ravel() == pytest.approx([0.5 / 47, 46.5 / 47])
    assert (np.searchsorted(AGE.edges(47), ages, side="right") == np.arange(47)).all()
    amounts = Scale(name="n", low=0, high=999, discrete=True, log=1.0)
    assert (amounts.values(amounts.units(np.arange(1000))) == np.arange(1000)).all()


def counts_of(units: np.ndarray, scale: Scale = UNIT) -> np.ndarray:
    return cell_counts(units, np.arange(len(units)) % FOLDS, cell_count(scale))


def test_binned_density_is_the_kernel_density_with_reflection() -> None:
    rng = np.random.default_rng(1)
    values = rng.beta(2, 5, 400)
    counts, h = counts_of(values), 0.03
    binned = smooth(counts.sum(axis=0), [h])[0] * CELLS / 400
    middles = (np.arange(CELLS) + 0.5) / CELLS
    both = np.concatenate([values, -values, 2 - values])
    exact = 3 * gaussian_kde(both, bw_method=h / both.std(ddof=1))(middles[::64])
    assert np.abs(binned[::64] - exact).max() < 0.01
    assert smooth(counts.sum(axis=0), BANDWIDTHS * 0.1).sum(axis=1) == pytest.approx(400)


def test_the_bandwidth_has_the_largest_held_out_likelihood() -> None:
    values = np.clip(np.random.default_rng(2).normal(0.5, 0.1, 500), 0, 1)
    counts = counts_of(values)
    grid = BANDWIDTHS * silverman(counts.sum(axis=0))
    brute = []
    for h in grid:
        total = 0.0
        for fold in range(FOLDS):
            held, rest = values[np.arange(500) % FOLDS == fold], values[np.arange(500) % FOLDS != fold]
            total += np.log(np.maximum(norm.pdf((held[:, None] - rest) / h).mean(axis=1) / h, 1e-6)).sum()
        brute.append(total)
    assert np.argmax(likelihoods(counts, grid)) == np.argmax(brute)
    assert fit_marginal(counts, UNIT).bandwidth == pytest.approx(grid[np.argmax(brute)])
    assert silverman(counts.sum(axis=0)) == pytest.approx(0.9 * 0.1 * 500**-0.2, rel=0.15)


def test_the_papers_density_is_cut_at_the_ends_and_smooths_more() -> None:
    values = np.random.default_rng(1).beta(2, 5, 400)
    counts = counts_of(values)
    middles = (np.arange(0, CELLS, 64) + 0.5) / CELLS
    for h in (0.05, 0.5, 2.0):
        exact = norm.pdf((middles[:, None] - values) / h).mean(axis=1) / h
        assert smooth(counts.sum(axis=0), [h], cut=True)[0][::64] * CELLS / 400 == pytest.approx(exact, abs=1e-3)
    ours, paper = fit_marginal(counts, UNIT), fit_marginal(counts, UNIT, paper=True)
    assert paper.bandwidth in PAPER_BANDWIDTHS
    assert np.abs(paper.cdf(middles) - ours.cdf(middles)).max() < 0.02  # 0.05, the least, is about Silverman's here
    narrow = counts_of(0.4 + values / 100)
    assert fit_marginal(narrow, UNIT, paper=True).bandwidth == 0.05 > fit_marginal(narrow, UNIT).bandwidth
    assert paper.cumulative[-1] == 1.0
    assert paper.cdf(paper.inverse(middles)) == pytest.approx(middles)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([UNIT, AGE]))
def test_the_inverse_undoes_the_distribution_function(seed: int, scale: Scale) -> None:
    rng = np.random.default_rng(seed)
    units = scale.snap(rng.beta(0.5, 2, 200))
    marginal = fit_marginal(counts_of(units, scale), scale)
    assert marginal.inverse(marginal.cdf(units)) == pytest.approx(units, abs=1e-6)
    uniforms = np.sort(rng.random(100))
    assert (np.diff(marginal.inverse(uniforms)) >= 0).all()


def test_discrete_columns_keep_their_masses_and_categories_are_not_smoothed() -> None:
    scale = Scale(name="c", low=0, high=3, discrete=True, nominal=True)
    units = (np.repeat(np.arange(4), [10, 0, 30, 60]) + 0.5) / 4
    marginal = fit_marginal(counts_of(units, scale), scale)
    assert np.diff(marginal.cumulative) == pytest.approx([0.1, 0, 0.3, 0.6])
    drawn = scale.values(marginal.inverse(np.random.default_rng(0).random(20_000)))
    assert np.bincount(drawn.astype(int), minlength=4) / 20_000 == pytest.approx([0.1, 0, 0.3, 0.6], abs=0.02)
    with pytest.raises(ValueError, match="no records"):
        fit_marginal(np.zeros((FOLDS, 4), np.int64), scale)


def target(rows: int = 4000, seed: int = 3) -> tuple[np.ndarray, Target]:
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal([0, 0, 0], [[1, 0.8, -0.3], [0.8, 1, 0], [-0.3, 0, 1]], rows)
    units = np.stack([norm.cdf(z[:, 0]) ** 2, norm.cdf(z[:, 1]), (np.floor(norm.cdf(z[:, 2]) * 5) + 0.5) / 5], axis=1)
    scales = (UNIT, UNIT, Scale(name="k", low=0, high=4, discrete=True))
    marginals = tuple(fit_marginal(counts_of(units[:, i], s), s) for i, s in enumerate(scales))
    return units, Target(marginals, correlation(score_sums(units, marginals)))


def test_score_sums_are_exact_for_any_cut() -> None:
    units, made = target()
    whole = score_sums(units, made.marginals)
    parts = score_sums(units[:1], made.marginals) + score_sums(units[1:], made.marginals)
    assert (whole == parts).all()
    scores = np.stack([m.scores(units[:, i]) for i, m in enumerate(made.marginals)], axis=1)
    assert correlation(whole) == pytest.approx(np.corrcoef(scores, rowvar=False), abs=1e-3)


def test_latin_hypercube_meets_marginals_and_correlation() -> None:
    units, made = target()
    drawn = latin_hypercube(made, 4000, np.random.default_rng(5))
    for i in range(3):
        grid = np.linspace(0.05, 0.95, 10)
        empirical = (drawn[:, i][:, None] <= grid).mean(axis=0)
        assert empirical == pytest.approx((units[:, i][:, None] <= grid).mean(axis=0), abs=0.02)
    ranks = np.argsort(np.argsort(drawn[:, :2], axis=0), axis=0)
    true = np.argsort(np.argsort(units[:, :2], axis=0), axis=0)
    assert np.corrcoef(ranks.T)[0, 1] == pytest.approx(np.corrcoef(true.T)[0, 1], abs=0.02)
    # Each column of an uncorrelated hypercube has one value in each of n strata.
    flat = Target((fit_marginal(np.ones((FOLDS, CELLS), np.int64), UNIT),) * 2, np.eye(2))
    column = np.sort(latin_hypercube(flat, 8, np.random.default_rng(1))[:, 0])
    assert np.abs(column - (np.arange(8) + 0.5) / 8).max() < 1 / 8


def test_every_first_stage_stays_in_the_unit_cube() -> None:
    _, made = target(500)
    assert tuple(FIRST_STAGES) == FIRST_STAGE_NAMES
    for draw in FIRST_STAGES.values():
        rows = draw(made, 300, np.random.default_rng(0))
        assert rows.shape == (300, 3)
        assert ((rows >= 0) & (rows <= 1)).all()
        assert np.array_equal(rows, draw(made, 300, np.random.default_rng(0)))


def test_nearest_correlation_is_one() -> None:
    bad = np.array([[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]])
    made = nearest_correlation(bad)
    assert np.linalg.eigvalsh(made).min() > 0
    assert np.diag(made) == pytest.approx(1)


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32))
def test_exact_matching_is_the_best_of_all_permutations(rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.random((rows, width)), rng.random((rows, width))
    cost = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    best = min(cost[np.arange(rows), list(p)].sum() for p in permutations(range(rows)))
    assert cost[np.arange(rows), inputs.match_exactly(a, b)].sum() == pytest.approx(best)


@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 2**32))
def test_greedy_matching_takes_the_nearest_row_that_is_left(rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.random((rows, width)), rng.random((rows, width))
    left = list(range(rows))
    for row, place in enumerate(inputs.match_greedily(a, b)):
        assert place == min(left, key=lambda one: float(((a[row] - b[one]) ** 2).sum()))
        left.remove(place)


@given(st.integers(1, 300), st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_blockwise_matching_uses_every_row_once(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = inputs.match(rng.random((rows, 2)), rng.random((rows, 2)), exact_rows=16, block_rows=16)
    assert (np.sort(places) == np.arange(rows)).all()


def test_blockwise_matching_costs_little_more_than_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((1500, 3)), rng.random((1500, 3))

    def cost(places: np.ndarray) -> float:
        return float(((a - b[places]) ** 2).sum())

    exact, blocks = cost(inputs.match_exactly(a, b)), cost(inputs.match(a, b, exact_rows=1000))
    assert exact <= blocks < 2 * exact
    assert blocks < 0.05 * cost(inputs.match(a, b, method="independent"))
    greedy = inputs.match(a, b, method="greedy")
    assert exact < cost(greedy) < 20 * exact
    assert (np.sort(inputs.match(a, b, method="greedy", exact_rows=1000)) == np.arange(1500)).all()


def test_closed_form_and_its_inverse() -> None:
    for lid in (0.01, 0.04, 0.3, 0.9):
        for d in (1, 3, 10):
            eta = 0.2 * (1 - (1 - lid) ** (1 / d)) / 2
            alpha = largest_alpha(lid, eta=eta, columns=d)
            assert alpha is not None
            assert alpha == pytest.approx(1 - 2 * eta / (1 - (1 - lid) ** (1 / d)), abs=1e-5)
            assert 1 - (1 - 2 * eta / (1 - alpha)) ** d == pytest.approx(lid, rel=1e-4)
    assert largest_alpha(0.01, eta=0.01, columns=3) is None
    # The exponent -d of the paper would give a negative number.
    assert 1 - (1 - 0.04) ** (-1 / 3) < 0


def test_the_closed_form_holds_for_independent_rows_and_not_for_matched_ones() -> None:
    rng = np.random.default_rng(0)
    x, s = rng.random((2000, 3)), rng.random((2000, 3))
    eta, alpha = 0.01, 0.2
    method = Method(scales=(UNIT,) * 3, disclosure=Disclosure(lid=1, eta=eta, columns=(0, 1, 2)))
    bound = 1 - (1 - 2 * eta / (1 - alpha)) ** 3

    def measured(synthetic: np.ndarray) -> float:
        return float((np.abs(inputs.mix(x, synthetic, alpha=alpha) - x) <= eta).any(axis=1).mean())

    independent, matched = measured(s), measured(s[inputs.match(x, s)])
    assert 0.8 * bound < independent < bound + 0.015
    assert matched > 3 * bound
    (counts,) = inputs.near_counts(method, (x, np.zeros(2000)), s)
    assert counts[20] == round(independent * 2000)
    assert counts[-1] == 2000
    assert (np.diff(counts) >= 0).all()


def test_alpha_is_the_largest_within_the_bound() -> None:
    counts = np.arange(101) * 10
    method = Method(scales=(UNIT,), disclosure=Disclosure(lid=0.25, eta=0.01, columns=(0,)))
    assert method.alphas == ALPHAS
    assert inputs.disclosed(method, counts[None], [1000]).alpha == 0.25
    wide = Method(scales=(UNIT,), disclosure=Disclosure(lid=0.25, eta=0.10975, columns=(0,)))
    assert wide.most_alpha == pytest.approx(0.122, abs=1e-5)
    assert inputs.disclosed(wide, counts[None] // 10, [1000]).alpha == 0.12  # the closed form is the bound
    with pytest.raises(CheckFailed, match="even with alpha 0"):
        inputs.disclosed(method, counts[None] + 500, [1000])
    fixed = Method(scales=(UNIT,), disclosure=Disclosure(lid=0.25, eta=0.01, columns=(0,)), alpha=0.5)
    assert inputs.disclosed(fixed, np.array([[250]]), [1000]).alpha == 0.5
    with pytest.raises(CheckFailed, match=r"lower prediction\.alpha"):
        inputs.disclosed(fixed, np.array([[251]]), [1000])


def test_kept_columns_stay_and_categories_are_not_mixed() -> None:
    scales = (UNIT, Scale(name="c", low=0, high=1, discrete=True, nominal=True), AGE)
    method = Method(scales=scales, disclosure=Disclosure(lid=1, eta=0.01, columns=(0,)), kept=(2,))
    original = to_units(scales, [np.array([0.0, 1.0]), np.array([0, 1]), np.array([20, 30])])
    synthetic = np.array([[1.0, 0.75], [0.0, 0.25]])
    mixed = inputs.mixed_rows(method, original, synthetic, alpha=0.25)
    assert mixed == pytest.approx(np.array([[0.75, 0.75, original[0, 2]], [0.25, 0.25, original[1, 2]]]))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 30), st.integers(1, 50))
def test_blocks_and_parts_cover_every_row_once(sizes: list[int], block_rows: int, rows_per_part: int) -> None:
    layout = BlockLayout(sum(sizes), block_rows)
    cut = [piece for block in slices(sizes, block_rows) for piece in block]
    assert [row for i, a, b in cut for row in range(sum(sizes[:i]) + a, sum(sizes[:i]) + b)] == list(range(sum(sizes)))
    parts = layout.parts(rows_per_part)
    taken = sorted((b, row) for part in parts for b, first, last in part for row in range(first, last))
    assert taken == [(b, row) for b, size in enumerate(layout.sizes) for row in range(size)]
    assert [sum(b - a for _, a, b in part) for part in parts[:-1]] == [rows_per_part] * (len(parts) - 1)


def test_parts_take_evenly_from_all_blocks() -> None:
    for part in BlockLayout(100_000, 10_000).parts(5_000):
        assert {b for b, _, _ in part} == set(range(10))
        assert all(abs(last - first - 500) <= 1 for _, first, last in part)


def test_orders_and_generators_are_keyed() -> None:
    assert (np.sort(shuffled(NOISE, "a", 100)) == np.arange(100)).all()
    assert (shuffled(NOISE, "a", 100) != shuffled(NOISE, "b", 100)).any()
    assert generator(NOISE, "g", 1).random() == generator(NOISE, "g", 1).random()
    assert generator(NOISE, "g", 1).random() != generator(NOISE, "g", 2).random()


def test_hooks_are_found_or_refused() -> None:
    assert load_hook("math:sqrt", setting="x")(4) == 2
    for bad in ("math:nothing", "no.such.module:f", "math:pi"):
        with pytest.raises(SpecError, match=r"prediction\.first_stage"):
            load_hook(bad, setting="prediction.first_stage")
