"""What tests need besides Python packages: they are left out without it, and the run ends with a line that says so."""

import os
import shutil
from typing import NoReturn

import pytest


def left_out(what: str, remedy: str) -> NoReturn:
    """Leave a test out for what is not there, or fail it where DPDIST_REQUIRE names this (names between commas)."""
    message = f"left out without {what}: {remedy}"
    required = os.environ.get("DPDIST_REQUIRE", "").split(",")
    if what in required or (what == "public data" and os.environ.get("DPDIST_REQUIRE_DATA")):
        pytest.fail(message)
    pytest.skip(message)


def need(program: str, what: str, package: str) -> None:
    """Leave a test out where a program is not installed."""
    if shutil.which(program) is None:
        left_out(what, f"apt-get install {package}")
