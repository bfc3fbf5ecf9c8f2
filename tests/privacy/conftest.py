"""Ledgers to test on: SQLite files and databases of a throwaway PostgreSQL."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import count
from pathlib import Path

import psycopg
import pytest

from dpdist.privacy import keys
from dpdist.privacy.ledger import Ledger

SERVER = Path(__file__).parents[1] / "servers" / "postgres.sh"
_numbers = count()


@pytest.fixture(autouse=True)
def _own_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the key-encryption key of the machine, nor another test's cached keys."""
    monkeypatch.delenv("DPDIST_KEK", raising=False)
    monkeypatch.delenv("DPDIST_KEK_FILE", raising=False)
    keys.forget_keys()
    yield
    keys.forget_keys()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[tuple[str, str]]:
    """(URL, folder) of a PostgreSQL server; skips, or with DPDIST_REQUIRE_SERVERS=1 fails, without its binaries."""
    started = subprocess.run([SERVER, "start"], capture_output=True, text=True)
    if started.returncode == 69 and os.environ.get("DPDIST_REQUIRE_SERVERS") != "1":
        pytest.skip(started.stderr.strip())
    if started.returncode != 0:
        pytest.fail(f"PostgreSQL did not start: {started.stderr}")
    fields = dict(part.split("=", 1) for part in started.stdout.split())
    yield fields["url"], fields["dir"]
    subprocess.run([SERVER, "stop", fields["dir"]], check=True)


@pytest.fixture
def postgres_url(postgres_server: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a new, empty PostgreSQL database; DPDIST_KEK is set."""
    monkeypatch.setenv("DPDIST_KEK", base64.b64encode(bytes(range(32))).decode())
    url, name = postgres_server[0], f"ledger_{next(_numbers)}"
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return url.removesuffix("/postgres") + f"/{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a ledger that is not made yet, on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return str(request.getfixturevalue("postgres_url"))


def add_up(events: Sequence[str], delta: Fraction) -> Fraction:
    """Compose charges that are JSON numbers in text: exact addition."""
    return sum((Fraction(json.loads(event)) for event in events), Fraction(0))


@pytest.fixture
def open_ledger(ledger_url: str) -> Callable[[], Ledger]:
    """Open the ledger of the test; a charge is the text of a number."""
    return lambda: Ledger.open(ledger_url, compose=add_up)


@pytest.fixture
def ledger(open_ledger: Callable[[], Ledger]) -> Ledger:
    """A ledger with the data set ``acs``: epsilon 1, delta 1e-8, every kind of guarantee."""
    opened = open_ledger()
    opened.create_dataset("acs", epsilon=1, delta="1e-8", guarantees=("dp", "pd-per-record", "pml", "lid"))
    return opened
