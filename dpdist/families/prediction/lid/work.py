"""What each task of a two-stage release does: functions of blocks, and of settings that all tasks of a kind share.

`dpdist.families.prediction.lid.graph` makes tasks of them. The key travels as a reference and is read where noise is
drawn.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError
from dpdist.families.prediction.blocks import generator, shuffled
from dpdist.families.prediction.columns import Columns
from dpdist.families.prediction.density import Marginal
from dpdist.families.prediction.latin import FIRST_STAGES, ScoreSums, Target
from dpdist.families.prediction.lid import regression, ridge
from dpdist.families.prediction.lid.method import Method, Regression
from dpdist.families.prediction.lid.ridge import KernelRidge, NystroemSums, Tuning
from dpdist.families.prediction.lid.two_stage import (
    add_counts,
    block_counts,
    block_mixed,
    block_near,
    block_scores,
    block_synthetic,
)
from dpdist.families.prediction.private.features import PrivateModel
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, Counts, Floats

_ROWS = 1 << 13  # records whose features are in memory at a time

Block = tuple[Floats, Floats]
"""Inputs float64[n, d] and responses float64[n] of a block, on the unit interval."""


# --- blocks ----------------------------------------------------------------------------------------------------------


def rows_of(codes: Codes) -> int:
    """Number of records of a partition."""
    return len(codes[0])


def cut_block(columns: Columns, parts: Sequence[Codes], spans: Sequence[tuple[int, int]]) -> Block:
    """A block from the rows of partitions that it holds."""
    pieces = [[column[a:b] for column in part] for part, (a, b) in zip(parts, spans, strict=True)]
    return columns.units([np.concatenate(column) for column in zip(*pieces, strict=True)])


# --- stage 1 ---------------------------------------------------------------------------------------------------------


def counts(how: tuple[Method, KeyRef], block: Block, start: int) -> tuple[Counts, ...]:
    """Records in each cell of each input, by fold."""
    method, key = how
    return block_counts(method, block[0], load_noise(key), start=start)


def all_counts(parts: Sequence[tuple[Counts, ...]]) -> tuple[Counts, ...]:
    """Counts of several blocks together."""
    return reduce(add_counts, parts)


def total(parts: Sequence[Any]) -> Any:
    """The sum of several blocks' statistics, in their order."""
    return reduce(operator.add, parts)


def scores(how: tuple[Method, tuple[Marginal, ...]], block: Block) -> ScoreSums:
    """Sums of the products of normal scores."""
    method, marginals = how
    return block_scores(method, block[0], marginals)


def synthetic(how: tuple[Method, Target, Floats, KeyRef], block: Block, number: int) -> Floats:
    """The synthetic row of each record."""
    method, target, deviations, key = how
    return block_synthetic(method, block[0], target, deviations, load_noise(key), number=number)


def near(method: Method, block: Block, rows: Floats) -> NDArray[np.int64]:
    """How many rows would be near their originals, for each alpha."""
    return block_near(method, block[0], rows)


# --- stage 2 ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seen:
    """What the regression sees: the method and the deviations of the columns."""

    method: Method
    deviations: Floats

    def __call__(self, inputs: Floats) -> Floats:
        """Features of rows of the unit cube."""
        return regression.features(self.method.scales, inputs, self.deviations)


Fit = tuple[Seen, Tuning, Floats, KeyRef, int]
"""What the regression sees, width and penalty, landmarks, the key, and the number of records."""


def sample(how: tuple[Seen, KeyRef, int], block: Block, start: int) -> regression.Sample:
    """The records of a block that may be in the sample."""
    seen, key, size = how
    words = regression.sample_words(load_noise(key), len(block[1]), start=start)
    first = regression.block_sample(words, size)
    return words[first], seen(block[0][first]), block[1][first]


def _joined(seen: Seen, blocks: Sequence[Block]) -> tuple[Floats, Floats]:
    return np.concatenate([seen(inputs) for inputs, _ in blocks]), np.concatenate([y for _, y in blocks])


def fit_hook(how: tuple[Seen, str], blocks: Sequence[Block]) -> Any:
    """A user's own regression."""
    seen, hook = how
    return regression.fit_hook(hook, *_joined(seen, blocks))


def fit_exact(how: Fit, blocks: Sequence[Block]) -> KernelRidge:
    """One system of all records."""
    seen, tuning, *_ = how
    return ridge.fit_exact(*_joined(seen, blocks), kernel=tuning.kernel, penalty=tuning.penalty)


def fit_groups(how: Fit, block: Block, number: int) -> list[KernelRidge]:
    """The estimators of the groups of a block."""
    seen, tuning, _, key, rows = how
    method: Regression = seen.method.regression
    noise = load_noise(key)
    return regression.block_groups(method, seen(block[0]), block[1], tuning, noise, rows=rows, number=number)


def average(groups: Sequence[Sequence[KernelRidge]]) -> KernelRidge:
    """The mean of all groups' estimators."""
    return ridge.average([part for group in groups for part in group])


def nystroem_sums(how: Fit, block: Block) -> NystroemSums:
    """Sums over the records of a block."""
    seen, tuning, landmarks, *_ = how
    return ridge.nystroem_sums(seen(block[0]), block[1], landmarks=landmarks, kernel=tuning.kernel)


def fit_nystroem(how: Fit, sums: NystroemSums) -> KernelRidge:
    """The estimator from the sums over all records."""
    _, tuning, landmarks, *_ = how
    return ridge.fit_nystroem(sums, landmarks=landmarks, kernel=tuning.kernel, penalty=tuning.penalty)


# --- what is released ------------------------------------------------------------------------------------------------


def released(how: tuple[Seen, KeyRef, float], block: Block, rows: Floats, model: Any, number: int) -> Block:
    """Mixed inputs and predicted responses, shuffled.

    Raises
    ------
    SpecError
        The regression predicts other than one finite number for each record.
    """
    seen, key, alpha = how
    inputs = block_mixed(seen.method, block[0], rows, alpha=alpha)
    responses = np.asarray(model.predict(seen(inputs)), np.float64)
    if responses.shape != (len(inputs),) or not np.all(np.isfinite(responses)):
        raise SpecError("prediction.regression: it must predict one finite number for each record")
    order = shuffled(load_noise(key), f"prediction/order/block/{number}", len(inputs))
    return inputs[order], responses[order]


def part(how: tuple[Columns, KeyRef], blocks: Sequence[Block], spans: Sequence[tuple[int, int]], number: int) -> Codes:
    """A part of the release, shuffled again: codes of all attributes."""
    columns, key = how
    pairs = list(zip(blocks, spans, strict=True))
    inputs = np.concatenate([block[0][a:b] for block, (a, b) in pairs])
    responses = np.concatenate([block[1][a:b] for block, (a, b) in pairs])
    order = shuffled(load_noise(key), f"prediction/order/part/{number}", len(inputs))
    return columns.codes(inputs[order], responses[order])


def private_part(how: tuple[PrivateModel, Columns, KeyRef, str], rows: int, number: int) -> Codes:
    """A part of a private release: records drawn from the released model."""
    model, columns, key, first_stage = how
    rng = generator(load_noise(key), "prediction/records", number)
    inputs = FIRST_STAGES[first_stage](model.target, rows, rng)
    pieces = [model.predict(inputs[start : start + _ROWS]) for start in range(0, rows, _ROWS)]
    return columns.codes(inputs, np.concatenate(pieces))
