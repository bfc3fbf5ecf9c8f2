"""Attributes of columns whose values nobody has declared: by them frequent values and bounds are found, with noise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dpdist.spec.groups import DAY, DatedKind, Edges, number_of

if TYPE_CHECKING:
    from dpdist.spec.attribute import Attribute

MISSING = "missing"
"""What the cell of missing values is called."""

OTHERS = "other values"
"""The category of all values that are not named."""

PRESENT = "present"
"""What all values of a column of texts are read as."""

MOST_INTEGERS = 128
"""Integers of a range up to which each can be a value."""

_EXPONENT = 62
_SMALLEST = -10  # numbers nearer to 0 than 2 to the power of it are in the bins beside 0

_UNBOUNDED = 2.0**61  # numbers of this size are bounds that nobody has declared
_YEARS = (1, 1700, 1800, 1850, *range(1900, 2051, 10), 2100, 2200)  # that coarse bins of dates begin with
_LAST_DAY = number_of("9999-12-31", "date")  # often stands for none: a bin of its own


def bounds_in(text: str) -> tuple[Any, ...] | None:
    """Bounds such as ``0..99`` or ``1950-01-01..2004-12-31``, days as texts; None where a text is something else."""
    if found := re.fullmatch(r"(\d{4}-\d\d-\d\d[^.]*)\.\.(\d{4}-\d\d-\d\d[^.]*)", text):
        return found.groups()
    found = re.fullmatch(r"([-+]?\d+(?:\.\d+)?)\.\.([-+]?\d+(?:\.\d+)?)", text)
    return found and tuple(float(end) if "." in end else int(end) for end in found.groups())


def is_unbounded(attribute: Attribute) -> bool:
    """Whether nobody has declared the bounds of an attribute that is not one of texts."""
    last = {"date": _LAST_DAY, "datetime": _LAST_DAY * DAY}.get(attribute.kind, _UNBOUNDED)
    return attribute.bounds is not None and attribute.bounds[1] >= last


def undeclared(
    name: str, kind: Any, *, bins: int = 1, dated: DatedKind | None = None, nullable: bool = True
) -> dict[str, Any]:
    """The attribute by which a column is read: no value is outside of it. `kind` is text, integer, number, date or
    datetime, or public bounds, which have this many bins and may be `dated`. Numbers that are not `nullable` cannot be
    missing, by their type.
    """
    elsewhere: dict[str, Any] = {"missing": {"category": MISSING}, "out_of_domain": {"category": MISSING}}
    if kind == "text":
        return {
            "name": name,
            "kind": "categorical",
            "values": [PRESENT],
            "missing": {"category": MISSING},
            "out_of_domain": {"category": PRESENT},
        }
    bounds: Any
    edges: Any
    if kind == "integer":
        ends = [1 - 2**k for k in range(_EXPONENT, 0, -1)] + [0] + [2**k for k in range(_EXPONENT)]
        bounds, edges, elsewhere["out_of_domain"] = [ends[0], 2**_EXPONENT - 1], {"edges": ends}, "clip"
    elif kind == "number":
        powers = [2.0**k for k in range(_SMALLEST, _EXPONENT)]
        bounds = [-(2.0**_EXPONENT), 2.0**_EXPONENT]
        edges = {"edges": [bounds[0], *(-power for power in reversed(powers)), 0.0, *powers]}
        elsewhere["out_of_domain"] = "clip"
    elif kind in ("date", "datetime"):
        unit = 1 if kind == "date" else DAY
        days = [*(number_of(f"{year:04}-01-01", "date") for year in _YEARS), _LAST_DAY]
        bounds, edges = (days[0] * unit, (_LAST_DAY + 1) * unit - 1), Edges(edges=tuple(day * unit for day in days))
    else:
        whole = all(isinstance(end, int) for end in kind)
        kind, bounds, edges = dated or ("integer" if whole else "number"), kind, {"count": bins}
    if not nullable:
        elsewhere = {"missing": "drop", "out_of_domain": "clip"}
    return {"name": name, "kind": kind, "bounds": bounds, "bins": edges, **elsewhere}
