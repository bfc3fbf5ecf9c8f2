"""Junction trees, inference, all pairs and the fit against the full joint table of tiny domains."""

from dataclasses import replace
from itertools import combinations, permutations
from math import prod

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpdist.data.count import marginal
from dpdist.model import conditional, descent
from dpdist.model.conditional import Conditional, KnownRows
from dpdist.model.descent import FactorModel, TableMeasurement, denoised, fit
from dpdist.model.fitted import Fitted, Step, cumulative_of
from dpdist.model.inference import Inference, PairMarginals
from dpdist.model.junction import Graph, JunctionTree, Paths, cells_of, cliques_of
from dpdist.privacy.noise import Noise

CARDS = (2, 2, 3, 3, 4)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[int, int]]:
    return draw(st.lists(st.sampled_from(list(combinations(range(len(CARDS)), 2))), unique=True, max_size=8))


def joint_of(factors: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    joint = np.ones(CARDS)
    for s, table in factors.items():
        joint = joint * table.reshape([CARDS[a] if a in s else 1 for a in range(len(CARDS))])
    return joint / joint.sum()


def least_cells(edges: list[tuple[int, int]], cards: tuple[int, ...]) -> int:
    """Cells of the smallest triangulation, over all orders of elimination."""
    best = prod(cards)
    for order in permutations(range(len(cards))):
        near = {v: {u for edge in edges for u in edge if v in edge and u != v} for v in range(len(cards))}
        cliques: list[set[int]] = []
        for v in order:
            clique = near[v] | {v}
            if not any(clique <= other for other in cliques):
                cliques.append(clique)
            for u in near[v]:
                near[u] = (near[u] | near[v]) - {u, v}
        best = min(best, sum(prod(cards[a] for a in clique) for clique in cliques))
    return best


@given(edges=graphs(), cards=st.sampled_from([CARDS, (2, 20, 20, 20, 20)]))
@example(edges=[(0, 1), (1, 3), (0, 2), (2, 4), (0, 3), (0, 4), (3, 4)], cards=(2, 20, 20, 20, 20))
@settings(deadline=None, max_examples=40)
def test_paths_bound_the_cells_with_an_edge_more(edges: list[tuple[int, int]], cards: tuple[int, ...]) -> None:
    paths = Paths(Graph(cards, edges), cards)
    cliques = cliques_of(cards, edges)
    assert paths.cells == cells_of(cliques, cards)
    for edge in combinations(range(len(cards)), 2):
        assert paths.cells_with(*edge) >= least_cells([*edges, edge], cards)
        if any(set(edge) <= set(clique) for clique in cliques):
            assert paths.cells_with(*edge) == paths.cells


def test_a_cycle_is_closed_through_its_smallest_attribute() -> None:
    """Of the path 0 - 1 - 2 - 3 - 4 and the edge (0, 4), or of two paths."""
    cards = (9, 2, 7, 8, 6)
    paths = Paths(Graph(cards, [(0, 1), (1, 2), (2, 3), (3, 4)]), cards)
    assert paths.cells == 9 * 2 + 2 * 7 + 7 * 8 + 8 * 6
    assert paths.cells_with(0, 4) <= paths.cells + 2 * (7 * 8 + 8 * 6 + 6 * 9)
    assert Paths(Graph(cards, [(0, 1), (2, 3)]), cards).cells_with(1, 3) == 9 * 2 + 7 * 8 + 6 + 2 * 8


@given(edges=graphs())
@settings(deadline=None)
def test_triangulation_and_running_intersection(edges: list[tuple[int, int]]) -> None:
    cliques = cliques_of(CARDS, edges)
    tree = JunctionTree.of(CARDS, cliques)
    assert {a for clique in cliques for a in clique} == set(range(len(CARDS)))
    assert all(any(set(edge) <= set(clique) for clique in cliques) for edge in edges)
    assert cells_of(cliques, CARDS) == sum(prod(CARDS[a] for a in clique) for clique in cliques)
    seen: set[int] = set()
    for j in tree.order:  # what a clique shares with all before it, it shares with its parent
        if tree.parent[j] >= 0:
            assert set(cliques[j]) & seen <= set(cliques[tree.parent[j]])
            assert tree.separators[j] == tuple(sorted(set(cliques[j]) & set(cliques[tree.parent[j]])))
        seen |= set(cliques[j])
    drawn: set[int] = set()
    for j, parents, a in tree.drawing_order():
        assert set(parents) <= drawn
        assert {*parents, a} <= set(cliques[j])
        drawn.add(a)
    assert drawn == set(range(len(CARDS)))


@pytest.mark.parametrize("scale", [1.0, 2.0**-98, 1e-150, 1e-265])
def test_a_value_that_is_unlikely_in_a_tiny_leaf_is_likely_elsewhere(scale: float) -> None:
    """By 48 powers of ten; the quotient of the two would be above the largest float."""
    leaf, root = np.outer([1.0, 1e-48], [0.25, 0.75]), np.outer([1e-48, 1.0], [0.5, 0.25, 0.125, 0.125])
    cards = (2, 2, 4)
    tree = JunctionTree.of(cards, cliques_of(cards, [(0, 1), (0, 2)]))
    beliefs = Inference(tree, [(0, 1), (0, 2)]).beliefs({(0, 1): leaf * scale, (0, 2): root})
    assert beliefs is not None
    joint = leaf[:, :, None] * root[:, None, :]
    for clique, belief in zip(tree.cliques, beliefs, strict=True):
        np.testing.assert_allclose(belief, marginal(joint / joint.sum(), clique), rtol=1e-6)


@pytest.mark.parametrize("scale", [2.0**-k for k in (0, 63, 65, 98, 101)])
def test_quotients_of_the_least_sums_stay_finite(scale: float) -> None:
    leaf = np.array([[0.25, 0.75], [0.0, 1e-279]]) * scale
    root = np.array([[1e-300] * 4, [0.5, 0.25, 0.125, 0.125]])
    tree = JunctionTree.of((2, 2, 4), cliques_of((2, 2, 4), [(0, 1), (0, 2)]))
    beliefs = Inference(tree, [(0, 1), (0, 2)]).beliefs({(0, 1): leaf, (0, 2): root})
    assert beliefs is not None
    assert all(np.isfinite(belief).all() for belief in beliefs)
    assert [belief.sum() for belief in beliefs] == pytest.approx([1, 1])


@given(edges=graphs(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_inference_is_brute_force(edges: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    sets = [*((a,) for a in range(len(CARDS))), *sorted(edges)]
    factors = {s: rng.gamma(0.3, size=[CARDS[a] for a in s]) + 1e-12 for s in sets}
    joint = joint_of(factors)
    tree = JunctionTree.of(CARDS, cliques_of(CARDS, edges))
    inference = Inference(tree, sets)
    beliefs = inference.beliefs(factors)
    assert beliefs is not None
    for clique, belief in zip(tree.cliques, beliefs, strict=True):
        np.testing.assert_allclose(belief, marginal(joint, clique), atol=1e-12)
    for s, table in inference.marginals(beliefs).items():
        np.testing.assert_allclose(table, marginal(joint, s), atol=1e-12)
    pairs = PairMarginals(tree, beliefs).all()
    assert set(pairs) == set(combinations(range(len(CARDS)), 2))
    for pair, table in pairs.items():
        np.testing.assert_allclose(table, marginal(joint, pair), atol=4 * 2.0**-26)  # the grid of their products


def test_impossible_combinations_stay_impossible() -> None:
    possible = np.array([[True, True, False], [False, False, True]])
    tree = JunctionTree.of((2, 3), cliques_of((2, 3), [(0, 1)]))
    share = np.array([0.2, 0.3, 0.5])
    model = fit(tree, [TableMeasurement((1,), share, 1e6)], {(0, 1): possible}, iterations=400)
    (belief,) = model.beliefs
    assert (belief[~possible] == 0).all()
    np.testing.assert_allclose(belief.sum(0), share, atol=1e-3)


def test_vanishing_products_are_reported() -> None:
    tree = JunctionTree.of((2, 2), cliques_of((2, 2), [(0, 1)]))
    inference = Inference(tree, [(0,), (0, 1)])
    factors = {(0,): np.array([1e-200, 1.0]), (0, 1): np.array([[1.0, 1.0], [0.0, 0.0]]) * 1e-200}
    assert inference.beliefs(factors) is None


def test_the_fit_meets_consistent_tables_exactly() -> None:
    rng = np.random.default_rng(3)
    edges = [(0, 1), (1, 2), (2, 3), (1, 3), (3, 4)]
    joint = joint_of({edge: rng.gamma(1.0, size=[CARDS[a] for a in edge]) for edge in edges})
    tree = JunctionTree.of(CARDS, cliques_of(CARDS, edges))
    measurements = [TableMeasurement(edge, marginal(joint, edge), 1e8) for edge in edges]
    model = fit(tree, measurements, {}, iterations=3000)
    for pair, table in PairMarginals(tree, model.beliefs).all().items():
        assert np.abs(table - marginal(joint, pair)).sum() < 2e-3


def test_a_fit_goes_on_from_an_earlier_one_and_weighs_measurements() -> None:
    tree = JunctionTree.of((2, 2), cliques_of((2, 2), [(0, 1)]))
    even, odd = np.full((2, 2), 0.25), np.array([[0.4, 0.1], [0.1, 0.4]])
    both = [TableMeasurement((0, 1), even, 1e6), TableMeasurement((0, 1), odd, 3e6)]
    model = fit(tree, both, {}, iterations=500)
    np.testing.assert_allclose(model.beliefs[0], even / 4 + odd * 0.75, atol=1e-4)
    again = fit(tree, both, {}, iterations=1, start=model)
    assert again.loss <= model.loss * (1 + 1e-9)


def test_a_fit_ends_where_noise_is_all_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    edges = [(0, 1), (1, 2), (2, 3), (1, 3), (3, 4)]
    joint = joint_of({edge: rng.gamma(1.0, size=[CARDS[a] for a in edge]) for edge in edges})
    tree = JunctionTree.of(CARDS, cliques_of(CARDS, edges))
    noisy = [marginal(joint, edge) + rng.normal(0, 0.01, [CARDS[a] for a in edge]) for edge in edges]
    measurements = [TableMeasurement(edge, table, 1e4) for edge, table in zip(edges, noisy, strict=True)]
    evaluations = []
    at = descent._Objective.at
    monkeypatch.setattr(descent._Objective, "at", lambda self, x: evaluations.append(1) or at(self, x))
    losses, calls = [], []
    for plateau in (0.0, 0.05):
        evaluations.clear()
        losses.append(fit(tree, measurements, {}, iterations=500, plateau=plateau).loss)
        calls.append(len(evaluations))
    assert calls[0] == 501
    assert descent.LOOK < calls[1] < 200
    assert losses[0] <= losses[1] <= 1.1 * losses[0]


def test_a_fit_begins_anew_where_an_earlier_model_vanishes_in_larger_cliques() -> None:
    cards, steep = (2, 2, 2, 2), 400.0  # exp(-400) is a float, exp(-800) is not
    first = {
        (0, 1): -steep * np.array([[0.0, 1.0], [0.0, 1.0]]),
        (1, 2): -steep * np.array([[1.0, 2.0], [0.0, 1.0]]),
        (2, 3): -steep * np.array([[1.0, 1.0], [0.0, 0.0]]),
    }
    chain = JunctionTree.of(cards, list(first))
    beliefs = Inference(chain, list(first)).beliefs({s: np.exp(p) for s, p in first.items()})
    assert beliefs is not None
    whole = JunctionTree.of(cards, [(0, 1, 2, 3)])
    assert Inference(whole, list(first)).beliefs({s: np.exp(p) for s, p in first.items()}) is None
    share = np.array([[0.1, 0.2], [0.3, 0.4]])
    measurements = [TableMeasurement(pair, share, 1.0) for pair in [*first, (0, 3)]]
    model = fit(whole, measurements, {}, iterations=50, start=FactorModel(chain, first, beliefs, 1.0, 0.0))
    assert model.beliefs[0].sum() == pytest.approx(1)
    assert model.loss == fit(whole, measurements, {}, iterations=50).loss < 0.1


def test_a_fit_begins_anew_where_an_earlier_model_leaves_nothing() -> None:
    """Noise on a few records makes potentials that contradict each other in floating point, and no belief was left."""
    tree = JunctionTree.of(CARDS, cliques_of(CARDS, [(0, 1), (1, 2)]))
    measurements = [
        TableMeasurement(pair, np.full((2, CARDS[pair[1]]), 1 / 2 / CARDS[pair[1]]), 1.0) for pair in ((0, 1), (1, 2))
    ]
    only = {pair: np.full((2, CARDS[pair[1]]), -2000.0) for pair in ((0, 1), (1, 2))}
    only[0, 1][0, 0] = only[1, 2][1, 0] = 0.0
    start = replace(fit(tree, measurements, {}, iterations=1), potentials=only, step=1e-6)
    model = fit(tree, measurements, {}, iterations=50, start=start)
    assert model.loss < 1e-6
    assert len(model.beliefs) == len(tree.cliques)


def diagonal(strength: float, size: int = 6) -> np.ndarray:
    """Uniform margins, and a diagonal of this strength."""
    return (1 - strength) * np.full((size, size), size**-2.0) + strength * np.eye(size) / size


@pytest.mark.parametrize(("strength", "most"), [(0.0, 0.45), (0.02, 0.5), (0.8, 1.01)])
def test_the_error_falls_where_there_is_little_dependence_and_never_rises(strength: float, most: float) -> None:
    rng, sigma, truth, known = np.random.default_rng(0), 0.01, diagonal(strength), diagonal(0.0)
    before, after = [], []
    for _ in range(200):
        noisy = truth + sigma * rng.normal(size=truth.shape)
        found = denoised(noisy, known, sigma**-2.0)
        before.append(((noisy - truth) ** 2).sum())
        after.append(((found - truth) ** 2).sum())
        for axis in (0, 1):  # the margins are as they were measured
            np.testing.assert_allclose(found.sum(axis), noisy.sum(axis))
    assert np.mean(after) < most * np.mean(before)


def test_a_dependence_of_one_direction_is_told_from_noise_in_all_others() -> None:
    rng, sigma, known = np.random.default_rng(0), 0.001, np.full((30, 20), 1 / 600)
    truth = known * (1 + np.outer(np.linspace(-1, 1, 30), np.linspace(-1, 1, 20)))
    for turned in (False, True):
        noisy = truth + sigma * rng.normal(size=truth.shape)
        found = denoised(noisy.T, known.T, sigma**-2.0).T if turned else denoised(noisy, known, sigma**-2.0)
        assert ((found - truth) ** 2).sum() < 0.35 * ((noisy - truth) ** 2).sum()
    clear = truth + 1e-6 * rng.normal(size=truth.shape)
    np.testing.assert_array_equal(denoised(clear, known, 1e12), clear)


def test_a_table_of_one_value_has_no_dependence() -> None:
    noisy = np.array([[0.3, 0.8]])
    np.testing.assert_array_equal(denoised(noisy, np.array([[0.5, 0.5]]), 100.0), noisy)


# --- Rows of a model given some attributes, beside the joint table of the same model


NONE, NO_WEIGHTS = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
ROWS = 200_000


@pytest.fixture
def fitted() -> Fitted:
    """Four attributes; the last has six values, three of them merged."""
    rng, cards = np.random.default_rng(0), (2, 3, 3, 4)
    steps = (
        Step(0, (), cumulative_of(rng.random((1, 2)))),
        Step(1, (0,), cumulative_of(rng.random((2, 3)))),
        Step(2, (1,), cumulative_of(rng.random((3, 3)))),
        Step(3, (1, 2), cumulative_of(rng.random((9, 4)))),
    )
    values = (np.arange(2), np.arange(3), np.arange(3), np.array([0, 1, -1, 3]))
    rare = (NONE, NONE, NONE, np.array([2, 4, 5]))
    weights = (NO_WEIGHTS, NO_WEIGHTS, NO_WEIGHTS, cumulative_of(np.array([[1.0, 2.0, 3.0]])))
    return Fitted(cards, steps, (0, 1, 2, 3), values, rare, weights, NONE)


@pytest.mark.parametrize("given", [1, 2, 3])
def test_draws_are_those_of_the_joint_table(fitted: Fitted, given: int) -> None:
    found = fitted.conditionals()
    joint = np.einsum("a,ab,bc,bcd->abcd", *(found[s] for s in ((0,), (0, 1), (1, 2), (1, 2, 3))))
    wide = np.zeros((2, 3, 3, 6))
    wide[..., [0, 1, 3]] = joint[..., [0, 1, 3]]
    wide[..., [2, 4, 5]] = joint[..., [2]] * np.array([1, 2, 3]) / 6
    mask = np.ones((ROWS, 6), bool)
    mask[:, [0, 4]] = wide[..., 0] = wide[..., 4] = 0
    expected = wide[(1,) * given] / wide[(1,) * given].sum()
    drawn = Conditional(fitted, given).draw(KnownRows([np.full(ROWS, 1)] * given, {3: mask}), Noise(bytes(32)), "rows")
    counts = np.zeros(expected.shape)
    np.add.at(counts, tuple(drawn), 1)
    assert not counts[..., [0, 4]].any()
    assert np.abs(counts / ROWS - expected).max() < 6 * 0.5 / np.sqrt(ROWS)


def test_rows_that_admit_other_values_are_drawn_from_these(fitted: Fitted) -> None:
    joint = fitted.conditionals()[1, 2, 3]
    masks = np.array([[1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 0]], bool)
    group = np.repeat(np.arange(4), [ROWS, ROWS, ROWS, 9])  # nine rows are too few to be drawn apart
    given = [np.zeros(len(group), np.int64)] * 3
    drawn = Conditional(fitted, 3).draw(KnownRows(given, {3: masks[group]}), Noise(bytes(32)), "rows")[0]
    assert masks[group, drawn].all()
    for k in range(3):
        wide = np.zeros(6)
        wide[[0, 1, 3]], wide[[2, 4, 5]] = joint[0, 0, [0, 1, 3]], joint[0, 0, 2] * np.array([1, 2, 3]) / 6
        expected = wide * masks[k] / (wide * masks[k]).sum()
        found = np.bincount(drawn[group == k], minlength=6) / ROWS
        assert np.abs(found - expected).max() < 6 * 0.5 / np.sqrt(ROWS)


def test_what_the_model_excludes_follows_what_is_admitted(fitted: Fitted) -> None:
    mask = np.zeros((7, 6), bool)
    mask[:, 4] = True
    drawn = Conditional(fitted, 3).draw(KnownRows([np.zeros(7, np.int64)] * 3, {3: mask}), Noise(bytes(32)), "rows")
    assert drawn[0].tolist() == [4] * 7


def test_rows_that_are_given_differently_and_a_factor_more_follow_the_joint_table(
    fitted: Fitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, groups of rows, and a rule on two attributes that differs between groups."""
    found = fitted.conditionals()
    joint = np.einsum("a,ab,bc,bcd->abcd", *(found[s] for s in ((0,), (0, 1), (1, 2), (1, 2, 3))))
    rule = np.ones((2, 3, 4))
    rule[1, [0, 1, 2], [3, 0, 1]] = 0
    group, first = np.arange(ROWS) % 2, np.arange(ROWS) // 2 % 2
    law = Conditional(fitted, 1, [((2, 3), rule)])
    monkeypatch.setattr(conditional, "_CELLS", ROWS)  # several batches
    drawn = law.draw(KnownRows([first], {}, [group]), Noise(bytes(32)), "rows")
    merged = np.array([0, 1, 2, 3, 2, 2])
    counts = np.zeros((2, 2, *joint.shape[1:]))
    np.add.at(counts, (group, first, drawn[0], drawn[1], merged[drawn[2]]), 1)
    for k in range(2):
        expected = joint * rule[k][:, :]
        expected /= expected.sum((1, 2, 3), keepdims=True)
        assert not counts[k][:, :, rule[k] == 0].any()
        assert np.abs(counts[k] / (ROWS / 4) - expected).max() < 6 * 0.5 / np.sqrt(ROWS / 4)


def test_tilts_multiply_the_joint_table(fitted: Fitted) -> None:
    """Of a pair with the given attribute, and of two that are drawn."""
    found = fitted.conditionals()
    joint = np.einsum("a,ab,bc,bcd->abcd", *(found[s] for s in ((0,), (0, 1), (1, 2), (1, 2, 3))))
    tilts = {(0, 1): np.array([[1.0, 3.0, 2.0], [4.0, 1.0, 0.5]]), (2, 3): np.arange(1.0, 13.0).reshape(3, 4)}
    assert all(fitted.holds(pair) for pair in tilts)
    assert not fitted.holds((0, 3))
    law = Conditional(fitted, 1, (), tilts)
    drawn = law.draw(KnownRows([np.arange(ROWS) % 2], {}), Noise(bytes(32)), "rows")
    merged = np.array([0, 1, 2, 3, 2, 2])
    counts = np.zeros(joint.shape)
    np.add.at(counts, (np.arange(ROWS) % 2, drawn[0], drawn[1], merged[drawn[2]]), 1)
    expected = joint * tilts[0, 1][:, :, None, None] * tilts[2, 3]
    expected /= expected.sum((1, 2, 3), keepdims=True)
    assert np.abs(counts / (ROWS / 2) - expected).max() < 6 * 0.5 / np.sqrt(ROWS / 2)


def test_the_attribute_whose_factors_have_few_groups_is_summed_out_first() -> None:
    rows = np.arange(3000)
    groups = np.zeros(3000, np.int64), rows // 100, rows % 7
    tables = np.ones((1, 5, 15)), np.ones((30, 5)), np.ones((7, 15))
    factors = map(conditional._Factor, ((0, 1), (0,), (1,)), tables, groups)
    order, largest, alike = conditional._elimination(list(factors))
    assert (order, largest) == ([1, 0], 5)
    assert (np.diff((groups[1] * 7 + groups[2])[alike]) != 0).sum() == 30 * 7 - 1  # those of the dearer sum's groups
