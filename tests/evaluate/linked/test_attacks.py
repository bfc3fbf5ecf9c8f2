"""Attacks with whole parents as targets find what is there, and do not find what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpdist.evaluation.attacks.intervals import Sizes
from dpdist.evaluation.linked import attacks
from dpdist.evaluation.linked.attacks import (
    ATTACKS,
    CONTROL,
    COPY,
    AttackResult,
    Near,
    WithinPairTables,
    pair_ratio,
    wide,
)
from dpdist.evaluation.linked.parents import ParentRecords
from dpdist.evaluation.linked.sections import statistics, within_section

Households = Callable[..., ParentRecords]
SIZES = Sizes(targets=2_000, searched=1_000, compared=20_000, least=50)


def attacked(households: Households, released: ParentRecords, **options: Any) -> dict[str, AttackResult]:
    found = attacks.attacked(released, households(6_000, 1), households(6_000, 2), seed=0, sizes=SIZES, **options)
    return found


@pytest.mark.parametrize("at_least", [1, 6])
def test_members_are_found_in_a_copy(households: Households, at_least: int) -> None:
    found = attacked(households, households(6_000, 1), at_least=at_least)
    for name in ("closest parent", "density", COPY):
        assert found[name].attack.area.low > 0.9, name
        assert found[name].guess.low > 0.75, name
    assert found["pairs"].attack.area.low > (0.8 if at_least > 1 else 0.5)  # counts of all parents hide one
    assert found[CONTROL].attack.area.covers(0.5)


@pytest.mark.parametrize("at_least", [1, 6])
def test_members_are_not_found_in_other_parents(households: Households, at_least: int) -> None:
    found = attacked(households, households(6_000, 3), at_least=at_least, confidence=0.999)
    for name in (*ATTACKS, CONTROL):
        assert found[name].attack.area.covers(0.5), name
        assert found[name].guess.covers(0.5), name
    assert found[COPY].attack.area.low > 0.9


def test_a_release_that_copies_one_household_in_four_is_found_out(households: Households) -> None:
    """Power below a full copy: a quarter of the members, the rest are new."""
    training, fresh = households(6_000, 1), households(6_000, 3)
    some = training.take(np.arange(0, 6_000, 4))
    columns = [np.concatenate(both) for both in zip(some.codes, fresh.codes, strict=True)]
    released = ParentRecords.of(training.linked, columns, np.concatenate([some.sizes, fresh.sizes]))
    found = attacked(households, released)
    assert found["closest parent"].attack.area.low > 0.55
    assert 0.55 < found["density"].attack.area.value < 0.75


def test_the_section_says_what_was_found(households: Households) -> None:
    def section(released: ParentRecords, holdout: ParentRecords | None) -> Any:
        return attacks.section(released, households(6_000, 1), holdout, seed=0, sizes=SIZES)

    copied, fresh = (
        section(households(6_000, 1), households(6_000, 2)),
        section(households(6_000, 3), households(6_000, 2)),
    )
    assert copied.state == "bad"
    assert "can be told which households" in copied.verdict
    assert fresh.state == "good"
    assert "No attack tells which households" in fresh.verdict
    assert set(fresh.figures) == {"all", "6 members and more"}
    assert set(fresh.figures["all"]) == {*ATTACKS, COPY, CONTROL}
    assert len(fresh.tables[0].rows) == 10
    assert fresh.plots
    assert section(households(6_000, 1), None).figures["applies"] is False
    assert section(households(40, 1), households(6_000, 2)).figures["applies"] is False


def test_a_control_that_fails_silences_the_attacks(households: Households, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of the control that tell members from others, as of a hold-out whose halves are unlike."""
    apart = AttackResult.of(CONTROL, np.ones(200), np.zeros(200), confidence=0.95, seed=0)
    found = attacked(households, households(6_000, 1)) | {CONTROL: apart}
    monkeypatch.setattr(attacks, "attacked", lambda *_, **__: found)
    told = attacks.section(*(households(6_000, k) for k in (1, 1, 2)), seed=0, sizes=SIZES)
    assert told.state == "info"
    assert "say nothing" in told.verdict


def test_distances_count_attributes_of_parents_and_members(households: Households) -> None:
    ours, theirs = households(30, 1), households(40, 2)
    expected = (wide(ours)[:, :, None] != wide(theirs)[:, None, :]).sum(0)
    near = Near.of(ours, theirs)
    np.testing.assert_array_equal(near.least, expected.min(1))
    np.testing.assert_allclose(near.density, (16.0**-expected).mean(1))
    halves = [theirs.take(np.arange(*ends)) for ends in ((0, 10), (10, 40))]
    both = Near.of(ours, halves[0]) | Near.of(ours, halves[1])
    np.testing.assert_array_equal(both.least, near.least)
    np.testing.assert_allclose(both.density, near.density)
    # a member that only one of both has differs in all of its three attributes
    alone = ours.take(np.flatnonzero(ours.sizes == 2)[:1])
    shorter = replace(alone, codes=[column[:1] for column in alone.codes], ends=np.array([0, 1]))
    assert Near.of(alone, shorter).least.tolist() == [3]


def test_pairs_that_the_release_has_more_often_score_higher(households: Households) -> None:
    targets, other = households(20, 1), households(5_000, 2)
    same = WithinPairTables.of(other)
    np.testing.assert_allclose(pair_ratio(targets, same, same), 0, atol=1e-9)
    columns = [np.concatenate([a, *[b] * 3]) for a, b in zip(other.codes, targets.codes, strict=True)]
    more = WithinPairTables.of(
        ParentRecords.of(other.linked, columns, np.concatenate([other.sizes, *[targets.sizes] * 3]))
    )
    assert (pair_ratio(targets, more, same) > 0).all()


def test_guesses_of_tied_scores_are_half_right() -> None:
    rng = np.random.default_rng(0)
    tied = AttackResult.of("tied", np.zeros(2_000), np.zeros(2_000), confidence=0.999, seed=1)
    assert tied.guess.covers(0.5)
    apart = AttackResult.of("apart", np.ones(100), np.zeros(80), confidence=0.95, seed=1)
    assert apart.guess.value == 1
    shifted = AttackResult.of("shifted", rng.normal(1, 1, 5_000), rng.normal(0, 1, 5_000), confidence=0.999, seed=1)
    assert shifted.guess.covers(0.6915)  # the normal distribution at one half
    assert shifted.attack.area.covers(0.7602)  # at 1 / sqrt(2)


# --- Statistics within parents, against pandas, and what the section says of them


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
