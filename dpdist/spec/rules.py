"""Rules of a table: what no record can be, as the public knows it. Each is compiled to the combinations it forbids.

Whether rules contradict each other is a search for records that break none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, model_validator

from dpdist.errors import SpecError
from dpdist.spec.conditions import Box, Mask, ends_of, equal_to, inside, missing_text, named, parse_condition, texts_of
from dpdist.spec.groups import Every
from dpdist.spec.strict import Frozen, OwnFields, Value

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes
    from dpdist.spec.attribute import Attribute
    from dpdist.spec.schema import Schema

_MOST_STEPS = 100_000

MOST_CELLS = 1 << 22
"""Cells of the table of a rule at most; a rule with more is looked up by its cases."""


def _listed(mapping: Any) -> Any:
    """A mapping with texts for keys, and a list for each value."""
    if not isinstance(mapping, dict):
        return mapping
    return {str(key): value if isinstance(value, list | tuple) else [value] for key, value in mapping.items()}


ValueMapping = Annotated[
    dict[str, tuple[Value, ...]], BeforeValidator(_listed, json_schema_input_type=dict[str, Value | tuple[Value, ...]])
]


class Rule(Frozen):
    """What no record can be: one of `impossible`, `missing`, `determines` and `at_most`."""

    impossible: str | None = None
    """Condition that no record meets, such as `AGEP < 15 and MAR != 5`."""
    missing: str | None = None
    """Attribute that is missing exactly where `where` holds: it does not apply there."""
    where: str | None = None
    """Condition that goes with `missing`."""
    determines: tuple[str, str] | None = None
    """Two attributes; by `mapping`, a value of the first says what the second can be."""
    mapping: ValueMapping | None = None
    """For values of the first attribute of `determines`, the value of the second or a list of values."""
    at_most: tuple[str, str] | None = None
    """Two attributes; the first is never above the second, where both are there."""
    broken: Literal["refuse", "drop"] = "refuse"
    """Policy for records of the table that break the rule: refuse or drop."""

    @model_validator(mode="after")
    def _one_kind(self) -> Rule:
        kinds = [self.impossible, self.missing, self.determines, self.at_most]
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("a rule is one of `impossible`, `missing`, `determines` and `at_most`")
        if (self.missing is None) != (self.where is None):
            raise ValueError("`missing` and `where` go together: {missing: ESR, where: AGEP < 16}")
        if (self.determines is None) != (not self.mapping):
            raise ValueError("`determines` and `mapping` go together: {determines: [a, b], mapping: {1: 5}}")
        return self

    @property
    def text(self) -> str:
        """The rule for people."""
        if self.impossible is not None:
            return f"impossible: {self.impossible}"
        if self.missing is not None:
            return f"{self.missing} is missing exactly where {self.where}"
        first, second = self.determines or self.at_most or ("", "")
        return f"{first} determines {second}" if self.determines else f"{first} is at most {second}"


@dataclass(frozen=True, eq=False)
class Forbidden(OwnFields):
    """The combinations of codes that a rule forbids."""

    rule: Rule
    attributes: tuple[int, ...]  # places of the attributes that it names, ascending
    shape: tuple[int, ...]  # their numbers of codes
    boxes: tuple[Box, ...]  # a record breaks the rule if one of them admits all its codes

    @cached_property
    def table(self) -> Mask | None:
        """Which combinations are forbidden, of shape `shape`; None where there are too many for a table."""
        if prod(self.shape) > MOST_CELLS:
            return None
        table = np.zeros(self.shape, bool)
        for box in self.boxes:
            every = [np.ones(size, bool) for size in self.shape]
            table[np.ix_(*(box.get(i, all_) for i, all_ in zip(self.attributes, every, strict=True)))] = True
        return table

    def broken_by(self, codes: Codes | Mapping[int, NDArray[np.integer]]) -> Mask:
        """Which records break the rule."""
        if self.table is not None:
            return np.asarray(self.table[tuple(codes[i] for i in self.attributes)])
        return inside(self.boxes, codes, len(codes[self.attributes[0]]))


Rules = tuple[Forbidden, ...]


def broken_by(rules: Rules, codes: Codes) -> Mask:
    """Which records break any of the rules."""
    found = np.zeros(len(codes[0]), bool)
    for rule in rules:
        found |= rule.broken_by(codes)
    return found


def forbidden_cells(rules: Rules, attributes: tuple[int, ...], shape: tuple[int, ...]) -> Mask:
    """Which cells a rule forbids of a table of attributes (places, ascending) of a shape (numbers of codes).

    Rules that are too large for a table, and rules on other attributes, are left out.
    """
    found = np.zeros(shape, bool)
    for rule in rules:
        if set(rule.attributes) <= set(attributes) and rule.table is not None:
            inside = [size if i in rule.attributes else 1 for i, size in zip(attributes, shape, strict=True)]
            found |= rule.table.reshape(inside)
    return found


def compiled(schema: Schema) -> Rules:
    """What the rules of a schema forbid. Raises ValueError: a rule names what is not in the schema, says nothing, or
    they leave no record with a declared value; the message begins with the place of the rule.
    """
    found = []
    for place, rule in enumerate(schema.rules):
        try:
            boxes = tuple(_boxes(rule, schema))
        except SpecError as error:
            raise ValueError(f"rules.{place}: {error}") from None
        if not boxes:
            raise ValueError(f"rules.{place}: it forbids nothing ({rule.text})")
        attributes = tuple(sorted({i for box in boxes for i in box}))
        shape = tuple(schema.attributes[i].cardinality for i in attributes)
        found.append(Forbidden(rule, attributes, shape, boxes))
    if found:
        refuse_contradictions(tuple(found), schema)
    return tuple(found)


def _boxes(rule: Rule, schema: Schema) -> list[Box]:
    if rule.impossible is not None:
        return list(parse_condition(rule.impossible, schema).boxes)
    if rule.missing is not None:
        _, attribute = named(rule.missing, schema)
        if attribute.missing_code is None:
            raise SpecError(
                f"attribute {rule.missing!r} has no category for missing values: declare missing: {{category: NAME}}"
            )
        absent, where = f"`{rule.missing}` is missing", rule.where
        parse_condition(str(where), schema)  # so that messages show what was written
        return list(parse_condition(f"({where}) and not ({absent}) or not ({where}) and {absent}", schema).boxes)
    (i, first), (j, second) = (named(name, schema) for name in rule.determines or rule.at_most or ())
    if i == j:
        raise SpecError("name two different attributes")
    if first.cardinality * second.cardinality > MOST_CELLS:
        raise SpecError(
            f"{rule.text}: that is more than {MOST_CELLS:,} combinations; declare coarser `bins`, or write it as "
            "`impossible`"
        )
    boxes = _determined(rule, first, second) if rule.mapping else _ordered(first, second)
    return [{i: a, j: b} for a, b in boxes if a.any() and b.any()]


def _determined(rule: Rule, first: Attribute, second: Attribute) -> Iterator[tuple[Mask, Mask]]:
    """For each value in the mapping, what the second attribute cannot be."""
    cases: dict[bytes, tuple[Mask, Mask]] = {}
    for key, values in (rule.mapping or {}).items():
        mask = _codes(first, key, key)
        other = ~np.logical_or.reduce([_codes(second, value, key) for value in values])
        known = cases.get(other.tobytes())
        cases[other.tobytes()] = (mask if known is None else known[0] | mask, other)
    yield from cases.values()


def _codes(attribute: Attribute, value: int | str, key: str) -> Mask:
    """The codes of a value of a mapping; texts that are integers mean them where the attribute has numbers."""
    text: int | str = str(value)
    if ends_of(attribute) is not None and text not in (missing_text(attribute), *(attribute.labels or ())):
        with suppress(ValueError):
            text = int(text)
    mask = equal_to(attribute, text)
    if not mask.any():
        raise SpecError(f"mapping.{key}: attribute {attribute.name!r} has no value {value!r}")
    return mask


def _ordered(first: Attribute, second: Attribute) -> Iterator[tuple[Mask, Mask]]:
    """For each value of the first attribute, the lower values of the second."""
    if first.kind == second.kind == "ordinal" and first.values == second.values:
        ends = [(np.arange(len(a.values or ())),) * 2 for a in (first, second)]
    else:
        found = [None if a.kind == "categorical" else ends_of(a) for a in (first, second)]
        if None in found or first.dated != second.dated:
            raise SpecError(
                "at_most goes with two integer or number attributes, dates or datetimes, or ordinal ones of the same "
                "values"
            )
        ends = [pair for pair in found if pair is not None]
        if first.step == second.step and isinstance(first.step, Every):  # beginnings, which are in the order of days
            ends = [(lows, lows) for lows, _ in ends]
    (lows, highs), (other_lows, other_highs) = ends
    if ((highs[:, None] > other_lows) & (lows[:, None] <= other_highs)).any():
        raise SpecError(
            f"bins of {first.name!r} and {second.name!r} overlap, and values within a bin cannot be distinguished: "
            "declare them without `bins`, or with finer ones"
        )
    for code, low in enumerate(lows.tolist()):
        a, b = np.zeros(first.cardinality, bool), np.zeros(second.cardinality, bool)
        a[code] = True
        b[: len(other_highs)] = other_highs < low
        yield a, b


def refuse_contradictions(rules: Rules, schema: Schema) -> None:
    """Refuse rules that leave no record at all, or none with some declared value. Raises ValueError: they do, or
    whether they do takes too many steps to find out.
    """
    search = _Search(rules)
    witnesses: list[dict[int, int]] = []
    for i in sorted(search.near):
        classes = search.classes[i]
        for label, code in zip(*np.unique(classes, return_index=True), strict=True):
            if any(classes[witness[i]] == label for witness in witnesses if i in witness):
                continue
            found = search.record({i: int(code)})
            if found is None:
                attribute, number = schema.attributes[i], int(np.count_nonzero(classes == label))
                more = f" (and {number - 1} more of its values)" if number > 1 else ""
                raise ValueError(
                    f"{', '.join(_conflict(rules, i, int(code)))}: no record can have {attribute.name} = "
                    f"{_text(attribute, int(code))}{more}: the rules contradict each other, or the value is not of the "
                    "domain: correct them, or take the value out"
                )
            witnesses.append(found)


def _conflict(rules: Rules, i: int, code: int) -> list[str]:
    """Places of rules that together leave no record with a code, each of them needed."""
    left = dict(enumerate(rules))
    for place in list(left):
        others = {k: rule for k, rule in left.items() if k != place}
        if _Search(tuple(others.values())).record({i: code}) is None:
            left = others
    return [f"rules.{place}" for place in left]


def _text(attribute: Attribute, code: int) -> str:
    """A code as people write it."""
    if code == attribute.missing_code:
        return str(missing_text(attribute))
    return (texts_of(attribute) or [str(attribute.shown(low)) for low in attribute.bin_edges.tolist()])[code]


def a_record(rules: Rules, attributes: int) -> list[int]:
    """Codes of one record that breaks no rule: attributes that no rule names have their first value."""
    found = _Search(rules).record({})
    if found is None:
        raise ValueError("no record keeps all rules: `refuse_contradictions` comes first")
    return [found.get(i, 0) for i in range(attributes)]


class _Search:
    """Records that break no rule, by depth first; codes that no rule tells apart are one."""

    def __init__(self, rules: Rules) -> None:
        self.near: dict[int, list[Forbidden]] = {}  # the rules that name an attribute
        self.sizes: dict[int, int] = {}
        for rule in rules:
            for i, size in zip(rule.attributes, rule.shape, strict=True):
                self.near.setdefault(i, []).append(rule)
                self.sizes[i] = size
        self.classes = {i: self._classes(i) for i in self.near}

    def _classes(self, i: int) -> NDArray[np.intp]:
        """Class of each code of an attribute."""
        labels = []
        for rule in self.near[i]:
            if rule.table is None:
                rows = np.stack([box.get(i, np.ones(self.sizes[i], bool)) for box in rule.boxes], axis=1)
            else:
                rows = np.moveaxis(rule.table, rule.attributes.index(i), 0).reshape(self.sizes[i], -1)
            labels.append(np.unique(rows, axis=0, return_inverse=True)[1].ravel())
        return np.asarray(np.unique(np.stack(labels, axis=1), axis=0, return_inverse=True)[1].ravel())

    def record(self, given: dict[int, int]) -> dict[int, int] | None:
        """Codes of all attributes that rules name, with one that is given; None where there is no such record."""
        self._steps = 0
        if any(not self._allowed(i, {})[code] for i, code in given.items() if i in self.near):
            return None
        first = [i for i in self.near if i not in given and any(i in r.attributes for j in given for r in self._of(j))]
        return self._from(given, [*first, *sorted(i for i in self.near if i not in given and i not in first)])

    def _of(self, i: int) -> list[Forbidden]:
        return self.near.get(i, [])

    def _allowed(self, i: int, given: dict[int, int]) -> Mask:
        """The codes of an attribute that break none of the rules whose other attributes are given."""
        allowed = np.ones(self.sizes[i], bool)
        for rule in self.near[i]:
            if all(j == i or j in given for j in rule.attributes):
                codes = {j: np.full(len(allowed), given.get(j, 0)) for j in rule.attributes}
                allowed &= ~rule.broken_by(codes | {i: np.arange(len(allowed))})
        return allowed

    def _from(self, given: dict[int, int], left: list[int]) -> dict[int, int] | None:
        if not left:
            return given
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ValueError("rules: whether they contradict each other takes too long to find out: write simpler ones")
        codes = np.flatnonzero(self._allowed(left[0], given))
        for place in np.unique(self.classes[left[0]][codes], return_index=True)[1].tolist():
            found = self._from(given | {left[0]: int(codes[place])}, left[1:])
            if found is not None:
                return found
        return None
