"""Columns of dates and datetimes as integers: days since 1970, or seconds since it began."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from dpdist.data.numbers import wrong_type
from dpdist.data.texts import is_text
from dpdist.spec.schema import Attribute

_FORMATS = {
    "date": ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S"),
    "datetime": ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"),
}


def moments_of(array: pa.Array, attribute: Attribute) -> pa.Array:
    """Return the days or seconds of a column, int64.

    A value is null where it is missing, or where a text is not in the attribute's format. The time of a day is left
    out of a date, and what is below a second out of a datetime.

    Raises
    ------
    ColumnMismatch
        The type of the column holds no days or moments.
    """
    kind = array.type
    if is_text(kind):
        array = _parsed(array.cast(pa.large_string()), attribute)
    elif not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise wrong_type(attribute, kind)
    if attribute.dated == "date":
        days = array if pa.types.is_date32(array.type) else pc.floor_temporal(_moments(array), unit="day")
        return days.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    return pc.floor_temporal(_moments(array), unit="second").cast(pa.timestamp("s")).cast(pa.int64())


def _moments(array: pa.Array) -> pa.Array:
    return array if pa.types.is_timestamp(array.type) else array.cast(pa.timestamp("s"))


def _parsed(texts: pa.Array, attribute: Attribute) -> pa.Array:
    """Return texts as moments."""
    texts = pc.utf8_trim_whitespace(texts)
    if attribute.format is not None:
        known = texts.dictionary_encode()
        found = pa.array([_read(text, attribute.format) for text in known.dictionary.to_pylist()], pa.timestamp("s"))
        return found.take(known.indices)
    plain = pc.replace_substring_regex(texts, r"^(\d{4,}-\d\d-\d\d)T", r"\1 ")
    plain = pc.replace_substring_regex(plain, r"(:\d\d)\.\d+$", r"\1")
    moments = pc.coalesce(
        *(pc.strptime(plain, format=one, unit="s", error_is_null=True) for one in _FORMATS[attribute.kind])
    )
    # Arrow reads the 30th of February as the first or second of March
    real = pc.equal(pc.strftime(moments, format="%Y-%m-%d"), pc.utf8_slice_codeunits(plain, 0, 10))
    return pc.if_else(real, moments, pa.scalar(None, moments.type))


def _read(text: str, pattern: str) -> datetime | None:
    try:
        return datetime.strptime(text, pattern).replace(tzinfo=None)
    except ValueError:
        return None
