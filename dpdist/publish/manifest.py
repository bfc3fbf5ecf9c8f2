"""The manifest: what a release is, what it guarantees, and which files belong to it.

A release exists when its manifest does. The manifest is written last, by one single PUT or rename, and readers find
everything through it. All of it is public: the number of released records (or statistics), and
parameters that were declared before a record was read. It has no field for true counts, pass rates, numbers of
candidates, run times, keys or addresses of ledgers, and refuses names and addresses that look like a secret.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import TYPE_CHECKING, Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from dpdist.errors import OutputExists, OutputUnwritable, VerificationFailed
from dpdist.ledger.signing import sign
from dpdist.limits import JSON_VALUES, MANIFEST_BYTES
from dpdist.publish.part_format import FileRecord, PartFormat, PartRecord, cautions_of
from dpdist.publish.tilts import LARGEST, can_be_tilted
from dpdist.spec.schema import Schema
from dpdist.spec.validation import validation_message
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.families.base.attempt import Attempt
    from dpdist.families.base.plan import Plan

MANIFEST = "_manifest.json"
SIGNATURE = "_manifest.sig"
"""Readers of folders of Parquet files, such as pandas, ignore names that begin with an underscore."""

NOT_PRIVATE = (
    "not private: the noise came from a fixed test key that others know, so it hides nothing and the guarantee below "
    "does not hold"
)
SECURITY = (
    "All randomness comes from AES-256-CTR under a 256-bit key from the operating system, one per attempt, destroyed "
    "at commit. The guarantee is computational: it holds against whoever cannot tell that key stream from random bits."
)
_PACKAGES = (
    *("dpdist", "numpy", "scipy", "pyarrow", "cryptography", "python-flint", "dp-accounting", "pydantic"),
    *("dask", "distributed", "fsspec", "s3fs", "sqlalchemy"),
)
_NOT_PUBLIC = {"ledger", "work", "storage", "storage_options", "signing_key", "test_key", "password", "secret", "token"}
_CREDENTIALS = re.compile(r"://[^/\s]*@|-----BEGIN")


class Manifest(BaseModel):
    """The public description of a release; written as ``_manifest.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="dpdist release manifest")

    not_private: str | None = Field(
        default=None, pattern="^not private", description="Present, and first, if the noise key was a fixed test key."
    )
    guarantee: str = Field(min_length=1, description="What the release guarantees, in words.")
    guarantees: tuple[dict[str, JsonValue], ...] = Field(
        min_length=1, description="The same in numbers: kind, epsilon, delta, adjacency, what it covers."
    )
    computational_security: str = Field(default=SECURITY, description="What the guarantee assumes.")
    schema_version: Literal[1] = Field(default=1, description="Version of this format.")
    kind: str = Field(min_length=1, description="Family of the release.")
    name: str = Field(min_length=1, description="Name of the release.")
    attempt: str = Field(pattern="^[0-9A-Za-z-]{1,64}$", description="The attempt that was committed; random.")
    created: date = Field(description="Day of the attempt, UTC.")
    records: int = Field(default=0, ge=0, description="Number of released records; absent where none are released.")
    cells: int | None = Field(
        default=None, ge=0, description="Number of released statistics, such as the counts of the cells of histograms."
    )
    cautions: tuple[str, ...] = Field(
        default=(),
        description="What to hear before the numbers: that the table has fewer records than declared.",
    )
    parameters: dict[str, JsonValue] = Field(description="Public parameters: noise scales, thresholds, shares.")
    spec_sha256: str = Field(pattern="^[0-9a-f]{64}$", description="Fingerprint of the spec.")
    spec: dict[str, JsonValue] = Field(description="The public part of the spec.")
    table: Schema = Field(description="The public schema of the table.")
    format: PartFormat = Field(description="How values are written.")
    parts: tuple[PartRecord, ...] = Field(description="The Parquet files, in order of their rows.")
    files: tuple[FileRecord, ...] = Field(
        default=(), description="What is released beside the parts: noisy tables, model, how records are drawn."
    )
    papers: tuple[str, ...] = Field(default=(), description="Papers of the method, to be cited with the release.")
    packages: dict[str, str] = Field(description="Versions of the packages that made the release.")

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        if (self.cells is not None) != (self.format.layout == "statistics") or (
            self.records and self.cells is not None
        ):
            raise ValueError("cells: a release of statistics counts them, and has no records")
        bins = {a.name: len(a.bin_edges) for a in self.table.attributes if self.format.tilts and can_be_tilted(a)}
        for name, tilts in self.format.tilts.items():
            if len(tilts) != bins.get(name) or not all(1 <= tilt <= LARGEST for tilt in tilts):
                raise ValueError("format.tilts: expected one for each bin of an attribute of the table")
        if sum(part.rows for part in self.parts) != self.rows:
            raise ValueError(f"{self.counted}: the rows of the parts do not add up to it")
        if len({part.name for part in self.parts}) != len(self.parts):
            raise ValueError("parts: a name is listed twice")
        if len({file.name for file in self.files}) != len(self.files):
            raise ValueError("files: a name is listed twice")
        if any(not isinstance(item.get("kind"), str) for item in self.guarantees):
            raise ValueError("guarantees: each has a kind")
        if self.guarantee != " ".join(str(item.get("sentence")) for item in self.guarantees):
            raise ValueError("guarantee: it is not the sentences of the guarantees")
        sections = [self.spec, *(section for section in self.spec.values() if isinstance(section, dict))]
        for setting in _NOT_PUBLIC.intersection(itertools.chain(*sections)):
            raise ValueError(f"spec: the setting {setting!r} is not public, leave it out")
        for field in ("guarantees", "parameters", "spec"):
            for place, problem in _unfit(getattr(self, field), field):
                raise ValueError(f"{place}: {problem}")
        return self

    @property
    def learned(self) -> dict[str, Any]:
        """What a synthesis says of its model; empty of other releases."""
        found = self.parameters.get("learned")
        return found if isinstance(found, dict) else {}

    @property
    def noisy_records(self) -> int:
        """The noisy number of records of the table, at least 1. Raises VerificationFailed: it is not there."""
        found = self.learned.get("records")
        if not isinstance(found, int) or not 0 < found < 2**62:
            raise VerificationFailed(f"the manifest of {self.name} has no noisy number of records: get it again")
        return found

    @classmethod
    def of(cls, plan: Plan, attempt: Attempt[Any, Any], *, created: date) -> Manifest:
        """The manifest of an attempt whose parts are written.

        `created` is the day of the attempt in the ledger, not of this call, so that a resumed attempt writes the same
        manifest. Raises ValueError: a field is not public, or the parts do not match; a mistake of the family.
        """
        spec, form = plan.spec, attempt.form or plan.form
        numbers = [guarantee.to_json() for guarantee in plan.guarantees]
        rows = sum(part.rows for part in attempt.parts)
        records, cells = (rows, None) if form.layout == "records" else (0, rows)
        parameters, public = {**plan.public_parameters(), **attempt.public}, spec.public()
        return cls(
            not_private=NOT_PRIVATE if attempt.key.is_fixed else None,
            guarantee=" ".join(item["sentence"] for item in numbers),
            guarantees=tuple(numbers),
            kind=spec.kind,
            name=spec.name,
            attempt=attempt.id,
            created=created,
            records=records,
            cells=cells,
            cautions=cautions_of(public, parameters, records),
            parameters=parameters,
            spec_sha256=spec.fingerprint,
            spec=public,
            table=plan.released,
            format=form,
            parts=tuple(attempt.parts),
            files=tuple(attempt.files),
            papers=spec.papers,
            packages=package_versions(),
        )

    @property
    def counted(self) -> Literal["records", "cells"]:
        """What the rows of the parts are."""
        return "records" if self.cells is None else "cells"

    @property
    def rows(self) -> int:
        """Number of rows of all parts."""
        return self.records if self.cells is None else self.cells

    @property
    def listed(self) -> tuple[PartRecord | FileRecord, ...]:
        """All files of the release but the manifest and its signature."""
        return (*self.parts, *self.files)

    def to_bytes(self) -> bytes:
        """Canonical JSON: fields in their order, names inside them sorted, two spaces, UTF-8."""
        fields = self.model_dump(mode="json")
        fields["table"] = self.table.model_dump(mode="json", exclude_defaults=True)
        del fields["records" if self.counted == "cells" else "cells"]
        if self.counted == "records":
            del fields["format"]["layout"], fields["format"]["non_negative"]
        if not self.format.tilts:
            del fields["format"]["tilts"]
        if self.not_private is None:
            del fields["not_private"]
        for name in ("files", "cautions"):
            if not fields[name]:
                del fields[name]
        ordered = {name: _sorted(value) for name, value in fields.items()}
        return (json.dumps(ordered, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Read a manifest. Raises VerificationFailed: it is not a manifest, of a later version, or not in the form in
        which manifests are written.
        """
        advice = "get the release again from its publisher"
        try:
            fields = parsed(content)
            if isinstance(fields, dict) and fields.get("schema_version", 1) != 1:
                raise VerificationFailed(f"{MANIFEST} has a later format: update dpdist")
            manifest = cls.model_validate(fields)
            same = manifest.to_bytes() == content
        except ValidationError as error:
            raise VerificationFailed(
                f"{MANIFEST} is not a valid manifest; {advice}:\n{validation_message(error)}"
            ) from None
        except (ValueError, RecursionError):
            raise VerificationFailed(f"{MANIFEST} is not JSON: {advice}") from None
        if not same:
            raise VerificationFailed(f"{MANIFEST} was edited after it was written: {advice}")
        return manifest


def require_vacant(store: Store) -> None:
    """Refuse an output that holds a release. Raises OutputExists: there is a manifest; DataNotFound,
    StorageUnavailable: the output cannot be read.
    """
    if store.exists(MANIFEST):
        raise OutputExists(
            f"{store.uri} already holds a release ({MANIFEST}): choose another output.path, or delete that one first"
        )


def publish(store: Store, manifest: Manifest, *, signing_key: Ed25519PrivateKey | None = None) -> Manifest:
    """Make a release visible: check that its parts are there, sign, write the manifest last.

    Idempotent for an attempt: a resumed one finds its own manifest and leaves it unchanged. The ledger decides who can
    publish, by letting one attempt of a release commit.

    Returns Manifest: what is stored. Raises OutputExists: the output holds another release, or another attempt's;
    OutputUnwritable: a part is missing or has another size, or the place cannot be written; OutOfDisk,
    StorageUnavailable: as `Store.write_bytes`.
    """
    content = manifest.to_bytes()
    if not store.exists(MANIFEST):
        sizes = store.sizes()
        for part in manifest.listed:
            if sizes.get(part.name) != part.bytes:
                raise OutputUnwritable(
                    f"{store.uri}: {part.name} is missing or was changed before publication: resume with the "
                    "output.path that the attempt wrote to; once committed, lost parts must be restored, they cannot "
                    "be made again"
                )
        if signing_key is None:
            store.delete(SIGNATURE)  # of an attempt that ended before its manifest
        else:
            store.write_bytes(SIGNATURE, sign(content, signing_key))
        content = store.write_exclusive(MANIFEST, content)
    else:
        content = store.read_bytes(MANIFEST)
    try:
        stored = Manifest.from_bytes(content)
    except VerificationFailed:
        stored = None
    if stored is None or stored.attempt != manifest.attempt or stored.parts != manifest.parts:
        raise OutputExists(f"{store.uri} already holds another release: choose another output.path, then resume")
    return stored


def is_readable(content: bytes, *, share: float = 1) -> bool:
    """Whether a JSON text takes at most this share of what a reader opens."""
    values = sum(map(content.count, (b",", b"[", b"{")))
    return len(content) <= MANIFEST_BYTES * share and values <= JSON_VALUES * share


def parsed(content: bytes) -> Any:
    """The value of a JSON text that somebody else wrote. Raises VerificationFailed: it is larger than a reader opens;
    ValueError, RecursionError: it is not JSON.
    """
    if not is_readable(content):
        raise VerificationFailed(
            f"a manifest or the description of a model has at most {MANIFEST_BYTES:,} bytes and {JSON_VALUES:,} "
            "values: do not use the release"
        )
    return json.loads(content)


def canonical_json(value: Any) -> bytes:
    """JSON with sorted names and no spaces, for fingerprints. Raises ValueError: a number is not finite."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def fingerprint(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def json_schema() -> dict[str, Any]:
    """The JSON schema of ``_manifest.json``."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Manifest.model_json_schema()}


@cache
def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that take part in a release, as far as they are installed."""
    versions = {"python": python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _unfit(value: object, place: str) -> Iterator[tuple[str, str]]:
    """The places in a value with contents that a manifest must not have, and why."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _unfit(item, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unfit(item, f"{place}.{index}")
    elif isinstance(value, str) and _CREDENTIALS.search(value):
        yield place, "a manifest is public and holds no credentials, leave the address out"
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, "a number is not finite, give it as a text"
