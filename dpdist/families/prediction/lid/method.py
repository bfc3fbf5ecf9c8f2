"""What a release of the published method does: what it may disclose, its blocks of records, and its parties.

Local information disclosure (LID) is the share of released rows with some column within eta of their originals. Its
closed form holds for independent uniform columns and is no bound for matched rows (``docs/guarantees.md``), so a
release measures LID on the rows that it would publish, for every alpha of a grid.

Everything that draws or sums floating-point numbers does so in blocks of `BLOCK_ROWS` records, counted over the records
that the policies keep, in the order of the table; so what is released does not depend on partitions or workers. Rows
are released in an order that says nothing of the table's: each block is shuffled by the key, every part of the release
takes an even share of every block, and is shuffled again.

Without a column that names the party, all records are one party's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpdist.data.records import slices
from dpdist.errors import CheckFailed
from dpdist.families.prediction.columns import Columns, Scale
from dpdist.families.prediction.second_stage import RegressionSpec
from dpdist.privacy.arrays import Codes, Counts, Floats, spans_of, stable_order
from dpdist.privacy.formatting import shown
from dpdist.privacy.noise import Noise

ALPHAS = tuple(i / 100 for i in range(101))
"""The grid on which alpha is chosen."""


def largest_alpha(lid: float, *, eta: float, columns: int) -> float | None:
    """The alpha at which the closed form bounds the disclosure by `lid`; None where even alpha = 0 discloses more."""
    alpha = 1 - 2 * eta * shown(-1 / math.expm1(math.log1p(-lid) / columns)) if lid < 1 else 1.0
    return alpha if alpha >= 0 else None


BLOCK_ROWS = 1 << 15
"""Records of a block."""

Piece = tuple[int, int, int]
"""Number of a block or partition, first row, row after the last."""

Block = tuple[Floats, Floats]
"""Inputs float64[n, d] and responses float64[n] of some records, on the unit interval."""


@dataclass(frozen=True)
class BlockLayout:
    """This many records in blocks."""

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
        """For each part of the release, the rows that it takes of each shuffled block: evenly from all of them."""
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


def cut_block(columns: Columns, parts: Sequence[Codes], spans: Sequence[tuple[int, int]]) -> Block:
    """A block from the rows of partitions that it holds."""
    return columns.units(spans_of(parts, spans))


def joined(blocks: Sequence[Block]) -> Block:
    """The records of several blocks."""
    inputs, responses = zip(*blocks, strict=True)
    return np.concatenate(inputs), np.concatenate(responses)


def shuffled(noise: Noise, name: str, rows: int) -> NDArray[np.int64]:
    """A keyed permutation of `rows` rows; ``name`` is its address."""
    return stable_order(noise.words(name, rows))


MATCHED_ROWS = 2048
"""Most rows that are assigned exactly."""


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """What may be disclosed."""

    lid: float  # largest share of released rows that may be near their originals
    eta: float  # what is near, as a share of the width of a column's scale
    columns: tuple[int, ...]  # places of the columns that are looked at, among the inputs
    response: float | None = None  # largest share of released rows whose response may be near; None: any


@dataclass(frozen=True, kw_only=True)
class Method:
    """Both stages."""

    scales: tuple[Scale, ...]  # of the inputs
    disclosure: Disclosure
    kept: tuple[int, ...] = ()  # places of the inputs that stay original; they are released with the row they stood in
    party: int | None = None  # place of the input that names the party, which is one of those kept
    correlation: float | None = None  # of the regressions of two parties; None: by cross-validation
    first_stage: str = "lhs"  # of `dpdist.families.prediction.first_stage.FIRST_STAGES`, or a hook
    paper_bandwidths: bool = False  # whether densities are estimated as published
    matching: str = "nearest"
    alpha: float | None = None  # share of the original row; None: the largest within `disclosure`
    regression: RegressionSpec = field(default_factory=RegressionSpec)
    classes: int = 0  # of a response without order; 0 where it is a number
    exact_rows: int = MATCHED_ROWS
    block_rows: int = BLOCK_ROWS

    @property
    def parties(self) -> int:
        """Number of the parties; 0 where no column names one."""
        return 0 if self.party is None else self.scales[self.party].count or 0

    @property
    def relation(self) -> tuple[int, float | None]:
        """The parties that the regression tells apart, and the correlation of two of their regressions."""
        return (0, None) if self.regression.hook is not None else (self.parties, self.correlation)

    @property
    def made(self) -> tuple[int, ...]:
        """Places of the inputs that are synthesised."""
        return tuple(i for i in range(len(self.scales)) if i not in self.kept)

    @property
    def made_scales(self) -> tuple[Scale, ...]:
        """Scales of the inputs that are synthesised."""
        return tuple(self.scales[i] for i in self.made)

    @property
    def watched(self) -> tuple[int, ...]:
        """Places of the disclosure's columns among those that are synthesised."""
        return tuple(self.made.index(i) for i in self.disclosure.columns)

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alphas for which LID is measured."""
        return ALPHAS if self.alpha is None else (self.alpha,)

    @property
    def most_alpha(self) -> float:
        """The alpha of the closed form, 0 where even that discloses too much."""
        form = largest_alpha(self.disclosure.lid, eta=self.disclosure.eta, columns=max(len(self.disclosure.columns), 1))
        return 0.0 if form is None else form


Rows = slice | NDArray[np.int64]
"""Rows of a block."""


def codes(method: Method, inputs: Floats) -> NDArray[np.int64]:
    """The party of each row of the unit cube, int64[n]."""
    if method.party is None:
        return np.zeros(len(inputs), np.int64)
    return method.scales[method.party].codes(inputs[:, method.party])


def rows_of_parties(method: Method, block: Block) -> list[Rows]:
    """The rows of each party in a block, in their order."""
    if method.party is None:
        return [slice(None)]
    found = codes(method, block[0])
    return [np.flatnonzero(found == party) for party in range(method.parties)]


def party_records(method: Method, block: Block) -> Counts:
    """Records of each party in a block, int64[parties]."""
    return np.bincount(codes(method, block[0]), minlength=max(method.parties, 1)).astype(np.int64)


def check_records(records: Sequence[int], *, least: int) -> None:
    """Raises CheckFailed: a party has fewer records than `least`. The error says neither which nor how many."""
    if min(records) < least:
        raise CheckFailed(
            "a party has fewer records than prediction.parties.minimum_records, so nothing is published: declare fewer "
            "(at least 10), or put small parties together or leave them out in the schema; every value of the column "
            "is a party"
        )
