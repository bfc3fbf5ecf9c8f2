"""The release as a flow: what Prefect shows, what it must not hold, and what a retry does."""

import base64
import json
import logging
import re
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from flowruns import inline, shown_artifacts
from outcomes import states
from reading import readable
from releases import project

from dpdist import errors
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.registry import make_plan
from dpdist.ledger import Books
from dpdist.lifecycle.run import Run
from dpdist.publish.verify import verify
from dpdist.spec.reader import load

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FAMILY = ("structure", "parameters", "seeds", "records", "write")
"""The stages of a plausible-deniability release."""


@pytest.fixture
def release(prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flow; it waits for nothing."""
    import flows.release

    logging.getLogger("prefect").setLevel(logging.INFO)
    monkeypatch.setattr(flows.release, "DELAYS", (0, 0))
    return flows.release.release


@pytest.fixture
def artifacts(prefect_home: tuple[Path, ...]) -> Any:
    """All artifacts by key, the newest of each."""
    return shown_artifacts


def held(folders: tuple[Path, ...]) -> bytes:
    """All that Prefect holds: database, logs and results."""
    time.sleep(1)  # logs are sent in batches
    found = []
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        with suppress(FileNotFoundError):  # a temporary file of the database
            found.append(path.read_bytes())
    return b"".join(found)


def test_a_release_shows_its_plan_its_progress_and_its_guarantee(
    tmp_path: Path, release: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPDIST_LOG", "json")
    spec = project(tmp_path, name="Shown.1")
    assert release(inline(spec)) == spec.output.path
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert [entry["message"] for entry in entries if "stage" not in entry] == [
        *("attempt reserved", "release committed", "release published")
    ]
    monkeypatch.setenv("DPDIST_LOG", "none")
    assert verify(spec.output.path).records == 2_500
    assert states(spec) == ["committed"]
    shown = {key: artifact.data for key, artifact in artifacts().items() if key.startswith("people-shown-1")}
    assert set(shown) == {
        f"people-shown-1-{name}" for name in ("plan", "charge", *FAMILY, "publish", "link", "guarantee")
    }
    assert "plausible deniability" in shown["people-shown-1-plan"]
    assert shown["people-shown-1-records"] == 100
    assert "Per record" in shown["people-shown-1-guarantee"]
    assert "left for data set people" in shown["people-shown-1-guarantee"]
    assert spec.output.path in shown["people-shown-1-link"]
    assert release(inline(spec)) == spec.output.path  # a second click: nothing is charged or computed
    assert states(spec) == ["committed"]


def test_a_plan_alone_charges_nothing(tmp_path: Path, release: Any, artifacts: Any) -> None:
    spec = project(tmp_path, name="planned")
    assert release(inline(spec), plan_only=True).startswith("Per record: (20, 4)")
    assert states(spec) == []
    assert "plausible deniability" in artifacts()["people-planned-plan"].data
    assert not (tmp_path / "release").exists()


def test_nothing_private_is_held(tmp_path: Path, prefect_home: tuple[Path, ...], release: Any) -> None:
    spec = project(tmp_path, name="held", rows=131_071)
    release(inline(spec))
    record = json.loads(next((tmp_path / "work").glob("*/run-record.json")).read_text())
    private = [131_071, record["seeds"], record["candidates"]["passed"]]
    content = held(prefect_home)
    assert b"people-held-plan" in content
    for number in (text for count in private for text in (f"{count}", f"{count:,}")):
        assert not re.search(rf"(?<![\w.,-])(?<![0-9]:){number}(?![\w.,-])".encode(), content), number
    assert b"release held of data set people" in content
    for stored in (prefect_home[0] / "storage").glob("*"):  # exceptions of flows that failed, without their origins
        assert b"the value" not in base64.b64decode(stored.read_bytes())


def test_what_prefect_stores_of_a_failure_has_no_origin() -> None:
    from flows.release import without_private_text

    def private() -> None:
        try:
            raise ValueError("the value 77")
        except ValueError as error:
            raise errors.SpecError("a known text") from error

    def unforeseen() -> None:
        raise ValueError("the value 77")

    for work in (private, unforeseen):
        with pytest.raises(errors.DpdistError) as caught:
            without_private_text(work)
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is None
        assert "77" not in str(caught.value)


@pytest.mark.parametrize("by", ["the flow", "prefect"])
def test_a_retry_continues_the_same_attempt(
    by: str, tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = project(tmp_path, name="retried")
    plain, failures = Attempt.stored, [errors.ClusterUnreachable("lost"), errors.LedgerUnavailable("lost")]
    if by == "prefect":
        release, failures = release.with_options(retries=1), [ValueError("the value 77")]

    def lost(self: Attempt[Any, Any], kind: Any, make: Any) -> Any:
        content = plain(self, kind, make)
        if kind.FILE == "network.bin" and failures:
            raise failures.pop()
        return content

    monkeypatch.setattr(Attempt, "stored", lost)
    release(inline(spec))
    assert not failures
    assert states(spec) == ["committed"]


def test_a_storage_that_was_away_is_asked_again_by_the_task(
    tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flows.release

    spec = project(tmp_path, name="away")
    plain, failures = Attempt.stored, [errors.StorageUnavailable("the storage does not answer")]

    def away(self: Attempt[Any, Any], kind: Any, make: Any) -> Any:
        if kind.FILE == "parameter-tables.npz" and failures:
            raise failures.pop()
        return plain(self, kind, make)

    monkeypatch.setattr(Attempt, "stored", away)
    monkeypatch.setattr(flows.release, "TASK_DELAY", 0)
    monkeypatch.setattr(flows.release, "DELAYS", ())
    release(inline(spec))
    assert not failures
    assert states(spec) == ["committed"]


def test_an_unforeseen_exception_is_told_without_its_text(
    tmp_path: Path,
    prefect_home: tuple[Path, ...],
    release: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = project(tmp_path, name="unforeseen")

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("the value planted-4711 is odd")

    monkeypatch.setattr("dpdist.families.deniability.stages.learn_structure", fail)
    with pytest.raises(errors.DpdistError, match="unforeseen ValueError at") as caught:
        release(inline(spec))
    assert "4711" not in readable(str(caught.value), caplog.text)
    assert b"planted-4711" not in held(prefect_home)
    assert states(spec) == ["drawing"]


def test_what_is_refused_is_told_in_plain_words(tmp_path: Path, release: Any) -> None:
    spec = project(tmp_path, name="refused", epsilon="0.5")
    with pytest.raises(errors.BudgetExceeded, match="people"):
        release(inline(spec))
    with pytest.raises(errors.SpecError, match=r"synthesis\.records"):
        release(inline(spec), settings={"synthesis.records": 0})
    assert states(spec) == []


def test_a_new_attempt_is_made_once_however_often_the_flow_is_retried(
    tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = project(tmp_path, name="anew")
    plain, failures = Attempt.stored, [errors.ClusterUnreachable("lost")] * 4

    def lost(self: Attempt[Any, Any], kind: Any, make: Any) -> Any:
        if kind.FILE == "network.bin" and failures:
            raise failures.pop()
        return plain(self, kind, make)

    monkeypatch.setattr(Attempt, "stored", lost)
    with pytest.raises(errors.ClusterUnreachable):
        release(inline(spec))
    release(inline(spec), attempt="replace")
    assert states(spec) == ["abandoned", "committed"]


def test_parameters_are_checked_and_paths_stay_inside(
    tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.exceptions import ParameterTypeError

    monkeypatch.setenv("DPDIST_SPECS", str(tmp_path))
    for path in ("../spec.yaml", "/etc/passwd"):
        with pytest.raises(errors.SpecError, match="leaves the folder"):
            release(path)
    with pytest.raises(ParameterTypeError):
        release(7)


def test_a_password_in_a_parameter_is_refused(tmp_path: Path, release: Any) -> None:
    """Prefect keeps parameters; the text of the refusal does not repeat it."""
    spec = inline(project(tmp_path))
    for ledger in ("postgresql://me:sesame@127.0.0.1:9/ledger", "postgresql://127.0.0.1:9/ledger?password=sesame"):
        for parameters in ({"spec": {**spec, "ledger": ledger}}, {"spec": spec, "settings": {"ledger": ledger}}):
            with pytest.raises(errors.SpecError, match="DPDIST_LEDGER") as refused:
                release(**parameters)
            assert "sesame" not in str(refused.value)


def test_code_is_named_by_files_of_the_worker_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    from flows.release import read_spec

    monkeypatch.setenv("DPDIST_SPECS", str(tmp_path))
    tree = {
        "kind": "two-stage",
        "name": "hooked",
        "dataset": "d",
        "schema": {"attributes": [{"name": name, "kind": "number", "bounds": [0, 1]} for name in ("x", "y")]},
        "data": {"path": "t.parquet", "minimum_records": 500},
        "output": {"path": "release"},
        "privacy": {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.001}},
        "prediction": {"response": "y", "regression": {"hook": "sklearn.linear_model:Ridge"}},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(tree))
    assert read_spec("spec.yaml", {"name": "other"}).plugins == {"sklearn.linear_model:Ridge"}
    for spec, settings in (
        (tree, {}),
        ("spec.yaml", {"prediction.first_stage": "os:abort"}),
        ("spec.yaml", {"prediction.regression.hook": "os:abort"}),
    ):
        with pytest.raises(errors.SpecError, match="names code to run"):
            read_spec(spec, settings)


def test_a_new_attempt_stays_wanted_until_it_is_made(
    tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is away before the charge must not turn it into a resume of the attempt that was given up."""

    spec = project(tmp_path)
    plain, away = Attempt.stored, ["before the charge"]

    def lost(self: Attempt[Any, Any], kind: Any, make: Any) -> Any:
        if kind.FILE == "network.bin":
            raise errors.CheckFailed("stopped")
        return plain(self, kind, make)

    monkeypatch.setattr(Attempt, "stored", lost)
    with pytest.raises(errors.CheckFailed):
        release(inline(spec))
    monkeypatch.setattr(Attempt, "stored", plain)
    opened, found = Run.__enter__, Books.find
    silent = [errors.LedgerUnavailable("at the first question")]

    def find(self: Books, dataset: str, release: str) -> Any:
        if silent:
            raise silent.pop()
        return found(self, dataset, release)

    def enter(self: Any) -> Any:
        if away:
            raise errors.ClusterUnreachable(away.pop())
        return opened(self)

    monkeypatch.setattr(Run, "__enter__", enter)
    monkeypatch.setattr(Books, "find", find)
    release(inline(spec), attempt="replace")
    assert (silent, away) == ([], [])
    assert states(spec) == ["abandoned", "committed"]


def test_who_starts_a_run_does_not_choose_what_the_worker_has_fixed(
    tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = project(tmp_path, name="charged")
    rich = tmp_path / "rich"
    rich.mkdir()
    other = project(rich, name="charged", epsilon="1000")
    monkeypatch.setenv("DPDIST_LEDGER", spec.ledger)
    monkeypatch.setenv("DPDIST_PINNED", json.dumps({"cluster.mode": "threads", "work": spec.work}))
    for settings in (
        {"ledger": other.ledger},
        {"work": other.work},
        {"cluster": {"mode": "embedded"}},
        {"cluster.mode.x": 1},
    ):
        with pytest.raises(errors.SpecError, match=r"cannot be set for a run.*DPDIST_LEDGER"):
            release(inline(spec), settings=settings)
    release(inline(other), settings={"cluster.timeout": 7})  # what the worker has fixed goes before the spec
    assert (states(spec), states(other)) == (["committed"], [])
    assert list(Path(spec.work).glob("*/run-record.json"))
    monkeypatch.setenv("DPDIST_PINNED", "[]")
    with pytest.raises(errors.SpecError, match="DPDIST_PINNED: expected a JSON object"):
        release(inline(spec))


def test_an_interrupted_flow_closes_its_cluster(tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Prefect raises in a flow that is cancelled is no ordinary exception either."""

    class Interrupt(BaseException):
        """Stands for Prefect's TerminationSignal, which ends the process."""

    closed: list[str] = []
    plain = Run.__exit__

    def close(self: Any, *error: object) -> None:
        closed.append("closed")
        plain(self, *error)

    def cancel(*_: Any, **__: Any) -> None:
        raise Interrupt

    monkeypatch.setattr(Run, "__exit__", close)
    monkeypatch.setattr("dpdist.families.deniability.stages.learn_structure", cancel)
    spec = project(tmp_path, name="cancelled")
    with pytest.raises(Interrupt):
        release(inline(spec))
    assert closed == ["closed"]
    monkeypatch.undo()
    release(inline(spec))
    assert states(spec) == ["committed"]


def test_two_first_runs_that_make_the_limit_at_once(prefect_home: tuple[Path, ...]) -> None:
    """Prefect looks first and makes it then; here another run makes it in between."""
    from prefect import get_client
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

    import flows.release

    def late(client: SyncPrefectClient, name: str, limit: int) -> None:
        for _ in range(2):
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=limit))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyncPrefectClient, "upsert_global_concurrency_limit_by_name", late)
        with flows.release.one_at_a_time("just made"), get_client(sync_client=True) as client:
            assert client.read_global_concurrency_limit_by_name("dpdist-just-made").active_slots == 1


@pytest.mark.parametrize("name", ["acs2024", "acs2024-pml", "curves", "unrate", "california", "california-private"])
def test_the_plan_says_what_is_charged_in_the_words_of_the_plan(name: str) -> None:
    """Above all the adjacency: what is published under replacement is not charged under add/remove."""
    from flows.server import plan_rows

    root = Path(__file__).resolve().parents[2]
    plan = make_plan(load(root / "deploy" / "releases" / f"{name}.yaml"))
    (charge,) = (row["value"] for row in plan_rows(plan) if row["item"] == "charge")
    assert f"Charge      {charge}\n" in plan.explain()
    adjacency = getattr(plan.guarantees[0], "adjacency", None)
    assert adjacency is None or f"({adjacency} adjacency)" in charge


def test_a_run_that_starts_late_has_the_name_of_its_scheduled_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.runtime import flow_run

    from flows.release import read_spec

    written = inline(project(tmp_path, rows=100))
    written |= {"name": "acs-{date:%Y-%m}", "output": written["output"] | {"path": f"{tmp_path}/{{date:%Y-%m}}"}}
    scheduled = datetime.fromisoformat("2026-02-28T23:30:00-05:00")
    monkeypatch.setitem(flow_run.FIELDS, "scheduled_start_time", lambda: scheduled)
    assert read_spec(written, {}).name == "acs-2026-03"  # in UTC
    assert read_spec(written, {"date": "2026-01-05"}).output.path == f"{tmp_path}/2026-01"
