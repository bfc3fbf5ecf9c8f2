"""Numbers of attributes, and regressions on them, as a reader asks for them and a spec declares them.

``NAME`` leaves missing values out, as statistical packages do; ``NAME with missing as 0`` counts them as that number.
Integers and bins are numbers, and are ordered as such whatever the order of their declaration. Texts of an ordinal
attribute have an order, the declared one, but no numbers. Regressions have a small grammar:

::

    regression wage on age, `hours-per-week`, sex = 'Male' where state = 8
    logistic regression income = '>50K' on age, sex = 'Male'

An outcome or a term is an attribute with numbers, or a condition on one attribute (1 where it holds): a function of the
code of one attribute. Values of bins are their middles, or what a release with tilts draws on average. A record with a
missing value of any of these attributes is left out, as statistical packages do, unless the question says what a
missing value counts as: a number (``income with missing as 0``), or in a condition (``sex = 1 or sex is missing``). The
constant is always there. The outcome of a logistic regression is a condition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError
from dpdist.spec.conditions import Condition, Mask, ends_of, everything, named, parse_condition, texts_of
from dpdist.spec.groups import DatedKind, text_of
from dpdist.spec.schema import Schema

MISSING_AS = r"\s+with\s+missing\s+as\s+"
_GIVEN = re.compile(rf"(.+?)(?:{MISSING_AS}(\S+))?", re.DOTALL)

CONSTANT = "constant"
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_REGRESSION = re.compile(r"\s*(logistic\s+)?regression\s+(.+?)\s+on\s+(.+?)(?:\s+where\s+(.+))?\s*\Z", re.DOTALL)

_NUMBERED = re.compile(MISSING_AS)

Key = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers of an attribute's codes."""

    place: int  # of the attribute
    lows: NDArray[np.float64]  # lows, highs: the ends of what each code stands for; 0 where it does not count
    highs: NDArray[np.float64]
    counted: Mask  # which codes count: all but the category for missing values, unless it was given a number
    texts: tuple[str, ...] = ()  # of an ordinal attribute of texts: its values, whose places are the numbers
    dated: DatedKind | None = None  # where the numbers are days or moments
    means: NDArray[np.float64] | None = None  # of the bins, where they are not their middles

    @property
    def middles(self) -> NDArray[np.float64]:
        """The number that each code counts as."""
        found = np.asarray((self.lows + self.highs) / 2)
        if self.means is not None:
            found[: len(self.means)] = self.means
        return found

    @property
    def has_bins(self) -> bool:
        """Whether a code stands for several numbers."""
        return bool((self.lows < self.highs).any())

    @property
    def order(self) -> NDArray[np.intp]:
        """The codes that count, in ascending order."""
        order = np.lexsort((self.highs, self.lows))
        return order[self.counted[order]]

    def shown(self, number: float) -> float | str:
        """A number as a reader sees it."""
        if self.dated is not None:
            return text_of(math.floor(number), self.dated)
        return self.texts[int(number)] if self.texts else float(number)


Means = Mapping[str, NDArray[np.float64]]
"""Numbers that the bins of attributes count as, by their names; of all others their middles."""


def numbers_in(text: str, schema: Schema, *, ordered: bool = False, means: Means = MappingProxyType({})) -> Numbers:
    """Read ``NAME`` or ``NAME with missing as NUMBER``. With `ordered`, an order is enough, which texts of ordinal
    attributes have. Raises SpecError: there is no such attribute, it has no numbers (or no order), or the number for
    missing values is no number or has no use.
    """
    match = _GIVEN.fullmatch(text.strip())
    name, given = match.groups() if match else (text, None)
    place, attribute = named(name.strip().strip("`"), schema)
    ends = ends_of(attribute, shown=True)
    texts: tuple[str, ...] = ()
    if ends is None and ordered and attribute.kind == "ordinal" and given is None:
        texts = tuple(texts_of(attribute))
        ends = np.arange(len(texts)), np.arange(len(texts))
    if ends is None or (attribute.dated and not ordered):
        raise SpecError(
            f"attribute {attribute.name!r} has no {'order' if ordered else 'numbers'}: ask for shares of its values, "
            f"or in a regression for a condition such as {attribute.name} = …"
        )
    declared, size = len(ends[0]), attribute.cardinality
    counted = (np.arange(size) < declared) | (given is not None)
    filled = [_number(given, attribute.name, is_used=size > declared)] * (size - declared)
    lows, highs = (np.append(np.asarray(end, np.float64), filled) for end in ends)
    return Numbers(place, lows, highs, counted, texts, attribute.dated, means.get(attribute.name))


def _number(given: str | None, name: str, *, is_used: bool) -> float:
    """What a missing value counts as: 0 where none is given, which is then left out."""
    if given is None:
        return 0.0
    if not is_used:
        raise SpecError(f"attribute {name!r} has no category for missing values: leave `with missing as {given}` out")
    try:
        number = float(given)
    except ValueError:
        number = np.inf
    if not abs(number) < 2.0**63:
        raise SpecError(f"attribute {name!r}: expected a number after `with missing as` instead of {given!r}")
    return number


@dataclass(frozen=True, eq=False)
class Term:
    """A number for each code of an attribute."""

    text: str  # as it was asked for
    attribute: int  # its place
    values: NDArray[np.float64]  # of shape (cardinality,)
    counted: Mask  # records with other codes are left out; their value is 0
    has_bins: bool = False  # whether a value stands for several numbers

    @property
    def key(self) -> Key:
        """Equal for terms that are the same function of the records."""
        return self.attribute, self.values.tobytes()


@dataclass(frozen=True, eq=False)
class Regression:
    """A regression."""

    text: str
    is_logistic: bool
    outcome: Term
    terms: tuple[Term, ...]  # without the constant
    where: Condition  # that its records meet, without those that a term leaves out

    @property
    def names(self) -> list[str]:
        """The texts of the coefficients, the constant first."""
        return [CONSTANT, *(term.text for term in self.terms)]

    @property
    def key(self) -> Key:
        """Equal for regressions that have the same coefficients, in whatever order."""
        boxes = frozenset(
            frozenset((i, mask.tobytes()) for i, mask in box.items() if not mask.all()) for box in self.where.boxes
        )
        return self.is_logistic, self.outcome.key, frozenset(term.key for term in self.terms), boxes


def hidden(text: str) -> str:
    """A text with every letter between quotes replaced, so that words of the grammar are not found there."""
    return _QUOTED.sub(lambda match: "q" * len(match.group()), text)


def asks_for_regression(text: str) -> bool:
    """Whether a question has the form of a regression."""
    return _REGRESSION.fullmatch(hidden(text)) is not None


def parse_regression(text: str, schema: Schema, means: Means = MappingProxyType({})) -> Regression:
    """Read a regression. Raises SpecError: it is not of the grammar, names no attribute, or one without numbers; the
    message says what to write.
    """
    found = _REGRESSION.fullmatch(hidden(text))
    if found is None:
        raise SpecError(
            f"the regression {text!r} cannot be read: write `regression OUTCOME on TERM, TERM`, such as "
            "\"logistic regression income = '>50K' on age, sex = 'Male'\""
        )
    kind, outcome, listed, where = (
        None if start < 0 else text[start:end] for start, end in (found.span(k) for k in range(1, 5))
    )
    asked = everything() if where is None else parse_condition(where, schema)
    terms = tuple(parse_term(part, schema, means) for part in listed_in(listed or ""))
    target = parse_term(outcome or "", schema, means)
    condition = asked
    for term in (target, *terms):
        condition = condition.within({term.attribute: term.counted})
    if not condition.boxes:
        raise SpecError(
            f"the regression {text!r} is of no record: no record can meet its condition and have all values (NAME with "
            "missing as 0 counts missing ones)"
        )
    regression = Regression(text, kind is not None, target, terms, condition)
    if regression.is_logistic and set(np.unique(target.values[target.counted])) - {0.0, 1.0}:
        raise SpecError("the outcome of a logistic regression is a condition, such as: income = 2")
    return regression


def parse_term(text: str, schema: Schema, means: Means = MappingProxyType({})) -> Term:
    """An attribute's numbers, or whether a condition on one holds. Raises SpecError: as `parse_regression`."""
    if text.strip().strip("`") in schema.names or _NUMBERED.search(hidden(text)):
        numbers = numbers_in(text, schema, means=means)
        return Term(text, numbers.place, numbers.middles, numbers.counted, numbers.has_bins)
    condition = parse_condition(text, schema)
    if len(condition.attributes) != 1:
        raise SpecError(f"the term {text!r} is not of one attribute: products of attributes are not admitted")
    (place,) = condition.attributes
    attribute = schema.attributes[place]
    counted = np.ones(attribute.cardinality, bool)
    if attribute.missing_code is not None and not condition.names_missing:
        counted[attribute.missing_code] = False
    return Term(text, place, (condition.admitted(place, attribute.cardinality) & counted).astype(np.float64), counted)


def listed_in(text: str) -> list[str]:
    """What stands between commas outside of quotes and parentheses."""
    found, depth, start = [], 0, 0
    for k, letter in enumerate(hidden(text)):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            found.append(text[start:k])
            start = k + 1
    return [part.strip() for part in (*found, text[start:])]
