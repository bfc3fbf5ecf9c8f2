"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(os.environ.get("DPDIST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of a public data file; skips (or, with DPDIST_REQUIRE_DATA=1, fails) when it is missing."""

    def path(name: str) -> Path:
        file = DATA / name
        if not file.exists():
            message = f"the public data file {name} is missing: set DPDIST_DATA to the folder that holds it"
            if os.environ.get("DPDIST_REQUIRE_DATA") == "1":
                pytest.fail(message)
            pytest.skip(message)
        return file

    return path
