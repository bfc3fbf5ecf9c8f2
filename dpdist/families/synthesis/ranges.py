"""Ranges and bins of a column of numbers or dates, by noisy counts of its bins and the harm that may be expected.

Records outside of a range are cut to its ends; into its empty parts records of the bin beside them are spread. Where
counts are too weak to tell which it is, the range stays wide: it loses less than a narrow one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpdist.families.base.calibration import project
from dpdist.families.synthesis.discovery import CELLS, Discovery
from dpdist.privacy.arrays import Counts, Floats
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import DAY, Count, Edges
from dpdist.spec.undeclared import MISSING, MOST_INTEGERS, is_unbounded

_MOST_BINS = 40  # in addition to heaps
LEAST_CELLS = 8
_ZERO = 1 << 24  # parts of a range of any numbers; the first are taken for 0
_ANY = (0, 1 << 10)  # a range of which nothing is seen
_ANY_DAY = (-25_567, 21_915)  # the same of days: from 1900 to 2029
_ZEROS = 2.0  # deviations from which on a range reaches to 0
GAPS = 2.0  # deviations from which on values are missing
CLEAR = 4.0  # deviations that noise hardly has
_FILLED = 2.0  # deviations of the records of a bin, at least: the model counts them again
_EACH = 3.0  # the same of an integer that is a value, on average
_HEAP = 6.0  # the same of a cell that is a bin of its own
_FINEST = 2.0**-50  # the least step, in widths of a range
# what numbers may be multiples of, and their texts; no text is among two, so a record counts once
STEPS = ((1.0, r"^-?\d+(\.0*)?$"), (0.01, r"^-?\d+\.(0[1-9]|[1-9]\d?)$"))
_WHOLE = 0.98  # share of a column's values that are multiples of its step, at least
_EMPTY = 1.5  # deviations of records that a bin must seem to have, so that a range goes on to it
_SEEN = 3.0  # deviations of the records of a run, less those, from which on they are not noise
_FAR = 4.0  # the same of a run beyond others
_KEPT = 2.5  # deviations from which on cells have records, so that they are not cut
_CUT = 1.0  # harm of a record that is cut, in records that are spread
_FARTHEST = -30.0  # deviations below 0 from which on densities are no more than zeros


@dataclass(frozen=True, eq=False)
class Range:
    """What coarse bins say of a column of numbers."""

    given: Attribute
    edges: Floats  # of the coarse bins that hold all but few values, the end of the last one too
    masses: Floats  # of these bins
    absent: int  # missing values
    coarse: float  # deviation of the noise of coarse counts, `absent` too
    beyond: int  # values in other bins
    step: float | None  # what values are multiples of
    deviation: float  # of the noise of a count

    @property
    def name(self) -> str:
        """Of the column."""
        return self.given.name

    @classmethod
    def of(cls, given: Attribute, bins: Counts, cells: Counts, steps: Counts, *, rows: int, noise: Discovery) -> Range:
        """From the noisy counts of groups of bins, of the multiples and of all records."""
        lows, highs = given.bin_ends()
        lows, highs = lows[bins], np.append(lows[bins[1:]], highs[-1])
        whole = given.is_whole
        edges = np.append(lows, highs[-1] + whole).astype(np.float64)
        first, last = 0, len(lows) - 1
        if is_unbounded(given):
            seen, unit = range_of(cells[:-1] / noise.cells), DAY if given.kind == "datetime" else 1
            ends = np.searchsorted(lows, [unit * end for end in (_ANY_DAY if given.dated else _ANY)]).tolist()
            first, last = (ends[0], ends[1] - 1) if seen is None else seen
            zero = int(np.searchsorted(lows, 0))
            if given.dated is None and cells[zero] >= _ZEROS * noise.cells:
                first, last = min(first, zero), max(last, zero)
            if given.dated is None and 0 < edges[first] ** 2 <= edges[last + 1]:
                first = zero  # a range that begins far below its end has a 0
        held = cells[first : last + 1]
        total = max(float(held.sum()), 1.0)
        absent = int(cells[-1]) if given.missing_code is not None else 0
        present = rows - absent
        reached = np.cumsum(steps) >= max(_WHOLE * present - 2 * CLEAR * noise.steps, present / 2)
        step = STEPS[int(np.argmax(reached))][0] if reached.any() and not whole else None
        edges, masses = edges[first : last + 2].copy(), project(held, total=total)
        if step == 1:
            edges[0], edges[-1] = math.floor(edges[0]), math.ceil(edges[-1])
        if given.kind == "datetime" and reached.any():
            given, edges, masses = _of_days(given, edges, masses)
        return cls(given, edges, masses, absent, noise.cells, present - int(held.sum()), step, noise.cells)

    @property
    def is_of_integers(self) -> bool:
        """Whether all but few values are integers."""
        return self.given.is_whole or self.step == 1

    @property
    def has_each(self) -> bool:
        """Whether each integer is a value: they are few, or records are enough for all."""
        most = min(max(float(self.masses.sum()) / (_EACH * self.deviation), LEAST_CELLS), MOST_INTEGERS)
        return self.is_of_integers and math.ceil(self.edges[-1]) - math.ceil(self.edges[0]) <= most

    @property
    def is_wide(self) -> bool:
        """Whether fine bins are to be counted: coarse ones are more than an integer each."""
        return not self.has_each and not (self.is_of_integers and float(np.diff(self.edges).max()) <= 1)

    def refined(self) -> Attribute:
        """The attribute with fine bins: most where most records are."""
        return self._with(self._fine(), out_of_domain={"category": MISSING}, missing={"category": MISSING})

    def _fine(self) -> list[float]:
        """Lower ends of fine bins: the more records a coarse bin seems to have, the more cells it is cut into, and 0
        has one of its own.
        """
        lows, highs = self.edges[:-1], self.edges[1:]
        if self.is_of_integers:
            lows, highs = np.ceil(lows), np.ceil(highs)
        divisible = self.masses * (highs - lows > 1) if self.is_of_integers else self.masses
        number = min(max(float(self.masses.sum()) / self.deviation, LEAST_CELLS), CELLS)
        cells = np.maximum(np.rint(number * divisible / max(float(divisible.sum()), 1.0)), 1)
        if self.is_of_integers:
            cells = np.minimum(cells, highs - lows)
        ends = [
            _short(low + i * (high - low) / number, (high - low) / number, self.given.kind) if i else low
            for low, high, number in zip(lows.tolist(), highs.tolist(), cells.astype(int).tolist(), strict=True)
            for i in range(number)
        ]
        if self.is_of_integers:
            ends = [*map(math.ceil, ends)]
        unit = self.step or (1 if self.is_of_integers else (self.edges[-1] - self.edges[0]) / _ZERO)
        return sorted({*ends, *(end for end in (0, unit) if ends[0] <= end < self.edges[-1])})

    def attribute(self, cells: Counts | None = None) -> Attribute:
        """The attribute as it is found: where not each integer is a value, with bins of about equally many records, by
        the counts of fine ones if the range is wide.
        """
        if self.has_each:
            return self._with(range(math.ceil(self.edges[0]), math.ceil(self.edges[-1])))
        lows, masses, first = self.edges[:-1].tolist(), self.masses, 0
        total = max(float(masses.sum()), 1.0)
        if cells is not None:
            lows = self._fine()
            first, last = self._held(cells, np.array(lows))
            masses = project(cells[first:last], total=total)
        last = first + len(masses)
        around = np.lib.stride_tricks.sliding_window_view(np.pad(masses, 4, "edge"), 9)
        stands_out = (masses >= _HEAP * self.deviation) & (masses >= 4 * np.median(around, axis=1))
        heaps = (masses >= max(total / _MOST_BINS, _HEAP * self.deviation)) | stands_out
        least = max(_FILLED * self.deviation, float(masses[~heaps].sum()) / _MOST_BINS)
        cuts, run = [first], 0.0
        for i, (mass, is_heap) in enumerate(zip(masses.tolist(), heaps.tolist(), strict=True), first):
            run += mass
            cuts += [i, i + 1] if is_heap else [i + 1] if run >= least else []
            run = 0.0 if cuts[-1] == i + 1 else run
        kept = [lows[i] for i in sorted(set(cuts)) if i < last]
        end = float([*lows, self.edges[-1]][last])
        return replace(self, edges=np.append(self.edges[:-1], end))._with(kept)

    def outside(self, records: int, cells: Counts | None = None) -> dict[str, tuple[float, float]]:
        """By name the share of the records outside of bounds that are found, and its deviation, by the counts of fine
        bins and of what is in none of them, or by coarse ones.
        """
        if not is_unbounded(self.given):
            return {}
        number, variance = self.beyond, (2 + len(self.masses)) * self.coarse**2
        if cells is not None:
            first, last = self._held(cells[:-1], np.array(self._fine()))
            cut = [*cells[:first], *cells[last:]]
            number, variance = int(sum(cut)) - self.absent, self.coarse**2 + len(cut) * self.deviation**2
        size = max(records, 1)
        return {self.name: (round(min(max(number / size, 0.0), 1.0), 4), round(math.sqrt(variance) / size, 4))}

    def _held(self, cells: Counts, lows: Floats) -> tuple[int, int]:
        """The first cell and the one after the last, without cells at the ends of the range that seem to be empty."""
        if not is_unbounded(self.given):
            return 0, len(cells)
        least = max(_FILLED * self.deviation, float(self.masses.sum()) / _MOST_BINS)
        widths = np.diff([*lows, self.edges[-1]])
        first, last = (
            cells_to_cut(cells[::way], widths[::way], deviation=self.deviation, least=least) for way in (1, -1)
        )
        return (first, len(cells) - last) if first + last < len(cells) else (0, len(cells))

    def _with(self, lows: Sequence[float], **policies: Any) -> Attribute:
        """The attribute with bins of these lower ends."""
        end, missing = float(self.edges[-1]), {"category": MISSING} if self.absent >= GAPS * self.coarse else "drop"
        tree: dict[str, Any] = {"name": self.name, "kind": self.given.kind, "missing": missing, "out_of_domain": "clip"}
        if self.given.missing_values:
            tree["missing_values"] = self.given.missing_values
        if self.given.is_whole:
            tree |= {"bounds": (int(lows[0]), math.ceil(end) - 1)}
            if len(lows) < tree["bounds"][1] - tree["bounds"][0] + 1:
                tree["bins"] = Edges(edges=tuple(int(low) for low in lows))
        else:
            lows = [*map(float, lows)]
            if self.step == 1:  # and no integer is at the end
                end -= 0.5
                lows[0] -= 0.5 * (end - lows[0] < 1)
            step = self.step or 10.0 ** (math.floor(math.log10(np.median(np.diff([*lows, end])))) - 1)
            step = max(step, (end - lows[0]) * _FINEST)
            end = max(end, lows[0] + 2 * step) if self.step != 1 else end
            tree |= {"bounds": [lows[0], end], "bins": {"edges": lows}, "step": step}
        return Attribute.model_validate(tree | policies)


def _of_days(given: Attribute, edges: Floats, masses: Floats) -> tuple[Attribute, Floats, Floats]:
    """Moments that all are the beginning of a day, as days."""
    low, high = (int(end) // DAY for end in given.bounds or (0, 0))
    days = np.append(edges[0] // DAY, np.ceil(edges[1:] / DAY))
    held = np.diff(days) > 0
    found = {"kind": "date", "bounds": (low, high), "bins": Count(count=1)}
    return given.model_copy(update=found), days[[*held, True]], masses[held]


def _short(number: float, width: float, kind: str) -> float:
    """A number with no more digits than tell it from others a tenth of the width away; a moment to the year, month,
    day, hour or minute where the width has one.
    """
    unit = {"date": 1, "datetime": DAY}.get(kind)
    if unit is None:
        return round(number, 1 - math.floor(math.log10(width)))
    if width >= 32 * unit:
        months = 12 if width >= 368 * unit else 1
        nearest = np.datetime64(int(number / unit + 15.2 * months), "D").astype("datetime64[M]").astype(int)
        start = np.datetime64(int(nearest) // months * months, "M").astype("datetime64[D]").astype(int)
        return float(start) * unit
    grain = max(grain for grain in (1, 60, 3_600, DAY) if grain <= max(width, 1)) if kind == "datetime" else 1
    return round(number / grain) * grain


def range_of(counts: Floats) -> tuple[int, int] | None:
    """The first and the last bin of a range, by counts in deviations of their noise: that of the run of bins with the
    most records, and beyond it of others. None where no run has enough.
    """
    first, last, most = _run(counts)
    if most < _SEEN:
        return None
    while first and (below := _run(counts[:first]))[2] >= _FAR:
        first = below[0]
    while last + 1 < len(counts) and (above := _run(counts[last + 1 :]))[2] >= _FAR:
        last += 1 + above[1]
    return first, last


def _run(counts: Floats) -> tuple[int, int, float]:
    """The run of bins with the most records, less `_EMPTY` for each bin: its first, its last and that number."""
    first, last, best = 0, 0, -math.inf
    begin, total = 0, 0.0
    for i, gain in enumerate((counts - _EMPTY).tolist()):
        if total <= 0:
            begin, total = i, 0.0
        total += gain
        if total > best:
            first, last, best = begin, i, total
    return first, last, best


def expected_count(count: float, deviation: float) -> float:
    """What a noisy count stands for, as no count is negative and most ends of a range are empty: the mean, if before
    the noise large counts have exponentially small chances, with a mean of one deviation.
    """
    far = max(count / deviation - 1, _FARTHEST)
    density = math.exp(-far * far / 2) / math.sqrt(2 * math.pi)
    return deviation * (far + density / (math.erfc(-far / math.sqrt(2)) / 2))


def cells_to_cut(counts: Counts, widths: Floats, *, deviation: float, least: float) -> int:
    """How many cells to cut from an end of a range with the least harm. `counts` are noisy, from that end inwards; the
    bin that remains at the end has at `least` so many records.
    """
    sums, ends = np.append(0, np.cumsum(counts)), np.append(0, np.cumsum(widths))
    best, harm = 0, 0.0
    for cut in range(1, len(counts)):
        if sums[cut] >= _KEPT * deviation * math.sqrt(cut):
            break
        lost = expected_count(float(sums[cut]), deviation * math.sqrt(cut))
        reached = np.flatnonzero(sums[cut + 1 :] - sums[cut] >= least)
        end = ends[cut + 1 + int(reached[0])] if len(reached) else ends[-1]
        spread = least * float(ends[cut] / end) - lost
        if _CUT * lost - spread < harm:
            best, harm = cut, _CUT * lost - spread
    return best
