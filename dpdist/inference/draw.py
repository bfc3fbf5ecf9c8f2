"""New records of a published model, as many as wanted, given a condition."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from operator import index

import pyarrow as pa

from dpdist.errors import SpecError
from dpdist.inference.published import Published
from dpdist.privacy.noise import Noise
from dpdist.publish.parts import decode
from dpdist.spec.conditions import parse_condition


@dataclass(frozen=True, eq=False)
class Drawn:
    """Drawn records.

    Attributes
    ----------
    table : pyarrow.Table
        With the columns of the release.
    note : str
        What to know about them; empty where nothing is.
    """

    table: pa.Table
    note: str


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
        return index(value)
    except TypeError:
        raise SpecError(f"{what}: expected a whole number instead of {value!r}") from None
