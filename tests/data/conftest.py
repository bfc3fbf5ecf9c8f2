"""Storage for the tests of the distributed table."""

from collections.abc import Iterator
from typing import Any

import buckets
import pytest


@pytest.fixture
def s3_server() -> Iterator[str]:
    """Endpoint of an S3 server in this process."""
    with buckets.s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An s3fs file system with an empty bucket ``census``."""
    import s3fs

    for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem(endpoint_url=s3_server, skip_instance_cache=True)
    fs.mkdir("census")
    yield fs
    fs.invalidate_cache()
    s3fs.S3FileSystem.clear_instance_cache()
