"""Small federations for tests: clients with a table, a ledger, a folder and an identity each, and a spec of them all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dpdist.families import build_spec
from dpdist.mixing.identity import identity_text
from dpdist.mixing.spec import MixingSpec
from dpdist.privacy.ledger import Ledger

SCHEMA: dict[str, Any] = {
    "attributes": [
        {"name": "age", "kind": "integer", "bounds": [0, 59]},
        {"name": "class", "kind": "categorical", "values": ["low", "high"]},
        {"name": "sex", "kind": "categorical", "values": ["F", "M"]},
    ]
}
NAMES = ("north", "south", "west")


def table(rows: int, *, seed: int, high: float = 0.4) -> pa.Table:
    """An invented table of the schema above."""
    rng = np.random.default_rng(seed)
    label = (rng.random(rows) < high).astype(int)
    return pa.table(
        {
            "age": np.clip(rng.normal(20 + 20 * label, 8, rows), 0, 59).astype(int),
            "class": pa.array(np.array(["low", "high"])[label]),
            "sex": pa.array(np.array(["F", "M"])[rng.integers(0, 2, rows)]),
        }
    )


def identity(folder: Path) -> str:
    """Make a client's identity below its folder; return its public half."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "identity.pem").touch(mode=0o600)
    (folder / "identity.pem").write_bytes(pem)
    return identity_text(key)


def member(folder: Path, name: str, *, rows: int = 3_000, seed: int = 0, **table_settings: Any) -> dict[str, Any]:
    """Make a client below `folder`; return its part of a spec."""
    own = folder / name
    if not own.exists():
        own.mkdir(parents=True)
        pq.write_table(table(rows, seed=seed, **table_settings), own / "people.parquet")
        create_ledger(own, f"people-{name}")
    return {
        "name": name,
        "path": str(own / "people.parquet"),
        "dataset": f"people-{name}",
        "ledger": f"sqlite:///{own}/ledger.db",
        "work": str(own / "work"),
        "identity": str(own / "identity.pem"),
        "public_key": identity(own),
    }


def create_ledger(folder: Path, dataset: str) -> None:
    """A ledger with one data set."""
    ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
    ledger.create_dataset(dataset, epsilon=50, delta="1e-5")
    ledger.close()


def federation(folder: Path, names: Iterable[str] = NAMES, **changes: Any) -> MixingSpec:
    """A spec of some clients below `folder`, and the coordinator's ledger; `changes` by dotted path, ``__`` for dots."""
    if not (folder / "ledger.db").exists():
        create_ledger(folder, "people")
    tree: dict[str, Any] = {
        "kind": "mixing",
        "name": "together",
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"minimum_records": 2_000},
        "output": {"path": str(folder / "release"), "rows_per_part": 1_000},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "cluster": {"mode": "embedded", "memory_limit": "512MiB", "timeout": 60},
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "mixing": {
            "class": "class",
            "classes": {"low": {"minimum": 1_200, "records": 1_200}, "high": {"minimum": 800, "records": 800}},
            "order": 8,
        },
        "federated": {
            "trust": "correlated",
            "clients": [member(folder, name, seed=number) for number, name in enumerate(names)],
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    spec = build_spec(tree)
    assert isinstance(spec, MixingSpec)
    return spec


def states(spec: MixingSpec) -> dict[str, list[str]]:
    """The states of all attempts in the ledger of each client, and in the coordinator's (``""``); all are whole."""
    assert spec.federated is not None
    books = {client.name: (client.ledger or "", client.dataset) for client in spec.federated.clients}
    found = {}
    for name, (url, dataset) in {"": (spec.ledger, spec.dataset), **books}.items():
        ledger = Ledger.open(url, create=False)
        ledger.verify(dataset)
        found[name] = [attempt.state for attempt in ledger.show(dataset).attempts]
        ledger.close()
    return found
