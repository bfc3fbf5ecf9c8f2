"""Reading descriptions of tables that others publish: codebooks, data dictionaries, table schemas.

Each reader gives the columns in the order of its source. None of them reads a record, but for a table that its owner
declares to be public.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dpdist.errors import SpecError
from dpdist.spec.described import Described, is_number, is_whole, parquet, text_of, words

FORMATS = (
    "Parquet (.parquet), Frictionless Table Schema, CSVW, NIST or Census data dictionary (.json, .csv), DDI-Codebook "
    "(.xml), names file of the UCI repository (.names)"
)

MOST_INVALID = 1_000
"""Integers of a range of invalid values up to which each is listed."""

_NOT_APPLICABLE = re.compile(r"N/?A\b|not applicable|missing|blank", re.IGNORECASE)
_NUMBERS = {"number", "decimal", "double", "float", "numeric"}
_WHOLE = {"integer", "int", "long", "short", "byte", "nonNegativeInteger", "positiveInteger", "year", "gYear"}


def described(path: Path, *, public: bool = False) -> tuple[str, list[Described]]:
    """What a file says about a table: its format, and the columns. The values of a table may be looked at where it is
    `public`. Raises SpecError: the file cannot be read, or is of no known format.
    """
    if not path.exists():
        raise SpecError(f"{path}: there is no such file")
    try:
        if path.suffix.lower() in (".parquet", ".pq", ".parq") or path.is_dir():
            return "a public table" if public else "Parquet types", list(parquet(path, public=public))
        if public:
            raise SpecError(f"{path}: --public reads Parquet files: write the public table as Parquet first")
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".xml":
            return "DDI-Codebook", list(_ddi(text))
        if path.suffix.lower() == ".csv":
            return "Census data dictionary", list(_census_csv(text))
        if path.suffix.lower() == ".names":
            return "UCI names file", list(_names(text))
        return _json(json.loads(text))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, ElementTree.ParseError):
        table = " (a table of records is drafted from Parquet: write it so)" if path.suffix.lower() == ".csv" else ""
        raise SpecError(f"{path}: its format is not known; expected one of {FORMATS}{table}") from None


def _json(tree: dict[str, Any]) -> tuple[str, list[Described]]:
    for resource in tree.get("resources", ())[:1]:  # a data package
        tree = resource["schema"]
    if isinstance(tree.get("fields"), list):
        return "Frictionless Table Schema", list(_frictionless(tree))
    for table in tree.get("tables", ())[:1]:
        tree = table
    if "tableSchema" in tree:
        return "CSVW", list(_csvw(tree))
    if isinstance(tree.get("variables"), dict):
        return "Census variables", list(_census_json(tree["variables"]))
    columns = list(_dictionary(tree))
    if not columns:
        raise ValueError("no columns")
    return "data dictionary", columns


def _frictionless(tree: dict[str, Any]) -> Iterator[Described]:
    absent = tuple(text for text in tree.get("missingValues", ()) if text)
    for field in tree["fields"]:
        limits, kind = field.get("constraints", {}), field.get("type", "string")
        given = field.get("categories") or limits.get("enum") or (["true", "false"] if kind == "boolean" else ())
        pairs = [(item["value"], item.get("label", "")) if isinstance(item, dict) else (item, "") for item in given]
        yield Described(
            field["name"],
            words(field.get("title"), field.get("description")),
            {str(value): str(label) for value, label in pairs} or None,
            low=text_of(limits.get("minimum")),
            high=text_of(limits.get("maximum")),
            integers=kind not in _NUMBERS,
            texts=kind not in _NUMBERS | _WHOLE,
            ordered=bool(field.get("categoriesOrdered")),
            absent=absent,
            nullable=not limits.get("required", False),
        )


def _csvw(tree: dict[str, Any]) -> Iterator[Described]:
    for column in tree["tableSchema"]["columns"]:
        if column.get("virtual"):
            continue
        kind = column.get("datatype", "string")
        facets = kind if isinstance(kind, dict) else {"base": kind}
        titles, null = column.get("titles"), column.get("null", "")
        title = next(iter(titles.values())) if isinstance(titles, dict) else titles
        title = title[0] if isinstance(title, list) else title
        choices = str(facets.get("format", "")) if facets.get("base") == "string" else ""
        plain = re.fullmatch(r"\(?([\w .-]+(?:\|[\w .-]+)+)\)?", choices)
        yield Described(
            column.get("name") or title,
            words(title, column.get("dc:description")),
            dict.fromkeys(plain[1].split("|"), "") if plain else None,
            low=text_of(facets.get("minimum", facets.get("minInclusive"))),
            high=text_of(facets.get("maximum", facets.get("maxInclusive"))),
            integers=facets.get("base") not in _NUMBERS,
            texts=facets.get("base") not in _NUMBERS | _WHOLE,
            absent=tuple(text for text in ([null] if isinstance(null, str) else null) if text),
            nullable=not column.get("required", False),
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
        absent=absent, nullable=bool(absent), nothing="not applicable",
    )  # fmt: skip


def _names(text: str) -> Iterator[Described]:
    """A names file of the UCI repository: ``name: continuous.`` or ``name: a, b, c.``; its first line is the class."""
    lines = [line.partition("|")[0].strip().removesuffix(".") for line in text.splitlines()]
    found = [(name.strip(), values.strip()) for name, colon, values in (line.partition(":") for line in lines) if colon]
    if not found:
        raise ValueError("no attributes")
    for name, values in found:
        items = None if values == "continuous" else dict.fromkeys(map(str.strip, values.split(",")), "")
        yield Described(name, items=items, integers=items is not None, absent=("?",), nullable=True)
    classes = next((line for line in lines if line and ":" not in line), "")
    if classes:
        note = "the class, the last column; TODO: the source does not name it"
        yield Described("class", note, items=dict.fromkeys(map(str.strip, classes.split(",")), ""))


def _ddi(text: str) -> Iterator[Described]:
    """Variables of a DDI-Codebook, of any version of its name space."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("a document type")
    for variable in _each(ElementTree.fromstring(text), "var"):
        yield _variable(variable)


def _variable(variable: ElementTree.Element) -> Described:
    codes = list(_each(variable, "catgry"))
    found = [(_inside(code, "catValu"), _inside(code, "labl"), code.get("missing") == "Y") for code in codes]
    ranges, items = _values(variable, "valrng")
    invalid, invalid_items = _values(variable, "invalrng")
    listed, notes = _listed(invalid)
    absent = dict.fromkeys([*(value for value, _, missing in found if missing), *invalid_items, *listed])
    low = min((end.get("min", "") for end in ranges if is_number(end.get("min", ""))), key=float, default="")
    high = max((end.get("max", "") for end in ranges if is_number(end.get("max", ""))), key=float, default="")
    kinds = {form.get("type") for form in _each(variable, "varFormat")}
    kept = {value: label for value, label, _ in found if value not in absent}
    kept |= {item: "" for item in items if item not in absent and item not in kept}
    if variable.get("intrvl") == "contin" and (low or high):
        kept = {}
    real = any(end.get("UNITS") == "REAL" for end in ranges) or variable.get("dcml", "0").strip() not in ("", "0")
    return Described(
        variable.get("name") or variable.attrib["ID"],
        words(_inside(variable, "labl"), *notes),
        kept or None,
        low,
        high,
        integers=not real and is_whole(low) and is_whole(high),
        texts="character" in kinds,
        ordered=variable.get("nature") == "ordinal",
        absent=tuple(absent),
        nullable=bool(absent or invalid),
    )


def _values(variable: ElementTree.Element, name: str) -> tuple[list[ElementTree.Element], list[str]]:
    """The ranges and the single values of the valid or invalid ones of a variable."""
    found = list(_each(variable, name))
    items = [item.get("VALUE", "") for part in found for item in _each(part, "item")]
    return [end for part in found for end in _each(part, "range")], [item for item in items if item]


def _listed(invalid: list[ElementTree.Element]) -> tuple[list[str], list[str]]:
    """The integers of ranges of invalid values, and what to say about ranges that cannot be listed."""
    listed, notes = [], []
    for end in invalid:
        low, high = end.get("min", ""), end.get("max", "")
        ends = [int(float(text)) for text in (low, high) if is_number(text) and is_whole(text)]
        if len(ends) == 2 and 0 <= ends[1] - ends[0] < MOST_INVALID:
            listed += [str(value) for value in range(ends[0], ends[1] + 1)]
        else:
            notes.append(f"TODO: values from {low or 'the least'} to {high or 'the largest'} mean missing: name them")
    return listed, notes


def _each(node: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    return (child for child in node.iter() if child.tag.rpartition("}")[2] == name)


def _inside(node: ElementTree.Element, name: str) -> str:
    """The text of a direct child."""
    found = (child for child in node if child.tag.rpartition("}")[2] == name)
    return " ".join("".join(next(found, ElementTree.Element("none")).itertext()).split())
