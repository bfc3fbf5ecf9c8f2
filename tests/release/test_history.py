"""Run lists, run records and structured logs."""

import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import forkserver
import pytest
import yaml
from cases import CASES
from outcomes import states
from reading import readable
from releases import SCHEMA, Crash, crashing, project
from typer.testing import CliRunner

from dpdist import errors
from dpdist.cli.runs import runs_app
from dpdist.cluster import logs
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.registry import make_plan
from dpdist.lifecycle.lineage import LINEAGE, Lineage, client_of, named
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
    table = CliRunner(env={"COLUMNS": "80"}).invoke(runs_app, ["list", *options]).output
    assert {"run-record.json", "_datapackage.json", "network.bin"} <= set(table.split())  # files on lines of their own


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
        *("attempt reserved", "run ended early", "attempt resumed", "release committed", "release published")
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


# --- OpenLineage events, by the real client: to a file and to a server, read back, and nothing private in them


ROWS = 30_011  # no digits that stand anywhere else


@dataclass
class Server:
    url: str
    events: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    status: int = 200


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            found.keys.add(self.headers["Authorization"])
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Server(f"http://127.0.0.1:{http.server_port}")
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield found
    http.shutdown()
    http.server_close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_release_says_what_it_reads_what_it_costs_and_what_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState

    monkeypatch.setenv(LINEAGE, f"file://{tmp_path}/events.jsonl")
    spec = project(tmp_path, rows=ROWS)
    outcome = run_release(spec)
    start, complete = lines(tmp_path / "events.jsonl")
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    for event in (start, complete):  # the client's own classes take what was written
        run, job = Run(**event["run"]), Job(**event["job"])
        given = {
            "eventTime": event["eventTime"],
            "producer": event["producer"],
            "eventType": RunState[event["eventType"]],
        }
        RunEvent(run=run, job=job, inputs=[InputDataset(**one) for one in event["inputs"]], **given)
        (output,) = [OutputDataset(**one) for one in event["outputs"]]
        assert (output.namespace, output.name) == ("file", spec.output.path)
        assert [one["name"] for one in event["inputs"]] == list(spec.data.paths)
        assert event["job"]["name"] == f"people/{spec.name}"
        facets = {**event["run"]["facets"], **event["job"]["facets"], **event["outputs"][0]["facets"]}
        assert all(facet["_producer"] and facet["_schemaURL"] for facet in facets.values())
        assert [one["name"] for one in facets["schema"]["fields"]] == [one["name"] for one in SCHEMA["attributes"]]
        charge = facets["dpdist_charge"]
        assert (charge["dataset"], charge["attempt"], charge["guarantee"]) == (
            "people",
            outcome.attempt,
            "pd-per-record",
        )
    said = complete["run"]["facets"]["dpdist_release"]["guarantees"]
    assert said == [guarantee["sentence"] for guarantee in outcome.guarantees]
    record = json.loads(next((tmp_path / "work").glob("*/run-record.json")).read_text())
    text = (tmp_path / "events.jsonl").read_text().replace(str(tmp_path), "")
    for number in (ROWS, record["seeds"], record["candidates"]["passed"]):
        assert f": {number}" not in text
        assert f"{number:,}" not in text


def test_an_interrupted_run_and_a_refused_one_are_told_by_kind(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LINEAGE, server.url)
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "sesame")
    spec, plain = project(tmp_path), Attempt.stored
    for error, kind in (
        (errors.ClusterUnreachable("lost"), "ABORT"),
        (ValueError("the value 77"), "ABORT"),
        (errors.CheckFailed("the value 77"), "FAIL"),
    ):

        def fail(self: Attempt[Any, Any], wanted: Any, make: Any, error: Exception = error) -> Any:
            if wanted.FILE == "network.bin":
                raise error
            return plain(self, wanted, make)

        with monkeypatch.context() as patch:
            patch.setattr(Attempt, "stored", fail)
            with pytest.raises(type(error)):
                run_release(spec, attempt="once")
        assert [event["eventType"] for event in server.events] == ["START", kind]
        assert server.events[1]["run"]["facets"]["dpdist_error"]["type"] == type(error).__name__
        assert "the value" not in json.dumps(server.events)
        server.events.clear()
    assert server.keys == {"Bearer sesame"}


def test_a_release_does_not_depend_on_its_events(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(LINEAGE, server.url)
    server.status = 403
    spec = project(tmp_path)
    run_release(spec)
    assert states(spec) == ["committed"]
    assert [r.message for r in caplog.records].count("a lineage event was not sent") == 2


@pytest.mark.parametrize(
    "place", ["kafka://broker", "file://host/path", "relative", "http://me:sesame@127.0.0.1/", "http://", "http://[x"]
)
def test_another_place_is_refused_before_the_charge(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LINEAGE, place)
    spec = project(tmp_path)
    with pytest.raises(errors.SpecError, match=LINEAGE) as caught:
        run_release(spec)
    assert "sesame" not in str(caught.value)
    assert states(spec) == []


def test_without_the_client_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.lifecycle.lineage.find_spec", lambda name: None)
    assert client_of("") is None
    with pytest.raises(errors.SpecError, match=r"pip install 'dpdist\[lineage\]'"):
        client_of("client")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_family_has_events(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINEAGE, f"file://{tmp_path}/events.jsonl")
    case.write(tmp_path)
    spec = case.project(tmp_path)
    lineage = Lineage(make_plan(spec))
    lineage.begun("2ff8f5ae-6d3c-4a3e-8d4b-7d3e5a2b0c11", "0" * 64)
    lineage.ended(errors.OutOfDomain("the value 77"))
    start, end = lines(tmp_path / "events.jsonl")
    assert (start["eventType"], end["eventType"]) == ("START", "FAIL")
    assert [one["name"] for one in start["inputs"]][: len(spec.data.paths)] == list(spec.data.paths)
    assert start["outputs"][0]["facets"]["schema"]["fields"]
    assert start["run"]["facets"]["dpdist_contract"]["sha256"] == "0" * 64
    assert "the value" not in json.dumps(end)


def test_names_are_those_of_open_lineage() -> None:
    assert named("s3://census/2026-*.parquet") == ("s3://census", "2026-*.parquet")
    assert named("s3://census") == ("s3://census", "/")
    assert named("file:///data/x") == named("/data/x") == ("file", "/data/x")
