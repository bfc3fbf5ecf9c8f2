"""Variables of a DDI-Codebook."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from dpdist.spec.described import Described, is_number, is_whole, words

MOST_INVALID = 1_000
"""Integers of a range of invalid values up to which each is listed."""


def ddi(text: str) -> Iterator[Described]:
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
