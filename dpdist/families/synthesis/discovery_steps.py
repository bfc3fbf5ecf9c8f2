"""Values, bounds and bins that a synthesis finds before it learns its model, within the same Gaussian account.

One record changes one cell by 1 of each histogram, so histograms of deviations s_i cost the sum of ``1/s_i^2`` of mu^2.
Values of texts are named twice: the frequent ones by counts, then others by sums of weights, which are the larger the
fewer values of a record have no name yet. How much that may cost depends on the number of records and on what counts
left. Which columns get fine histograms depends on what coarse ones released. The model has what is left of mu^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow.compute as pc

from dpdist.data.arrow import ArrowRecords
from dpdist.data.operators import table_counts_operator
from dpdist.data.table import Table
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.calibration import project
from dpdist.families.base.graph import table_pass
from dpdist.families.base.values import named_values, noisy_counts
from dpdist.families.synthesis.bounds import cells_to_cut, range_of
from dpdist.families.synthesis.discovery import CELLS, SHARES, Discovery
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.calibrate import ABOVE
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import DAY, Count, Edges
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import MISSING, MOST_INTEGERS, is_unbounded
from dpdist.spec.validation import change
from dpdist.storage.stored import Stored, tree_of

OTHERS = "other values"
"""The category of all values that are not named."""

MOST_VALUES = 100
"""Values of a column that are named at most, the most frequent first."""

_LARGEST = 1 << 62  # no sum of weights is larger: values that are named later are listed later
_MOST_BINS = 40  # in addition to heaps
_LEAST_CELLS = 8
_ZERO = 1 << 24  # parts of a range of any numbers; the first are taken for 0
_ANY = (0, 1 << 10)  # a range of which nothing is seen
_ANY_DAY = (-25_567, 21_915)  # the same of days: from 1900 to 2029
_ZEROS = 2.0  # deviations from which on a range reaches to 0
_GAPS = 2.0  # deviations from which on values are missing
_CLEAR = 4.0  # deviations that noise hardly has
_RESOLVED = 3.0  # deviations of the records of a coarse bin between public bounds, on average
_FEW = 40.0  # deviations of all records up to which coarse bins are powers of four
_FILLED = 2.0  # deviations of the records of a bin, at least: the model counts them again
_EACH = 3.0  # the same of an integer that is a value, on average
_HEAP = 6.0  # the same of a cell that is a bin of its own
_FINEST = 2.0**-50  # the least step, in widths of a range
# what numbers may be multiples of, and their texts; no text is among two, so a record counts once
_STEPS = ((1.0, r"^-?\d+(\.0*)?$"), (0.01, r"^-?\d+\.(0[1-9]|[1-9]\d?)$"))
# and moments: of days
_DAYS = ((1.0, r"^\s*-?\d{4,}-\d\d-\d\d([ T]00:00(:00(\.0*)?)?(Z|[+-]\d\d:?\d\d)?)?\s*$"),)
_WHOLE = 0.98  # share of a column's values that are multiples of its step, at least

if TYPE_CHECKING:
    from dpdist.families.synthesis.plan import SynthesisPlan

DiscoveringAttempt: TypeAlias = "Attempt[WholeSynthesisSpec, SynthesisPlan]"


@dataclass(frozen=True)
class Discovered(Stored):
    """What was found, drawn once."""

    FILE: ClassVar[str] = "discovered.json"

    attributes: str  # as JSON
    outside: dict[str, tuple[float, float]]  # share of the records outside of bounds that were found, and its deviation
    records: int  # the noisy number of records, less four deviations
    spent: float  # of mu^2


def discover(attempt: DiscoveringAttempt) -> Discovered:
    """Find what the schema leaves open; the attempt goes on with a spec and a plan that have it."""
    spec, plan = attempt.spec, attempt.plan
    if plan.discovery is None:  # the step is repeated
        return attempt.result(Discovered)
    found = attempt.stored(Discovered, lambda: _found(attempt))
    attempt.public["discovered"] = {
        "columns": list(spec.undeclared),
        "share_of_mu_squared": found.spent / plan.mu**2,
        "outside": {
            name: {"share": share, "deviation": deviation} for name, (share, deviation) in found.outside.items()
        },
        **tree_of(plan.discovery),
    }
    settings = {"schema": Schema.model_validate_json(found.attributes), "discover": None}
    attempt.become(plan.knowing(change(spec, settings | {"data.minimum_records": found.records}), found.spent))
    return found


def _found(attempt: DiscoveringAttempt) -> Discovered:
    spec, noise, table = attempt.spec, attempt.plan.discovery, attempt.records
    if noise is None:
        raise ValueError("the schema leaves nothing open")

    def noisy(name: str, counts: Counts, deviation: float = noise.cells) -> Counts:
        return noisy_counts(counts, how=("gaussian", deviation), noise=attempt.noise, name=name)

    rows = int(noisy("records", np.array([table.rows], np.int64))[0])
    texts, numbers, stepped = spec.undeclared_texts, spec.undeclared_numbers, spec.undeclared_steps
    named, absent = named_values(attempt, table, texts, ("gaussian", noise.values, noise.named_from))
    lacking = noisy("missing", absent, noise.values)
    made = {name: _text(name, i, named, lacking[i], noise) for i, name in enumerate(texts)}
    wide: list[_Range] = []
    outside = dict[str, tuple[float, float]]()
    if numbers:
        exact = _split(spec.table, numbers, _counts(attempt, spec.table, numbers))
        groups = [_groups(spec.attribute(name), rows / noise.cells) for name in numbers]
        grouped = [np.add.reduceat(own, [*first, len(own) - 1]) for own, first in zip(exact, groups, strict=True)]
        coarse = np.split(noisy("bins", np.concatenate(grouped)), np.cumsum([len(own) for own in grouped])[:-1])
        steps = dict[str, Counts]()
        if stepped:
            counts = noisy("steps", _multiples(attempt, stepped).ravel(), noise.steps).reshape(-1, len(_STEPS))
            steps = dict(zip(stepped, counts, strict=True))
        for name, first, cells in zip(numbers, groups, coarse, strict=True):
            own = steps.get(name, np.zeros(1, np.int64))
            found = _Range.of(spec.attribute(name), first, cells, own, rows=rows, noise=noise)
            if found.is_wide:
                wide.append(found)
            made[name] = found.attribute()
            outside |= found.outside(rows)
    if wide:
        deviation = noise.fine(len(wide), len(numbers))
        wide = [replace(one, deviation=deviation) for one in wide]
        fine = Schema(attributes=tuple(one.refined() for one in wide))
        cells = noisy("fine", _counts(attempt, fine, fine.names), deviation)
        for one, own in zip(wide, _split(fine, fine.names, cells), strict=True):
            made[one.name] = one.attribute(own[:-1])
            outside |= one.outside(rows, own)
    schema = _known(spec.table, made)
    others = rows * len(texts) - int(lacking.sum()) - sum(count for _, _, count in named)
    again = _again(attempt, schema, rows, others)
    if again:
        known = [[value for place, value, _ in named if place == column] for column in range(len(texts))]
        more, _ = named_values(attempt, table, texts, ("gaussian", *noise.naming(again, len(texts))), known=known)
        named = [*named, *((place, value, count - _LARGEST) for place, value, count in more)]
        schema = _known(schema, {name: _text(name, i, named, lacking[i], noise) for i, name in enumerate(texts)})
    spent = noise.spent(len(texts), 1 + len(numbers) * (2 if wide else 1), len(stepped)) + again**2 * ABOVE
    records = max(rows - math.ceil(_CLEAR * noise.cells), 1)
    return Discovered(schema.model_dump_json(exclude_defaults=True), outside, records, spent)


def _known(schema: Schema, made: dict[str, Attribute]) -> Schema:
    return Schema(attributes=tuple(made.get(a.name, a) for a in schema.attributes))


def _again(attempt: DiscoveringAttempt, found: Schema, records: int, others: int) -> float:
    """The mu of the second naming; 0 for none. `records` have about so many `others` among their values that have no
    name yet. It has the least error of two-way tables that may be expected: by the noise of a model of what was
    `found` till then, and by values without a name.
    """
    plan, noise = attempt.plan, attempt.plan.discovery
    texts, records = len(attempt.spec.undeclared_texts), max(records, 1)
    if noise is None or not texts:
        return 0.0
    unnamed = min(max(others / records, 0.0), float(texts))
    in_pairs = 2 * unnamed / len(attempt.spec.table.attributes)
    left = plan.mu**2 - noise.spent(texts, 1 + 2 * len(attempt.spec.undeclared_numbers), 0)

    def error(again: float) -> float:
        lost = noise.unnamed(again, texts, unnamed) if again else 1.0
        return plan.error_at(found, math.sqrt(left - again**2), records) + in_pairs * lost

    return min((noise.again * math.sqrt(step / SHARES) for step in range(SHARES + 1)), key=error)


def _counts(attempt: DiscoveringAttempt, schema: Schema, names: Sequence[str]) -> Counts:
    """The one-way tables of some attributes, one after another; no policy refuses a record."""
    places = [schema.names.index(name) for name in names]
    counting = table_counts_operator(schema.cardinalities, [(place,) for place in places])
    table = attempt.records if schema == attempt.spec.table else attempt.read_by(schema)
    with attempt.stage("counting bins") as progress:
        graph = table_pass(attempt.executor, table, counting, name="counting-bins")
        counts: Counts = attempt.executor.compute([graph], progress=progress)[0][0]
    return counts


def _split(schema: Schema, names: Sequence[str], counts: Counts) -> list[Counts]:
    sizes = [schema.attributes[schema.names.index(name)].cardinality for name in names]
    return np.split(counts, np.cumsum(sizes)[:-1])


def _groups(given: Attribute, records: float) -> Counts:
    """The first bin of each group of bins that gets a count of its own; `records` are in deviations of the noise.

    Between public bounds the groups are few enough that on average their records stand out of the noise. Without
    bounds, powers of two become powers of four where records are few.
    """
    lows = given.bin_ends()[0]
    if not is_unbounded(given):
        number = min(max(int(records / _RESOLVED), _LEAST_CELLS // 2), len(lows))
        return np.arange(number) * len(lows) // number
    beside = np.arange(len(lows)) - int(np.searchsorted(lows, 0))
    kept = (beside == 0) | (beside % 2 == (beside > 0)) | (records > _FEW)
    return np.unique(np.append(np.flatnonzero(kept), 0))


def _multiples(attempt: DiscoveringAttempt, names: Sequence[str]) -> Counts:
    """How many values of each column are multiples of a step, and of none before it."""
    with attempt.stage("counting steps") as progress:
        task = attempt.executor.tasks("steps")
        dated = [name for name in names if attempt.spec.attribute(name).dated]
        parts = [task("count", count_multiples, part, i, names, dated) for part, i in attempt.records.parts(task)]
        counts: Counts = attempt.executor.compute([task.tree("sum", sum, parts)], progress=progress)[0]
    return counts


def count_multiples(
    table: Table | ArrowRecords, partition: int, names: Sequence[str], dated: Sequence[str] = ()
) -> Counts:
    """See `_multiples`; for one partition."""
    counts = np.zeros((len(names), len(_STEPS)), np.int64)
    for arrays in table.texts(partition, names):
        for name, column, texts in zip(names, counts, arrays, strict=True):
            for place, (_, text) in enumerate(_DAYS if name in dated else _STEPS):
                column[place] += pc.sum(pc.match_substring_regex(texts, text)).as_py() or 0
    return counts


def _text(name: str, column: int, named: Sequence[tuple[int, str, int]], lacking: int, noise: Discovery) -> Attribute:
    """A column of texts: its frequent values, and one category for all others, and for missing ones if they are few."""
    found = sorted((-count, value) for place, value, count in named if place == column)[:MOST_VALUES]
    values = [value for _, value in found if value not in (MISSING, OTHERS)]
    has_gaps = lacking >= _GAPS * noise.values or not values
    return Attribute.model_validate(
        {
            "name": name,
            "kind": "categorical",
            "values": [*values, OTHERS] if has_gaps else values,
            "missing": {"category": MISSING if has_gaps else OTHERS},
            "out_of_domain": {"category": OTHERS},
        }
    )


@dataclass(frozen=True, eq=False)
class _Range:
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
    def of(cls, given: Attribute, bins: Counts, cells: Counts, steps: Counts, *, rows: int, noise: Discovery) -> _Range:
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
        absent = int(cells[-1])
        present = rows - absent
        reached = np.cumsum(steps) >= max(_WHOLE * present - 2 * _CLEAR * noise.steps, present / 2)
        step = _STEPS[int(np.argmax(reached))][0] if reached.any() and not whole else None
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
        most = min(max(float(self.masses.sum()) / (_EACH * self.deviation), _LEAST_CELLS), MOST_INTEGERS)
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
        number = min(max(float(self.masses.sum()) / self.deviation, _LEAST_CELLS), CELLS)
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
        end, missing = float(self.edges[-1]), {"category": MISSING} if self.absent >= _GAPS * self.coarse else "drop"
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
