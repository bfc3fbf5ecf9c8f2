"""Schemas from the names and types of columns, which are taken as public; no value is looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.api.given import is_partitioned, paths_of, to_arrow
from dpdist.errors import SpecError, meant
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import DAY, DatedKind, number_of
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import MISSING, MOST_INTEGERS, undeclared

KINDS = ("text", "integer", "number")
"""What may be said of a column without its values or bounds."""

_COARSE = 64  # bins between public bounds from which finer ones are found
_SMALL = 32  # integers of a range that need no bins
_IDENTIFIES = re.compile(
    r"\b(ids?|u?uid|guid|ssn|nin|mrn|iban|e?mail|phone|telephone|mobile|fax|address|street|names?|surname|forename|"
    r"(first|last|full|user|nick)name|login|passport|licen[cs]e|url|ip)\b"
)
_IS_FREE = re.compile(r"\b((comment|note|remark|message|review)s?|text|description|narrative|feedback)\b")


_DATED: Mapping[str, DatedKind] = {"date": "date", "datetime": "datetime"}
_CLOCK = {"ambiguous": "earliest", "nonexistent": "earliest"}
_CSV = {b"format": b"csv"}  # of types that are taken from the texts of a file
_ABSENT = ("NA", "N/A", "n/a", "NULL", "null", "NaN", "nan")  # texts that hide no type, and mean missing


@dataclass(frozen=True)
class Framed:
    """What the names and types of a table say, with what is public beside them."""

    schema: Schema
    undeclared: tuple[str, ...]  # attributes whose values are to be found
    types: pa.Schema  # of the columns of the schema
    pandas: Mapping[str, Any] | None = None  # their types in pandas, where the table is one of pandas
    is_polars: bool = False

    def restored(self, table: pa.Table) -> Any:
        """Released records in the types of the table: a DataFrame of pandas or Polars where it was one, else Arrow."""
        columns = []
        for field in self.types:
            values = table.column(field.name)
            if pa.types.is_dictionary(values.type):
                values = values.cast(pa.string())
            if pa.types.is_string(values.type):
                values = pc.if_else(pc.equal(values, MISSING), pa.scalar(None, pa.string()), values)
            kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            if pa.types.is_timestamp(kind) and kind.tz is not None and pa.types.is_temporal(values.type):
                values = pc.assume_timezone(values.cast(pa.timestamp("s"), safe=False), kind.tz, **_CLOCK)
            values = values.cast(kind, safe=False)
            if kind != field.type:
                values = values.dictionary_encode()
                with suppress(pa.ArrowInvalid):  # more texts than its indices count
                    values = values.cast(field.type)
            columns.append(values)
        made = pa.table(columns, names=self.types.names)
        if self.is_polars:
            return import_module("polars").from_arrow(made)
        if self.pandas is None:
            return made
        frame = made.to_pandas()
        known = {a.name: a.values or () for a in self.schema.attributes if a.name not in self.undeclared}
        for name, kind in self.pandas.items():
            if getattr(kind, "name", "") == "category":
                frame[name] = frame[name].astype("category")
                values = [value for value in known.get(name, ()) if value != MISSING]  # public ones, in their order
                if kind.ordered and not values:
                    held = frame[name].cat.categories.tolist()
                    values = sorted(held, key=[*kind.categories, *held].index)
                if values:
                    frame[name] = frame[name].cat.set_categories(values, ordered=bool(kind.ordered))
            elif not (isinstance(kind, np.dtype) and frame[name].isna().any() and kind.kind in "iub"):
                frame[name] = frame[name].astype(kind)
        return frame


def framed(table: Any, drop: Sequence[str], public: Mapping[str, Any]) -> Framed:
    """What a table's names and types say. Raises SpecError: there is no such column, a column identifies people or
    holds free text by its name, or is of a type that no attribute has; the message says what to do.
    """
    types = types_of(table)
    if isinstance(drop, str):
        raise SpecError(f"drop: expected a list of columns, such as [{drop!r}]")
    if not isinstance(public, Mapping):
        raise SpecError('public: expected a mapping, such as {"age": (0, 110), "sex": ["female", "male"]}')
    for what, names in (("drop", drop), ("public", public)):
        for name in names:
            if name not in types.names:
                raise SpecError(f"{what}: the table has no column {name!r}{meant(str(name), types.names)}")
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
        said = public.get(field.name)
        attribute, is_open = _attribute(field, said)
        if is_csv and not isinstance(said, Mapping):
            attribute = attribute.model_copy(update=_as_written(attribute))
        attributes.append(attribute)
        opened += [field.name] * is_open
    pandas = None
    if hasattr(table, "dtypes") and hasattr(table, "iloc") and not is_partitioned(table):
        pandas = {name: table.dtypes[name] for name in kept.names}
    is_polars = type(table).__module__.startswith("polars.")
    return Framed(Schema(attributes=tuple(attributes)), tuple(opened), kept, pandas, is_polars)


def types_of(table: Any) -> pa.Schema:
    """Names and Arrow types of the columns. Raises SpecError, ColumnMismatch, UnreadableFile: it is no table."""
    if (paths := paths_of(table)) is not None:
        return _types_of_files(paths)
    if is_partitioned(table):
        return to_arrow(table._meta, what="the Dask DataFrame").schema
    types = to_arrow(table, what=f"the {type(table).__name__}").schema.remove_metadata()
    plain = (
        {name for name, kind in getattr(table, "dtypes", {}).items() if getattr(kind, "kind", "O") in "iub"}
        if (hasattr(table, "iloc"))
        else set()
    )
    whole = {name for name in plain if "numpy" in type(table.dtypes[name]).__module__}
    return pa.schema([field.with_nullable(field.name not in whole) for field in types])


def _types_of_files(paths: Sequence[str]) -> pa.Schema:
    import pyarrow.dataset as ds
    from pyarrow.csv import ConvertOptions

    from dpdist.data.source import TableSource, find_files, format_of
    from dpdist.errors import UnreadableFile
    from dpdist.storage.s3 import filesystem

    source = TableSource(tuple(paths))
    files = find_files(source)
    fs, _ = filesystem(files[0].path, {})
    form: Any = format_of(source, files)
    if is_csv := form == "csv":
        form = ds.CsvFileFormat(convert_options=ConvertOptions(null_values=["", *_ABSENT]))
    try:
        found = ds.dataset([file.path for file in files], filesystem=fs, format=form).schema
    except (pa.ArrowException, OSError):
        raise UnreadableFile(f"{files[0].path}: the types of its columns cannot be read: write Parquet files") from None
    if not is_csv:
        return found.remove_metadata()
    kinds = [pa.timestamp("s") if pa.types.is_timestamp(kind) else kind for kind in found.types]  # without a zone
    return pa.schema(zip(found.names, kinds, strict=True), metadata=_CSV)


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
    return "text" if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind) else None


def _as_written(attribute: Attribute) -> dict[str, Any]:
    """What else is said of a column of texts that is taken for one of numbers, dates or booleans."""
    if attribute.values == ("false", "true"):
        spelled = {spell(value): value for value in ("false", "true") for spell in (str.title, str.upper)}
        return {"aliases": spelled, "out_of_domain": {"category": MISSING}}
    return {} if attribute.values else {"missing_values": _ABSENT}


def _attribute(field: pa.Field, said: Any) -> tuple[Attribute, bool]:
    """The attribute of a column, and whether its values are to be found."""
    name, kind = field.name, _kind_of(field)
    if kind is None:
        shown = str(field.type).partition("<")[0]
        raise SpecError(f"the column {name!r} holds {shown}, which no attribute does: drop it, or convert it")
    elsewhere = {"missing": {"category": MISSING} if field.nullable else "drop"}
    if kind == "boolean" and isinstance(said, list) and set(said) == {False, True}:
        said = None  # they are public as it is
    try:
        if isinstance(said, Mapping):
            return Attribute.model_validate({"name": name, **said}), False
        if isinstance(said, list):
            policies = {policy: {"category": MISSING} for policy in ("missing", "out_of_domain")}
            return Attribute.model_validate({"name": name, "kind": "categorical", "values": said, **policies}), False
        if isinstance(said, tuple):
            if kind in ("boolean", "text"):
                raise ValueError(f"bounds are of numbers or days, and the column holds {kind}s: give a list of values")
            dated = _DATED.get(kind)
            if dated is not None:
                said = _ends(said, dated)
            if not (len(said) == 2 and all(isinstance(end, int | float) and not isinstance(end, bool) for end in said)):
                raise ValueError("bounds are two numbers, such as (0, 110)")
            whole = kind != "number" and all(float(end).is_integer() for end in said)
            if whole and said[1] - said[0] < _SMALL:
                tree: dict[str, Any] = {"kind": kind, "bounds": said, "out_of_domain": "clip", **elsewhere}
                return Attribute.model_validate({"name": name, **tree}), False
            ends = [int(end) if whole else float(end) for end in said]
            bins = int(ends[1] - ends[0] + whole) if ends[1] - ends[0] < MOST_INTEGERS else _COARSE
            tree = undeclared(name, tuple(ends), bins=max(bins, _COARSE // 2), dated=dated)
            return Attribute.model_validate(tree), True
    except ValueError as error:
        text = str(error).partition("Value error, ")[2].partition(" [type")[0] or str(error)
        raise SpecError(f"public: {name}: {text}") from None
    if said is None and kind == "boolean":
        values = {"kind": "categorical", "values": ["false", "true"]}
        return Attribute.model_validate({"name": name, **values, **elsewhere}), False
    if said not in (None, kind, *KINDS):
        raise SpecError(
            f"public: {name}: expected bounds such as (0, 110), a list of values, or one of {', '.join(KINDS)}; got "
            f"{said!r}"
        )
    if said not in (None, kind) and (kind in ("text", *_DATED) or (kind == "boolean" and said != "text")):
        raise SpecError(f"public: {name}: the column holds {kind}s, which are no {said}s: convert it first")
    return Attribute.model_validate(undeclared(name, said or kind)), True


def _ends(said: tuple[Any, ...], dated: DatedKind) -> tuple[int, ...]:
    """Bounds of days or moments as integers; a day as the upper one is in it. Raises ValueError: they are no dates."""
    if len(said) != 2 or not all(isinstance(end, str | date) for end in said):
        raise ValueError("bounds are two dates, such as ('1950-01-01', '2004-12-31')")
    plain = [end.replace(tzinfo=None) if isinstance(end, datetime) else end for end in said]
    low, high = (str(end)[:10] if dated == "date" else str(end).removesuffix(" 00:00:00") for end in plain)
    whole = (DAY - 1) * (dated == "datetime" and len(high) == len("2004-12-31"))
    return number_of(low, dated), number_of(high, dated) + whole
