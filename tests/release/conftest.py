"""A release and its ledger, to look at and to copy."""

from pathlib import Path

import pytest
from releases import KEY, project

from dpdist.lifecycle.run import run_release


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger and a release that was made with it; tests change copies."""
    folder = tmp_path_factory.mktemp("made")
    run_release(project(folder), fixed_key=KEY)
    return folder
