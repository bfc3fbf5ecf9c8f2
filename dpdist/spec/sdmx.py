"""Dimensions and attributes of an SDMX structure message (SDMX-ML 2.0 to 3.0), with the codes of their lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from dpdist.spec.described import Described, chosen, words

_COMPONENTS = ("Dimension", "TimeDimension", "Attribute", "PrimaryMeasure", "Measure")
_NUMBERS = ("Decimal", "Double", "Float")
_WHOLE = ("Integer", "Long", "Short", "BigInteger", "Count")


def _name(node: Element) -> str:
    return node.tag.rpartition("}")[2]


def is_structure(root: Element) -> bool:
    """Whether a tree is a structure message."""
    return _name(root) == "Structure" and any("sdmx" in part.tag for part in root.iter())


def variables(root: Element, path: Path, *, table: str | None) -> Iterator[Described]:
    """The components of one data structure, in their order; `table` is the id of one of several. Raises SpecError."""
    lists = {str(one.get("id")): _codes(one) for one in root.iter() if _name(one) in ("Codelist", "CodeList")}
    concepts = {str(one.get("id")): _text(one) for one in root.iter() if _name(one) == "Concept"}
    found = [one for one in root.iter() if _name(one) in ("DataStructure", "KeyFamily")]
    structure = chosen({str(one.get("id")): one for one in found}, table, path)
    for part in (one for one in structure.iter() if _name(one) in _COMPONENTS):
        refs = {_name(one): _reference(one) for one in part.iter() if _reference(one)}
        concept = part.get("conceptRef") or refs.get("ConceptIdentity", "")
        if not concept:  # a dimension that an attribute goes with
            continue
        name = part.get("id") or concept
        codes = lists.get(part.get("codelist") or refs.get("Enumeration", ""))
        form = next((one for one in part.iter() if _name(one) == "TextFormat"), None)
        kind = "" if form is None else str(form.get("textType") or "")
        yield Described(
            name,
            words(concepts.get(concept), "" if codes or kind else "TODO: the structure names no codes here"),
            codes,
            low="" if form is None else str(form.get("minValue") or ""),
            high="" if form is None else str(form.get("maxValue") or ""),
            integers=kind not in _NUMBERS and "Measure" not in _name(part),
            texts=kind not in _NUMBERS + _WHOLE and "Measure" not in _name(part),
            nullable=_name(part) == "Attribute",
        )


def _reference(node: Element) -> str:
    """What a node refers to, by a `Ref` or a URN: AGENCY:LIST(1.0), or AGENCY:SCHEME(1.0).CONCEPT."""
    by_id = [str(one.get("id")) for one in node if _name(one) == "Ref"]
    urn = next((text for one in (node, *node) if (text := (one.text or "").strip()).startswith("urn:sdmx")), "")
    listed, _, item = urn.rpartition(":")[2].partition(").")
    return by_id[0] if by_id else item or listed.partition("(")[0]


def _codes(codelist: Element) -> dict[str, str]:
    return {str(code.get("id") or code.get("value")): _text(code) for code in codelist if _name(code) == "Code"}


def _text(node: Element) -> str:
    """The first name or description of an item."""
    return next((" ".join((one.text or "").split()) for one in node if _name(one) in ("Name", "Description")), "")
