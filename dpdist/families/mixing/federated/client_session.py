"""A client's seat in a round: what its workers know of it, and what they hold: ledger, folder, identity, key, records.

Everything is derived from the spec and from the charge in the client's own ledger, never from what a coordinator says
later. The key of the attempt lies in the client's own folder; records stay in the memory of its workers.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

from dpdist.data.graph import located_table, run_pass
from dpdist.data.report import check
from dpdist.data.source import CsvOptions, TableSource, fingerprint
from dpdist.data.table import Table, open_table
from dpdist.errors import ReleaseConflict, SpecError
from dpdist.families.mixing.federated.identity import load_identity
from dpdist.families.mixing.federated.plan import FederatedPlan
from dpdist.families.mixing.federated.spec import ClientSpec
from dpdist.families.mixing.graph import class_operator
from dpdist.families.mixing.plan import planned
from dpdist.families.mixing.spec import MixingSpec
from dpdist.ledger import Attempt, Ledger
from dpdist.ledger.keys import KeyRef, forget_keys, load_noise
from dpdist.ledger.records import canonical_event
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.storage.store import Store

TEST_KEYS = "DPDIST_TEST_KEYS"
"""Environment variable of a client's workers: 1 admits fixed test keys."""

_HELD = 4  # tables that a worker keeps between tasks, encoded


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What a worker of a client needs to know to take part; nothing in it is secret.

    Attributes
    ----------
    spec : MixingSpec
    name : str
        Of the client.
    order, sigma_over_clip : int, float
        Of the plan; the client derives the charge from them, and all noise from the charge.
    attempt : str
        The coordinator's attempt, which names the round.
    test_key : str
        64 hexadecimal digits of a fixed key of this client, for tests only; else empty.
    """

    spec: MixingSpec
    name: str
    order: int
    sigma_over_clip: float
    attempt: str
    test_key: str = ""

    @property
    def client(self) -> ClientSpec:
        """The client."""
        clients = self.spec.federated.clients if self.spec.federated is not None else ()
        return next(client for client in clients if client.name == self.name)

    @property
    def own_attempt(self) -> str:
        """Id of the attempt in the client's own ledger."""
        return attempt_of(self.attempt, self.name)

    @property
    def plan(self) -> FederatedPlan:
        """The plan, made again by the client itself."""
        return _plan(self)

    @property
    def spec_hash(self) -> str:
        """What the attempt is bound to."""
        if not self.test_key:
            return self.spec.fingerprint
        return f"{self.spec.fingerprint} test key {hashlib.sha256(self.test_key.encode()).hexdigest()}"

    def __hash__(self) -> int:
        return hash((self.attempt, self.name))


def attempt_of(attempt: str, name: str) -> str:
    """Id of a client's attempt in the round of the coordinator's attempt."""
    return str(uuid5(UUID(attempt), name))


@lru_cache(maxsize=8)
def _plan(seat: Seat) -> FederatedPlan:
    made = planned(seat.spec, order=seat.order, sigma_over_clip=seat.sigma_over_clip)
    if not isinstance(made, FederatedPlan):
        raise SpecError("federated: the spec has no clients")
    return made


def ledger_of(seat: Seat) -> Ledger:
    """The client's own ledger."""
    url = seat.client.ledger or os.environ.get("DPDIST_LEDGER")
    if not url:
        raise SpecError(f"federated.clients: give client {seat.name} its ledger, or its workers the DPDIST_LEDGER")
    return Ledger.open(url, create=False)


def charged(seat: Seat, ledger: Ledger, *states: str) -> Attempt:
    """The client's attempt, if it is in one of these states and charged for what the seat says.

    Raises
    ------
    ReleaseConflict
    """
    attempt = ledger.attempt(seat.own_attempt)
    require_state(attempt, *states)
    if attempt.event != canonical_event(seat.plan.event) or attempt.spec_hash != seat.spec_hash:
        raise ReleaseConflict("the attempt is charged for another plan")
    return attempt


def require_state(attempt: Attempt, *states: str) -> None:
    """Refuse an attempt in another state."""
    if attempt.state not in states:
        raise ReleaseConflict(f"the attempt is {attempt.state}: the round is over for this client")


def refuse_shared(seat: Seat, ledger: Ledger) -> None:
    """Refuse a data set that another client of the round, or the coordinator, charges in the same ledger."""
    found = ledger.find(seat.client.dataset, seat.spec.name)
    clients = seat.spec.federated.clients if seat.spec.federated is not None else ()
    others = {attempt_of(seat.attempt, client.name) for client in clients if client.name != seat.name}
    if found is not None and found.id in others | {seat.attempt}:
        raise SpecError(
            f"federated.clients: data set {seat.client.dataset!r} is charged by somebody else in the same ledger; give "
            "every client a data set of its own"
        )


def folder_of(seat: Seat) -> Store:
    """The client's own confidential folder."""
    client = seat.client
    return Store(client.work, client.storage.options if client.work.startswith("s3") else None)


def work_of(seat: Seat) -> Store:
    """The folder of the attempt in it."""
    return folder_of(seat) / seat.own_attempt


def identity_of(seat: Seat) -> Any:
    """The client's private Ed25519 key, if it has one."""
    client = seat.client
    if client.identity is None or client.public_key is None:
        return None
    return load_identity(client.identity, pinned=client.public_key)


def source_of(seat: Seat) -> TableSource:
    """The client's files."""
    data = seat.spec.data
    return TableSource(
        paths=seat.client.paths,
        format=data.format,
        csv=CsvOptions(**data.csv.model_dump()),
        extra_columns=data.extra_columns,
        storage_options=seat.client.storage.options,
    )


def table_of(seat: Seat) -> Table:
    """The client's table; reads no record."""
    return open_table(source_of(seat), seat.spec.table)


def _key(seat: Seat) -> KeyRef:
    """Where the key of the client's attempt is: a file in its own folder."""
    if seat.test_key:
        if os.environ.get(TEST_KEYS) != "1":
            raise SpecError(f"a fixed test key hides nothing: its workers refuse it unless {TEST_KEYS}=1 is set")
        return KeyRef.fixed(seat.test_key)
    with closing(ledger_of(seat)) as ledger:
        return ledger.share_key(seat.own_attempt, work_of(seat).address("key.json"))


def noise_of(seat: Seat) -> Noise:
    """The client's noise, keyed by its own attempt."""
    with _lock:
        if seat not in _keys:
            _keys[seat] = _key(seat)
        return load_noise(_keys[seat])


def agreement_key(seat: Seat) -> bytes:
    """The private X25519 key of the attempt: a function of its key, destroyed with it."""
    return noise_of(seat).words("federation/agreement", 4).tobytes()


_lock = threading.RLock()
_held: OrderedDict[Seat, list[Codes]] = OrderedDict()
_keys: dict[Seat, KeyRef] = {}


def codes_of(seat: Seat) -> list[Codes]:
    """The codes of the client's records by class, read once; refused if the files are not those that were charged."""
    with _lock:
        if seat in _held:
            _held.move_to_end(seat)
            return _held[seat]
        with closing(ledger_of(seat)) as ledger:
            attempt = charged(seat, ledger, "reserved", "drawing")
        if fingerprint(source_of(seat)) != attempt.input_fingerprint:
            raise ReleaseConflict("the input changed since the charge was reserved")
        schema, label = seat.spec.table, seat.spec.table.names.index(seat.spec.mixing.label)
        codes, report = run_pass(located_table(table_of(seat)), class_operator(label, seat.spec.class_codes))
        record = {
            "confidential": "for the client's own operator: private counts",
            "table": report.confidential(schema),
            "class_sizes": {p.value: len(c[0]) for p, c in zip(seat.plan.classes, codes, strict=True)},
        }
        work_of(seat).write_bytes("run-record.json", json.dumps(record, indent=2).encode())
        check(report, schema)
        _held[seat] = codes
        while len(_held) > _HELD:
            _held.popitem(last=False)
        return list(codes)


def forget(seat: Seat) -> None:
    """Drop the client's records and key from this worker's memory."""
    with _lock:
        _held.pop(seat, None)
        _keys.pop(seat, None)
        forget_keys(seat.own_attempt)
