"""Blocks of records, and the order in which rows are released.

Everything that draws or sums floating-point numbers does so in blocks of `BLOCK_ROWS` records, counted over the records
that the policies keep, in the order of the table; so what is released does not depend on partitions or workers.

Rows are released in an order that says nothing of the table's: each block is shuffled by the key, every part of the
release takes an even share of every block, and is shuffled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.families.prediction.columns import Columns
from dpdist.privacy.arrays import Codes, Floats, stable_order
from dpdist.privacy.noise import Noise

BLOCK_ROWS = 1 << 15
"""Records of a block."""

Piece = tuple[int, int, int]
"""Number of a block or partition, first row, row after the last."""

Block = tuple[Floats, Floats]
"""Inputs float64[n, d] and responses float64[n] of some records, on the unit interval."""


@dataclass(frozen=True)
class BlockLayout:
    """So many records in blocks."""

    rows: int
    block_rows: int = BLOCK_ROWS

    @property
    def sizes(self) -> tuple[int, ...]:
        """Records of each block."""
        return tuple(min(self.block_rows, self.rows - start) for start in self.starts)

    @property
    def starts(self) -> list[int]:
        """Number of the first record of each block."""
        return list(range(0, self.rows, self.block_rows))

    def pieces(self, partitions: Sequence[int]) -> list[list[Piece]]:
        """For each block, the rows of each partition (by their sizes) that it holds, in order."""
        return slices(partitions, self.block_rows)

    def parts(self, rows_per_part: int) -> list[list[Piece]]:
        """For each part of the release, the rows that it takes of each shuffled block.

        Parts have `rows_per_part` rows, but for the last; each takes rows evenly from all blocks.
        """
        sizes = self.sizes
        where = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes]) if sizes else np.empty(0)
        block = np.repeat(np.arange(len(sizes)), sizes)
        sequence = block[np.argsort(where, kind="stable")]
        taken = np.zeros(len(sizes), np.int64)
        out = []
        for start in range(0, self.rows, rows_per_part):
            counts = np.bincount(sequence[start : start + rows_per_part], minlength=len(sizes))
            out.append([(b, int(taken[b]), int(taken[b] + counts[b])) for b in np.flatnonzero(counts).tolist()])
            taken += counts
        return out


def slices(sizes: Sequence[int], rows: int) -> list[list[Piece]]:
    """Cut a sequence of arrays of these sizes into runs of `rows` rows, the last one shorter."""
    ends = np.cumsum([0, *sizes])
    out = []
    for start in range(0, int(ends[-1]), rows):
        stop = min(start + rows, int(ends[-1]))
        out.append(
            [
                (i, max(start - int(ends[i]), 0), min(stop, int(ends[i + 1])) - int(ends[i]))
                for i in range(len(sizes))
                if ends[i] < stop and ends[i + 1] > start
            ]
        )
    return out


def cut_block(columns: Columns, parts: Sequence[Codes], spans: Sequence[tuple[int, int]]) -> Block:
    """A block from the rows of partitions that it holds."""
    pieces = [[column[a:b] for column in part] for part, (a, b) in zip(parts, spans, strict=True)]
    return columns.units([np.concatenate(column) for column in zip(*pieces, strict=True)])


def joined(blocks: Sequence[Block]) -> Block:
    """The records of several blocks."""
    inputs, responses = zip(*blocks, strict=True)
    return np.concatenate(inputs), np.concatenate(responses)


def shuffled(noise: Noise, name: str, rows: int, *, start: int = 0) -> NDArray[np.int64]:
    """A keyed permutation of `rows` rows; ``name`` and ``start`` are its address."""
    return stable_order(noise.words(name, rows, start=start))


def generator(noise: Noise, name: str, number: int) -> np.random.Generator:
    """A generator for draws that protect nothing (synthetic rows), a pure function of key, name and number."""
    return np.random.default_rng([int(word) for word in noise.words(name, 4, start=4 * number)])
