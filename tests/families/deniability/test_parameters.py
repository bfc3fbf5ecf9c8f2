"""Count tables and their noise."""

import json
from collections import Counter
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import integer_schema

from dpdist.errors import AccountingError
from dpdist.families.deniability.parameters import (
    NoisyTables,
    count_tables,
    measure_tables,
    parameter_plan,
    split_tables,
)
from dpdist.families.deniability.structure import Structure
from dpdist.privacy import accountant, events
from dpdist.privacy.noise import Noise

SIZES, WIDTHS = (6, 4, 3), (2, 1, 1)


SCHEMA = integer_schema(SIZES, WIDTHS)
MAPS = [attribute.bucket_map for attribute in SCHEMA.attributes]
STRUCTURE = Structure(cardinalities=SIZES, bucket_counts=(3, 4, 3), parents=((), (0,), (0, 1)), order=(0, 1, 2))


@pytest.fixture
def codes(random_codes):
    return random_codes(3, SIZES, 1_000)


@pytest.mark.parametrize(
    ("attributes", "epsilon", "delta", "kind"),
    [(5, 1.0, 1e-9, "laplace"), (40, 1.0, 1e-9, "gaussian"), (40, 1.0, 0.0, "laplace")],
)
def test_the_plan_picks_the_smaller_noise_within_its_budget(attributes, epsilon, delta, kind):
    plan = parameter_plan(integer_schema([3] * attributes), epsilon=epsilon, delta=delta)
    assert plan.noise == kind
    assert plan.tables == attributes
    spent = accountant.epsilon(plan.event, delta=delta)
    assert 0.999 * epsilon <= spent <= epsilon * (1 + 1e-6)
    assert events.from_json(json.loads(json.dumps(plan.to_json()))["event"]) == plan.event
    assert f"{attributes} count tables" in plan.explain()
    scale = plan.scales([1] * attributes)[0]
    equal = NoisyTables(noise=plan.noise, scales=(scale,), tables=(np.zeros((1, 1), np.int64),))
    assert equal.variances[0] ** 0.5 == pytest.approx(plan.standard_deviation, rel=1e-5)


@settings(max_examples=80)
@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=30), st.floats(1e-3, 20), st.sampled_from([0.0, 1e-9]))
def test_scales_never_spend_more_than_the_total_and_favour_large_tables(cells, epsilon, delta):
    plan = parameter_plan(integer_schema([2] * len(cells)), epsilon=epsilon, delta=delta)
    scales = plan.scales(cells)
    power = 1 if plan.noise == "laplace" else 2
    spent = sum(1 / Fraction(scale) ** power for scale in scales)
    assert spent <= Fraction(plan.total) ** power
    assert float(spent) == pytest.approx(plan.total**power, rel=1e-5)
    ordered = [scale for _, scale in sorted(zip(cells, scales, strict=True))]
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(ordered))
    if plan.noise == "laplace":  # the mechanism itself composes to the charge
        composed = events.Composed(tuple(events.DiscreteLaplace(scale=scale) for scale in scales))
        assert accountant.epsilon(composed, delta=0.0) <= accountant.epsilon(plan.event, delta=0.0)


def test_invalid_budgets_are_refused():
    for epsilon, delta in ((0.0, 1e-9), (-1.0, 1e-9), (1.0, 1.0), (float("nan"), 1e-9), (1.0, -0.1)):
        with pytest.raises(AccountingError):
            parameter_plan(SCHEMA, epsilon=epsilon, delta=delta)


def test_cells_at_most_bounds_every_structure():
    plan = parameter_plan(SCHEMA, epsilon=1.0, delta=1e-9)
    assert plan.cells_at_most == 6 * 12 + 4 * 9 + 3 * 12
    huge = parameter_plan(integer_schema([50] * 10), epsilon=1.0, delta=1e-9)
    assert huge.cells_at_most == (1 << 22) // 10 * 10


def test_counts_are_those_of_the_records(codes):
    tables = split_tables(count_tables(codes, structure=STRUCTURE, bucket_maps=MAPS), STRUCTURE)
    records = list(zip(*(column.tolist() for column in codes), strict=True))
    assert tables[0].tolist() == [[Counter(r[0] for r in records)[v] for v in range(6)]]
    second = Counter((r[0] // 2, r[1]) for r in records)
    assert tables[1].tolist() == [[second[b, v] for v in range(4)] for b in range(3)]
    third = Counter((r[0] // 2, r[1], r[2]) for r in records)
    assert tables[2].tolist() == [[third[b, p, v] for v in range(3)] for b, p in product(range(3), range(4))]
    assert all(table.dtype == np.int64 for table in tables)


@pytest.mark.parametrize(("delta", "attributes"), [(0.0, 3), (1e-9, 30)])
def test_every_cell_gets_the_planned_noise_from_its_table_s_stream(delta, attributes):
    sizes = (7,) * attributes
    structure = Structure(cardinalities=sizes, bucket_counts=sizes, parents=((),) * attributes, order=range(attributes))
    plan = parameter_plan(integer_schema(sizes), epsilon=1.0, delta=delta)
    counts, noise = np.arange(7 * attributes), Noise(bytes(32))
    noisy = measure_tables(counts, structure, plan=plan, noise=noise)
    assert noisy.noise == plan.noise == ("gaussian" if delta else "laplace")
    assert noisy.scales == plan.scales(structure.cells)
    for i, (table, exact) in enumerate(zip(noisy.tables, split_tables(counts, structure), strict=True)):
        name, scale = f"parameters/table/{i}", noisy.scales[i]
        drawn = noise.gaussian_integers(name, 7, sigma=scale) if delta else noise.discrete_laplace(name, 7, scale=scale)
        np.testing.assert_array_equal((table - exact).ravel(), drawn)
