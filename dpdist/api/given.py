"""What the caller of the Python API gives: a spec, a client, a key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.spec.reader import AnySpecification, load
from dpdist.spec.release import ReleaseSpec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from distributed import Client

    from dpdist.cluster.cluster import Cluster


def specified(spec: AnySpecification, settings: Mapping[str, Any]) -> ReleaseSpec:
    """A spec with settings of the call, by dotted path, and the ledger that ``DPDIST_LEDGER`` names.

    Raises SpecError: there is no such file, or it is no valid spec.
    """
    url = os.environ.get("DPDIST_LEDGER")
    if isinstance(spec, ReleaseSpec) and spec.ledger == url:
        url = None  # it was read with it
    return load(spec, ({"ledger": url} if url else {}) | dict(settings), base=Path.cwd())


def executor_for(client: Client | None, *, dask: bool) -> Cluster | None:
    """The executor of the caller's client; for a Dask DataFrame without one, the threads of this process."""
    if client is not None:
        from dpdist.cluster.opening import executor_of

        return executor_of(client)
    if not dask:
        return None
    from dpdist.cluster.cluster import Cluster

    return Cluster()


def key_of(key: Any) -> Ed25519PublicKey | None:
    """A public key, or the one in a PEM file."""
    if isinstance(key, str | os.PathLike):
        from dpdist.ledger.signing import load_public_key

        return load_public_key(Path(key))
    return key  # type: ignore[no-any-return]
