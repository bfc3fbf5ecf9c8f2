"""Bins of about equal counts, chosen from noisy counts on a public grid.

A column's declared codes (integers, or narrow public bins of a number) are the grid. A *tree* of counts stands over it:
the codes, groups of 16 codes, groups of 16 of these, and so on, down to at most 16. A record is in one node of each
level, so levels are tables like those of a release and take noise as these do (`measurement`).

Bins are cut from the noisy levels alone, which is post-processing. The levels are made to agree by least squares [1]_,
isotonic regression makes the cumulative counts grow, and cuts divide them evenly. A code that holds more than a bin
should is a bin of its own.

References
----------
.. [1] Hay, Rastogi, Miklau, Suciu, *Boosting the accuracy of differentially private histograms through consistency*,
   2010.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import coarsen
from dpdist.families.base.calibration import add_noise, deviation
from dpdist.families.histogram.measurement import Measurement, plan_measurement
from dpdist.families.histogram.postprocess import fit_hierarchy
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.event import Event
from dpdist.privacy.formatting import Fact, number_of
from dpdist.privacy.noise import Noise

FAN_OUT = 16  # nodes of a level in a node of the next: few levels share the noise, and few nodes make up a range
Bins = NDArray[np.int64]  # the first code of each bin, ascending from 0


def level_sizes(codes: int) -> tuple[int, ...]:
    """Nodes of each level over this many codes, from the codes up; the last has at most `FAN_OUT`."""
    sizes = [codes]
    while sizes[-1] > FAN_OUT:
        sizes.append(-(-sizes[-1] // FAN_OUT))
    return tuple(sizes)


def fitted_masses(levels: Sequence[Counts], *, deviations: Sequence[float]) -> Floats:
    """Non-negative counts of the codes that fit noisy counts of all levels.

    Least squares over the levels, then the nearest cumulative counts that grow.
    """
    from scipy.optimize import isotonic_regression

    parents = [np.arange(level.size) // FAN_OUT for level in levels[:-1]]
    fitted, _ = fit_hierarchy(levels, parents=parents, variances=[max(sd, 1e-9) ** 2 for sd in deviations])
    growing = isotonic_regression(np.cumsum(fitted[0])).x
    return np.diff(np.maximum(growing, 0.0), prepend=0.0)


def even_bins(masses: Floats, count: int) -> Bins:
    """First codes of exactly this many bins of about equal mass, at most one for each code.

    The heaviest codes are bins of their own while one holds more than an even share of what is left. Cuts at quantiles
    divide the rest. Where cuts coincide, the heaviest bins of several codes (of equal ones the widest) are halved.

    >>> even_bins(np.array([9.0, 0, 1, 1, 1, 1]), 3).tolist()
    [0, 1, 4]
    """
    order = np.argsort(-masses, kind="stable")[: (count - 1) // 2]
    left = masses.sum() - np.cumsum(masses[order]) + masses[order]  # of each heavy code and all lighter ones
    light = np.flatnonzero(masses[order] * (count - 2 * np.arange(order.size)) <= left)
    alone = order[: int(light[0]) if light.size else order.size]
    rest = masses.copy()
    rest[alone] = 0.0
    room = count - 1 - 2 * alone.size
    ends = np.append(0.0, np.cumsum(rest))
    goals = ends[-1] * np.arange(1, room + 1) / (room + 1)
    above = np.clip(np.searchsorted(ends, goals), 1, masses.size)
    nearest = above - (goals - ends[above - 1] < ends[above] - goals)
    cuts = {0, *alone.tolist(), *(alone + 1).tolist(), *nearest.tolist()} - {masses.size}
    return _halved(masses, sorted(cuts), count)


def _halved(masses: Floats, starts: list[int], count: int) -> Bins:
    """This many bins: the heaviest of several codes is cut where its halves are most even, again and again."""
    ends = np.append(0.0, np.cumsum(masses))

    def entry(start: int, stop: int) -> tuple[float, int, int, int]:
        return -float(ends[stop] - ends[start]), start - stop, start, stop

    wide = [entry(a, b) for a, b in pairwise([*starts, masses.size]) if b - a > 1]
    heapq.heapify(wide)
    firsts = set(starts)
    while len(firsts) < count:
        _, _, start, stop = heapq.heappop(wide)
        inner = np.abs(2 * ends[start + 1 : stop] - ends[start] - ends[stop])
        even = np.flatnonzero(inner == inner.min())
        cut = start + 1 + int(even[even.size // 2])
        firsts.add(cut)
        for a, b in ((start, cut), (cut, stop)):
            if b - a > 1:
                heapq.heappush(wide, entry(a, b))
    return np.array(sorted(firsts), np.int64)


BINS_SHARE = Fraction(1, 3)  # share of the budget that the choice of adaptive bins takes, for all columns together
Chosen = Mapping[tuple[int, int], Bins]  # bins by number of the histogram and axis


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A column whose bins are chosen."""

    name: str
    codes: int  # declared codes, in order
    missing: bool  # whether a code for missing values follows them; it stays a bin of its own

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of nodes of each level, from the codes up."""
        return level_sizes(self.codes)

    def bucket_map(self, bins: Bins) -> NDArray[np.intp]:
        """Bin of each code."""
        places = np.searchsorted(bins, np.arange(self.codes), side="right") - 1
        return np.append(places, len(bins)) if self.missing else places


@dataclass(frozen=True, kw_only=True)
class AdaptiveAxis:
    """An axis of a histogram that has chosen bins."""

    histogram: int
    axis: int
    grid: int  # which of the plan's
    bins: int  # their number, without that of missing values


@dataclass(frozen=True, kw_only=True)
class BinningPlan:
    """What bins are chosen, and with which noise."""

    grids: tuple[Grid, ...]
    axes: tuple[AdaptiveAxis, ...]
    share: Fraction  # of the release's budget
    measurement: Measurement  # noise of the levels of all grids, one grid after another

    @property
    def scales(self) -> tuple[tuple[float, ...], ...]:
        """Scale of the noise of each level, for each grid."""
        ends = accumulate((len(grid.levels) for grid in self.grids), initial=0)
        return tuple(self.measurement.scales[start:stop] for start, stop in pairwise(ends))

    def level_deviations(self, grid: int) -> list[float]:
        """Standard deviation of the noise in a node of each level of a grid."""
        return [deviation(self.measurement.mechanism, scale) for scale in self.scales[grid]]

    @property
    def event(self) -> Event:
        """What the choice costs."""
        return replace(self.measurement.event, label="choice of bins")

    def with_less_noise(self, factor: float) -> BinningPlan:
        """The same with all scales divided by `factor`."""
        return replace(self, measurement=self.measurement.with_less_noise(factor))

    def shape(self, histogram: int, codes: Sequence[int]) -> tuple[int, ...]:
        """Shape of a histogram with its bins, from that of its codes."""
        sizes = list(codes)
        for axis in self.axes:
            if axis.histogram == histogram:
                sizes[axis.axis] = axis.bins + self.grids[axis.grid].missing
        return tuple(sizes)

    def merged(self, tables: Sequence[Counts], chosen: Chosen) -> list[Counts]:
        """Counts of the histograms' bins from those of their codes."""
        out = list(tables)
        for axis in self.axes:
            bins, grid = chosen[axis.histogram, axis.axis], self.grids[axis.grid]
            size = len(bins) + grid.missing
            out[axis.histogram] = coarsen(out[axis.histogram], grid.bucket_map(bins), buckets=size, axis=axis.axis)
        return out

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        grids = [
            {"column": grid.name, "values": grid.codes, "levels": len(scales), "scales": list(scales)}
            for grid, scales in zip(self.grids, self.scales, strict=True)
        ]
        return {"share": str(self.share), "mechanism": self.measurement.mechanism, "fan_out": FAN_OUT, "columns": grids}

    def facts(self) -> list[Fact]:
        """What the choice takes, for people."""
        kind, facts = self.measurement.mechanism, []
        for place, grid in enumerate(self.grids):
            levels, sd = len(grid.levels), max(self.level_deviations(place))
            wanted = ", ".join(f"{axis.bins:,}" for axis in self.axes if axis.grid == place)
            text = (
                f"{wanted} of {grid.name}, from {grid.codes:,} values: chosen from {number_of(levels, 'level')} of "
                f"noisy counts ({kind} noise, {sd:.4g} per count)"
            )
            facts.append(Fact("Bins", text, {"values": grid.codes, "levels": levels, "deviation": sd}))
        return [*facts, Fact("Bins", f"their choice takes {self.share} of the budget", {"share": float(self.share)})]

    def counts(self, tables: Sequence[Counts]) -> list[Counts]:
        """Counts of the codes of each grid, from the histograms' tables: marginals of the first that has it."""
        found: dict[int, Counts] = {}
        for axis in self.axes:
            table = tables[axis.histogram]
            others = tuple(i for i in range(table.ndim) if i != axis.axis)
            found.setdefault(axis.grid, table.sum(axis=others)[: self.grids[axis.grid].codes])
        return [found[place] for place in range(len(self.grids))]


def plan_binning(spec: HistogramSpec) -> BinningPlan | None:
    """The choice of a spec's adaptive bins within its share of the budget; None where no histogram asks for it.

    All levels of all grids have the same noise. Raises as `plan_measurement`.
    """
    if not spec.binned:
        return None
    names = list(dict.fromkeys(name for _, _, name, _ in spec.binned))
    grids = []
    for name in names:
        attribute = spec.table.attributes[spec.table.names.index(name)]
        missing = attribute.missing_code is not None
        grids.append(Grid(name=name, codes=attribute.cardinality - missing, missing=missing))
    privacy, share = spec.privacy, BINS_SHARE
    measurement = plan_measurement(
        [size for grid in grids for size in grid.levels],
        mechanism="auto" if privacy.mechanism == "pml" else privacy.mechanism,
        epsilon=privacy.epsilon * float(share),
        delta=privacy.delta * float(share),
        adjacency=privacy.adjacency,
        unit=spec.records_of_a_unit,
    )
    axes = [
        AdaptiveAxis(histogram=i, axis=axis, grid=names.index(name), bins=bins) for i, axis, name, bins in spec.binned
    ]
    return BinningPlan(grids=tuple(grids), axes=tuple(axes), share=share, measurement=measurement)


def choose(tables: Sequence[Counts], plan: BinningPlan, *, noise: Noise) -> Chosen:
    """The bins of each axis; `tables` are of the codes. Streams ``histogram/bins/GRID/LEVEL``."""
    chosen: dict[tuple[int, int], Bins] = {}
    for place, counts in enumerate(plan.counts(tables)):
        levels = noisy_levels(counts, plan, place, noise=noise)
        masses = fitted_masses(levels, deviations=plan.level_deviations(place))
        for axis in plan.axes:
            if axis.grid == place:
                chosen[axis.histogram, axis.axis] = even_bins(masses, axis.bins)
    return chosen


def noisy_levels(counts: Counts, plan: BinningPlan, place: int, *, noise: Noise) -> list[Counts]:
    """All levels of a grid with their noise, from the counts of its codes."""
    levels, mechanism = [], plan.measurement.mechanism
    for level, scale in enumerate(plan.scales[place]):
        if level:
            counts = np.add.reduceat(counts, np.arange(0, counts.size, FAN_OUT))
        name = f"histogram/bins/{place}/{level}"
        levels.append(add_noise(counts, mechanism=mechanism, scale=scale, noise=noise, name=name))
    return levels
