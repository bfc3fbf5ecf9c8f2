"""Arrow columns to integer codes, by the declared schema and its policies.

Each value falls into one *class*: its code, or one of five defects. Classes come from lookup tables: one
per distinct integer for 8- and 16-bit columns and for narrow domains, one per dictionary entry for texts (only the
dictionary is seen by Python), a binary search for wide binned domains. The policy is a second lookup table.
Numbers are encoded by `dpdist.data.numbers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.data.keyed_ids import ids_of
from dpdist.data.numbers import LIMIT, IntegerDomain, NumberEncoder, parse_integer, refuse_padded, wrong_type
from dpdist.data.records import EncodedBatch
from dpdist.data.report import ABOVE, BELOW, DEFECTS, MISSING, MISTYPED, OUTSIDE, UNKNOWN, RowReport
from dpdist.data.texts import is_text
from dpdist.errors import ColumnMismatch
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import DAY, Category
from dpdist.spec.schema import Schema

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes


_FORMATS = {"date": ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S"), "datetime": ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")}


def moments_of(array: pa.Array, attribute: Attribute) -> pa.Array:
    """Return the days or seconds of a column, int64.

    A value is null where it is missing, or where a text is not in the attribute's format. The time of a day is left
    out of a date, and what is below a second out of a datetime. Moments with a zone are those of its clocks.
    Raises ColumnMismatch: the type of the column holds no days or moments.
    """
    kind = array.type
    if is_text(kind):
        array = _parsed(array.cast(pa.large_string()), attribute)
    elif not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise wrong_type(attribute, kind)
    elif pa.types.is_timestamp(kind):
        array = _floor(array.cast(pa.int64()), _IN_A_SECOND[kind.unit]).cast(pa.timestamp("s", kind.tz))
        array = array if kind.tz is None else pc.local_timestamp(array)
    if attribute.dated == "date" and pa.types.is_date32(array.type):
        return array.cast(pa.int32()).cast(pa.int64())
    seconds = array.cast(pa.timestamp("s")).cast(pa.int64())
    return _floor(seconds, DAY) if attribute.dated == "date" else seconds


def _floor(numbers: pa.Array, unit: int) -> pa.Array:
    """How many whole units integers are, rounded downwards; `floor_temporal` fails at the earliest moments."""
    parts = pc.divide(numbers, unit)
    return pc.subtract(parts, pc.greater(pc.multiply(parts, unit), numbers).cast(pa.int64()))


def _parsed(texts: pa.Array, attribute: Attribute) -> pa.Array:
    """Return texts as moments."""
    texts = pc.utf8_trim_whitespace(texts)
    if attribute.format is not None:
        known = texts.dictionary_encode()
        found = pa.array([_read(text, attribute.format) for text in known.dictionary.to_pylist()], pa.timestamp("s"))
        return found.take(known.indices)
    plain = pc.replace_substring_regex(texts, r"^(\d{4,}-\d\d-\d\d)T", r"\1 ")
    plain = pc.replace_substring_regex(plain, r"(:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?$", r"\1")
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


class TableEncoder:
    """Encodes record batches by a schema. `strip` removes blanks around texts; `empty_is_missing` takes an empty text
    for a missing value (as in CSV).
    """

    def __init__(self, schema: Schema, *, strip: bool = False, empty_is_missing: bool = False) -> None:
        self._schema = schema
        self._columns = [
            (NumberEncoder if a.kind == "number" else ColumnEncoder)(a, strip=strip, empty_is_missing=empty_is_missing)
            for a in schema.attributes
        ]

    def encode(
        self, batch: pa.RecordBatch, *, file: int = 0, first_row: int = 0, beside: pa.Array | None = None
    ) -> EncodedBatch:
        """Encode a batch that has (at least) the schema's columns, by name. Codes are 0 (of a continuous attribute the
        lower bound) where a row is refused or not kept. Raises ColumnMismatch: a column's type cannot hold the
        attribute.
        """
        codes: Codes = []
        drops: list[NDArray[np.bool_] | None] = []
        counts = np.zeros((len(self._columns), DEFECTS), np.int64)
        for i, (attribute, encoder) in enumerate(zip(self._schema.attributes, self._columns, strict=True)):
            column, dropped, counts[i] = encoder.encode(batch.column(attribute.name))
            codes.append(column)
            drops.append(dropped)
        broken = np.zeros(len(self._schema.rules), np.int64)
        for place, rule in enumerate(self._schema.forbidden):
            # values that no policy drops; what becomes of other attributes is left out: a table that a contract's check
            # admits is then admitted with some of the attributes, too
            found = rule.broken_by(codes)
            for gone in (drops[i] for i in rule.attributes):
                if gone is not None:
                    found &= ~gone
            broken[place] = np.count_nonzero(found)
            drops.append(found if rule.rule.broken == "drop" and broken[place] else None)
        keep: NDArray[np.bool_] | None = None
        for gone in drops:
            if gone is not None:
                keep = ~gone if keep is None else keep & ~gone
        kept = batch.num_rows if keep is None else int(np.count_nonzero(keep))
        report = RowReport(batch.num_rows, kept, counts, broken)
        return EncodedBatch(file, first_row, codes, keep, report, beside)


def encoded_batches(
    rows: Iterable[tuple[int, int, pa.RecordBatch]],
    schema: Schema,
    beside: str | None,
    *,
    strip: bool = False,
    empty_is_missing: bool = False,
) -> Iterator[EncodedBatch]:
    """Check and encode batches with the numbers of their files and first rows; `beside` is a column of ids or weights,
    the others as for `TableEncoder`.
    """
    encoder = TableEncoder(schema, strip=strip, empty_is_missing=empty_is_missing)
    for file, row, batch in rows:
        ids = ids_of(batch, beside, strip=strip, empty_is_missing=empty_is_missing)
        yield encoder.encode(batch, file=file, first_row=row, beside=ids)


class ColumnEncoder:
    """Encodes arrays of one attribute; see `TableEncoder` for the parameters."""

    def __init__(self, attribute: Attribute, *, strip: bool = False, empty_is_missing: bool = False) -> None:
        self._attribute = attribute
        self._strip = strip
        self._size = attribute.cardinality
        self._dtype = np.min_scalar_type(self._size + DEFECTS - 1)
        self._integers = IntegerDomain.of(attribute, self._dtype)
        self._lenient = attribute.is_whole or isinstance((attribute.values or ("",))[0], int)
        self._not_whole = self._size + (MISTYPED if attribute.is_whole else UNKNOWN)
        self._known_texts = _known_texts(attribute, empty_is_missing=empty_is_missing, strip=strip)
        self._policy, self._drops = _policy_tables(attribute, self._integers)

    def encode(self, array: pa.Array) -> tuple[np.ndarray, NDArray[np.bool_] | None, NDArray[np.int64]]:
        """The codes of an array (dtype of the attribute), the rows that a policy drops (None for none), and a row of
        `RowReport.counts`. Raises ColumnMismatch: the array's type cannot hold the attribute.
        """
        classes = self._classes(array)
        counts = np.zeros(DEFECTS, np.int64)
        dropped = None
        if classes.size and classes.max() >= self._size:
            counts += [np.count_nonzero(classes == self._size + defect) for defect in range(DEFECTS)]
            if (self._drops[self._size :] & (counts > 0)).any():
                dropped = self._drops.take(classes)
            classes = self._policy.take(classes)
        return classes.astype(self._attribute.dtype, copy=False), dropped, counts

    def _classes(self, array: pa.Array) -> np.ndarray:
        """The class of each value: its code, or ``cardinality + defect``."""
        kind = array.type
        if pa.types.is_dictionary(kind):
            known = array.dictionary
            if pa.types.is_date(known.type) and self._attribute.dated is None:
                check_type(self._attribute, known.type)
                known = known.cast(pa.string())
            by_text = is_text(known.type) and self._attribute.dated is None
            table = self._classes_of_texts(known.to_pylist()) if by_text else self._classes(known)
            return self._by_table(table, array.indices)
        if pa.types.is_null(kind):
            return np.full(len(array), self._size + MISSING, self._dtype)
        if self._attribute.dated is not None and self._integers is not None:
            return self._classes_of_moments(array, self._integers)
        if pa.types.is_boolean(kind):
            check_type(self._attribute, kind)
            return self._by_table(self._classes_of_texts(["false", "true"]), array.cast(pa.int8()))
        if is_text(kind):
            return self._classes(array.cast(pa.large_string()).dictionary_encode())
        if pa.types.is_date(kind):
            return self._classes(array.dictionary_encode())
        if self._integers is not None and pa.types.is_integer(kind):
            classes = self._integers.classes(_values(array))
        elif self._integers is not None and pa.types.is_floating(kind):
            classes = self._classes_of_floats(self._integers, _values(array.cast(pa.float64())))
        elif pa.types.is_integer(kind) or (self._integers is not None and pa.types.is_decimal(kind)):
            return self._classes(array.cast(pa.string()))
        else:
            raise wrong_type(self._attribute, kind)
        if array.null_count:
            classes[array.is_null().to_numpy(zero_copy_only=False)] = self._size + MISSING
        return classes

    def _by_table(self, table: np.ndarray, indices: pa.Array) -> np.ndarray:
        """Look up classes by index, null standing for missing."""
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(len(table))
            table = np.append(table, self._dtype.type(self._size + MISSING))
        classes: np.ndarray = table.take(_values(indices))
        return classes

    def _classes_of_texts(self, texts: Sequence[str | None]) -> np.ndarray:
        classes = np.full(len(texts), self._not_whole, self._dtype)
        numbers: dict[int, int] = {}
        for i, text in enumerate(texts):
            key = text.strip() if self._strip and text is not None else text
            known = self._size + MISSING if key is None else self._known_texts.get(key)
            if known is not None:
                classes[i] = known
            elif (number := parse_integer(key or "")) is not None and (self._lenient or str(number) == key):
                numbers[i] = max(-LIMIT - 1, min(number, LIMIT + 1))
        if numbers and self._integers is not None:
            where, values = np.fromiter(numbers, np.intp), np.fromiter(numbers.values(), np.int64)
            classes[where] = self._integers.classes(values)
        return classes

    def _classes_of_moments(self, array: pa.Array, integers: IntegerDomain) -> np.ndarray:
        """Classes of days or moments; a text that means missing comes before one that is read."""
        moments = moments_of(array, self._attribute)
        classes = integers.classes(_values(moments))
        absent = moments.is_null().to_numpy(zero_copy_only=False)
        classes[absent] = self._size + MISSING
        if is_text(array.type):
            texts = array.cast(pa.large_string())
            classes[absent & texts.is_valid().to_numpy(zero_copy_only=False)] = self._not_whole
            for text, known in self._known_texts.items():
                shown = pc.utf8_trim_whitespace(texts) if self._strip else texts
                classes[pc.fill_null(pc.equal(shown, text), False).to_numpy(zero_copy_only=False)] = known
        return classes

    def _classes_of_floats(self, integers: IntegerDomain, values: NDArray[np.float64]) -> np.ndarray:
        whole = values == np.trunc(values)
        within = np.clip(np.where(whole, values, 0.0), -2.0 * LIMIT, LIMIT + 1024.0)  # both ends outside every domain
        classes = integers.classes(within.astype(np.int64))
        if not whole.all():
            classes[~whole] = self._not_whole
            classes[np.isnan(values)] = self._size + MISSING
        return classes


def check_type(attribute: Attribute, kind: pa.DataType) -> None:
    """Refuse an Arrow type that cannot hold an attribute. Raises ColumnMismatch: the type is not among text, integer
    and, for attributes of integers or numbers, decimal or float, for others boolean or date (true is no number, and a
    day is its text, such as 2024-02-29); or none of its values is declared, so that no record would be in the domain.
    """
    found = kind
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    numeric = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if pa.types.is_integer(kind):
        refuse_padded(attribute)
    if is_text(kind) or pa.types.is_null(kind):
        return
    if attribute.dated is not None:
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return
        raise wrong_type(attribute, found)
    if attribute.kind == "number":
        of_numbers, of_texts = True, False
    else:
        integers = IntegerDomain.of(attribute, np.dtype(np.uint32))
        of_numbers, of_texts = integers is not None, integers is None or integers.ends[0] < -LIMIT  # or aliases are
    named = pa.types.is_boolean(kind) or pa.types.is_date(kind)
    if not (pa.types.is_integer(kind) or (numeric and of_numbers) or (named and of_texts)):
        raise wrong_type(attribute, found)
    if isinstance(attribute.out_of_domain, Category):  # any value has a place
        return
    known = [*map(str, attribute.values or ()), *attribute.aliases]
    is_integer = any(str(parse_integer(text)) == text for text in known)
    for holds, what, example, fits in (
        (pa.types.is_integer(kind), "integers", "1", attribute.bounds is not None or is_integer),
        (pa.types.is_boolean(kind), "true and false", "true", bool({"true", "false"} & set(known))),
        (pa.types.is_date(kind), "days", "2024-02-29", any(map(_DAY.fullmatch, known))),
    ):
        if holds and not fits:
            raise ColumnMismatch(
                f"column {attribute.name!r} holds {what}, and no declared value is one: correct the schema, or say "
                f"which is which with `aliases`, such as {{'{example}': {known[0]}}}"
            )


_IN_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = re.compile(r"-?\d{4,}-\d\d-\d\d", re.ASCII)


def _known_texts(attribute: Attribute, *, empty_is_missing: bool, strip: bool) -> Mapping[str, int]:
    """Classes of declared texts: the values, over their aliases, over what means missing."""
    missing = attribute.cardinality + MISSING
    values = {str(value): code for code, value in enumerate(attribute.values or ())}
    texts = dict.fromkeys(attribute.missing_values, missing)
    if empty_is_missing:
        texts[""] = missing
    texts |= {alias: values[str(value)] for alias, value in attribute.aliases.items()} | values
    return {text.strip(): known for text, known in texts.items()} if strip else texts


def _policy_tables(attribute: Attribute, integers: IntegerDomain | None) -> tuple[np.ndarray, NDArray[np.bool_]]:
    """For each class the code it becomes, and whether its row is dropped."""
    size = attribute.cardinality
    codes = np.append(np.arange(size), np.zeros(DEFECTS, np.int64))
    drops = np.zeros(size + DEFECTS, bool)
    if attribute.missing_code is not None:
        codes[size + MISSING] = attribute.missing_code
    drops[size + MISSING] = attribute.missing == "drop"
    outside = [size + defect for defect in OUTSIDE]
    drops[outside] = attribute.out_of_domain == "drop"
    if isinstance(attribute.out_of_domain, Category):
        labels = [*map(str, attribute.values or ())]
        if isinstance(attribute.missing, Category):
            labels.append(attribute.missing.category)
        codes[outside] = size - len(labels) + labels.index(attribute.out_of_domain.category)
    elif attribute.out_of_domain == "clip" and integers is not None:
        codes[size + BELOW], codes[size + ABOVE] = integers.end_codes
    return codes.astype(attribute.dtype), drops


def _values(array: pa.Array) -> np.ndarray:
    """Numbers, 0 where none exists, without a copy if it can be; `to_numpy` imports pandas."""
    values: np.ndarray = np.from_dlpack(array.fill_null(0) if array.null_count else array)
    return values
