"""Names by date: ``name: acs-{date:%Y-%m}``, so that one spec is a release of every month.

The day is that of the setting ``date``, else today (UTC). Name and output follow the same period: with a coarser path
the second release would meet the first one, and with a finer one a repeated run would not find its own release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any, Final

from dpdist.errors import SpecError

_FIELD: Final = re.compile(r"\{date(?::([^{}]*))?\}")
_DIRECTIVE: Final = re.compile("%(.?)")
_PERIODS: Final = {"Y": "year", "Ym": "month", "Ydm": "day", "Yj": "day", "GV": "week"}
"""The directives of a setting, sorted, and what they tell apart; a month without its year names next year's alike."""

_CONTAINS: Final[Mapping[str | None, tuple[str | None, ...]]] = {
    None: (None,),
    "year": (None, "year"),
    "month": (None, "year", "month"),
    "week": (None, "week"),
    "day": (None, "year", "month", "week", "day"),
}
"""The periods of which each one is a part, the longest first; without a period what never changes."""

_EXPECTED: Final = "write {date:%Y}, {date:%Y-%m}, {date:%Y-%m-%d}, {date:%Y-%j} or {date:%G-%V} (weeks)"


def dated(tree: Mapping[str, Any], *, day: date | None = None) -> dict[str, Any]:
    """A spec with the fields ``{date:…}`` of `name`, `output.path` and `data.path` filled, without the setting `date`.

    Parameters
    ----------
    tree : mapping
        The settings of a spec; left as they are.
    day : date, optional
        The day where the settings name none; by default today, in UTC.

    Raises
    ------
    SpecError
        A field is not one of those above, name and paths follow different periods, or `date` is no day.
    """
    out = dict(tree)
    chosen = out.pop("date", None)
    given = None if chosen is None else _day(chosen)
    places: list[tuple[dict[str, Any], str, str]] = [(out, "name", "name")]
    for name in ("output", "data"):
        if isinstance(out.get(name), Mapping):
            out[name] = dict(out[name])
            places.append((out[name], "path", f"{name}.path"))
    periods = {setting: _period(section.get(key), setting) for section, key, setting in places}
    _check_periods(periods)
    if periods["name"] is None:
        if given is not None:
            raise SpecError(f"date: the name of the spec does not depend on it: leave it out, or {_EXPECTED}")
        return out
    at = given or day or datetime.now(UTC).date()
    for section, key, _ in places:
        if key in section:
            section[key] = _filled(section[key], at)
    return out


def _day(text: object) -> date:
    try:
        if isinstance(text, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise SpecError("date: expected a day such as 2026-03-01 (in YAML in quotes)")


def _period(value: object, setting: str) -> str | None:
    """The shortest period that a setting tells apart; None where it has no field."""
    found: set[str | None] = {None}
    for text in value if isinstance(value, list | tuple) else [value]:
        formats = [match[1] or "" for match in _FIELD.finditer(text)] if isinstance(text, str) else []
        letters = "".join(sorted({letter for one in formats for letter in _DIRECTIVE.findall(one)}))
        if formats and letters not in _PERIODS:
            raise SpecError(f"{setting}: this date would name different periods alike, or none: {_EXPECTED}")
        found.add(_PERIODS[letters] if formats else None)
    return max(found, key=lambda period: len(_CONTAINS[period]))


def _check_periods(periods: Mapping[str, str | None]) -> None:
    """Refuse paths that do not go with the name."""
    name, data = periods["name"], periods.get("data.path")
    if periods.get("output.path", name) != name:
        raise SpecError(
            f"output.path: it changes {_words(periods['output.path'])} and the name {_words(name)}: "
            f"{'give both the same dates' if name else 'put the date into the name, too'}, so that each release has "
            "its own folder"
        )
    if data not in _CONTAINS[name]:
        raise SpecError(
            f"data.path: it changes {_words(data)} and the name {_words(name)}: a release that is repeated must find "
            "the same input"
        )


def _words(period: str | None) -> str:
    return "never" if period is None else f"every {period}"


def _filled(value: Any, day: date) -> Any:
    if isinstance(value, list | tuple):
        return [_filled(one, day) for one in value]
    return _FIELD.sub(lambda match: day.strftime(match[1]), value) if isinstance(value, str) else value
