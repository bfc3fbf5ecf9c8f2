"""Attacks find what is there, and do not find what is not."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from releases import SCHEMA, project

from dpdist.evaluation.attacks import AttackTables, Sizes, attack_sections, excess, likeness, membership
from dpdist.evaluation.attacks.intervals import Estimate
from dpdist.evaluation.attacks.membership import mechanism_of, partial_copies
from dpdist.evaluation.page.page import PageSection
from dpdist.evaluation.records import drawn, independent, size
from dpdist.families.base.rehearsal import rehearse
from dpdist.families.deniability.plan import plan
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

PEOPLE = Schema.model_validate(
    {
        "attributes": [
            {"name": "age", "kind": "integer", "bounds": [0, 99]},
            {"name": "wage", "kind": "number", "bounds": [0.0, 8.0]},
            *({"name": f"a{i}", "kind": "categorical", "values": list(range(6))} for i in range(5)),
        ]
    }
)
SIZES = Sizes(targets=1500, searched=400, linked=300, compared=4000, game=2000, shadows=2)
ROWS = 4000


def people(rows: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(45, 18, rows), 0, 99).astype(np.uint8)
    wage = np.clip(age / 20 + rng.normal(0, 1, rows), 0, 8)
    rest: Codes = [rng.integers(0, 6, rows).astype(np.uint8)]
    for _ in range(4):
        rest.append(np.where(rng.random(rows) < 0.6, rest[-1], rng.integers(0, 6, rows)).astype(np.uint8))
    return [age, wage, *rest]


def tables(released: Codes, training: Codes, holdout: Codes | None, **options: Any) -> AttackTables:
    made = {"schema": PEOPLE, "seed": 0, "sizes": SIZES} | options
    return AttackTables(released=released, training=training, holdout=holdout, **made)


def attacked(released: Codes) -> dict[str, PageSection]:
    sections = attack_sections(tables(released, people(ROWS, seed=1), people(ROWS, seed=2)))
    return {section.name: section for section in sections}


@cache
def copied() -> dict[str, PageSection]:
    return attacked(drawn(people(ROWS, seed=1), ROWS, np.random.default_rng(3)))


@cache
def fresh() -> dict[str, PageSection]:
    return attacked(people(ROWS, seed=9))


def auc(section: PageSection, attack: str) -> Estimate:
    figures: Any = section.figures[attack]
    return figures["auc"]


def test_copies_are_found_by_every_attack() -> None:
    sections = copied()
    figures: Any = sections["copies"].figures
    assert figures["exact"]["training"] == {"count": ROWS, "of": ROWS}
    chance = len(set(zip(*people(ROWS, 2), strict=True)) & set(zip(*people(ROWS, 1), strict=True)))
    assert figures["exact"]["hold-out"]["count"] == pytest.approx(chance, abs=3)  # wages of nothing
    assert f"repeats {ROWS:,} of {ROWS:,}" in sections["copies"].verdict
    for attack in ("closest record", "density", "shadow models"):
        assert auc(sections["membership"], attack).low > 0.9, attack
    assert "can be told" in sections["membership"].verdict
    for name in ("copies", "membership", "linkage", "inference", "location"):
        assert sections[name].state == "bad", sections[name].verdict
    linked: Any = sections["linkage"].figures["excess"]
    assert linked["10"].low > 0.1
    inferred: Any = sections["inference"].figures["excess"]
    assert min(inferred[f"a{i}"].low for i in range(5)) > 0.2


def test_a_fresh_sample_gives_nothing_away() -> None:
    for name, section in fresh().items():
        assert section.state == "good", section.verdict
        if name == "membership":
            for attack in ("closest record", "density", "shadow models", "control"):
                assert auc(section, attack).low <= 0.5 <= auc(section, attack).high


def test_sections_are_figures_tables_and_words() -> None:
    sections = fresh()
    assert list(sections) == ["distinguishing", "copies", "membership", "linkage", "inference", "location"]
    text = json.dumps({name: section.to_json() for name, section in sections.items()}, allow_nan=False)
    assert "NaN" not in text
    (plot,) = sections["membership"].plots
    assert plot.svg.startswith("<svg")
    assert sections["membership"] == attacked(people(ROWS, seed=9))["membership"]  # the same seed, the same figures


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Five fresh releases; each of five sections may be wrong once in forty (95 % intervals, one side)."""
    training, holdout, alarms = people(1000, seed=11), people(1000, seed=12), 0
    small = Sizes(targets=500, searched=150, linked=150, compared=1000, game=200, shadows=1)
    for seed in range(5):
        sections = attack_sections(tables(people(1000, seed=20 + seed), training, holdout, seed=seed, sizes=small))
        alarms += sum(section.state != "good" for section in sections if section.name != "distinguishing")
    assert alarms <= 4  # P < 1e-3 at 25 / 40


def test_a_tenth_of_copies_is_noticed_where_it_counts() -> None:
    """One record in ten is copied: hardly any area, but certain victims and many copies."""
    training = people(ROWS, seed=1)
    mixed = [np.concatenate([a[: ROWS // 10], b[ROWS // 10 :]]) for a, b in zip(training, people(ROWS, 9), strict=True)]
    sections = attacked(mixed)
    assert sections["copies"].state == "bad"
    assert sections["membership"].state == "bad"
    point: Any = sections["membership"].figures["closest record"]
    assert point["tpr_at_fpr"].found.low > 0.04
    assert auc(sections["membership"], "closest record").value < 0.6


def test_near_copies_are_counted_apart() -> None:
    """Every record is repeated with another wage: no exact copy, all near copies."""
    near = people(ROWS, seed=1)
    near[1] = np.random.default_rng(4).permutation(near[1])
    figures: Any = attacked(near)["copies"].figures
    assert figures["exact"]["training"]["count"] < 0.01 * ROWS
    assert figures["near"]["training"]["count"] == ROWS
    assert figures["excess"]["near"].low > 0.5


def test_the_game_tells_marginals_from_records_and_not_samples() -> None:
    real, other = people(2000, 5), people(2000, 6)
    accuracy, area = likeness.play(real, other, classifier=likeness.forest, seed=0)
    assert accuracy.covers(0.5)
    assert area.covers(0.5)
    shuffled = independent(real, np.random.default_rng(0))
    accuracy, area = likeness.play(real, shuffled, classifier=likeness.forest, seed=0)
    assert accuracy.low > 0.75
    assert area.low > 0.85


def test_a_drifting_control_silences_the_attacks() -> None:
    def attack(name: str, low: float, high: float) -> membership.Attack:
        scores = np.random.default_rng(0).normal(size=400)
        base = membership.judged(name, scores, 200, confidence=0.95)
        return membership.Attack(name, 200, 200, type(base.area)((low + high) / 2, low, high), base.point, base.curve)

    found, drift = [attack("density", 0.6, 0.7)], attack("control", 0.55, 0.6)
    assert membership._state(found, drift) == "info"
    assert "not like the training table" in membership._verdict(found, drift)
    assert membership._state(found, attack("control", 0.48, 0.52)) == "bad"


def test_too_little_data_says_so() -> None:
    few = people(50, 0)
    for section in attack_sections(tables(few, few, few)):
        assert section.figures["applies"] is False
    sections = attack_sections(tables(people(500, 1), people(500, 2), None))
    assert [section.figures.get("applies", True) for section in sections] == [True, *[False] * 5]
    assert "for want of a hold-out" in sections[0].tables[0].note
    one = Schema(attributes=PEOPLE.attributes[2:3])
    single = attack_sections(tables(*(people(500, seed)[2:3] for seed in (1, 2, 3)), schema=one))
    applies = {section.name: section.figures.get("applies", True) for section in single}
    assert (applies["linkage"], applies["inference"], applies["location"]) == (False, False, False)
    assert applies["copies"]


def test_progress_is_told() -> None:
    seen: list[tuple[str, int, int]] = []
    few = people(50, 0)
    attack_sections(tables(few, few, few), progress=lambda *step: seen.append(step))
    assert seen == [("attacks", done, 6) for done in range(7)]


def test_ties_are_not_linked_by_the_order_of_the_release() -> None:
    """All records alike: any of them is nearest, so two halves meet in one of n by chance only."""
    alike: Codes = [np.zeros(2000, column.dtype) for column in people(2, 0)]
    hits = excess.linked(alike, alike, PEOPLE, ([0, 1, 2], [3, 4, 5, 6]), np.random.default_rng(0), nearest=(1,))
    assert hits.mean() < 0.01


def test_location_counts_columns_within_the_range() -> None:
    released = [np.array([0, 10, 50], np.uint8), np.array([0.0, 4.0, 4.0])]
    originals = [np.array([1, 10, 90], np.uint8), np.array([0.1, 4.0, 4.3])]
    schema = Schema(attributes=PEOPLE.attributes[:2])
    assert excess.numeric(PEOPLE) == [0, 1]
    assert excess.located(released, originals, schema, [0, 1], 0.02).tolist() == [2, 2, 0]
    assert excess.located(released, originals, schema, [0, 1], 0.005).tolist() == [0, 2, 0]


def test_partial_copies_keep_from_nothing_to_everything() -> None:
    table = people(3000, 4)
    made = partial_copies(table, 1, ratio=2)
    assert size(made) == 6000
    assert [column.dtype for column in made] == [column.dtype for column in table]
    copies = np.isin(made[1], table[1])  # a wage is of one person
    assert copies.all()
    from dpdist.evaluation.records import Agreement

    exact = (Agreement(7, seed=0).exact(made, table) > 0).mean()
    assert exact == pytest.approx(1 / 8, abs=0.03)


def test_shadow_releases_have_the_noise_of_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their size: budgets and noise of the tables are the release's, only sensitivities and ratios change."""
    spec = project(tmp_path, rows=10)
    whole, seen = plan(spec), []

    def once(shrunk: Any, stages: Any, table: Codes, *, key: KeyRef) -> Any:
        seen.append(shrunk)
        return rehearse(shrunk, stages, table, key=key)

    monkeypatch.setattr("dpdist.evaluation.attacks.membership.rehearse", once)
    mechanism = mechanism_of(spec, training=30_000)
    rng = np.random.default_rng(0)
    for rows in (300, 12_000):
        made = mechanism([rng.integers(0, n, rows).astype(np.uint8) for n in spec.table.cardinalities], 1)
        assert size(made) == round(2_500 * rows / 30_000)
        model = seen[-1].model
        assert model.parameters == whole.model.parameters
        assert model.structure.minimum_records == int(0.9 * rows * 0.3)
        assert seen[-1].spec.privacy.deniability.k == max(1, round(20 * rows / 30_000))
    ratio = model.structure.sensitivity / whole.model.structure.sensitivity
    assert model.structure.standard_deviation / whole.model.structure.standard_deviation == pytest.approx(ratio, 1e-3)


def test_shadow_models_know_the_mechanism(tmp_path: Path) -> None:
    schema = Schema.model_validate(SCHEMA)
    spec = project(tmp_path, rows=10, synthesis__omega=[3, 4], synthesis__records=20_000)
    mechanism = mechanism_of(spec, training=20_000)
    rng = np.random.default_rng(0)
    table: Codes = [rng.integers(0, n, 9000).astype(np.uint8) for n in schema.cardinalities]
    made = mechanism(table, 5)
    assert size(made) == 9000
    assert all((a == b).all() for a, b in zip(made, mechanism(table, 5), strict=True))
    assert any((a != b).any() for a, b in zip(made, mechanism(table, 6), strict=True))
    holdout: Codes = [rng.integers(0, n, 60_000).astype(np.uint8) for n in schema.cardinalities]
    sizes = Sizes(targets=2000, searched=200, compared=1000, shadows=1)
    own = tables(table, table, holdout, schema=schema, sizes=sizes)
    section = membership.section(own, mechanism=mechanism)
    assert "by the same mechanism" in section.tables[0].note
    assert auc(section, "shadow models").low > 0.5

    def refused(table: Codes, seed: int) -> Codes:
        from dpdist.errors import CheckFailed

        raise CheckFailed("too few records")

    section = membership.section(own, mechanism=refused)
    assert "by a stand-in" in section.tables[0].note
