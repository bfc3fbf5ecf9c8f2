"""The ledger against a simple model of it, over random histories."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from charges import add_up
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dpdist.errors import BudgetExceeded, DpdistError, KeyUnavailable, LedgerError, ReleaseConflict
from dpdist.ledger import Books
from dpdist.ledger.keys import KeyRef, load_noise

RELEASES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["x", "y"])
COSTS = st.sampled_from([Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(1)])
SHAS = st.sampled_from(["0" * 64, "1" * 64])
PICK = st.integers(min_value=0, max_value=10**6)
OPEN = ("reserved", "drawing")


@dataclass
class Entry:
    """What the model knows of an attempt."""

    id: str
    release: str
    spec: str
    input: str
    cost: Fraction
    state: str = "reserved"
    sha: str | None = None
    ref: KeyRef | None = None
    words: tuple[int, ...] = ()


class LedgerMachine(RuleBasedStateMachine):
    """One data set with epsilon 2 and three release names."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.entries: list[Entry] = []
        self.opened = 0

    @initialize()
    def start(self) -> None:
        self.reopen()
        self.ledger.create_dataset("acs", epsilon=2, delta=0)

    @rule()
    def reopen(self) -> None:
        self.ledger = Books.open(f"sqlite:///{self.folder.name}/ledger.db", price=add_up)

    def spent(self) -> Fraction:
        return sum((entry.cost for entry in self.entries if entry.state != "void"), Fraction(0))

    def live(self, release: str) -> Entry | None:
        states = (*OPEN, "committed")
        return next((e for e in self.entries if e.release == release and e.state in states), None)

    def expect(self, error: type[DpdistError] | None, work: Callable[[], Any]) -> Any:
        """Run `work`; it must raise exactly `error`, or nothing."""
        if error is None:
            return work()
        with pytest.raises(error) as raised:
            work()
        assert raised.type is error
        return None

    @rule(release=RELEASES, spec=TEXTS, input=TEXTS, cost=COSTS, new_attempt=st.booleans())
    def reserve(self, release: str, spec: str, input: str, cost: Fraction, new_attempt: bool) -> None:
        live = self.live(release)
        bound = [e for e in self.entries if e.release == release and e.state in ("drawing", "abandoned")]
        given_back = live.cost if live and live.state == "reserved" else Fraction(0)
        error: type[DpdistError] | None = None
        if (live and (live.state == "committed" or not new_attempt)) or any(e.spec != spec for e in bound):
            error = ReleaseConflict
        elif self.spent() - given_back + cost > 2:
            error = BudgetExceeded
        attempt = self.expect(
            error,
            lambda: self.ledger.reserve(
                dataset="acs",
                release=release,
                spec_hash=spec,
                input_fingerprint=input,
                event=f'"{cost}"',
                guarantee="dp",
                new_attempt=new_attempt,
            ),
        )
        if error is None:
            if live is not None:
                live.state = "void" if live.state == "reserved" else "abandoned"
            self.entries.append(Entry(attempt.id, release, spec, input, cost))

    @rule(release=RELEASES, spec=TEXTS, input=TEXTS)
    def resume(self, release: str, spec: str, input: str) -> None:
        live = self.live(release)
        error: type[DpdistError] | None = None
        if live is None:
            error = LedgerError
        elif live.state == "committed" or (live.spec, live.input) != (spec, input):
            error = ReleaseConflict
        attempt = self.expect(
            error, lambda: self.ledger.resume(dataset="acs", release=release, spec_hash=spec, input_fingerprint=input)
        )
        if live is not None and error is None:
            assert attempt.id == live.id

    def pick(self, number: int) -> Entry | None:
        return self.entries[number % len(self.entries)] if self.entries else None

    @rule(number=PICK)
    def mark_drawing(self, number: int) -> None:
        if entry := self.pick(number):
            self.expect(None if entry.state in OPEN else ReleaseConflict, lambda: self.ledger.mark_drawing(entry.id))
            entry.state = "drawing" if entry.state in OPEN else entry.state

    @rule(number=PICK)
    def void(self, number: int) -> None:
        if entry := self.pick(number):
            allowed = entry.state in ("reserved", "void")
            self.expect(None if allowed else LedgerError, lambda: self.ledger.void(entry.id))
            entry.state = "void" if allowed else entry.state

    @rule(number=PICK)
    def give_up(self, number: int) -> None:
        if entry := self.pick(number):
            self.expect(ReleaseConflict if entry.state == "committed" else None, lambda: self.ledger.give_up(entry.id))
            entry.state = {"reserved": "void", "drawing": "abandoned"}.get(entry.state, entry.state)

    @rule(number=PICK, sha=SHAS)
    def commit(self, number: int, sha: str) -> None:
        if entry := self.pick(number):
            error: type[DpdistError] | None = None
            if entry.state == "reserved":
                error = LedgerError
            elif entry.state not in ("drawing", "committed") or entry.sha not in (None, sha):
                error = ReleaseConflict
            self.expect(error, lambda: self.ledger.commit(entry.id, manifest_sha256=sha))
            if error is None:
                entry.state, entry.sha = "committed", sha

    @rule(number=PICK, place=st.sampled_from(["one", "two"]))
    def share_key(self, number: int, place: str) -> None:
        if entry := self.pick(number):
            error = None if entry.state in ("reserved", "drawing") else ReleaseConflict
            uri = str(Path(self.folder.name, entry.id, place))
            ref = self.expect(error, lambda: self.ledger.share_key(entry.id, uri))
            if isinstance(ref, KeyRef):
                words = tuple(int(word) for word in load_noise(ref).words("x", 2))
                assert entry.words in ((), words)
                entry.ref, entry.words = ref, words

    @invariant()
    def the_records_agree(self) -> None:
        if not self.entries:
            return
        statement = self.ledger.verify("acs")
        assert [(a.id, a.state, a.manifest_sha256) for a in statement.attempts] == [
            (e.id, e.state, e.sha) for e in self.entries
        ]
        assert statement.budget.epsilon_spent == self.spent() <= 2

    @invariant()
    def keys_of_ended_attempts_are_gone(self) -> None:
        for entry in self.entries:
            if entry.ref is not None and entry.state not in OPEN:
                assert not Path(entry.ref.uri).exists()
                with pytest.raises(KeyUnavailable):
                    load_noise(entry.ref)
                entry.ref = None
        words = [entry.words for entry in self.entries if entry.words]
        assert len(set(words)) == len(words)

    def teardown(self) -> None:
        self.folder.cleanup()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
