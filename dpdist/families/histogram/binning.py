"""Bins of about equal counts, chosen from noisy counts on a public grid.

A column's declared codes (integers, or narrow public bins of a number) are the grid. A *tree* of counts stands over it:
the codes, groups of 16 codes, groups of 16 of these, and so on, down to at most 16. A record is in one node of each
level, so levels are tables like those of a release and take noise as these do (`measurement`). Bins are cut from the
noisy levels alone (`cuts`): they are post-processing, and the tables that are then counted in them are chosen by what
was released before, which composition allows.

A tree of medians that are picked by the exponential mechanism finds each median with less noise. It learns ranks and no
masses and cannot tell a heap from a slope; `tests/benchmarks/bench_adaptive_bins.py` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import coarsen
from dpdist.families.base.calibration import add_noise, deviation
from dpdist.families.histogram.cuts import FAN_OUT, Bins, even_bins, fitted_masses, level_sizes
from dpdist.families.histogram.measurement import Measurement, plan_measurement
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.privacy.arrays import Counts
from dpdist.privacy.events import Event
from dpdist.privacy.formatting import Fact, number_of
from dpdist.privacy.noise import Noise

Chosen = Mapping[tuple[int, int], Bins]
"""Bins by number of the histogram and axis."""


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
    bins: int  # how many, besides that of missing values


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

    All levels of all grids have the least noise within that share, the same for each: each is a table of which a record
    changes one cell, or two (replacement). Raises as `plan_measurement`.
    """
    if not spec.binned:
        return None
    names = list(dict.fromkeys(name for _, _, name, _ in spec.binned))
    grids = []
    for name in names:
        attribute = spec.table.attributes[spec.table.names.index(name)]
        missing = attribute.missing_code is not None
        grids.append(Grid(name=name, codes=attribute.cardinality - missing, missing=missing))
    privacy, share = spec.privacy, spec.privacy.bins_share
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
