"""Columns that XML describes.

Variables of a DDI-Codebook of any version, also as NESSTAR and the IHSN write it; dimensions and attributes of an SDMX
structure message (SDMX-ML 2.0 to 3.0), with the codes of their lists.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from html.entities import name2codepoint
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from dpdist.errors import SpecError
from dpdist.spec.described import MOST_INVALID, Described, chosen, is_number, is_whole, words
from dpdist.spec.groups import DatedKind

MOST_BYTES = 1 << 26
"""Largest codebook that is read."""

_DECLARED = re.compile(rb"<\?xml[^>]*encoding=[\"']([\w.-]+)")
_ENCODINGS = re.compile(
    r"utf-?(8|16)(-?sig|-?le|-?be)?|us-ascii|(iso-?8859|latin|windows|cp|koi8|mac)[\w-]*|shift_jis|euc-\w+|gb\w+|big5",
    re.IGNORECASE,
)
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def variables_of_codebook(root: Element, path: Path, *, table: str | None) -> Iterator[Described]:
    """The variables of a codebook, of one `table` where it describes several files. Raises SpecError: there are several
    and none is chosen, or there is no variable.
    """
    found = root.findall(".//{*}var")
    if not found:
        raise SpecError(
            f"{path}: <{_name(root)}> has no `var` of DDI-Codebook; other XML, such as DDI-Lifecycle, is not read"
        )
    files = dict.fromkeys(name for variable in found for name in variable.get("files", "").split())
    if len(files) > 1 or table is not None:
        titles = {file.get("ID", ""): _text(file.find(".//{*}fileName")) for file in root.iterfind(".//{*}fileDscr")}
        named = {titles[name]: name for name in files if titles.get(name)} | {name: name for name in files}
        place = named.get(str(table)) or chosen(dict(zip(files, files, strict=True)), table, path, titles)
        found = [variable for variable in found if place in variable.get("files", place).split()]
    yield from map(_variable, found)


def tree(path: Path) -> Element:
    """The tree of an XML file in its declared encoding. A document type is passed over: nothing outside is read, and
    names of HTML stand for their characters. Raises SpecError: the encoding is not known, or entities are declared.
    """
    if path.stat().st_size > MOST_BYTES:
        raise SpecError(f"{path} has more than {MOST_BYTES >> 20} MiB: it is no codebook")
    data = path.read_bytes()
    declared = _DECLARED.match(data)
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    encoding = encoding or (declared[1].decode() if declared else "utf-8")
    if _ENCODINGS.fullmatch(encoding) is None:
        raise SpecError(f"{path}: its encoding {encoding!r} is not known: write it in UTF-8")
    try:
        text = data.decode(encoding)
        if "<!ENTITY" in text:
            raise SpecError(f"{path} has <!ENTITY: write it without entities of its own, in comments too")
        parser = ElementTree.XMLParser()
        parser.entity.update({name: chr(code) for name, code in name2codepoint.items()})
        return ElementTree.fromstring(text, parser)
    except LookupError:
        raise SpecError(f"{path}: its encoding {encoding!r} is not known: write it in UTF-8") from None
    except (UnicodeDecodeError, ElementTree.ParseError):
        raise SpecError(f"{path} is no XML in {encoding}: write it again, or correct its declaration") from None


def _dated(form: Element) -> DatedKind | None:
    """What a format says of days or moments: the standard has one category for both."""
    category = form.get("category")
    if category == "dateTime" or (category == "date" and "hh" in form.get("formatname", "")):
        return "datetime"
    return "date" if category == "date" else None


def _variable(variable: Element) -> Described:
    codes = variable.findall(".//{*}catgry")
    found = [(_inside(code, "catValu"), _inside(code, "labl"), code.get("missing") == "Y") for code in codes]
    ranges, items = _values(variable, "valrng")
    invalid, invalid_items = _values(variable, "invalrng")
    listed, notes = _listed(invalid)
    forms = variable.findall(".//{*}varFormat")
    kinds = [form.get("type", "") for form in forms]
    absent = dict.fromkeys([*(value for value, _, missing in found if missing), *invalid_items, *listed])
    kept = {value: label for value, label, _ in found if value not in absent}
    kept |= {item: "" for item in items if item not in absent and item not in kept}
    if "numeric" in kinds and (numbers := _without_zeros(kept)) is not None:
        notes += ["the source writes these numbers with zeros"] * (numbers.keys() != kept.keys())
        kept = numbers
    low = min((end.get("min", "") for end in ranges if is_number(end.get("min", ""))), key=float, default="")
    high = max((end.get("max", "") for end in ranges if is_number(end.get("max", ""))), key=float, default="")
    if _covered(low, high, kept):
        low = high = ""
    elif variable.get("intrvl") == "contin" and (low or high):
        kept = {code: label for code, label in kept.items() if label}
    decimals = variable.get("dcml", "").strip()
    real = decimals != "0" if decimals else any(end.get("UNITS") == "REAL" for end in ranges)
    return Described(
        variable.get("name") or variable.get("ID") or "a variable without a name",
        words(_inside(variable, "labl"), *notes),
        kept or None,
        low,
        high,
        integers=not real and is_whole(low) and is_whole(high),
        texts="character" in kinds,
        dated=next((kind for kind in map(_dated, forms) if kind), None),
        ordered=variable.get("nature") == "ordinal",
        absent=tuple(absent),
        nullable=bool(absent or invalid),
        label=words(_inside(variable, "labl")),
        absent_where=words(*(label for _, label, missing in found if missing)),
    )


def _without_zeros(codes: dict[str, str]) -> dict[str, str] | None:
    """The codes of a numeric variable as integers; None where some are not, or would be the same."""
    if not all(re.fullmatch(r"-?\d+", code) for code in codes):
        return None
    found = {str(int(code)): label for code, label in codes.items()}
    return found if len(found) == len(codes) else None


def _covered(low: str, high: str, codes: dict[str, str]) -> bool:
    """Whether each integer of a range is a code with a label, so that the variable is one of categories."""
    if not (codes and low and high and is_whole(low) and is_whole(high)) or not all(codes.values()):
        return False
    first, last = int(float(low)), int(float(high))
    return last - first < len(codes) and all(str(number) in codes for number in range(first, last + 1))


def _values(variable: Element, name: str) -> tuple[list[Element], list[str]]:
    """The ranges and the single values of the valid or invalid ones of a variable."""
    found = variable.findall(f".//{{*}}{name}")
    items = [item.get("VALUE", "") for part in found for item in part.iterfind(".//{*}item")]
    return [end for part in found for end in part.iterfind(".//{*}range")], [item for item in items if item]


def _listed(invalid: list[Element]) -> tuple[list[str], list[str]]:
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


def _each(node: Iterable[Element], *names: str) -> Iterator[Element]:
    """Those of the nodes that have one of the names, in any name space."""
    return (one for one in node if _name(one) in names)


def _name(node: Element) -> str:
    return node.tag.rpartition("}")[2]


def _inside(node: Element, name: str) -> str:
    """The text of a direct child."""
    return _text(node.find(f"{{*}}{name}"))


def _text(node: Element | None) -> str:
    return "" if node is None else " ".join("".join(node.itertext()).split())


# --- SDMX -------------------------------------------------------------------------------------------------------------

_COMPONENTS = ("Dimension", "TimeDimension", "Attribute", "PrimaryMeasure", "Measure")
_NUMBERS = ("Decimal", "Double", "Float")
_WHOLE = ("Integer", "Long", "Short", "BigInteger", "Count")


def is_structure(root: Element) -> bool:
    """Whether a tree is a structure message."""
    return _name(root) == "Structure" and any("sdmx" in part.tag for part in root.iter())


def variables_of_structure(root: Element, path: Path, *, table: str | None) -> Iterator[Described]:
    """The components of one data structure, in their order; `table` is the id of one of several. Raises SpecError."""
    lists = {str(one.get("id")): _codes(one) for one in _each(root.iter(), "Codelist", "CodeList")}
    concepts = {str(one.get("id")): _titled(one) for one in root.iterfind(".//{*}Concept")}
    found = {str(one.get("id")): one for one in _each(root.iter(), "DataStructure", "KeyFamily")}
    for part in _each(chosen(found, table, path).iter(), *_COMPONENTS):
        refs = {_name(one): _reference(one) for one in part.iter() if _reference(one)}
        concept = part.get("conceptRef") or refs.get("ConceptIdentity", "")
        if not concept:  # a dimension that an attribute goes with
            continue
        name = part.get("id") or concept
        codes = lists.get(part.get("codelist") or refs.get("Enumeration", ""))
        form = part.find(".//{*}TextFormat")
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
    by_id = [str(one.get("id")) for one in node.iterfind("{*}Ref")]
    urn = next((text for one in (node, *node) if (text := (one.text or "").strip()).startswith("urn:sdmx")), "")
    listed, _, item = urn.rpartition(":")[2].partition(").")
    return by_id[0] if by_id else item or listed.partition("(")[0]


def _codes(codelist: Element) -> dict[str, str]:
    return {str(code.get("id") or code.get("value")): _titled(code) for code in codelist.iterfind("{*}Code")}


def _titled(node: Element) -> str:
    """The first name or description of an item."""
    return next((" ".join((one.text or "").split()) for one in _each(node, "Name", "Description")), "")
