"""The private variant: sensitivities attained and never exceeded, integers, post-processing, and the noise drawn."""

import math
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.errors import AccountingError
from dpdist.families.prediction.columns import Scale, columns_of
from dpdist.families.prediction.first_stage import marginal_of_masses, standard_normal
from dpdist.families.prediction.plan import PrivatePlan, plan
from dpdist.families.prediction.private import statistics
from dpdist.families.prediction.private.mechanisms import (
    FEATURE_STEP,
    FINE,
    RANK_STEP,
    Deviations,
    PrivateColumn,
    cells_for,
    charge,
    histogram,
    noisy_total,
    private_column,
    private_correlation,
    private_marginal,
    rank_products,
    rank_sensitivity,
    rank_table,
)
from dpdist.families.prediction.private.stages import Statistic, answered, asked, design, input_model
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.federated.sums import added
from dpdist.privacy import accountant
from dpdist.privacy.events import Composed, Gaussian
from dpdist.privacy.noise import Noise
from dpdist.privacy.portable import positive_part

X = Scale(name="x", low=-1, high=3)
C = Scale(name="c", low=0, high=2, discrete=True, nominal=True)
N = Scale(name="n", low=0, high=100, discrete=True, log=1.0)


def made(
    seed: int, *, cells: int = 8, frequencies: int = 5
) -> tuple[list[PrivateColumn], list[np.ndarray], statistics.FeatureMap]:
    rng = np.random.default_rng(seed)
    columns = [private_column(scale, cells=cells) for scale in (X, C, N)]
    marginals = [
        marginal_of_masses(rng.exponential(size=column.cells), discrete=column.is_discrete) for column in columns
    ]
    tables = [rank_table(column, marginal) for column, marginal in zip(columns, marginals, strict=True)]
    feature = statistics.feature_map(columns, tables, frequencies=frequencies, width=0.3, rng=rng)
    return columns, tables, feature


def test_columns_are_cells_by_comparison_alone() -> None:
    column = private_column(X, cells=8)
    assert column.total == 8 * FINE
    assert column.cells_of(np.array([-1.0, -0.999, 0.9999, 1.0, 3.0])).tolist() == [0, 0, 63, 64, 127]
    assert private_column(C, cells=8).cells_of(np.array([0, 1, 2])).tolist() == [0, 1, 2]
    assert private_column(N, cells=8).fine == FINE
    assert histogram(column, np.array([0, 15, 16, 127])).tolist() == [2, 1, 0, 0, 0, 0, 0, 1]
    assert private_column(C, cells=2).cells == 3  # categories are never binned


@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_rank_products_move_by_the_sensitivity_and_no_more(inputs: int) -> None:
    half = round(0.5 / RANK_STEP)
    rng = np.random.default_rng(0)
    corners = np.array(list(product([-half, half], repeat=inputs)))
    inner = rng.integers(-half, half + 1, (2000, inputs))
    norms = [
        float(np.linalg.norm(rank_products(row[None].astype(np.int64)) * RANK_STEP**2)) for row in [*corners, *inner]
    ]
    assert max(norms) <= rank_sensitivity(inputs) * (1 + 1e-12)
    assert max(norms) == pytest.approx(rank_sensitivity(inputs))
    for seed in range(20):
        for table in made(seed)[1]:
            assert np.abs(table).max() <= half


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_features_of_every_record_have_norm_at_most_one(seed: int, frequencies: int) -> None:
    columns, _, feature = made(seed, frequencies=frequencies)
    rng = np.random.default_rng(seed)
    cells = [rng.integers(0, column.total, 400) for column in columns]
    rows = feature(cells)
    norms = np.einsum("ij,ij->i", rows, rows) * FEATURE_STEP**2
    assert norms.max() <= 1
    assert norms.max() > 0.6
    assert rows.dtype == np.int64


def test_the_norm_of_features_is_attained_within_a_per_cent() -> None:
    columns = [private_column(C, cells=8)] * 3  # indicators have the largest linear part
    tables = [rank_table(column, marginal_of_masses(np.ones(3), discrete=True)) for column in columns]
    feature = statistics.feature_map(columns, tables, frequencies=8, width=1, rng=np.random.default_rng(0))
    rows = feature([np.array([0]), np.array([1]), np.array([2])])
    assert 0.98 < float((rows**2).sum()) * FEATURE_STEP**2 <= 1
    assert sum(statistics.WEIGHTS) == pytest.approx(1)


def test_one_record_moves_the_ridge_statistics_by_one_unit_of_noise_at_most() -> None:
    columns, _, feature = made(1)
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(300):
        row = feature([rng.integers(0, column.total, 1) for column in columns])
        moved = statistics.feature_products(row) * FEATURE_STEP**2
        upper = moved[np.triu_indices(len(moved), 1)]
        worst = max(worst, math.sqrt(float((np.diag(moved) ** 2).sum() + 2 * (upper**2).sum())))
        response = np.array([round(1 / FEATURE_STEP)])
        assert float(np.linalg.norm(statistics.cross_products(row, response) * FEATURE_STEP**2)) <= 1
    assert 0.8 < worst <= 1


def test_a_record_contributes_the_same_beside_any_others() -> None:
    columns, tables, feature = made(2)
    rng = np.random.default_rng(0)
    cells = [rng.integers(0, column.total, 5000) for column in columns]
    whole = feature(cells)
    alone = np.concatenate([feature([column[i : i + 1] for column in cells]) for i in range(0, 5000, 97)])
    assert np.array_equal(whole[::97], alone)
    parts = [slice(0, 1), slice(1, 4000), slice(4000, 5000)]
    assert np.array_equal(statistics.feature_products(whole), sum(statistics.feature_products(whole[p]) for p in parts))
    ranks = np.stack([table[column] for table, column in zip(tables, cells, strict=True)], axis=1)
    assert np.array_equal(rank_products(ranks), sum(rank_products(ranks[p]) for p in parts))
    assert np.array_equal(
        rank_products(ranks), [int((ranks[:, i] * ranks[:, j]).sum()) for i, j in ((0, 1), (0, 2), (1, 2))]
    )


def test_waves_are_cosines_and_sines() -> None:
    columns = [private_column(X, cells=64)]
    tables = [rank_table(columns[0], marginal_of_masses(np.ones(64), discrete=False))]
    feature = statistics.feature_map(columns, tables, frequencies=3, width=0.05, rng=np.random.default_rng(0))
    cells = np.arange(columns[0].total)
    rows = feature([cells]) * FEATURE_STEP
    directions = standard_normal(np.random.default_rng(0), (1, 3)) / (0.05 * 2 * math.pi)
    angle = 2 * np.pi * tables[0][:, None] * RANK_STEP * directions
    scale = math.sqrt(statistics.WEIGHTS[2] / 3)
    assert rows[:, 2:5] == pytest.approx(scale * np.cos(angle), abs=1e-3)
    assert rows[:, 5:] == pytest.approx(scale * np.sin(angle), abs=1e-3)


def test_responses_are_clipped_to_the_window() -> None:
    window = statistics.Window(0.5, 0.25)
    table = window.table() * FEATURE_STEP
    assert np.abs(table).max() <= 1
    assert table[0] == -1
    assert table[statistics.RESPONSE_CELLS // 2] == pytest.approx(0, abs=1e-3)
    masses = np.ones(100)
    masses[0], masses[99] = 0.01, 0.01
    made_window = statistics.response_window(marginal_of_masses(masses, discrete=False))
    assert made_window.centre == pytest.approx(0.5)
    assert 0.48 < made_window.half < 0.51


@pytest.mark.parametrize("measured", [False, True])
def test_the_charge_is_the_composition_of_the_noise(measured: bool) -> None:
    made_charge = charge(inputs=4, epsilon=3, delta=1e-6, measured=measured, draws=10_000)
    stated = accountant.epsilon(made_charge.event, delta=1e-6)
    assert 2.99 < stated <= 3
    multipliers = [
        made_charge.marginal / math.sqrt(5),
        made_charge.correlation / rank_sensitivity(4),
        made_charge.cross,
        *([made_charge.product] if measured else []),
    ]
    by_hand = Composed(tuple(Gaussian(z) for z in multipliers))
    assert accountant.epsilon(by_hand, delta=1e-6) == pytest.approx(stated, rel=1e-3)
    one = Gaussian(sum(z**-2 for z in multipliers) ** -0.5)
    assert accountant.epsilon(one, delta=1e-6) == pytest.approx(stated, rel=1e-3)
    assert (made_charge.product > 0) == measured
    with pytest.raises(AccountingError, match="than the sums can carry"):
        charge(inputs=4, epsilon=1e-7, delta=1e-10, measured=False, draws=1)
    with pytest.raises(AccountingError):
        charge(inputs=4, epsilon=1, delta=1e-10, measured=True, draws=1 << 62)


def test_more_records_or_less_noise_allow_more_cells() -> None:
    assert [cells_for(n, noise=20) for n in (100, 1000, 10_000, 1_000_000)] == [8, 14, 63, 128]


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_the_noise_of_the_ridge_statistics_has_the_planned_deviation(factor: float) -> None:
    noise, sigma, size = Noise(bytes(range(32))), 3.0, 150
    made_charge = Deviations(
        marginal=1, correlation=1, product=sigma * factor, cross=sigma * factor, event=Composed((Gaussian(1),))
    )
    zeros = np.zeros((size, size), np.int64), np.zeros(20_000, np.int64)
    drawn_noise = statistics.NoisyRegression.draw(zeros, charge=made_charge, noise=noise)
    products = drawn_noise.products
    assert np.array_equal(products, products.T)
    drawn = products * FEATURE_STEP**2
    diagonal, upper = np.diag(drawn), drawn[np.triu_indices(size, 1)]
    cross = drawn_noise.cross * FEATURE_STEP**2

    def fits(values: np.ndarray, deviation: float) -> bool:
        return bool(abs(float((values**2).mean()) / deviation**2 - 1) < 9 * math.sqrt(2 / len(values)))

    # At a deviation 30 % off the large samples are rejected: nine standard errors of the variance.
    assert fits(upper, sigma / math.sqrt(2)) == (factor == 1)
    assert fits(cross, sigma) == (factor == 1)
    assert fits(diagonal, sigma * factor)


def test_released_statistics_give_the_distribution_back_where_there_is_no_noise() -> None:
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], 50_000)
    values = np.clip(z, -5, 5)
    columns = [private_column(Scale(name="z", low=-5, high=5), cells=64)] * 2
    fine = [column.cells_of(values[:, i]) for i, column in enumerate(columns)]
    counts = [histogram(column, cells) for column, cells in zip(columns, fine, strict=True)]
    assert noisy_total(counts) == 50_000
    marginals = [private_marginal(c, h, total=50_000) for c, h in zip(columns, counts, strict=True)]
    tables = [rank_table(c, m) for c, m in zip(columns, marginals, strict=True)]
    ranks = np.stack([t[f] for t, f in zip(tables, fine, strict=True)], axis=1)
    made_correlation = private_correlation(rank_products(ranks), tables, marginals, total=50_000)
    assert made_correlation[0, 1] == pytest.approx(0.7, abs=0.05)
    wild = private_correlation(np.array([10**15]), tables, marginals, total=50_000)
    assert np.linalg.eigvalsh(wild).min() > 0


def test_ridge_weights_shrink_with_the_noise_and_recover_without() -> None:
    rng = np.random.default_rng(0)
    features = np.linalg.qr(rng.normal(size=(5000, 10)))[0] * math.sqrt(500)
    true = rng.normal(size=10)
    products, cross = features.T @ features, features.T @ (features @ true)
    exact = statistics.ridge_weights(products, cross, noise=1e-9, product_noise=0, variance=0)
    assert exact == pytest.approx(true, rel=1e-3)
    noisy = [
        float(np.linalg.norm(statistics.ridge_weights(products, cross, noise=s, product_noise=0, variance=0.1)))
        for s in (1.0, 1e3, 1e5)
    ]
    assert noisy[0] > noisy[1] > noisy[2]
    assert np.linalg.eigvalsh(positive_part(products - 600 * np.eye(10))).min() > -1e-5
    small = np.trunc(features * 10).astype(np.int64)
    assert statistics.modelled_products(small, total=5000) == pytest.approx(
        statistics.feature_products(small) * FEATURE_STEP**2
    )


# --- What one record changes in everything that a private release measures, by adding it to small tables


ATTRIBUTES: list[dict[str, Any]] = [
    {"name": "pay", "kind": "number", "bounds": [-50, 1e6]},
    {"name": "sex", "kind": "categorical", "values": ["a", "b"]},
    {"name": "age", "kind": "integer", "bounds": [18, 90]},
    {"name": "rank", "kind": "ordinal", "values": [1, 2, 3, 4]},
    {"name": "cost", "kind": "number", "bounds": [0, 9]},
]


def planned(products: str, response: str, columns: int) -> PrivatePlan:
    tree = {
        "kind": "two-stage",
        "name": "r",
        "dataset": "d",
        "schema": {"attributes": [ATTRIBUTES[-1], *ATTRIBUTES[: columns - 1]]},
        "data": {"path": "x", "minimum_records": 300},
        "output": {"path": "y"},
        "privacy": {"guarantee": "dp", "epsilon": 2, "delta": 1e-6},
        "prediction": {"response": response, "records": 10, "log": {"pay": 10.0}, "features": {"products": products}},
    }
    found = plan(TwoStageSpec.model_validate(tree))
    assert isinstance(found, PrivatePlan)
    return found


def ends_of(made: PrivatePlan) -> list[tuple[float, float]]:
    return [
        attribute.bounds if attribute.kind == "number" and attribute.bounds else (0, attribute.cardinality - 1)
        for attribute in made.spec.table.attributes
    ]


def drawn(made: PrivatePlan, count: int, rng: np.random.Generator) -> list[tuple[float, ...]]:
    pairs = list(zip(made.spec.table.attributes, ends_of(made), strict=True))
    return [
        tuple(
            rng.uniform(low, high) if attribute.kind == "number" else int(rng.integers(low, high + 1))
            for attribute, (low, high) in pairs
        )
        for _ in range(count)
    ]


def codes(made: PrivatePlan, rows: list[tuple[float, ...]]) -> list[Any]:
    attributes = made.spec.table.attributes
    table = np.array(rows, np.float64).reshape(len(rows), len(attributes))
    return [
        np.ascontiguousarray(column, np.float64 if attribute.kind == "number" else attribute.dtype)
        for attribute, column in zip(attributes, table.T, strict=True)
    ]


@pytest.mark.parametrize(
    ("products", "response", "columns"), [("measured", "cost", 5), ("modelled", "pay", 5), ("measured", "cost", 2)]
)
def test_a_record_costs_what_is_charged_whatever_the_table(products: str, response: str, columns: int) -> None:
    made = planned(products, response, columns)
    spec, charge, private = made.spec, made.charge, made.columns
    where, rng, noise = columns_of(spec), np.random.default_rng(3), Noise(bytes(range(32)))
    # Released marginals may be anything: they shape the later statistics, and no shape may make a record count more.
    noisy = statistics.NoisyMarginals([rng.integers(-40, 90, column.cells) for column in private])
    known = input_model(private, noisy)
    seen = design(private, known, noise)
    work = [
        statistics.marginal_operator(where, private),
        statistics.rank_operator(where, private, known.tables),
        statistics.ridge_operator(where, private, seen, products=products == "measured"),
    ]

    records = [*product(*ends_of(made)), *drawn(made, 150, rng)]
    losses = []
    for number, record in enumerate(records):
        others = [records[i] for i in rng.integers(0, len(records), number % 4)]
        without, added = codes(made, others), codes(made, [*others, record])
        changes = [(operator.chunk(without), operator.chunk(added)) for operator in work]
        loss = sum(float(((b - a) ** 2).sum()) / charge.marginal**2 for a, b in zip(*changes[0], strict=True))
        if charge.correlation:
            loss += float(((changes[1][1] - changes[1][0]) ** 2).sum()) * RANK_STEP**4 / charge.correlation**2
        squares, cross = (b - a for a, b in zip(*changes[2], strict=True))
        if charge.product:  # the noise off the diagonal is smaller by sqrt(2), and each entry stands twice
            loss += float((squares**2).sum()) * FEATURE_STEP**4 / charge.product**2
        loss += float((cross**2).sum()) * FEATURE_STEP**4 / charge.cross**2
        losses.append(math.sqrt(loss))
    # All noise is Gaussian: a record that moves the statistics by `loss` of it in L2 is one Gaussian mechanism.
    stated = accountant.epsilon(Gaussian(1 / max(losses)), delta=made.delta)
    assert 0.9 * made.epsilon < stated <= made.epsilon <= 2


@pytest.mark.parametrize("products", ["measured", "modelled"])
def test_statistics_of_parties_add_up_to_those_of_one_table_bit_for_bit(products: str) -> None:
    made = planned(products, "cost", 5)
    rows = drawn(made, 700, np.random.default_rng(5))
    whole, nobody = codes(made, rows), codes(made, [])
    parties = [codes(made, rows[:450]), codes(made, rows[450:451]), codes(made, rows[451:]), nobody]
    noises = [Noise(bytes([i]) * 32) for i in range(len(parties))]
    seen: list[list[tuple[type[Any], bytes]]] = []

    def of_parties(statistic: Statistic) -> statistics.NoisySums:
        kind, work, _ = statistic
        sums = [work.chunk(party) for party in parties]
        exact = reduce(work.combine, sums)
        for ours, central in zip(listed(exact), listed(work.chunk(whole)), strict=True):
            assert ours.dtype == central.dtype == np.int64
            assert np.array_equal(ours, central)
        messages = [kind.draw(one, charge=made.charge, noise=own) for one, own in zip(sums, noises, strict=True)]
        return noted(messages[0].filled(added([message.flat for message in messages])))

    def of_one_table(statistic: Statistic) -> statistics.NoisySums:
        kind, work, _ = statistic
        tables = [whole, *[nobody] * 3]
        drawn = [kind.draw(work.chunk(t), charge=made.charge, noise=n) for t, n in zip(tables, noises, strict=True)]
        return noted(drawn[0].filled(sum(one.flat for one in drawn)))

    def noted(found: Any) -> Any:
        seen[-1].append((type(found), found.to_bytes()))
        return found

    for answer in (of_parties, of_one_table):
        seen.append([])
        answered(asked(made, noises[0]), answer)
    assert seen[0] == seen[1]
    assert [kind for kind, _ in seen[0]] == [
        statistics.NoisyMarginals,
        statistics.NoisyCorrelations,
        statistics.NoisyRegression,
    ]


def listed(sums: Any) -> list[Any]:
    return sums if isinstance(sums, list) else [sums]
