"""Days and moments as integers: days since 1970, or seconds since its first one, and periods of the calendar.

No attribute has a time zone: a moment is what the clock at its place showed.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpdist.spec.strict import Frozen

DAY = 86_400  # seconds
_FIRST_MONDAY = 4  # of 1970, in days
_EXAMPLES = {"date": "'2024-02-29'", "datetime": "'2024-02-29 13:45:00'"}
_SECONDS = {"minute": 60, "hour": 3_600, "day": DAY, "week": 7 * DAY}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}

DatedKind = Literal["date", "datetime"]


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


def period_numbers(starts: NDArray[Any], every: Every, kind: DatedKind) -> list[int]:
    """Return which period each of some starts of bins is in."""
    found = periods(int(starts[0]), int(starts[-1]), every, kind)
    return [int(place) for place in np.searchsorted(found, starts, side="right")]
