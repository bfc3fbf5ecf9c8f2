"""Reading descriptions of tables that others publish: codebooks, data dictionaries, table schemas.

Each reader gives the columns in the order of its source. None of them reads a record, but for a table that its owner
declares to be public.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from dpdist.errors import SpecError
from dpdist.spec import ddi
from dpdist.spec.described import LABELLED, Described, chosen, is_number, is_whole, labelled, parquet, text_of, words
from dpdist.spec.groups import DatedKind

FORMATS = (
    "Parquet (.parquet), Frictionless Table Schema, CSVW, NIST or Census data dictionary (.json, .csv), DDI-Codebook "
    "or SDMX structure (.xml), Stata or SPSS file (.dta, .sav), names file of the UCI repository (.names)"
)

_NOT_APPLICABLE = re.compile(r"N/?A\b|not applicable|missing|blank", re.IGNORECASE)
_NUMBERS = {"number", "decimal", "double", "float", "numeric"}
_DATED: dict[str, DatedKind] = {"date": "date", "datetime": "datetime", "dateTime": "datetime"}
_WHOLE = {"integer", "int", "long", "short", "byte", "nonNegativeInteger", "positiveInteger", "year", "gYear"}


def described(source: str, *, public: bool = False, table: str | None = None) -> tuple[str, list[Described]]:
    """What a file says about a table: its format, and the columns. The values of a table may be looked at where it is
    `public`; in a store a table is Parquet. `table` is one of several that a source describes. Raises SpecError: the
    file cannot be read, is of no known format, or describes several tables.
    """
    path = Path(source)
    if "://" not in source and not path.exists():
        raise SpecError(f"{path}: there is no such file")
    kind = path.suffix.lower()
    if "://" in source or kind in (".parquet", ".pq", ".parq") or path.is_dir():
        return "a public table" if public else "Parquet types", list(parquet(source, public=public))
    if public:
        raise SpecError(f"{path}: --public reads Parquet files: write the public table as Parquet first")
    try:
        if kind in LABELLED:
            return "Stata or SPSS file", list(labelled(path))
        if kind == ".xml":
            root = ddi.tree(path)
            if ddi.is_structure(root):
                return "SDMX structure", list(ddi.variables_of_structure(root, path, table=table))
            return "DDI-Codebook", list(ddi.variables_of_codebook(root, path, table=table))
        if kind == ".csv":
            return "Census data dictionary", list(_census_csv(_text(path)))
        if kind == ".names":
            return _names(_text(path))
        return _json(json.loads(path.read_text(encoding="utf-8-sig")), path, table)
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        records = " (a table of records is drafted from Parquet: write it so)" if kind == ".csv" else ""
        raise SpecError(f"{path}: its format is not known; expected one of {FORMATS}{records}") from None


def _text(path: Path) -> str:
    """A text in UTF-8, or else in Windows-1252, as older dictionaries are."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _json(tree: dict[str, Any], path: Path, table: str | None) -> tuple[str, list[Described]]:
    if isinstance(tree.get("resources"), list):  # a data package
        named = {str(one.get("name") or one.get("path")): one for one in tree["resources"] if one.get("schema")}
        first = next(iter(named.items()), None)
        if table is None and first and all(one["schema"] == first[1]["schema"] for one in named.values()):
            named = dict([first])  # parts of one table
        tree = _resolved(chosen(named, table, path)["schema"], path)
    if isinstance(tree.get("fields"), list):
        return "Frictionless Table Schema", list(_frictionless(tree))
    if isinstance(tree.get("tables"), list):
        tree = chosen({str(one.get("url")): one for one in tree["tables"]}, table, path)
    if "tableSchema" in tree:
        return "CSVW", list(_csvw(_resolved(tree["tableSchema"], path)))
    if isinstance(tree.get("variables"), dict):
        return "Census variables", list(_census_json(tree["variables"]))
    columns = list(_dictionary(tree))
    if not columns:
        raise ValueError("no columns")
    return "data dictionary", columns


def _resolved(schema: dict[str, Any] | str, path: Path) -> dict[str, Any]:
    """A schema, which may be given by a path below the folder of the file that names it."""
    if not isinstance(schema, str):
        return schema
    place = PurePosixPath(schema)
    if "://" in schema or place.is_absolute() or ".." in place.parts or not (path.parent / place).is_file():
        raise SpecError(f"{path}: its schema is in {schema}: fetch that, and draft from it")
    found: dict[str, Any] = json.loads((path.parent / place).read_text(encoding="utf-8-sig"))
    return found


_SIGNS = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "M": "%m", "dd": "%d", "d": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
"""What formats of dates have in CSVW, and as `strptime` has it."""

_TRUE, _FALSE = ("true", "True", "TRUE", "1"), ("false", "False", "FALSE", "0")


def _frictionless(tree: dict[str, Any]) -> Iterator[Described]:
    for field in tree["fields"]:
        limits, kind = field.get("constraints", {}), field.get("type", "string")
        absent = [_item(one)[0] for one in field.get("missingValues", tree.get("missingValues", ()))]
        pairs = [_item(one) for one in field.get("categories") or limits.get("enum") or ()]
        aliases: dict[str, str] = {}
        if kind == "boolean" and not pairs:
            spellings = (field.get("trueValues", _TRUE), field.get("falseValues", _FALSE))
            pairs = [(str(texts[0]), "") for texts in spellings]
            aliases = {str(text): str(texts[0]) for texts in spellings for text in texts[1:]}
        yield Described(
            field["name"],
            words(field.get("title"), field.get("description")),
            dict(pairs) or None,
            low=text_of(limits.get("minimum")),
            high=text_of(limits.get("maximum")),
            integers=kind not in _NUMBERS,
            texts=kind not in _NUMBERS | _WHOLE,
            dated=_DATED.get(kind),
            format=str(field.get("format") or "") if "%" in str(field.get("format")) else "",
            ordered=bool(field.get("categoriesOrdered")),
            absent=tuple(text for text in absent if text),
            nullable=not limits.get("required", False),
            aliases=aliases,
            label=words(field.get("title")),
        )


def _item(item: Any) -> tuple[str, str]:
    """A value and its label; the second version of the standard writes some as objects."""
    return (str(item["value"]), str(item.get("label", ""))) if isinstance(item, dict) else (str(item), "")


def _csvw(tree: dict[str, Any]) -> Iterator[Described]:
    for column in tree["columns"]:
        if column.get("virtual"):
            continue
        kind = column.get("datatype", "string")
        facets = kind if isinstance(kind, dict) else {"base": kind}
        titles, null = column.get("titles"), column.get("null", "")
        title = next(iter(titles.values())) if isinstance(titles, dict) else titles
        title = title[0] if isinstance(title, list) else title
        base, choices = facets.get("base", "string"), str(facets.get("format", ""))
        plain = re.fullmatch(r"\(?([\w .-]+(?:\|[\w .-]+)+)\)?", choices) if base in ("string", "boolean") else None
        values = plain[1].split("|") if plain else ["true", "false"] if base == "boolean" else []
        yield Described(
            title or unquote(column["name"]),  # the header of a file has the titles
            words(column.get("dc:description")),
            dict.fromkeys(values, "") or None,
            low=text_of(facets.get("minimum", facets.get("minInclusive"))),
            high=text_of(facets.get("maximum", facets.get("maxInclusive"))),
            integers=base not in _NUMBERS,
            texts=base not in _NUMBERS | _WHOLE,
            dated=_DATED.get(base),
            format=re.sub("|".join(_SIGNS), lambda sign: _SIGNS[sign[0]], choices) if base in _DATED else "",
            absent=tuple(text for text in ([null] if isinstance(null, str) else null) if text),
            nullable=not column.get("required", False),
            aliases={"1": "true", "0": "false"} if base == "boolean" and not plain else {},
        )


def _dictionary(tree: dict[str, Any]) -> Iterator[Described]:
    """Name to description and values: codes with labels, ``min`` and ``max``, and codes for what does not apply."""
    for name, about in tree.items():
        if not isinstance(about, dict):
            continue
        found = about.get("values", about)
        if isinstance(found, list):
            found = dict.fromkeys(map(str, found), "")
        items = {
            str(code): str(label) for code, label in found.items()
            if code not in ("min", "max", "description", "link", "values", "details", "dtype", "kind")
        }  # fmt: skip
        low, high = (text_of(found.get(end)) for end in ("min", "max"))
        absent = tuple(code for code, label in items.items() if not is_number(code) and _NOT_APPLICABLE.match(label))
        yield Described(
            name,
            words(about.get("description")),
            {code: label for code, label in items.items() if code not in absent} or None,
            low,
            high,
            integers=is_whole(low) and is_whole(high),
            texts=True,
            absent=absent,
            nullable=bool(absent),
            nothing="not applicable",
            absent_where=words(*(items[code] for code in absent)),
        )


def _census_json(variables: dict[str, Any]) -> Iterator[Described]:
    """``variables.json`` of the Census Bureau's API: items and ranges."""
    for name, about in variables.items():
        values = about.get("values", {})
        ranges = [(r["min"], r["max"]) for r in values.get("range", ()) if is_number(r["min"]) and is_number(r["max"])]
        if not values:
            continue
        yield _of_ranges(name, about.get("label", ""), values.get("item", {}), ranges)


def _census_csv(text: str) -> Iterator[Described]:
    """The CSV form of a PUMS data dictionary: lines NAME and VAL."""
    found: dict[str, tuple[str, dict[str, str], list[tuple[str, str]]]] = {}
    for line in csv.reader(text.splitlines()):
        if line[:1] == ["NAME"]:
            found.setdefault(line[1], (line[4], {}, []))
        elif line[:1] == ["VAL"] and line[1] in found:
            _, items, ranges = found[line[1]]
            if line[4] == line[5] or not is_number(line[4]):
                items[line[4]] = line[6]
            else:
                ranges.append((line[4], line[5]))
    if not found:
        raise ValueError("no lines NAME")
    for name, (label, items, ranges) in found.items():
        yield _of_ranges(name, label, items, ranges)


def _of_ranges(name: str, label: str, items: dict[str, str], ranges: list[tuple[str, str]]) -> Described:
    """A column of codes and ranges; a code of b's, or of no number beside a range, stands for what does not apply."""
    absent = tuple(code for code in items if re.fullmatch("b+", code) or (ranges and not is_number(code)))
    low = min((low for low, _ in ranges), key=float, default="")
    high = max((high for _, high in ranges), key=float, default="")
    kept = {code: text for code, text in items.items() if code not in absent}
    whole, padded = is_whole(low) and is_whole(high), ""
    if re.match(r"0\d", low):
        padded = (
            f"TODO: the source writes {low} with zeros: if the table does too, declare its codes as texts in `values`"
        )
    return Described(
        name, words(label, padded), kept or None, low, high, whole,
        absent=absent, nullable=bool(absent), nothing="not applicable", label=words(label),
        absent_where=words(*(items[code] for code in absent)),
    )  # fmt: skip


def _names(text: str) -> tuple[str, list[Described]]:
    """A names file of the UCI repository: ``name: continuous.`` or ``name: a, b, c.``; its first line is the class."""
    lines = [line.partition("|")[0].strip().removesuffix(".") for line in text.splitlines()]
    found = [(name.strip(), values.strip()) for name, colon, values in (line.partition(":") for line in lines) if colon]
    if not found:
        raise ValueError("no attributes")
    columns, ignored = [], []
    for name, values in found:
        kind = values.lower()
        if kind == "ignore":
            ignored.append(name)
        elif kind in ("continuous", "real", "numeric", "integer", "int"):
            columns.append(Described(name, integers=kind.startswith("int"), absent=("?",), nullable=True))
        elif re.fullmatch(r"discrete(\s+\d+)?", kind):
            columns.append(Described(name, values, texts=True, absent=("?",), nullable=True))
        else:
            items = dict.fromkeys(map(str.strip, values.split(",")), "")
            columns.append(Described(name, items=items, absent=("?",), nullable=True))
    classes = next((line for line in lines if line and ":" not in line), "")
    if classes:
        note = "the class, the last column; TODO: the source does not name it"
        columns.append(Described("class", note, items=dict.fromkeys(map(str.strip, classes.split(",")), "")))
    left_out = f"; without {', '.join(ignored)}, which it says to ignore" if ignored else ""
    return f"UCI names file{left_out}", columns
