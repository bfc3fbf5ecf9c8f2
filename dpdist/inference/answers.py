"""Answers from a release with standard errors and intervals: tables, counts, shares, means, quantiles.

An estimate is that of the published model. Its interval is for the *private table*, not for a population.

A cell that a rule over attributes of the table forbids is 0, without an error. A count over several cells of a table of
one to three attributes has the larger of two half widths: that of one cell with the same share, and the root of the sum
of the squares of the cells' own, because errors of cells that were fitted together are correlated in either direction.
Where the cells were themselves measured and their noise adds up to less, the sum of the measurements is the estimate.
A quantile is between the values at which the interval of the distribution function holds its level (Woodruff 1952); in
a group, the records up to a value and those above it both have errors, in whatever direction, and at least the group's
part of half of the variance that the values' noisy counts have.
Intervals of means are those of `dpdist.inference.comparisons`. Means and quantiles leave missing values out, unless the
question gives them a number (`dpdist.spec.regression`). Of four attributes or more nothing was measured.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpdist.accuracy.intervals import at_least
from dpdist.errors import SpecError, printable
from dpdist.inference.published import NO_ACCURACY, Published
from dpdist.privacy.arrays import Floats
from dpdist.privacy.formatting import Displayed, Fact
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import decode
from dpdist.spec.conditions import Condition, Mask, everything, parse_condition
from dpdist.spec.regression import MISSING_AS, Means, Numbers, numbers_in
from dpdist.spec.rules import forbidden_cells
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
    condition: Condition  # that the records meet
    numbers: Numbers | None = None  # of the attribute; None of counts and shares
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

    def cells(self, attributes: tuple[int, ...], schema: Schema) -> Mask:
        """The cells of a table, flat, that meet its condition and that rules admit."""
        shape = tuple(schema.cardinalities[i] for i in attributes)
        possible = ~forbidden_cells(schema.forbidden, attributes, shape).ravel()
        return np.asarray(self.condition.cells(attributes, shape).ravel() & possible)

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


def parse_quantity(text: str, schema: Schema, means: Means = MappingProxyType({})) -> Quantity:
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
    numbers = numbers_in(match["numbers"], schema, ordered=not is_mean, means=means)
    return Quantity(text, "mean" if is_mean else "quantile", where, numbers, level)


NORMAL_95 = 1.96
TOO_MANY = "nothing was measured of the accuracy of four attributes or more at a time"


@dataclass(frozen=True, repr=False)
class Answer(Displayed):
    """An estimate with its interval."""

    question: str
    estimate: float | str  # a text of quantiles of ordinal attributes with texts
    deviation: float | None  # the standard error; None where none can be given
    low: float | str | None  # low, high: the ends of the 95 % interval
    high: float | str | None
    note: str = ""  # why none exists, or what to know about it

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    def __repr__(self) -> str:
        """A sentence."""
        estimate, interval, *notes = (fact.sentence for fact in self._facts())
        ends = interval if self.low is None else f"95 % interval {interval}"
        return printable(f"{self.question}: {estimate} ({'; '.join([ends, *notes])})")

    @property
    def _heading(self) -> str:
        return self.question

    def _facts(self) -> list[Fact]:
        estimate, low, high = (f"{v:,.6g}" if isinstance(v, float) else v for v in (self.estimate, self.low, self.high))
        interval = Fact("95 % interval", "no interval" if low is None else f"{low} to {high}")
        return [Fact("Estimate", str(estimate)), interval, *[Fact("Note", self.note)] * bool(self.note)]


def infer(release: Published, question: str) -> Answer:
    """Answer a question: ``count``, ``share``, ``mean NAME``, ``median NAME`` or ``quantile Q NAME``, and ``where``.

    Raises
    ------
    SpecError
        The question or its condition cannot be read, or its attribute has no numbers (of a quantile: no order).
    """
    asked = parse_quantity(question, release.schema, release.bin_means)
    return _count(release, asked) if asked.numbers is None else _of_values(release, asked)


def tabulate(release: Published, names: list[str]) -> pa.Table:
    """The model's counts of all cells of some attributes, with standard errors and 95 % intervals where they are known.

    Raises
    ------
    SpecError
        There is no such attribute, or the table is too large.
    """
    given = release.places(names)
    if not given:
        raise SpecError("name the attributes of the table")
    attributes = tuple(sorted(given))
    shape = tuple(release.schema.attributes[i].cardinality for i in attributes)
    if math.prod(shape) > 10_000_000:
        raise SpecError("the table has more than 10,000,000 cells: name fewer attributes")
    table = _Table(release, attributes)
    order = [attributes.index(i) for i in given]
    turned = np.arange(table.counts.size).reshape(shape).transpose(order).ravel()
    grid = np.indices([shape[k] for k in order]).reshape(len(order), -1)
    schema = release.schema.model_copy(
        update={"attributes": tuple(release.schema.attributes[i] for i in given), "rules": ()}
    )
    codes = [row.astype(a.dtype) for row, a in zip(grid, schema.attributes, strict=True)]
    values = "labels" if any(a.labels for a in schema.attributes) else "values"
    cells = decode(schema, codes, form=PartFormat(values=values, bins="label"))
    estimates, reaches = table.cells()
    estimates = np.maximum(estimates, 0)
    columns = {"count": estimates[turned]}
    if reaches is not None:
        below, above = reaches
        columns |= {
            "standard_error": below[turned] / NORMAL_95,
            "low": np.maximum(estimates - below, 0)[turned],
            "high": (estimates + above)[turned],
        }
    for name, column in columns.items():
        cells = cells.append_column(name, pa.array(column))
    return cells


class _Table:
    """The model's table of some attributes, and half widths of sums of its cells."""

    def __init__(self, release: Published, attributes: tuple[int, ...]) -> None:
        self.attributes = attributes
        self.shape = tuple(release.schema.attributes[i].cardinality for i in attributes)
        self.counts = release.law.marginal(attributes).ravel() * release.records
        self.records = release.records
        self.errors = release.errors if len(attributes) <= 3 else None
        self.measured = release.measured(attributes) if len(attributes) <= 2 else None
        self.why = TOO_MANY if len(attributes) > 3 else NO_ACCURACY
        self.possible = ~forbidden_cells(release.schema.forbidden, attributes, self.shape).ravel()
        if self.measured is not None:
            noisy, deviations = self.measured
            self.measured = np.where(self.possible, noisy, 0.0), np.where(self.possible, deviations, 0.0)
        if self.errors is not None:
            self._halves = self.halves_of(self.counts) * self.possible

    def halves_of(self, counts: Floats) -> Floats:
        """How far intervals of cells reach below and above them, and half of their length at most. Of a cell with most
        of the records, they are those of the rest of the table, the other way round.
        """
        if self.errors is None:
            raise ValueError(self.why)
        rest = np.maximum(self.records - counts, 0)
        released = np.rint(np.minimum(counts, rest) * self.errors.accuracy.released / max(self.records, 1))
        found = np.stack([
            *self.errors.reaches(self.attributes, released), self.errors.surely(self.attributes, released)
        ])  # fmt: skip
        return np.where(counts > rest, found[[1, 0, 2]], found)

    def cells(self) -> tuple[Floats, Floats | None]:
        """The estimate of each cell, and how far its interval reaches below and above it."""
        every = np.arange(len(self.counts))
        return self.totals(self.sums(np.ones(len(every), bool), every, len(every)))

    def total(self, mask: Mask) -> tuple[float, tuple[float, float] | None]:
        """The estimate of the sum of some cells, and how far its interval reaches below and above it."""
        estimates, reaches = self.totals(self.sums(mask, np.zeros(len(mask), np.int64), 1))
        return float(estimates[0]), None if reaches is None else (float(reaches[0, 0]), float(reaches[1, 0]))

    def sums(self, mask: Mask, groups: NDArray[np.integer], number: int) -> Floats:
        """What `totals` needs to know of some cells, by group: sums, which can be added up."""
        columns = [self.counts, self.possible, *(self._halves**2 if self.errors is not None else ())]
        if self.measured is not None:
            columns += [self.measured[0], self.measured[1] ** 2]
        inside = np.flatnonzero(mask)
        return np.stack([np.bincount(groups[inside], column[inside], minlength=number) for column in columns])

    def totals(self, sums: Floats) -> tuple[Floats, Floats | None]:
        """The estimates of sums of cells, and how far their intervals reach below and above them."""
        estimates = sums[0]
        if self.errors is None:
            return estimates, None
        below, above, most = np.maximum(self.halves_of(estimates), np.sqrt(sums[2:5]))
        if self.measured is not None:
            known = NORMAL_95 * np.sqrt(sums[6])
            better = known < most
            below, above = (np.where(better, known, at_least(reach, known)) for reach in (below, above))
            estimates = np.where(better, sums[5], estimates)
        return np.where(sums[1], estimates, 0.0), np.where(sums[1], [below, above], 0.0)


def _count(release: Published, asked: Quantity) -> Answer:
    condition, attributes = asked.condition, asked.attributes or (0,)
    scale = 1 / max(release.records, 1) if asked.kind == "share" else 1.0
    if len(attributes) > 3:
        estimate = release.law.probability(condition) * release.records
        return Answer(asked.text, estimate * scale, None, None, None, TOO_MANY)
    table = _Table(release, attributes)
    cells = condition.cells(attributes, table.shape)
    if asked.kind == "share" and cells[table.possible].all():  # every record meets it, as the public knows
        return Answer(asked.text, 1.0, 0.0, 1.0, 1.0)
    estimate, reaches = table.total(cells)
    if reaches is None:
        return Answer(asked.text, estimate * scale, None, None, None, table.why)
    below, above = reaches
    estimate, low, high = around(estimate * scale, below * scale, asked.range, above=above * scale)
    return Answer(asked.text, estimate, below / NORMAL_95 * scale, low, high)


def around(estimate: float, half: float, within: Range, *, above: float | None = None) -> tuple[float, float, float]:
    """An estimate moved into its range, and the ends inside of it of the interval around it, which is no point then."""
    inside = min(max(estimate, within[0]), within[1])
    return inside, max(inside - half, within[0]), min(inside + (half if above is None else above), within[1])


def _of_values(release: Published, asked: Quantity) -> Answer:
    numbers, attributes = asked.values, asked.attributes
    table = _Table(release, attributes)
    cells = asked.condition.cells(attributes, table.shape).reshape(table.shape)
    axis = attributes.index(numbers.place)
    order, others = numbers.order, tuple(k for k in range(len(attributes)) if k != axis)
    counts = np.where(cells, table.counts.reshape(table.shape), 0.0).sum(others)[order]
    total = float(counts.sum())
    if total <= 0:
        raise SpecError(f"no record of the model has a value for the question {asked.text.strip()!r}")
    if asked.kind == "mean":
        mean = float((counts * numbers.middles[order]).sum()) / total
        return Answer(asked.text, mean, None, None, None, NO_ACCURACY)
    rank = np.zeros(table.shape[axis], np.int64)
    rank[order] = np.arange(len(order))
    cells &= _only(table.shape, axis, numbers.counted)
    of_values = table.sums(cells.ravel(), _only(table.shape, axis, rank).ravel(), len(order))
    up_to, from_here = np.cumsum(of_values, axis=1), np.cumsum(of_values[:, ::-1], axis=1)[:, ::-1]
    (under, around_it), (over, beyond) = table.totals(up_to[:, :-1]), table.totals(from_here[:, 1:])
    # records up to each value beyond the level's share: (1 - level) of them, less level of the others
    excess = np.concatenate([[-np.inf], (1 - asked.level) * under - asked.level * over, [np.inf]])
    at = int(np.argmax(excess[1:] >= 0))
    estimate = numbers.shown(numbers.middles[order[at]])
    if around_it is None or beyond is None:
        return Answer(asked.text, estimate, None, None, None, table.why)
    # errors of both may be as large at once, in either direction
    known = _by_noise(release, asked, table.counts.reshape(table.shape).sum(others)[order], counts)
    reaches = at_least((1 - asked.level) * around_it + asked.level * beyond[::-1], known)
    below, above = np.pad(reaches, ((0, 0), (1, 1)))
    possible = ((excess + above)[1:] >= 0) & ((excess - below)[:-1] <= 0) & asked.admitted[order]
    possible[at] = True
    ends = numbers.lows[order[possible]].min(), numbers.highs[order[possible]].max()
    low, high = map(numbers.shown, ends)
    return Answer(asked.text, estimate, None, low, high, "the interval is that of the distribution function, inverted")


def _by_noise(release: Published, asked: Quantity, every: Floats, counts: Floats) -> Floats:
    """Half widths after each value but the last, by the noise of the values' counts: a group has its part of it."""
    values, level = asked.values, asked.level
    noise = release.model.measurements.deviations_of(values.place, len(values.counted))[values.order]
    noise *= np.divide(counts, every, out=np.full(len(counts), counts.sum() / every.sum()), where=every > 0)
    variances = np.where(asked.admitted[values.order], noise**2, 0.0)
    up_to, beyond = np.cumsum(variances)[:-1], np.cumsum(variances[::-1])[-2::-1]
    return NORMAL_95 * np.sqrt((1 - level) ** 2 * up_to + level**2 * beyond)


def _only(shape: tuple[int, ...], axis: int, values: NDArray[Any]) -> NDArray[Any]:
    return np.broadcast_to(values.reshape([-1 if k == axis else 1 for k in range(len(shape))]), shape)
