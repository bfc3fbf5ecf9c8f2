"""Structure learning: the plan's charge, the noise, and what is found in made-up tables."""

import json

import numpy as np
import pytest
from releases import integer_schema

from dpdist.data.count import pair_counts
from dpdist.errors import AccountingError, SpecError
from dpdist.families.deniability.search import entropies, entropy_columns, pair_distances, total_variation_sensitivity
from dpdist.families.deniability.structure import (
    MAX_CELLS,
    RECORDS_PER_CELL,
    StructureStatistics,
    independent_structure,
    learn_structure,
    measure_structure,
    structure_plan,
)
from dpdist.privacy import accountant, events
from dpdist.privacy.arrays import round_to_grid
from dpdist.privacy.noise import Noise

SCORES = ("cfs", "total-variation")


SIZES = (12, 4, 4, 3, 2)
SCHEMA = integer_schema(SIZES, (3, 1, 1, 1, 1))


@pytest.fixture(scope="module")
def counts():
    """A chain 0 - 1 - 2, a pair 3 - 4."""
    random = np.random.default_rng(0)
    n = 20_000
    a = random.integers(0, 12, n)
    b = np.where(random.random(n) < 0.8, a // 3, random.integers(0, 4, n))
    c = np.where(random.random(n) < 0.8, b, random.integers(0, 4, n))
    d = random.integers(0, 3, n)
    e = np.where(random.random(n) < 0.8, d > 0, random.integers(0, 2, n))
    return pair_counts([column.astype(np.uint8) for column in (a, b, c, d, e)], SIZES)


def _plan(score, *, epsilon=1.0, delta=1e-9, minimum_records=19_000):
    return structure_plan(SCHEMA, minimum_records=minimum_records, epsilon=epsilon, delta=delta, score=score)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-9), (0.1, 1e-6), (3.0, 0.0)])
def test_the_plan_is_within_its_budget_and_states_its_noise(score, epsilon, delta):
    plan = _plan(score, epsilon=epsilon, delta=delta)
    assert accountant.epsilon(plan.event, delta=delta) <= epsilon * (1 + 1e-6)
    assert accountant.epsilon(plan.event, delta=delta) > 0.97 * epsilon
    assert plan.sensitivity <= plan.published_sensitivity * (1 + 1e-9)
    assert plan.grid <= plan.sensitivity * 2.0**-30
    assert plan.noise == "laplace" or delta > 0
    assert events.from_json(json.loads(json.dumps(plan.to_json()))["event"]) == plan.event
    assert f"{plan.statistics} " in plan.explain()


def test_the_plan_counts_its_statistics():
    assert _plan("cfs").statistics == len(entropy_columns(SCHEMA))
    assert _plan("total-variation").statistics == 10
    # Half of the published noise: the sensitivity is exact.
    plan = _plan("cfs")
    assert plan.sensitivity == pytest.approx(plan.published_sensitivity / 2, rel=0.1)
    assert _plan("total-variation").sensitivity == total_variation_sensitivity(19_000)


def test_a_huge_table_still_has_a_grid_that_double_precision_holds():
    plan = _plan("cfs", minimum_records=10**9)
    assert plan.grid == 2.0**-46
    assert plan.grid < 1e-3 * plan.sensitivity


def test_plans_that_cannot_be_are_refused():
    with pytest.raises(SpecError, match="independent"):
        structure_plan(integer_schema((5,)), minimum_records=10, epsilon=1.0, delta=1e-9)
    for epsilon, delta in ((0.0, 1e-9), (-1.0, 1e-9), (1.0, 1.0)):
        with pytest.raises(AccountingError):
            _plan("cfs", epsilon=epsilon, delta=delta)
    with pytest.raises(AccountingError):
        _plan("cfs", minimum_records=0)


@pytest.mark.parametrize("score", ["cfs", "total-variation"])
@pytest.mark.parametrize("delta", [1e-9, 0.0])
def test_the_noise_is_that_of_the_plan(counts, score, delta):
    plan, noise = _plan(score, delta=delta), Noise(bytes(32))
    exact = pair_distances(counts, SCHEMA) if score == "total-variation" else entropies(counts, SCHEMA)
    name = "structure/total-variation" if score == "total-variation" else "structure/entropies"
    if plan.noise == "gaussian":
        drawn = noise.grid_gaussian(name, len(exact), sigma=plan.scale, grid=plan.grid)
    else:
        drawn = noise.grid_laplace(name, len(exact), scale=plan.scale, grid=plan.grid)
    values = np.array(measure_structure(counts, SCHEMA, plan=plan, noise=noise).values)
    np.testing.assert_array_equal(values, round_to_grid(exact, grid=plan.grid) + drawn)


@pytest.mark.parametrize("score", SCORES)
def test_statistics_are_a_function_of_the_key_and_on_the_grid(counts, score):
    plan = _plan(score)
    first, again, other = (
        measure_structure(counts, SCHEMA, plan=plan, noise=Noise(bytes([key]) * 32)) for key in (1, 1, 2)
    )
    assert first == again != other
    steps = np.array(first.values) / plan.grid
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert StructureStatistics.from_bytes(first.to_bytes()) == first


@pytest.mark.parametrize("score", SCORES)
def test_strong_dependence_is_found(counts, score):
    plan = _plan(score, epsilon=20.0)
    statistics = measure_structure(counts, SCHEMA, plan=plan, noise=Noise(bytes(32)))
    table_noise = 10.0 if score == "cfs" else 200.0
    structure = learn_structure(statistics, SCHEMA, records=20_000, table_noise=table_noise)
    edges = {frozenset((i, p)) for i, chosen in enumerate(structure.parents) for p in chosen}
    assert {frozenset((0, 1)), frozenset((1, 2)), frozenset((3, 4))} <= edges
    assert not edges & {frozenset((a, b)) for a in (0, 1, 2) for b in (3, 4)}
    again = learn_structure(statistics, SCHEMA, records=20_000, table_noise=table_noise)
    assert again == structure


def test_by_default_cfs_keeps_the_cells_above_the_noise(counts):
    statistics = measure_structure(counts, SCHEMA, plan=_plan("cfs", epsilon=20.0), noise=Noise(bytes(32)))
    for records in (200, 400, 1_000, 4_000):
        structure = learn_structure(statistics, SCHEMA, records=records, table_noise=10.0)
        largest = max((c for c, p in zip(structure.cells, structure.parents, strict=True) if p), default=0)
        assert largest * RECORDS_PER_CELL * 10.0 <= records


def test_all_tables_together_fit_in_a_worker():
    m = 12
    schema = integer_schema([64] * m)
    values = (1.0,) * (m * (m - 1) // 2)
    statistics = StructureStatistics(score="total-variation", values=values)
    structure = learn_structure(statistics, schema, records=1e15, table_noise=1e-3)
    assert max(structure.cells) <= MAX_CELLS // m
    assert max(map(len, structure.parents)) >= 2


def test_the_baseline_has_no_parents():
    structure = independent_structure(SCHEMA)
    assert not any(structure.parents)
    assert structure.order == (4, 3, 1, 2, 0)  # small domains first
    assert structure.cells == SIZES
    assert independent_structure(SCHEMA, order="learned").order == (0, 1, 2, 3, 4)
