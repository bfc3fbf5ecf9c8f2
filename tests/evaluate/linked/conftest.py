"""Made-up households: persons of one are of one group and of nearby ages, so that there is something to find."""

from collections.abc import Callable

import numpy as np
import pytest

from dpdist.evaluation.linked.parents import ParentRecords
from dpdist.families.base.family import LinkedRows
from dpdist.spec.schema import Schema
from dpdist.spec.unit import UnitSpec

SCHEMA = Schema.model_validate(
    {
        "attributes": [
            {"name": "region", "kind": "categorical", "values": list(range(6))},
            {"name": "rooms", "kind": "integer", "bounds": [1, 8]},
            {"name": "order", "kind": "integer", "bounds": [0, 9]},
            {"name": "age", "kind": "integer", "bounds": [0, 99], "bins": {"count": 50}},
            {"name": "group", "kind": "categorical", "values": list(range(5))},
            {"name": "work", "kind": "categorical", "values": list(range(8)), "missing": {"category": "none"}},
        ]
    }
)
LINKED = LinkedRows(
    unit=UnitSpec(by="household", at_most=6),
    read=SCHEMA,
    order=2,
    parent=(0, 1),
    members=(3, 4, 5),
    kinds=(("children", 3, np.arange(50) < 9),),
)


def made_parents(count: int, seed: int, *, ages: int = 100) -> ParentRecords:
    """Households of one to six persons, four in a hundred of six."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice(np.arange(1, 7), count, p=[0.3, 0.3, 0.2, 0.1, 0.085, 0.015])
    owner = np.repeat(np.arange(count), sizes)
    middle, group = rng.integers(20, ages - 10, count), rng.integers(0, 5, count)
    age = np.clip(middle[owner] + rng.integers(-10, 10, len(owner)), 0, ages - 1) // 2
    alike = rng.random(len(owner)) < 0.9
    codes = [
        rng.integers(0, 6, count)[owner],
        np.minimum(sizes + rng.integers(0, 3, count), 8)[owner] - 1,
        age,
        np.where(alike, group[owner], rng.integers(0, 5, len(owner))),
        rng.integers(0, 9, len(owner)),
    ]
    columns = [c.astype(a.dtype) for c, a in zip(codes, LINKED.schema.attributes, strict=True)]
    return ParentRecords.of(LINKED, columns, sizes)


@pytest.fixture(scope="session")
def households() -> Callable[..., ParentRecords]:
    return made_parents
