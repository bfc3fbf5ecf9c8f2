"""Drafts of schemas from public descriptions of a table, with comments that say what was taken from where."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path, PurePosixPath
from textwrap import wrap
from typing import Any

from dpdist.errors import SpecError
from dpdist.spec.codebooks import described
from dpdist.spec.described import NAMES_RECORDS, Described, is_number
from dpdist.spec.groups import DAY, LARGEST_INTEGER, MAX_CARDINALITY, DatedKind, number_of, text_of
from dpdist.spec.strict_yaml import write_yaml

MOST_VALUES = 2_000
"""Integers in a range from which on a draft has bins."""

BINS = 50
"""Bins of a draft, where it has some."""

_UNDECIDED = {
    "categorical": "TODO: declare `values`, or kind: integer and `bounds`; the source has neither",
    "integer": "TODO: declare `bounds`, or kind: categorical and `values`; the source has neither",
    "number": "TODO: declare `bounds`, and `bins` such as {count: 50}; whole numbers are kind: integer, which needs "
    f"no bins up to {MOST_VALUES:,} values",
}


def left_to_decide(text: str) -> list[str]:
    """The comments marked TODO in a schema file, each with its line and the attribute below it."""
    lines, found = text.splitlines(), []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#") and "TODO" in line:
            named = (re.match(r"\s*-\s*\{?\s*name: *([^,}]+)", below) for below in lines[number:])
            name = next((match[1].strip() for match in named if match), "")
            found.append(f"line {number}{', ' * bool(name)}{name}: {line.lstrip(' #')}")
    return found


def notes_on(schema: Path) -> list[str]:
    """A line for people where a schema file still has comments marked TODO; nothing where it has none or is no file."""
    left = left_to_decide(schema.read_text(encoding="utf-8-sig", errors="replace")) if schema.is_file() else []
    if not left:
        return []
    return [f"TODO        {len(left)} of {schema}: see dpdist schema check {schema}"]


def draft(
    source: str | Path,
    *,
    public: bool = False,
    columns: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    table: str | None = None,
) -> str:
    """A schema file drafted from the description of a table (`dpdist.spec.codebooks.FORMATS`); what is left to decide
    is marked ``TODO``.

    `columns` are wanted, in their order (by default all), but for those in `without`; `table` is one of several of the
    source. The values and ranges of a table that is `public` are taken. Raises SpecError: the file is of no known
    format, or does not describe a column.
    """
    source = str(source)
    kind, found = described(source, public=public, table=table)
    name = PurePosixPath(source).name
    heading = [
        f"Drafted from {name} ({kind}). Everything here is public: check each line against public sources only.",
        "Policies: `missing` and `out_of_domain` refuse a table unless they say drop, clip or {category: NAME}.",
    ]
    return drafted(heading, found, source=source, columns=columns, without=without)


def drafted(
    heading: Sequence[str],
    found: Sequence[Described],
    *,
    source: str,
    columns: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> str:
    """A schema file from what a source says about columns, below comments; see `draft`."""
    known = {column.name: column for column in found}
    for name in (*columns, *without):
        if name not in known:
            raise SpecError(f"{source} does not describe a column {name!r}; it has {', '.join(known)}")
    found = [known[name] for name in columns or known if name not in without]
    if not found:
        raise SpecError("no column is left: leave out fewer of them")
    lines = [f"# {line}" for text in heading for line in wrap(text, 110)]
    lines.append("attributes:")
    for column in found:
        attribute, notes = _attribute(column)
        lines += [f"  # {_visible(note)}" for note in notes if note]
        text = write_yaml(attribute, flow=True)
        lines += [f"  {'  ' if i else '- '}{line}" for i, line in enumerate(text.splitlines())]
    if rules := _rules(found):
        lines += ["# TODO: take the rules that hold, and leave the others out: a record that breaks one is refused"]
        lines += ["# rules:", *rules]
    return "\n".join(lines) + "\n"


_AGES = re.compile(
    r"\b(less than|under|below|younger than) (\d+)\b|\b(over|older than|more than) (\d+)\b", re.IGNORECASE
)
_AGE = re.compile(r"\bage(p|d|\b)(?! of)", re.IGNORECASE)
_NO_ANSWER = re.compile(r"(N/?A\b|not applicable|not in universe|NIU\b|inapplicable|does not apply)\W*", re.IGNORECASE)
_BESIDE_AGE = re.compile(r"\b(age[dps]?|is|in|years?|old|of|persons?|people)\b|[\W_]", re.IGNORECASE)
_ALTERNATIVE = re.compile(r"[/;,()]|\bor\b", re.IGNORECASE)


def _rules(found: Sequence[Described]) -> list[str]:
    """Rules, in comments, where the source says from which age on a question is asked: N/A (less than 15 years old).

    Where it names an age and other groups, those of this age have no answer, and others may have none. Numbers of
    anything else (less than 15 hours), and ages under a further condition, give no rule.
    """
    ages = [column for column in found if _is_range(column) and column.integers]
    age = next((column.name for column in ages if _AGE.search(f"{column.name} {column.label} {column.note}")), "")
    rules = []
    for column in found if age else ():
        items = {code: text for code, text in (column.items or {}).items() if _NO_ANSWER.match(text)}
        for code, text in [*items.items(), *([("", column.absent_where)] if column.nothing and column.absent else [])]:
            alternatives = _ALTERNATIVE.split(_NO_ANSWER.sub("", text))
            alone = [part for part in alternatives if not _BESIDE_AGE.sub("", _AGES.sub("", part))]
            named = _AGES.search("/".join(alone))
            if named is None or column.name == age:
                continue
            years = int(named[2] or named[4])
            where = f"{_name(age)} {'<' if named[2] else '>'} {years}"
            others = f"{_name(age)} {'>=' if named[2] else '<='} {years}"
            whole = len(alone) == len(alternatives) and len(_AGES.findall(text)) == 1
            name, value = _name(column.name), code if _are_integers(column.items or {}) else repr(code)
            if code:
                made = [{"impossible": f"{where} and {name} != {value}"}]
                made += [{"impossible": f"{others} and {name} == {value}"}] if whole else []
            else:
                made = [{"missing": column.name, "where": where}]
                made = made if whole else [{"impossible": f"{where} and not {name} is missing"}]
            written = (" ".join(map(str.strip, write_yaml(rule, flow=True).splitlines())) for rule in made)
            rules += [f"# - {rule}  # {_visible(text)}" for rule in written]
    return rules


def _name(name: str) -> str:
    """A name in a condition."""
    return name if name.isidentifier() else f"`{name}`"


def _attribute(column: Described) -> tuple[dict[str, Any], list[str]]:
    """An attribute as a mapping for YAML, and what to say about it."""
    items, notes = dict(column.items or {}), [column.note]
    if all(map(is_number, items)) and not column.ordered:  # numbers have an order of their own
        items = dict(sorted(items.items(), key=lambda item: Fraction(item[0].strip())))
    attribute: dict[str, Any] = {"name": column.name}
    if column.label not in ("", column.name):
        attribute["label"] = column.label
    if column.dated is not None and not items:
        notes += _days(attribute, column, column.dated)
    elif _is_range(column):
        notes += _range(attribute, column, items)
    elif items:
        values: list[Any] = [int(code) for code in items] if _are_integers(items) else list(items)
        attribute |= {"kind": "ordinal" if column.ordered else "categorical", "values": values}
        if not column.texts and any(re.fullmatch(r"-?0\d+", code) for code in items):
            notes.append("TODO: the source writes codes with zeros: if the table does not, declare them as numbers")
        if len(values) > MAX_CARDINALITY:
            notes.append(f"TODO: {len(values):,} values are too many; group them, or leave the column out")
        if any(items.values()):
            attribute["labels"] = [label or code for code, label in items.items()]
        if column.aliases:
            attribute["aliases"] = dict(column.aliases)
    else:
        attribute |= {"kind": "categorical" if column.texts else "integer" if column.integers else "number"}
        notes.append(_UNDECIDED[attribute["kind"]])
        ends = [f"{word} {end}" for word, end in (("from", column.low), ("to", column.high)) if end]
        if ends:
            notes.append(f"the source says: {' '.join(ends)}")
    if column.names_records and NAMES_RECORDS not in column.note:
        notes.append(NAMES_RECORDS)
    if column.absent:
        attribute["missing_values"] = list(column.absent)
        notes.append(f"missing where the source says {', '.join(column.absent)}")
    if column.nullable:
        if not column.nothing or (attribute["kind"] == "number" and "bins" not in attribute):
            attribute["missing"] = "drop"
            unless = "with `bins`, " if "bins" not in attribute and attribute["kind"] == "number" else ""
            notes.append(f"records without it are left out; {unless}missing may be a {{category: NAME}}")
        else:
            attribute["missing"] = {"category": _category(column.nothing, items)}
    if column.others:
        notes += _elsewhere(attribute, column, items)
    return attribute, notes


def _are_integers(codes: Iterable[str]) -> bool:
    """Whether codes are integers, written as such."""
    return all(re.fullmatch(r"-?(0|[1-9]\d*)", code) and abs(int(code)) <= LARGEST_INTEGER for code in codes)


def _elsewhere(attribute: dict[str, Any], column: Described, items: dict[str, str]) -> list[str]:
    """Set what becomes of other values than those of the source; return what to say about it."""
    if attribute["kind"] not in ("categorical", "ordinal"):
        attribute["out_of_domain"] = column.others
        return []
    if not items:
        return []
    name = _category(column.others, items)
    counts_as_missing = name == attribute.get("missing", {}).get("category")
    if counts_as_missing or all(
        isinstance(value, int) for value in attribute["values"]
    ):  # integers and texts not mixed
        name = attribute.setdefault("missing", {"category": name})["category"]
    else:
        attribute["values"].append(name)
        if "labels" in attribute:
            attribute["labels"].append(name)
    attribute["out_of_domain"] = {"category": name}
    if name == attribute.get("missing", {}).get("category"):
        return ["other values count as missing"]
    return ["other values become one category"]


def _is_range(column: Described) -> bool:
    """Whether the source has two ends, which are numbers and, unless they are of integers, differ."""
    if not (is_number(column.low) and is_number(column.high)):
        return False
    return column.integers or Fraction(column.low) < Fraction(column.high)


def _range(attribute: dict[str, Any], column: Described, items: dict[str, str]) -> list[str]:
    """Set a range, which also covers codes beside it; return what to say about these."""
    codes = [Fraction(code) for code in items if re.fullmatch(r"[-+]?\d+(\.\d+)?", code)]
    low, high = min([Fraction(column.low), *codes]), max([Fraction(column.high), *codes])
    notes = (
        [f"codes beside the range: {', '.join(f'{code} = {label}' for code, label in items.items())}"] if items else []
    )
    if not column.integers:
        attribute |= {"kind": "number", "bounds": [float(low), float(high)], "bins": {"count": BINS}}
        return [*notes, "TODO: choose public bins"]
    attribute |= {"kind": "integer", "bounds": [int(low), int(high)]}
    if high - low + 1 > MOST_VALUES:
        attribute["bins"] = {"count": BINS}
        notes.append("TODO: choose public bins")
    return notes


def _days(attribute: dict[str, Any], column: Described, kind: DatedKind) -> list[str]:
    """Set a range of days or moments; return what to say about it."""
    attribute |= {"kind": kind} | ({"format": column.format} if column.format else {})
    try:
        low, high = (number_of(end, kind) for end in (column.low, column.high))
    except ValueError:
        said = " ".join(f"{word} {end}" for word, end in (("from", column.low), ("to", column.high)) if end)
        return [
            "TODO: declare `bounds`, such as ['2024-01-01', '2024-12-31']",
            *([f"the source says: {said}"] if said else []),
        ]
    attribute["bounds"] = [text_of(low, kind), text_of(high, kind)]
    if high - low + 1 <= MOST_VALUES:
        return []
    attribute["bins"] = {"every": "month" if kind == "date" or high - low > MOST_VALUES * DAY else "day"}
    return ["TODO: choose public bins"]


def _category(name: str, items: dict[str, str]) -> str:
    """A name of the category for missing values that is no value."""
    return name if name not in items else f"{name} (no value)"


def _visible(text: str) -> str:
    """A text for a comment: one line, without characters that an editor does not show."""
    shown = "".join(c for c in text if c == " " or unicodedata.category(c)[0] not in "CZ")
    return shown if len(shown) <= 160 else f"{shown[:160]}…"
