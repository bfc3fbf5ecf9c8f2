"""`dpdist evaluate` of a release of two linked tables."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import RELATIONAL, persons
from releases import KEY
from typer.testing import CliRunner

from dpdist.cli import app
from dpdist.cluster.executor import InProcess
from dpdist.data.inputs import Files
from dpdist.data.released import ReleasedTable
from dpdist.data.source import TableSource
from dpdist.errors import SpecError
from dpdist.evaluation.attacks.intervals import Sizes
from dpdist.evaluation.inputs import EvaluatedTables
from dpdist.evaluation.linked import attacks
from dpdist.evaluation.linked import parents as module
from dpdist.evaluation.linked.attacks import (
    ATTACKS,
    CONTROL,
    COPY,
    AttackResult,
    Near,
    pair_ratio,
    wide,
)
from dpdist.evaluation.linked.parents import ParentRecords
from dpdist.evaluation.linked.sections import LinkedInputs, open_linked, statistics, within_section
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import linked_rows, run_evaluation
from dpdist.lifecycle.run import run_release
from dpdist.publish.verify import open_release, read_release
from dpdist.spec.data import ParentTable
from dpdist.spec.release import ReleaseSpec

HELD_OUT = 10**7
"""What is added to the ids of held-out households."""


@dataclass(frozen=True)
class Made:
    folder: Path
    spec: ReleaseSpec

    @property
    def release(self) -> str:
        return self.spec.output.path

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A release, its table and a hold-out: each joined, and as persons and households."""
    folder = tmp_path_factory.mktemp("linked")
    spec = RELATIONAL.project(folder)
    run_release(spec, fixed_key=KEY)
    for name, table in (("table", RELATIONAL.table(RELATIONAL.rows)), ("holdout", persons(4_000, seed=4))):
        members = table.to_pandas().dropna(subset=["household"])
        members["household"] = members["household"].astype("int64") + HELD_OUT * (name == "holdout")
        owners = members.groupby("household")[["region"]].first().reset_index()
        for end, frame in (("", members), ("-persons", members.drop(columns="region")), ("-households", owners)):
            pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / f"{name}{end}.parquet")
    return Made(folder, spec)


def evaluated(made: Made, output: Path, **changes: Any) -> dict[str, Any]:
    asked = {"against": (made.path("table"),), "holdout": (made.path("holdout"),), "cluster": "threads"} | changes
    done = run_evaluation(Request(release=made.release, output=output, **asked))
    figures: dict[str, Any] = json.loads(Path(done.figures).read_text())
    assert figures["confidential"].startswith("CONFIDENTIAL")
    assert "CONFIDENTIAL" in Path(done.page).read_text()
    return figures


@pytest.fixture(scope="module")
def whole(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is found with households in the rows of their persons."""
    return evaluated(made, tmp_path_factory.mktemp("whole"))


def opened(made: Made, *, parents: bool = False, spec: ReleaseSpec | None = None) -> LinkedInputs:
    store, manifest = open_release(made.release)
    linked = linked_rows(manifest, spec)
    source = TableSource((made.path("table"),), extra_columns="ignore")
    if parents:
        above = made.path("table-households")
        of = ParentTable(path=(above,), attributes=("region",))
        source = TableSource((made.path("table-persons"), above), extra_columns="ignore", parent=of)
    released = ReleasedTable(store, manifest)
    return open_linked(
        released, linked, EvaluatedTables(Files(source)), executor=InProcess(), seed=0, progress=lambda *_: None
    )


@pytest.mark.usefixtures("undrawn")
def test_the_page_has_both_tables_and_attacks_on_households(made: Made, whole: dict[str, Any], tmp_path: Path) -> None:
    """The command, with households in a table of their own and without; both say the same."""
    assert {
        "marginals",
        "parents-marginals",
        "within-parents",
        "correlations",
        "rules",
        "models",
        "parents-membership",
    } == set(whole["sections"])
    assert whole["sections"]["models"]["figures"]["applies"] is False
    attacks = whole["sections"]["parents-membership"]
    assert attacks["state"] == "good"
    assert attacks["figures"]["all"]["copy"]["auc"]["low"] > 0.6
    assert whole["sections"]["within-parents"]["figures"]["number"] > 50
    answer = CliRunner().invoke(
        app,
        ["evaluate", made.release, "--against", made.path("table-persons"), "--parents",
         made.path("table-households"), "--holdout", made.path("holdout-persons"), "--holdout-parents",
         made.path("holdout-households"), "--output", str(tmp_path / "two"), "--cluster", "threads"],
        catch_exceptions=False,
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    two = json.loads((tmp_path / "two" / "evaluation.json").read_text())
    for name in ("marginals", "parents-marginals"):
        assert (
            two["sections"][name]["figures"]["records"]["real"] == whole["sections"][name]["figures"]["records"]["real"]
        )
        found, expected = (of["sections"][name]["figures"]["mean_distance"]["2"] for of in (two, whole))
        assert found == pytest.approx(expected)


def counted(ages: Any) -> list[int]:
    return np.bincount(ages, minlength=20).tolist()


@pytest.mark.parametrize("parents", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_real_households_are_read_whole_and_in_order(made: Made, parents: bool, known: bool) -> None:
    found = opened(made, parents=parents, spec=made.spec if known else None).real
    table = pd.read_parquet(made.path("table"))
    table = table[~((table.age < 15) & (table.employed == "yes"))]
    table["place"] = table.sort_values("order").groupby("household").cumcount()
    used = table[table.place < 4]
    counts = used.groupby("household").size().value_counts()
    assert np.bincount(found.sizes)[1:].tolist() == [counts[n] for n in range(1, 5)]

    ages = found.codes[found.linked.schema.names.index("age")]
    for place in range(1 if known else 4):  # by the spec, orders from 7 on are one
        assert counted(ages[found.places == place]) == counted(used[used.place == place].age // 5)


def test_released_households_are_those_of_the_files(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_release(made.release).to_pandas()
    found = opened(made)
    assert found.released.sizes.tolist() == table.groupby("household").size().tolist()
    assert found.broken.tolist() == [0]
    assert found.rows == len(table)
    monkeypatch.setattr(module, "MOST_ROWS", len(table) // 3)  # a part of both
    some = opened(made)
    assert 0.2 < len(some.released) / len(found.released) < 0.4
    assert 0.05 < len(some.real) / len(found.real) < 0.3
    assert abs(some.real.sizes.mean() - found.real.sizes.mean()) < 0.3


@pytest.mark.usefixtures("undrawn")
def test_what_cannot_be_done_is_refused(made: Made, tmp_path: Path) -> None:
    spec = RELATIONAL.spec(made.folder, members={"order": "order"})
    for changes, told in (
        ({"publish": 0.1}, "--publish"),
        ({"holdout": (made.path("table"),)}, "--holdout"),
        ({"spec": spec}, "--spec"),
    ):
        with pytest.raises(SpecError, match=told):
            evaluated(made, tmp_path / "none", **changes)
    copy = made.folder / "copy.parquet"
    copy.write_bytes(Path(made.path("table")).read_bytes())
    found = evaluated(made, tmp_path / "copied", holdout=(str(copy),))
    assert found["sections"]["holdout"]["state"] == "bad"
    assert found["sections"]["parents-membership"]["figures"]["applies"] is False


@pytest.mark.usefixtures("undrawn")
def test_a_hold_out_may_have_its_households_in_the_same_table(
    made: Made, whole: dict[str, Any], tmp_path: Path
) -> None:
    both = pa.concat_tables([pq.read_table(made.path(f"{name}-households")) for name in ("table", "holdout")])
    pq.write_table(both, tmp_path / "households.parquet")
    found = evaluated(
        made,
        tmp_path / "page",
        against=(made.path("table-persons"),),
        holdout=(made.path("holdout-persons"),),
        parents=(str(tmp_path / "households.parquet"),),
    )
    for rows in ("real records", "held-out records"):
        assert found["facts"][rows].split()[0] == whole["facts"][rows].split()[0]


# --- Attacks with whole parents as targets find what is there, and do not find what is not


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
    np.testing.assert_allclose(pair_ratio(targets, other, other), 0, atol=1e-9)
    columns = [np.concatenate([a, *[b] * 3]) for a, b in zip(other.codes, targets.codes, strict=True)]
    more = ParentRecords.of(other.linked, columns, np.concatenate([other.sizes, *[targets.sizes] * 3]))
    assert (pair_ratio(targets, more, other) > 0).all()


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
