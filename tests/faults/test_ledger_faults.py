"""The budget under attack: races, and kills at any step of the protocol, on SQLite and PostgreSQL."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from forkserver import Python
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ACTOR = Path(__file__).with_name("ledger_actor.py")
Ask = Callable[..., dict[str, Any]]
_numbers = count()


@contextmanager
def acting_on(ledger_url: str, folder: Path) -> Iterator[Ask]:
    """Start the program that runs and kills."""
    command = [sys.executable, ACTOR, ledger_url, folder]
    process = Python(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(do: str, **arguments: Any) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    yield ask
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()


@pytest.fixture
def actor(ledger_url: str, tmp_path: Path) -> Iterator[Ask]:
    """Ask for runs and kills on the test's ledger, which does not exist yet."""
    with acting_on(ledger_url, tmp_path) as ask:
        yield ask


def test_of_64_processes_at_once_exactly_the_5_that_fit_are_admitted(actor: Ask) -> None:
    """They also race to make the tables, the key-encryption key and the data set."""
    answer = actor("race", processes=64, cap=5)
    assert answer == {"admitted": 5, "refused": 59, "charges": 5, "remaining": "0"}


def test_processes_that_run_one_release_at_once_charge_and_commit_it_once(actor: Ask) -> None:
    assert actor("race_for_one", release="r", processes=8) == {"wrong": [], "manifests": 1}


def kill_everywhere(ask: Callable[[int], dict[str, Any]]) -> int:
    """Ask for a kill at step 1, 2, … until the run ends before it; return the number of steps."""
    for kill_at in count(1):
        answer = ask(kill_at)
        assert answer["wrong"] == [], f"killed at step {kill_at}"
        if not answer["killed"][0]:
            return kill_at - 1
    raise AssertionError


def test_a_kill_at_any_step_neither_loses_nor_repeats_a_charge_or_a_commit(actor: Ask) -> None:
    steps = kill_everywhere(lambda kill_at: actor("run", release=f"r{kill_at}", kills=[kill_at]))
    assert steps > 20


def test_a_kill_at_any_step_of_a_new_attempt_keeps_what_was_spent(actor: Ask) -> None:
    steps = kill_everywhere(lambda kill_at: actor("replace", release=f"r{kill_at}", kill_at=kill_at))
    assert steps > 10


def test_kills_upon_kills(actor: Ask) -> None:
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(min_value=1, max_value=28), min_size=2, max_size=4))
    def killed_often(kills: list[int]) -> None:
        assert actor("run", release=f"often-{next(_numbers)}", kills=kills)["wrong"] == []

    killed_often()


def test_a_kill_at_any_moment(actor: Ask) -> None:
    """Between the steps too, in the middle of what the database does: by the clock."""
    for i in range(5):
        answer = actor("many", dataset=f"clock-{i}", count=1000, kill_after=0.06 + 0.05 * i)
        assert answer["wrong"] == []


def test_a_restart_of_postgresql_is_not_noticed(
    postgres_server: tuple[str, str], postgres_url: str, tmp_path: Path
) -> None:
    script = Path(__file__).parents[1] / "servers" / "postgres.sh"

    def restart() -> None:
        for _ in range(2):
            time.sleep(0.4)
            subprocess.run([script, "restart", postgres_server[1]], check=True)

    thread = threading.Thread(target=restart)
    thread.start()
    with acting_on(postgres_url, tmp_path) as ask:
        answer = ask("many", dataset="restart", count=20)
    thread.join()
    assert answer == {"wrong": [], "done": 20}
