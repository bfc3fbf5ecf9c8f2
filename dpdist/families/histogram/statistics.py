"""Operators of one pass over a table: counts of histograms, and sums of curves, wide or long.

They plug into `dpdist.families.base.graph.table_pass`. Their summaries are exact and associative, so any partitioning
gives the same bits.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpdist.data.operators import Operator
from dpdist.errors import OutOfDomain
from dpdist.families.histogram.counts import CountPlan, block_counts, tables_of_blocks
from dpdist.families.histogram.curves import CurveSums, sum_curves
from dpdist.families.histogram.kernels import Basis
from dpdist.privacy.arrays import Floats

_LARGE = 1 << 21  # cells; larger summaries are added two at a time


def histogram_operator(plan: CountPlan) -> Operator:
    """All tables of a plan; the summary is the list of them."""
    return Operator(
        name="histograms",
        chunk=partial(block_counts, plan=plan),
        combine=operator.add,
        finish=partial(tables_of_blocks, plan=plan),
        fan_in=8 if plan.cells <= _LARGE else 2,
    )


def curve_operator(basis: Basis, *, clip: float, columns: Sequence[int]) -> Operator:
    """Sum of clipped curves, one per record: the columns of their values, in the order of the times."""
    chunk = partial(_wide, basis=basis, clip=clip, columns=tuple(columns))
    return Operator(name="curves", chunk=chunk, combine=operator.add)


def long_curve_operator(
    basis: Basis, *, clip: float, columns: tuple[int, int, int], times: Sequence[float]
) -> Operator:
    """Sum of clipped curves, one per run of records with the same id.

    `columns` are the places of id, time and value; `times` those of the data, in the order of the basis. A summary
    holds the sum of the curves that are certainly whole, and the records of its first and last id, which may go on in
    the neighbouring batches.
    """
    grid = np.asarray(times, np.float64)
    whole = partial(_whole_curves, basis=basis, clip=clip)
    return Operator(
        name="curves",
        chunk=partial(_long, columns=columns, times=grid, whole=whole),
        combine=partial(_join, whole=whole),
        finish=partial(_finish, whole=whole),
    )


@dataclass(frozen=True, eq=False, repr=False)
class _Rows:
    """Consecutive records of one id: place in the grid of times, and value."""

    id: float
    places: NDArray[np.intp]
    values: Floats

    def __add__(self, other: _Rows) -> _Rows:
        return _Rows(self.id, np.concatenate([self.places, other.places]), np.concatenate([self.values, other.values]))


@dataclass(frozen=True, eq=False, repr=False)
class _Run:
    """Consecutive records: those of the first id, the sum of the curves between, those of the last (if another)."""

    first: _Rows | None
    inner: CurveSums
    last: _Rows | None


def _wide(codes: Sequence[Floats], basis: Basis, clip: float, columns: tuple[int, ...]) -> CurveSums:
    return sum_curves(np.stack([codes[i] for i in columns], axis=1), basis, clip=clip)


def _incomplete() -> OutOfDomain:
    return OutOfDomain(
        "a curve does not have each declared time exactly once; leave out such curves, and let the records of a curve "
        "stand together"
    )


def _whole_curves(places: NDArray[np.intp], values: Floats, basis: Basis, clip: float, curves: int) -> CurveSums:
    """Sum of so many curves whose records follow each other."""
    size = basis.times.size
    if places.size != curves * size:
        raise _incomplete()
    order = places.reshape(curves, size)
    if (np.sort(order, axis=1) != np.arange(size)).any():
        raise _incomplete()
    table = np.empty((curves, size))
    np.put_along_axis(table, order, values.reshape(curves, size), axis=1)
    return sum_curves(table, basis, clip=clip)


_Whole = partial[CurveSums]


def _long(codes: Sequence[Floats], columns: tuple[int, int, int], times: Floats, whole: _Whole) -> _Run:
    ids, moments, values = (np.asarray(codes[i], np.float64) for i in columns)
    nothing = whole(np.empty(0, np.intp), np.empty(0), curves=0)
    if not ids.size:
        return _Run(None, nothing, None)
    places = np.searchsorted((times[1:] + times[:-1]) / 2, moments)
    if not np.allclose(times[places], moments, rtol=1e-9, atol=0):
        raise OutOfDomain("the time column holds a time that is not declared; declare it, or leave out such records")
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    if starts.size == 1:
        return _Run(_Rows(float(ids[0]), places, values), nothing, None)
    first, last = starts[1], starts[-1]
    if (np.diff(starts[1:]) != times.size).any():
        raise _incomplete()
    inner = whole(places[first:last], values[first:last], curves=starts.size - 2)
    head = _Rows(float(ids[0]), places[:first], values[:first])
    return _Run(head, inner, _Rows(float(ids[-1]), places[last:], values[last:]))


def _join(a: _Run, b: _Run, whole: _Whole) -> _Run:
    if a.first is None or b.first is None:
        return b if a.first is None else a
    inner = a.inner + b.inner
    end = a.last or a.first
    if end.id == b.first.id:
        joined = end + b.first
        if a.last is None:
            return _Run(joined, inner, b.last)
        if b.last is None:
            return _Run(a.first, inner, joined)
        return _Run(a.first, inner + _closed(joined, whole), b.last)
    if a.last is not None:
        inner += _closed(a.last, whole)
    if b.last is not None:
        inner += _closed(b.first, whole)
    return _Run(a.first, inner, b.last or b.first)


def _finish(run: _Run, whole: _Whole) -> CurveSums:
    return sum((_closed(rows, whole) for rows in (run.first, run.last) if rows is not None), start=run.inner)


def _closed(rows: _Rows, whole: _Whole) -> CurveSums:
    return whole(rows.places, rows.values, curves=1)
