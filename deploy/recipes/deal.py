"""Deal a table to the clients of a federated spec, to try it on one machine.

    python deploy/recipes/deal.py SPEC TABLE FOLDER [--epsilon E] [--delta D]

The rows of TABLE (CSV without header, or Parquet) go to the clients in turn. In FOLDER every client gets its part, an
identity and a ledger, and the coordinator a ledger, SPEC with these in place and, for a mailbox, an identity. Then::

    dpdist release FOLDER/spec.yaml

Real clients keep all of this to themselves and tell the coordinator their public keys only.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dpdist.federated.messages import identity_text
from dpdist.ledger import Books
from dpdist.spec.reader import load


def deal(table: Path, count: int) -> list[bytes]:
    """The rows of a table in `count` parts of the same format."""
    if table.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = pq.read_table(table)
        parts = []
        for part in range(count):
            sink = pa.BufferOutputStream()
            pq.write_table(rows.take(list(range(part, rows.num_rows, count))), sink)
            parts.append(sink.getvalue().to_pybytes())
        return parts
    lines = [line for line in table.read_bytes().splitlines(keepends=True) if line.strip()]
    return [b"".join(lines[part::count]) for part in range(count)]


def make_client(folder: Path, client: dict[str, Any], content: bytes, *, name: str, budget: dict[str, str]) -> None:
    """Write what a client holds, and put it into its part of the spec."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / name).write_bytes(content)
    client |= {
        "path": str(folder / name),
        "ledger": make_ledger(folder, client["dataset"], **budget),
        "work": str(folder / "work"),
        **make_identity(folder),
    }


def make_identity(folder: Path) -> dict[str, str]:
    """A private key in a folder, and its public half."""
    key = Ed25519PrivateKey.generate()
    handle = os.open(folder / "identity.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {"identity": str(folder / "identity.pem"), "public_key": identity_text(key)}


def make_ledger(folder: Path, dataset: str, *, epsilon: str, delta: str) -> str:
    """A ledger with one data set; its URL."""
    url = f"sqlite:///{folder}/ledger.db"
    ledger = Books.open(url)
    ledger.create_dataset(dataset, epsilon=epsilon, delta=delta)
    ledger.close()
    return url


def main() -> None:
    """Deal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epsilon", default="12", help="cap of every ledger")
    parser.add_argument("--delta", default="1e-5", help="cap of every ledger")
    arguments = parser.parse_args()
    tree = yaml.safe_load(arguments.spec.read_text())
    if not tree.get("federated"):
        parser.error(f"{arguments.spec} has no clients (section `federated`)")
    if not arguments.table.is_file():
        parser.error(f"there is no table {arguments.table}")
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} is there already, and clients keep their keys and ledgers: name a new folder")
    schema = tree["schema"]
    if isinstance(schema, str):
        tree["schema"] = yaml.safe_load((arguments.spec.parent / schema).read_text())
    folder, clients = arguments.folder.resolve(), tree["federated"]["clients"]
    budget = {"epsilon": arguments.epsilon, "delta": arguments.delta}
    for client, content in zip(clients, deal(arguments.table, len(clients)), strict=True):
        make_client(folder / client["name"], client, content, name=arguments.table.name, budget=budget)
    if tree["federated"].get("mailbox"):
        tree["federated"] |= make_identity(folder)
    tree |= {"ledger": make_ledger(folder, tree["dataset"], **budget), "work": str(folder / "work")}
    tree["output"]["path"] = str(folder / "release")
    load(tree)
    (folder / "spec.yaml").write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    print(f"{folder}/spec.yaml: {len(clients)} clients")


if __name__ == "__main__":
    main()
