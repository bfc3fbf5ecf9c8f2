"""What one record changes in everything that a private release measures, by adding it to small tables."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.plan import PrivatePlan, plan
from dpdist.families.prediction.private.mechanisms import FEATURE_STEP, RANK_STEP
from dpdist.families.prediction.private.stages import design, input_model
from dpdist.families.prediction.private.statistics import (
    NoisyMarginals,
    marginal_operator,
    rank_operator,
    ridge_operator,
)
from dpdist.families.prediction.spec import TwoStageSpec
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

    def codes(rows: list[tuple[float, ...]]) -> list[Any]:
        table = np.array(rows, np.float64).reshape(len(rows), columns)
        return [
            np.ascontiguousarray(column, np.float64 if attribute.kind == "number" else attribute.dtype)
            for attribute, column in zip(spec.table.attributes, table.T, strict=True)
        ]

    ends = [
        attribute.bounds if attribute.kind == "number" and attribute.bounds else (0, attribute.cardinality - 1)
        for attribute in spec.table.attributes
    ]
    inner = [
        tuple(
            rng.uniform(low, high) if attribute.kind == "number" else int(rng.integers(low, high + 1))
            for attribute, (low, high) in zip(spec.table.attributes, ends, strict=True)
        )
        for _ in range(150)
    ]
    records = [*product(*ends), *inner]
    losses = []
    for number, record in enumerate(records):
        others = [records[i] for i in rng.integers(0, len(records), number % 4)]
        without, added = codes(others), codes([*others, record])
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
