"""Run lists, run records and structured logs."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import forkserver
import pytest
import yaml
from reading import readable
from releases import Crash, crashing, project
from typer.testing import CliRunner

from dpdist import errors
from dpdist.cli.runs import runs_app
from dpdist.cluster import logs
from dpdist.lifecycle.run import run_release


@pytest.fixture
def two_runs(tmp_path: Path) -> tuple[list[str], str]:
    """Options of a ledger with a finished and an interrupted release, and the id of the finished attempt."""

    done = run_release(project(tmp_path))
    with pytest.raises(Crash):
        run_release(project(tmp_path, name="second", output__path=str(tmp_path / "second")), progress=crashing())
    return ["--ledger", f"sqlite:///{tmp_path}/ledger.db", "--work", str(tmp_path / "work")], done.attempt


def test_runs_are_listed_with_what_they_stored(two_runs: tuple[list[str], str]) -> None:
    options, _ = two_runs
    listed = json.loads(CliRunner().invoke(runs_app, ["list", "--json", *options]).output)
    assert [(run["release"], run["state"]) for run in listed] == [("first", "committed"), ("second", "drawing")]
    assert "run-record.json" in listed[0]["stored"]
    assert "network.bin" in listed[1]["stored"]
    assert "_manifest.json" not in listed[1]["stored"]
    table = CliRunner(env={"COLUMNS": "60"}).invoke(runs_app, ["list", *options]).output
    assert "drawing" in table
    assert "…" not in table  # a name in full, on several lines


def test_a_run_record_is_shown_as_confidential(two_runs: tuple[list[str], str]) -> None:
    options, attempt = two_runs
    record = json.loads(CliRunner().invoke(runs_app, ["show", attempt, *options]).output)
    assert record["confidential"].startswith("confidential")
    assert record["attempt"] == attempt
    assert json.loads(CliRunner().invoke(runs_app, ["show", attempt[:8], *options]).output) == record
    assert set(record["seconds"]) >= {"counting", "writing"}


def test_a_run_without_record(two_runs: tuple[list[str], str]) -> None:
    options, _ = two_runs
    listed = json.loads(CliRunner().invoke(runs_app, ["list", "--json", *options]).output)
    answer = CliRunner().invoke(runs_app, ["show", listed[1]["attempt"], *options])
    assert isinstance(answer.exception, errors.DataNotFound)
    answer = CliRunner().invoke(runs_app, ["show", "nobody", *options])
    assert isinstance(answer.exception, errors.LedgerError)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("json", stream=stream)
    yield stream
    logs.configure("none")


def test_stages_are_logged_as_json(tmp_path: Path, log: io.StringIO) -> None:
    outcome = run_release(project(tmp_path))
    entries = [json.loads(line) for line in log.getvalue().splitlines()]
    started = [entry["stage"] for entry in entries if entry["message"] == "stage started"]
    assert started.index("counting") < started.index("synthesising") < started.index("writing")
    assert {entry["attempt"] for entry in entries if "stage" in entry} == {outcome.attempt}
    assert all(entry["seconds"] >= 0 for entry in entries if entry["message"] == "stage finished")


def test_attempts_are_logged_from_their_charge_to_their_end(tmp_path: Path, log: io.StringIO) -> None:
    spec = project(tmp_path, cluster__partitions=1)
    with pytest.raises(Crash):
        run_release(spec, progress=crashing(text="planted"))
    outcome = run_release(spec, attempt="resume")
    entries = [json.loads(line) for line in log.getvalue().splitlines()]
    told = [entry for entry in entries if "stage" not in entry]
    assert [entry["message"] for entry in told] == [
        *("attempt reserved", "run ended early", "attempt resumed", "release committed", "release published"),
    ]
    whose = {"release": "first", "dataset": "people", "attempt": outcome.attempt}
    assert all(entry.items() >= whose.items() for entry in told)
    assert all(entry.items() >= {"partitions": 1}.items() for entry in told[:3])
    assert told[1]["error"] == "Crash"
    assert "planted" not in log.getvalue()


def test_the_log_does_not_say_how_many_records_there_are(tmp_path: Path, log: io.StringIO) -> None:
    """By default the number of partitions follows from theirs."""
    run_release(project(tmp_path))
    assert "attempt reserved" in log.getvalue()
    assert "partitions" not in log.getvalue()


def test_workers_log_their_tasks(tmp_path: Path) -> None:
    spec = project(tmp_path, cluster={"mode": "embedded", "workers": 1, "partitions": 2})
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True, exclude_none=True)))
    done = forkserver.run("-m", "dpdist", "release", file, "--json", env={**os.environ, "DPDIST_LOG": "json"})
    assert done.returncode == 0, done.stderr
    attempt = json.loads(done.stdout)["attempt"]
    entries = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    tasks = [entry for entry in entries if "task" in entry]
    assert {entry["attempt"] for entry in tasks} == {attempt}
    assert {"read-encode", "counting-pairs", "candidates-test", "write-part"} <= {entry["task"] for entry in tasks}
    assert all(entry.keys() == {"time", "level", "message", "task", "attempt", "seconds"} for entry in tasks)
    assert any(entry["message"] == "stage finished" for entry in entries)


def test_values_never_reach_the_log(log: io.StringIO) -> None:
    try:
        raise ValueError("secret 4711")
    except ValueError:
        logging.getLogger("dpdist").exception("a stage failed: %s", "secret 4711", extra={"row": "secret 4711"})
    entry = json.loads(log.getvalue())
    assert entry["error"] == "ValueError"
    assert entry["level"] == "error"
    assert "4711" not in readable(log.getvalue())


def test_configuring_again_replaces_and_removes(log: io.StringIO) -> None:
    again = io.StringIO()
    logs.configure("json", stream=again)
    logging.getLogger("dpdist").info("once")
    assert json.loads(again.getvalue())["message"] == "once"
    assert not log.getvalue()
    logs.configure("none")
    logging.getLogger("dpdist").info("never")
    assert again.getvalue().count("\n") == 1


def test_an_unforeseen_error_is_told_by_its_file_in_the_work_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod's temporary folder goes with the pod."""
    from dpdist.cli import commands

    def run(**_: object) -> None:
        run_release(project(tmp_path), progress=crashing(text="a salary of forty"))

    monkeypatch.setattr(commands, "app", run)
    monkeypatch.setattr(commands.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 70
    (report,) = (tmp_path / "work").glob("*/error.txt")
    told = " ".join(capsys.readouterr().err.split())
    assert "internal error (Crash)" in told
    assert str(report) in told
    assert "forty" not in told
    assert "a salary of forty" in report.read_text()
