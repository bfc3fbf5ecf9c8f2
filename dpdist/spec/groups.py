"""Public groups of an attribute's values: buckets, and the levels of a hierarchy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, model_validator

from dpdist.spec.strict import Frozen, Value

if TYPE_CHECKING:
    from dpdist.spec.attribute import Attribute


LARGEST_INTEGER = 1 << 62
"""Largest absolute value of an integer in a domain."""

MAX_CARDINALITY = 65_536
"""Largest domain of one attribute, in values."""

DAY = 86_400  # seconds
_FIRST_MONDAY = 4  # of 1970, in days
_EXAMPLES = {"date": "'2024-02-29'", "datetime": "'2024-02-29 13:45:00'"}
_SECONDS = {"minute": 60, "hour": 3_600, "day": DAY, "week": 7 * DAY}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}

DatedKind = Literal["date", "datetime"]


class Category(Frozen):
    """A declared category that stands for missing or out-of-domain values."""

    category: str = Field(min_length=1, description="Label of the category.")


class Count(Frozen):
    """A number of bins of equal width (of integers: to one unit) over the bounds."""

    count: int = Field(ge=1, le=MAX_CARDINALITY, description="Number of bins.")


class Every(Frozen):
    """Periods of the calendar; weeks begin on Monday."""

    every: Literal["minute", "hour", "day", "week", "month", "quarter", "year"] = Field(
        description="Length of a period."
    )


def number_of(text: Any, kind: DatedKind) -> int:
    """Return the days of a date, or the seconds of a datetime. Raises ValueError: the text is neither."""
    try:
        if kind == "date":
            return date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None and not moment.microsecond:
            return (moment - datetime(1970, 1, 1)) // timedelta(seconds=1)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"expected a {kind} in quotes, such as {_EXAMPLES[kind]}, instead of {text!r}")


def text_of(number: int, kind: DatedKind) -> str:
    """Return a day or a moment as `number_of` reads it."""
    moment = datetime(1970, 1, 1) + timedelta(days=number) if kind == "date" else _moment(number)
    return moment.date().isoformat() if kind == "date" else moment.isoformat(" ")


def _moment(seconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=seconds)


def periods(low: int, high: int, every: Every, kind: DatedKind) -> NDArray[np.int64]:
    """Return where the periods between two ends begin: the lower end first, int64, ascending. Raises ValueError: a day
    has no such parts.
    """
    unit = 1 if kind == "date" else DAY  # of a day
    if every.every in _MONTHS:
        step = _MONTHS[every.every]
        first = np.datetime64(low // unit, "D").astype("datetime64[M]").astype(np.int64)
        last = np.datetime64(high // unit, "D").astype("datetime64[M]").astype(np.int64)
        months = np.arange(first // step * step, last + 1, step)
        starts = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) * unit
    else:
        length = _SECONDS[every.every] * unit // DAY
        if not length:
            raise ValueError(f"a date has no {every.every}s: kind: datetime has them")
        offset = _FIRST_MONDAY * unit if every.every == "week" else 0
        starts = np.arange((low - offset) // length * length + offset, high + 1, length)
    return np.append(low, starts[starts > low])


Number = Annotated[int | FiniteFloat, Field(union_mode="smart")]


class Width(Frozen):
    """Buckets of equal width, in consecutive values."""

    width: int = Field(ge=1, description="Number of consecutive values in a bucket.")


class Edges(Frozen):
    """Intervals given by the lower edge of each; the first is the lower bound of the domain."""

    edges: tuple[Number, ...] = Field(min_length=1, description="Lower edges, strictly increasing.")

    @model_validator(mode="after")
    def _increasing(self) -> Edges:
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges must be strictly increasing")
        return self


class Groups(Frozen):
    """Buckets as lists of values; each value stands in exactly one."""

    groups: tuple[tuple[Value, ...], ...] = Field(min_length=1, description="One list of values per bucket.")


class Prefix(Frozen):
    """Groups of values that begin with the same characters."""

    prefix: int = Field(ge=1, description="Number of first characters of each value, which are all texts.")


Grouping = Prefix | Width | Edges | Groups | Every | tuple[int, ...]
"""How groups are written; of numbers, one for each value."""


def group_map(attribute: Attribute, groups: Grouping | None, what: str) -> NDArray[np.uint32]:
    """Return the group of each code, shape (cardinality,), numbered in order of first appearance. A missing category is
    a group of its own. Raises ValueError: groups do not fit the values; `what` they are stands in the message.
    """
    size = attribute.cardinality - (attribute.missing_code is not None)
    raw: Sequence[int]
    if groups is None:
        raw = range(size)
    elif isinstance(groups, Width):
        raw = [code // groups.width for code in range(size)]
    elif isinstance(groups, Edges):
        raw = _between(attribute, groups, what)
    elif isinstance(groups, Every):
        if attribute.dated is None:
            raise ValueError(f"{what}s by {{every: {groups.every}}} need a date or a datetime")
        found = periods(int(attribute.bin_edges[0]), int(attribute.bin_edges[-1]), groups, attribute.dated)
        raw = [int(place) for place in np.searchsorted(found, attribute.bin_edges, side="right")]
    elif isinstance(groups, Prefix):
        raw = _beginning(attribute, groups.prefix)
    elif isinstance(groups, Groups):
        raw = _listed(attribute, groups, what)
    elif len(groups) != size:
        raise ValueError(f"expected {size} {what} numbers, one per value")
    else:
        raw = groups
    dense: dict[int, int] = {}
    out = [dense.setdefault(int(group), len(dense)) for group in raw]
    if attribute.missing_code is not None:
        out.append(len(dense))
    result = np.array(out, np.uint32)
    result.setflags(write=False)
    return result


def level_maps(attribute: Attribute) -> tuple[NDArray[np.uint32], ...]:
    """Return the groups of each level. Raises ValueError: a level is no function of the one before."""
    maps = tuple(group_map(attribute, level, "level") for level in attribute.levels)
    for number, (fine, coarse) in enumerate(pairwise(maps), 2):
        if np.unique(np.stack([fine, coarse]), axis=1).shape[1] > int(fine.max()) + 1:
            raise ValueError(
                f"level {number} is no function of level {number - 1}: one group there has values of several here; "
                "order levels from fine to coarse"
            )
    return maps


def _beginning(attribute: Attribute, length: int) -> list[int]:
    """Numbers of the groups of values that begin with the same characters."""
    if not attribute.values or any(isinstance(value, int) for value in attribute.values):
        raise ValueError(
            "a level by `prefix` needs values that are texts; group numbers by {edges: [...]} or {width: w}"
        )
    found: dict[str, int] = {}
    return [found.setdefault(str(value)[:length], len(found)) for value in attribute.values]


def _listed(attribute: Attribute, groups: Groups, what: str) -> list[int]:
    """Numbers of the lists that values stand in, each in exactly one."""
    if attribute.kind == "number":
        raise ValueError(f"numbers have {what}s by {{width: w}} or {{edges: [...]}}")
    names = list(map(str, attribute.values if attribute.values is not None else attribute.bin_edges.tolist()))
    listed = Counter(str(value) for group in groups.groups for value in group)
    for where, wrong in (
        ("in none", [name for name in names if name not in listed]),
        ("no value", sorted(set(listed) - set(names))),
        ("there more than once", [name for name, times in listed.items() if times > 1]),
    ):
        if wrong:
            more = f" and {len(wrong) - 3:,} more are" if len(wrong) > 3 else " is" if len(wrong) == 1 else " are"
            shown = f"{', '.join(map(repr, wrong[:3]))}{more} {where}"
            raise ValueError(f"each value stands in exactly one {what} group, and {shown}")
    number = {str(value): place for place, group in enumerate(groups.groups) for value in group}
    return [number[name] for name in names]


def _between(attribute: Attribute, groups: Edges, what: str) -> list[int]:
    """Numbers of the intervals that values are in: of bins, or of values that are integers."""
    if attribute.bounds is not None:
        lows: Any = attribute.bin_edges
        if groups.edges[0] != attribute.bounds[0]:
            raise ValueError(f"{what} edges start at the lower bound")
    elif all(isinstance(value, int) for value in attribute.values or ("",)):
        lows = np.array(attribute.values)
        if groups.edges[0] > lows.min():
            raise ValueError(f"{what} edges start at the least value or below")
    else:
        raise ValueError(f"{what} edges need an integer or number attribute, or integers")
    return [int(place) for place in np.searchsorted(groups.edges, lows, side="right")]
