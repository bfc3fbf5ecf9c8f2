"""Records of a published model: those of the release made again, and new ones, given a condition."""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdist.errors import SpecError, VerificationFailed
from dpdist.families.base.attempt import drawing_key
from dpdist.inference.published import Published
from dpdist.model.draw import draw_records, weighted_pool
from dpdist.model.files import PublishedModel, read_model
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import Manifest
from dpdist.publish.part_format import PartRecord
from dpdist.publish.parts import UNREADABLE, decode, parquet_bytes, read_parquet
from dpdist.publish.verify import open_release
from dpdist.spec.conditions import parse_condition

SHOWN = 10  # changed rows that a message names at most


@dataclass(frozen=True)
class Recomputed:
    """What was made again."""

    parts: int
    records: int
    rewritten: tuple[str, ...]  # parts with the same records in other bytes: another version of pyarrow wrote them
    # earlier releases that the manifest names as evidence: how many were weighed again (None: their places are not
    # opened, because nobody said who made the release), and paths where none was found
    evidence: int | None = 0
    missing: tuple[str, ...] = ()


def recompute(
    uri: str | os.PathLike[str],
    public_key: Ed25519PublicKey | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Recomputed:
    """Make every part of a release again, and compare it with what is there. Earlier releases are not opened.

    Raises
    ------
    VerificationFailed
        A record is not the one that the model and the key give: the message names its file and row. Or the key is not
        that of the attempt, or the model has another format.
    DataNotFound
        There is no release, it publishes no model, or a part is missing.
    StorageUnavailable
        The storage does not answer.
    """
    store, manifest = open_release(uri, public_key, storage_options=storage_options)
    model = read_model(store, manifest)
    if manifest.not_private is None and model.key != drawing_key(manifest.attempt):
        raise VerificationFailed("model.json: the drawing key is not that of the attempt, so it may have been chosen")
    rewritten = []
    for part, table in _made_again(manifest, model):
        content, expected = store.read_bytes(part.name, most=part.bytes), parquet_bytes(table)
        if content != expected:
            _compare(part, content, table)
            rewritten.append(part.name)
        elif hashlib.sha256(content).hexdigest() != part.sha256:
            raise VerificationFailed(f"{part.name} is what the model gives, but the manifest lists other bytes")
    evidence = None if "evidence" in manifest.learned else 0  # `repeat_evidence` weighs it
    return Recomputed(len(manifest.parts), manifest.records, tuple(rewritten), evidence)


def _made_again(manifest: Manifest, model: PublishedModel) -> Iterator[tuple[PartRecord, pa.Table]]:
    noise, start, rules = Noise(bytes.fromhex(model.key)), 0, manifest.table.forbidden
    pool = None if model.fitted.adjustment is None else weighted_pool(model.fitted, noise, rules)
    for index, part in enumerate(manifest.parts):
        columns = draw_records(model.fitted, noise, index, part.rows, rounds=model.rounds, rules=rules, pool=pool)
        codes = [column.astype(a.dtype) for column, a in zip(columns, manifest.table.attributes, strict=True)]
        yield part, decode(manifest.table, codes, form=manifest.format, noise=noise, start=start)
        start += part.rows


def _compare(part: PartRecord, content: bytes, expected: pa.Table) -> None:
    """Refuse a part that holds other records, and name them."""
    texts = [field.name for field in expected.schema if pa.types.is_dictionary(field.type)]
    try:
        found = read_parquet(content, texts)
        found.validate(full=True)
    except UNREADABLE as error:
        raise VerificationFailed(f"{part.name} is not a readable Parquet file ({type(error).__name__})") from None
    if found.column_names != expected.column_names or found.num_rows != expected.num_rows:
        raise VerificationFailed(f"{part.name} has other columns or another number of rows than the model gives")
    differ = np.zeros(found.num_rows, bool)
    for name in expected.column_names:
        differ |= _differ(found[name], expected[name])
    rows = np.flatnonzero(differ).tolist()
    if rows:
        shown = ", ".join(str(row) for row in rows[:SHOWN]) + (", ..." if len(rows) > SHOWN else "")
        raise VerificationFailed(
            f"{part.name}: {len(rows)} record{'s' if len(rows) > 1 else ''} not as the model and the drawing key give "
            f"{'them' if len(rows) > 1 else 'it'}, row {shown} (counted from 0): get the release again from its "
            "publisher"
        )


def _differ(found: pa.ChunkedArray, expected: pa.ChunkedArray) -> np.ndarray:
    a, b = (c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in (found, expected))
    if a.type != b.type:
        return np.ones(len(found), bool)
    same, both_null = pc.equal(a, b), pc.and_(pc.is_null(a), pc.is_null(b))
    return ~np.asarray(pc.or_(pc.fill_null(same, False), both_null))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Drawn records."""

    table: pa.Table  # with the columns of the release
    note: str  # what to know about them; empty where nothing is


def draw_table(release: Published, records: int, *, where: str | None = None, seed: int = 0) -> Drawn:
    """Draw records that meet a condition: exactly from the model's law given the condition.

    The same release, number, condition and seed give the same records.

    Raises
    ------
    SpecError
        The number or the seed is no whole number, the condition cannot be read, or no record of the model meets it.
    DataNotFound
        The release publishes no model.
    """
    records, seed = _whole("the number of records", records), _whole("the seed (random_state)", seed)
    if records < 1:
        raise SpecError("the number of records: expected at least one record")
    law = release.law
    condition = None if where is None else parse_condition(where, release.schema)
    source = json.dumps([release.model.key, records, where, seed]).encode()
    noise = Noise(hashlib.sha256(b"dpdist draw\0" + source).digest())
    columns, distinct = law.draw(condition, records, noise)
    codes = [c.astype(a.dtype) for c, a in zip(columns, release.schema.attributes, strict=True)]
    note = ""
    if law.is_weighted:
        note = f"drawn by weight from {distinct:,} rows of the release's weighted pool: some may stand several times"
    return Drawn(decode(release.schema, codes, form=release.manifest.format, noise=noise), note)


def _whole(what: str, value: int) -> int:
    """An integer of Python, of one of any kind."""
    try:
        return operator.index(value)
    except TypeError:
        raise SpecError(f"{what}: expected a whole number instead of {value!r}") from None
