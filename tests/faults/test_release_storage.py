"""Object storage breaks: table, work folder and release on S3, at every moment of a run.

The server is moto; with DPDIST_TEST_S3 a real one behind a gateway that fails (`make e2e` gives it Ceph).
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from clusters import FlakyS3, flaky_bucket
from outcomes import MOMENTS, at, at_moments, broken_at_each, states, whole
from releases import KEY, project

from dpdist import errors
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.lifecycle.run import run_release
from dpdist.publish.verify import verify
from dpdist.storage import s3 as objects
from dpdist.storage.store import Store

STAGES = MOMENTS[1:]
"""A test key is not shared, so nothing is stored as the charge is made."""

COLUMNS = ("counting", "learning parameters", "synthesising", "publishing", "commit", "manifest")


@pytest.fixture
def flaky_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyS3]:
    with flaky_bucket(monkeypatch) as server:
        yield server


def in_bucket(folder: Path, bucket: str, **changes: Any) -> PlausibleDeniabilitySpec:
    """A release that reads, works and writes on S3."""
    project(folder)
    s3fs.S3FileSystem(skip_instance_cache=True).put_file(str(folder / "table.parquet"), f"{bucket}/input/table.parquet")
    places = {
        "data__path": f"s3://{bucket}/input",
        "work": f"s3://{bucket}/work",
        "output__path": f"s3://{bucket}/release",
    }
    return project(folder, **{**places, **changes})


@pytest.mark.parametrize("faults", [("SlowDown", "hang up", "InternalError", "RequestTimeout"), ("silence",)])
def test_a_few_failures_at_every_moment_are_survived(
    faults: tuple[str, ...], tmp_path: Path, flaky_s3: FlakyS3, calm: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(objects.CONFIG, "read_timeout", 0.5)
    spec, met = in_bucket(tmp_path, flaky_s3.bucket), []

    def fail(moment: str) -> None:
        met.append(moment)
        flaky_s3.fail(*faults)

    with at_moments(fail) as progress:
        run_release(spec, fixed_key=KEY, progress=progress)
    assert sorted(met) == sorted(STAGES)
    assert len(flaky_s3.struck) > 4
    whole(spec, calm)


@pytest.mark.parametrize(("fault", "moments"), [("ServiceUnavailable", STAGES), ("silence", COLUMNS)])
def test_one_attempt_survives_an_outage_at_each_moment(
    fault: str,
    moments: tuple[str, ...],
    tmp_path: Path,
    flaky_s3: FlakyS3,
    calm: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors, or a server that takes requests and never answers: each run gives up, the next goes on."""
    impatient = {"read_timeout": 0.5, "retries": {"mode": "standard", "total_max_attempts": 2}}
    spec = in_bucket(tmp_path, flaky_s3.bucket)

    def run(progress: Any, resume: bool) -> None:
        run_release(spec, fixed_key=KEY, progress=progress, attempt="resume" if resume else "new")

    def break_() -> None:
        flaky_s3.fail(fault, forever=True)

    with monkeypatch.context() as patch:
        for name, value in impatient.items():
            patch.setitem(objects.CONFIG, name, value)
        for raised in broken_at_each(moments, run, break_):
            assert isinstance(raised, errors.ResourceError)
            assert "resume" in str(raised)
            assert "planted" not in str(raised)
            assert flaky_s3.struck
            flaky_s3.fail()
            flaky_s3.struck.clear()
            with pytest.raises(errors.DataNotFound):
                verify(spec.output.path)
    run_release(spec, fixed_key=KEY, attempt="resume")
    whole(spec, calm)


REQUESTS: dict[str, Callable[[str], bool]] = {
    "the key is erased": lambda request: request.endswith("/key.json") and not request.startswith("GET"),
    "the manifest is written": lambda request: (
        request.startswith("PUT") and request.endswith("/release/_manifest.json")
    ),
    "the claim is deleted": lambda request: request.startswith("DELETE") and request.endswith("/claim"),
}


@pytest.mark.parametrize("request_of", REQUESTS)
def test_an_outage_after_the_commit_leaves_nothing_behind(request_of: str, tmp_path: Path, flaky_s3: FlakyS3) -> None:
    """With a real key, which must be gone at the end."""
    spec = in_bucket(tmp_path, flaky_s3.bucket)

    def break_() -> None:
        flaky_s3.fail("ServiceUnavailable", forever=True, where=REQUESTS[request_of])

    with at("commit", break_) as progress, pytest.raises(errors.StorageUnavailable):
        run_release(spec, progress=progress)
    assert flaky_s3.struck
    flaky_s3.fail()
    assert states(spec) == ["committed"]
    run_release(spec, attempt="resume")
    verify(spec.output.path)
    assert states(spec) == ["committed"]
    left = [*Store(spec.work).names(), *Store(spec.output.path).names()]
    assert not [name for name in left if name.endswith(("key.json", "claim"))]


REFUSALS = {
    "ExpiredToken": "renew",  # an answer to HEAD has no code
    "InvalidAccessKeyId": "denied|access key",
    "AccessDenied": "denied",
    "NoSuchBucket": "bucket|not exist",
}


def test_what_the_storage_refuses_before_a_run_costs_nothing(tmp_path: Path, flaky_s3: FlakyS3) -> None:
    spec = in_bucket(tmp_path, flaky_s3.bucket)
    for code, message in REFUSALS.items():
        flaky_s3.struck.clear()
        flaky_s3.fail(code, forever=True)
        with pytest.raises((errors.DataNotFound, errors.OutputUnwritable), match=message):
            run_release(spec)
        assert max(Counter(flaky_s3.struck).values()) < 3, "a refusal is not repeated"
    assert states(spec) == []


@pytest.mark.parametrize(
    ("code", "moment", "between"),
    [
        ("ExpiredToken", "reading", ["drawing"]),
        ("ExpiredToken", "learning parameters", ["drawing"]),
        ("AccessDenied", "commit", ["committed"]),
    ],
)
def test_a_refusal_in_the_middle_is_told_and_the_next_run_goes_on(
    code: str, moment: str, between: list[str], tmp_path: Path, flaky_s3: FlakyS3, calm: list[bytes]
) -> None:
    spec = in_bucket(tmp_path, flaky_s3.bucket)

    def refuse() -> None:
        flaky_s3.fail(code, forever=True)

    with at(moment, refuse) as progress, pytest.raises(errors.DpdistError, match=REFUSALS[code]) as caught:
        run_release(spec, fixed_key=KEY, progress=progress)
    assert not isinstance(caught.value, errors.ResourceError)
    assert "planted" not in str(caught.value)
    flaky_s3.fail()
    assert states(spec) == between
    run_release(spec, fixed_key=KEY, attempt="once")
    whole(spec, calm)


def test_the_spec_says_where_the_storage_is(tmp_path: Path, flaky_s3: FlakyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoint and profile of the spec hold for data, release, work folder and key, in all processes."""
    address = flaky_s3.environment["AWS_ENDPOINT_URL"]
    storage = {"endpoint_url": address, "profile": "census", "region": "us-east-1"}
    spec = in_bucket(
        tmp_path,
        flaky_s3.bucket,
        data__storage=storage,
        output__storage=storage,
        cluster={"mode": "embedded", "workers": 2, "partitions": 2},
    )
    secrets = [f"{name.lower()} = {os.environ[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    (tmp_path / "credentials").write_text("\n".join(["[census]", *secrets]))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    run_release(spec)
    assert states(spec) == ["committed"]
    assert Store(spec.output.path, spec.output.storage.options).exists("_manifest.json")
