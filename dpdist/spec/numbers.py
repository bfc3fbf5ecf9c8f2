"""The numbers of an attribute's codes, as means, quantiles and regressions ask for them.

``NAME`` leaves missing values out, as statistical packages do; ``NAME with missing as 0`` counts them as that number.
Integers and bins are numbers, and are ordered as such whatever the order of their declaration. Texts of an ordinal
attribute have an order, the declared one, but no numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError
from dpdist.spec.conditions import Mask, ends_of, named, texts_of
from dpdist.spec.schema import Schema

MISSING_AS = r"\s+with\s+missing\s+as\s+"
_GIVEN = re.compile(rf"(.+?)(?:{MISSING_AS}(\S+))?", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers of an attribute's codes."""

    place: int  # of the attribute
    lows: NDArray[np.float64]  # lows, highs: the ends of what each code stands for; 0 where it does not count
    highs: NDArray[np.float64]
    counted: Mask  # which codes count: all but the category for missing values, unless it was given a number
    texts: tuple[str, ...] = ()  # of an ordinal attribute of texts: its values, whose places are the numbers

    @property
    def middles(self) -> NDArray[np.float64]:
        """The number that each code counts as."""
        return np.asarray((self.lows + self.highs) / 2)

    @property
    def order(self) -> NDArray[np.intp]:
        """The codes that count, in ascending order."""
        order = np.lexsort((self.highs, self.lows))
        return order[self.counted[order]]

    def shown(self, number: float) -> float | str:
        """A number as a reader sees it."""
        return self.texts[int(number)] if self.texts else float(number)


def numbers_in(text: str, schema: Schema, *, ordered: bool = False) -> Numbers:
    """Read ``NAME`` or ``NAME with missing as NUMBER``. With `ordered`, an order is enough, which texts of ordinal
    attributes have. Raises SpecError: there is no such attribute, it has no numbers (or no order), or the number for
    missing values is no number or has no use.
    """
    match = _GIVEN.fullmatch(text.strip())
    name, given = match.groups() if match else (text, None)
    place, attribute = named(name.strip().strip("`"), schema)
    ends = ends_of(attribute)
    texts: tuple[str, ...] = ()
    if ends is None and ordered and attribute.kind == "ordinal" and given is None:
        texts = tuple(texts_of(attribute))
        ends = np.arange(len(texts)), np.arange(len(texts))
    if ends is None:
        raise SpecError(
            f"attribute {attribute.name!r} has no {'order' if ordered else 'numbers'}: ask for shares of its values, "
            f"or in a regression for a condition such as {attribute.name} = …"
        )
    declared, size = len(ends[0]), attribute.cardinality
    counted = (np.arange(size) < declared) | (given is not None)
    filled = [_number(given, attribute.name, is_used=size > declared)] * (size - declared)
    lows, highs = (np.append(np.asarray(end, np.float64), filled) for end in ends)
    return Numbers(place, lows, highs, counted, texts)


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
