"""Attributes of columns whose values nobody has declared: by them frequent values and bounds are found, with noise."""

from __future__ import annotations

import re
from typing import Any

MISSING = "missing"
"""What the cell of missing values is called."""

PRESENT = "present"
"""What all values of a column of texts are read as."""

MOST_INTEGERS = 128
"""Integers of a range up to which each can be a value."""

_EXPONENT = 62
_SMALLEST = -10  # numbers nearer to 0 than 2 to the power of it are in the bins beside 0

UNBOUNDED = 2.0**61
"""Numbers of this size are bounds that nobody has declared."""


def bounds_in(text: str) -> tuple[float, ...] | None:
    """Bounds such as ``0..99``; None where a text is something else."""
    found = re.fullmatch(r"([-+]?\d+(?:\.\d+)?)\.\.([-+]?\d+(?:\.\d+)?)", text)
    return found and tuple(float(end) if "." in end else int(end) for end in found.groups())


def undeclared(name: str, kind: Any, *, bins: int = 1) -> dict[str, Any]:
    """The attribute by which a column is read: no value is outside of it. `kind` is text, integer or number, or public
    bounds, which have this many bins.
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
    edges: dict[str, Any]
    if kind == "integer":
        ends = [1 - 2**k for k in range(_EXPONENT, 0, -1)] + [0] + [2**k for k in range(_EXPONENT)]
        bounds, edges, elsewhere["out_of_domain"] = [ends[0], 2**_EXPONENT - 1], {"edges": ends}, "clip"
    elif kind == "number":
        powers = [2.0**k for k in range(_SMALLEST, _EXPONENT)]
        bounds = [-(2.0**_EXPONENT), 2.0**_EXPONENT]
        edges = {"edges": [bounds[0], *(-power for power in reversed(powers)), 0.0, *powers]}
        elsewhere["out_of_domain"] = "clip"
    else:
        kind, bounds, edges = (
            "integer" if all(isinstance(end, int) for end in kind) else "number",
            kind,
            {"count": bins},
        )
    return {"name": name, "kind": kind, "bounds": bounds, "bins": edges, **elsewhere}
