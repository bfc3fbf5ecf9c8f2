"""Noisy sums of integer tables over clients: what a client answers, and how the coordinator adds.

A client keeps an account of its own: each question has a number, is answered once, and costs the sum of
``1 / sigma^2`` of its tables: a record counts in one cell of each. Beyond the mu of the client's own plan
nothing is answered, whatever a coordinator asks for. Noise and masks are addressed by the question's digest, so another
question never meets the same noise.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdist.accuracy.tables import Tables, triples_of
from dpdist.errors import RoundFailed
from dpdist.federated import session as own
from dpdist.federated.client import Joined, answering, masks_of, pin
from dpdist.federated.messages import LEAST_SIGMA, WORDS, Masks, Message, check_message, message_statement
from dpdist.federated.rounds import DROPPED, ClientCalls, note
from dpdist.federated.session import ClientAttempt, ClientSession
from dpdist.model.sums import Sum
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.storage.stored import Stored

_PART = "all"  # all clients take part in every sum
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
        tables = [[one.attributes, [codes.tolist() for codes in one.maps]] for one in self.sums]
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
    cells: Counts


class SummingSession(ClientSession):
    """What the coordinator of a release of sums sends with every call of a client."""

    held: ClassVar[int] = 1 << 10  # counts are small: a process may hold those of many clients

    def gather(self, attempt: ClientAttempt) -> Tables:
        """See `ClientSession.gather`: the tables that a sum may be of."""
        raise NotImplementedError


@answering
def answer(session: SummingSession, question: Question, members: dict[str, Joined]) -> Message:
    """The client's masked part of the sums that answer a question; `members` take part, this client included."""
    if len(members) < session.spec.least_clients:
        raise RoundFailed("fewer clients take part than the noise of each is made for")
    pin(session, _PART, members)
    with closing(own.ledger_of(session)) as ledger:
        own.charged(session, ledger, "drawing")
    attempt, spec = own.attempt_of(session), session.spec
    _spend(session, question)
    masks = masks_of(session, _PART, members) if spec.is_masked else Masks()
    tables = attempt.result(Tables)
    steps = part_of(tables, question, own.noise_of(session), masks, honest=spec.honest)
    round, key = round_of(session.attempt, question), own.identity_of(session)
    statement = message_statement(steps, client=session.name, round=round)
    return Message(session.name, round, steps, b"" if key is None else key.sign(statement))


def _spend(session: SummingSession, question: Question) -> None:
    """Charge a question to the client's account of the round. Raises RoundFailed: it is no question of the plan."""
    cards, work = session.spec.table.cardinalities, own.work_of(session)
    triples = triples_of(cards)
    try:
        for one in question.sums:
            one.require(cards, triples)
    except (ValueError, TypeError, IndexError) as error:
        raise RoundFailed(f"the coordinator asks for {error}") from None
    least = LEAST_SIGMA * math.sqrt(session.spec.honest)
    if len(question.sigmas) != len(question.sums) or not all(least <= sigma < math.inf for sigma in question.sigmas):
        raise RoundFailed("the coordinator asks for less noise than a client draws")
    spent = [question.spent]
    for number in range(question.number):
        name = _asked(number)
        if not work.exists(name):
            raise RoundFailed("the coordinator asks out of turn")
        spent.append(float.fromhex(json.loads(work.read_bytes(name))["spent"]))
    if not math.fsum(spent) <= session.plan.mu**2:
        raise RoundFailed("the coordinator asks for more than the client is charged")
    record = json.dumps({"digest": question.digest, "spent": question.spent.hex()}).encode()
    if work.write_exclusive(_asked(question.number), record) != record:
        raise RoundFailed("the client answered another question before; a round is drawn once")


def _asked(number: int) -> str:
    return f"asked-{number:03}.json"


def part_of(tables: Tables, question: Question, noise: Noise, masks: Masks, *, honest: int) -> Counts:
    """The tables of a client with its noise and masks, modulo 2^64: int64, flat."""
    address, parts = f"sums/{question.number}/{question.digest}", []
    for i, (one, sigma) in enumerate(zip(question.sums, question.sigmas, strict=True)):
        own_sigma = sigma / math.sqrt(honest)
        parts.append(one.of(tables).ravel() + noise.gaussian_integers(f"{address}/{i}", one.size, sigma=own_sigma))
    return (np.concatenate(parts).view(np.uint64) + masks.words(address, question.size)).view(np.int64)


def added(parts: Sequence[Counts]) -> Counts:
    """The sum of what all clients sent, modulo 2^64."""
    total = np.zeros(parts[0].shape, np.uint64)
    for part in parts:
        total = total + part.view(np.uint64)
    return total.view(np.int64)


def tables_in(cells: Counts, sums: Sequence[Sum]) -> list[Counts]:
    """The tables of flat cells."""
    ends = np.cumsum([one.size for one in sums])
    return [part.reshape(one.shape) for part, one in zip(np.split(cells, ends[:-1]), sums, strict=True)]


def round_of(attempt: str, question: Question) -> str:
    """Public id of the messages that answer a question."""
    return f"{attempt}/{question.number}/{question.digest}"


class Asking:
    """The account's source of noisy sums at a coordinator (`GaussianAccount.ask`): questions to all clients, in turn.

    Each sum is stored and read back, so that a resumed attempt asks for what is missing only.
    """

    def __init__(self, calls: ClientCalls, members: Mapping[str, Joined], widening: float) -> None:
        self._calls, self._members, self._widening, self._number = calls, dict(members), widening, 0

    def __call__(self, step: str, sums: Sequence[Sum], sigmas: Floats) -> list[Counts]:
        """The noisy sums."""
        charged = tuple((sigmas / self._widening).tolist())
        question, work = Question(self._number, step, tuple(sums), charged), self._calls.attempt.work
        self._number += 1
        name = f"sums-{question.number:03}.npz"
        if not work.exists(name):
            work.write_exclusive(name, SummedTables(question.digest, self._collected(question)).to_bytes())
        found = SummedTables.from_bytes(work.read_bytes(name))
        if found.digest != question.digest:
            raise RoundFailed("the resumed attempt asks another question than before: begin a new attempt")
        return tables_in(found.cells, sums)

    def _collected(self, question: Question) -> Counts:
        calls, spec, stage = self._calls, self._calls.attempt.spec, f"asking for {question.step}"
        messages = calls.each(stage, answer, self._members, question, self._members, fault=DROPPED)
        round = round_of(calls.attempt.id, question)
        for name, message in messages.items():
            key = spec.clients[name] or ""
            check_message(message, client=name, public_key=key, round=round, shape=(question.size,), largest=WORDS)
            note(calls.attempt, message, f"received-{question.number:03}-{name}.sha256")
        cells = added([message.steps for message in messages.values()])
        if not -_LARGEST < int(cells.min()) <= int(cells.max()) < _LARGEST:
            raise RoundFailed("the masks of the clients do not cancel; the round fails")
        return cells
