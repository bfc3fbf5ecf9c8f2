"""What a public description says about a column. A Parquet file has its types, and a public table its values, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from dpdist.errors import SpecError
from dpdist.spec.groups import DatedKind
from dpdist.storage.files import columns_of_folders, is_passed_over, storage_errors
from dpdist.storage.s3 import filesystem

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")

NAMES_RECORDS = "TODO: it names records or their groups: leave it out"
"""What a draft says about an identifier."""

MOST_CODES = 1_000
"""Distinct integers of a public table up to which they may be codes."""

_MORE = "TODO: add values, or declare bounds: {} occur once, so another table may hold others, which are refused"

_EXACT = 1 << 53  # floats below are exact integers where they are whole

_IDENTIFIER = re.compile(
    r"\b(?:[Ii]dentifiers?|[Ii]dentification|IDs?|(?:[Ss]erial|[Rr]ecord|[Ss]equence) ?(?:[Nn]umber|[Nn]o))\b"
)


@dataclass(frozen=True)
class Described:
    """What a source says about one column."""

    name: str
    note: str = ""  # what it is in words
    items: Mapping[str, str] | None = None  # code to label, in order; labels may be empty
    low: str = ""  # low, high: ends of a range, empty where none exists
    high: str = ""
    integers: bool = True  # whether a range is of integers, or numbers without one are
    texts: bool = False  # whether values are texts, so that a column without codes has no range
    dated: DatedKind | None = None  # whether values are days or moments, as are the ends of a range then
    format: str = ""  # how days or moments are written, for `Attribute.format`
    ordered: bool = False  # whether the codes are in an order
    absent: tuple[str, ...] = ()  # texts that mean missing
    nullable: bool = False  # whether values may be missing
    nothing: str = "missing"  # what a missing value is called; empty where records without a value are left out
    aliases: Mapping[str, str] = field(default_factory=dict)  # other spellings of codes
    others: str = ""  # what becomes of other values: clip, or a category of that name; empty where they are refused
    label: str = ""  # what the column is called for people
    absent_where: str = ""  # whose value is missing, in the source's words

    @property
    def names_records(self) -> bool:
        """Whether the source calls it an identifier, and has no labels for its codes."""
        coded = len([label for label in (self.items or {}).values() if label]) > 1
        return not coded and (self.name.lower() == "id" or _IDENTIFIER.search(f"{self.name} {self.note}") is not None)


def chosen(tables: Mapping[str, T], name: str | None, path: Path, about: Mapping[str, str] | None = None) -> T:
    """The one of the tables that a source describes, by its name. Raises SpecError: it has no such table, or several
    and none is named.
    """
    if name in tables:
        return tables[str(name)]
    if name is None and len(tables) == 1:
        return next(iter(tables.values()))
    listed = ", ".join(f"{one} ({text})" if (text := (about or {}).get(one)) else one for one in tables)
    if not tables:
        raise SpecError(f"{path} describes the columns of no table")
    found = "several tables" if name is None else f"no table {name!r}"
    raise SpecError(f"{path} describes {found}: choose --table of {listed}")


def words(*texts: Any) -> str:
    """What a source says about a column, in one line."""
    return ": ".join(" ".join(str(text).split()) for text in texts if text)


def text_of(value: Any) -> str:
    """A value as text, empty where none exists."""
    return "" if value is None else str(value)


def is_number(text: str) -> bool:
    """Whether a text is a number in decimal digits."""
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text.strip()) is not None


def is_whole(text: str) -> bool:
    """Whether a text is an integer, or empty."""
    return not text or re.fullmatch(r"[-+]?\d+(\.0*)?", text.strip()) is not None


def parquet(address: str, *, public: bool) -> Iterator[Described]:
    """The columns of a file or folder, local or in a store; of a public table with the values of short ones and the
    ranges of numbers. Raises SpecError: a name stands twice, the types of files do not go together, or it
    is not Parquet.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    with storage_errors(address):
        fs, root = filesystem(address, {})
        files = {name: PurePosixPath(name).relative_to(root) for name in sorted(fs.find(root))}
    files = {name: place for name, place in files.items() if not is_passed_over(place.parts)}
    try:
        parts = list(ds.dataset(list(files), filesystem=fs, format="parquet").get_fragments())
        types = _together({part.path: part.physical_schema for part in parts})
    except (pa.ArrowException, OSError) as error:
        if "duplicate field names" in str(error):
            raise SpecError(f"{address}: two columns have the same name: rename one") from None
        raise SpecError(f"{address} is not Parquet, or is damaged: write or copy it again") from None
    table = ds.dataset(list(files), schema=types, filesystem=fs, format="parquet")
    for one in types:
        column, kind = _typed(one)
        if public and not column.note.endswith(_HELD_BY_NONE):
            column = _looked_at(column, kind, table.to_table(columns=[one.name]).column(0))
        yield column
    folders: dict[str, set[str | None]] = {}
    for place in files.values():
        for name, value in columns_of_folders(place):
            folders.setdefault(name, set()).add(value)
    for name in folders.keys() - set(types.names):
        values = sorted(value for value in folders[name] if value is not None) if public else []
        note = f"from the names of the folders, {name}=…"
        yield Described(
            name, note, dict.fromkeys(values, "") or None, texts=True, nullable=public and None in folders[name]
        )


def _together(found: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns of all files, each of a type that holds those of the files. Raises SpecError."""
    import pyarrow as pa

    fields: dict[str, pa.Field] = {}
    for path, types in found.items():
        for new in types:
            known = fields.setdefault(new.name, new)
            if known.type.equals(new.type):
                continue
            one, other = (f.with_type(getattr(f.type, "value_type", f.type)) for f in (known, new))
            both = [pa.schema([one]), pa.schema([other])]
            try:
                fields[new.name] = pa.unify_schemas(both, promote_options="permissive").field(0)
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                raise SpecError(
                    f"{path}: the column {new.name!r} holds {other.type}, and {one.type} in other files: write all "
                    "files with one type"
                ) from None
    return pa.schema([one.with_nullable(True) if len(found) > 1 else one for one in fields.values()])


_HELD_BY_NONE = "; TODO: no attribute holds this type: convert it, or leave the column out"


def _typed(field: pa.Field) -> tuple[Described, pa.DataType]:
    """What the type of a column says, and the type of its values."""
    import pyarrow as pa

    is_a = pa.types
    kind = field.type.value_type if is_a.is_dictionary(field.type) else field.type
    whole = is_a.is_integer(kind) or (is_a.is_decimal(kind) and kind.scale <= 0)
    number = whole or is_a.is_floating(kind) or is_a.is_decimal(kind)
    clock = is_a.is_timestamp(kind) and kind.tz is None
    dated: DatedKind | None = "date" if is_a.is_date(kind) else "datetime" if clock else None
    is_named = is_a.is_boolean(kind) or dated is not None or is_a.is_null(kind)
    is_text = is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind)
    note = f"{field.type}" if number or is_named or is_text else f"{field.type}{_HELD_BY_NONE}"
    items = dict.fromkeys(("false", "true"), "") if is_a.is_boolean(kind) else None
    described = Described(
        field.name, note, items, integers=whole or not number, texts=not number, dated=dated, nullable=field.nullable
    )
    return described, kind


def _looked_at(column: Described, kind: pa.DataType, held: pa.ChunkedArray) -> Described:
    """A column of a public table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = held.cast(kind) if pa.types.is_dictionary(held.type) else held
    present = values.drop_null()
    if pa.types.is_decimal(kind) and column.integers:
        try:
            present = present.cast(pa.int64())
        except pa.ArrowInvalid:  # larger ones
            return _ranged(replace(column, nullable=len(present) < len(held)), present)
    if column.dated is not None:
        whole = present.cast(pa.date32()) if column.dated == "date" else pc.floor_temporal(present, unit="second")
        return _ranged(replace(column, nullable=len(present) < len(held)), whole)
    if pa.types.is_floating(kind):
        present = present.filter(pc.invert(pc.is_nan(present)))
    column = replace(column, nullable=len(present) < len(held))
    if column.items is not None:
        return column
    if pa.types.is_floating(kind):
        present = present.filter(pc.is_finite(present)).cast(pa.float64())
        if not pc.all(pc.and_(pc.equal(present, pc.trunc(present)), pc.less(pc.abs(present), _EXACT))).as_py():
            return _ranged(column, present)
        if len(present):
            present = present.cast(pa.int64())
            column = replace(column, note=f"{column.note}, of whole numbers", integers=True)
    elif not column.texts and not column.integers:
        return _ranged(column, present)
    found = sorted(present.unique().to_pylist())
    gaps = len(found) < 0.9 * (found[-1] - found[0] + 1) if found and not column.texts else False
    if not column.texts and not (gaps and len(found) <= min(MOST_CODES, len(held) / 10)):  # few, with gaps: codes
        column = _ranged(column, present)
    elif pa.types.is_dictionary(held.type) and held.type.ordered:
        found = held.unify_dictionaries().chunk(0).dictionary.to_pylist() if held.num_chunks else []
        column = replace(column, items=dict.fromkeys(map(str, found), ""), ordered=True)
    else:
        column = replace(column, items=dict.fromkeys(map(str, found), ""))
        if gaps and (once := pc.sum(pc.equal(present.value_counts().field("counts"), 1)).as_py()):
            column = replace(column, note=f"{column.note}; {_MORE.format(once)}")
    if not pa.types.is_floating(kind) and len(found) > max(MOST_CODES, len(held) / 3):
        column = replace(column, note=f"{column.note}; {NAMES_RECORDS}")
    return column


def _ranged(column: Described, present: pa.ChunkedArray) -> Described:
    """With its range, which the real numbers of another table will not keep to the last digit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.min_max(present)
    low, high = (end.cast(pa.string()).as_py() if column.dated else text_of(end.as_py()) for end in found.values())
    return replace(column, low=low or "", high=high or "", others="" if column.integers else "clip")


MOST_INVALID = 1_000
"""Integers of a range of invalid values up to which each is listed."""

LABELLED = (".dta", ".sav", ".zsav")

_WHOLE_FORMAT = re.compile(r"F\d+(\.0)?|%\d+\.0f")
_DATE = re.compile(r"[AES]?DATE\d+|%td.*")
_DATETIME = re.compile(r"(YMDHMS|DATETIME)\d+.*|%t[cC].*")


def labelled(path: Path) -> Iterator[Described]:
    """The variables of a file. Raises SpecError: pyreadstat is not installed, or cannot read the file."""
    try:
        import pyreadstat  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise SpecError(f"{path}: Stata and SPSS files need pyreadstat: pip install 'dpdist[readers]'") from None
    is_stata = path.suffix.lower() == ".dta"
    try:
        read = pyreadstat.read_dta if is_stata else pyreadstat.read_sav
        _, about = read(str(path), metadataonly=True, user_missing=True)
    except (pyreadstat.ReadstatError, OSError):
        raise SpecError(f"{path} is no Stata or SPSS file, or is damaged: write or copy it again") from None
    for name, label in zip(about.column_names, about.column_labels, strict=True):
        yield _variable(name, label, about)


def _variable(name: str, label: str | None, about: Any) -> Described:
    kind, form = about.readstat_variable_types[name], str(about.original_variable_types[name])
    is_text, labels = kind == "string", about.variable_value_labels.get(name, {})
    absent, notes = [_code(value) for value in about.missing_user_values.get(name, ())], []
    for ends in about.missing_ranges.get(name, ()):
        low, high = ends["lo"], ends["hi"]
        if low == high:
            absent.append(_code(low))
        elif not is_text and float(low).is_integer() and float(high).is_integer() and high - low < MOST_INVALID:
            absent += map(str, range(int(low), int(high) + 1))
        else:
            notes.append(f"TODO: values from {low} to {high} mean missing: name them")
    lettered = [key for key in labels if not is_text and isinstance(key, str)]  # the missing values .a to .z of Stata
    items = {_code(key): str(text) for key, text in labels.items() if key not in lettered}
    kept = {code: text for code, text in items.items() if code not in absent}
    if kept and about.variable_measure.get(name) == "scale":
        notes.append("TODO: values with labels, on a scale: list those that mean missing under `missing_values`")
        notes.append(", ".join(f"{code} = {text}" for code, text in kept.items()))
        kept = {}
    return Described(
        name,
        words(label, *notes),
        kept or None,
        integers=kind.startswith("int") or _WHOLE_FORMAT.fullmatch(form) is not None,
        texts=is_text,
        ordered=about.variable_measure.get(name) == "ordinal",
        dated="date" if _DATE.fullmatch(form) else "datetime" if _DATETIME.fullmatch(form) else None,
        absent=tuple(dict.fromkeys(absent)),
        nullable=True,
    )


def _code(value: Any) -> str:
    """A value as text; whole numbers without a fraction."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
