"""Quantities that questions ask for: counts, shares, means, quantiles; and what is public about their size."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpdist.errors import SpecError
from dpdist.spec.conditions import Condition, Mask, everything, parse_condition
from dpdist.spec.regression import MISSING_AS, Numbers, numbers_in
from dpdist.spec.schema import Schema

Range = tuple[float, float]
"""The least and the largest number that a quantity can be; infinite where nothing public says it."""

ANY = (-math.inf, math.inf)

_QUANTITY = re.compile(
    r"\s*(?:(?P<counted>count|share)|(?:(?P<averaged>mean|median)|quantile\s+(?P<level>[0-9]*\.?[0-9]+))\s+(?:of\s+)?"
    rf"(?P<numbers>(?:`[^`]+`|\S+)(?:{MISSING_AS}\S+)?))(?:\s+where\s+(?P<where>.+))?\s*\Z",
    re.DOTALL,
)


@dataclass(frozen=True, eq=False)
class Quantity:
    """A count, a share, a mean or a quantile."""

    text: str
    kind: Literal["count", "share", "mean", "quantile"]
    condition: Condition  # of which records
    numbers: Numbers | None = None  # of which attribute; None of counts and shares
    level: float = math.nan  # of a quantile

    @property
    def attributes(self) -> tuple[int, ...]:
        """The attributes that it depends on, ascending."""
        own = () if self.numbers is None else (self.numbers.place,)
        return tuple(sorted({*own, *self.condition.attributes}))

    @property
    def values(self) -> Numbers:
        """The numbers of its attribute. Raises ValueError: it is a count or a share."""
        if self.numbers is None:
            raise ValueError(f"{self.text!r} is of no attribute")
        return self.numbers

    @property
    def admitted(self) -> Mask:
        """The codes of its attribute that some record has which it is of."""
        counted = self.values.counted
        return self.condition.admitted(self.values.place, len(counted)) & counted

    @property
    def range(self) -> Range:
        """What it can be, by the schema alone."""
        if self.numbers is None:
            return 0.0, 1.0 if self.kind == "share" else math.inf
        inside = self.admitted
        if not inside.any():
            raise SpecError(f"no record can meet the condition {self.condition.text!r} and have a value")
        return float(self.numbers.lows[inside].min()), float(self.numbers.highs[inside].max())


def parse_quantity(text: str, schema: Schema) -> Quantity:
    """Read ``count``, ``share``, ``mean NAME``, ``median NAME`` or ``quantile Q NAME``, and ``where``.

    Raises
    ------
    SpecError
        It cannot be read, or its attribute has no numbers (of quantiles: no order).
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise SpecError(
            f"the question {text.strip()!r} cannot be read: ask for count, share, mean NAME, median NAME or quantile "
            '0.9 NAME, such as "mean age where sex = 1"'
        )
    where = everything() if match["where"] is None else parse_condition(match["where"], schema)
    if match["counted"]:
        return Quantity(text, "count" if match["counted"] == "count" else "share", where)
    is_mean = match["averaged"] == "mean"
    level = 0.5 if match["averaged"] == "median" else float(match["level"] or math.nan)
    if not is_mean and not 0 < level < 1:
        raise SpecError("a quantile has a level between 0 and 1, such as: quantile 0.9 age")
    numbers = numbers_in(match["numbers"], schema, ordered=not is_mean)
    return Quantity(text, "mean" if is_mean else "quantile", where, numbers, level)


def difference_range(left: Range, right: Range) -> Range:
    """What the difference of two quantities can be."""
    return left[0] - right[1], left[1] - right[0]


def ratio_range(left: Quantity, right: Quantity) -> Range:
    """What the ratio of two quantities can be: of counts at most 1 where one is a part of the other."""
    if left.numbers is None and right.numbers is None:
        is_part = False
        if left.kind == right.kind:
            with suppress(SpecError):  # too many cases to tell
                is_part = left.condition.implies(right.condition)
        return 0.0, 1.0 if is_part else math.inf
    (a, b), (c, d) = left.range, right.range
    if c > 0 or d < 0:
        ends = [x / y if math.isfinite(x) or math.isfinite(y) else math.nan for x in (a, b) for y in (c, d)]
        return ANY if np.isnan(ends).any() else (min(ends), max(ends))
    return (0.0 if a >= 0 and c >= 0 else -math.inf), math.inf
