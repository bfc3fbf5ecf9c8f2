"""Conditions on records: a small grammar, checked against the schema.

::

    state = 8 and age >= 65
    education in ("Bachelors", "Masters") or not (18 <= age < 30)
    `hours-per-week` is missing

Python's parser reads it and only comparisons of an attribute with constants, ``in``, ``and``, ``or``, ``not`` and
parentheses are admitted; ``=`` is ``==``. A name that is no Python name stands in backquotes. A missing value meets
``is missing`` and no other comparison. Texts of ordinal attributes are compared by their place in the order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError, meant
from dpdist.spec.groups import number_of

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes
    from dpdist.spec.attribute import Attribute
    from dpdist.spec.schema import Schema

Mask = NDArray[np.bool_]
Box = dict[int, Mask]
"""For some attributes, which codes are admitted; all codes of the others."""

MOST_BOXES = 256
_SWAPPED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}
_IN_ORDER = {ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal}
_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|(?<![=!<>])=(?!=)")
_HELP = "write comparisons such as: state = 8 and age >= 65"


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition as disjoint boxes."""

    text: str
    boxes: tuple[Box, ...]  # a record meets the condition if one of them admits all its codes
    names_missing: bool = False  # whether it says itself what holds of missing values

    @property
    def attributes(self) -> tuple[int, ...]:
        """The attributes that it asks for, ascending."""
        return tuple(sorted({i for box in self.boxes for i in box}))

    def admitted(self, attribute: int, cardinality: int) -> Mask:
        """Which codes of an attribute some record has that meets it."""
        found = np.zeros(cardinality, bool)
        for box in self.boxes:
            found |= box.get(attribute, True)
        return found

    def within(self, masks: Box) -> Condition:
        """This condition, and that records have some codes of other attributes."""
        return replace(self, boxes=tuple(_both(list(self.boxes), [{i: m for i, m in masks.items() if not m.all()}])))

    def implies(self, other: Condition) -> bool:
        """Whether every record that meets it meets another one."""
        return not _both(list(self.boxes), _neither(list(other.boxes)))

    def holds(self, codes: Codes) -> Mask:
        """Which records meet it."""
        return inside(self.boxes, codes, len(codes[0]))

    def cells(self, attributes: Sequence[int], shape: Sequence[int]) -> Mask:
        """Which cells of a table meet it, flat; `attributes` hold all that it asks for."""
        grid = np.indices(tuple(shape)).reshape(len(shape), -1)
        return inside(self.boxes, dict(zip(attributes, grid, strict=True)), grid.shape[1])


def inside(boxes: Iterable[Box], codes: Codes | Mapping[int, NDArray[np.integer]], rows: int) -> Mask:
    """Which of this many records one of the boxes admits."""
    found = np.zeros(rows, bool)
    for box in boxes:
        found |= np.logical_and.reduce([mask[codes[i]] for i, mask in box.items()], initial=True)
    return found


def parse_condition(text: str, schema: Schema) -> Condition:
    """Read a condition. Raises SpecError: it is not of the grammar, names no attribute, or compares with what the
    attribute cannot be; the message says what to write.
    """
    names: dict[str, str] = {}

    def token(match: re.Match[str]) -> str:
        found = match.group()
        if found == "=":
            return "=="
        if found[0] != "`":
            return found
        names[f"quoted_{len(names)}_"] = found[1:-1]
        return f"quoted_{len(names) - 1}_"

    try:
        tree = ast.parse(_TOKEN.sub(token, text.strip()), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(f"the condition {text!r} cannot be read: {_HELP}") from None
    reader = _Reader(schema, names)
    return Condition(text, tuple(reader.boxes(tree.body)), reader.names_missing)


def everything() -> Condition:
    """The condition that every record meets."""
    return Condition("", ({},))


class _Reader:
    def __init__(self, schema: Schema, quoted: dict[str, str]) -> None:
        self.schema, self.quoted = schema, quoted
        self.names_missing = False

    def boxes(self, node: ast.expr) -> list[Box]:
        if isinstance(node, ast.BoolOp):
            parts = [self.boxes(value) for value in node.values]
            found = parts[0]
            for part in parts[1:]:
                found = _both(found, part) if isinstance(node.op, ast.And) else [*found, *_both(part, _neither(found))]
            return found
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _neither(self.boxes(node.operand))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = [{}]
            for left, comparison, right in zip(sides, node.ops, sides[1:], strict=False):
                found = _both(found, [self._comparison(left, comparison, right)])
            return found
        raise SpecError(f"a condition may not hold {_source(node)!r}: {_HELP}")

    def _comparison(self, left: ast.expr, comparison: ast.cmpop, right: ast.expr) -> Box:
        if isinstance(comparison, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Name) and right.id == "missing"):
                raise SpecError("`is` goes with `missing`: write `age is missing`")
            i, attribute = self._attribute(left)
            present = _present(attribute)
            self.names_missing = True
            return {i: ~present if isinstance(comparison, ast.Is) else present}
        if isinstance(comparison, ast.In | ast.NotIn):
            i, attribute = self._attribute(left)
            if not isinstance(right, ast.Tuple | ast.List | ast.Set):
                raise SpecError(f"`in` needs a list: write {attribute.name} in (1, 2)")
            masks = [self._mask(attribute, ast.Eq, _constant(item)) for item in right.elts]
            mask = np.logical_or.reduce([np.zeros(attribute.cardinality, bool), *masks])
            return {i: mask if isinstance(comparison, ast.In) else _present(attribute) & ~mask}
        kind = type(comparison)
        if isinstance(left, ast.Name) and not isinstance(right, ast.Name):
            value = _constant(right)
        elif isinstance(right, ast.Name) and not isinstance(left, ast.Name):
            value, left, kind = _constant(left), right, _SWAPPED[kind]
        else:
            text = isinstance(right, ast.Name) and right.id not in self.schema.names
            cure = f"; quote a text: {_source(left)} = '{_source(right)}'" if text else ""
            raise SpecError(
                f"compare an attribute with a constant, not {_source(left)!r} with {_source(right)!r}{cure}"
            )
        i, attribute = self._attribute(left)
        return {i: self._mask(attribute, kind, value)}

    def _mask(self, attribute: Attribute, kind: type[ast.cmpop], value: int | float | str) -> Mask:
        self.names_missing |= isinstance(value, str) and value == missing_text(attribute)
        if kind in (ast.Eq, ast.NotEq) and not _mask(attribute, ast.Eq, value).any():
            raise SpecError(f"attribute {attribute.name!r} has no value {value!r}: correct it")
        return _mask(attribute, kind, value)

    def _attribute(self, node: ast.expr) -> tuple[int, Attribute]:
        if not isinstance(node, ast.Name):
            raise SpecError(f"expected the name of an attribute instead of {_source(node)!r}: {_HELP}")
        return named(self.quoted.get(node.id, node.id), self.schema)


def named(name: str, schema: Schema) -> tuple[int, Attribute]:
    """The place of an attribute, and the attribute. Raises SpecError: none has the name, or it is continuous."""
    names = schema.names
    if name not in names:
        raise SpecError(f"no attribute is called {name!r}{meant(name, names)}")
    attribute = schema.attributes[names.index(name)]
    if attribute.is_continuous:
        raise SpecError(f"attribute {name!r} is continuous: conditions need bins or values")
    return names.index(name), attribute


def _source(node: ast.expr) -> str:
    return ast.unparse(node)[:60]


def _constant(node: ast.expr) -> int | float | str:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
        if isinstance(node.value, str) and sign == 1:
            return node.value
        if not isinstance(node.value, str):
            return sign * node.value
    raise SpecError(f"expected a number or a quoted text instead of {_source(node)!r}: {_HELP}")


def _present(attribute: Attribute) -> Mask:
    present = np.ones(attribute.cardinality, bool)
    if attribute.missing_code is not None:
        present[attribute.missing_code] = False
    return present


def ends_of(attribute: Attribute, *, shown: bool = False) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Lowest and highest value of each code (`Attribute.bin_ends`); None for texts."""
    if attribute.values is not None:
        if not all(isinstance(value, int) for value in attribute.values):
            return None
        values = np.array(attribute.values, np.int64)
        return values, values
    return attribute.bin_ends(shown=shown)


def _mask(attribute: Attribute, kind: type[ast.cmpop], value: int | float | str) -> Mask:
    """The codes whose values compare so with a constant."""
    mask = np.zeros(attribute.cardinality, bool)
    if isinstance(value, str) and attribute.dated is not None and value != missing_text(attribute):
        try:
            value = number_of(value, attribute.dated)
        except ValueError as error:
            raise SpecError(f"attribute {attribute.name!r}: {error}") from None
    if isinstance(value, str):
        texts, missing = texts_of(attribute), missing_text(attribute)
        in_order = kind not in (ast.Eq, ast.NotEq)
        if in_order and attribute.kind != "ordinal":
            raise SpecError(f"attribute {attribute.name!r}: texts have no order, use = or in (kind: ordinal has one)")
        if value == missing:
            if in_order:
                raise SpecError(f"attribute {attribute.name!r}: {value!r} means missing, which has no order")
            return np.asarray(_present(attribute) == (kind is ast.NotEq))
        if value not in texts and value in (attribute.values or ()):
            texts = [str(code) for code in attribute.values or ()]  # the value itself, which has a label
        if value not in texts:
            known = [*texts, *([] if missing is None else [missing])]
            such = f", such as {known[0]!r}" if known else ""
            raise SpecError(f"attribute {attribute.name!r} has no value {value!r}{meant(value, known, otherwise=such)}")
        if in_order:
            mask[: len(texts)] = _IN_ORDER[kind](np.arange(len(texts)), texts.index(value))
        else:
            mask[: len(texts)] = [(text == value) is (kind is ast.Eq) for text in texts]
        return mask & _present(attribute)
    ends = ends_of(attribute)
    if ends is None:
        raise SpecError(f"attribute {attribute.name!r} holds texts: compare it with a quoted text")
    lows, highs = ends
    # the upper end of a bin of numbers belongs to the next one; the bin of a heap is one number
    heap = np.isin(lows, attribute.heaps)
    highs = np.where(heap, lows, highs)
    below = np.where(heap | (attribute.kind != "number"), highs < value, highs <= value), lows >= value
    up_to = highs <= value, lows > value
    if kind in (ast.Eq, ast.NotEq):
        every, none = (lows == value) & (highs == value), (lows > value) | below[0]
    else:
        every, none = below if kind in (ast.Lt, ast.GtE) else up_to
    cut = np.flatnonzero(~every & ~none)
    if len(cut):
        low, high, value = map(attribute.shown, (lows[cut[0]], highs[cut[0]], value))
        raise SpecError(
            f"attribute {attribute.name!r}: {value} is inside of the bin from {low} to {high}, and values within "
            "a bin cannot be distinguished: use < and >= with ends of bins"
        )
    mask[: len(lows)] = every if kind in (ast.Eq, ast.Lt, ast.LtE) else none
    return mask


def equal_to(attribute: Attribute, value: int | str) -> Mask:
    """The codes of a value. Raises SpecError: none exists, or it is inside of a bin."""
    return _mask(attribute, ast.Eq, value)


def texts_of(attribute: Attribute) -> list[str]:
    """Texts of the codes, but for the missing category; none where they are numbers without labels."""
    return list(attribute.labels or map(str, attribute.values or ()))


def missing_text(attribute: Attribute) -> str | None:
    """The category for missing values."""
    category = getattr(attribute.missing, "category", None)
    return category if isinstance(category, str) else None


def _both(ours: list[Box], theirs: list[Box]) -> list[Box]:
    found = []
    for a in ours:
        for b in theirs:
            joined = a | {i: mask & a[i] if i in a else mask for i, mask in b.items()}
            if all(mask.any() for mask in joined.values()):
                found.append(joined)
    if len(found) > MOST_BOXES:
        raise SpecError(f"the condition has more than {MOST_BOXES} cases: ask for fewer alternatives at a time")
    return found


def _neither(boxes: list[Box]) -> list[Box]:
    """The complement, as disjoint boxes."""
    left: list[Box] = [{}]
    for box in boxes:
        outside: list[Box] = []
        before: Box = {}
        for i, mask in box.items():
            outside.append(before | {i: ~mask})
            before = before | {i: mask}
        left = _both(left, outside)
    return left
