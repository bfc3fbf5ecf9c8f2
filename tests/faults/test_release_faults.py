"""The fault matrix of a release: what breaks × when. The same bytes, one charge, or a clear error and a resume."""

import subprocess
from pathlib import Path

import forkserver
import pytest
import yaml
from clusters import DaskProcesses
from outcomes import at, whole
from releases import KEY, project

from dpdist import errors
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.lifecycle.run import run_release

ACTOR = Path(__file__).with_name("release_actor.py")
STAGES = {  # stage: the beginning of the names of its tasks, and the state in which a fault strikes
    "counting": ("counting-pairs", "executing"),
    "indexing seeds": ("indexing-seeds-keys", "executing"),
    "synthesising": ("candidates-test", "memory"),
    "writing": ("write-part", "memory"),
}
"""One stage of each kind: a pass over partitions, records that workers hold, batches, parts."""

EXPENSIVE = ["counting", "synthesising"]
"""Stages in which something is killed that takes seconds to start again."""


def on(cluster: DaskProcesses) -> dict[str, object]:
    return {"mode": "address", "address": cluster.address, "timeout": 180, "partitions": 3}


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_worker_is_survived(
    stage: str, tmp_path: Path, dask_cluster: DaskProcesses, calm: list[bytes]
) -> None:
    spec = project(tmp_path, cluster=on(dask_cluster))
    task, state = STAGES[stage]
    dask_cluster.order("worker", task, state=state)
    run_release(spec, fixed_key=KEY)
    assert dask_cluster.carried_out("worker")
    whole(spec, calm)


def test_a_worker_killed_for_good_while_it_holds_records_is_survived(
    tmp_path: Path, dask_cluster: DaskProcesses, calm: list[bytes]
) -> None:
    spec = project(tmp_path, cluster=on(dask_cluster))
    with at("synthesising", lambda: dask_cluster.kill("worker")) as progress:
        run_release(spec, fixed_key=KEY, progress=progress)
    whole(spec, calm)


@pytest.mark.parametrize("stage", EXPENSIVE)
def test_a_killed_scheduler_ends_the_run_and_a_resume_finishes_it(
    stage: str, tmp_path: Path, dask_cluster: DaskProcesses, calm: list[bytes]
) -> None:
    spec = project(tmp_path, cluster=on(dask_cluster))
    task, _ = STAGES[stage]
    dask_cluster.order("scheduler", task, state="memory")
    with pytest.raises(errors.ClusterUnreachable, match="resume"):
        run_release(spec, fixed_key=KEY)
    assert dask_cluster.carried_out("scheduler")
    dask_cluster.start()
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


@pytest.mark.parametrize("moment", ["publishing", "commit"])
def test_publishing_needs_no_cluster(
    moment: str, tmp_path: Path, dask_cluster: DaskProcesses, calm: list[bytes]
) -> None:
    spec = project(tmp_path, cluster=on(dask_cluster))
    with at(moment, lambda: dask_cluster.kill("scheduler")) as progress:
        run_release(spec, fixed_key=KEY, progress=progress)
    whole(spec, calm)


def command(
    spec: PlausibleDeniabilitySpec, folder: Path, *options: str, point: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own; with `point`, one that dies there."""
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True, exclude_none=True)))
    program = [str(ACTOR), point] if point else ["-m", "dpdist"]
    return forkserver.run(*program, "release", file, *options)


@pytest.mark.parametrize("point", [*EXPENSIVE, "before-commit", "before-manifest", "after-manifest"])
def test_a_killed_run_is_resumed(point: str, tmp_path: Path, dask_cluster: DaskProcesses, calm: list[bytes]) -> None:
    spec = project(tmp_path, cluster=on(dask_cluster))
    died = command(spec, tmp_path, "--test-key", KEY, point=point)
    assert died.returncode == -9, died.stderr
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


def test_the_command_line_resumes(tmp_path: Path, dask_cluster: DaskProcesses, calm: list[bytes]) -> None:
    spec = project(tmp_path, cluster=on(dask_cluster))
    assert command(spec, tmp_path, "--test-key", KEY, point="synthesising").returncode == -9
    again = command(spec, tmp_path, "--test-key", KEY)
    assert again.returncode == errors.LedgerError.exit_code
    assert "resume" in again.stderr
    resumed = command(spec, tmp_path, "--test-key", KEY, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    whole(spec, calm)
