"""The clients of a federated release: who holds the records, and whom they trust."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from dpdist.federated.messages import parse_identity
from dpdist.spec.data import PATH, DataSpec, StorageSpec
from dpdist.spec.release import ReleaseSpec
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
    """Clients that hold their own records; only noisy sums leave them."""

    trust: Literal["local", "correlated"]
    """local: each message is private by itself. correlated: messages are masked and the sum alone is private, about as
    precise as with a trusted curator; of mixtures, noise that cancels in part (CAPE)."""
    colluding: int = Field(default=0, ge=0)
    """With correlated noise: clients that may share all they know with the coordinator; the guarantee of the others
    holds all the same, and is paid for with noise."""
    at_least: int | None = Field(default=None, ge=1)
    """Clients that must be ready, or nothing begins; default: of mixtures two beyond `colluding` (local: one), of a
    synthesis all. Those that are not ready are left out before the round."""
    mailbox: Annotated[str | None, PATH] = None
    """Folder or s3:// prefix that the coordinator and all clients reach, for messages as files: clients answer by
    `dpdist join`, and no Dask cluster is needed."""
    storage: StorageSpec = StorageSpec()
    """Of the mailbox."""
    unit_at: int | None = Field(default=None, ge=1)
    """With `unit`: clients that may hold records of one unit, at most; default: all. Not of mixtures."""
    identity: Annotated[str | None, PATH] = None
    """PEM file of the coordinator's Ed25519 private key (mode 0600), which signs its calls by mailbox."""
    public_key: str | None = None
    """The public half, by which clients know the coordinator."""
    clients: tuple[ClientSpec, ...] = Field(min_length=2, max_length=1000, description="The clients, all disjoint.")

    @property
    def minimum(self) -> int:
        """Clients that must be ready, at least."""
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
        if self.mailbox is not None and any(client.public_key is None for client in self.clients):
            raise ValueError("federated.mailbox: its messages are signed: give every client a `public_key`")
        if self.public_key is not None:
            parse_identity(self.public_key)
        if self.mailbox is not None and (self.identity is None or self.public_key is None):
            raise ValueError(
                "federated.mailbox: its calls are signed: give the coordinator an `identity` and a `public_key`"
            )
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


class HeldDataSpec(DataSpec):
    """The table a release reads, or how the tables of its clients are laid out."""

    path: Annotated[str | tuple[str, ...], PATH] = ()
    """Files, folders or globs; local, from the spec's folder, or s3://. Absent if clients hold them."""


class FederatedRelease(ReleaseSpec):
    """A release whose records clients may hold, none of whom shows them."""

    federated: FederatedSpec | None = None
    """Clients that hold the records."""

    @model_validator(mode="after")
    def _held(self) -> FederatedRelease:
        federated = self.federated
        if (federated is None) != bool(self.data.paths):
            raise ValueError("data.path: give one, or in a federated release the path of each client instead")
        if federated is None:
            return self
        if self.cluster.mode == "threads":
            raise ValueError(
                "cluster.mode: clients need worker processes of their own: use embedded or address, or in-process to "
                "try a federation on one machine"
            )
        if federated.mailbox is not None and self.cluster.mode not in ("auto", "in-process"):
            raise ValueError("cluster.mode: with federated.mailbox no cluster is needed: leave it out")
        on_one = federated.mailbox is None and self.cluster.mode in ("embedded", "in-process")
        federated.refuse_shared_files(one_machine=on_one)
        self._check_units(federated)
        return self

    def _check_units(self, federated: FederatedSpec) -> None:
        if self.unit is not None or federated.unit_at is not None:
            raise ValueError(
                "unit: a federated release protects single records only, because nobody bounds the records that one "
                "unit has with several clients: leave it out"
            )

    @property
    def least_clients(self) -> int:
        """Clients that must be ready."""
        return 0 if self.federated is None else self.federated.minimum

    @property
    def is_masked(self) -> bool:
        """Whether masks hide what each client sends."""
        return self.federated is not None and self.federated.trust == "correlated"

    def hides(self, members: Collection[str]) -> bool:
        """Whether what these clients send stays masked until all have sent it: one of them may still be lost."""
        return self.is_masked and len(members) > self.least_clients

    @property
    def honest(self) -> int:
        """Clients whose noise alone carries the guarantee of what is masked."""
        return self.least_clients - self.federated.colluding if self.federated is not None and self.is_masked else 1

    @property
    def worker_resources(self) -> tuple[str, ...]:
        """The Dask resources of the clients."""
        if self.federated is None or self.federated.mailbox is not None:
            return ()
        return tuple(client.resource_name for client in self.federated.clients)

    @property
    def clients(self) -> dict[str, str | None]:
        """The clients of a federated release, with their public keys."""
        return {} if self.federated is None else {client.name: client.public_key for client in self.federated.clients}

    def decisive(self) -> dict[str, Any]:
        """What decides the released bytes: of the clients not where they run and where their files are."""
        tree = super().decisive()
        if self.federated is not None:
            elsewhere = ("mailbox", "storage", "identity")
            tree["federated"] = {k: v for k, v in tree["federated"].items() if k not in elsewhere}
            at_client = {"storage", "resource", "ledger", "work", "identity"}
            tree["federated"]["clients"] = [
                client.model_dump(mode="json", exclude=at_client, exclude_defaults=True)
                for client in self.federated.clients
            ]
        return tree

    def widening(self, clients: int) -> float:
        """Deviation of the noise in a sum over this many clients, over that of one curator at the same charge."""
        return math.sqrt(max(1, clients) / self.honest)

    def public(self) -> dict[str, Any]:
        """What is released, for the manifest; of the clients only how many are listed, and whom they trust."""
        tree = super().public()
        if self.federated is not None:
            tree["federated"] = {
                "clients": len(self.federated.clients),
                "trust": self.federated.trust,
                "colluding": self.federated.colluding,
                "at_least": self.least_clients,
            }
        return tree


class SummedRelease(FederatedRelease):
    """A release of tables of counts, which clients may answer as noisy sums."""

    def _check_units(self, federated: FederatedSpec) -> None:
        if self.unit is None and federated.unit_at is not None:
            raise ValueError("federated.unit_at: it is about the records of a `unit`: name one")

    @property
    def records_of_a_unit(self) -> int:
        """Records by which neighbouring tables differ, at most: each client keeps this many of a unit's records."""
        federated, own = self.federated, super().records_of_a_unit
        return own if federated is None or self.unit is None else own * (federated.unit_at or len(federated.clients))

    @property
    def least_clients(self) -> int:
        """Clients that must be ready: their noise alone must carry the guarantee, so all, if the spec does not say."""
        return 0 if self.federated is None else self.federated.at_least or len(self.federated.clients)

    def public(self) -> dict[str, Any]:
        """What is released, for the manifest."""
        tree = super().public()
        if self.federated is None:
            del tree["federated"]
        return tree
