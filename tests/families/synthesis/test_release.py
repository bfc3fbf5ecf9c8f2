"""A synthesis from a table to its parts: the plan, the stages on every executor, the audit, and a whole release."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from releases import SCHEMA, table
from syntheses import choose_instead

from dpdist.accuracy import measured
from dpdist.accuracy.measured import Accuracy
from dpdist.cluster.cluster import Cluster
from dpdist.cluster.executor import Executor, InProcess
from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.accuracy import ReleaseAccuracy
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.families.synthesis.claims import claims
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.model import account as accounts
from dpdist.model import draw as drawing
from dpdist.model.choices import SECOND_COPY, choose
from dpdist.model.draw import parts_of
from dpdist.model.fitted import Fitted
from dpdist.model.forecast import pair_deviation, usable_group
from dpdist.model.learn import Learned
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim, audit
from dpdist.publish.verify import read_release
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.rules import Rules
from dpdist.storage.store import Store

ROWS = 12_000


def tree(folder: Path, **changes: Any) -> dict[str, Any]:
    data = folder / "table.parquet"
    if not data.exists():
        pq.write_table(table(ROWS), data, row_group_size=2_000)
    spec: dict[str, Any] = {
        "kind": "synthesis",
        "name": "first",
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"path": str(data), "minimum_records": 10_000},
        "output": {"path": str(folder / "release"), "rows_per_part": 2_000},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "cluster": {"mode": "in-process"},
        "privacy": {"epsilon": 4, "delta": 1e-7},
        "synthesis": {"records": 5_000},
    }
    return spec | changes


def project(folder: Path, **changes: Any) -> ReleaseSpec:
    return load(tree(folder, **changes))


def planned(folder: Path, **changes: Any) -> SynthesisPlan:
    plan = make_plan(project(folder, **changes))
    assert isinstance(plan, SynthesisPlan)
    return plan


PLENTY = {"privacy": {"epsilon": 20, "delta": 1e-7}}
RAKED = {"one_way": 0.1, "one_way_again": 0.1, "rake": 0.8}
WITH_TRIPLES = {**RAKED, "rake": 0.6, "triples": 0.2}
"""Shares of the budget of a model whose records are raked, with and without triples."""


# --- plan -------------------------------------------------------------------------------------------------------------


def test_the_plan_spends_the_budget_and_says_what_for(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert 4 * 0.998 < plan.epsilon <= 4
    assert plan.kind == "dp"
    (guarantee,) = plan.guarantees
    assert "whole release" in guarantee.sentence()
    text = plan.explain()
    assert "Pairs" in planned(tmp_path, privacy={"epsilon": 0.05, "delta": 1e-7}).explain()
    for word in ("One-way", "Raking", "Records     5,000 in 3 parts", guarantee.statement()):
        assert word in text
    assert plan.to_json()["parameters"]["choices"]["mu"] == plan.choices.mu
    assert plan.needs().partitions == 1


def test_rounds_and_exchanges_can_be_set(tmp_path: Path) -> None:
    choices, default = planned(tmp_path, model={"rounds": 1, "balance": 0}).choices, planned(tmp_path).choices
    assert choices == replace(default, mu=choices.mu, rounds=1, balance=0)
    few = {"privacy": {"epsilon": 0.05, "delta": 1e-7}}
    choices, default = planned(tmp_path, model={"rounds": 1}, **few).choices, planned(tmp_path, **few).choices
    assert choices.rounds == 1 < default.rounds
    for name in ("high", "high_picks"):  # parts of a round
        assert getattr(choices, name) == pytest.approx(getattr(default, name) * default.rounds)


def test_a_target_and_priorities_are_weights_of_pairs(tmp_path: Path) -> None:
    names = [attribute["name"] for attribute in SCHEMA["attributes"]]
    priorities = [
        {"attributes": [names[2], names[0]], "weight": 5},
        {"attributes": [names[1], names[3]], "weight": 0.5},
        {"attributes": [names[4]], "weight": 3},
        {"attributes": [names[2], names[3], names[4]], "weight": 7},
    ]
    plan = planned(tmp_path, model={"target": names[0], "priorities": priorities})
    found = {(i, j): weight for i, j, weight in plan.choices.priorities}
    expected = (
        {(0, j): 2.0 for j in range(1, len(names))}
        | {(0, 4): 3.0, (1, 4): 3.0}
        | dict.fromkeys([(2, 3), (2, 4), (3, 4)], 7.0)
    )
    assert found == expected | {(0, 2): 5.0, (1, 3): 0.5}
    assert f"{len(found)} pairs have a weight" in " ".join(plan.explain().split())
    assert plan.choices.coarse == ((24, 20), SECOND_COPY)  # for means by the values of names[4]
    assert planned(tmp_path, model={"priorities": priorities[:2]}).choices.coarse == ((24, 20),)
    assert plan.public_parameters()["choices"]["priorities"][0] == [0, 1, 2.0]


def test_the_plan_says_which_groups_have_usable_means(tmp_path: Path) -> None:
    cards = (226, 20, 9, 5)
    choices = choose(cards, records=60_000, mu=0.18)
    size, codes = usable_group(choices, cards), np.arange(20) - 9.5
    counts = size / 20 + np.random.default_rng(0).normal(0, pair_deviation(choices, 4), (4_000, 20))
    errors = counts @ codes / counts.sum(1) / codes.std()
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(0.2, rel=0.15)
    assert usable_group(choose(cards, records=60_000, mu=0.36), cards) < 0.6 * size
    assert usable_group(replace(choices, coarse=(*choices.coarse, SECOND_COPY)), cards) < 0.5 * size
    assert usable_group(choose(cards, records=100, mu=1e-3), cards) is None
    assert "means of numbers in groups of about" in " ".join(planned(tmp_path).explain().split())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"target": "salary"}}, "no attribute is called 'salary'"),
        ({"model": {"priorities": [{"attributes": ["score", "salary"], "weight": 2}]}}, "'salary'"),
        ({"model": {"priorities": [{"attributes": ["score", "score"], "weight": 2}]}}, "different"),
        ({"model": {"shares": {"one_way": 0.5}}}, "model.shares: there is no such setting"),
        ({"privacy": {"epsilon": 0, "delta": 1e-7}}, "epsilon"),
        ({"synthesis": {"records": 0}}, "records"),
        ({"schema": {"attributes": [{"name": "x", "kind": "number", "bounds": [0, 1]}]}}, "continuous"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        project(tmp_path, **changes)


def test_refuses_parts_that_are_too_large(tmp_path: Path) -> None:
    output = {"path": str(tmp_path / "release"), "rows_per_part": 2_000_000}
    with pytest.raises(SpecError, match="rows_per_part"):
        planned(tmp_path, output=output, synthesis={"records": 3_000_000})


REGRESSED = {
    "regressions": ["regression score on age"],
    "privacy": {"epsilon": 1e-5, "delta": 1e-10, "regression_share": 1e-8},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (REGRESSED, r"privacy\.regression_share: noise of a deviation of up to"),
        ({"privacy": {"epsilon": 1e-6, "delta": 1e-10, "accuracy_share": 1e-20}}, r"privacy\.accuracy_share: noise"),
    ],
)
def test_noise_that_cannot_be_drawn_is_refused_by_the_plan(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AccountingError, match=message):
        planned(tmp_path, **changes)
    planned(tmp_path, privacy={"epsilon": 1e-6, "delta": 1e-12})  # the least budget, by the default choices


def test_parts() -> None:
    assert parts_of(5_000, 2_000) == [2_000, 2_000, 1_000]
    assert parts_of(4_000, 2_000) == [2_000, 2_000]


# --- stages -----------------------------------------------------------------------------------------------------------


MODEL = {"privacy": {"epsilon": 0.5, "delta": 1e-7}}


@pytest.mark.parametrize("shares", [None, RAKED, WITH_TRIPLES], ids=["model", "raked", "triples"])
def test_the_same_bits_for_any_partitions_and_executor(
    shares: dict[str, float] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shares is not None:
        choose_instead(monkeypatch, shares)
    spec = project(tmp_path, **(MODEL if shares is None else PLENTY))
    first = run_stages(attempt_of(spec, tmp_path / "one", partitions=1))
    other = run_stages(attempt_of(spec, tmp_path / "dask", executor=Cluster(), partitions=16))
    report = first.result(Learned).report
    assert report["raked"] is (shares is not None)
    measured_at = [table.step for table in first.result(Learned).measurements.tables]
    assert measured_at.count("triples") == (math.comb(len(spec.table.names), 3) if shares is WITH_TRIPLES else 0)
    assert [part.rows for part in first.parts] == [2_000, 2_000, 1_000]
    assert [part.sha256 for part in other.parts] == [part.sha256 for part in first.parts]
    assert other.result(Learned).to_bytes() == first.result(Learned).to_bytes()
    assert other.public == first.public
    assert other.result(ReleaseAccuracy) == first.result(ReleaseAccuracy)


def test_the_accuracy_is_measured_within_the_account(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    choices, mu = plan.choices, math.hypot(plan.choices.mu, plan.accuracy_mu)
    assert plan.accuracy_mu**2 == pytest.approx(0.03 * mu**2, rel=1e-9)
    without = planned(tmp_path, privacy={"epsilon": 4, "delta": 1e-7, "accuracy_share": 0})
    assert without.accuracy_mu == 0
    assert choices.mu < without.choices.mu
    assert mu <= without.choices.mu
    assert "accuracy" not in [stage.name for stage in stages_of(without)]
    attempt = run_stages(attempt_of(project(tmp_path), tmp_path / "a"))
    shares = math.fsum(share for _, share in attempt.public["learned"]["account"])
    assert shares <= 0.97
    assert attempt.public["accuracy"]["sentence"].startswith("Measured accuracy: in 95 of 100 cells")
    assert Accuracy.from_json(attempt.public["accuracy"]).released == 5_000


@pytest.mark.parametrize("executor", [InProcess(), Cluster()], ids=["in-process", "threads"])
def test_a_pool_that_is_held_is_not_drawn_again(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def pool_part(fitted: Fitted, noise: Noise, part: int, rows: int, rules: Rules) -> Codes:
        drawn.append(part)
        return drawing.kept_part(fitted, noise, f"pool/{part}", rows, rules)

    monkeypatch.setattr(drawing, "pool_part", pool_part)  # of the stage that draws; learning draws the pool itself
    choose_instead(monkeypatch, RAKED, pool_parts=1)
    spec = project(tmp_path, **PLENTY)
    whole = run_stages(attempt_of(spec, tmp_path / "whole", executor=executor))
    assert not drawn
    run_stages(attempt_of(spec, tmp_path / "once", executor=executor), until="records")
    again = run_stages(attempt_of(spec, tmp_path / "once", executor=executor))  # as another process does
    assert drawn == [0]  # one pool serves all parts of the release, and is drawn once
    assert [part.sha256 for part in again.parts] == [part.sha256 for part in whole.parts]


def test_a_pool_is_of_the_model_that_was_stored_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes at one attempt learn other models: both draw from the one that is stored."""
    choose_instead(monkeypatch, RAKED)
    spec = project(tmp_path, **PLENTY)
    first = run_stages(attempt_of(spec, tmp_path / "first"))
    content, stored = (tmp_path / "first" / "work" / Learned.FILE).read_bytes(), Store.write_exclusive

    def write_exclusive(self: Store, name: str, made: bytes) -> bytes:
        return stored(self, name, content if name == Learned.FILE else made)

    monkeypatch.setattr(Store, "write_exclusive", write_exclusive)
    monkeypatch.setattr(Attempt, "drawing_key", first.drawing_key)
    second = run_stages(attempt_of(spec, tmp_path / "second", key="ff" * 32))
    assert [part.sha256 for part in second.parts] == [part.sha256 for part in first.parts]


def test_a_release(tmp_path: Path) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("people", epsilon="50", delta="1e-5", guarantees=("dp",))
    ledger.close()
    outcome = run_release(project(tmp_path))
    assert outcome is not None
    found = read_release(str(tmp_path / "release"))
    assert found.num_rows == 5_000
    assert found.column_names == [attribute["name"] for attribute in SCHEMA["attributes"]]
    truth = table(ROWS)
    for name in ("region", "score", "employed"):
        ours, theirs = (dict(zip(*_shares(t[name]), strict=True)) for t in (found, truth))
        assert sum(abs(ours.get(v, 0) - share) for v, share in theirs.items()) < 0.05


def _shares(column: pa.ChunkedArray) -> tuple[list[Any], list[float]]:
    values, counts = np.unique(column.to_numpy(zero_copy_only=False), return_counts=True)
    return values.tolist(), (counts / counts.sum()).tolist()


# --- audit ------------------------------------------------------------------------------------------------------------

SMALL = {
    "attributes": [
        {"name": name, "kind": "categorical", "values": list(range(size))} for name, size in (("a", 3), ("b", 2))
    ]
}
STEPS = {
    "one-way": {"one_way": 0.5, "one_way_again": 0.5},
    "tree": {"one_way": 0.05, "one_way_again": 0.05, "tree": 0.8, "picks": 0.1},
    "rounds": {"one_way": 0.05, "one_way_again": 0.05, "pairs": 0.8, "picks": 0.1},
    "all pairs": {"one_way": 0.1, "rake": 0.9},
    "triples": {"one_way": 0.08, "rake": 0.4, "triples": 0.52},
    "accuracy": {"one_way": 0.05},
    "regressions": {"one_way": 0.05},
}  # fmt: skip


def claim(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch, *, epsilon: float, folder_too: bool = False
) -> Claim:
    """What is released where nearly all of the account goes to one step."""
    names = "abc" if step == "triples" else "ab"
    choose_instead(monkeypatch, STEPS[step], rounds=1, per_round=1, balance=0)
    changes = {
        "schema": {"attributes": [{"name": name, "kind": "categorical", "values": [0, 1, 2]} for name in names]},
        "data": {"path": "unused", "minimum_records": 100},
        "privacy": {"epsilon": epsilon, "delta": 0.09, "accuracy_share": 0.5 if step == "accuracy" else 0.03},
    }
    if step == "regressions":
        changes |= {"regressions": ["regression a on b"]}
        changes["privacy"] = {"epsilon": epsilon, "delta": 0.09, "accuracy_share": 0, "regression_share": 0.5}
    return claims(planned(folder, **changes))[folder_too]


@pytest.mark.slow
def test_the_whole_folder_is_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its files and records alone; the bound is near what is stated, so the attack has power."""
    found = claim(tmp_path, "one-way", monkeypatch, epsilon=4, folder_too=True)
    assert found.name == "folder of 2 attributes"
    finding = audit(found, runs=200, key=bytes(32))
    assert not finding.rejected
    assert finding.lower_bound > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_the_audit_comes_near_and_rejects_nothing(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = audit(
        claim(tmp_path, step, monkeypatch, epsilon=4), runs=1_000 if step == "triples" else 500, key=bytes(32)
    )
    assert not finding.rejected
    # half is spent on accuracy or regressions
    assert finding.lower_bound > (0.1 if step in ("accuracy", "regressions") else 0.15) * finding.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_the_audit_rejects_too_little_noise(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the noise, and an account that does not see it."""
    deviations = accounts.GaussianAccount.deviations
    spend = accounts.GaussianAccount._spend
    monkeypatch.setattr(accounts.GaussianAccount, "deviations", lambda self, *given: deviations(self, *given) / 3)
    of_accuracy = measured.deviations
    monkeypatch.setattr(
        measured, "deviations", lambda *given, mu: {name: s / 3 for name, s in of_accuracy(*given, mu=mu).items()}
    )
    monkeypatch.setattr(
        accounts.GaussianAccount, "_spend", lambda self, name, spent, draws: spend(self, name, 0.0, draws)
    )
    assert audit(claim(tmp_path, step, monkeypatch, epsilon=1), runs=500, key=bytes(32)).rejected


def test_rehearsals_release_as_many_records(tmp_path: Path) -> None:
    plan = planned(tmp_path, schema=SMALL, synthesis={"records": 70}, data={"path": "unused", "minimum_records": 100})
    codes = [np.zeros(60, np.uint8), np.ones(60, np.uint8)]
    made = rehearse(plan, stages_of(plan), codes, key=key_from(Noise(bytes(32))))
    assert [len(column) for column in released_codes(made)] == [70, 70]
    assert math.isfinite(made.result(Learned).report["records"])
