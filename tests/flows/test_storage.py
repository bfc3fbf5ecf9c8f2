"""Storage from a block: real blocks on a real server, a real S3 application, nothing left behind."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from buckets import s3_server

from dpdist.errors import SpecError
from dpdist.storage.store import Store

SECRET = "planted-secret-of-the-block"


@pytest.fixture
def endpoint(prefect_home: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server that no variable of this process names."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text("[profile other]\nregion = us-west-2\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "other")
    with s3_server() as endpoint:
        yield endpoint


@pytest.mark.parametrize("kind", ["aws-credentials", "minio-credentials"])
def test_a_run_has_the_storage_of_the_block_and_nothing_stays(
    kind: str, endpoint: str, prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect_aws import AwsCredentials, MinIOCredentials

    from flows.server import storage_of_block

    more = {"region_name": "eu-central-1", "aws_client_parameters": {"endpoint_url": endpoint}}
    if kind == "aws-credentials":
        block: Any = AwsCredentials(aws_access_key_id="key", aws_secret_access_key=SECRET, **more)
    else:
        block = MinIOCredentials(minio_root_user="key", minio_root_password=SECRET, **more)
    block.save("census", overwrite=True, _sync=True)  # a request may be repeated after its answer was lost
    monkeypatch.setenv("DPDIST_STORAGE_BLOCK", f"{kind}/census")
    before = dict(os.environ)
    with storage_of_block():
        store = Store(f"s3://{kind}/x")
        store._fs.mkdir(kind, region_name="eu-central-1")
        store.write_bytes("y", b"1")
        assert store.read_bytes("y") == b"1"
        client = store._fs.s3
        assert (client.meta.endpoint_url, client.meta.region_name) == (endpoint, "eu-central-1")
        assert client._request_signer._credentials.secret_key == SECRET
    assert dict(os.environ) == before
    held = b"".join(path.read_bytes() for home in prefect_home for path in home.rglob("*") if path.is_file())
    assert b"aws_client_parameters" in held
    assert SECRET.encode() not in held, "Prefect keeps blocks encrypted"


def test_without_a_block_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.server import storage_of_block

    monkeypatch.delenv("DPDIST_STORAGE_BLOCK", raising=False)
    before = dict(os.environ)
    with storage_of_block():
        assert dict(os.environ) == before


def test_a_block_that_cannot_be_used_is_named(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect_aws import AwsCredentials

    from flows.release import release

    AwsCredentials(profile_name="nobody").save("empty", overwrite=True, _sync=True)
    for name, message in (
        ("secret/census", "expected aws-credentials/NAME"),
        ("census", "expected aws-credentials/NAME"),
        ("aws-credentials/nobody", "no usable block"),
        ("aws-credentials/empty", "gives no credentials|holds no credentials"),
    ):
        monkeypatch.setenv("DPDIST_STORAGE_BLOCK", name)
        with pytest.raises(SpecError, match=message):
            release("nowhere.yaml")
