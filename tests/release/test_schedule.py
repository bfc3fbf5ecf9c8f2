"""A schedule over months: one spec, a name by date, and a contract that says what a month may spend."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from commands import Command
from releases import SCHEMA, table

from dpdist.errors import BudgetExceeded, ReleaseConflict
from dpdist.ledger import Books
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.publication import Outcome
from dpdist.lifecycle.run import Run, run_release
from dpdist.publish.verify import verify
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load

Schedule = Callable[..., Outcome]


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    """A spec that releases a histogram of epsilon 1/2 every month; a month may spend 3/5 of 4."""
    (tmp_path / "public").mkdir()
    rows = table(2_000)
    pq.write_table(rows, tmp_path / "people.parquet")
    data = {"path": f"{tmp_path}/people.parquet"}
    tree: dict[str, Any] = {"schema": SCHEMA, "data": data, "minimum_records": 1000, "epsilon": 4, "delta": "1e-6"}
    contract = Contract.model_validate({**tree, "period": {"per": "month", "epsilon": "3/5"}})
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Books.open(url)
    ledger.create_from_contract("people", contract)
    found = check_input(contract)
    ledger.admit_input("people", fingerprint=found.fingerprint, contract=contract.digest)
    ledger.close()
    spec = {
        "kind": "histogram",
        "name": "people-{date:%Y-%m}",
        "dataset": "people",
        "schema": SCHEMA,
        "data": {**data, "minimum_records": 1000},
        "output": {"path": f"{tmp_path}/public/{{date:%Y-%m}}"},
        "ledger": url,
        "work": f"{tmp_path}/work",
        "privacy": {"epsilon": 0.5},
        "histograms": [{"columns": ["region"]}],
    }
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.fixture
def on(spec_file: Path, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    """What a schedule does on a day; `named` is the day that an operator sets."""

    def run(day: str, *, named: str | None = None) -> Outcome:
        monkeypatch.setattr("dpdist.ledger.book.now", lambda: f"{day}T03:00:00.000+00:00")
        settings = {} if named is None else {"date": named}
        return run_release(load(spec_file, settings, day=date.fromisoformat(day)), attempt="once")

    return run


def charges(folder: Path) -> dict[str, str]:
    ledger = Books.open(f"sqlite:///{folder}/ledger.db", create=False)
    found = {attempt.release: attempt.state for attempt in ledger.verify("people").attempts}
    ledger.close()
    return found


def test_three_months_with_one_missed_and_one_doubled_run(tmp_path: Path, on: Schedule) -> None:
    january = on("2026-01-01")
    assert on("2026-01-01").already
    assert on("2026-01-31").already  # a late second run of the month, too
    march = on("2026-03-01")  # there was no run in February
    assert not march.already
    with pytest.raises(BudgetExceeded, match=r"this month, above the 0\.6 that its contract lets a month spend"):
        on("2026-03-02", named="2026-02-01")  # made up for in March, which has spent its cap
    february = on("2026-04-02", named="2026-02-01")
    with pytest.raises(BudgetExceeded, match="from 2026-05-01 on"):
        on("2026-04-03")
    released = {"people-2026-01": january, "people-2026-02": february, "people-2026-03": march}
    assert charges(tmp_path) == dict.fromkeys(released, "committed")
    for name, outcome in released.items():
        assert outcome.uri.endswith(name.removeprefix("people-"))
        assert verify(outcome.uri).cells == 4
    assert len({outcome.attempt for outcome in released.values()}) == 3


def test_a_run_that_is_continued_in_the_next_month_is_the_same_release(
    tmp_path: Path, spec_file: Path, on: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdist.ledger.book.now", lambda: "2026-01-31T23:59:00.000+00:00")
    with Run(load(spec_file, day=date(2026, 1, 31)), attempt="once") as run:
        for step in list(run.steps.values())[:2]:
            step()
    on("2026-02-01")  # the schedule goes on with February, which January's attempt takes nothing from
    assert charges(tmp_path) == {"people-2026-01": "drawing", "people-2026-02": "committed"}
    assert not on("2026-02-01", named="2026-01-31").already
    assert charges(tmp_path) == dict.fromkeys(["people-2026-01", "people-2026-02"], "committed")


def test_two_runs_at_the_same_time_are_one_charge(tmp_path: Path, spec_file: Path) -> None:
    barrier = Barrier(2)

    def run(_: int) -> str:
        spec = load(spec_file, day=date(2026, 1, 1))
        barrier.wait()
        try:
            return run_release(spec, attempt="once").attempt
        except ReleaseConflict:  # the other one was first: this one did nothing
            return ""

    with ThreadPoolExecutor(2) as pool:
        attempts = set(pool.map(run, range(2))) - {""}
    assert len(attempts) == 1
    assert charges(tmp_path) == {"people-2026-01": "committed"}


def test_the_plan_says_that_a_month_has_spent_its_cap(spec_file: Path, dpdist: Command) -> None:
    day = ("--set", "date=2026-01-15")
    before = dpdist("plan", str(spec_file), *day)
    assert "epsilon 0.6 of 0.6 left" in before.words
    assert "a month has a cap" not in before.words
    assert dpdist("release", str(spec_file), "--once", *day).code == 0
    planned = dpdist("plan", str(spec_file), "--set", "date=2026-02-15")
    assert "too little for this release until" in planned.words
    shown = dpdist("ledger", "show", "people", "--ledger", f"sqlite:///{spec_file.parent}/ledger.db")
    assert "epsilon 0.1 of 0.6 left" in shown.words
    refused = dpdist("release", str(spec_file), "--once", "--set", "date=2026-02-15")
    assert refused.code != 0
    assert "its contract lets a month spend" in refused.err
