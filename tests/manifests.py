"""A manifest of stated contents, for tests of manifests and of their readers."""

from collections.abc import Mapping
from datetime import date
from types import SimpleNamespace
from typing import Any

from dpdist.publish.manifest import Manifest

CREATED = date(2026, 11, 20)


def manifest_of(fields: Mapping[str, Any] | None = None, **changes: Any) -> Manifest:
    """What `Manifest.of` makes of a plan and an attempt with these contents, by their names in a manifest."""
    given = {"files": (), **(fields or {}), **changes}
    spec = SimpleNamespace(
        kind=given["kind"],
        name=given["name"],
        fingerprint=given["spec_sha256"],
        public=lambda: given["spec"],
        papers=("Author: A paper, 2026",),
    )
    plan: Any = SimpleNamespace(
        spec=spec,
        guarantees=given["guarantees"],
        public_parameters=lambda: given["parameters"],
        released=given["table"],
        form=given["form"],
    )
    attempt: Any = SimpleNamespace(
        id=given["attempt"],
        key=SimpleNamespace(is_fixed=given.get("fixed_key", False)),
        public={},
        parts=given["parts"],
        files=given["files"],
        form=None,
    )
    return Manifest.of(plan, attempt, created=given.get("created", CREATED))
