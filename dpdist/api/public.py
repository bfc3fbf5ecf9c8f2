"""What is said to be public of a column, checked against the column's type before anything is charged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.errors import SpecError
from dpdist.spec.groups import DAY, DatedKind, number_of
from dpdist.spec.undeclared import MISSING

KINDS = ("text", "integer", "number")
"""What may be said of a column without its values or bounds."""

Kind = str
"""text, integer, number, boolean, date or datetime."""


_ALSO = {("integer", "number"), ("integer", "text"), ("number", "integer"), ("boolean", "text")}  # it is read as


def plain(name: str, said: Any) -> Any:
    """What is said as numbers, texts, lists, tuples and mappings. Raises SpecError: it is None, or has no order."""
    if said is None:
        raise SpecError(f"public: {name}: nothing is said of it: leave it out of public, and it is found")
    if isinstance(said, set | frozenset):
        raise SpecError(f"public: {name}: a set has no order: give a list of values")
    if isinstance(said, range) or (hasattr(said, "tolist") and not isinstance(said, np.generic)):
        said = [*said] if isinstance(said, range) else said.tolist()
    if isinstance(said, list | tuple):
        return type(said)(one.item() if isinstance(one, np.integer | np.floating) else one for one in said)
    return said


def kind_said(name: str, kind: Kind, said: str) -> str:
    """The kind of a column of which only its kind is said. Raises SpecError: it is none, or not that of the values."""
    if said not in (kind, *KINDS):
        raise SpecError(
            f"public: {name}: expected bounds such as (0, 110), a list of values, or one of {', '.join(KINDS)}; got "
            f"{said!r}"
        )
    if said != kind and (kind, said) not in _ALSO:
        raise SpecError(f"public: {name}: the column holds {kind}s, which are no {said}s: convert it first")
    return said


def values_of(kind: Kind, said: list[Any]) -> list[Any]:
    """Values of a column in its type. Raises ValueError: they do not fit the type, or may be meant as bounds."""
    if kind == "boolean":
        raise ValueError("the column holds booleans, whose values are public: leave it out of public")
    if kind in ("integer", "number"):
        read = [_number(one) for one in said]
        wrong = [one for one, number in zip(said, read, strict=True) if number is None]
        if wrong:
            raise ValueError(
                f"the column holds {kind}s, and {wrong[0]!r} is none; bounds are a tuple, such as (18, 64), on the "
                "command line 18..64"
            )
        if len(said) == 2:
            low, high = read
            raise ValueError(
                f"[{low}, {high}] may be two values or bounds: bounds are a tuple, ({low}, {high}), on the command "
                f"line {low}..{high}; two values are {{'values': [{low}, {high}]}}"
            )
        if len(said) > 1 and not all(isinstance(number, int) for number in read):
            raise ValueError("values of numbers are integers; of other numbers give bounds, such as (0, 110)")
        said = read
    if kind in ("date", "datetime") and len(said) == 2:
        raise ValueError(
            f"{said} may be two values or bounds: bounds are a tuple, {tuple(said)}, on the command line "
            f"{said[0]}..{said[1]}"
        )
    if kind == "text" and (wrong := [one for one in said if not isinstance(one, str)]):
        raise ValueError(f"the column holds texts, and {wrong[0]!r} is none: quote it, as it stands in the column")
    if len(said) == 1:
        raise ValueError(f"{said[0]!r} is one value: give all values, or {{'values': {said}}} if there is no other")
    return said


def _number(one: Any) -> int | float | None:
    """A number, or one that a text says."""
    if isinstance(one, str):
        try:
            one = int(one) if re.fullmatch(r"\s*[-+]?\d{1,19}\s*", one) else float(one)
        except ValueError:
            return None
    is_number = isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
    return one if is_number else None


def bounds_of(kind: Kind, said: tuple[Any, ...], dated: DatedKind | None, zone: str | None) -> tuple[Any, ...]:
    """Bounds of a column, whose moments have this zone, as numbers. Raises ValueError: they are none of its type."""
    if kind in ("boolean", "text"):
        raise ValueError(f"bounds are of numbers or days, and the column holds {kind}s: give a list of values")
    if dated is not None:
        return _ends(said, dated, zone)
    if not (len(said) == 2 and all(isinstance(end, int | float) and not isinstance(end, bool) for end in said)):
        raise ValueError("bounds are two numbers, such as (0, 110)")
    if not all(math.isfinite(end) for end in said):
        raise ValueError("bounds are finite numbers: leave it out of public, and they are found")
    return said


def _ends(said: tuple[Any, ...], dated: DatedKind, zone: str | None) -> tuple[int, ...]:
    """Bounds of days or moments as integers; a day as the upper one is in it. Moments with a zone are those of the
    clocks of the column's. Raises ValueError: they are no dates.
    """
    if len(said) != 2 or not all(isinstance(end, str | date) for end in said):
        raise ValueError("bounds are two dates, such as ('1950-01-01', '2004-12-31')")
    local = [_local(end, zone) if isinstance(end, datetime) and end.tzinfo is not None else str(end) for end in said]
    low, high = (end[:10] if dated == "date" else end.removesuffix(" 00:00:00") for end in local)
    whole = (DAY - 1) * (dated == "datetime" and len(high) == len("2004-12-31"))
    return number_of(low, dated), number_of(high, dated) + whole


def _local(moment: datetime, zone: str | None) -> str:
    """A moment by the clocks of a zone, to the second."""
    if zone is not None:
        moment = pc.local_timestamp(pa.scalar(moment).cast(pa.timestamp("us", zone))).as_py()
    return f"{moment.replace(tzinfo=None, microsecond=0):%Y-%m-%dT%H:%M:%S}"


def keys_of(name: str, kind: Kind, said: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an attribute; its kind follows from them and from the column's, where it is not said."""
    if "kind" in said:
        return {"name": name, **said}
    if "values" in said:
        elsewhere = {policy: {"category": MISSING} for policy in ("missing", "out_of_domain")}
        return {"name": name, "kind": "categorical", **elsewhere, **said}
    return {"name": name, "kind": kind if kind not in ("text", "boolean") else "categorical", **said}
