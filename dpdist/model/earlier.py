"""Earlier releases as evidence: reading what they published, naming them by hash, and repeating what followed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from dpdist.errors import SpecError, VerificationFailed
from dpdist.model.evidence import RELATIONS, Earlier, Evidence, Related
from dpdist.model.files import read_model
from dpdist.publish.manifest import MANIFEST
from dpdist.publish.verify import open_release
from dpdist.spec.schema import Schema
from dpdist.spec.series import version_of
from dpdist.storage.store import Store

_FOR_PEOPLE = {"label", "unit", "description", "labels"}
_TOLERANCE = 1e-5  # of recomputed drifts


@dataclass(frozen=True, eq=False)
class EarlierReleases:
    """Evidence as it was read."""

    related: tuple[Related, ...]
    named: dict[str, list[dict[str, str]]]  # by relation: path, release, attempt and SHA-256 of the manifest

    @property
    def digest(self) -> str:
        """SHA-256 of the hashes, which binds an attempt."""
        hashes = {kind: [name["manifest_sha256"] for name in names] for kind, names in self.named.items()}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def is_pattern(path: str) -> bool:
    """Whether the last part of a path is a pattern."""
    return bool(set(path.rstrip("/").rpartition("/")[2]) & set("*?["))


def releases_at(path: str, options: Mapping[str, Any], *, before: str | None = None) -> tuple[str, ...]:
    """The folders of releases that a path names. If its last part is a pattern, such as ``made/2026-??*``, those that
    are there, in the order of their names; with `before` only those that come before this name. Of a period and its
    corrections, such as ``2026-03`` and ``2026-03-v2``, the last one stands for all.
    """
    parent, _, pattern = path.rstrip("/").rpartition("/")
    if not is_pattern(path):
        return (path,)
    place = parent or "."
    names = (name.split("/") for name in Store(place, options).names())
    folders = [parts[0] for parts in names if len(parts) == 2 and parts[1] == MANIFEST]
    found = sorted((*version_of(name), name) for name in folders if fnmatchcase(name, pattern))
    newest = {period: name for period, _, name in found if before is None or period < version_of(before)[0]}
    return tuple(f"{place}/{name}" for name in newest.values())


def read_earlier(paths: Mapping[str, Sequence[str]], schema: Schema, options: Mapping[str, Any]) -> EarlierReleases:
    """Read the noisy tables of earlier releases, given by relation.

    Raises SpecError: one has another schema, or is named twice; DataNotFound: there is no release, or it publishes no
    noisy tables; VerificationFailed: its files are not what its manifest says.
    """
    named: dict[str, list[dict[str, str]]] = {}
    related, seen = [], set[str]()
    for kind in RELATIONS:
        releases = []
        for path in paths.get(kind, ()):
            store, manifest = open_release(path, storage_options=options)
            if _compared(manifest.table) != _compared(schema):
                raise SpecError(f"model.evidence.{kind}: {path} has another schema: its attributes are others")
            digest = hashlib.sha256(manifest.to_bytes()).hexdigest()
            if digest in seen:
                raise SpecError(f"model.evidence.{kind}: {path} is named twice, and its noise would count twice")
            seen.add(digest)
            releases.append(Earlier(read_model(store, manifest).measurements, manifest.noisy_records))
            name = {"path": path, "release": manifest.name, "attempt": manifest.attempt, "manifest_sha256": digest}
            named.setdefault(kind, []).append(name)
        if releases:
            related.append(Related(kind, tuple(releases)))
    return EarlierReleases(tuple(related), named)


def _compared(schema: Schema) -> list[Any]:
    """What of a schema is not for people alone."""
    return [a.model_dump(mode="json", exclude=_FOR_PEOPLE) for a in schema.attributes]


def repeat_evidence(uri: str, manifest_sha256: str, options: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Weigh again what a release took as evidence. The manifest names the places that are opened, so its SHA-256 is
    given by who knows its maker. Returns how many earlier releases were there, and the paths of those that were not:
    then nothing is weighed.

    Raises VerificationFailed: the manifest has another SHA-256, or a release is another one than it names, or gives
    other drifts.
    """
    store, manifest = open_release(uri, storage_options=options)
    if hashlib.sha256(manifest.to_bytes()).hexdigest() != manifest_sha256:
        raise VerificationFailed(f"{MANIFEST} was changed after it was verified: verify the release again")
    named = manifest.learned.get("evidence")
    if named is None:
        return 0, ()
    paths = {kind: tuple(str(name["path"]) for name in found) for kind, found in named.items()}
    every = tuple(chain.from_iterable(paths.values()))
    if missing := tuple(path for path in every if not Store(path, options).exists(MANIFEST)):
        return len(every) - len(missing), missing
    found = read_earlier(paths, manifest.table, options)
    if found.named != named:
        raise VerificationFailed("model.evidence: the releases at its paths are not those that the manifest names")
    drifts = Evidence(found.related).repeated(read_model(store, manifest).measurements)
    if not _close(drifts, manifest.learned["drift"]):
        raise VerificationFailed("learned.drift: the named releases and the noisy tables give other numbers")
    return len(every), ()


def _close(found: Any, stated: Any) -> bool:
    """Whether nested numbers are the same, but for rounding."""
    if isinstance(found, dict):
        same = isinstance(stated, dict) and found.keys() == stated.keys()
        return same and all(_close(found[k], stated[k]) for k in found)
    if isinstance(found, list):
        return isinstance(stated, list) and len(found) == len(stated) and all(map(_close, found, stated))
    return isinstance(stated, int | float) and abs(found - stated) <= _TOLERANCE * max(1.0, abs(found))
