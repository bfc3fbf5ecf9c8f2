"""What one record changes in everything that a private release measures, by adding it to small tables."""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest

from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.plan import PrivatePlan, plan
from dpdist.families.prediction.private.mechanisms import FEATURE_STEP, RANK_STEP
from dpdist.families.prediction.private.stages import Statistic, answered, asked, design, input_model
from dpdist.families.prediction.private.statistics import (
    NoisyCorrelations,
    NoisyMarginals,
    NoisyRegression,
    NoisySums,
    marginal_operator,
    rank_operator,
    ridge_operator,
)
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.federated.sums import added
from dpdist.privacy import accountant
from dpdist.privacy.events import Gaussian
from dpdist.privacy.noise import Noise

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
    noisy = NoisyMarginals([rng.integers(-40, 90, column.cells) for column in private])
    known = input_model(private, noisy)
    seen = design(private, known, noise)
    work = [
        marginal_operator(where, private),
        rank_operator(where, private, known.tables),
        ridge_operator(where, private, seen, products=products == "measured"),
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

    def of_parties(statistic: Statistic) -> NoisySums:
        kind, work, _ = statistic
        sums = [work.chunk(party) for party in parties]
        exact = reduce(work.combine, sums)
        for ours, central in zip(listed(exact), listed(work.chunk(whole)), strict=True):
            assert ours.dtype == central.dtype == np.int64
            assert np.array_equal(ours, central)
        messages = [kind.draw(one, charge=made.charge, noise=own) for one, own in zip(sums, noises, strict=True)]
        return noted(messages[0].filled(added([message.flat for message in messages])))

    def of_one_table(statistic: Statistic) -> NoisySums:
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
    assert [kind for kind, _ in seen[0]] == [NoisyMarginals, NoisyCorrelations, NoisyRegression]


def listed(sums: Any) -> list[Any]:
    return sums if isinstance(sums, list) else [sums]
