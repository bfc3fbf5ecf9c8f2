"""Declared regressions: what a record moves is enumerated, the steps find the table's own coefficients."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from families.synthesis.test_release import tree as people
from published import published
from releases import KEY, SCHEMA, table

from dpdist.accuracy.measured import linear, logistic
from dpdist.cluster.cluster import Cluster
from dpdist.errors import SpecError
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.synthesis import plan
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.regression_steps import GRID, STEPS, Score, draws_of, scores_operator, sensitivity
from dpdist.families.synthesis.regressions import Count, Regressions, measure_regressions
from dpdist.inference.comparisons import BINS_NOTE, MEASURED_NOTE, answer
from dpdist.inference.published import Published
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.model.choices import choose
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.publish.verify import verify
from dpdist.spec.reader import load
from dpdist.spec.regression import Regression, parse_regression
from dpdist.spec.schema import Schema

TABLE = Schema.model_validate(SCHEMA)
LINEAR = "regression score on age, sex = 1, region = 'north'"
LOGISTIC = "logistic regression employed = 'yes' on sex = 1, age, region = 'north' where age >= 20"
TINY = Schema.model_validate(
    {"attributes": [{"name": n, "kind": "categorical", "values": [0, 1, 5]} for n in "abc"]}
)  # 27 kinds of records


def parsed(*texts: str, schema: Schema = TABLE) -> list[Regression]:
    return [parse_regression(text, schema) for text in texts]


def codes_of(rows: int, *, seed: int, strength: float = 1.0) -> Codes:
    """Records of `TABLE` whose outcomes depend on the terms, more or less."""
    rng = np.random.default_rng(seed)
    region, age, sex = rng.integers(0, 4, rows), rng.integers(0, 20, rows), rng.integers(0, 2, rows)
    score = np.clip(strength * (0.2 * age + sex) + rng.integers(0, 3, rows), 0, 7).astype(int)
    odds = strength * (0.15 * age - 1 + 0.7 * sex - 0.5 * (region == 0))
    employed = rng.random(rows) > 1 / (1 + np.exp(-odds))
    return [np.asarray(column).astype(np.uint8) for column in (region, age, sex, score, employed)]


def counting(codes: Codes) -> Count:
    return lambda scores: np.asarray(scores_operator(scores).chunk(codes))


def truth(regression: Regression, codes: Codes) -> Floats:
    inside = regression.where.holds(codes)
    columns = [t.values[codes[t.attribute]][inside] for t in (regression.outcome, *regression.terms)]
    rows = np.column_stack([np.ones(inside.sum()), *columns[1:]])
    fit = logistic if regression.is_logistic else linear
    return fit(rows, columns[0], np.ones((len(rows), 1)))[:, 0]


# --- what a record moves ----------------------------------------------------------------------------------------------


def random_score(text: str, rng: np.random.Generator, size: float) -> Score:
    (found,) = parsed(text, schema=TINY)
    d = len(found.names)
    at, transform = rng.normal(size=d), rng.normal(size=(d, d)) * size * GRID
    return Score(found.is_logistic, found.where, found.outcome, found.terms, at, transform)


@pytest.mark.parametrize("text", ["regression a on b, c", "logistic regression a = 5 on b, c = 1 where c >= 1"])
def test_no_record_moves_a_score_by_more_than_it_costs(text: str) -> None:
    """All 27 kinds of records, for many public coefficients and transforms: never above, and attained within 1 %."""
    rng, largest = np.random.default_rng(0), 0.0
    kinds = [np.array(column, np.uint8) for column in zip(*product(range(3), repeat=3), strict=True)]
    for size in (1e-6, 0.1, 1.0, 1e3, 1e12):
        for _ in range(50):
            moved = random_score(text, rng, size).contributions(kinds)
            lengths = np.sqrt((moved.astype(object) ** 2).sum(0).astype(np.float64))
            assert lengths.max() <= sensitivity(3)
            largest = max(largest, float(lengths.max()))
    assert largest >= 0.99 * sensitivity(3)


def test_sums_are_the_same_for_all_batches() -> None:
    rng = np.random.default_rng(1)
    scores = [random_score(t, rng, 1.0) for t in ("regression a on b, c", "logistic regression a = 5 on b, c")]
    codes = [rng.integers(0, 3, 1_000).astype(np.uint8) for _ in range(3)]
    operator = scores_operator(scores)
    whole = operator.chunk(codes)
    for size in (1, 7, 333):
        parts = [[column[k : k + size] for column in codes] for k in range(0, 1_000, size)]
        total = operator.chunk(parts[0])
        for part in parts[1:]:
            total = operator.add(total, part)
        assert total.tolist() == whole.tolist()
    assert operator.chunk([column[:0] for column in codes]).tolist() == [0] * 6


def test_the_steps_cost_what_the_account_has() -> None:
    """Squares of sensitivity over deviation, of all steps and regressions, sum to the square of mu."""
    regressions, mu = parsed(LINEAR, LOGISTIC), 0.3
    released = codes_of(4_000, seed=0)
    found = measure_regressions(regressions, released, counting(released), records=4_000, mu=mu, noise=Noise(bytes(32)))
    spent = [(sensitivity(len(one.names)) / score.deviation) ** 2 for one in found.measured for score in one.scores]
    assert len(spent) == 2 * len(STEPS)
    assert (1 - 1e-6) * mu**2 <= math.fsum(spent) <= mu**2
    assert draws_of(regressions) == sum(len(score.noisy) for one in found.measured for score in one.scores)


def test_large_numbers_are_refused_before_anything_is_counted() -> None:
    (found,) = parsed("regression a on b", schema=TINY)
    with pytest.raises(ValueError, match="too large"):
        Score(False, found.where, found.outcome, found.terms, np.array([np.nan, 0]), np.eye(2))


# --- what the steps find ----------------------------------------------------------------------------------------------


def measured(mu: float, *, key: int = 0, private: Codes, released: Codes) -> Regressions:
    return measure_regressions(
        parsed(LINEAR, LOGISTIC),
        released,
        counting(private),
        records=float(len(private[0])),
        mu=mu,
        noise=Noise(bytes([key] * 32)),
    )


def test_without_much_noise_the_coefficients_are_the_table_s_own() -> None:
    """Though the released records have others: half of the dependence is missing in them."""
    private, released = codes_of(20_000, seed=1), codes_of(20_000, seed=2, strength=0.7)
    found = measured(30.0, private=private, released=released)
    for one, regression in zip(found.measured, parsed(LINEAR, LOGISTIC), strict=True):
        exact, ours = truth(regression, private), np.array(one.coefficients)
        before = truth(regression, released)
        assert np.abs(ours - exact).max() < 0.05 * np.abs(before - exact).max()
        deviations = np.sqrt(np.diag(one.covariance))
        assert (np.abs(ours - exact) <= 1.96 * deviations).mean() >= 0.75
    assert Regressions.from_bytes(found.to_bytes()) == found


def test_intervals_cover() -> None:
    """Of 30 keys at a small budget: nominal 95 % intervals, which may be too wide and not too short."""
    private, released = codes_of(20_000, seed=3), codes_of(20_000, seed=4, strength=0.9)
    exact = [truth(regression, private) for regression in parsed(LINEAR, LOGISTIC)]
    away = []
    for key in range(30):
        found = measured(0.1, key=key, private=private, released=released)
        for one, true in zip(found.measured, exact, strict=True):
            away.append((np.array(one.coefficients) - true) / np.sqrt(np.diag(one.covariance)))
    scaled = np.array(away)
    assert (np.abs(scaled) <= 1.96).mean() > 0.92
    assert 0.5 < float(np.sqrt((scaled**2).mean())) < 1.1


def test_what_the_released_records_do_not_determine_is_not_asked_of_the_table() -> None:
    """The reason depends on the released records alone; the table is not read for it."""

    def never(scores: object) -> Any:
        raise AssertionError("the table was read")

    released = codes_of(3_000, seed=5)
    alone = [*released[:2], np.zeros(3_000, np.uint8), *released[3:]]  # nobody has the second sex
    few = [column[:10] for column in released]
    for codes, message in ((alone, "the same for all records"), (few, "fewer than five")):
        found = measure_regressions(parsed(LINEAR), codes, never, records=3_000, mu=1, noise=Noise(bytes(32)))
        assert message in found.measured[0].reason
        assert found.measured[0].coefficients == ()
        assert set(found.measured[0].found()) == {"question", "names", "reason"}
    twice = parsed("regression score on sex = 1, sex = 2, age")
    found = measure_regressions(twice, released, never, records=3_000, mu=1, noise=Noise(bytes(32)))
    assert "not linearly independent" in found.measured[0].reason


def test_steps_that_have_not_ended_are_seen() -> None:
    """Released records in which two terms are independent, of a table where they are nearly the same."""
    schema = Schema.model_validate(
        {"attributes": [{"name": n, "kind": "integer", "bounds": [0, 9]} for n in ("a", "b", "y")]}
    )
    rng = np.random.default_rng(0)
    a, other, shift = rng.integers(0, 10, 20_000), rng.integers(0, 10, 20_000), rng.integers(-1, 2, 20_000)
    private = [column.astype(np.uint8) for column in (a, np.clip(a + shift, 0, 9), np.clip(a + shift // 2, 0, 9))]
    released = [column.astype(np.uint8) for column in (a, other, np.clip(a // 2 + other // 2, 0, 9))]
    (regression,) = parsed("regression y on a, b", schema=schema)
    (found,) = measure_regressions(
        [regression], released, counting(private), records=20_000, mu=30, noise=Noise(bytes(32))
    ).measured
    assert "do not become smaller" in found.reason
    assert found.coefficients == ()


def test_noise_is_not_taken_for_steps_that_have_not_ended() -> None:
    """Of released and private records of one law, a step is above four deviations for each of these keys."""
    private, released = codes_of(1_000, seed=1), codes_of(1_000, seed=0)
    (regression,) = parsed("regression score on age")
    exact = truth(regression, private)
    for key in (81, 177, 274, 309, 351, 378, 664, 762, 830, 951):
        noise = Noise(key.to_bytes(32, "big"))
        (found,) = measure_regressions(
            [regression], released, counting(private), records=1_000, mu=0.5, noise=noise
        ).measured
        assert found.reason == ""
        away = (np.array(found.coefficients) - exact) / np.sqrt(np.diag(found.covariance))
        assert np.abs(away).max() < 5


@pytest.mark.parametrize(
    ("varies", "mu", "least"), [(0.06, 0.1, 9), (0.06, 0.15, 12), (0.06, 0.3, 19), (2.0, 0.1, 28), (2.0, 1.0, 30)]
)
def test_slow_steps_are_not_taken_for_noise(varies: float, mu: float, least: int) -> None:
    """Of a term that varies more in the released records, steps go on in one direction; of one that varies less, they
    go to and fro.
    """
    schema = Schema.model_validate(
        {"attributes": [{"name": n, "kind": "integer", "bounds": [0, 10]} for n in ("a", "y")]}
    )
    rng = np.random.default_rng(0)
    some = np.where(rng.random(5_000) < 1 - min(varies, 1 / varies), 5, rng.integers(0, 11, 5_000))
    every = rng.integers(0, 11, 5_000)
    a, other = (some, every) if varies < 1 else (every, some)
    y = np.clip(np.rint(0.9 * a + rng.normal(0, 0.5, 5_000)), 0, 10)
    private = [a.astype(np.uint8), y.astype(np.uint8)]
    released = [other.astype(np.uint8), rng.integers(0, 11, 5_000).astype(np.uint8)]
    (regression,) = parsed("regression y on a", schema=schema)
    refused = 0
    for key in range(30):
        noise = Noise(bytes([key] * 32))
        (found,) = measure_regressions(
            [regression], released, counting(private), records=5_000, mu=mu, noise=noise
        ).measured
        refused += "do not become smaller" in found.reason
    assert refused >= least


def test_noise_beyond_measure_is_said() -> None:
    private = codes_of(500, seed=6)
    found = measured(1e-4, private=private, released=private)
    assert all("noise is too large" in one.reason for one in found.measured)


# --- specs and releases -----------------------------------------------------------------------------------------------


def tree(folder: Path, **changes: Any) -> dict[str, Any]:
    return people(folder, model={"rounds": 1, "balance": 10}, regressions=[LINEAR, LOGISTIC]) | changes


def planned(folder: Path, **changes: Any) -> SynthesisPlan:
    plan = make_plan(load(tree(folder, **changes)))
    assert isinstance(plan, SynthesisPlan)
    return plan


def test_the_share_is_of_the_same_account(tmp_path: Path) -> None:
    plan, without = planned(tmp_path), planned(tmp_path, regressions=[])
    assert plan.regression_mu**2 == pytest.approx(0.1 * plan.mu**2, rel=1e-9)
    assert plan.accuracy_mu**2 == pytest.approx(0.03 * plan.mu**2, rel=1e-9)
    (gaussian, *_) = plan.event.events  # type: ignore[attr-defined]
    assert (1 - 1e-6) / gaussian.noise_multiplier <= plan.mu <= 1 / gaussian.noise_multiplier
    assert (plan.epsilon, plan.delta) == (without.epsilon, without.delta)
    assert without.regression_mu == 0
    assert "regression_mu" not in without.public_parameters()
    assert "2 declared regressions measured in 3 passes" in plan.explain()
    assert "with 10 % of mu^2" in plan.explain()
    assert [stage.name for stage in stages_of(plan)][2:4] == ["accuracy", "regressions"]
    more = planned(tmp_path, privacy={"epsilon": 4, "delta": 1e-7, "regression_share": 0.3})
    assert more.regression_mu**2 == pytest.approx(0.3 * more.mu**2, rel=1e-9)


def test_units_and_weights_have_a_part_of_it(tmp_path: Path) -> None:
    once = planned(tmp_path)
    for name in ("unit", "weight"):
        several = planned(tmp_path, **{name: {"by": "id", "at_most": 4}})
        assert several.regression_mu == pytest.approx(once.regression_mu / 4, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regressions": ["regression score of age"]}, "write `regression OUTCOME on TERM"),
        ({"regressions": ["regression region on age"]}, "'region' has no numbers"),
        ({"regressions": [LINEAR, "regression score on region = 'north', sex = 1, age"]}, "given twice"),
        ({"regressions": ["regression score on age, sex = 1, sex = 1"]}, "a term of .* is given twice"),
        ({"regressions": ["regression score on age >= 0"]}, "the same for all values"),
        ({"regressions": ["regression score on score >= 3"]}, "about the attribute of a term"),
        ({"regressions": ["regression score on age where sex = 1 and sex = 2"]}, "no record can meet"),
        ({"regressions": [], "privacy": {"epsilon": 1, "delta": 1e-7, "regression_share": 0.1}}, "declare `regr"),
        ({"privacy": {"epsilon": 1, "delta": 1e-7, "regression_share": 0.45, "accuracy_share": 0.5}}, "more than 0.9"),
    ],
)
def test_specs_refuse_before_anything_is_charged(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        load(tree(tmp_path, **changes))


def test_the_same_bits_for_any_partitions_and_executor(tmp_path: Path) -> None:
    spec = load(tree(tmp_path))
    first = run_stages(attempt_of(spec, tmp_path / "one", partitions=1))
    other = run_stages(attempt_of(spec, tmp_path / "dask", executor=Cluster(), partitions=7))
    assert other.result(Regressions) == first.result(Regressions)
    assert other.public == first.public
    assert [record.sha256 for record in other.files] == [record.sha256 for record in first.files]
    assert math.fsum(share for _, share in first.public["learned"]["account"]) <= 0.87


def test_a_resumed_attempt_draws_the_same_noise(tmp_path: Path) -> None:
    spec = load(tree(tmp_path))
    whole = run_stages(attempt_of(spec, tmp_path / "whole"))
    run_stages(attempt_of(spec, tmp_path / "once"), until="regressions")
    again = run_stages(attempt_of(spec, tmp_path / "once", partitions=2))
    assert again.result(Regressions) == whole.result(Regressions)
    assert again.public == whole.public


def test_readers_are_given_what_was_measured(tmp_path: Path) -> None:
    release = Published.open(published(tmp_path, fixed_key=KEY, regressions=[LINEAR]))
    assert verify(release.store.uri).kind == "synthesis"
    (file,) = [record for record in release.manifest.files if record.name.endswith(Regressions.FILE)]
    assert len(json.loads(release.store.read_bytes(file.name))["regressions"][0]["scores"]) == len(STEPS)
    asked = "regression score on region = 'north', age, sex = 1"  # the same, in another order
    answers = answer(release, asked)
    assert [one.question.rsplit(": ", 1)[1] for one in answers] == ["constant", "region = 'north'", "age", "sex = 1"]
    assert all(one.note == f"{MEASURED_NOTE}; {BINS_NOTE}" for one in answers)
    frame = table(6_000).to_pandas()
    rows = np.column_stack(
        [np.ones(6_000), frame["region"] == "north", frame["age"] // 5 * 5 + 2, frame["sex"] == 1]
    ).astype(np.float64)
    exact = linear(rows, frame["score"].to_numpy(np.float64), np.ones((6_000, 1)))[:, 0]
    for one, true in zip(answers, exact, strict=True):
        assert one.low is not None
        assert one.high is not None
        assert one.low - (one.high - one.low) / 2 < true < one.high + (one.high - one.low) / 2
    other = answer(release, "regression score on age, sex = 1")
    assert all(MEASURED_NOTE not in one.note for one in other)
    for question, said in {
        "mean age": True,
        "mean score over mean age": True,
        "mean score where age >= 20": False,
        "share where age >= 20": False,
        "quantile 0.9 age": False,
    }.items():
        assert (BINS_NOTE in answer(release, question)[0].note) is said
    widths = [b.deviation / a.deviation for a, b in zip((answers[2], answers[3]), other[1:], strict=True)]  # type: ignore[operator]
    assert min(widths) > 1


def test_a_wide_top_bin_counts_as_its_mean_in_the_release(tmp_path: Path) -> None:
    """Of incomes with an open end: by middles of bins the difference of the sexes would be five times what it is."""
    rng = np.random.default_rng(3)
    sex = rng.integers(1, 3, 6_000)
    income = np.minimum(np.exp(rng.normal(10.5, 0.8, 6_000)) * np.where(sex == 1, 1.5, 1), 1_999_999).astype(int)
    pq.write_table(pa.table({"sex": sex, "income": income}), tmp_path / "incomes.parquet")
    edges = [0, *range(10_000, 100_000, 10_000), 100_000, 150_000]
    made = published(
        tmp_path,
        fixed_key=KEY,
        schema={
            "attributes": [
                {"name": "sex", "kind": "categorical", "values": [1, 2]},
                {"name": "income", "kind": "integer", "bounds": [0, 2_000_000], "bins": {"edges": edges}},
            ]
        },
        data={"path": str(tmp_path / "incomes.parquet"), "minimum_records": 5_000},
        regressions=["regression income on sex = 1"],
    )
    of_sex = answer(Published.open(made), "regression income on sex = 1")[1]
    assert of_sex.note.startswith(MEASURED_NOTE)
    exact = float(income[sex == 1].mean() - income[sex == 2].mean())
    assert of_sex.estimate == pytest.approx(exact, rel=0.25)


def test_of_wide_tables_they_are_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which neither pairs of values nor the accuracy are: a score needs no table."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 20_000, 4_000)
    columns = {"a": a, "b": np.clip(a // 10 + rng.integers(-200, 200, 4_000), 0, 1_999)}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    wide = {
        "schema": {
            "attributes": [
                {"name": name, "kind": "integer", "bounds": [0, size - 1]}
                for name, size in (("a", 20_000), ("b", 2_000))
            ]
        },
        "data": {"path": str(tmp_path / "table.parquet"), "minimum_records": 3_500},
        "model": {"rounds": 1, "balance": 0},
        "regressions": ["regression b on a"],
    }
    monkeypatch.setattr(plan, "choose", lambda *given, **more: replace(choose(*given, **more), cells=50_000))
    attempt = run_stages(attempt_of(load(tree(tmp_path, **wide)), tmp_path / "wide"))
    assert "accuracy" not in attempt.public
    (found,) = attempt.public["regressions"]["measured"]
    exact = np.polyfit(columns["a"], columns["b"], 1)[::-1]
    away = np.array(found["coefficients"]) - exact
    assert (np.abs(away) <= 4 * np.sqrt(np.diag(found["covariance"]))).all()


def test_units_are_bounded_before_they_are_measured(tmp_path: Path) -> None:
    """Of a patient with all records, as many count as are declared: the coefficients are those of the others."""
    frame = table(6_000).to_pandas()
    frame["id"] = np.arange(6_000)
    many = frame.assign(id=np.arange(6_000) // 2_000 + 10_000, sex=1, score=0)
    pq.write_table(pa.Table.from_pandas(pd.concat([frame, many], ignore_index=True)), tmp_path / "table.parquet")
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("people", epsilon="100", delta="1e-3")
    ledger.close()
    spec = tree(
        tmp_path,
        unit={"by": "id", "at_most": 2},
        data={"path": str(tmp_path / "table.parquet"), "minimum_records": 5_000},
        privacy={"epsilon": 20, "delta": 1e-7},
        regressions=["regression score on sex = 1"],
    )
    run_release(load(spec), fixed_key=KEY)
    of_sex = answer(Published.open(tmp_path / "release"), "regression score on sex = 1")[1]
    exact = frame.groupby(frame["sex"] == 1)["score"].mean().diff().iloc[-1]
    assert of_sex.note == MEASURED_NOTE
    assert of_sex.estimate == pytest.approx(exact, abs=0.1)  # with all records of the three it would be -2
