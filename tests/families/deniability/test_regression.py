"""Conditionals by regression: what is counted, its sensitivity and noise, the fit, and which specs may ask for it."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from releases import KEY, SCHEMA, integer_schema, project

from dpdist.errors import SpecError
from dpdist.families.base.network import thresholds_from_weights
from dpdist.families.deniability import estimation
from dpdist.families.deniability.estimation import estimate_network
from dpdist.families.deniability.parameters import (
    ParameterPlan,
    add_to_tables,
    count_tables,
    exact_tables,
    measure_tables,
    parameter_plan,
    split_sums,
    split_tables,
)
from dpdist.families.deniability.plan import plan
from dpdist.families.deniability.regression import predicted, regression_table, scores
from dpdist.families.deniability.search import dependence_parents
from dpdist.families.deniability.structure import Structure
from dpdist.lifecycle.run import run_release
from dpdist.privacy.events import Gaussian
from dpdist.privacy.noise import Noise
from dpdist.publish.verify import read_manifest, read_release, verify

SIZES = (3, 5, 2)


TABLE = integer_schema(SIZES, (2, 1, 1))
MAPS = [attribute.bucket_map for attribute in TABLE.attributes]
STRUCTURE = Structure(
    cardinalities=SIZES, bucket_counts=(2, 5, 2), parents=((), (0, 2), (0,)), order=(0, 2, 1), regressed=(1,)
)
"""The middle one is regressed on the two others; the last one has a table given the first."""


def counted(codes: Any) -> Any:
    return count_tables(codes, structure=STRUCTURE, bucket_maps=MAPS)


def record(values: tuple[int, ...]) -> Any:
    return [np.array([value], np.uint8) for value in values]


# --- what is counted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4, 99])
def test_scores_are_integers_around_zero_that_reach_the_codes_less_one(size):
    found = scores(size)
    assert found.tolist() == [2 * code - (size - 1) for code in range(size)]
    assert -found[0] == found[-1] == size - 1


def test_sums_are_those_of_the_records(random_codes):
    codes = random_codes(3, SIZES, 500)
    vector = counted(codes)
    records = list(zip(*(column.tolist() for column in codes), strict=True))
    score = [2 * r[1] - 4 for r in records]
    first = [sum(s for s, r in zip(score, records, strict=True) if r[0] // 2 == b) for b in range(2)]
    last = [sum(s for s, r in zip(score, records, strict=True) if r[2] == b) for b in range(2)]
    assert [part.tolist() for part in split_sums(vector, STRUCTURE)] == [[], first + last, []]
    tables = split_tables(vector, STRUCTURE)
    assert [table.shape for table in tables] == [(1, 3), (1, 5), (2, 2)]
    assert tables[1].tolist() == [np.bincount(codes[1], minlength=5).tolist()]
    assert vector.dtype == np.int64


def test_sums_of_partitions_add_up(random_codes):
    codes = random_codes(4, SIZES, 1_000)
    whole = counted(codes)
    for cuts in ([], [0, 1], [333, 333, 900]):
        parts = [list(part) for part in zip(*(np.split(column, cuts) for column in codes), strict=True)]
        np.testing.assert_array_equal(sum(counted(part) for part in parts), whole)
        in_place = np.zeros_like(whole)
        for part in parts:
            assert add_to_tables(in_place, part, structure=STRUCTURE, bucket_maps=MAPS) is in_place
        np.testing.assert_array_equal(in_place, whole)


# --- sensitivity ------------------------------------------------------------------------------------------------------

UNIVERSE = list(product(*map(range, SIZES)))


def change_of(values: tuple[int, ...], others: list[tuple[int, ...]]) -> Any:
    """What one more record changes in a table of others."""
    columns = [np.array([r[i] for r in others], np.uint8) for i in range(3)]
    more = [np.append(column, np.uint8(value)) for column, value in zip(columns, values, strict=True)]
    return counted(more) - counted(columns)


def test_one_record_changes_the_statistics_by_the_stated_sensitivity():
    """All tables of up to two records of a universe of 30, with each that has one record more."""
    tables = [[]] + [[one] for one in UNIVERSE] + [list(pair) for pair in product(UNIVERSE, UNIVERSE[::7])]
    largest = 0
    for values in UNIVERSE:
        alone = change_of(values, [])
        for others in tables:
            np.testing.assert_array_equal(change_of(values, others), alone)
        (_, sums, _) = split_sums(alone, STRUCTURE)
        for table in split_tables(alone, STRUCTURE):
            assert np.abs(table).sum() == 1
        for parent in (sums[:2], sums[2:]):
            assert np.count_nonzero(parent) <= 1
            assert np.abs(parent).max() <= SIZES[1] - 1
        largest = max(largest, int(np.abs(sums).sum()))
    assert largest == 2 * (SIZES[1] - 1)


@pytest.mark.parametrize(("delta", "power"), [(0.0, 1), (1e-9, 2)])
def test_no_record_costs_more_than_the_total_and_one_costs_it(delta, power):
    """In exact arithmetic: the L1 norm over Laplace scales, the squared L2 norm over Gaussian variances."""
    made = parameter_plan(TABLE, epsilon=1.0, delta=delta, regressed=True)
    assert made.noise == ("gaussian" if delta else "laplace")
    noisy = measure_tables(counted(record((0, 0, 0))), STRUCTURE, plan=made, noise=Noise(bytes(32)))
    costs = []
    for values in UNIVERSE:
        alone = change_of(values, [])
        parts = [*zip(split_tables(alone, STRUCTURE), noisy.scales, strict=True)]
        parts += zip(split_sums(alone, STRUCTURE), noisy.sum_scales, strict=True)
        costs.append(sum(Fraction(abs(int(v))) ** power / Fraction(s) ** power for p, s in parts for v in p.flat if v))
    assert max(costs) <= Fraction(made.total) ** power
    assert float(max(costs)) == pytest.approx(made.total**power, rel=1e-5)
    assert min(costs) < 0.9 * max(costs)  # a code in the middle costs less


@settings(max_examples=80)
@given(st.floats(1e-3, 1e7), st.integers(1, 12), st.integers(1, 65_535), st.sampled_from(["laplace", "gaussian"]))
def test_counts_and_sums_never_cost_more_than_a_table(scale, parents, reach, noise):
    made = replace(parameter_plan(TABLE, epsilon=1.0, delta=1e-9, regressed=True), noise=noise)
    power = 1 if noise == "laplace" else 2
    counts, sums = made.regression_scales(scale, parents=parents, reach=reach)
    spent = 1 / Fraction(counts) ** power + parents * Fraction(reach) ** power / Fraction(sums) ** power
    assert spent <= 1 / Fraction(scale) ** power
    assert float(spent * Fraction(scale) ** power) == pytest.approx(1, rel=1e-9)


# --- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_every_sum_gets_the_planned_noise_from_a_stream_of_its_own(delta):
    both = replace(STRUCTURE, parents=((), (0,), (0,)), order=(0, 1, 2), regressed=(1, 2))
    made = parameter_plan(TABLE, epsilon=1.0, delta=delta, regressed=True)
    counts, noise = np.arange(sum(both.cells) + sum(both.sums)), Noise(bytes(32))
    noisy = measure_tables(counts, both, plan=made, noise=noise)
    shares = made.scales([a + b for a, b in zip(both.cells, both.sums, strict=True)])
    draw = noise.gaussian_integers if delta else noise.discrete_laplace
    for i in (1, 2):
        scales = made.regression_scales(shares[i], parents=1, reach=SIZES[i] - 1)
        assert (noisy.scales[i], noisy.sum_scales[i]) == scales
        pairs = ((noisy.tables, split_tables, "table"), (noisy.sums, split_sums, "regression"))
        for (found, exact, name), scale in zip(pairs, scales, strict=True):
            moved = (found[i] - exact(counts, both)[i]).ravel()
            drawn = draw(f"parameters/{name}/{i}", moved.size, **{"sigma" if delta else "scale": scale})
            np.testing.assert_array_equal(moved, drawn)
    assert noisy.sums[0].size == noisy.sum_scales[0] == 0


# --- the fit ----------------------------------------------------------------------------------------------------------


def normal_records(rows: int, *, size: int = 41) -> tuple[Any, Any, Any]:
    """Buckets of two parents and the code of a child whose mean depends on both."""
    rng = np.random.default_rng(5)
    first, second = rng.integers(0, 3, rows), rng.integers(0, 2, rows)
    mean = size / 2 + 3 * (first - 1) + 4 * (second - 0.5)
    return first, second, np.clip(np.rint(rng.normal(mean, 4)), 0, size - 1).astype(np.int64)


def statistics(first: Any, second: Any, child: Any, size: int) -> tuple[Any, Any, Any]:
    """The margin, the sums and the counts of the configurations."""
    u = scores(size)[child].astype(float)
    sums = np.concatenate([np.bincount(first, u, 3), np.bincount(second, u, 2)])
    return np.bincount(child, minlength=size) + 0.0, sums, np.bincount(first * 2 + second, minlength=6) + 0.0


def test_without_noise_the_deviations_are_those_of_least_squares():
    first, second, child = normal_records(5_000)
    margin, sums, expected = statistics(first, second, child, 41)
    u = scores(41)[child]
    design = np.stack([*(first == b for b in range(3)), *(second == b for b in range(2))], axis=1).astype(float)
    fitted = design @ np.linalg.lstsq(design, u, rcond=None)[0] - u.mean()
    found = predicted(sums, 0.0, mean=float(u.mean()), expected=expected, sizes=[3, 2])
    np.testing.assert_allclose(found[first * 2 + second], fitted, atol=1e-4)
    assert margin.sum() == expected.sum()


def test_a_normal_child_has_its_conditionals_and_its_margin():
    size = 41
    first, second, child = normal_records(200_000, size=size)
    margin, sums, expected = statistics(first, second, child, size)
    found = regression_table(margin + 1e-3, sums, 0.0, expected=expected, sizes=[3, 2], prior=1e-6)
    rows = found / found.sum(axis=1, keepdims=True)
    truth = np.zeros((6, size))
    np.add.at(truth, (first * 2 + second, child), 1)
    truth /= truth.sum(axis=1, keepdims=True)
    assert (np.abs(rows - truth).sum(axis=1) / 2 < 0.05).all()
    independent = np.abs(margin / margin.sum() - truth).sum(axis=1) / 2
    assert independent.max() > 0.3  # the test has power
    generated = expected / expected.sum() @ rows
    assert np.abs(generated - margin / margin.sum()).sum() / 2 < 1e-3


def test_a_margin_with_a_spike_keeps_it():
    """Most records stand at one code whatever the parent says; the others follow it."""
    rng = np.random.default_rng(6)
    size, rows = 21, 100_000
    first = rng.integers(0, 3, rows)
    second = np.zeros(rows, np.int64)
    child = np.where(rng.random(rows) < 0.6, 12, np.clip(np.rint(rng.normal(6 + 4 * first, 3)), 0, size - 1))
    margin, sums, _ = statistics(first, second, child.astype(np.int64), size)
    expected = np.bincount(first, minlength=3) + 0.0
    found = regression_table(margin + 1e-3, sums[:3], 0.0, expected=expected, sizes=[3], prior=1e-6)
    rows_found = found / found.sum(axis=1, keepdims=True)
    generated = expected / expected.sum() @ rows_found
    assert np.abs(generated - margin / margin.sum()).sum() / 2 < 1e-3
    means, truth = rows_found @ np.arange(size), np.bincount(first, child) / np.bincount(first)
    np.testing.assert_allclose(means, truth, atol=0.6)
    assert np.ptp(truth) > 2


def test_sums_of_noise_alone_give_no_dependence():
    margin, _, expected = statistics(*normal_records(5_000), 41)
    mean = float(margin @ scores(41)) / margin.sum()
    held = np.array(
        [expected[:2].sum(), expected[2:4].sum(), expected[4:].sum(), expected[::2].sum(), expected[1::2].sum()]
    )
    noise = np.random.default_rng(0).normal(0, 50, 5)
    found = regression_table(margin + 1e-3, mean * held + noise, 1e6, expected=expected, sizes=[3, 2], prior=0.1)
    np.testing.assert_allclose(found / found.sum(axis=1, keepdims=True), np.tile(found[0] / found[0].sum(), (6, 1)))
    shifted = regression_table(margin + 1e-3, mean * held + noise, 1.0, expected=expected, sizes=[3, 2], prior=0.1)
    assert np.abs(np.diff(shifted @ scores(41), axis=0)).max() > 1


finite = st.floats(-1e9, 1e9, allow_nan=False)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(2, 30))
def test_the_fit_never_fails(data, sizes, codes):
    """Whatever the noise made of the statistics, whichever configurations occur: weights that make a network."""
    rows = int(np.prod(sizes))
    expected = data.draw(hnp.arrays(np.float64, rows, elements=st.floats(0, 1e6)))
    expected[0] += 1.0
    margin = data.draw(hnp.arrays(np.float64, codes, elements=st.floats(1e-6, 1e6)))
    sums = data.draw(hnp.arrays(np.float64, sum(sizes), elements=finite))
    variance = data.draw(st.sampled_from([0.0, 1.0, 1e12]))
    found = regression_table(margin, sums, variance, expected=expected, sizes=sizes, prior=0.1)
    assert found.shape == (rows, codes)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    thresholds_from_weights(found)


def test_generated_records_have_the_measured_sums_and_counts(random_codes, monkeypatch):
    rng = np.random.default_rng(1)
    first, _, last = random_codes(2, SIZES, 50_000)
    middle = np.clip(first + last + rng.integers(0, 2, len(first)), 0, 4).astype(np.uint8)
    codes = [first, middle, last]
    exact = exact_tables(counted(codes), STRUCTURE)
    monkeypatch.setattr(estimation, "PRIOR", 1e-6)
    network = estimate_network(exact, STRUCTURE, TABLE, noise=Noise(bytes(32)))
    made: list[Any] = [np.zeros(50_000, np.uint8)] * 3
    for i in network.order:
        words = Noise(bytes([1]) * 32).words(f"value/{i}", 50_000)
        made[i] = network.draw(i, network.configuration(i, made), words)
    assert np.abs(np.bincount(made[1], minlength=5) - np.bincount(middle, minlength=5)).sum() / 50_000 < 0.02
    truth, found = exact.sums[1] / 50_000, split_sums(counted(made), STRUCTURE)[1] / 50_000
    np.testing.assert_allclose(found, truth, atol=0.06)
    held = np.concatenate([np.bincount(first // 2) / 50_000, np.bincount(last) / 50_000])
    assert np.abs(scores(5)[middle].mean() * held - truth).max() > 0.2  # as they would be without the regression


# --- the search -------------------------------------------------------------------------------------------------------


def test_a_regressed_child_affords_parents_that_a_table_does_not():
    m, cards, buckets = 4, (8, 8, 8, 100), (8, 8, 8, 10)
    dependence = np.zeros((m, m))
    dependence[3, :3] = dependence[:3, 3] = 0.08

    def parents(regressed):
        return dependence_parents(
            dependence,
            dependence,
            cardinalities=cards,
            bucket_counts=buckets,
            relative_noise=2e-4,
            admissible=lambda i, chosen: i == 3,
            regressed=regressed,
        )[3]

    assert len(parents(())) < len(parents((3,))) == 3


# --- specs ------------------------------------------------------------------------------------------------------------


def missing(policy: str) -> dict[str, Any]:
    """The schema with a missing category among the ages."""
    age = {**SCHEMA["attributes"][1], "missing": {"category": policy}}
    return {"attributes": [SCHEMA["attributes"][0], age, *SCHEMA["attributes"][2:]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__regression": ["region"]}, "'region' are categorical, which have no order"),
        ({"model__regression": ["weight"]}, "the schema has no attribute 'weight'"),
        ({"model__regression": ["age", "age"]}, "listed twice"),
        ({"model__regression": ["age"], "schema": missing("unknown")}, "missing category of 'age'"),
        ({"model": {"regression": ["age"], "structure": "independent"}}, "model.structure=learned"),
        (
            {"model": {"regression": ["age"], "structure": "synthesis"}, "synthesis__omega": 3}
            | {"split": {"structure": 0, "parameters": 0.5, "seeds": 0.5}},
            "model.structure=learned",
        ),
        (
            {
                "model": {"regression": ["age"], "hook": "here:Model", "learned_from": "public"},
                "privacy": {"delta": 1e-7},
                "split": {"structure": 0, "parameters": 0.5, "seeds": 0.5},
                "synthesis": {"records": 100},
            },
            "with a hook, only learned_from is set",
        ),
        (
            {
                "model__regression": ["one"],
                "schema": {"attributes": [*SCHEMA["attributes"], {"name": "one", "kind": "integer", "bounds": [1, 1]}]},
            },
            "'one' has one value only",
        ),
    ],
)
def test_what_cannot_be_regressed_is_refused(tmp_path, changes, message):
    with pytest.raises(SpecError, match=message):
        project(tmp_path, **changes)


def test_the_plan_says_what_is_regressed_within_the_budget(tmp_path):
    spec = project(tmp_path, model__regression=["score", "age"])
    made = plan(spec)
    assert spec.regressed == (1, 3)
    assert "Regression  score, age" in made.explain()
    assert made.public_parameters()["regression"] == ["score", "age"]
    assert isinstance(made.model.parameters, ParameterPlan)
    assert isinstance(made.model.parameters.event, Gaussian)
    assert made.epsilon <= spec.privacy.budget.epsilon
    assert made.model.parameters.total == pytest.approx(1 / made.model.parameters.event.noise_multiplier)
    assert made.model.parameters.standard_deviation == pytest.approx(sqrt(5) / made.model.parameters.total, rel=0.01)


def test_a_release_keeps_the_dependence_of_a_regressed_attribute(tmp_path):
    spec = project(
        tmp_path,
        model={"regression": ["age", "score"]},
        privacy__model={"epsilon": 20, "delta": 1e-7},
        synthesis={"records": 5_000, "omega": "all"},
        split={"structure": 0.2, "parameters": 0.8},
    )
    outcome = run_release(spec, fixed_key=KEY)
    assert verify(outcome.uri).records == 5_000
    stated = read_manifest(outcome.uri).parameters
    assert stated["regression"] == ["age", "score"]
    made = read_release(outcome.uri).to_pydict()
    truth = pq.read_table(tmp_path / "table.parquet").to_pydict()
    found = np.corrcoef(made["age"], made["score"])[0, 1]
    assert found == pytest.approx(np.corrcoef(truth["age"], truth["score"])[0, 1], abs=0.1)
    assert found > 0.7
