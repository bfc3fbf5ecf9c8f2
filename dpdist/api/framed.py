"""Schemas from the names and types of columns, which are taken as public; no value is looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from dpdist.api.given import is_partitioned, paths_of, to_arrow
from dpdist.api.public import bounds_of, keys_of, kind_said, plain, values_of
from dpdist.errors import SpecError, UnreadableFile, meant
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import DatedKind
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import MISSING, MOST_INTEGERS, OTHERS, undeclared
from dpdist.spec.validation import setting_places, validation_message

_COARSE = 64  # bins between public bounds from which finer ones are found
_SMALL = 32  # integers of a range that need no bins
_IDENTIFIES = re.compile(
    r"\b(ids?|u?uid|guid|ssn|nin|mrn|iban|e?mail|phone|telephone|mobile|fax|address|street|names?|surname|forename|"
    r"(first|last|full|user|nick)name|login|passport|licen[cs]e|url|ip)\b"
)
_IS_FREE = re.compile(r"\b((comment|note|remark|message|review)s?|text|description|narrative|feedback)\b")


_DATED: Mapping[str, DatedKind] = {"date": "date", "datetime": "datetime"}
_CLOCK = {"ambiguous": "earliest", "nonexistent": "earliest"}
_PADDED = {b"digits": b"padded"}
_FIRST = 10_000  # records of a text file by which digits are taken for texts
_CSV = {b"format": b"csv"}  # of types that are taken from the texts of a file
_ABSENT = ("NA", "N/A", "n/a", "NULL", "null", "NaN", "nan")  # texts that hide no type, and mean missing


@dataclass(frozen=True)
class Framed:
    """What the names and types of a table say, with what is public beside them."""

    schema: Schema
    undeclared: tuple[str, ...]  # attributes whose values are to be found
    types: pa.Schema  # of the columns of the schema
    orders: Mapping[str, Any]  # of categories, where their type has one
    pandas: Mapping[str, Any] | None = None  # their types in pandas, where the table is one of pandas
    is_polars: bool = False

    def restored(self, table: pa.Table, found: Schema) -> Any:
        """Records drawn from a release, by the schema that was `found`, in the types of the table: a DataFrame of
        pandas or Polars where it was one, else Arrow. A column of categories has those of the release.
        """
        columns = []
        for field in self.types:
            values = table.column(field.name)
            if pa.types.is_dictionary(values.type):
                values = values.cast(pa.string())
            kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            if pa.types.is_string(values.type):
                none = [MISSING] if _kind_of(field) == "text" else [MISSING, OTHERS]
                values = pc.if_else(pc.is_in(values, pa.array(none)), pa.scalar(None, pa.string()), values)
            if pa.types.is_null(kind):
                kind = pa.string()
            if pa.types.is_timestamp(kind) and kind.tz is not None and pa.types.is_temporal(values.type):
                values = pc.assume_timezone(values.cast(pa.timestamp("s"), safe=False), kind.tz, **_CLOCK)
            is_coded = pa.types.is_dictionary(field.type)
            known = self._categories(found.attributes[found.names.index(field.name)]) if is_coded else None
            if known is None:
                columns.append(values.cast(kind, safe=False))
                continue
            held = pa.array(map(str, known), pa.string()).cast(values.type)
            places, index = pc.index_in(values, value_set=held).combine_chunks(), field.type.index_type
            if len(held) <= np.iinfo(index.to_pandas_dtype()).max:
                places = places.cast(index)
            columns.append(pa.DictionaryArray.from_arrays(places, held.cast(kind), ordered=field.type.ordered))
        made = pa.table(columns, names=self.types.names)
        if self.is_polars:
            return self._of_polars(made, found)
        if self.pandas is None:
            return made
        frame = made.to_pandas()
        for name, kind in self.pandas.items():
            is_plain = isinstance(kind, np.dtype) and frame[name].isna().any() and kind.kind in "iub"
            if not is_plain and getattr(kind, "name", "") != "category":
                frame[name] = frame[name].astype(kind)
        return frame

    def _categories(self, found: Attribute) -> list[Any] | None:
        """The categories of a column by what was found of it; None where it has numbers in bins. Those that are public,
        or whose type has no order, are in the order of the schema, others in that of the type.
        """
        if found.values is None:
            whole = found.kind == "integer" and found.bounds is not None and not found.is_binned
            return [int(number) for number in found.bin_edges] if whole else None
        values, order = [value for value in found.values if value != MISSING], self.orders.get(found.name)
        if order is None or found.name not in self.undeclared:
            return values
        return sorted(values, key=[*order, *values].index)

    def _of_polars(self, made: pa.Table, found: Schema) -> Any:
        """A DataFrame of Polars; what was an Enum is one."""
        polars = import_module("polars")
        kinds = {a.name: polars.Enum(self._categories(a)) for a in found.attributes if a.name in self.orders}
        return polars.from_arrow(made).with_columns(polars.col(name).cast(kind) for name, kind in kinds.items())


def framed(table: Any, drop: Sequence[str], public: Mapping[str, Any]) -> Framed:
    """What a table's names and types say. Raises SpecError: there is no such column, a column identifies people or
    holds free text by its name, or is of a type that no attribute has; the message says what to do.
    """
    if isinstance(drop, str):
        raise SpecError(f"drop: expected a list of columns, such as [{drop!r}]")
    types = types_of(table, drop)
    known = [*types.names, *(name for name in drop if name in _columns(table))]
    if not isinstance(public, Mapping):
        raise SpecError('public: expected a mapping, such as {"age": (0, 110), "sex": ["female", "male"]}')
    for what, names in (("drop", drop), ("public", public)):
        for name in names:
            if name not in known:
                raise SpecError(f"{what}: the table has no column {name!r}{meant(str(name), known)}")
    if both := [name for name in drop if name in public]:
        raise SpecError(f"drop, public: the column {both[0]!r} is in both; take it out of one")
    kept = pa.schema([field for field in types if field.name not in drop])
    if not len(kept):
        raise SpecError("drop: no column is left; leave some in")
    refused = [field.name for field in kept if field.name not in public and _names_people(field)]
    if refused:
        first = f"{refused[0]!r}: {_kind_of(kept.field(refused[0]))!r}"
        raise SpecError(
            f"by their names these columns identify people or hold free text: {', '.join(refused)}. Leave them out: "
            f"drop={refused}, or say what they hold, such as public={{{first}}}"
        )
    attributes, opened, is_csv = [], [], types.metadata == _CSV
    for field in kept:
        attribute, is_open = _attribute(field, public)
        if is_csv and not isinstance(public.get(field.name), Mapping):
            attribute = attribute.model_copy(update=_as_written(attribute))
        attributes.append(attribute)
        opened += [field.name] * is_open
    schema = Schema(attributes=tuple(attributes))
    if type(table).__module__.startswith("polars."):
        ordered = {name: kind.categories.to_list() for name, kind in table.schema.items() if str(kind)[:4] == "Enum"}
        return Framed(schema, tuple(opened), kept, {n: o for n, o in ordered.items() if n in kept.names}, None, True)
    pandas = None
    if hasattr(table, "dtypes") and hasattr(table, "iloc") and not is_partitioned(table):
        pandas = {name: table.dtypes[name] for name in kept.names}
    orders = {name: [*kind.categories] for name, kind in (pandas or {}).items() if getattr(kind, "ordered", False)}
    return Framed(schema, tuple(opened), kept, orders, pandas)


def _columns(table: Any) -> list[Any]:
    """The names of the columns of pandas and Dask. Raises SpecError: one is no text."""
    names = [*table.columns] if hasattr(table, "iloc") or is_partitioned(table) else []
    if wrong := [name for name in names if not isinstance(name, str)]:
        how = "['_'.join(map(str, name)) for name in frame]" if isinstance(wrong[0], tuple) else "[*map(str, frame)]"
        raise SpecError(f"the column {wrong[0]!r} has a name that is no text: rename it, with frame.columns = {how}")
    return names


def types_of(table: Any, drop: Sequence[str] = ()) -> pa.Schema:
    """Names and Arrow types of the columns; of pandas and Dask of those that stay. Raises SpecError, ColumnMismatch,
    UnreadableFile: it is no table.
    """
    if (paths := paths_of(table)) is not None:
        return _types_of_files(paths)
    if names := _columns(table):
        table = table[[name for name in names if name not in drop]]
        for name, kind in table.dtypes.items():
            if getattr(kind, "kind", "O") == "c":
                raise SpecError(f"the column {name!r} holds complex numbers, which no attribute does: drop it")
            if str(getattr(getattr(kind, "categories", None), "dtype", "")).startswith("interval"):
                raise SpecError(f"the column {name!r} holds intervals, which no attribute does: convert it to texts")
    if is_partitioned(table):
        return to_arrow(table._meta, what="the Dask DataFrame").schema
    types = to_arrow(table, what=f"the {type(table).__name__}").schema.remove_metadata()
    kinds = getattr(table, "dtypes", {}) if hasattr(table, "iloc") else {}
    plain = {name for name, kind in kinds.items() if getattr(kind, "kind", "O") in "iub"}
    whole = {name for name in plain if "numpy" in type(table.dtypes[name]).__module__}
    return pa.schema([field.with_nullable(field.name not in whole) for field in types])


def _types_of_files(paths: Sequence[str]) -> pa.Schema:
    import pyarrow.dataset as ds

    from dpdist.data.source import TableSource, find_files, format_of
    from dpdist.storage.s3 import filesystem

    source = TableSource(tuple(paths))
    files = find_files(source)
    fs, _ = filesystem(files[0].path, {})
    form: Any = format_of(source, files)
    if is_csv := form == "csv":
        form = _csv(null_values=["", *_ABSENT])
    try:
        found = ds.dataset([file.path for file in files], filesystem=fs, format=form).schema
        whole = [field.name for field in found if is_csv and pa.types.is_integer(field.type)]
        padded = _padded(files[0].path, fs, whole) if whole else []
    except (pa.ArrowException, OSError):
        raise UnreadableFile(f"{files[0].path}: the types of its columns cannot be read: write Parquet files") from None
    if not is_csv:
        return found.remove_metadata()
    fields = []
    for field in found:
        kind = field.type if _kind_of(field) else pa.string()
        kind = pa.timestamp("s") if pa.types.is_timestamp(kind) else kind  # without a zone
        is_padded = field.name in padded
        fields.append(pa.field(field.name, pa.string() if is_padded else kind, metadata=_PADDED if is_padded else None))
    return pa.schema(fields, metadata=_CSV)


def _csv(**options: Any) -> Any:
    """How types are taken from a text file, whose records are checked when they are charged: no row is refused."""
    import pyarrow.dataset as ds
    from pyarrow.csv import ConvertOptions, ParseOptions

    skipping = ParseOptions(invalid_row_handler=lambda row: "skip")
    return ds.CsvFileFormat(parse_options=skipping, convert_options=ConvertOptions(check_utf8=False, **options))


def _padded(path: str, fs: Any, names: list[str]) -> list[str]:
    """Columns of digits in whose first texts a zero stands before others."""
    import pyarrow.dataset as ds

    form = _csv(column_types=dict.fromkeys(names, pa.string()))
    first = ds.dataset(path, filesystem=fs, format=form).head(_FIRST, columns=names, batch_readahead=0)
    return [name for name in names if pc.any(pc.match_substring_regex(first[name], r"^\s*[-+]?0\d")).as_py()]


def _names_people(field: pa.Field) -> bool:
    """Whether the name of a column is that of an identifier, or of texts that people write."""
    words = " ".join(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", field.name).lower()))
    return bool(_IDENTIFIES.search(words) or (_IS_FREE.search(words) and _kind_of(field) == "text"))


def _kind_of(field: pa.Field) -> str | None:
    """The kind of a column by its type; None where no attribute holds it."""
    is_a = pa.types
    kind = field.type.value_type if is_a.is_dictionary(field.type) else field.type
    if is_a.is_boolean(kind):
        return "boolean"
    if is_a.is_date(kind) or is_a.is_timestamp(kind):
        return "date" if is_a.is_date(kind) else "datetime"
    if is_a.is_integer(kind):
        return "integer"
    if is_a.is_floating(kind) or is_a.is_decimal(kind):
        return "number"
    is_text = is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind) or is_a.is_null(kind)
    return "text" if is_text else None


def _as_written(attribute: Attribute) -> dict[str, Any]:
    """What else is said of a column of texts that is taken for one of numbers, dates or booleans."""
    if attribute.values == ("false", "true"):
        spelled = {spell(value): value for value in ("false", "true") for spell in (str.title, str.upper)}
        return {"aliases": spelled, "out_of_domain": {"category": MISSING}}
    return {} if attribute.values else {"missing_values": _ABSENT}


def _attribute(field: pa.Field, public: Mapping[str, Any]) -> tuple[Attribute, bool]:
    """The attribute of a column, and whether its values are to be found."""
    name, kind = field.name, _kind_of(field)
    if kind is None:
        held = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        shown = str(held).partition("<")[0]
        raise SpecError(f"the column {name!r} holds {shown}, which no attribute does: drop it, or convert it")
    said = plain(name, public[name]) if name in public else None
    is_padded = dict(field.metadata or {}) == _PADDED  # digits after zeros, as codes have: texts, unless more is said
    if is_padded and (isinstance(said, tuple) or said in ("integer", "number")):
        kind = "integer" if isinstance(said, tuple) else str(said)
    if kind == "boolean" and isinstance(said, list) and {str(one).lower() for one in said} == {"false", "true"}:
        said = None  # they are public as it is
    try:
        return _said(field, kind, said)
    except ValidationError as error:
        raise SpecError(
            f"public: {name}: {' '.join(validation_message(error, setting_places(Attribute)).split())}"
        ) from None
    except ValueError as error:
        raise SpecError(f"public: {name}: {error}") from None


def _said(field: pa.Field, kind: str, said: Any) -> tuple[Attribute, bool]:
    """As `_attribute`. Raises ValueError: what is said does not fit the column."""
    name = field.name
    elsewhere = {"missing": {"category": MISSING} if field.nullable else "drop"}
    if isinstance(said, Mapping):
        return Attribute.model_validate(keys_of(name, kind, said)), False
    if isinstance(said, list):
        return Attribute.model_validate(keys_of(name, kind, {"values": values_of(kind, said)})), False
    if isinstance(said, tuple):
        dated = _DATED.get(kind)
        said = bounds_of(kind, said, dated, getattr(field.type, "tz", None))
        whole = kind != "number" and all(float(end).is_integer() for end in said)
        if whole and said[1] - said[0] < _SMALL:
            tree: dict[str, Any] = {"kind": kind, "bounds": said, "out_of_domain": "clip", **elsewhere}
            return Attribute.model_validate({"name": name, **tree}), False
        ends = [int(end) if whole else float(end) for end in said]
        bins = int(ends[1] - ends[0] + whole) if ends[1] - ends[0] < MOST_INTEGERS else _COARSE
        how: dict[str, Any] = {"bins": max(bins, _COARSE // 2), "dated": dated, "nullable": field.nullable}
        return Attribute.model_validate(undeclared(name, tuple(ends), **how)), True
    if said is None and kind == "boolean":
        values = {"kind": "categorical", "values": ["false", "true"]}
        return Attribute.model_validate({"name": name, **values, **elsewhere}), False
    kind = kind if said is None else kind_said(name, kind, said)
    return Attribute.model_validate(undeclared(name, kind, nullable=field.nullable)), True
