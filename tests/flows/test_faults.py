"""The fault matrix of the flow: what Prefect repeats, what is killed, what runs twice; at each moment of a release."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import s3fs
from clusters import FlakyS3, flaky_bucket
from flowruns import at_moments_of_flows, calm_parts, inline, key_of
from forkserver import Python
from outcomes import MOMENTS, whole
from releases import project

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ACTOR = Path(__file__).with_name("flow_actor.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def release(prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flow; it waits for nothing, and continues nothing by itself."""
    import flows.release

    logging.getLogger("prefect").setLevel(logging.CRITICAL)
    monkeypatch.setattr(flows.release, "DELAYS", ())
    monkeypatch.setattr(flows.release, "TASK_DELAY", 0)
    return flows.release.release


@pytest.fixture
def flaky_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyS3]:
    with flaky_bucket(monkeypatch) as server:
        yield server


@pytest.mark.parametrize(
    "moments",
    [("charge", "counting", "learning parameters", "synthesising", "commit"), ("reading", "writing", "manifest")],
)
def test_each_task_is_repeated_by_prefect_while_the_storage_is_away(
    moments: tuple[str, ...], tmp_path: Path, release: Any, flaky_s3: FlakyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each moment an outage of the storage; it is over when Prefect decides that the task is to be repeated."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    import flows.release

    project(tmp_path)
    store = s3fs.S3FileSystem(skip_instance_cache=True)
    store.put_file(str(tmp_path / "table.parquet"), f"{flaky_s3.bucket}/input/table.parquet")
    places = {name: f"s3://{flaky_s3.bucket}/{name}" for name in ("input", "work", "release")}
    spec = project(tmp_path, data__path=places["input"], work=places["work"], output__path=places["release"])
    key: list[str] = []
    met: list[str] = []
    plain = flows.release._storage_was_away

    def away(moment: str) -> None:
        if moment == "reading":
            key.append(key_of(spec, tmp_path))
        if moment in moments:
            met.append(moment)
            flaky_s3.fail("ServiceUnavailable", forever=True)

    def back(*arguments: Any) -> bool:
        flaky_s3.fail()
        return plain(*arguments)

    monkeypatch.setattr(flows.release, "_storage_was_away", back)
    with at_moments_of_flows(away):
        state = release(inline(spec), return_state=True)
    assert state.is_completed(), state.message
    assert sorted(met) == sorted(moments)
    whole(spec, calm_parts(*key, tmp_path))
    with get_client(sync_client=True) as client:
        run_filter = FlowRunFilter(id={"any_": [state.state_details.flow_run_id]})
        counts = {
            task.name.rsplit("-", 1)[0]: task.run_count for task in client.read_task_runs(flow_run_filter=run_filter)
        }
    assert sum(counts.values()) == len(counts) + len(moments), counts


def test_a_flow_run_that_prefect_repeats_continues_at_every_moment(tmp_path: Path, release: Any) -> None:
    """Something unforeseen at each moment, and as many retries: one attempt, one charge, the same bytes."""
    spec = project(tmp_path)
    key: list[str] = []
    met: list[str] = []

    def fail(moment: str) -> None:
        if moment == "reading":
            key.append(key_of(spec, tmp_path))
        met.append(moment)
        raise RuntimeError("planted")

    with at_moments_of_flows(fail):
        state = release.with_options(retries=len(MOMENTS))(inline(spec), return_state=True)
    assert state.is_completed(), state.message
    assert sorted(met) == sorted(MOMENTS)
    whole(spec, calm_parts(*key, tmp_path))


Ask = Callable[..., list[int]]


@contextmanager
def acting() -> Iterator[Ask]:
    """Start the program that forks flow runs."""
    from prefect.settings import PREFECT_API_URL

    environment = {
        **os.environ,
        "PREFECT_API_URL": PREFECT_API_URL.value(),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
    }
    process = Python([sys.executable, ACTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(spec: Any, *runs: str | None) -> list[int]:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps({"spec": inline(spec), "runs": runs}), file=process.stdin, flush=True)
        answer: list[int] = json.loads(process.stdout.readline())
        return answer

    yield ask
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()


def free_the_slot() -> None:
    """What the server does a minute after a flow process was killed: its slot is free again."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name("dpdist-people", 1)
        limit = client.read_global_concurrency_limit_by_name("dpdist-people")
        client.delete_global_concurrency_limit_by_name(limit.name)


def test_a_flow_process_killed_at_each_moment_is_continued_by_two_at_once(
    tmp_path: Path, prefect_home: tuple[Path, ...]
) -> None:
    """SIGKILL; then two runs, of which one waits for the other and finds the release published."""
    spec = project(tmp_path)
    with acting() as ask:
        for moment in ("counting", "learning parameters", "synthesising", "commit", "manifest"):
            assert ask(spec, moment) == [-9]
            free_the_slot()
            if moment == "counting":
                key = key_of(spec, tmp_path)
        assert ask(spec, None, None) == [0, 0]
    whole(spec, calm_parts(key, tmp_path))
