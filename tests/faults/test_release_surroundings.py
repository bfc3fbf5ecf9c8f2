"""What a release needs besides a cluster breaks: the ledger's server, the storage, the disk, memory; and rivals.

Fault × stage, in one process where that shows the same: the same bytes, one charge, or a clear error and a resume.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import s3fs
from clusters import DaskProcesses, FlakyS3, parts
from outcomes import at, states, whole
from releases import KEY, project

from dpdist import errors
from dpdist.privacy.ledger import Ledger
from dpdist.publish.verify import read_release, verify
from dpdist.run import run_release
from dpdist.synthesis.spec import PlausibleDeniabilitySpec

SERVER = Path(__file__).parents[1] / "servers" / "postgres.sh"
STAGES = ["reading", "counting", "learning parameters", "indexing seeds", "synthesising", "writing", "publishing"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_restart_of_postgresql_is_survived(
    stage: str, tmp_path: Path, postgres_server: tuple[str, str], postgres_url: str, calm: list[bytes]
) -> None:
    spec = project(tmp_path, ledger=postgres_url)
    ledger = Ledger.open(postgres_url)
    ledger.create_dataset("people", epsilon="50", delta="1e-5", guarantees=("dp", "pd-per-record"))
    ledger.close()

    def restart() -> None:
        subprocess.run([SERVER, "restart", postgres_server[1]], check=True)

    run_release(spec, fixed_key=KEY, progress=at(stage, restart))
    whole(spec, calm)


def test_without_its_ledger_a_release_stops_and_is_resumed(tmp_path: Path, calm: list[bytes]) -> None:
    spec, ledger, away = project(tmp_path), tmp_path / "ledger.db", tmp_path / "away.db"
    with pytest.raises(errors.LedgerError):
        run_release(spec, fixed_key=KEY, progress=at("publishing", lambda: ledger.rename(away)))
    assert not (tmp_path / "release" / "manifest.json").exists()
    ledger.unlink(missing_ok=True)
    away.rename(ledger)
    run_release(spec, fixed_key=KEY, resume=True)
    whole(spec, calm)


@pytest.fixture
def flaky_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyS3]:
    """An S3 server that fails when told to, known by the environment; retries do not wait."""
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    with FlakyS3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.bucket = f"flaky-{uuid4().hex[:12]}"
        s3fs.S3FileSystem().mkdir(server.bucket)
        yield server
    s3fs.S3FileSystem.clear_instance_cache()


def in_bucket(folder: Path, bucket: str) -> PlausibleDeniabilitySpec:
    """A release that reads, works and writes on S3."""
    project(folder)
    s3fs.S3FileSystem().put_file(str(folder / "table.parquet"), f"{bucket}/input/table.parquet")
    return project(
        folder, data__path=f"s3://{bucket}/input", work=f"s3://{bucket}/work", output__path=f"s3://{bucket}/release"
    )


def calm_records(folder: Path) -> Any:
    spec = project(folder, name="calm", output__path=str(folder / "calm"))
    run_release(spec, fixed_key=KEY)
    return read_release(spec.output.path)


@pytest.mark.parametrize("stage", STAGES)
def test_a_few_errors_of_s3_are_survived(stage: str, tmp_path: Path, flaky_s3: FlakyS3) -> None:
    spec = in_bucket(tmp_path, flaky_s3.bucket)
    faults = ("SlowDown", "hang up", "InternalError", "RequestTimeout")
    run_release(spec, fixed_key=KEY, progress=at(stage, lambda: flaky_s3.fail(*faults)))
    assert read_release(spec.output.path).equals(calm_records(tmp_path))
    assert states(spec) == ["committed", "committed"]


@pytest.mark.parametrize("stage", STAGES)
def test_an_outage_of_s3_ends_the_run_and_a_resume_finishes_it(stage: str, tmp_path: Path, flaky_s3: FlakyS3) -> None:
    spec = in_bucket(tmp_path, flaky_s3.bucket)
    with pytest.raises(errors.ResourceError) as caught:
        run_release(spec, fixed_key=KEY, progress=at(stage, lambda: flaky_s3.fail("ServiceUnavailable", forever=True)))
    assert "planted" not in str(caught.value)
    flaky_s3.fail()
    with pytest.raises(errors.DataNotFound):
        verify(spec.output.path)
    run_release(spec, fixed_key=KEY, resume=True)
    assert read_release(spec.output.path).equals(calm_records(tmp_path))
    assert states(spec) == ["committed", "committed"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_second_run_is_refused_and_does_no_harm(stage: str, tmp_path: Path, calm: list[bytes]) -> None:
    spec = project(tmp_path)

    def second() -> None:
        with pytest.raises(errors.ReleaseConflict, match="resume it"):
            run_release(spec, fixed_key=KEY)

    run_release(spec, fixed_key=KEY, progress=at(stage, second))
    whole(spec, calm)


@pytest.mark.parametrize("stage", STAGES)
def test_a_resume_of_a_run_that_is_still_alive_publishes_once(stage: str, tmp_path: Path) -> None:
    """With a real key: it is erased when the overtaking run commits, and the overtaken one must not publish."""
    spec = project(tmp_path)
    published: list[list[bytes]] = []

    def overtake() -> None:
        run_release(spec, resume=True)
        published.append(parts(tmp_path / "release"))

    with pytest.raises(errors.DpdistError):
        run_release(spec, progress=at(stage, overtake))
    verify(spec.output.path)
    assert [parts(tmp_path / "release")] == published
    assert states(spec) == ["committed"]
    assert run_release(spec, resume=True).records == 2_500


@pytest.mark.parametrize("stage", STAGES)
def test_a_new_attempt_shuts_the_old_one_out(stage: str, tmp_path: Path) -> None:
    spec = project(tmp_path)
    published: list[list[bytes]] = []

    def replace() -> None:
        run_release(spec, new_attempt=True)
        published.append(parts(tmp_path / "release"))

    with pytest.raises(errors.DpdistError):
        run_release(spec, progress=at(stage, replace))
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
        change["cluster"] = {"mode": mode, "address": cluster.address, "timeout": 60}
    spec = project(tmp_path, **change)
    with pytest.raises(errors.OutOfDisk, match=r"no space is left.*resume"):
        run_release(spec, fixed_key=KEY, progress=at("counting", lambda: fill(small_disk)))
    (small_disk / "filler").unlink()
    run_release(spec, fixed_key=KEY, resume=True)
    whole(spec, calm)


def test_a_full_disk_under_the_ledger_is_a_clear_error_and_resumable(
    tmp_path: Path, small_disk: Path, calm: list[bytes]
) -> None:
    url = f"sqlite:///{small_disk}/ledger.db"
    ledger = Ledger.open(url)
    ledger.create_dataset("people", epsilon="50", delta="1e-5", guarantees=("dp", "pd-per-record"))
    ledger.close()
    spec = project(tmp_path, ledger=url)
    with pytest.raises(errors.OutOfDisk, match="resume"):
        run_release(spec, fixed_key=KEY, progress=at("writing", lambda: fill(small_disk)))
    (small_disk / "filler").unlink()
    run_release(spec, fixed_key=KEY, resume=True)
    whole(spec, calm)


def test_workers_without_memory_are_a_clear_error_and_resumable(tmp_path: Path, calm: list[bytes]) -> None:
    cluster = DaskProcesses(tmp_path, memory="500MiB")
    cluster.start()
    try:
        spec = project(tmp_path, cluster={"mode": "address", "address": cluster.address, "timeout": 60})
        cluster.order("worker", "learning-parameters-tables", state="executing", action="hog")
        with pytest.raises(errors.OutOfMemory, match=r"partitions.*resumed"):
            run_release(spec, fixed_key=KEY)
        cluster.cancel()
        run_release(spec, fixed_key=KEY, resume=True)
    finally:
        cluster.stop()
    whole(spec, calm)
