"""Questions over time, of the releases of one population at several times.

Levels, changes, sums, averages and trends of a count or share are sums of the levels of the periods with weights. They
are asked of the joint law of all levels given all measured tables, and not of each release by itself: a level is that
of a random walk, whose steps have the variance q, and of the persons of the period, with the variance s
(`dpdist.model.evidence`). Both are estimated from published tables, so intervals count the drift. Once the quarters and
years of a series are there, what they measured of sums of its months counts, too, and answers name them. A period
that did not measure the table of a question lies between those that did; or the answers of the releases are compared,
as if their errors added up, where that is nearer.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdist.errors import DataNotFound, SpecError
from dpdist.inference.answers import ANY, NORMAL_95, Answer, Quantity, around, infer, parse_quantity
from dpdist.inference.published import Published
from dpdist.model.drift import Drift, spread_of
from dpdist.model.earlier import is_pattern, releases_at
from dpdist.model.evidence import Earlier, Evidence, Related, combined
from dpdist.privacy.arrays import Floats
from dpdist.privacy.formatting import Displayed, Fact, folded, lines_of, number_of
from dpdist.spec.conditions import Mask
from dpdist.spec.series import kind_of, times_of

if TYPE_CHECKING:
    from pandas import DataFrame

_ASKED = re.compile(
    r"\s*(?P<kind>change|sum|average|trend|moving average)\s+of\s+(?P<quantity>.+?)(?:\s+over\s+(?P<over>\d+))?"
    r"(?:\s+(?:between|from)\s+(?P<first>\S+)\s+(?:and|to)\s+(?P<last>\S+))?\s*\Z",
    re.DOTALL,
)
_UNKNOWN = 1e3  # deviation of the level of the first period, before anything is known, in those of what is measured
_APART = "a period did not measure this table: errors of the periods are taken to add up"

Sum = tuple[Floats, float | Floats, float]
"""Weights of the periods, the noisy sum of their levels (or several), and its variance."""

Found = tuple[Floats, Floats, str]
"""Estimates of sums of levels, deviations of their errors, and a note."""

RollUp = tuple[str, Published, Floats]
"""A quarter or a year that was made of periods of a series: its name, and the part of its records that each has."""


def _parts(release: Published, periods: Sequence[Published]) -> Floats | None:
    """The part of a release's records that each period has; None unless each month that it was made of is one of these,
    in that version.
    """
    named = release.manifest.learned.get("evidence", {}) if release.measurements is not None else {}
    parts = {one["attempt"] for one in named.get("sum", ())}
    records = np.array([one.records * (one.manifest.attempt in parts) for one in periods], np.float64)
    return records / records.sum() if parts and np.count_nonzero(records) == len(parts) else None


@dataclass(frozen=True, eq=False, repr=False)
class Series(Displayed):
    """Releases of one population, in the order of time."""

    periods: tuple[str, ...]  # names of their folders
    releases: tuple[Published, ...]
    roll_ups: tuple[RollUp, ...] = ()

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        public_key: Ed25519PublicKey | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Series:
        """Open the releases in a folder, in the order of their names; the last part may be a pattern: ``made/2026-??``.
        Of the folder of a series these are its months, each in its newest version, with the quarters and years that
        were made of these versions.

        Raises
        ------
        DataNotFound
            There are fewer than two releases.
        SpecError
            They have different schemas.
        """
        place, options = os.fspath(uri).rstrip("/"), storage_options or {}
        opened = {
            path.rpartition("/")[2]: Published.open(path, public_key, storage_options=options)
            for path in releases_at(place if is_pattern(place) else f"{place}/*", options)
        }
        rolled = {name for name in opened if not is_pattern(place) and kind_of(name) in ("quarter", "year")}
        periods = {name: one for name, one in opened.items() if name not in rolled}
        if len(periods) < 2:
            raise DataNotFound(f"{uri}: expected the folders of two releases or more, of one period each")
        first, *releases = periods.values()
        for name, release in periods.items():
            if release.schema.cardinalities != first.schema.cardinalities:
                raise SpecError(f"{uri}: the releases {next(iter(periods))} and {name} have different schemas")
        weights = {name: _parts(opened[name], [first, *releases]) for name in opened if name in rolled}
        roll_ups = tuple((name, opened[name], of) for name, of in weights.items() if of is not None)
        return cls(tuple(periods), (first, *releases), roll_ups)

    def answer(self, question: str) -> list[Answer]:
        """Answer ``change of share where … between A and B``, ``sum``, ``average`` or ``trend of … from A to B``, where
        A and B are periods (default: the first and the last), ``moving average of … over 3``, or a count or share: of
        each period.

        Raises
        ------
        SpecError
            The question cannot be read, or is no count or share; or a period is not there.
        """
        match, name, number = _ASKED.fullmatch(question), question.strip(), len(self.periods)
        kind, text = (match["kind"], match["quantity"]) if match else ("moving average", question)
        asked = parse_quantity(text, self.releases[0].schema)
        over = int(match["over"] or 0) if match else 1
        if asked.numbers is not None:
            raise SpecError(f"the question {name!r}: over time, ask for a count or a share")
        if kind == "sum" and asked.kind == "share":
            raise SpecError(f"the question {name!r}: shares are not summed; ask for their average")
        if not 0 < over <= number if kind == "moving average" else over:
            raise SpecError(f"the question {name!r}: a moving average is over 1 to {number} periods")
        if match and kind != "moving average":
            ends = (self._place(match["first"] or self.periods[0]), self._place(match["last"] or self.periods[-1]))
            if not ends[0] < ends[1]:
                raise SpecError(f"the question {name!r}: the second period comes after the first")
            spans = {name: ends}
        else:
            spans = {f"{name} [{self.periods[t]}]": (t - over + 1, t) for t in range(over - 1, number)}
        times, answers = times_of(self.periods), []
        found = self._found(asked, np.array([_weights(kind, *ends, times) for ends in spans.values()]))
        for k, (name, (a, b)) in enumerate(spans.items()):
            estimate, deviation, note = min(((e[k], d[k], of) for e, d, of in found), key=lambda one: float(one[1]))
            gap, within = times[b] - times[a] - (b - a), asked.range
            if kind in ("change", "trend"):
                gap, within = 0, ANY
            if gap:
                note = "; ".join(filter(None, (note, f"left out as missing: {number_of(gap, 'period')}")))
            estimate, low, high = around(float(estimate), NORMAL_95 * float(deviation), within)
            answers.append(Answer(name, estimate, float(deviation), low, high, note))
        return answers

    def frame(self, quantity: str) -> DataFrame:
        """A count or share of each period, such as ``share where sex = 1``, with standard errors and 95 % intervals."""
        import pandas as pd

        index = pd.Index(self.periods, name="period")
        levels = pd.DataFrame([level.to_json() for level in self.answer(quantity)], index=index)
        return levels.rename(columns={"deviation": "standard_error"})[["estimate", "standard_error", "low", "high"]]

    def plot(self, quantity: str, axes: Any = None) -> Any:
        """Draw a count or share of each period, with its 95 % intervals as a band (matplotlib); return the axes."""
        frame = self.frame(quantity)
        axes = frame["estimate"].plot(ax=axes, title=quantity)
        axes.fill_between(range(len(frame)), frame["low"], frame["high"], alpha=0.25, label="95 % interval")
        axes.legend()
        return axes

    @property
    def _heading(self) -> str:
        return f"A series of {len(self.periods)} releases"

    def _facts(self) -> list[Fact]:
        longer = [Fact("Roll-ups", ", ".join(name for name, _, _ in self.roll_ups))] * bool(self.roll_ups)
        periods = Fact("Periods", f"{self.periods[0]} to {self.periods[-1]}")
        return [periods, Fact("Attributes", ", ".join(self.releases[0].schema.names)), *longer]

    def _place(self, name: str) -> int:
        if name not in self.periods:
            raise SpecError(f"there is no period {name!r}: the series has {', '.join(self.periods[:40])}")
        return self.periods.index(name)

    def _found(self, asked: Quantity, weights: Floats) -> list[Found]:
        """Found of levels with some weights, a row for each question; in several ways where that is possible."""
        if not asked.attributes:
            return [self._of_all(asked, weights)]
        known = [_measured(release, asked) for release in self.releases]
        found = [self._together(asked, weights, known)] if any(known) else []
        if not all(known):
            answers = [infer(release, asked.text) for release in self.releases]
            deviations = np.array([math.inf if one.deviation is None else one.deviation for one in answers])
            if not found and not np.isfinite(deviations).all():
                raise SpecError(f"{asked.text!r}: {answers[0].note}")
            estimates = weights @ np.array([float(one.estimate) for one in answers])
            found.append((estimates, np.where(weights, np.abs(weights) * deviations, 0).sum(1), _APART))
        return found

    def _of_all(self, asked: Quantity, weights: Floats) -> Found:
        """Found of the numbers of records, or of the share of all of them; 0 where no record can meet the condition."""
        weights = weights * asked.condition.cells((0,), self.releases[0].schema.cardinalities[:1]).all()
        if asked.kind == "share":
            return weights.sum(1), np.zeros(len(weights)), ""
        records, variances = np.array([(one.records, _variance_of_records(one)) for one in self.releases]).T
        return weights @ records, np.sqrt(weights**2 @ variances), ""

    def _together(self, asked: Quantity, weights: Floats, known: Sequence[tuple[float, float] | None]) -> Found:
        """The same, given what was measured in some of the periods and in roll-ups."""
        records = np.array([release.records for release in self.releases], np.float64)
        share = replace(asked, kind="share")
        longer = {n: (of, *found) for n, one, of in self.roll_ups if (found := _measured(one, share)) is not None}
        periods = zip(np.eye(len(known)), known, strict=True)
        measured = [(of, *one) for of, one in periods if one is not None]
        sums = [*measured, *longer.values()]
        spread = spread_of(np.array([_mean(sums) * records[-1]]), records[-1])
        persons, step = (float(variance[0]) / records[-1] ** 2 for variance in self._drift.at_most(spread))
        of_each = [(of, one, variance) for (of, _, variance), one in zip(sums, np.eye(len(sums)), strict=True)]
        moves, covariance = joint_levels(of_each, persons=persons, step=step * self._faster(asked.attributes))
        levels = moves @ np.array([noisy for _, noisy, _ in sums])
        if asked.kind == "count":
            gains = moves[:, : len(measured)] @ np.array([of for of, _, _ in measured])
            # errors of the noisy numbers of records: a level that was measured by itself has none of them
            moved = np.diag(levels) - gains * levels
            errors = np.array([_variance_of_records(one) for one in self.releases]) / records**2
            masks = (asked.cells(asked.attributes, release.schema) for release in self.releases)
            common = np.array([_common(mask, asked) for mask in masks])
            both = (gains * (common * errors)) @ moved.T
            covariance += (moved * errors) @ moved.T + both + both.T
            covariance *= np.outer(records, records)
            levels = levels * records
        deviations = np.sqrt(np.einsum("ki,ij,kj->k", weights, covariance, weights))
        note = f"with what {', '.join(longer)} measured" if longer else ""
        return weights @ levels, deviations, note

    def _faster(self, attributes: tuple[int, ...]) -> float:
        """How many times as far as all tables that of a question moves in a step."""
        tables, last = [release.measured(attributes) for release in self.releases], self.releases[-1].records
        cells = np.logical_and.reduce([np.isfinite(table[1]) for table in tables if table is not None])
        chain = [
            None if table is None else (table[0][cells] * factor, (table[1][cells] * factor) ** 2)
            for table, factor in ((table, last / one.records) for table, one in zip(tables, self.releases, strict=True))
        ]
        return self._drift.faster(chain, spread_of(combined(*chain)[0], last))

    @cached_property
    def _drift(self) -> Drift:
        """What the noisy tables of the periods differ by, beyond their noise."""
        earlier = [Earlier(release.model.measurements, release.records) for release in self.releases]
        evidence = Evidence((Related("previous", tuple(earlier[:-1])),))
        evidence.repeated(earlier[-1].measurements)
        return evidence.drifts[0]


def joint_levels(sums: Sequence[Sum], *, persons: float, step: float) -> tuple[Floats, Floats]:
    """Levels of all periods given noisy sums of them, and the covariance of their errors: of a random walk with steps
    of a variance, about which each period has another variance of its persons.
    """
    seen = np.stack([weights for weights, _, _ in sums])
    noisy, variances = np.array([y for _, y, _ in sums]), np.array([v for _, _, v in sums])
    number, mean = seen.shape[1], _mean(sums)
    times = np.arange(number)
    prior = step * np.minimum.outer(times, times) + persons * np.eye(number)
    prior += _UNKNOWN**2 * (variances.max() + prior.max())
    gain = np.linalg.solve(seen @ prior @ seen.T + np.diag(variances), seen @ prior).T
    return mean + gain @ (noisy - np.multiply.outer(seen.sum(1), mean)), prior - gain @ seen @ prior


def _mean(sums: Sequence[Sum]) -> Floats:
    """The mean level by precision."""
    seen = np.array([(of.sum(), variance) for of, _, variance in sums])
    weights = seen[:, 0] / seen[:, 1]
    return np.asarray(weights @ np.array([noisy for _, noisy, _ in sums]) / (weights @ seen[:, 0]))


def _weights(kind: str, first: int, last: int, times: Sequence[int]) -> Floats:
    """The weight of each period."""
    found, inside = np.zeros(len(times)), np.arange(first, last + 1)
    away = np.array(times)[inside] - np.mean(times[first : last + 1])
    slope = away / (away @ away or 1.0)  # of least squares, for one period more
    of_kind: dict[str, Any] = {"change": 1.0 * (inside == last) - (inside == first), "trend": slope, "sum": 1.0}
    found[inside] = of_kind.get(kind, 1 / len(inside))
    return found


def _measured(release: Published, asked: Quantity) -> tuple[float, float] | None:
    """The share of the records that the noisy tables give, and its variance; None where they do not.

    The number of records is a mean of the totals of one-way tables, so of a share its error counts, too, and so does
    what it has in common with the errors of the cells of a one-way table.
    """
    found = release.measured(asked.attributes) if len(asked.attributes) <= 2 else None
    if found is None:
        return None
    mask = asked.cells(asked.attributes, release.schema)
    share = float(found[0][mask].sum()) / release.records
    variance = float((found[1][mask] ** 2).sum())
    if asked.kind == "share":
        variance += share * (share - 2 * _common(mask, asked)) * _variance_of_records(release)
    return (share, variance / release.records**2) if 0 < variance < math.inf else None


def _common(mask: Mask, asked: Quantity) -> float:
    """The part of the error of the number of records that is in the errors of these cells."""
    return float(mask.mean()) if len(asked.attributes) == 1 else 0.0


def _variance_of_records(release: Published) -> float:
    """The variance of the noisy number of records: of a mean of the totals of one-way tables."""
    tables = [t for t in release.model.measurements.tables if len(t.attributes) == 1 and not t.coded]
    if not tables:
        raise SpecError("no one-way table was measured, so nothing says how many records there are")
    return 1 / sum(1 / (t.deviation**2 * t.counts.size) for t in tables)


def told(answers: Sequence[Answer]) -> str:
    """Answers as text; those of several periods as lines, a note once where it is that of all."""
    if len(answers) == 1:
        return repr(answers[0])
    notes = {answer.note for answer in answers}
    named = [answer.question[:-1].rpartition(" [") for answer in answers]
    apart = [f"; {answer.note}" if answer.note and len(notes) > 1 else "" for answer in answers]
    facts = [
        Fact(period, f"{a.estimate:,.6g}  ({a.low:,.6g} to {a.high:,.6g}){note}")
        for a, (_, _, period), note in zip(answers, named, apart, strict=True)
    ]
    facts += [Fact("Note", note) for note in notes if note and len(notes) == 1]
    return folded("\n".join([f"{named[0][0]}, with 95 % intervals", *lines_of(facts)]))
