"""A series: one spec for the releases of every month, and of the quarters and years that these make up.

The spec's epsilon is what a record may lose over all: it is in one month, one quarter and one year, each of which
measures it with a share of mu^2, and Gaussian charges add up in mu^2. A part of delta is kept for what the draws of all
three may miss. A period is read as a spec of its own: name, files, epsilon and evidence follow from its label, such as
``2026-03``, ``2026-q1``, ``2026-year``, or ``2026-03-v2`` after a correction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from dpdist.errors import SpecError
from dpdist.spec.strict import Exact, Section
from dpdist.spec.validation import MONTH, PERIOD, validated

Step = Literal["month", "quarter", "year"]
Steps: Final[dict[Step, int]] = {"month": 1, "quarter": 3, "year": 12}
KEPT: Final = Fraction(1, 64)  # of delta, for draws: a third of it for the release of each period
FIELD: Final = re.compile(r"\{date(?::([^{}]*))?\}")
EARLIER: Final = {"month": "????-[01][0-9]*", "quarter": "????-q[1-4]*", "year": "????-year*"}
"""Patterns of the folders of earlier periods of each kind."""

Month = Annotated[str, Field(pattern=f"^{MONTH}$")]
Label = Annotated[str, Field(pattern=f"^{PERIOD}$")]


class SeriesSpec(Section):
    """Releases of every month, and of quarters and years from them; `privacy.epsilon` is that of a record over all."""

    every: Literal["month"]
    """A release of each month; `data.path` has it as {date:%Y-%m}, and `data.minimum_records` is that of a month."""
    first: Month
    """The first month, such as 2026-01."""
    roll_up: tuple[Literal["quarter", "year"], ...] = ()
    """Longer periods that are released, too, with their months as evidence."""
    shares: dict[Step, Annotated[Exact, Field(gt=0)]]
    """Share of the budget (of mu^2) of the month, the quarter and the year; they sum to 1."""
    skip: tuple[Month, ...] = ()
    """Months that never come: their quarter and their year are made without them."""
    versions: dict[Label, Annotated[int, Field(ge=2, le=99)]] = Field(default_factory=dict)
    """Periods whose table was corrected: the number of the version, a release with a charge of its own."""
    priorities: dict[Step, Annotated[float, Field(gt=0, le=100)]] = Field(default_factory=dict)
    """Weights of months, quarters and years, by which `dpdist plan --solve` finds the shares; others have 1."""
    period: Label | None = None
    """The period to release; default: the last month that has ended."""
    epsilon: Annotated[float | None, Field(gt=0)] = None
    """Epsilon of a record over all, once a period is chosen."""

    @model_validator(mode="after")
    def _consistent(self) -> SeriesSpec:
        if set(self.shares) != {"month", *self.roll_up} or sum(self.shares.values()) != 1:
            raise ValueError(f"shares: one for {', '.join(self.steps)}, with the sum 1")
        corrected = [p for p in self.versions if step_of(p) not in self.steps or not self.parts(p)]
        if wrong := [*corrected, *(month for month in self.skip if month < self.first)]:
            raise ValueError(f"versions, skip: {wrong[0]} is no period of the series: see `first` and `roll_up`")
        return self

    @property
    def steps(self) -> tuple[Step, ...]:
        """The kinds of periods, the shortest first."""
        return ("month", *(step for step in ("quarter", "year") if step in self.roll_up))

    def ended(self, day: date) -> Iterator[str]:
        """The periods that ended before a day, in order: a month, then what it is the last month of."""
        years = range(int(self.first[:4]), day.year + 1)
        for month in (f"{year}-{number:02d}" for year in years for number in range(1, 13)):
            if self.first <= month < f"{day:%Y-%m}":
                of_month = (p for p in (month, *periods_of(month)) if months_of(p)[-1] == month)
                yield from (period for period in of_month if step_of(period) in self.steps and self.parts(period))

    def parts(self, period: str) -> tuple[str, ...]:
        """The months that a period is made of."""
        return tuple(month for month in months_of(period) if month >= self.first and month not in self.skip)

    def named(self, period: str) -> str:
        """The label of the newest version of a period."""
        return f"{period}-v{self.versions[period]}" if period in self.versions else period


def step_of(period: str) -> Step:
    """The kind of a period."""
    return "year" if period.endswith("year") else "quarter" if "q" in period else "month"


def months_of(period: str) -> tuple[str, ...]:
    """All months of a period."""
    year, _, part = period.partition("-")
    length = Steps[step_of(period)]
    last = 12 if part == "year" else length * int(part.lstrip("q"))
    return tuple(f"{year}-{month:02d}" for month in range(last - length + 1, last + 1))


def periods_of(month: str) -> tuple[str, str]:
    """The quarter and the year that a month is in."""
    year, number = month[:4], int(month[5:])
    return f"{year}-q{(number + 2) // 3}", f"{year}-year"


def version_of(label: str) -> tuple[str, int]:
    """A label without the number of a correction, and the number."""
    match = re.fullmatch(r"(.+)-v(\d{1,2})", label)
    return (label, 1) if match is None else (match[1], int(match[2]))


def kind_of(label: str) -> Step | None:
    """The kind of period that has this label, in any version; None where none has."""
    period, _ = version_of(label)
    return step_of(period) if re.fullmatch(PERIOD, period) else None


def times_of(labels: Sequence[str]) -> list[int]:
    """When releases are of: periods of one kind by the calendar, which may miss some; others one after another."""
    kinds = set(map(kind_of, labels))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        return list(range(len(labels)))
    ends = [months_of(version_of(label)[0])[-1] for label in labels]
    return [(12 * int(end[:4]) + int(end[5:])) // Steps[kind] for end in ends]


@lru_cache(maxsize=64)
def epsilon_of(epsilon: float, delta: float, share: Fraction) -> float:
    """Epsilon, at the same delta, of a share of the mu^2 of a budget, rounded down to six digits."""
    from dpdist.privacy.gdp import largest_mu_squared, least_epsilon

    whole = largest_mu_squared(epsilon=Fraction(repr(epsilon)), delta=Fraction(repr(delta)) * (1 - KEPT))
    found = least_epsilon(mu_squared=whole * share, delta=Fraction(repr(delta)))
    step = 10.0 ** (math.floor(math.log10(max(found, 1e-12))) - 5)
    return round(math.floor(found / step) * step, 12)


def is_whole(tree: Any, settings: Mapping[str, Any]) -> bool:
    """Whether the settings of a spec are those of a series, and choose no period of it."""
    series = tree.get("series") if isinstance(tree, Mapping) else None
    return isinstance(series, Mapping) and not (series.get("period") or settings.get("series.period"))


def in_period(tree: Mapping[str, Any], *, day: date | None) -> dict[str, Any]:
    """The settings of the release of one period, from those of a series. Raises SpecError: a setting of the series is
    not valid, or its period is not one of its own.
    """
    series = validated(SeriesSpec, tree["series"], "series", what="section")
    if series.epsilon is not None:
        return dict(tree)  # a period was chosen
    out = {name: dict(part) if isinstance(part, Mapping) else part for name, part in tree.items()}
    sections = [out.setdefault(name, {}) for name in ("data", "output", "privacy", "model", "synthesis")]
    if not all(isinstance(section, dict) for section in sections):
        raise SpecError("expected the settings of `data`, `output` and `privacy` as sections")
    data, output, privacy, model, synthesis = sections
    ended = [period for period in series.ended(day_of(out.pop("date", None), day)) if step_of(period) == "month"]
    period = series.period or (ended or [series.first])[-1]
    months, step, place = series.parts(period), step_of(period), str(output.get("path", "")).rstrip("/")
    if step not in series.steps or not months:
        raise SpecError(f"series.period: {period} is no period of the series: see `first`, `skip` and `roll_up`")
    if "evidence" in model:
        raise SpecError("model.evidence: a series names its own earlier releases: leave it out")
    given = data.get("path") or ()
    paths = given if isinstance(given, list | tuple) else [given]
    if any(len({filled(path, date(*one)) for one in ((2025, 1, 1), (2026, 1, 1), (2026, 2, 1))}) < 3 for path in paths):
        raise SpecError("data.path: of a series, write the month as {date:%Y-%m}")
    data["path"] = [filled(path, date.fromisoformat(f"{month}-01")) for month in months for path in paths]
    for section, name in ((data, "minimum_records"), (synthesis, "records")):
        if isinstance(section.get(name), int):
            section[name] *= len(months)
    whole, delta = (privacy.get(name, 0) for name in ("epsilon", "delta"))
    if not all(isinstance(number, int | float) and 0 < number < math.inf for number in (whole, delta)):
        raise SpecError("privacy: of a series, expected `epsilon` and `delta` of a record over all")
    privacy["epsilon"] = epsilon_of(float(whole), float(delta), series.shares[step])
    quarters = tuple(dict.fromkeys(periods_of(month)[0] for month in months)) if "quarter" in series.steps else ()
    made_of = {"month": ((), ()), "quarter": (months, ()), "year": (months, quarters)}[step]
    sums, larger = ([f"{place}/{series.named(part)}" for part in parts] for parts in made_of)
    model["evidence"] = {"previous": [f"{place}/{EARLIER[step]}"], "sum": sums, "larger": larger}
    label = series.named(period)
    output["path"] = f"{place}/{label}"
    out["series"] = {**tree["series"], "period": period, "epsilon": whole}
    return out | ({"name": f"{out['name']}-{label}"} if out.get("name") else {})


def day_of(text: Any, day: date | None = None) -> date:
    """The day that the setting `date` has; where it is not set another one, or today (UTC). Raises SpecError: it is no
    day.
    """
    if text is None:
        return day or datetime.now(UTC).date()
    with suppress(TypeError, ValueError):
        if (found := date.fromisoformat(text)).isoformat() == text:
            return found
    raise SpecError("date: expected a day such as 2026-03-01 (in YAML in quotes)")


def filled(value: Any, day: date) -> Any:
    """A setting, or each of several, with its fields ``{date:…}`` filled."""
    if isinstance(value, list | tuple):
        return [filled(one, day) for one in value]
    return FIELD.sub(lambda match: day.strftime(match[1] or ""), value) if isinstance(value, str) else value
