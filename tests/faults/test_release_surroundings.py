"""What a release needs besides a cluster breaks: the ledger's server, the storage, the disk, memory; and rivals.

Fault × stage, in one process where that shows the same: the same bytes, one charge, or a clear error and a resume.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import DaskProcesses, parts
from outcomes import at, states, whole
from releases import KEY, fund, project

from dpdist import errors
from dpdist.lifecycle.run import run_release
from dpdist.publish.verify import read_release, verify

SERVER = Path(__file__).parents[1] / "servers" / "postgres.sh"
STAGES = ("reading", "synthesising", "publishing", "commit", "manifest")
"""As the first records are read, in the middle, and at each step of a publication."""


@pytest.mark.parametrize("stage", ["synthesising", "commit"])
def test_a_restart_of_postgresql_is_survived(
    stage: str, tmp_path: Path, postgres_server: tuple[str, str], postgres_url: str, calm: list[bytes]
) -> None:
    spec = project(tmp_path, ledger=postgres_url)
    fund(postgres_url, guarantees=("dp", "pd-per-record"))

    def restart() -> None:
        subprocess.run([SERVER, "restart", postgres_server[1]], check=True)

    with at(stage, restart) as progress:
        run_release(spec, fixed_key=KEY, progress=progress)
    whole(spec, calm)


def test_without_its_ledger_a_release_stops_and_is_resumed(tmp_path: Path, calm: list[bytes]) -> None:
    spec, ledger, away = project(tmp_path), tmp_path / "ledger.db", tmp_path / "away.db"
    with at("publishing", lambda: ledger.rename(away)) as progress, pytest.raises(errors.LedgerError):
        run_release(spec, fixed_key=KEY, progress=progress)
    assert not (tmp_path / "release" / "_manifest.json").exists()
    ledger.unlink(missing_ok=True)
    away.rename(ledger)
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


@pytest.mark.parametrize("stage", ["reading", "publishing", "manifest"])
def test_a_second_run_is_refused_and_does_no_harm(stage: str, tmp_path: Path, calm: list[bytes]) -> None:
    spec = project(tmp_path)

    def second() -> None:
        with pytest.raises(errors.ReleaseConflict, match=r"resume it|committed already"):
            run_release(spec, fixed_key=KEY)

    with at(stage, second) as progress:
        run_release(spec, fixed_key=KEY, progress=progress)
    whole(spec, calm)


@pytest.mark.parametrize("stage", STAGES)
def test_a_resume_of_a_run_that_is_still_alive_publishes_once(stage: str, tmp_path: Path) -> None:
    """With a real key: it is erased when the overtaking run commits, and the overtaken one must not publish."""
    spec = project(tmp_path)
    published: list[list[bytes]] = []
    records: list[str] = []

    def overtake() -> None:
        records.append(Path(run_release(spec, attempt="resume").run_record).read_text())
        published.append(parts(tmp_path / "release"))

    late = stage in ("commit", "manifest")  # both have the same bytes to publish
    with at(stage, overtake) as progress, nullcontext() if late else pytest.raises(errors.DpdistError):
        run_release(spec, progress=progress)
    verify(spec.output.path)
    assert [parts(tmp_path / "release")] == published
    assert states(spec) == ["committed"]
    again = run_release(spec, attempt="resume")
    assert again.records == 2_500
    assert late or [Path(again.run_record).read_text()] == records


@pytest.mark.parametrize("stage", STAGES[:-1])  # not once it is committed
def test_a_new_attempt_shuts_the_old_one_out(stage: str, tmp_path: Path) -> None:
    spec = project(tmp_path)
    published: list[list[bytes]] = []

    def replace() -> None:
        run_release(spec, attempt="replace")
        published.append(parts(tmp_path / "release"))

    with at(stage, replace) as progress, pytest.raises(errors.DpdistError):
        run_release(spec, progress=progress)
    verify(spec.output.path)
    assert read_release(spec.output.path).num_rows == 2_500
    assert states(spec) in (["void", "committed"], ["abandoned", "committed"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little space."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Fill a file system, but for some bytes; return the file to delete."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        free = os.statvfs(disk)
        file.write(bytes(free.f_bavail * free.f_bsize - leave))
    return filler


@pytest.mark.parametrize("where", ["output", "work"])
@pytest.mark.parametrize("mode", ["threads", "address"])
def test_a_full_disk_is_a_clear_error_and_resumable(
    where: str, mode: str, tmp_path: Path, small_disk: Path, request: pytest.FixtureRequest, calm: list[bytes]
) -> None:
    change: dict[str, Any] = {"output__path" if where == "output" else "work": str(small_disk / where)}
    if mode == "address":
        cluster: DaskProcesses = request.getfixturevalue("dask_cluster")
        change["cluster"] = {"mode": mode, "address": cluster.address, "timeout": 180}
    spec = project(tmp_path, **change)
    full = pytest.raises(errors.OutOfDisk, match=r"no space is left.*resume")
    with at("counting", lambda: fill(small_disk)) as progress, full:
        run_release(spec, fixed_key=KEY, progress=progress)
    (small_disk / "filler").unlink()
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


def test_a_full_disk_under_the_ledger_is_a_clear_error_and_resumable(
    tmp_path: Path, small_disk: Path, calm: list[bytes]
) -> None:
    url = f"sqlite:///{small_disk}/ledger.db"
    fund(url, guarantees=("dp", "pd-per-record"))
    spec = project(tmp_path, ledger=url)
    with at("writing", lambda: fill(small_disk)) as progress, pytest.raises(errors.OutOfDisk, match="resume"):
        run_release(spec, fixed_key=KEY, progress=progress)
    (small_disk / "filler").unlink()
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


def test_a_run_without_memory_is_a_clear_error_and_resumable(tmp_path: Path, calm: list[bytes]) -> None:
    spec = project(tmp_path)
    starved = pytest.raises(errors.OutOfMemory, match="resumed")
    with at("synthesising", lambda: np.empty(1 << 58, np.uint8)) as progress, starved:
        run_release(spec, fixed_key=KEY, progress=progress)
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


def test_workers_without_memory_are_a_clear_error_and_resumable(tmp_path: Path, calm: list[bytes]) -> None:
    cluster = DaskProcesses(tmp_path, memory="500MiB")
    cluster.start()
    try:
        spec = project(tmp_path, cluster={"mode": "address", "address": cluster.address, "timeout": 180})
        cluster.order("worker", "learning-parameters-tables", state="executing", action="hog")
        with pytest.raises(errors.OutOfMemory, match=r"partitions.*resumed"):
            run_release(spec, fixed_key=KEY)
        cluster.cancel()
        run_release(spec, fixed_key=KEY, attempt="resume")
    finally:
        cluster.stop()
    whole(spec, calm)
