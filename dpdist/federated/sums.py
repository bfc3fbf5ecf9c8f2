"""Noisy sums of integer tables over clients: what a client answers, and how the coordinator adds.

A client keeps an account of its own: each question has a number, is answered once, and costs the sum of
``1 / sigma^2`` of its tables: a record counts in one cell of each. Beyond the mu of the client's own plan
nothing is answered, whatever a coordinator asks for. Noise is addressed by the question's digest, so another question
never meets the same noise.

*Clients that are lost.* Where more clients take part than must, an answer is hidden by a mask of the client's own, so
it can be given again, with the same noise, among fewer clients. A client gives the key of one of these masks. So its
noise is in one sum at most: a sum is seen where all its honest clients gave the key of that answer, and these are as
many as carry the noise that is charged, whatever a coordinator says of who is lost.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdist.accuracy.tables import Tables, triples_of
from dpdist.errors import RoundFailed
from dpdist.federated import session as own
from dpdist.federated.client import ALL, ClientAnswer, Joined, answering, drawing_of, masks_of, message_of
from dpdist.federated.messages import LEAST_SIGMA, WORDS, Masks, Message, check_message
from dpdist.federated.rounds import DROPPED, ClientCalls, note, reasons_of, values_of
from dpdist.federated.session import ClientAttempt, ClientSession
from dpdist.model.sums import Sum
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.storage.store import Store
from dpdist.storage.stored import Stored

_KEY_WORDS = 4  # of 64 bits: the key of a mask
_MOST_QUESTIONS = 1000
_LARGEST = 1 << 50  # beyond it a sum of counts and noise shows that the masks do not cancel


@dataclass(frozen=True, eq=False)
class Question(Stored):
    """What all clients are asked for at once."""

    FILE: ClassVar[str] = "question.npz"

    number: int  # of the question in the round, from 0
    step: str
    sums: tuple[Sum, ...]
    sigmas: tuple[float, ...]  # deviation of the noise of the honest clients together, in each sum

    @property
    def spent(self) -> float:
        """What it costs, of mu^2."""
        return math.fsum(1 / sigma**2 for sigma in self.sigmas)

    @property
    def digest(self) -> str:
        """Bind noise, masks and signatures to it."""
        tables = [
            [one.attributes, [codes.tolist() for codes in one.maps]]
            + ([] if one.groups is None else [hashlib.sha256(one.groups.tobytes()).hexdigest()])
            for one in self.sums
        ]
        text = json.dumps([self.number, self.step, tables, [float(sigma).hex() for sigma in self.sigmas]])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def size(self) -> int:
        """The number of cells of all tables."""
        return sum(one.size for one in self.sums)


@dataclass(frozen=True, eq=False)
class SummedTables(Stored):
    """The noisy sums that answer a question, flat: asked for once, stored, read back. Public."""

    FILE: ClassVar[str] = "sums.npz"

    digest: str
    clients: tuple[str, ...]  # whose tables are in them
    cells: Counts
    # precision of the number of records that they give, and that number times it
    precision: float
    records: float


@answering
def answer(session: SummingSession, question: Question, members: dict[str, Joined]) -> Message:
    """The client's masked part of the sums that answer a question; `members` take part, this client included.

    Where one of them may still be lost, a mask of the client's own hides the message until `unmask`.
    """
    attempt, spec = _charged(session, question, members), session.spec
    masks = masks_of(session, f"{ALL}/{_address(question)}", members) if spec.is_masked else Masks()
    if spec.hides(members):
        mask = Noise(_own_mask(session, question, members))  # that no other client knows
        masks = Masks((*masks.signs, 1), (*masks.noises, mask))
    else:
        _lock(session, question, members)
    parts = [session.part(attempt, one) for one in question.sums]
    steps = part_of(parts, question, own.noise_of(session), masks, honest=spec.honest)
    return _message(session, question, members, steps)


@answering
def unmask(session: SummingSession, question: Question, members: dict[str, Joined]) -> Message:
    """The key of the client's own mask in its answer among these members; of one question it gives one such key."""
    _charged(session, question, members)
    if not session.spec.hides(members):
        raise RoundFailed("the answer has no mask of the client's own")
    _lock(session, question, members)
    return _message(session, question, members, np.frombuffer(_own_mask(session, question, members), np.int64))


class SummingSession(ClientSession):
    """What the coordinator of a release of sums sends with every call of a client."""

    tasks = (answer, unmask)
    held: ClassVar[int] = 1 << 10  # counts are small: a process may hold those of many clients

    def require(self, one: Sum) -> None:
        """Refuse what no sum of this release is. Raises ValueError."""
        cards = self.spec.table.cardinalities
        one.require(cards, triples_of(cards))

    def part(self, attempt: ClientAttempt, one: Sum) -> Counts:
        """The client's own part of a sum, exact. Confidential."""
        return one.of(attempt.result(Tables))


def _charged(session: SummingSession, question: Question, members: dict[str, Joined]) -> ClientAttempt:
    """The client's attempt, with the question charged to its account of the round. Raises RoundFailed: the plan has no
    such question, or not for these clients.
    """
    attempt = drawing_of(session, members, fewer=True)
    _spend(session, question)
    return attempt


def _lock(session: SummingSession, question: Question, members: Iterable[str]) -> None:
    """Let the answer to a question be seen in the sum of these clients, and in no other sum ever."""
    listed = json.dumps(sorted(members)).encode()
    if own.work_of(session).write_exclusive(_seen(question.number), listed) != listed:
        raise RoundFailed("the client's answer was for the sum of other clients before; a round is drawn once")


def _seen(number: int) -> str:
    return f"seen-{number:03}.json"


def _own_mask(session: SummingSession, question: Question, members: Iterable[str]) -> bytes:
    """The key of the client's own mask."""
    name = f"{_address(question)}/own/{'/'.join(sorted(members))}"
    return own.noise_of(session).words(name, _KEY_WORDS).tobytes()


def _message(session: SummingSession, question: Question, members: Iterable[str], steps: Counts) -> Message:
    return message_of(session, round_of(session.attempt, question, members), steps)


def _spend(session: SummingSession, question: Question) -> None:
    """Charge a question to the client's account of the round. Raises RoundFailed: it is no question of the plan."""
    work = own.work_of(session)
    if type(question.number) is not int or not 0 <= question.number < _MOST_QUESTIONS:
        raise RoundFailed("the coordinator asks a question without a number")
    try:
        for one in question.sums:
            session.require(one)
    except (ValueError, TypeError, IndexError) as error:
        raise RoundFailed(f"the coordinator asks for {error}") from None
    least = LEAST_SIGMA * math.sqrt(session.spec.honest)
    if len(question.sigmas) != len(question.sums) or not all(least <= sigma < math.inf for sigma in question.sigmas):
        raise RoundFailed("the coordinator asks for less noise than a client draws")
    spent = [question.spent]
    for number in range(question.number):
        name = f"asked-{number:03}.json"
        if not work.exists(name):
            raise RoundFailed("the coordinator asks out of turn")
        spent.append(float.fromhex(json.loads(work.read_bytes(name))["spent"]))
    if not math.fsum(spent) <= session.plan.mu**2:
        raise RoundFailed("the coordinator asks for more than the client is charged")
    record = json.dumps({"digest": question.digest, "spent": question.spent.hex()}).encode()
    if work.write_exclusive(f"asked-{question.number:03}.json", record) != record:
        raise RoundFailed("the client answered another question before; a round is drawn once")


def _address(question: Question) -> str:
    return f"sums/{question.number}/{question.digest}"


def part_of(tables: Sequence[Counts], question: Question, noise: Noise, masks: Masks, *, honest: int) -> Counts:
    """The tables of a client with its noise and masks, modulo 2^64: int64, flat."""
    address, parts = _address(question), []
    for i, (table, sigma) in enumerate(zip(tables, question.sigmas, strict=True)):
        own_sigma = sigma / math.sqrt(honest)
        parts.append(table.ravel() + noise.gaussian_integers(f"{address}/{i}", table.size, sigma=own_sigma))
    return (np.concatenate(parts).view(np.uint64) + masks.words(address, question.size)).view(np.int64)


def added(parts: Sequence[Counts]) -> Counts:
    """The sum of what all clients sent, modulo 2^64."""
    total = np.zeros(parts[0].shape, np.uint64)
    for part in parts:
        total = total + part.view(np.uint64)
    return total.view(np.int64)


def require_sums(cells: Counts) -> None:
    """Refuse what no noisy sums of counts are. Raises RoundFailed."""
    if not (type(cells) is np.ndarray and cells.dtype == np.int64 and cells.ndim == 1 and cells.size):
        raise RoundFailed("no sums of counts")
    if not -_LARGEST < int(cells.min()) <= int(cells.max()) < _LARGEST:
        raise RoundFailed("the masks of the clients do not cancel; the round fails")


def tables_in(cells: Counts, sums: Sequence[Sum]) -> list[Counts]:
    """The tables of flat cells."""
    ends = np.cumsum([one.size for one in sums])
    return [part.reshape(one.shape) for part, one in zip(np.split(cells, ends[:-1]), sums, strict=True)]


def round_of(attempt: str, question: Question, members: Iterable[str]) -> str:
    """Public id of the messages that answer a question among these clients."""
    return f"{attempt}/{question.number}/{question.digest}/{'/'.join(sorted(members))}"


class Asking:
    """The account's source of noisy sums at a coordinator (`GaussianAccount.ask`): questions to all clients, in turn.

    Each sum is stored and read back, so that a resumed attempt asks for what is missing only. A client that is lost
    stays out as long as enough are left; from then on their tables, at the scale of all, stand for those of all.
    """

    def __init__(self, calls: ClientCalls, members: Mapping[str, Joined], widening: float) -> None:
        self._calls, self._widening, self._number, self._begun = calls, widening, 0, len(members)
        self.members = dict(members)  # who is left
        self._totals: dict[int, Floats] = {}  # by how many are left: the precision of records, and records times it

    def __call__(self, step: str, sums: Sequence[Sum], sigmas: Floats) -> tuple[list[Counts], Floats]:
        """The noisy sums, and their deviations."""
        charged = tuple((sigmas / self._widening).tolist())
        question, work = Question(self._number, step, tuple(sums), charged), self._calls.attempt.work
        self._number += 1
        name = f"sums-{question.number:03}.npz"
        if not work.exists(name):
            cells = self._collected(question)
            each = [
                np.array([1.0, float(table.sum())]) / (sigma**2 * table.size)
                for table, one, sigma in zip(tables_in(cells, sums), sums, sigmas.tolist(), strict=True)
                if one.groups is None
            ]
            precision, records = np.sum([np.zeros(2), *each], axis=0).tolist()
            found = SummedTables(question.digest, tuple(self.members), cells, precision, records)
            work.write_exclusive(name, found.to_bytes())
        found = SummedTables.from_bytes(work.read_bytes(name))
        if found.digest != question.digest:
            raise RoundFailed("the resumed attempt asks another question than before: begin a new attempt")
        return self._at_scale(found, tables_in(found.cells, sums), sigmas)

    def _keep(self, names: Iterable[str]) -> None:
        self.members = {name: self.members[name] for name in names}

    def follow(self, questions: int) -> None:
        """Go on after this many questions, whose sums are stored."""
        for self._number in range(1, questions + 1):
            name = f"sums-{self._number - 1:03}.npz"
            self._note(SummedTables.from_bytes(self._calls.attempt.work.read_bytes(name)))

    def _note(self, found: SummedTables) -> None:
        self._keep(found.clients)
        before = self._totals.get(len(found.clients), np.zeros(2))
        self._totals[len(found.clients)] = before + np.array([found.precision, found.records])

    def _at_scale(self, found: SummedTables, tables: list[Counts], sigmas: Floats) -> tuple[list[Counts], Floats]:
        """Tables of the clients that are left, at the scale of all that answered first."""
        self._note(found)
        left, first = len(found.clients), max(self._totals)
        records = {k: max(total / p, 1.0) if p else 1.0 for k, (p, total) in self._totals.items()}
        scale = records[first] / records[left] if self._totals[left][0] else 1.0
        if left < first:
            tables = [np.rint(table * scale).astype(np.int64) for table in tables]
        return tables, sigmas * (scale * math.sqrt(left / self._begun))

    def _collected(self, question: Question) -> Counts:
        spec, work, seen = self._calls.attempt.spec, self._calls.attempt.work, _seen(question.number)
        if work.exists(seen):  # clients may have removed their masks
            self._keep(json.loads(work.read_bytes(seen)))
        messages, left_out = self._messages(answer, question, question.size)
        while left_out:
            self._keep([name for name in self.members if name not in left_out])
            if len(self.members) < spec.least_clients or work.exists(seen):
                raise RoundFailed(f"client {reasons_of(left_out)} {DROPPED}")
            self._calls.attempt.progress(f"lost: {reasons_of(left_out)}", 1, 1)
            left_out = {}
            if spec.is_masked:
                messages, left_out = self._messages(answer, question, question.size)
        cells = added(messages)
        if spec.hides(self.members):
            work.write_exclusive(seen, json.dumps(list(self.members)).encode())
            keys, left_out = self._messages(unmask, question, _KEY_WORDS)
            if left_out:
                raise RoundFailed(f"client {reasons_of(left_out)} {DROPPED}")
            address = _address(question)
            cells = added(
                [cells, *(-Noise(key.tobytes()).words(address, question.size).view(np.int64) for key in keys)]
            )
        require_sums(cells)
        return cells

    def _messages(
        self, task: Callable[..., ClientAnswer], question: Question, size: int
    ) -> tuple[list[Counts], dict[str, str]]:
        """What the clients that are left send, and why others send nothing that fits."""
        calls, members, left_out, found = self._calls, self.members, dict[str, str](), list[Counts]()
        spec = calls.attempt.spec
        if spec.is_masked and not spec.hides(members):  # who answers, answers among these alone
            calls.attempt.work.write_exclusive(_seen(question.number), json.dumps(list(members)).encode())
        with calls.attempt.stage(f"asking for {question.step}"):
            answers = calls.ask(task, members, question, members)
        round = round_of(calls.attempt.id, question, members)
        for name, message in values_of(answers, left_out).items():
            key, file = calls.attempt.spec.clients[name] or "", f"{question.number:03}-{len(members)}-{name}.sha256"
            try:
                check_message(message, client=name, public_key=key, round=round, shape=(size,), largest=WORDS)
                note(calls.attempt, message, f"{task.__name__}-{file}")
                found.append(message.steps)
            except RoundFailed as error:
                left_out[name] = str(error)
        return found, left_out


def remaining(work: Store, members: Mapping[str, Joined]) -> dict[str, Joined]:
    """The members of a round that answered the last question."""
    names = [name for name in work.names() if name.startswith("sums-")]
    last = SummedTables.from_bytes(work.read_bytes(max(names))).clients if names else members
    return {name: members[name] for name in last}
