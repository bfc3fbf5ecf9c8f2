"""A client's part in a round: how its workers find its ledger, folder, identity, key and records.

They derive everything from the spec and from the charge in the client's own ledger. The key of the attempt is in the
client's own folder; records stay in the memory of its workers.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar
from uuid import UUID, uuid5

from dpdist.cluster.executor import InProcess
from dpdist.data.inputs import table_source
from dpdist.data.source import TableSource, fingerprint
from dpdist.data.table import TableFiles
from dpdist.errors import ContractBroken, ReleaseConflict, SpecError
from dpdist.families.base.attempt import Attempt, silent
from dpdist.families.base.owners import refuse_tables_of_others
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import make_plan
from dpdist.federated.messages import load_identity
from dpdist.federated.spec import ClientSpec, FederatedRelease, SummedRelease
from dpdist.ledger import Books, Charge
from dpdist.ledger.keys import WITH_TEST_KEY, KeyRef, forget_keys, load_noise, require_test_keys
from dpdist.ledger.records import event_json
from dpdist.privacy.event import covers
from dpdist.privacy.noise import Noise
from dpdist.spec.contract import kept_contract
from dpdist.storage.store import Store

ClientAttempt = Attempt[Any, Any]


@dataclass(frozen=True, kw_only=True)
class ClientSession:
    """What the coordinator sends with every call of a client; nothing in it is secret."""

    tasks: ClassVar[tuple[Callable[..., Any], ...]] = ()  # what a coordinator asks for in the family's own rounds
    held: ClassVar[int] = 4  # clients whose tables a worker keeps between tasks, encoded

    spec: FederatedRelease
    name: str  # of the client
    attempt: str  # the coordinator's attempt, which names the round
    under_contract: bool = False  # whether the coordinator's data set has one; then that of the client must, too
    test_key: str = ""  # 64 hexadecimal digits of a fixed key of this client, for tests only; else empty

    @property
    def client(self) -> ClientSpec:
        """The client."""
        clients = self.spec.federated.clients if self.spec.federated is not None else ()
        return next(client for client in clients if client.name == self.name)

    @property
    def own_attempt(self) -> str:
        """Id of the attempt in the client's own ledger."""
        return own_attempt_id(self.attempt, self.name)

    @property
    def plan(self) -> Any:
        """The plan, made again by the client itself."""
        return _plan(self)

    def planned(self) -> Plan:
        """Make the plan from the fields of the session."""
        return make_plan(self.spec)

    def gather(self, attempt: ClientAttempt) -> object:
        """Return what the client's answers are computed from, in one pass over its records."""
        raise NotImplementedError

    @property
    def noise_settings(self) -> list[Any]:
        """What decides the noise beside the spec."""
        return []

    @property
    def spec_hash(self) -> str:
        """Bind an attempt to the spec, the client's folder, and the noise to the last bit."""
        folder = json.dumps([self.client.work, self.client.storage.model_dump(mode="json")])
        noise = json.dumps(self.noise_settings)
        bound = hashlib.sha256(f"{self.spec.fingerprint} {folder} {noise}".encode()).hexdigest()
        if not self.test_key:
            return bound
        return f"{bound}{WITH_TEST_KEY}{hashlib.sha256(self.test_key.encode()).hexdigest()}"

    def __hash__(self) -> int:
        return hash((self.attempt, self.name))


def own_attempt_id(attempt: str, name: str) -> str:
    """Id of a client's attempt in the round of the coordinator's attempt."""
    return str(uuid5(UUID(attempt), name))


@lru_cache(maxsize=64)
def _plan(session: ClientSession) -> Plan:
    return session.planned()


def ledger_of(session: ClientSession) -> Books:
    """The client's own ledger."""
    url = session.client.ledger or os.environ.get("DPDIST_LEDGER")
    if not url:
        raise SpecError(f"federated.clients: give client {session.name} its ledger, or its workers the DPDIST_LEDGER")
    return Books.open(url, create=False)


def charged(session: ClientSession, ledger: Books, *states: str) -> Charge:
    """The attempt in one of these states, charged for what the session says. Raises ReleaseConflict: it is not."""
    attempt = ledger.attempt(session.own_attempt)
    require_state(attempt, *states)
    same = covers(event_json(attempt.event), event_json(session.plan.event))
    if not same or attempt.spec_hash != session.spec_hash:
        raise ReleaseConflict(
            "the attempt is charged for another plan, or began with another work folder: give federated.clients the "
            "`work` and `storage` that it began with"
        )
    return attempt


def require_state(attempt: Charge, *states: str) -> None:
    """Refuse an attempt in another state."""
    if attempt.state not in states:
        raise ReleaseConflict(f"the attempt is {attempt.state}: the round is over for this client")


def refuse_shared(session: ClientSession, ledger: Books) -> None:
    """Refuse a data set that others of the round charge in the same ledger. Raises SpecError."""
    found = ledger.find(session.client.dataset, session.spec.name)
    others = {own_attempt_id(session.attempt, name) for name in session.spec.clients if name != session.name}
    if found is not None and found.id in others | {session.attempt}:
        raise SpecError(
            f"federated.clients: data set {session.client.dataset!r} is charged by somebody else in the same ledger; "
            "give every client a data set of its own"
        )


def folder_of(session: ClientSession) -> Store:
    """The client's own confidential folder."""
    client = session.client
    return Store(client.work, client.storage.options if client.work.startswith("s3") else None)


def work_of(session: ClientSession) -> Store:
    """The folder of the attempt in it."""
    return folder_of(session) / session.own_attempt


def identity_of(session: ClientSession) -> Any:
    """The client's private Ed25519 key, if it has one."""
    client = session.client
    if client.identity is None or client.public_key is None:
        return None
    return load_identity(client.identity, pinned=client.public_key)


def own_spec(session: ClientSession) -> FederatedRelease:
    """The spec of what the client itself does: a release from its files alone."""
    of_client: dict[str, Any] = {"path": session.client.path, "storage": session.client.storage}
    if isinstance(session.spec, SummedRelease):  # how many records there are is declared of all clients together
        of_client["minimum_records"] = 1
    data = session.spec.data.model_copy(update=of_client)
    return session.spec.model_copy(update={"data": data, "federated": None})


def contract_of(session: ClientSession, ledger: Books) -> str | None:
    """The digest of the contract of the client's data set, which its part of the spec keeps; None where it has none.
    Raises ContractBroken: the spec asks its table for something else, or only the coordinator's data set has a
    contract.
    """
    dataset = session.client.dataset
    digest = kept_contract(ledger.dataset(dataset).contract, own_spec(session), name=dataset, event=session.plan.event)
    refuse_tables_of_others(ledger, session.spec, source_of(session), dataset=dataset)
    if digest is None and session.under_contract:
        raise ContractBroken(
            f"data set {dataset!r} has no contract, and that of the coordinator has one: give it one "
            "with dpdist contract amend, and admit its input with dpdist contract check"
        )
    return digest


def source_of(session: ClientSession, *, checked: bool = False) -> TableSource:
    """The client's files."""
    return table_source(own_spec(session), checked=checked)


def looks_at_records(session: ClientSession, contract: str | None) -> bool:
    """Whether opening the client's table may read a record: its spec, and no `contract`, describes a CSV file."""
    return contract is None and not session.spec.data.csv.begins_with_header


def table_of(session: ClientSession, ledger: Books) -> TableFiles:
    """The client's table; reads no record, but where it `looks_at_records`."""
    checked = contract_of(session, ledger) is not None
    source = replace(source_of(session, checked=checked), beside=session.spec.column_beside)
    return TableFiles.of(source, session.spec.table)


def _key(session: ClientSession) -> KeyRef:
    """Where the key of the client's attempt is: a file in its own folder."""
    with _lock:
        if session not in _keys:
            if not session.test_key:
                with closing(ledger_of(session)) as ledger:
                    _keys[session] = ledger.share_key(session.own_attempt, work_of(session).address("key.json"))
            else:
                require_test_keys()
                _keys[session] = KeyRef.fixed(session.test_key)
        return _keys[session]


def noise_of(session: ClientSession) -> Noise:
    """The client's noise, keyed by its own attempt."""
    return load_noise(_key(session))


def agreement_key(session: ClientSession) -> bytes:
    """The private X25519 key of the attempt: a function of its key, destroyed with it."""
    return noise_of(session).words("federation/agreement", 4).tobytes()


_lock = threading.RLock()
_held: OrderedDict[ClientSession, ClientAttempt] = OrderedDict()
_keys: dict[ClientSession, KeyRef] = {}


def attempt_of(session: ClientSession) -> ClientAttempt:
    """The client's own attempt, with what its session gathers, read once. Raises ReleaseConflict: the round is over for
    this client, or the input changed; DataError: the table breaks its declared policies.
    """
    with _lock:
        if session in _held:
            _held.move_to_end(session)
            return _held[session]
        with closing(ledger_of(session)) as ledger:
            charge = charged(session, ledger, "reserved", "drawing")
            if looks_at_records(session, contract_of(session, ledger)):
                _mark_drawing(session)
            table = table_of(session, ledger)
        if fingerprint(source_of(session)) != charge.input_fingerprint:
            raise ReleaseConflict("the input changed since the charge was reserved")
        work = work_of(session)
        attempt = Attempt(
            spec=session.spec,
            plan=session.plan,
            table=table,
            executor=InProcess(),
            key=_key(session),
            id=session.own_attempt,
            work=work,
            output=work,
            progress=silent,
            before_noise=partial(_mark_drawing, session),
        )
        try:
            attempt.keep(session.gather(attempt))
        finally:
            record = {"confidential": "for the client's own operator: private counts", **attempt.operator}
            work.write_bytes("run-record.json", json.dumps(record, indent=2).encode())
        _held[session] = attempt
        while len(_held) > session.held:
            _held.popitem(last=False)
        return attempt


def _mark_drawing(session: ClientSession) -> None:
    with closing(ledger_of(session)) as ledger:
        charged(session, ledger, "reserved", "drawing")
        ledger.mark_drawing(session.own_attempt)


def forget(session: ClientSession) -> None:
    """Drop the client's records and key from this worker's memory."""
    with _lock:
        _held.pop(session, None)
        _keys.pop(session, None)
        forget_keys(session.own_attempt)
