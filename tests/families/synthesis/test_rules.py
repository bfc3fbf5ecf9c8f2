"""No released record breaks a rule, and the law of the records is the model's law given the rules."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import chisquare
from syntheses import choose_instead, learn

from dpdist.cluster.cluster import Cluster
from dpdist.data.count import pair_counts
from dpdist.data.encode import TableEncoder
from dpdist.errors import OutOfDomain, SpecError
from dpdist.evaluation.utility.checks import broken_operator, rules_section
from dpdist.families.base.registry import make_plan
from dpdist.inference.answers import infer, tabulate
from dpdist.inference.law import Law
from dpdist.inference.published import Published
from dpdist.inference.records import draw_table, recompute
from dpdist.ledger import Books
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.run import run_release
from dpdist.model import draw, rounds
from dpdist.model.choices import choose
from dpdist.model.draw import draw_records, kept_part
from dpdist.model.files import PublishedModel
from dpdist.model.fitted import UNIT, Fitted
from dpdist.model.learn import Learned
from dpdist.privacy.noise import Noise
from dpdist.spec.conditions import parse_condition
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.spec.rules import broken_by
from dpdist.spec.schema import Schema

NOISE, DRAWING = Noise(bytes(range(32))), Noise(bytes(32))
ATTRIBUTES: list[dict[str, Any]] = [
    {"name": "age", "kind": "integer", "bounds": [0, 29]},
    {"name": "job", "kind": "categorical", "values": ["a", "b", "c"], "missing": {"category": "none"}},
    {"name": "wage", "kind": "integer", "bounds": [0, 4], "missing": {"category": "none"}},
    {"name": "grade", "kind": "ordinal", "values": [0, 1, 2]},
]
RULES: list[dict[str, Any]] = [
    {"missing": "job", "where": "age < 8"},
    {"impossible": "job is missing and wage > 0"},
    {"impossible": "grade = 2 and (wage is missing or wage < 2)"},
]
SCHEMA = Schema.model_validate({"attributes": ATTRIBUTES, "rules": RULES})
CARDS = SCHEMA.cardinalities


def records(rows: int = 6_000, seed: int = 0) -> list[np.ndarray]:
    """Records that keep the rules."""
    rng = np.random.default_rng(seed)
    age = np.minimum(rng.poisson(12, rows), 29)
    job = np.where(age < 8, 3, rng.choice(3, rows, p=[0.5, 0.3, 0.2]))
    wage = np.where(job == 3, rng.choice([0, 5], rows), rng.integers(0, 6, rows))
    grade = np.where((wage == 5) | (wage < 2), rng.integers(0, 2, rows), rng.integers(0, 3, rows))
    return [x.astype(np.uint8) for x in (age, job, wage, grade)]


def learned(rules: Any, **changes: Any) -> Learned:
    choices = replace(choose(CARDS, records=6_000, mu=0.5, raking=False), **changes)
    return learn(pair_counts(records(), CARDS), choices=choices, noise=NOISE, drawing=DRAWING, rules=rules)


def joint(fitted: Fitted) -> np.ndarray:
    """The law of what is drawn once, cell by cell; coarse copies are summed out. No values are merged."""
    found = np.zeros(CARDS)
    shape = fitted.cardinalities
    states: dict[tuple[int, ...], float] = {(): 1.0}
    order = [step.attribute for step in fitted.steps]
    for step in fitted.steps:
        rows = np.diff(step.cumulative, axis=1, prepend=0) / UNIT
        following: dict[tuple[int, ...], float] = {}
        for state, p in states.items():
            row = 0
            for parent in step.parents:
                row = row * shape[parent] + state[order.index(parent)]
            for code in np.flatnonzero(rows[row]).tolist():
                following[(*state, code)] = p * rows[row, code]
        states = following
    for state, p in states.items():
        found[tuple(int(fitted.values[i][state[order.index(a)]]) for i, a in enumerate(fitted.fine))] += p
    return found


def forbidden() -> np.ndarray:
    grid = [axis.ravel() for axis in np.indices(CARDS)]
    return broken_by(SCHEMA.forbidden, grid).reshape(CARDS)


def test_what_rules_forbid_has_probability_zero_in_the_model() -> None:
    found = learned(SCHEMA.forbidden, merge_below=0.0)
    assert found.report["rules"] == [0, 1, 2]
    law = joint(found.fitted)
    assert law.sum() == pytest.approx(1)
    assert law[forbidden()].max() == 0
    assert joint(learned((), merge_below=0.0).fitted)[forbidden()].sum() > 0.005
    assert (law[~forbidden()] > 0).mean() > 0.9
    spent = [[name, pytest.approx(share)] for name, share in found.report["account"]]
    assert [name for name, _ in spent][:2] == ["one-way", "one-way/again"]


def test_a_rule_that_tells_merged_values_apart_is_not_kept_by_the_model() -> None:
    rules = Schema.model_validate(
        {"attributes": ATTRIBUTES, "rules": [*RULES, {"impossible": "age = 29 and grade = 1"}]}
    )
    found = learned(rules.forbidden, merge_below=3.0)
    assert 29 in found.fitted.rare[0]
    assert 3 not in found.report["rules"]
    assert not broken_by(rules.forbidden, kept_part(found.fitted, DRAWING, "p", 5_000, rules.forbidden)).any()


def test_the_law_of_merged_values_is_that_of_the_drawn_records() -> None:
    """Where a rule tells merged values apart: tables, conditions, and records given a condition of several boxes."""
    found = learned(SCHEMA.forbidden, merge_below=3.0)
    assert found.report["rules"] == [1, 2]
    law = Law(PublishedModel(found.fitted, found.measurements, bytes(32).hex(), 0), SCHEMA.forbidden, [1, 2])
    rows = 400_000
    drawn = kept_part(found.fitted, DRAWING, "p", rows, SCHEMA.forbidden)
    for attributes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 3), (0, 1, 2)):
        shape = tuple(CARDS[i] for i in attributes)
        expected = rows * law.marginal(attributes).ravel()
        counts = np.bincount(np.ravel_multi_index([drawn[i] for i in attributes], shape), minlength=expected.size)
        assert counts[expected == 0].sum() == 0
        away = (counts - expected) / np.sqrt(np.maximum(expected, 5))
        assert np.abs(away).max() < 5
        assert np.sqrt((away**2).mean()) < 1.3
    whole = law.marginal((0, 1, 2, 3))
    for text in (
        "age < 8 and job = 'a'",
        "age < 8 and job = 'a' and grade = 1 and wage = 2",
        "age < 4 and job is missing",
        "age < 3 or (age > 25 and job = 'a')",
        "age <= 2 or age >= 25",
        "age in (0, 1, 2, 3, 22, 23, 24, 25, 26, 27, 28, 29)",
    ):
        condition = parse_condition(text, SCHEMA)
        share = law.probability(condition)
        inside = condition.holds(drawn)
        assert inside.mean() == pytest.approx(share, abs=5 * math.sqrt(share / rows))
        if share:
            given, _ = law.draw(condition, 100_000, DRAWING)
            assert not broken_by(SCHEMA.forbidden, given).any()
            table = whole * condition.cells(range(4), CARDS).reshape(CARDS) / share
            for axes in ((0,), (1,), (0, 1)):  # what is left of all attributes
                expected = len(given[0]) * table.sum(axis=tuple({0, 1, 2, 3} - set(axes))).ravel()
                index = np.ravel_multi_index([given[i] for i in axes], [CARDS[i] for i in axes])
                away = np.bincount(index, minlength=expected.size) - expected
                assert np.abs(away / np.sqrt(np.maximum(expected, 5))).max() < 5


def test_two_rules_of_one_merged_attribute() -> None:
    """Tables of other attributes, and the boxes of a condition on them."""
    sizes = (8, 4, 5)
    attributes = [
        {"name": name, "kind": "integer", "bounds": [0, size - 1]} for name, size in zip("abc", sizes, strict=True)
    ]
    rules = [{"impossible": "a < 3 and b = 1"}, {"impossible": "a > 2 and c < 3"}]
    schema = Schema.model_validate({"attributes": attributes, "rules": rules})
    rng = np.random.default_rng(0)
    a = rng.choice([0, 1, 2, 3, 4, 5, 6, 7], 5_000, p=[0.2, 0.08, 0.08, 0.08, 0.08, 0.16, 0.16, 0.16])
    codes = [a.astype(np.uint8), rng.integers(0, 4, 5_000).astype(np.uint8), rng.integers(0, 5, 5_000).astype(np.uint8)]
    choices = replace(choose(sizes, records=5_000, mu=0.5, raking=False), merge_below=75.0)
    model = learn(pair_counts(codes, sizes), choices=choices, noise=NOISE, drawing=DRAWING)
    assert model.fitted.rare[0].tolist() == [1, 2, 3, 4]
    law = Law(PublishedModel(model.fitted, model.measurements, bytes(32).hex(), 0), schema.forbidden)
    rows = 200_000
    drawn = kept_part(model.fitted, DRAWING, "p", rows, schema.forbidden)
    for i in range(3):
        expected = rows * law.marginal((i,))
        away = np.bincount(drawn[i], minlength=sizes[i]) - expected
        assert np.abs(away / np.sqrt(np.maximum(expected, 5))).max() < 5
    for text in ("b = 1 or c = 1", "a = 1 or a = 7 and b = 1"):
        condition = parse_condition(text, schema)
        inside = condition.holds(drawn)
        given, _ = law.draw(condition, 50_000, DRAWING)
        for i in range(3):
            expected = np.bincount(drawn[i][inside], minlength=sizes[i]) / inside.sum()
            found = np.bincount(given[i], minlength=sizes[i]) / len(given[i])
            error = np.sqrt(np.maximum(expected, 1e-3) * (1 / inside.sum() + 1 / len(given[i])))
            assert np.abs((found - expected) / error).max() < 5


def test_what_the_model_does_not_keep_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of the records is the model's law given the rules: by enumeration, and as `Law` has it."""
    monkeypatch.setattr(rounds, "RULES_PART", 10**9)
    found = learned(SCHEMA.forbidden, merge_below=0.0)
    assert found.report["rules"] == []
    expected = np.where(forbidden(), 0, joint(found.fitted))
    expected /= expected.sum()
    model = PublishedModel(found.fitted, found.measurements, bytes(32).hex(), 0)
    law = Law(model, SCHEMA.forbidden)
    for attributes in ((0, 1), (1, 2), (2, 3), (0, 3)):
        others = tuple(i for i in range(4) if i not in attributes)
        np.testing.assert_allclose(law.marginal(attributes), expected.sum(axis=others), atol=1e-9)
    condition = parse_condition("age < 12 and grade >= 1", SCHEMA)
    grid = [axis.ravel() for axis in np.indices(CARDS)]
    assert law.probability(condition) == pytest.approx(expected.ravel()[condition.holds(grid)].sum())
    rows = 40_000
    columns = kept_part(found.fitted, DRAWING, "p", rows, SCHEMA.forbidden)
    counts = np.bincount(np.ravel_multi_index(tuple(columns), CARDS), minlength=expected.size)
    large = expected.ravel() * rows > 5
    assert counts[expected.ravel() == 0].sum() == 0
    assert (
        chisquare(counts[large], expected.ravel()[large] / expected.ravel()[large].sum() * counts[large].sum()).pvalue
        > 1e-6
    )


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_no_record_breaks_a_rule_whatever_the_model(data: st.DataObject) -> None:
    """Models that know nothing of the rules, few redraws, small parts, merged values, a pool: nothing comes through."""
    sizes = (2, 3, 4)
    cells = list(product(*map(range, sizes)))
    bad = data.draw(st.sets(st.sampled_from(cells), min_size=1, max_size=len(cells) - 1))
    attributes = [
        {"name": name, "kind": "categorical", "values": list(range(size))}
        for name, size in zip("abc", sizes, strict=True)
    ]
    rule = " or ".join(f"a = {a} and b = {b} and c = {c}" for a, b, c in sorted(bad))
    try:
        schema = Schema.model_validate({"attributes": attributes, "rules": [{"impossible": rule}]})
    except ValidationError:
        return
    raked = data.draw(st.booleans())
    merge_below, balance = data.draw(st.sampled_from([0.0, 3.0])), data.draw(st.sampled_from([0, 3]))
    choices = replace(choose(sizes, records=300, mu=1.0), merge_below=merge_below, balance=balance, pool_rows=50)
    choices = replace(choices, iterations=(5,), rounds=1)
    if raked:
        choices = replace(choices, pairs=0.0, tree=0.0, picks=0.0, rake=0.5)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    codes = [rng.integers(0, size, 300).astype(np.uint8) for size in sizes]  # of which most break the rule
    known = data.draw(st.sampled_from([schema.forbidden, ()]))
    model = learn(pair_counts(codes, sizes), choices=choices, noise=NOISE, drawing=DRAWING, rules=known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "MOST_REDRAWS", data.draw(st.sampled_from([0, 1, 32])))
        for rows in (1, 2, 60):
            found = draw_records(model.fitted, DRAWING, 0, rows, rounds=choices.balance, rules=schema.forbidden)
            assert len(found[0]) == rows
            assert not broken_by(schema.forbidden, found).any()


def test_a_public_table_as_a_prior() -> None:
    choices = replace(choose(CARDS, records=6_000, mu=0.3, raking=False), prior_cells=50_000)
    prior = pair_counts(records(20_000, seed=3), CARDS)
    counts, rules = pair_counts(records(), CARDS), SCHEMA.forbidden
    found = learn(counts, choices=choices, noise=NOISE, drawing=DRAWING, prior=prior, rules=rules)
    assert found.report["rules"] == [1, 2]  # rare ages of both sides of the first are merged
    assert not broken_by(rules, draw_records(found.fitted, DRAWING, 0, 1_000, rounds=5, rules=rules)).any()


# --- whole releases ---------------------------------------------------------------------------------------------------


def write(path: Path, codes: list[np.ndarray]) -> None:
    age, job, wage, grade = codes
    jobs, wages = np.array(["a", "b", "c", None], object), np.array([0, 1, 2, 3, 4, None], object)
    pq.write_table(
        pa.table({"age": age, "job": pa.array(jobs[job]), "wage": pa.array(wages[wage], pa.int64()), "grade": grade}),
        path,
    )


def tree(folder: Path, **changes: Any) -> dict[str, Any]:
    if not (folder / "table.parquet").exists():
        write(folder / "table.parquet", records())
    return {
        "kind": "synthesis",
        "name": "first",
        "dataset": "people",
        "schema": {"attributes": ATTRIBUTES, "rules": RULES},
        "data": {"path": str(folder / "table.parquet"), "minimum_records": 5_000},
        "output": {"path": str(folder / "release"), "rows_per_part": 1_000},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "cluster": {"mode": "in-process"},
        "privacy": {"epsilon": 4, "delta": 1e-7},
        "model": {"rounds": 1, "balance": 10},
        "synthesis": {"records": 2_500},
    } | changes


RAKED = {"one_way": 0.1, "rake": 0.9}


@pytest.mark.parametrize("raked", [False, True], ids=["model", "raked"])
def test_the_same_bits_for_any_partitions_and_executor(
    raked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"rounds": 1} if raked else {"rounds": 1, "balance": 10}
    if raked:
        choose_instead(monkeypatch, RAKED)
    spec = load(tree(tmp_path, model=model, privacy={"epsilon": 20 if raked else 0.5, "delta": 1e-7}))
    first = run_stages(attempt_of(spec, tmp_path / "one", partitions=1))
    other = run_stages(attempt_of(spec, tmp_path / "dask", executor=Cluster(), partitions=5))
    assert first.result(Learned).report["raked"] is raked
    assert [part.sha256 for part in other.parts] == [part.sha256 for part in first.parts]
    assert other.result(Learned).to_bytes() == first.result(Learned).to_bytes()


def impossible(row: dict[str, Any]) -> bool:
    """Whether a rule forbids the cell of a table of job and wage."""
    return row["job"] == "none" and row["wage"] not in ("none", None, 0)


def test_a_release_is_made_again_tabulated_and_drawn_from(tmp_path: Path) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("people", epsilon="50", delta="1e-5", guarantees=("dp",))
    ledger.close()
    spec = load(tree(tmp_path))
    assert "Rules       3 rules that no released record breaks" in make_plan(spec).explain()
    run_release(spec)
    release = Published.open(tmp_path / "release")
    assert release.schema == SCHEMA
    merged = release.law.fitted.rare[0] < 8  # rare ages: those of both sides of the first rule are distinguished by it
    assert release.manifest.parameters["learned"]["rules"] == ([1, 2] if len(set(merged)) == 2 else [0, 1, 2])
    assert not broken_by(SCHEMA.forbidden, release.codes).any()
    assert recompute(tmp_path / "release").records == 2_500
    cells = tabulate(release, ["job", "wage"]).to_pylist()
    assert sum(map(impossible, cells)) == 4
    assert all(row["count"] == row["high"] == 0 for row in cells if impossible(row))
    drawn = draw_table(release, 500, where="age < 12").table
    encoded = [
        np.array(drawn["age"].to_pylist()),
        np.array([{"a": 0, "b": 1, "c": 2}.get(v, 3) for v in drawn["job"].to_pylist()]),
        np.array([5 if v in (None, "none") else int(v) for v in drawn["wage"].to_pylist()]),
        np.array(drawn["grade"].to_pylist()).astype(int),
    ]
    assert encoded[0].max() < 12
    assert not broken_by(SCHEMA.forbidden, encoded).any()


def test_forbidden_cells_are_zero_measured_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("people", epsilon="50", delta="1e-5", guarantees=("dp",))
    ledger.close()
    run_release(load(tree(tmp_path)))
    release = Published.open(tmp_path / "release")

    # measured with little noise: a negative count is cut at 0, and keeps the width of its interval
    noisy, deviations = np.where(np.arange(24) < 3, -50.0, 7.0), np.where(np.arange(24) == 20, np.inf, 1e-3)
    monkeypatch.setattr(Published, "measured", lambda *_: (noisy, deviations))
    cells = tabulate(release, ["job", "wage"]).to_pylist()
    ends = [(row["count"], row["standard_error"], row["low"], row["high"]) for row in cells]
    assert [end == (0, 0, 0, 0) for end in ends] == [impossible(row) for row in cells]
    assert ends[0] == pytest.approx((0, 1e-3, 0, 1.96e-3))
    assert ends[10] == pytest.approx((7, 1e-3, 7, 7), abs=0.01)
    assert zero(release, "count where job is missing and 1 <= wage <= 3")
    assert infer(release, "count where job = 'a' and wage <= 1").high == pytest.approx(1.96e-3 * math.sqrt(2), rel=1e-4)
    whole = infer(release, "count where job is missing and (wage is missing or wage <= 4)")
    possible = infer(release, "count where job is missing and (wage is missing or wage = 0)")
    assert whole.estimate == possible.estimate == 14
    assert whole.deviation == possible.deviation == pytest.approx(math.sqrt(2) * 1e-3)

    # not measured
    monkeypatch.setattr(Published, "measured", lambda *_: None)
    cells = tabulate(release, ["job", "wage"]).to_pylist()
    assert [row["high"] == 0 for row in cells] == [impossible(row) for row in cells]
    cells = tabulate(release, ["grade", "job", "wage"]).to_pylist()  # of two rules
    forbidden_too = [row["grade"] == 2 and row["wage"] in ("none", None, 0, 1) for row in cells]
    assert sum(forbidden_too) == 12
    assert [row["high"] == 0 for row in cells] == [
        impossible(row) or too for row, too in zip(cells, forbidden_too, strict=True)
    ]
    assert zero(release, "share where job is missing and wage = 4")
    whole = infer(release, "count where grade = 2 and wage <= 2")
    assert 0 < whole.low < whole.high < infer(release, "count where grade < 2 and wage <= 2").high
    assert infer(release, "share where wage <= 4 or wage is missing").high == 1
    of_four = infer(release, "count where age < 8 and job = 'a' and grade = 1 and wage = 2")
    assert (of_four.estimate, of_four.high) == (0, None)
    assert infer(release, "count where age >= 8 and job = 'a' and grade = 1 and wage = 2").estimate > 100


def zero(release: Published, question: str) -> bool:
    found = infer(release, question)
    return found.estimate == found.deviation == found.low == found.high == 0


def test_records_that_break_a_rule_meet_its_policy(tmp_path: Path) -> None:
    codes = records()
    codes[1][:7], codes[0][:7] = 0, 3  # a job, at three years
    write(tmp_path / "table.parquet", codes)
    with pytest.raises(
        OutOfDomain, match=r"rules.0 \(job is missing exactly where age < 8\): .*broken: refuse"
    ) as error:
        run_stages(attempt_of(load(tree(tmp_path)), tmp_path / "a"))
    assert "7" not in str(error.value).replace("rules.0", "")
    dropping = [RULES[0] | {"broken": "drop"}, *RULES[1:]]
    spec = load(tree(tmp_path, schema={"attributes": ATTRIBUTES, "rules": dropping}))
    assert run_stages(attempt_of(spec, tmp_path / "b")).parts


@pytest.mark.parametrize("policy", ["refuse", "drop"])
def test_a_rule_is_asked_whatever_becomes_of_other_attributes(policy: str) -> None:
    """Else a part of a contract would be refused for a record that the contract drops for another attribute."""
    rule = {"impossible": "age > 20 and grade = 0", "broken": policy}
    attributes = [ATTRIBUTES[0], ATTRIBUTES[3] | {"missing": "drop"}, ATTRIBUTES[1] | {"missing": "drop"}]
    batch = pa.record_batch({"age": [25, 25, 25, 3], "grade": [0, None, 1, 0], "job": [None, "a", "a", "b"]})
    for chosen, kept in ((attributes, [2, 3]), (attributes[:2], [2, 3] if policy == "drop" else [0, 2, 3])):
        found = TableEncoder(Schema.model_validate({"attributes": chosen, "rules": [rule]})).encode(batch)
        assert found.report.broken.tolist() == [1]
        assert found.keep is not None
        assert np.flatnonzero(found.keep).tolist() == kept


def test_a_table_without_records_is_released(tmp_path: Path) -> None:
    codes = [np.full(50, code, np.uint8) for code in (3, 0, 1, 0)]  # a job, at three years
    write(tmp_path / "table.parquet", codes)
    dropping = {"attributes": ATTRIBUTES, "rules": [RULES[0] | {"broken": "drop"}, *RULES[1:]]}
    attempt = run_stages(attempt_of(load(tree(tmp_path, schema=dropping)), tmp_path / "a"))
    assert sum(part.rows for part in attempt.parts) == 2_500


def test_the_custodian_is_told_of_broken_rules(tmp_path: Path) -> None:
    codes = records()
    codes[1][:7], codes[0][:7] = 0, 3
    write(tmp_path / "table.parquet", codes)
    declared = {
        "schema": {"attributes": ATTRIBUTES, "rules": RULES},
        "data": {"path": str(tmp_path / "table.parquet")},
        "minimum_records": 5_000,
        "epsilon": 1,
        "delta": 1e-6,
    }
    found = check_input(Contract.model_validate(declared))
    (problem,) = found.problems
    assert problem.startswith("rules.0 (job is missing exactly where age < 8): records break the rule")
    assert found.counts["rules"] == {"job is missing exactly where age < 8": 7}
    dropping = {"attributes": ATTRIBUTES, "rules": [RULES[0] | {"broken": "drop"}, *RULES[1:]]}
    found = check_input(Contract.model_validate(declared | {"schema": dropping}))
    assert found.problems == ()
    assert found.counts["rows_kept"] == 5_993
    with pytest.raises(ValidationError, match="number of kept records private"):
        Contract.model_validate(declared | {"schema": dropping, "number_of_records": 6_000})


def test_an_evaluation_counts_them(tmp_path: Path) -> None:
    rules = SCHEMA.forbidden
    codes = records()
    codes[1][:7], codes[0][:7] = 0, 3
    operator = broken_operator(rules)
    counted = operator.combine(operator.chunk([c[:5] for c in codes]), operator.chunk([c[5:] for c in codes]))
    assert counted.tolist() == [7, 0, 0]
    section = rules_section(rules, np.zeros(3, np.int64), counted, rows=(2_500, 6_000))
    assert section.state == "fair"
    assert "No released record breaks a rule" in section.verdict
    assert section.figures["job is missing exactly where age < 8"] == {"released": 0, "real": 7}
    assert rules_section(rules, counted, counted, rows=(2_500, 6_000)).state == "bad"


@pytest.mark.parametrize("kind", ["two-stage", "mixing", "plausible-deniability"])
def test_other_records_cannot_keep_rules(kind: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "two-stage": {"prediction": {"response": "wage"}, "privacy": {"guarantee": "dp", "epsilon": 1, "delta": 1e-6}},
        "mixing": {
            "mixing": {"class": "job", "classes": {"a": {"minimum": 100, "records": 100}}, "order": 5},
            "privacy": {"epsilon": 1, "delta": 1e-6},
        },
        "plausible-deniability": {
            "synthesis": {"records": 10, "omega": "all"},
            "privacy": {"model": {"epsilon": 1, "delta": 1e-9}},
        },
    }[kind]
    spec = {k: v for k, v in tree(tmp_path).items() if k not in ("model", "synthesis", "privacy")}
    with pytest.raises(SpecError, match=r"schema.rules: a release of kind .* cannot keep rules"):
        load(spec | {"kind": kind} | more)
