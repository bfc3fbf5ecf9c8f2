"""A Prefect server of the test session, in a folder of its own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

_HOME = tempfile.mkdtemp(prefix="dpdist-prefect-")
os.environ.update(  # before prefect is imported
    PREFECT_HOME=_HOME,
    PREFECT_LOCAL_STORAGE_PATH=f"{_HOME}/storage",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    DO_NOT_TRACK="1",
    PREFECT_LOGGING_TO_API_BATCH_INTERVAL="0.2",
)


@pytest.fixture(scope="session")
def prefect_home() -> Iterator[tuple[Path, ...]]:
    """A server; everything it and the clients write is below these folders."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from prefect.testing.utilities import prefect_test_harness

    with ExitStack() as stack:
        try:
            stack.enter_context(prefect_test_harness(server_startup_timeout=400))
        except Exception:  # another process took the port that it had chosen, or it was slow to answer
            stack.enter_context(prefect_test_harness(server_startup_timeout=150))
        database = Path(PREFECT_API_DATABASE_CONNECTION_URL.value().split(":///", 1)[1])
        yield Path(_HOME), database.parent
    shutil.rmtree(_HOME, ignore_errors=True)
