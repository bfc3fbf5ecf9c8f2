"""Schemas from the names and types of columns, which are taken as public; no value is looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.api.given import is_partitioned, paths_of, to_arrow
from dpdist.errors import ColumnMismatch, SpecError, meant
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import number_of
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


@dataclass(frozen=True)
class Framed:
    """What the names and types of a table say, with what is public beside them."""

    schema: Schema
    undeclared: tuple[str, ...]  # attributes whose values are to be found
    types: pa.Schema  # of the columns of the schema
    pandas: Mapping[str, Any] | None = None  # their types in pandas, where the table is one of pandas
    is_polars: bool = False

    @property
    def days(self) -> tuple[str, ...]:
        """Columns of dates and times that are read as days since 1970, as nothing else is said of them."""
        said = {attribute.name for attribute in self.schema.attributes if attribute.dated or attribute.values}
        return tuple(field.name for field in self.types if pa.types.is_temporal(field.type) and field.name not in said)

    def read(self, table: Any) -> Any:
        """A table as a release reads it: days are integers. Raises ColumnMismatch: a column lacks."""
        if not self.days or paths_of(table) is not None:
            return table
        if is_partitioned(table):
            return table.assign(**{name: _days(table[name]) for name in self.days})
        held = to_arrow(table, what="the table")
        for name in self.days:
            place = held.schema.get_field_index(name)
            if place < 0:
                raise ColumnMismatch(f"the table: the column {name!r} is missing")
            days = held.column(place).cast(pa.timestamp("ns"), safe=False).cast(pa.date32(), safe=False)
            held = held.set_column(place, name, days.cast(pa.int32()))
        return held

    def restored(self, table: pa.Table) -> Any:
        """Released records in the types of the table: a DataFrame of pandas or Polars where it was one, else Arrow."""
        columns = []
        for field in self.types:
            values = table.column(field.name)
            if pa.types.is_dictionary(values.type):
                values = values.cast(pa.string())
            if pa.types.is_string(values.type):
                values = pc.if_else(pc.equal(values, MISSING), pa.scalar(None, pa.string()), values)
            if field.name in self.days:
                values = values.cast(pa.int32()).cast(pa.date32())
            kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
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


def _days(times: Any) -> Any:
    """Days since 1970 of a column of Dask."""
    local = times.dt.tz_convert(None) if getattr(times.dtype, "tz", None) is not None else times
    return (local - np.datetime64(0, "s")).dt.days


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
        raise SpecError(
            f"by their names these columns identify people or hold free text: {', '.join(refused)}. Leave them out: "
            f"drop={refused}, or say what they hold, such as public={{{refused[0]!r}: 'text'}}"
        )
    attributes, opened = [], []
    for field in kept:
        attribute, is_open = _attribute(field, public.get(field.name))
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

    from dpdist.data.source import TableSource, find_files, format_of
    from dpdist.errors import UnreadableFile
    from dpdist.storage.s3 import filesystem

    source = TableSource(tuple(paths))
    files = find_files(source)
    fs, _ = filesystem(files[0].path, {})
    try:
        found = ds.dataset([file.path for file in files], filesystem=fs, format=format_of(source, files)).schema
    except (pa.ArrowException, OSError):
        raise UnreadableFile(f"{files[0].path}: the types of its columns cannot be read: write Parquet files") from None
    return found.remove_metadata()


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
    if is_a.is_integer(kind) or is_a.is_date(kind) or is_a.is_timestamp(kind):
        return "integer"
    if is_a.is_floating(kind) or is_a.is_decimal(kind):
        return "number"
    return "text" if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind) else None


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
            if pa.types.is_temporal(field.type):
                said = tuple(number_of(str(end)[:10], "date") if isinstance(end, str | date) else end for end in said)
            if not (len(said) == 2 and all(isinstance(end, int | float) and not isinstance(end, bool) for end in said)):
                raise ValueError("bounds are two numbers, such as (0, 110)")
            whole = kind == "integer" and all(float(end).is_integer() for end in said)
            if whole and said[1] - said[0] < _SMALL:
                tree: dict[str, Any] = {"kind": "integer", "bounds": said, "out_of_domain": "clip", **elsewhere}
                return Attribute.model_validate({"name": name, **tree}), False
            ends = [int(end) if whole else float(end) for end in said]
            bins = int(ends[1] - ends[0] + whole) if ends[1] - ends[0] < MOST_INTEGERS else _COARSE
            return Attribute.model_validate(undeclared(name, ends, bins=max(bins, _COARSE // 2))), True
    except ValueError as error:
        text = str(error).partition("Value error, ")[2].partition(" [type")[0] or str(error)
        raise SpecError(f"public: {name}: {text}") from None
    if said is None and kind == "boolean":
        values = {"kind": "categorical", "values": ["false", "true"]}
        return Attribute.model_validate({"name": name, **values, **elsewhere}), False
    asked = kind if said is None else said
    if asked not in KINDS:
        raise SpecError(
            f"public: {name}: expected bounds such as (0, 110), a list of values, or one of {', '.join(KINDS)}; got "
            f"{said!r}"
        )
    if asked != "text" and kind == "text":
        raise SpecError(f"public: {name}: the column holds texts, which are no {asked}s: convert it first")
    return Attribute.model_validate(undeclared(name, asked)), True
