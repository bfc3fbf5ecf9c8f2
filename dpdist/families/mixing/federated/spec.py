"""The clients of a federated release: who holds the records, and whom they trust."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from dpdist.families.mixing.federated.messages import parse_identity
from dpdist.spec.data import StorageSpec
from dpdist.spec.strict import Section
from dpdist.spec.validation import NAME
from dpdist.storage.s3 import is_s3


class ClientSpec(Section):
    """A client of a federated release: who holds records that only its own workers may read."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,49}$", description="Name of the client.")
    path: str | tuple[str, ...]
    """Its files, folders or globs, as its workers see them."""
    storage: StorageSpec = StorageSpec()
    resource: str | None = Field(default=None, pattern=NAME)
    """Dask resource of its workers (`dask worker --resources NAME=1`); default: client-NAME."""
    dataset: str = Field(pattern=NAME, description="Its data set, in its own ledger.")
    ledger: str | None = None
    """URL of its ledger, as its workers see it; default: their variable DPDIST_LEDGER."""
    work: str
    """Its own confidential folder, as its workers see it."""
    identity: str | None = None
    """PEM file of its Ed25519 private key (mode 0600), as its workers see it."""
    public_key: str | None = None
    """The public half, by which all others know it: the line between the dashes of `openssl pkey -in FILE -pubout`."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths as a tuple."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def resource_name(self) -> str:
        """The Dask resource of its workers."""
        return self.resource or f"client-{self.name}"

    @model_validator(mode="after")
    def _identified(self) -> ClientSpec:
        if (self.identity is None) != (self.public_key is None):
            raise ValueError(f"client {self.name}: `identity` and `public_key` go together")
        if self.public_key is not None:
            parse_identity(self.public_key)
        if self.ledger is not None and ":" in urlsplit(self.ledger).netloc.rpartition("@")[0]:
            raise ValueError(
                f"client {self.name}: a password in `ledger` would be seen by the coordinator; give it to the client's "
                "workers (DPDIST_LEDGER, or PGPASSFILE)"
            )
        return self


class FederatedSpec(Section):
    """Clients that mix their own records; only noisy sums of mixtures leave them."""

    trust: Literal["local", "correlated"]
    """local: each message is private by itself. correlated: the noise of all clients cancels in part (CAPE), so that
    the average is as good as with a trusted curator."""
    colluding: int = Field(default=0, ge=0)
    """With correlated noise: clients that may share all they know with the coordinator; the guarantee of the others
    holds all the same, and is paid for with noise."""
    at_least: int | None = Field(default=None, ge=1)
    """Clients that must be ready, or nothing begins; default: two beyond `colluding` (local: one). Those that are not
    ready are left out before the round."""
    clients: tuple[ClientSpec, ...] = Field(min_length=2, max_length=1000, description="The clients, all disjoint.")

    @property
    def minimum(self) -> int:
        """Clients that must be ready."""
        return self.at_least or (self.colluding + 2 if self.trust == "correlated" else 1)

    def refuse_shared_files(self, *, one_machine: bool) -> None:
        """Refuse two clients with the same objects or, on one machine, files. Raises ValueError."""
        owners: dict[tuple[str | None, str], str] = {}
        for client in self.clients:
            for path in client.paths:
                if not is_s3(path) and not one_machine:  # the same name on another machine is another file
                    continue
                where = path.rstrip("/") if is_s3(path) else os.path.realpath(path)
                owner = owners.setdefault((client.storage.endpoint_url if is_s3(path) else None, where), client.name)
                if owner != client.name:
                    raise ValueError(
                        f"federated.clients: {owner} and {client.name} have the same files ({path}), and each is "
                        "charged for its own records alone; leave one of them out"
                    )

    @model_validator(mode="after")
    def _consistent(self) -> FederatedSpec:
        if len({client.name for client in self.clients}) < len(self.clients):
            raise ValueError("federated.clients: two clients have the same name")
        if len({client.resource_name for client in self.clients}) < len(self.clients):
            raise ValueError("federated.clients: two clients have the same resource")
        if self.trust == "local" and self.colluding:
            raise ValueError("federated.colluding: a local message is private against all others; leave it out")
        if self.trust == "correlated" and any(client.public_key is None for client in self.clients):
            raise ValueError("federated.clients: correlated noise needs `identity` and `public_key` of every client")
        keys = [client.public_key for client in self.clients if client.public_key is not None]
        if len(set(keys)) < len(keys):
            raise ValueError("federated.clients: two clients have the same public_key")
        if self.trust == "correlated" and self.minimum < self.colluding + 2:
            raise ValueError("federated.at_least: masks hide nothing without two honest clients; raise it")
        if self.trust == "correlated" and self.colluding + 2 > len(self.clients):
            raise ValueError(
                f"federated.colluding: {self.colluding} of {len(self.clients)} leave fewer than two honest ones, "
                "so masks hide nothing; lower it, list more clients, or use `trust: local`"
            )
        if self.minimum > len(self.clients):
            raise ValueError("federated.at_least: there are fewer clients")
        return self
