"""Reading a release, and checking that it is what its manifest says.

Both start at the manifest and open only files that it names, one part in memory at a time. A part is used only
after its size and SHA-256 were verified. With a public key the signature is required; through the manifest it
covers every part. Without one, a release that verifies is whole, and anybody may have made it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdist.errors import DataNotFound, SpecError, VerificationFailed
from dpdist.ledger.signing import SIGNATURE_BYTES, check_signature, key_fingerprint
from dpdist.limits import MANIFEST_BYTES
from dpdist.privacy.formatting import Displayed, Fact, upwards
from dpdist.publish.manifest import MANIFEST, SIGNATURE, Manifest
from dpdist.publish.pages import refuse_expanding
from dpdist.publish.part_format import PartRecord, cautions_of, read_file
from dpdist.publish.parts import UNREADABLE, arrow_schema, released_columns
from dpdist.publish.statement import check_statement
from dpdist.storage.store import Store

BATCH_ROWS = 1 << 16
"""Rows of a batch, unless another number is asked for."""

_AGAIN = "copy the release again from its publisher"


@dataclass(frozen=True, kw_only=True)
class ReleaseAccount:
    """What a ledger knows of a release: what it charged, by itself and at the delta of the data set."""

    dataset: str
    attempt: str
    epsilon: float | None
    delta: float

    def explain(self) -> str:
        """The account for people."""
        charged = "nothing composes with it"
        if self.epsilon is not None:
            charged = f"charged epsilon {upwards(self.epsilon)} at delta {upwards(self.delta)}"
        return f"the release that data set {self.dataset} committed (attempt {self.attempt[:8]}); {charged}"


@dataclass(frozen=True, kw_only=True, repr=False)
class VerifyReport(Displayed):
    """What was verified."""

    uri: str
    kind: str
    name: str
    dataset: str | None  # as the spec names it
    created: str  # day of the attempt, UTC
    attempt: str
    private: bool
    guarantee: str
    guarantees: tuple[dict[str, Any], ...]
    records: int  # released records; 0 where statistics are released
    cells: int | None  # released statistics; None where records are released
    parts: int
    bytes: int
    cautions: tuple[str, ...]  # what to hear before the numbers (`dpdist.publish.part_format`)
    # not checked: there is one, but no public key was given. Foreign: the ledger has no key that made it
    signature: Literal["valid", "not checked", "foreign", "none"]
    signer: str | None  # fingerprint of the key of a valid signature
    # of the events in the manifest at its delta, recomputed; None where it states no differential privacy
    epsilon: float | None
    manifest_sha256: str
    # files beside it that the manifest does not name, hidden ones too, such as parts of an interrupted attempt; never
    # read
    unlisted: tuple[str, ...]
    account: ReleaseAccount | None = None  # what the ledger knows of it, where one was given

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object; it has ``records`` or ``cells``."""
        report = asdict(self)
        del report["guarantees"], report["records" if self.cells is not None else "cells"]
        return report if self.account is not None else {n: v for n, v in report.items() if n != "account"}

    @property
    def _heading(self) -> str:
        return f"Verification of {self.uri}"

    def _facts(self) -> list[Fact]:
        return [
            Fact("Verdict", self.verdict),
            Fact("Release", f"{self.identity}; {self.counted}"),
            Fact("Guarantee", self.guarantee),
            Fact("Signature", self.signed),
            *(Fact("WARNING", caution) for caution in self.cautions),
        ]

    @property
    def verdict(self) -> str:
        """What a verification without errors amounts to: only a checked signature says who made the release."""
        return "verified" if self.signature == "valid" else "integrity only"

    @property
    def signed(self) -> str:
        """Who signed it, in words."""
        if self.signature == "valid":
            return f"by the key {self.signer}"
        if self.signature == "foreign":
            return (
                "by a key that is not the data set's: none that the ledger knows made the signature. If the spec named "
                "a key of its own (output.signing_key), check it with that one (--public-key, in Python public_key=); "
                "else do not trust the signature"
            )
        state = "none"
        if self.signature != "none":
            ways = "--public-key or --ledger, in Python public_key= or ledger="
            state = f"not checked (give the public key of its publisher or the ledger: {ways})"
        return f"{state}: the files are consistent, but their author is not verified"

    @property
    def counted(self) -> str:
        """How many records, or cells of statistics, in words."""
        return f"{self.records:,} records" if self.cells is None else f"{self.cells:,} cells"

    @property
    def identity(self) -> str:
        """Which release it is, in words."""
        of = "" if self.dataset is None else f" of data set {self.dataset}"
        return f"{self.name} ({self.kind}){of}, {self.created}, attempt {self.attempt}"


def verify(
    uri: str | os.PathLike[str],
    public_key: Ed25519PublicKey | None = None,
    *,
    name: str | None = None,
    attempt: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Check a release: manifest, guarantee, signature, and of every part the size, SHA-256, columns, rows and values.
    Raises SpecError: the attempt is shorter; VerificationFailed: it is another release; or a file is not what the
    manifest or the signature says; the message names the file; DataNotFound: there is no release, or no access to it;
    StorageUnavailable: the storage does not answer.

    Parameters
    ----------
    public_key : Ed25519PublicKey, optional
        The signature is then required.
    name, attempt : str, optional
        The release that is expected: its name, and the id of its attempt or at least 8 characters of its beginning.
        Another release of the same publisher is whole and signed, too.
    """
    store = Store(uri, storage_options)
    manifest, signature = _open(store, public_key)
    _require_expected(manifest, name, attempt)
    epsilon = check_statement(manifest)
    sizes = _check_sizes(store, manifest, hidden=True)
    released = released_columns(manifest.table, manifest.format)
    expected = arrow_schema(manifest.table, manifest.format)
    for part in manifest.parts:
        for batch in _batches(store, part, expected, BATCH_ROWS):
            for column, values in zip(released, batch.columns, strict=True):
                if not column.admits(values):
                    raise VerificationFailed(
                        f"{part.name}: column {column.field.name!r} holds values outside its declared domain: {_AGAIN}"
                    )
    for file in manifest.files:
        read_file(store, file)
    dataset = manifest.spec.get("dataset")
    listed = {MANIFEST, SIGNATURE, *(file.name for file in manifest.listed)}
    stated = ("kind", "name", "attempt", "guarantee", "guarantees", "records", "cells")
    own: dict[str, Any] = {name: getattr(manifest, name) for name in stated}
    return VerifyReport(
        **own,
        uri=store.uri,
        dataset=dataset if isinstance(dataset, str) else None,
        created=manifest.created.isoformat(),
        private=manifest.not_private is None,
        parts=len(manifest.parts),
        bytes=sum(file.bytes for file in manifest.listed),
        cautions=cautions_of(manifest.spec, manifest.parameters, manifest.records),
        signature=signature,
        signer=None if public_key is None else key_fingerprint(public_key),
        epsilon=epsilon,
        manifest_sha256=hashlib.sha256(manifest.to_bytes()).hexdigest(),
        unlisted=tuple(name for name in sizes if name not in listed),
    )


def read_manifest(
    uri: str | os.PathLike[str],
    public_key: Ed25519PublicKey | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """The manifest of a release; with a public key, its signature is checked. Raises as `verify`."""
    return _open(Store(uri, storage_options), public_key)[0]


def part_batches(
    store: Store, manifest: Manifest, part: int, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The batches of one part of a release whose manifest was read, for tasks that read a part each.
    Raises VerificationFailed, DataNotFound, StorageUnavailable: as `verify`, for this part; values are not compared
    with their domains.

    Yields
    ------
    pyarrow.RecordBatch
        At most `batch_rows` rows.
    """
    yield from _batches(store, manifest.parts[part], arrow_schema(manifest.table, manifest.format), batch_rows)


def open_release(
    uri: str | os.PathLike[str],
    public_key: Ed25519PublicKey | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Store, Manifest]:
    """The store and the manifest of a release; of the parts only the sizes are checked. Raises VerificationFailed,
    DataNotFound, StorageUnavailable: as `verify`.
    """
    store = Store(uri, storage_options)
    manifest, _ = _open(store, public_key)
    _check_sizes(store, manifest)
    return store, manifest


def read_release(
    uri: str | os.PathLike[str],
    public_key: Ed25519PublicKey | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """All records of a release as one table, in order, through its manifest only; values are not compared with their
    domains. Raises as `open_release`.
    """
    store, manifest = open_release(uri, public_key, storage_options=storage_options)
    expected = arrow_schema(manifest.table, manifest.format)
    batches = (batch for part in manifest.parts for batch in _batches(store, part, expected, BATCH_ROWS))
    return pa.Table.from_batches(batches, expected).unify_dictionaries()


def _open(store: Store, key: Ed25519PublicKey | None) -> tuple[Manifest, Literal["valid", "not checked", "none"]]:
    try:
        content = store.read_bytes(MANIFEST, most=MANIFEST_BYTES)
    except DataNotFound as error:
        raise DataNotFound(f"there is no finished release at {store.uri}: {error}") from None
    signed = store.exists(SIGNATURE)
    if key is not None:
        if not signed:
            raise VerificationFailed(f"{SIGNATURE} is missing, but a public key was given: {_AGAIN}")
        check_signature(content, store.read_bytes(SIGNATURE, most=SIGNATURE_BYTES), key)
    manifest = Manifest.from_bytes(content)
    return manifest, "none" if not signed else "not checked" if key is None else "valid"


def _require_expected(manifest: Manifest, name: str | None, attempt: str | None) -> None:
    """Refuse another release than the one that is expected."""
    if attempt is not None and len(attempt) < 8:
        raise SpecError("the attempt: give its id, or at least 8 characters of its beginning")
    for what, found, same, expected in (
        ("name", manifest.name, manifest.name == name, name),
        ("attempt", manifest.attempt, manifest.attempt.startswith(attempt or ""), attempt),
    ):
        if expected is not None and not same:
            raise VerificationFailed(
                f"this is another release: its {what} is {found!r}, and {expected!r} is expected; get that one from "
                "its publisher"
            )


def _check_sizes(store: Store, manifest: Manifest, *, hidden: bool = False) -> dict[str, int]:
    sizes = store.sizes(hidden=hidden)
    for part in manifest.listed:
        if part.name not in sizes:
            raise VerificationFailed(f"{part.name} is missing: {_AGAIN}")
        if sizes[part.name] != part.bytes:
            raise VerificationFailed(f"{part.name} has {sizes[part.name]} bytes, expected {part.bytes}: {_AGAIN}")
    return sizes


def _batches(store: Store, part: PartRecord, expected: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """The batches of one part, after its size, SHA-256, columns and rows were found right."""
    content = store.read_bytes(part.name, most=part.bytes)
    if hashlib.sha256(content).hexdigest() != part.sha256:
        raise VerificationFailed(f"{part.name} was changed, its SHA-256 is not that of the manifest: {_AGAIN}")
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        if not file.schema_arrow.equals(expected, check_metadata=True):
            raise VerificationFailed(f"{part.name} does not have the columns of the manifest's schema: {_AGAIN}")
        if file.metadata.num_rows != part.rows:
            raise VerificationFailed(f"{part.name} does not have the {part.rows} rows of the manifest: {_AGAIN}")
        refuse_expanding(content, file)
        for batch in file.iter_batches(batch_size=rows, use_threads=False):
            batch.validate(full=True)  # texts are UTF-8, indices inside their dictionaries
            yield batch
    except UNREADABLE as error:
        kind = type(error).__name__
        raise VerificationFailed(f"{part.name} is not a readable Parquet file ({kind}): {_AGAIN}") from None
