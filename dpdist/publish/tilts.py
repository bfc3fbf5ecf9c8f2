"""Where numbers lie within wide bins: a tilt for each bin, which its neighbours' published counts give.

With the tilt c, a record lies at the share ``w / (c - (c - 1) w)`` of its bin's width, w uniform: the density falls
from c at the lower end to 1/c at the upper one (a Pareto law if c is their ratio), and c = 1 is uniform. The density
where two bins meet is the weighted harmonic mean of theirs, as in monotone splines [1]_; c is the root of the ratio
of those at a bin's ends. The first and the last bin go on as they come from their neighbour, the first half as steeply.
A last bin that is wider than the one before is an open end: a Pareto tail with the index that the counts of both give.
Bins of one value are points, which have no density. The more of the counts is noise, the nearer is a tilt to 1.

Numbers of records that follow each other, such as the members of a household, are drawn together: their density over
that of independent ones is smooth, with the mean in each pair of bins that the released records have [2]_. The shares w
of either are uniform as before.

.. [1] Fritsch, F. N., and Butland, J. (1984). A method for constructing local monotone piecewise cubic interpolants.
   SIAM Journal on Scientific and Statistical Computing 5, 300-304.
.. [2] Tobler, W. (1979). Smooth pycnophylactic interpolation for geographical regions. Journal of the American
   Statistical Association 74, 519-530.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import exp, log
from dpdist.spec.attribute import Attribute

UNIT: Final = 1000
"""Tilts are written as multiples of 1 / UNIT."""

LARGEST: Final = 100_000
_STEEPEST = 8.0  # of a bin that is no open end
_OPEN = 1.2  # how much wider than the one before a last bin is that has an open end
_FAR = 10_000.0  # times the lower end of a bin to which a Pareto tail goes at most
_NOISE = 4.0
_STEPS, _GRID, _ROUNDS = 5, 512, 30  # of a bin at most, of all bins at most; in which a density is made smooth
_ROWS = 1 << 14  # that are moved at a time, about


def can_be_tilted(attribute: Attribute) -> bool:
    """Whether numbers are drawn within bins that have a density."""
    return attribute.is_binned and attribute.kind in ("integer", "number")


def means_of(attribute: Attribute, tilts: Sequence[int]) -> Floats:
    """The mean of the numbers that are drawn in each bin."""
    lows, highs = (np.asarray(ends, np.float64) for ends in attribute.bin_ends(shown=True))
    share = _mean(log(np.asarray(tilts, np.float64) / UNIT))
    return np.clip(lows + (highs - lows + attribute.is_whole) * share - attribute.is_whole / 2, lows, highs)


def bin_means(attributes: Iterable[Attribute], tilts: Mapping[str, Sequence[int]]) -> dict[str, Floats]:
    """The means of numbers in their bins, of attributes whose bins have tilts."""
    return {a.name: means_of(a, tilts[a.name]) for a in attributes if a.name in tilts}


def _mean(logs: Floats) -> Floats:
    near = np.abs(logs) < 1e-3
    g = np.where(near, 1.0, logs)
    c = exp(g)
    return np.asarray(np.where(near, 0.5 - logs / 6, (c * g / (c - 1) - 1) / (c - 1)))


def tilts_in(known: Iterable[tuple[Attribute, tuple[Floats, Floats] | None]]) -> dict[str, tuple[int, ...]]:
    """The tilts of the attributes that can have some, from noisy counts of their codes and the deviations of these."""
    found = {}
    for attribute, estimate in known:
        if can_be_tilted(attribute) and estimate is not None:
            found[attribute.name] = tilts_of(attribute, *(column[: len(attribute.bin_edges)] for column in estimate))
    return found


def tilts_of(attribute: Attribute, counts: Floats, deviations: Floats) -> tuple[int, ...]:
    """The tilts of an attribute's bins, from noisy counts of its codes and the deviations of their noise."""
    lows, highs = (np.asarray(ends, np.float64) for ends in attribute.bin_ends())
    widths = highs - lows + attribute.is_whole
    dense = np.flatnonzero(widths > (1 if attribute.is_whole else 1e-9 * (highs[-1] - lows[0])))
    found = np.zeros(len(lows))
    if len(dense) > 1:
        known = np.isfinite(deviations[dense]) & (deviations[dense] > 0)
        noise = np.where(known, deviations[dense], 1.0)
        mass = np.maximum(counts[dense], noise)
        sure = np.where(known, _NOISE * (noise / mass) ** 2, np.inf)
        padded = np.pad(sure, 1, mode="edge")
        found[dense] = _logs(lows[dense], widths[dense], mass) / (1 + (padded[:-2] + padded[1:-1] + padded[2:]) / 3)
    return tuple(map(int, np.clip(np.rint(UNIT * exp(found)), 1, LARGEST).tolist()))


def _logs(lows: Floats, widths: Floats, mass: Floats) -> Floats:
    """The logarithms of the tilts without noise."""
    density, before, after = mass / widths, widths[:-1], widths[1:]
    left, right = 2 * after + before, after + 2 * before
    meeting = log((left + right) / (left / density[:-1] + right / density[1:]))
    own = log(density)
    found = np.concatenate([
        (own[:1] - meeting[:1]) / 2, (meeting[:-1] - meeting[1:]) / 2, meeting[-1:] - own[-1:]
    ])  # fmt: skip
    found = np.clip(found, -log(np.array([_STEEPEST])), log(np.array([_STEEPEST])))
    high = lows[-1] + widths[-1]
    if widths[-1] > _OPEN * widths[-2] and 0 < high < _FAR * lows[-1] < _FAR**2 * lows[-2]:
        index = log((mass[-2:-1] + mass[-1:]) / mass[-1:]) / log(lows[-1:] / lows[-2:-1])
        found[-1:] = _pareto(index, high / lows[-1:])
    return np.asarray(found)


def _pareto(index: Floats, ratio: Floats) -> Floats:
    """The logarithm of the tilt with the mean of a Pareto law of an index, cut at `ratio` times its least value."""

    def integral(power: Floats) -> Floats:
        near = np.abs(power) < 1e-9
        return np.where(near, log(ratio), (exp(power * log(ratio)) - 1) / np.where(near, 1.0, power))

    mean = (integral(1 - index) / integral(-index) - 1) / (ratio - 1)
    low, high = np.array([-1.0]), log(np.array([LARGEST / UNIT]))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = np.where(_mean(middle) > mean, middle, low), np.where(_mean(middle) > mean, high, middle)
    return (low + high) / 2


def together(
    codes: NDArray[Any], bins: int, follows: NDArray[np.bool_], words: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The words by which numbers are drawn in their bins, uniform ones moved so that those of rows that follow the row
    before are drawn together with its. Codes of no bin are on their own.
    """
    steps = min(_STEPS, _GRID // bins)
    linked = follows & (codes < bins) & (np.roll(codes, 1) < bins)
    linked[:1] = False
    if steps < 2 or not linked.any():
        return words
    begins = np.flatnonzero(~linked)
    places = np.searchsorted(begins, np.arange(_ROWS, len(codes), _ROWS))
    cuts = np.unique(begins[places[places < len(begins)]])  # no row follows one of another part
    parts = [*zip(np.split(codes, cuts), np.split(linked, cuts), np.split(words, cuts), strict=True)]
    pairs = np.zeros(bins**2, np.int64)
    for own, follow, _ in parts:
        rows = np.flatnonzero(follow)
        pairs += np.bincount(own[rows - 1].astype(np.int64) * bins + own[rows], minlength=bins**2)
    density = _density(pairs.reshape(bins, bins), steps)
    return np.concatenate([_moved(own, follow, of, density) for own, follow, of in parts])


def _moved(
    codes: NDArray[Any], linked: NDArray[np.bool_], words: NDArray[np.uint64], density: Floats
) -> NDArray[np.uint64]:
    """The words of rows that follow none but each other; it takes about 25 numbers a row."""
    steps, number = density.shape[-1], np.arange(len(codes))
    depth = number - np.maximum.accumulate(np.where(linked, 0, number))  # rows that each one follows
    weights = np.ones((len(codes), steps))  # of the steps of each row, by the rows that follow it
    levels = [np.flatnonzero(depth == level) for level in range(int(depth.max()) + 1)]
    for some in levels[:0:-1]:
        found = (density[codes[some - 1], codes[some]] * weights[some][:, None]).sum(2)
        weights[some - 1] = found / found.sum(1, keepdims=True)
    shares = (words >> np.uint64(11)) * 2.0**-53
    step = np.zeros(len(codes), np.int64)
    for level, some in enumerate(levels):
        line = weights[some]
        if level:
            line = line * density[codes[some - 1], codes[some], step[some - 1]]
        ends = np.cumsum(line, axis=1)
        at = shares[some] * ends[:, -1]
        step[some] = np.minimum((ends <= at[:, None]).sum(1), steps - 1)
        end, width = (table[np.arange(len(some)), step[some]] for table in (ends, line))
        shares[some] = (step[some] + 1 - (end - at) / width) / steps
    moved = np.clip(shares, 0, 1 - 2.0**-53) * 2.0**53
    return np.asarray(moved.astype(np.uint64) << np.uint64(11))


def _density(pairs: Counts, steps: int) -> Floats:
    """How many times the density of independent numbers that of pairs is, in each step of two bins; shape (bins, bins,
    steps, steps). The fewer the pairs, the nearer is it to 1.
    """
    bins, total = len(pairs), pairs.sum()
    rows, columns = pairs.sum(1) / total, pairs.sum(0) / total
    ratio = (pairs + 1) / (np.outer(rows, columns) * total + 1)
    found = np.repeat(np.repeat(ratio, steps, axis=0), steps, axis=1)
    for _ in range(_ROUNDS):
        for _ in range(2):
            padded = np.pad(found, ((1, 1), (0, 0)), mode="edge")
            found = ((padded[:-2] + padded[2:]) / 4 + found / 2).T
        means = found.reshape(bins, steps, bins, steps).mean((1, 3))
        found = found * np.repeat(np.repeat(ratio / means, steps, axis=0), steps, axis=1)
        found /= (found * np.repeat(columns, steps)).sum(1, keepdims=True) / steps
        found /= (found * np.repeat(rows, steps)[:, None]).sum(0) / steps
    return found.reshape(bins, steps, bins, steps).transpose(0, 2, 1, 3)
