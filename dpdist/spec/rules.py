"""Rules of a table: what no record can be, as the public knows it. Each is compiled to the combinations it forbids."""

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
from dpdist.spec.conditions import Box, Mask, ends_of, equal_to, inside, missing_text, named, parse_condition
from dpdist.spec.contradictions import refuse_contradictions
from dpdist.spec.strict import Frozen, OwnFields, Value

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes
    from dpdist.spec.schema import Attribute, Schema

MOST_CELLS = 1 << 22
"""Cells of the table of a rule at most; a rule with more is looked up by its cases."""


def _listed(mapping: Any) -> Any:
    """A mapping with texts for keys, and a list for each value."""
    if not isinstance(mapping, dict):
        return mapping
    return {str(key): value if isinstance(value, list | tuple) else [value] for key, value in mapping.items()}


ValueMapping = Annotated[
    dict[str, tuple[Value, ...]],
    BeforeValidator(_listed, json_schema_input_type=dict[str, Value | tuple[Value, ...]]),
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
    """The combinations of codes that a rule forbids.

    Attributes
    ----------
    rule : Rule
    attributes : tuple of int
        Places of the attributes that it names, ascending.
    shape : tuple of int
        Their numbers of codes.
    boxes : tuple of dict
        A record breaks the rule if one of them admits all its codes.
    """

    rule: Rule
    attributes: tuple[int, ...]
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]

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
    """Which cells of a table of some attributes a rule forbids.

    Rules that are too large for a table, and rules on other attributes, are left out.

    Parameters
    ----------
    rules : Rules
    attributes : tuple of int
        Places of the attributes of the table, ascending.
    shape : tuple of int
        Their numbers of codes, which is the shape of what is returned.
    """
    found = np.zeros(shape, bool)
    for rule in rules:
        if set(rule.attributes) <= set(attributes) and rule.table is not None:
            inside = [size if i in rule.attributes else 1 for i, size in zip(attributes, shape, strict=True)]
            found |= rule.table.reshape(inside)
    return found


def compiled(schema: Schema) -> Rules:
    """What the rules of a schema forbid.

    Raises
    ------
    ValueError
        A rule names what is not in the schema, says nothing, or they leave no record with a declared value; the
        message begins with the place of the rule.
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
        if None in found:
            raise SpecError("at_most goes with two integer or number attributes, or ordinal ones of the same values")
        ends = [pair for pair in found if pair is not None]
    (lows, highs), (other_lows, other_highs) = ends
    if ((highs[:, None] > other_lows) & (lows[:, None] <= other_highs)).any():
        raise SpecError(
            f"bins of {first.name!r} and {second.name!r} overlap, and what is in a bin is not told apart: declare them "
            "without `bins`, or with finer ones"
        )
    for code, low in enumerate(lows.tolist()):
        a, b = np.zeros(first.cardinality, bool), np.zeros(second.cardinality, bool)
        a[code] = True
        b[: len(other_highs)] = other_highs < low
        yield a, b
