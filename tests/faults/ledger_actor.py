"""Runs that are killed: a program beside the tests, single-threaded, so that it may fork.

``python ledger_actor.py URL FOLDER`` reads one JSON command a line and answers each with one JSON object.
A *run* does what a release does with the ledger: find or reserve, mark_drawing, share the key, draw, commit. It
tells its parent how far it got, and is killed with SIGKILL at its n-th step: before a statement that writes (that is,
after the one before it), before or after the commit of a transaction, before a file is opened, renamed or deleted.
"""

import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpdist.errors import BudgetExceeded, DatasetExists, KeyUnavailable, ReleaseConflict
from dpdist.ledger import Books
from dpdist.ledger.anchor import Anchor
from dpdist.ledger.database import Database
from dpdist.ledger.keys import forget_keys, load_noise
from dpdist.ledger.records import Price
from dpdist.ledger.tables import charge
from dpdist.privacy.filter import Cost, Portfolio

URL, FOLDER = sys.argv[1], Path(sys.argv[2])
ANCHOR = str(FOLDER.with_name(f"anchor-of-{FOLDER.name}")) if URL.startswith("sqlite") else ""
Report = Callable[..., None]


def add_up(event: str, portfolio: Portfolio) -> Price:
    amount = Fraction(json.loads(event))
    return Price((Cost(amount, Fraction(0)),) * len(portfolio.filters), amount)


@cache
def parent_ledger() -> Books:
    """The ledger of the process that is never killed."""
    return open_ledger()


def open_ledger() -> Books:
    return Books.open(URL, price=add_up, anchor=ANCHOR)


def dataset_of(release: str) -> str:
    """Return the data set of a release ``data set/name``: small ones, so that checking them is quick."""
    return release.partition("/")[0]


def make_dataset(release: str, epsilon: Fraction | int = 1000) -> None:
    with suppress(DatasetExists):
        parent_ledger().create_dataset(dataset_of(release), epsilon=epsilon, delta=0)


def bound(release: str) -> dict[str, str]:
    names = {"dataset": dataset_of(release), "release": release}
    return {**names, "spec_hash": "spec", "input_fingerprint": "input"}


def request(release: str) -> dict[str, Any]:
    return {**bound(release), "event": '"1/10"', "guarantee": "dp"}


class Killer:
    """Counts the steps of a run and kills the process at one of them (0: never)."""

    def __init__(self, at: int) -> None:
        self.at, self.steps, self.writing = at, 0, False

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        sa.event.listen(sa.Engine, "before_cursor_execute", self.statement)
        sa.event.listen(sa.Engine, "commit", self.ending)
        sa.event.listen(sa.pool.Pool, "close", self.ending)  # after the database has committed
        sys.addaudithook(self.audit)
        write = Database.write

        def watched(database: Database, work: Any) -> Any:
            self.writing = True
            try:
                return write(database, work)
            finally:
                self.writing = False

        Database.write = watched  # type: ignore[method-assign]

    def statement(self, connection: Any, cursor: Any, statement: str, *ignored: Any) -> None:
        if self.writing and statement.startswith(("INSERT", "UPDATE", "DELETE")):
            self.step()

    def ending(self, *ignored: Any) -> None:
        if self.writing:
            self.step()

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.remove", "os.rename", "os.link") and str(arguments[0]).startswith(str(FOLDER)):
            self.step()


def fork(work: Callable[[Report], None], kill_at: int = 0) -> tuple[int, int]:
    """Run `work` in a child; return its process id and the pipe on which it reports."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    killer = Killer(kill_at)
    status = 1
    try:
        killer.watch()
        work(lambda **said: os.write(writing, json.dumps(said).encode() + b"\n"))
        status = 0
    except BudgetExceeded:
        status = 3
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def wait(child: int, reading: int) -> tuple[int, dict[str, Any]]:
    """Return (status, what the child said): status is -9 when it was killed."""
    with os.fdopen(reading) as pipe:
        said: dict[str, Any] = {}
        for line in pipe:
            said |= json.loads(line)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def release_once(release: str, report: Report) -> None:
    ledger = open_ledger()
    attempt = ledger.find(dataset_of(release), release)
    if attempt is None:
        attempt = ledger.reserve(**request(release))
    elif attempt.state != "committed":
        attempt = ledger.resume(**bound(release))
    report(attempt=attempt.id)
    if attempt.manifest_sha256 is None:
        ledger.mark_drawing(attempt)
        try:
            words = [int(word) for word in load_noise(ledger.share_key(attempt, key_file(release))).words("x", 2)]
        except KeyUnavailable:  # another process has committed the attempt, and erased its key
            return release_once(release, report)
        report(words=words)
        sha = hashlib.sha256(json.dumps(words).encode()).hexdigest()
    else:
        sha = attempt.manifest_sha256
    ledger.commit(attempt, manifest_sha256=sha)
    report(committed=sha)


def key_file(release: str) -> str:
    return str(FOLDER / release / "key.json")


def check(release: str, said: dict[str, Any], *, finished: bool) -> list[str]:
    """Return what is wrong with the ledger, given what a run said before it ended."""
    ledger = parent_ledger()
    attempts = [a for a in ledger.verify(dataset_of(release)).attempts if a.release == release and a.state != "void"]
    wrong = []
    if len(attempts) > 1:
        wrong.append(f"charged {len(attempts)} times")
    if "attempt" in said and [a.id for a in attempts] != [said["attempt"]]:
        wrong.append("a charge was lost")
    states = [a.state for a in attempts]
    if "words" in said and states not in (["drawing"], ["committed"]):
        wrong.append(f"noise was drawn in state {states}")
    if "committed" in said and [a.manifest_sha256 for a in attempts] != [said["committed"]]:
        wrong.append("a commit was lost")
    if finished:
        if states != ["committed"]:
            wrong.append(f"finished in state {states}")
        with ledger.database.engine.connect() as connection:
            held = sa.select(charge.c.wrapped_key).where(charge.c.release == release)
            if any(key is not None for key in connection.scalars(held)):
                wrong.append("the ledger still holds a key")
        if Path(key_file(release)).exists():
            wrong.append("the key file is left")
        if ANCHOR and Anchor(ANCHOR).read(dataset_of(release)).head != ledger.show(dataset_of(release)).head:
            wrong.append("the anchor is behind")
    return wrong


def run(release: str, kills: list[int]) -> dict[str, Any]:
    """Run a release, killed at the given step each time, then let it finish."""
    make_dataset(release)
    said: dict[str, Any] = {}
    wrong: list[str] = []
    killed = []
    for kill_at in [*kills, None]:
        now: dict[str, Any] = {}
        if kill_at is None:  # in this process, as if newly started
            forget_keys()
            status = 0
            release_once(release, lambda now=now, **new: now.update(new))
        else:
            status, now = wait(*fork(lambda report: release_once(release, report), kill_at))
        if status not in (0, -signal.SIGKILL):
            wrong.append(f"failed with status {status}")
        wrong += [f"{name} changed" for name in said.keys() & now.keys() if said[name] != now[name]]
        said |= now
        killed.append(status == -signal.SIGKILL)
        wrong += check(release, said, finished=status == 0)
    return {"wrong": wrong, "killed": killed}


def replace(release: str, kill_at: int) -> dict[str, Any]:
    """Replace an attempt that has drawn noise by a new one, killed on the way, then replace it for good."""
    make_dataset(release)
    ledger = parent_ledger()
    old = ledger.mark_drawing(ledger.reserve(**request(release)))
    ref = ledger.share_key(old, key_file(release))

    def work(report: Report) -> None:
        ledger = open_ledger()
        found = ledger.find(dataset_of(release), release)
        if found is not None and found.id == old.id:
            found = ledger.reserve(**request(release), new_attempt=True)
        assert found is not None
        report(attempt=found.id)
        ledger.void(found)

    status, said = wait(*fork(work, kill_at))
    states = [a.state for a in ledger.verify(dataset_of(release)).attempts if a.release == release]
    wrong = []
    if states not in (["drawing"], ["abandoned", "reserved"], ["abandoned", "void"]):
        wrong.append(f"states {states}")
    if "attempt" in said and states == ["drawing"]:
        wrong.append("a charge was lost")
    if states[-1] != "void":
        work(lambda **said: None)
    final = ledger.find(dataset_of(release), release)
    spent = [a.state for a in ledger.verify(dataset_of(release)).attempts if a.release == release]
    if spent != ["abandoned", "void"] or final is not None:
        wrong.append(f"finished in states {spent}")
    forget_keys()
    ledger.void(ledger.reserve(**request(f"{release}/sweep")))
    if Path(ref.uri).exists():
        wrong.append("the key file is left")
    return {"wrong": wrong, "killed": [status == -signal.SIGKILL]}


def race(processes: int, cap: int) -> dict[str, Any]:
    """Let processes open the ledger, make the data set and reserve 1/10 each, all at once."""
    gate, opening = os.pipe()

    def work(number: int) -> Callable[[Report], None]:
        def one(report: Report) -> None:
            os.close(opening)
            os.read(gate, 1)  # ends when the parent closes its end
            make_dataset("race/", Fraction(cap, 10))
            open_ledger().reserve(**request(f"race/{number}"))

        return one

    children = [fork(work(number)) for number in range(processes)]
    os.close(opening)
    statuses = [wait(*child)[0] for child in children]
    os.close(gate)
    budget = parent_ledger().verify("race").budget
    counts = {"admitted": statuses.count(0), "refused": statuses.count(3)}
    return {**counts, "charges": budget.charges, "remaining": str(budget.epsilon_remaining)}


def race_for_one(release: str, processes: int) -> dict[str, Any]:
    """Let processes run the same release at once, resuming each other's attempt as a retry would."""

    def work(report: Report) -> None:
        while True:
            try:
                return release_once(release, report)
            except ReleaseConflict:  # another process was faster: look again
                time.sleep(0.01)

    make_dataset(release)
    children = [fork(work) for _ in range(processes)]
    answers = [wait(*child) for child in children]
    wrong = [f"failed with status {status}" for status, _ in answers if status != 0]
    wrong += check(release, answers[0][1], finished=True)
    return {"wrong": wrong, "manifests": len({said.get("committed") for _, said in answers})}


def many(dataset: str, count: int, kill_after: float | None = None) -> dict[str, Any]:
    """Run releases one after the other; with `kill_after`, kill the process after this many seconds."""

    def work(report: Report) -> None:
        for number in range(count):
            release_once(f"{dataset}/{number}", lambda number=number, **said: report(**{str(number): said}))

    make_dataset(f"{dataset}/")
    child, reading = fork(work)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        lines = [json.loads(line) for line in pipe]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said: dict[str, dict[str, Any]] = {}
    for line in lines:
        for number, part in line.items():
            said[number] = said.get(number, {}) | part
    wrong = [f"failed with status {status}"] * (status not in (0, -signal.SIGKILL))
    for number in range(min(len(said) + 1, count)):
        wrong += run(f"{dataset}/{number}", [])["wrong"] if kill_after is not None else []
        wrong += check(f"{dataset}/{number}", said.get(str(number), {}), finished=True)
    return {"wrong": wrong, "done": len(said)}


COMMANDS = {"run": run, "replace": replace, "race": race, "race_for_one": race_for_one, "many": many}


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        answer = COMMANDS[command.pop("do")](**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
