"""What a release computes from its records: codes by class, their sums, mixtures; arrays, and operators of a pass."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from dpdist.data.operators import Operator
from dpdist.errors import DataError
from dpdist.families.mixing.mixture import Mixer, Rows, clip_rows
from dpdist.families.mixing.moments import moment_sums
from dpdist.families.mixing.scaling import Encoding
from dpdist.privacy.arrays import Codes, Counts
from dpdist.privacy.noise import Noise

SHARD_BYTES = 1 << 28
"""Vectors of a class that a task holds at a time."""

ClassCodes = list[Codes]
"""The codes of the records of each class, the class attribute left out."""


def class_operator(label: int, classes: Sequence[int], *, by_value: bool = False) -> Operator:
    """The codes of the records of some classes, given by their codes, in the order of the rows or of their values:
    `ClassCodes`. `label` is the place of the class attribute in the schema.
    """
    chunk = partial(_by_class, label=label, classes=tuple(classes))
    classed = Operator(name="classes", chunk=chunk, combine=_joined)
    return replace(classed, finish=_sorted) if by_value else classed


def _by_class(codes: Codes, label: int, classes: tuple[int, ...]) -> ClassCodes:
    features = [column for place, column in enumerate(codes) if place != label]
    chosen = [np.flatnonzero(codes[label] == code) for code in classes]
    return [[column.take(rows) for column in features] for rows in chosen]


def _sorted(classes: ClassCodes) -> ClassCodes:
    return [[column.take(order) for column in codes] for codes in classes for order in [np.lexsort(codes)]]


def _joined(a: ClassCodes, b: ClassCodes) -> ClassCodes:
    return [[np.concatenate(pair) for pair in zip(x, y, strict=True)] for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class ClassStatistics:
    """Records of each class, and sums over all of them; confidential."""

    sizes: tuple[int, ...]
    # of each attribute, the class left out: see `dpdist.families.mixing.moments.moment_sums`. Empty if they are not
    # needed
    sums: tuple[Counts, ...]


def class_statistics(codes: ClassCodes, encoding: Encoding | None = None) -> ClassStatistics:
    """The `ClassStatistics` of the codes of some classes, with the sums in a declared encoding if one is given."""
    sizes = tuple(len(part[0]) for part in codes)
    places = range(0 if encoding is None else len(encoding.attributes))
    sums = (reduce(operator.add, (moment_sums(encoding, i, part[i]) for part in codes)) for i in places if encoding)
    return ClassStatistics(sizes, tuple(sums))


def class_sums(
    codes: Codes,
    encoding: Encoding,
    mixer: Mixer,
    noise: Noise,
    start: int,
    stop: int,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Rows:
    """Sums of the rows of mixtures `start` to `stop` - 1 of a class, exact: float32[stop - start, d]; its codes leave
    the class attribute out.

    Codes take a byte or so a value, vectors four bytes a coordinate: vectors exist shard by shard, inside one task, and
    no longer. Sums of shards are exact, so no shard changes a bit. Raises DataError: the class has fewer records than a
    mixture takes.
    """
    size, rows = len(codes[0]), max(1, shard_bytes // (4 * encoding.width))
    total: Rows | None = None
    for first in range(0, size, rows):
        shard = clip_rows(encoding.encode([column[first : first + rows] for column in codes]), clip=mixer.clip)
        sums = mixer.sums(noise, shard, start, stop, first=first, size=size)
        total = sums if total is None else np.add(total, sums, out=total)
    if total is None:
        raise DataError("a class without records is not mixed; leave it out")
    return total


def class_mixtures(
    codes: Codes,
    encoding: Encoding,
    mixer: Mixer,
    noise: Noise,
    start: int,
    stop: int,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Rows:
    """Mixtures `start` to `stop` - 1 of a class, with their noise; parameters and errors as of `class_sums`."""
    return mixer.finish(noise, class_sums(codes, encoding, mixer, noise, start, stop, shard_bytes=shard_bytes), start)
