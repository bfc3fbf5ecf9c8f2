"""Statistics within parents, against pandas, and what the section says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpdist.evaluation.linked.parents import ParentRecords
from dpdist.evaluation.linked.sections import statistics, within_section

Households = Callable[..., ParentRecords]


def test_statistics_are_those_of_the_rows(households: Households) -> None:
    parents = households(800, 1)
    names = parents.linked.schema.names
    table = pd.DataFrame(dict(zip(names, parents.codes, strict=True))).astype(int)
    table["household"], table["place"] = parents.owner, parents.places
    by, found = table.groupby("household"), statistics(parents)
    size = by.size()
    assert found["members", "3"] == pytest.approx((size == 3).mean())
    children = (table.age < 9).groupby(table.household).sum()
    assert found["any member", "of children"] == pytest.approx((children > 0).mean())
    assert found["two members and more", "of children"] == pytest.approx((children > 1).mean())
    assert found["any member", "work is none"] == pytest.approx((table.work == 8).groupby(table.household).any().mean())
    same = (table.group == 2).groupby(table.household).all()[size > 1]
    assert found["all members, of several", "group is 2"] == pytest.approx(same.mean())
    first, second = (table[table.place == k].set_index("household") for k in (0, 1))
    agree = first.group.loc[second.index] == second.group
    assert found["first and second member agree", "group"] == pytest.approx(agree.mean())
    gap = (first.age.loc[second.index] - second.age) / 49  # of 50 bins of two years
    assert found["first and second member, mean difference", "age"] == pytest.approx(gap.mean(), rel=1e-3)
    assert found["first and second member, mean distance", "age"] == pytest.approx(gap.abs().mean(), rel=1e-3)
    later = table[table.place > 1]
    before = table.groupby("household").age.shift(1)[later.index]
    assert found["later members and those before agree", "age"] == pytest.approx((before == later.age).mean())
    chosen = (first.region == 3).loc[second.index]
    assert found["first and second agree where region is 3", "group"] == pytest.approx(agree[chosen].mean())
    assert found["single members where region is 3", "share"] == pytest.approx((size == 1)[first.region == 3].mean())


def test_rows_of_a_parent_are_what_its_members_say(households: Households) -> None:
    parents = households(300, 1)
    top = parents.top()
    assert parents.linked.parents_schema.names == ("region", "rooms", "(members)", "(of children)")
    children = np.bincount(parents.owner, weights=parents.codes[2] < 9, minlength=300)
    np.testing.assert_array_equal(top[3], children)
    np.testing.assert_array_equal(top[2] + 1, parents.sizes)
    some = parents.take(np.array([5, 2, 9]))
    np.testing.assert_array_equal(some.sizes, parents.sizes[[5, 2, 9]])
    np.testing.assert_array_equal(some.top()[3], children[[5, 2, 9]])


def test_members_put_together_at_random_are_seen(households: Households) -> None:
    def section(released: ParentRecords) -> Any:
        return within_section(released, households(6_000, 1), seed=0)

    fresh, loose = section(households(6_000, 3)), section(households(6_000, 3).loose(np.random.default_rng(0)))
    assert fresh.state == "good"
    assert loose.state == "bad"
    figures = fresh.figures["mean_difference"]
    assert figures["released"] < 0.3 * figures["random"]
    alike = fresh.figures["statistics"]["first and second member agree: group"]
    assert alike["random"] < 0.3 < 0.7 < alike["released"]
    assert fresh.to_json()["tables"][0]["rows"]
