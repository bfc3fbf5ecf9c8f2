"""A schedule over months: one spec, a name by date, and a contract that says what a month may spend."""

import json
import signal
import subprocess
import sys
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
from forkserver import Python
from outcomes import states
from releases import SCHEMA, project, table
from typer.testing import CliRunner

from dpdist import errors
from dpdist.cli.commands import app
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


# --- `--once`: begin, continue, or find it published. What a job may repeat without a thought


def test_twice_is_one_release_and_one_charge(tmp_path: Path) -> None:
    spec = project(tmp_path)
    first = run_release(spec, attempt="once")
    second = run_release(spec, attempt="once")
    assert (first.already, second.already) == (False, True)
    assert second.attempt == first.attempt
    assert second.budget == first.budget
    assert states(spec) == ["committed"]


def test_what_was_interrupted_is_continued(tmp_path: Path) -> None:
    spec = project(tmp_path)
    with Run(spec, attempt="once") as run:
        steps = iter(run.steps.values())
        next(steps)()
        next(steps)()
    assert states(spec) == ["drawing"]
    outcome = run_release(spec, attempt="once")
    assert not outcome.already
    assert states(spec) == ["committed"]


def test_another_spec_under_the_same_name_is_refused(tmp_path: Path) -> None:
    run_release(project(tmp_path), attempt="once")
    with pytest.raises(errors.ReleaseConflict, match="another spec"):
        run_release(project(tmp_path, synthesis__records=2_000), attempt="once")


def test_only_the_four_words_are_known(tmp_path: Path) -> None:
    with pytest.raises(errors.SpecError, match="new, resume, once, replace"):
        run_release(project(tmp_path), attempt="again")  # type: ignore[arg-type]


def test_flags_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(project(tmp_path).model_dump(mode="json", by_alias=True)))
    refused = CliRunner().invoke(app, ["release", str(path), "--once", "--new-attempt"])
    assert "one of --resume, --new-attempt, --once" in str(refused.exception)
    assert states(project(tmp_path)) == []


def test_on_the_command_line_a_second_run_ends_well_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(project(tmp_path).model_dump(mode="json", by_alias=True)))
    first, second = (CliRunner().invoke(app, ["release", str(path), "--once"]) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "Nothing to do" not in first.stdout
    assert second.stdout.startswith("Nothing to do: it was published already, by attempt")
    assert second.stdout.endswith(first.stdout)
    third = CliRunner().invoke(app, ["release", str(path), "--once", "--json"])
    assert json.loads(third.stdout)["already"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_terminated_can_be_continued(tmp_path: Path, number: signal.Signals) -> None:
    """As the first process of a container, which no signal ends that it does not handle."""
    cluster = {"cluster__mode": "embedded", "cluster__workers": 1}
    spec = project(tmp_path, **cluster, synthesis__omega="all", synthesis__records=40_000)
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True)))
    command = [sys.executable, "-m", "dpdist", "release", str(path), "--once"]
    process = Python(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.startswith("reading: done") for line in process.stderr)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "terminated" in error
    assert "Traceback" not in error
    assert not run_release(spec, attempt="once").already
    assert states(spec) == ["committed"]
