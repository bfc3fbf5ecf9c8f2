"""What the caller of the Python API gives: a spec, a client, a key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.errors import SpecError
from dpdist.families.base.registry import build_spec, load_spec
from dpdist.spec.release import ReleaseSpec, change, override

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from distributed import Client

    from dpdist.cluster.cluster import Cluster

AnySpecification = str | os.PathLike[str] | Mapping[str, Any] | ReleaseSpec
"""The path of a spec file, its settings as a mapping, or a spec that was read before."""


def specified(spec: AnySpecification, settings: Mapping[str, Any]) -> ReleaseSpec:
    """A spec with settings of the call, by dotted path, and the ledger that ``DPDIST_LEDGER`` names.

    Raises
    ------
    SpecError
        There is no such file, or it is no valid spec.
    """
    overrides = dict(settings)
    if "ledger" not in overrides and os.environ.get("DPDIST_LEDGER"):
        overrides["ledger"] = os.environ["DPDIST_LEDGER"]
    if isinstance(spec, ReleaseSpec):
        return change(spec, overrides) if overrides else spec
    if isinstance(spec, Mapping):
        tree = {name: dict(part) if isinstance(part, Mapping) else part for name, part in spec.items()}
        return build_spec(override(tree, overrides), base=Path.cwd())
    if isinstance(spec, str | os.PathLike):
        return load_spec(Path(spec), overrides)
    raise SpecError(f"spec: expected the path of a spec file or a mapping, got {type(spec).__name__}")


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
