"""A client that is lost at a step of a round: what is released, what is charged, and that no noise is seen twice."""

import math
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from federations import attended, posted_federation, released, states, summing_federation

from dpdist.cluster.worker_groups import Lost
from dpdist.errors import RoundFailed
from dpdist.families.synthesis import stages
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.federated import mailbox, rounds, sums
from dpdist.federated.mailbox import Call, MailboxClient, Reply, mailbox_of
from dpdist.publish.manifest import Manifest

CLIENTS = ("east", "north", "south", "west")
QUESTIONS = ("answer 0", "answer 2", "answer 5")  # one-way tables, grids of all pairs, and the accuracy
ANYWHERE = ("join", *QUESTIONS, "unmask 1", "commit")
STEPS = [(step, False) for step in (*ANYWHERE, "ready")]
STEPS += [pytest.param(step, True, marks=pytest.mark.slow) for step in ANYWHERE]


@dataclass
class Recorded:
    """All that clients sent: by the task, the question and its clients, what each sent."""

    sent: dict[tuple[str, int, tuple[str, ...]], dict[str, set[bytes]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )

    def add(self, task: str, question: Any, members: Any, name: str, steps: Any) -> None:
        """Record a message of tables or of a key."""
        self.sent[task, question.number, tuple(sorted(members))][name].add(steps.tobytes())

    def check(self, least: int) -> None:
        """No message was sent in two versions, and of no question a client's noise is in two sums that can be seen."""
        seen: dict[int, list[tuple[str, ...]]] = defaultdict(list)
        keys: dict[tuple[int, str], set[tuple[str, ...]]] = defaultdict(set)
        for (task, number, members), by_client in self.sent.items():
            assert all(len(versions) == 1 for versions in by_client.values())
            assert len(members) >= least
            is_open = task == "unmask" or len(members) == least
            for name in by_client if is_open else ():
                keys[number, name].add(members)
            if is_open and by_client.keys() == set(members):
                seen[number].append(members)
        assert seen
        assert all(len(sums) == 1 for sums in seen.values())
        assert all(len(sums) == 1 for sums in keys.values())

    def check_bytes(self, name: str, lost_at: float) -> None:
        """A client that stays answers each of six questions once, and the one where another is lost twice; of all but
        this one it gives 32 bytes as long as nobody is lost.
        """
        sent = {(task, n, len(of)): len(*by[name]) for (task, n, of), by in self.sent.items() if name in by}
        four = {("answer", n, 4) for n in range(6) if n <= lost_at}
        three = {("answer", n, 3) for n in range(6) if n >= lost_at}
        keys = {("unmask", n, 4) for n in range(6) if n < lost_at}
        assert sent.keys() == four | three | keys
        assert {sent[key] for key in keys} <= {32}
        assert all(sent.get(("answer", n, 3), size) == size for (task, n, _), size in sent.items() if task == "answer")


class _Gone(Exception):
    """The client is lost."""


def lose(step: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, lost: list[str]) -> None:
    """Lose west at a step, for good, until `lost` is emptied: in one process after it answered, by mailbox before."""
    task, _, number = step.partition(" ")

    def falls(name: str, function: str, question: Any) -> bool:
        if name == "west" and function == task and (not number or question.number == int(number)) and not lost:
            lost.append("west")
        return name == "west" and lost == ["west"]

    plain = rounds.OneProcess.call

    def call(self: Any, what: str, function: Any, arguments: Any) -> dict[str, Any]:
        answers = plain(self, what, function, arguments)
        for name, (_, *given) in arguments.items():
            question = given[0] if len(given) == 2 else None
            if question is not None and not answers[name].error:
                recorded.add(function.__name__, *given, name, answers[name].value.steps)
            if falls(name, function.__name__, question):
                answers[name] = Lost("it has no worker any more")
        return answers

    answered = MailboxClient._answer

    def answer(self: Any, attempt: str, call: Call, content: bytes) -> bool:
        if self._name in call.clients and falls(self._name, call.task, call.question):
            # as the coordinator does after its patience
            (self._store / attempt).write_exclusive(f"{call.number:04}.west", b"")
            raise _Gone
        return answered(self, attempt, call, content)

    monkeypatch.setattr(rounds.OneProcess, "call", call)
    monkeypatch.setattr(MailboxClient, "_answer", answer)


def letters(spec: WholeSynthesisSpec, recorded: Recorded) -> None:
    """Record what is in the mailbox."""
    store = mailbox_of(spec)
    for place in (name for name in store.names() if name.endswith(".call")):
        call = Call.from_bytes(store.read_bytes(place)[64:])
        for name in call.clients if call.question is not None else ():
            content = store.read_bytes(f"{place.removesuffix('call')}{name}")
            reply = Reply.from_bytes(content[64:]) if content else None
            if reply is not None and not reply.error:
                recorded.add(call.task, call.question, call.members, name, reply.answer.value.steps)


def begun(spec: WholeSynthesisSpec) -> list[threading.Thread]:
    """The clients, where they answer by mailbox."""
    assert spec.federated is not None
    return [attended(spec, name, {}) for name in CLIENTS] if spec.federated.mailbox else []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("step", "by_mailbox"), STEPS)
def test_a_client_is_lost(step: str, by_mailbox: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "_POLL", 0.01)
    recorded, lost = Recorded(), list[str]()
    make = posted_federation if by_mailbox else summing_federation
    small = {"model__rounds": 0, "model__balance": 0, "privacy__epsilon": 0.5}
    spec = make(tmp_path, CLIENTS, federated__at_least=3, **small)
    lose(step, recorded, monkeypatch, lost)
    threads = begun(spec)
    if step.startswith("unmask"):
        with pytest.raises(RoundFailed, match=r"'west' .* dropped out during the round"):
            released(spec)
        assert set(map(tuple, states(spec).values())) == {("drawing",)}
        lost[:] = ["back"]
        threads.append(attended(spec, "west", {})) if by_mailbox else None
        released(spec, attempt="resume")
    else:
        released(spec)
    for thread in threads:
        thread.join()
    if by_mailbox:
        letters(spec, recorded)
    recorded.check(least=3)
    recorded.check_bytes("north", {"join": -1.0, **dict(zip(QUESTIONS, (0, 2, 5), strict=True))}.get(step, math.inf))
    manifest = Manifest.from_bytes((tmp_path / "release" / "_manifest.json").read_bytes())
    told = manifest.parameters["clients"], manifest.parameters.get("clients_lost", 0)
    of_step = step.partition(" ")[0]
    assert told == {"join": (3, 0), "answer": (4, 1)}.get(of_step, (4, 0))
    away = {"join": [] if by_mailbox else ["reserved"], "unmask": ["committed"]}
    away |= {} if by_mailbox else {"commit": ["committed"]}  # it did, and was lost before it said so
    away["answer"] = ["reserved" if by_mailbox and step == "answer 0" else "drawing"]
    expected = {key: ["committed"] for key in ("", *CLIENTS)} | {"west": away.get(of_step, ["drawing"])}
    assert states(spec) == expected
    spent = {name: len(list((tmp_path / name / "work").rglob("asked-*.json"))) for name in CLIENTS}
    assert len({spent[name] for name in CLIENTS[:3]}) == 1  # nobody was asked for more because of it
    account = dict(map(tuple, manifest.parameters["learned"]["account"]))
    assert sum(account.values()) <= 1
    assert len(account) + 1 == spent["north"]  # with the accuracy


def test_a_coordinator_that_dies_after_a_loss_goes_on_with_the_same_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, lost = Recorded(), list[str]()
    small = {"model__rounds": 0, "model__balance": 0, "privacy__epsilon": 0.5, "privacy__accuracy_share": 0.0}
    spec = summing_federation(tmp_path, CLIENTS, federated__at_least=3, **small)
    lose("answer 1", recorded, monkeypatch, lost)
    plain = sums.added

    def dies(parts: Any) -> Any:
        if lost == ["west"]:
            lost[:] = ["back"]
            raise RoundFailed("the coordinator dies")
        return plain(parts)

    monkeypatch.setattr(sums, "added", dies)
    with pytest.raises(RoundFailed, match="dies"):
        released(spec)
    released(spec, attempt="resume")
    recorded.check(least=3)
    assert states(spec)["west"] == ["drawing"]
    assert states(spec)["north"] == ["committed"]


def test_a_coordinator_that_dies_once_it_has_the_accuracy_asks_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"model__rounds": 0, "model__balance": 0, "privacy__epsilon": 0.5}
    spec = summing_federation(tmp_path, CLIENTS[:2], **small)

    def dies(*given: Any, **named: Any) -> Any:
        measure(*given, **named)
        raise RoundFailed("the coordinator dies")

    with monkeypatch.context() as patch:
        measure = stages.measure_sketched
        patch.setattr(stages, "measure_sketched", dies)
        with pytest.raises(RoundFailed, match="dies"):
            released(spec)
    asked = sorted(path.name for path in (tmp_path / "east" / "work").rglob("asked-*.json"))
    released(spec, attempt="resume")
    assert sorted(path.name for path in (tmp_path / "east" / "work").rglob("asked-*.json")) == asked
    assert states(spec)["east"] == ["committed"]
