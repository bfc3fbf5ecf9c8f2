"""Nearest released records in blocks of bounded memory.

Gower's distance [1]_: 0 or 1 for a categorical attribute, the absolute difference over the width of the domain for an
ordered one; summed over the attributes.

References
----------
.. [1] Gower, *A general coefficient of similarity and some of its properties*, 1971.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.evaluation.attacks.records import is_continuous, is_ordered, size, span
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.schema import Schema

BLOCK_CELLS = 1 << 19
"""Distances in a block: 2 MiB of float32 for each array at work, which stay in the cache."""


@dataclass(frozen=True)
class Gower:
    """Distances between the records of one schema."""

    schema: Schema

    def part(self, place: int, records: Codes, others: Codes) -> NDArray[np.float32]:
        """What one attribute adds to the distances, float32[records, others]."""
        attribute, ours, theirs = self.schema.attributes[place], records[place], others[place]
        if not is_ordered(attribute):
            return np.asarray(ours[:, None] != theirs[None, :], np.float32)
        scale = 1 / span(attribute, ours)
        low = float((attribute.bounds or (0.0, 1.0))[0]) if is_continuous(ours) else 0.0
        first, second = (((column - low) * scale).astype(np.float32) for column in (ours, theirs))
        result = first[:, None] - second[None, :]
        return np.asarray(np.abs(result, out=result))

    def total(self, records: Codes, others: Codes, places: Sequence[int] | None = None) -> NDArray[np.float32]:
        """The distances over some attributes (all by default), float32[records, others]."""
        places = range(len(records)) if places is None else places
        result = np.zeros((size(records), size(others)), np.float32)
        different = np.zeros(result.shape, np.uint8)
        several = len(places) < 256
        for place in places:
            if several and not is_ordered(self.schema.attributes[place]):
                different += records[place][:, None] != others[place][None, :]
            else:
                result += self.part(place, records, others)
        result += different
        return result

    def nearest(
        self, records: Codes, others: Codes, places: Sequence[int] | None = None
    ) -> tuple[NDArray[np.float32], Counts]:
        """The distance to the nearest of the others, and its place (the first of several). Returns distances : ndarray
        of float32, shape (records,); places : ndarray of int64, shape (records,).
        """
        distances = np.empty(size(records), np.float32)
        where = np.empty(size(records), np.int64)
        for rows, block in blocks(records, size(others)):
            between = self.total(block, others, places)
            where[rows] = between.argmin(axis=1)
            distances[rows] = np.take_along_axis(between, where[rows][:, None], axis=1)[:, 0]
        return distances, where


def blocks(records: Codes, others: int, arrays: int = 1) -> Iterator[tuple[slice, Codes]]:
    """The records in blocks so small that `arrays` arrays of distances to the others stay within bounds."""
    step = max(1, BLOCK_CELLS // max(others * arrays, 1))
    for start in range(0, size(records), step):
        rows = slice(start, min(start + step, size(records)))
        yield rows, [column[rows] for column in records]
