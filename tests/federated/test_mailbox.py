"""Clients by mailbox: as in one process; letters that are altered, truncated, replayed, foreign or late are refused.

The mailbox is a folder, or in a bucket ``shared`` of the server that DPDIST_TEST_S3 names (`make e2e` gives it Ceph).
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from clusters import FlakyS3, flaky_bucket
from federations import NAMES, attended, posted_federation, released, states

from dpdist.cluster.worker_groups import Lost
from dpdist.errors import RoundFailed, SpecError
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.families.synthesis.stages import SynthesisSession
from dpdist.federated import client, mailbox
from dpdist.federated.mailbox import Mailbox, MailboxClient, mailbox_of
from dpdist.federated.messages import Message
from dpdist.ledger.signing import load_signing_key
from dpdist.storage import s3 as objects

Spoil = Callable[[bytes], bytes]


@pytest.fixture
def posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WholeSynthesisSpec:
    """A federation by mailbox, whose clients are looked for often."""
    monkeypatch.setattr(mailbox, "_POLL", 0.01)
    monkeypatch.setattr(mailbox, "PATIENCE", 60)
    real = os.environ.get("DPDIST_TEST_S3")
    return posted_federation(tmp_path, **({"federated__mailbox": f"s3://shared/{uuid4()}"} if real else {}))


def all_commit(spec: WholeSynthesisSpec) -> None:
    """Release with clients that attend, and look that all have committed."""
    outcomes: dict[str, Any] = {}
    threads = [attended(spec, name, outcomes) for name in NAMES]
    released(spec, key=None)
    for thread in threads:
        thread.join()
    assert outcomes == dict.fromkeys(NAMES, True)
    assert states(spec) == {name: ["committed"] for name in ("", *NAMES)}


def test_by_mailbox_as_in_one_process(posted: WholeSynthesisSpec, tmp_path: Path) -> None:
    all_commit(posted)
    own = {name: size for name, size in mailbox_of(posted).sizes().items() if name.endswith(".north")}
    asked = next((tmp_path / "north" / "work").iterdir()).glob("asked-*.json")
    assert len(own) == 3 + len(list(asked))  # it joins, is ready, and commits
    assert sum(own.values()) < 30_000


@pytest.fixture
def flaky_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyS3]:
    monkeypatch.setitem(objects.CONFIG, "retries", {"total_max_attempts": 1})
    with flaky_bucket(monkeypatch) as server:
        yield server


def test_a_storage_that_is_away_delays_a_round(
    tmp_path: Path, flaky_s3: FlakyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_POLL", 0.01)
    monkeypatch.setattr(mailbox, "_AWAY", 30)
    monkeypatch.setattr(mailbox, "PATIENCE", 60)
    spec = posted_federation(tmp_path, federated__mailbox=f"s3://{flaky_s3.bucket}/box")
    met = Counter[tuple[str, str]]()

    def first(request: str) -> bool:
        method, place = request.split(" ", 1)
        met[kind := (method, place.rpartition(".")[2] if "." in place else "")] += 1
        return met[kind] <= 6

    flaky_s3.fail("SlowDown", "hang up", "InternalError", forever=True, where=first)
    all_commit(spec)
    assert {("GET", ""), ("PUT", "call"), ("GET", "call"), ("PUT", "north"), ("HEAD", "north")} <= set(met)


def test_answers_that_are_not_a_clients_own_are_refused(
    posted: WholeSynthesisSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = str(uuid4())
    box, folder = Mailbox(posted, attempt, False, 20), mailbox_of(posted) / attempt
    kept: list[bytes] = []

    def call(spoil: Spoil) -> Any:
        number = box._number
        answers: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: answers.update(box.call("", client.void, {"north": (None,)})))
        thread.start()
        member = MailboxClient(posted, "north", SynthesisSession)
        while not (waiting := member._waiting()):
            pass
        with monkeypatch.context() as patch:
            plain = type(folder).write_exclusive
            patch.setattr(type(folder), "write_exclusive", lambda s, name, data: plain(s, name, spoil(data)) and data)
            member._answer(attempt, *member._call(attempt, waiting[0].partition("/")[2]))
        thread.join()
        kept.append(folder.read_bytes(f"{number:04}.north"))
        return answers["north"]

    assert call(lambda data: data).error == ""
    for spoil in (
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # altered
        lambda data: data[:-20],  # truncated
        lambda data: kept[0],  # replayed
        lambda data: foreign(posted)(data[64:]) + data[64:],
    ):
        lost = call(spoil)
        assert isinstance(lost, Lost)
        assert "not signed with its public_key" in lost.reason
    quick = replace(
        box, spec=posted.model_copy(update={"cluster": posted.cluster.model_copy(update={"timeout": 0.05})})
    )
    assert quick.call("", client.void, {"north": (None,)})["north"] == Lost("it did not answer in time")
    member = MailboxClient(posted, "north", SynthesisSession)
    assert member._waiting() == []
    with pytest.raises(RoundFailed, match="too late"):
        member._answer(attempt, *member._call(attempt, f"{quick._number - 1:04}.call"))


def hasty(spec: WholeSynthesisSpec) -> WholeSynthesisSpec:
    """A coordinator that does not wait."""
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"timeout": 0.05})})


def foreign(spec: WholeSynthesisSpec) -> Callable[[bytes], bytes]:
    """Signatures of another client."""
    assert spec.federated is not None
    key = load_signing_key(spec.federated.clients[1].identity)
    assert key is not None
    return key.sign


def test_calls_that_are_not_the_coordinators_are_refused(posted: WholeSynthesisSpec) -> None:
    attempt, other = str(uuid4()), str(uuid4())
    folder, told = mailbox_of(posted), list[str]()
    Mailbox(hasty(posted), attempt, False, 1).call("", client.join, {"north": (None,)})
    call = (folder / attempt).read_bytes("0000.call")
    (folder / attempt).delete("0000.north")  # where the coordinator had waited no longer
    body = call[64:]
    places = {
        f"{attempt}/0001.call": call,  # replayed in its attempt
        f"{other}/0000.call": call,  # replayed in another
        f"{attempt}/0002.call": call[:-1] + bytes([call[-1] ^ 1]),  # altered
        f"{attempt}/0003.call": call[:-20],  # truncated
        f"{attempt}/0004.call": b"",
        f"{attempt}/0005.call": foreign(posted)(body) + body,
    }
    for place, content in places.items():
        folder.write_bytes(place, content)
    with pytest.raises(RoundFailed, match="no call has come"):
        MailboxClient(posted, "north", SynthesisSession).attend(patience=0.4, told=told.append)
    assert sum(line.startswith("refused") for line in told) == len(places)
    assert told.count("answered    join") == 1
    assert states(posted)["north"] == ["reserved"]
    answered = {name for name in folder.names() if name.endswith(".north")}
    assert answered == {f"{attempt}/0000.north"}


def test_a_client_joins_one_attempt_at_a_time(posted: WholeSynthesisSpec) -> None:
    quick = hasty(posted)
    for attempt in (first := str(uuid4()), str(uuid4())):
        Mailbox(quick, attempt, False, 1).call("", client.join, {"north": (None,)})
        (mailbox_of(posted) / attempt).delete("0000.north")
    told = list[str]()
    with pytest.raises(RoundFailed, match="no call has come"):
        MailboxClient(posted, "north", SynthesisSession).attend(patience=0.4, told=told.append)
    assert [line.partition(" ")[0] for line in told] == ["answered", "refused"]
    assert states(posted)["north"] == ["reserved"]
    assert first


def test_a_mailbox_needs_the_coordinators_key(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"federated\.mailbox: its calls are signed"):
        posted_federation(tmp_path, federated__identity=None, federated__public_key=None)
    other = posted_federation(tmp_path, federated__identity=str(tmp_path / "north" / "identity.pem"))
    with pytest.raises(SpecError, match="is not the one whose public_key"):
        Mailbox(other, str(uuid4()), False, 1)


def test_a_message_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    body = mailbox.Reply("", message=Message("north", "", np.zeros(1 << 20, np.int64))).to_bytes()
    mailbox._small(body)
    monkeypatch.setattr(mailbox, "_MOST", 1 << 20)
    with pytest.raises(RoundFailed, match="unpacks to more"):
        mailbox._small(body)
