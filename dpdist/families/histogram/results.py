"""What a histogram release writes: one table of statistics, with the noisy value and what was fitted to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.families.base.calibration import common_total
from dpdist.families.histogram.binning import Bins, Chosen
from dpdist.families.histogram.counts import CountPlan, parent_cells
from dpdist.families.histogram.entropy import renyi
from dpdist.families.histogram.postprocess import fit_hierarchy, non_negative_integers
from dpdist.families.histogram.spec import CountsSpec
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import log2
from dpdist.publish.parts import STATISTICS
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category
from dpdist.spec.schema import Schema

Names = Literal["values", "labels", "codes"]

NO_AXES = (("",),)  # of a statistic that has one cell


def fit(
    noisy: Sequence[Counts], settings: CountsSpec, plan: CountPlan, *, variances: Sequence[float]
) -> tuple[list[NDArray[Any]], list[Floats]]:
    """Post-process the noisy tables of a release as its spec says: int64 if non-negative, else float64.

    Also the standard error of each cell before counts are made non-negative.
    """
    tables: list[NDArray[Any]] = [table.astype(np.float64) for table in noisy]
    spreads = [max(variance, 1e-12) for variance in variances]
    errors = [np.full(t.size, math.sqrt(v)) for t, v in zip(tables, variances, strict=True)]
    links: dict[int, tuple[int, NDArray[np.intp]]] = {}
    for chain in settings.hierarchies:
        parents = [parent_cells(plan, fine, coarse) for fine, coarse in pairwise(chain)]
        levels = [tables[i].ravel() for i in chain]
        fitted, spread = fit_hierarchy(levels, parents=parents, variances=[spreads[i] for i in chain])
        for number, table, variance in zip(chain, fitted, spread, strict=True):
            tables[number], errors[number] = table.reshape(tables[number].shape), np.sqrt(variance)
        links |= {fine: (coarse, link) for (fine, coarse), link in zip(pairwise(chain), parents, strict=True)}
    if not settings.non_negative:
        return tables, errors
    shared: int | None = None
    if settings.total != "own":
        shared = round(common_total(noisy, spreads)) if settings.total == "common" else settings.total
    done: dict[int, NDArray[np.int64]] = {}

    def integers(number: int) -> NDArray[np.int64]:
        if number not in done:
            if number in links:
                coarse, link = links[number]
                done[number] = _below(tables[number], integers(coarse).ravel(), link)
            else:
                done[number] = non_negative_integers(tables[number], total=shared)
        return done[number]

    result = [integers(number) for number in range(len(tables))]
    return list(result), errors


def _below(table: NDArray[Any], totals: NDArray[np.int64], link: NDArray[np.intp]) -> NDArray[np.int64]:
    """Non-negative integers nearest to a table whose cells sum to the given totals of their parents."""
    result = np.zeros(table.size, np.int64)
    order = np.argsort(link, kind="stable")
    edges = np.searchsorted(link[order], np.arange(totals.size + 1))
    for parent, total in enumerate(totals.tolist()):
        children = order[edges[parent] : edges[parent + 1]]
        result[children] = non_negative_integers(table.ravel()[children], total=total)
    return result.reshape(table.shape)


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """Statistics of one kind about the same columns: a number of rows of the release."""

    statistic: str  # statistic, of: what they are, and their columns
    of: str
    axes: tuple[tuple[str, ...], ...]  # labels along each axis; the cells are their combinations in C order
    noisy: NDArray[np.float64]  # noisy, value: ndarray of float64, shape (cells,): as drawn, and fitted to it
    value: NDArray[np.float64]
    error: Floats | None = None  # of the values

    def table(self, start: int, stop: int) -> pa.Table:
        """Rows ``[start, stop)``."""
        places = np.unravel_index(np.arange(start, stop), [len(labels) for labels in self.axes])
        axes = self.axes if len(self.axes) == 1 else [tuple(map(_escaped, labels)) for labels in self.axes]
        texts = [pa.array(labels, pa.string()).take(pa.array(at)) for labels, at in zip(axes, places, strict=True)]
        cells = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, " | ")
        first = pa.array(np.zeros(stop - start, np.int32))
        arrays = [
            pa.DictionaryArray.from_arrays(first, pa.array([self.statistic])),
            pa.DictionaryArray.from_arrays(first, pa.array([self.of])),
            cells.dictionary_encode(),
            pa.array(self.noisy[start:stop]),
            pa.array(self.value[start:stop]),
            pa.nulls(stop - start, pa.float64()) if self.error is None else pa.array(self.error[start:stop]),
        ]
        return pa.Table.from_arrays(arrays, schema=STATISTICS)


def _escaped(label: str) -> str:
    """A label as it stands in a cell of several columns, so that no two cells have the same name."""
    return label.replace("\\", "\\\\").replace("|", "\\|")


def tables(statistics: Sequence[Statistics], *, rows: int) -> Iterator[pa.Table]:
    """All statistics in order, cut into tables of this many rows (the last one has the rest)."""
    pending: list[pa.Table] = []
    free = rows
    for block in statistics:
        start = 0
        while start < block.noisy.size:
            stop = min(start + free, block.noisy.size)
            pending.append(block.table(start, stop))
            free, start = free - (stop - start), stop
            if not free:
                yield pa.concat_tables(pending).unify_dictionaries()
                pending, free = [], rows
    if pending:
        yield pa.concat_tables(pending).unify_dictionaries()


@dataclass(frozen=True)
class Naming:
    """How histograms and their cells are named: by values, labels or codes, and chosen bins by their ends."""

    plan: CountPlan
    schema: Schema
    names: Names = "values"
    chosen: Chosen = field(default_factory=dict)  # none where all cells are declared

    def of(self, number: int) -> str:
        """The name of a histogram."""
        query = self.plan.queries[number]
        bins = [self.chosen.get((number, axis)) for axis in range(len(query.attributes))]
        counted = ["" if one is None else f" ({len(one)} bins)" for one in bins]
        name = " x ".join(self.schema.names[i] + text for i, text in zip(query.attributes, counted, strict=True))
        return f"{name} (buckets)" if query.coarse else name

    def axes(self, number: int) -> tuple[tuple[str, ...], ...]:
        """The labels along each axis of a histogram."""
        query, labels = self.plan.queries[number], []
        for axis, i in enumerate(query.attributes):
            attribute, bins = self.schema.attributes[i], self.chosen.get((number, axis))
            if bins is None:
                labels.append(_labels(attribute, coarse=query.coarse, names=self.names))
            else:
                labels.append(_bins(attribute, bins, self.names))
        return tuple(map(tuple, labels))


def count_statistics(
    naming: Naming, noisy: Sequence[Counts], fitted: Sequence[NDArray[Any]], errors: Sequence[Floats | None]
) -> list[Statistics]:
    """The counts of each histogram."""
    tables = ([table.ravel().astype(np.float64) for table in pair] for pair in zip(noisy, fitted, strict=True))
    return [
        Statistics("count", naming.of(i), naming.axes(i), drawn, values, error)
        for i, ((drawn, values), error) in enumerate(zip(tables, errors, strict=True))
    ]


def entropy_statistics(
    naming: Naming, noisy: NDArray[np.float64], targets: Sequence[tuple[int, float]], cells: Sequence[int]
) -> list[Statistics]:
    """Noisy entropies; fitted values are cut to what an entropy of a histogram of this many cells can be."""
    pieces = []
    for drawn, (number, order) in zip(noisy, targets, strict=True):
        value = np.clip(drawn, 0.0, float(log2(np.array([float(cells[number])]))[0]))
        pieces.append(Statistics(entropy_name(order), naming.of(number), NO_AXES, np.array([drawn]), np.array([value])))
    return pieces


def released_entropies(
    naming: Naming, fitted: Sequence[NDArray[np.int64]], orders: Sequence[float]
) -> list[Statistics]:
    """Entropies of the released counts (of counts that are all 0, that of an even histogram); they cost nothing."""
    pieces = []
    for number, table in enumerate(fitted):
        counts = table if table.any() else np.ones_like(table)
        for order in orders:
            value = np.array([max(renyi(counts, order=order), 0.0)])
            name = f"{entropy_name(order)} of the released counts"
            pieces.append(Statistics(name, naming.of(number), NO_AXES, value, value))
    return pieces


def entropy_name(order: float) -> str:
    """What an entropy of this order is called."""
    return "shannon entropy" if order == 1 else f"renyi entropy of order {order:g}"


def _bins(attribute: Attribute, bins: Bins, names: Names) -> list[str]:
    """Names of chosen bins: an interval of numbers, or the first and the last of their values."""
    texts = _labels(attribute, coarse=False, names=names)
    codes = attribute.cardinality - (attribute.missing_code is not None)
    lasts = [*(bins[1:] - 1).tolist(), codes - 1]
    if attribute.bounds is not None and names != "codes" and not (attribute.labels and names == "labels"):
        lows, highs = _ends(attribute)
        found = [_interval(lows[a], highs[b]) for a, b in zip(bins.tolist(), lasts, strict=True)]
    else:
        pairs = zip(bins.tolist(), lasts, strict=True)
        found = [texts[a] if a == b else f"{texts[a]} .. {texts[b]}" for a, b in pairs]
    return found + texts[codes:]


def _labels(attribute: Attribute, *, coarse: bool, names: Names) -> list[str]:
    """What each code, or bucket, of an attribute stands for."""
    if names == "codes":
        return list(map(str, range(attribute.bucket_count if coarse else attribute.cardinality)))
    return _groups(attribute, _texts(attribute, names)) if coarse else _texts(attribute, names)


def _texts(attribute: Attribute, wanted: Names) -> list[str]:
    if attribute.labels is not None and wanted == "labels":
        names = list(attribute.labels)
    elif attribute.values is not None:
        names = list(map(str, attribute.values))
    else:
        names = list(map(_interval, *_ends(attribute)))
    if isinstance(attribute.missing, Category):
        names.append(attribute.missing.category)
    return names


def _ends(attribute: Attribute) -> tuple[list[Any], list[Any]]:
    """Where each bin of an attribute begins and ends."""
    lows, highs = attribute.bin_ends(shown=True)
    return [*map(attribute.shown, lows.tolist())], [*map(attribute.shown, highs.tolist())]


def _interval(low: Any, high: Any) -> str:
    return str(low) if low == high else f"{low}..{high}"


def _groups(attribute: Attribute, names: list[str]) -> list[str]:
    """Names of the buckets: the first and the last of their values."""
    groups: list[list[str]] = [[] for _ in range(attribute.bucket_count)]
    for name, bucket in zip(names, attribute.bucket_map.tolist(), strict=True):
        groups[bucket].append(name)
    return [group[0] if len(group) == 1 else f"{group[0]} .. {group[-1]}" for group in groups]
