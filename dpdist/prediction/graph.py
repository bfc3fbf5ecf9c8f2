"""Two-stage releases as task graphs. Building a graph computes nothing.

The published method works on blocks of a fixed number of records, cut from the encoded partitions and held by the
workers; every task takes one block, and sums over blocks are added in the order of the blocks. So neither partitions
nor workers change a bit of what is released. The private variant makes three passes over the table, each an exact
sum, and then draws records part by part.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from dpdist.data.count import Codes
from dpdist.errors import SpecError
from dpdist.prediction import ridge
from dpdist.prediction.blocks import Piece, generator, shuffled
from dpdist.prediction.columns import Columns
from dpdist.prediction.density import Marginal
from dpdist.prediction.features import PrivateModel
from dpdist.prediction.latin import FIRST_STAGES, Target
from dpdist.prediction.method import Method, Regression
from dpdist.prediction.regression import (
    Sample,
    block_groups,
    block_sample,
    features,
    fit_hook,
    join_samples,
    sample_words,
    tuning_of,
)
from dpdist.prediction.ridge import Tuning
from dpdist.prediction.scales import Floats
from dpdist.prediction.two_stage import (
    add_counts,
    block_counts,
    block_mixed,
    block_near,
    block_scores,
    block_synthetic,
)
from dpdist.privacy.keys import KeyRef, load_noise
from dpdist.tasks import Tasks

_ROWS = 1 << 13  # records whose features are in memory at a time

Block = tuple[Floats, Floats]
"""Inputs float64[n, d] and responses float64[n] of a block, on the unit interval."""


# --- blocks ----------------------------------------------------------------------------------------------------------


def partition_rows(codes: Sequence[Delayed], *, name: str = "rows") -> list[Delayed]:
    """Graphs of the number of records of each partition."""
    task = Tasks(name)
    return [task("count", _rows_of, part) for part in codes]


def _rows_of(codes: Codes) -> int:
    return len(codes[0])


def table_blocks(
    codes: Sequence[Delayed], pieces: Sequence[Sequence[Piece]], columns: Columns, *, name: str = "blocks"
) -> list[Delayed]:
    """Graphs of the blocks of a table.

    Parameters
    ----------
    codes : sequence of Delayed of Codes
        Partition by partition.
    pieces : sequence of sequence of Piece
        Rows of the partitions in each block (`dpdist.prediction.blocks.Layout.pieces`).
    columns : Columns

    Returns
    -------
    list of Delayed of Block
    """
    task = Tasks(name)
    how = task.constant("columns", columns)
    return [task("block", _block, how, [codes[i] for i, _, _ in cut], [(a, b) for _, a, b in cut]) for cut in pieces]


def _block(columns: Columns, parts: Sequence[Codes], spans: Sequence[tuple[int, int]]) -> Block:
    pieces = [[column[a:b] for column in part] for part, (a, b) in zip(parts, spans, strict=True)]
    return columns.units([np.concatenate(column) for column in zip(*pieces, strict=True)])


# --- stage 1 ---------------------------------------------------------------------------------------------------------


def density_counts(
    blocks: Sequence[Delayed], starts: Sequence[int], method: Method, key: KeyRef, *, name: str = "densities"
) -> Delayed:
    """Graph of the counts of all blocks; `starts` are the numbers of their first records."""
    task = Tasks(name)
    how = task.constant("how", (method, key))
    parts = [task("count", _counts, how, block, start) for block, start in zip(blocks, starts, strict=True)]
    return task.tree("add", _add_counts, parts)


def _counts(how: tuple[Method, KeyRef], block: Block, start: int) -> Any:
    method, key = how
    return block_counts(method, block[0], load_noise(key), start=start)


def _add_counts(parts: Sequence[Any]) -> Any:
    return reduce(add_counts, parts)


def _add(parts: Sequence[Any]) -> Any:
    return reduce(operator.add, parts)


def score_products(
    blocks: Sequence[Delayed], method: Method, marginals: Sequence[Marginal], *, name: str = "correlations"
) -> Delayed:
    """Graph of the sums of the products of normal scores."""
    task = Tasks(name)
    how = task.constant("how", (method, tuple(marginals)))
    return task.tree("add", _add, [task("scores", _scores, how, block) for block in blocks])


def _scores(how: tuple[Method, tuple[Marginal, ...]], block: Block) -> Any:
    method, marginals = how
    return block_scores(method, block[0], marginals)


def synthetic_blocks(
    blocks: Sequence[Delayed],
    method: Method,
    target: Target,
    deviations: Floats,
    key: KeyRef,
    *,
    name: str = "synthesis",
) -> list[Delayed]:
    """Graphs of the matched synthetic rows of each block."""
    task = Tasks(name)
    how = task.constant("how", (method, target, deviations, key))
    return [task("match", _synthetic, how, block, number) for number, block in enumerate(blocks)]


def _synthetic(how: tuple[Method, Target, Floats, KeyRef], block: Block, number: int) -> Floats:
    method, target, deviations, key = how
    return block_synthetic(method, block[0], target, deviations, load_noise(key), number=number)


def disclosure_counts(
    blocks: Sequence[Delayed], synthetic: Sequence[Delayed], method: Method, *, name: str = "disclosure"
) -> Delayed:
    """Graph of the number of rows that would be near their originals, for each alpha."""
    task = Tasks(name)
    how = task.constant("how", method)
    parts = [task("near", _near, how, block, rows) for block, rows in zip(blocks, synthetic, strict=True)]
    return task.tree("add", _add, parts)


def _near(method: Method, block: Block, synthetic: Floats) -> NDArray[np.int64]:
    return block_near(method, block[0], synthetic)


# --- stage 2 ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seen:
    """What the regression sees: the method and the deviations of the columns."""

    method: Method
    deviations: Floats

    def __call__(self, inputs: Floats) -> Floats:
        """Features of rows of the unit cube."""
        return features(self.method.scales, inputs, self.deviations)


def regression_sample(
    blocks: Sequence[Delayed], starts: Sequence[int], seen: Seen, key: KeyRef, *, size: int, name: str = "sample"
) -> Delayed:
    """Graph of the sample on which the regression is tuned, and from which landmarks are taken."""
    task = Tasks(name)
    how = task.constant("how", (seen, key, size))
    parts = [task("sample", _sample, how, block, start) for block, start in zip(blocks, starts, strict=True)]
    return task.tree("join", partial(join_samples, size=size), parts)


def _sample(how: tuple[Seen, KeyRef, int], block: Block, start: int) -> Sample:
    seen, key, size = how
    words = sample_words(load_noise(key), len(block[1]), start=start)
    first = block_sample(words, size)
    return words[first], seen(block[0][first]), block[1][first]


def tuned(sample: Delayed, method: Regression, *, name: str = "tuning") -> Delayed:
    """Graph of width and penalty."""
    return Tasks(name)("tune", tuning_of, method, sample)


def fitted(
    blocks: Sequence[Delayed],
    seen: Seen,
    tuning: Tuning | None,
    landmarks: Floats,
    key: KeyRef,
    *,
    rows: int,
    name: str = "regression",
) -> Delayed:
    """Graph of the regression.

    Parameters
    ----------
    blocks : sequence of Delayed of Block
    seen : Seen
    tuning : Tuning or None
        None for a user's own regression.
    landmarks : float64[m, p]
    key : KeyRef
    rows : int
        Records of all blocks.
    """
    task = Tasks(name)
    how = task.constant("how", (seen, tuning, landmarks, key, rows))
    method = seen.method.regression
    if method.hook is not None or tuning is None:
        return task("fit", _fit_hook, how, list(blocks))
    estimator = method.estimator_for(rows)
    if estimator == "exact":
        return task("fit", _fit_exact, how, list(blocks))
    if estimator == "distributed":
        groups = [task("groups", _fit_groups, how, block, number) for number, block in enumerate(blocks)]
        return task("average", _average, groups)
    sums = [task("sums", _nystroem_sums, how, block) for block in blocks]
    return task("solve", _fit_nystroem, how, task("add", _add, sums))


_How = tuple[Seen, Tuning, Floats, KeyRef, int]


def _joined(seen: Seen, blocks: Sequence[Block]) -> tuple[Floats, Floats]:
    return np.concatenate([seen(inputs) for inputs, _ in blocks]), np.concatenate([y for _, y in blocks])


def _fit_hook(how: _How, blocks: Sequence[Block]) -> Any:
    return fit_hook(_hook(how[0].method.regression), *_joined(how[0], blocks))


def _hook(method: Regression) -> str:
    if method.hook is None:
        raise ValueError("the regression is not a user's own")
    return method.hook


def _fit_exact(how: _How, blocks: Sequence[Block]) -> ridge.KernelRidge:
    seen, tuning, *_ = how
    return ridge.fit_exact(*_joined(seen, blocks), kernel=tuning.kernel, penalty=tuning.penalty)


def _fit_groups(how: _How, block: Block, number: int) -> list[ridge.KernelRidge]:
    seen, tuning, _, key, rows = how
    noise = load_noise(key)
    return block_groups(seen.method.regression, seen(block[0]), block[1], tuning, noise, rows=rows, number=number)


def _average(groups: Sequence[Sequence[ridge.KernelRidge]]) -> ridge.KernelRidge:
    return ridge.average([part for group in groups for part in group])


def _nystroem_sums(how: _How, block: Block) -> ridge.NystroemSums:
    seen, tuning, landmarks, *_ = how
    return ridge.nystroem_sums(seen(block[0]), block[1], landmarks=landmarks, kernel=tuning.kernel)


def _fit_nystroem(how: _How, sums: ridge.NystroemSums) -> ridge.KernelRidge:
    _, tuning, landmarks, *_ = how
    return ridge.fit_nystroem(sums, landmarks=landmarks, kernel=tuning.kernel, penalty=tuning.penalty)


# --- what is released ------------------------------------------------------------------------------------------------


def released_blocks(
    blocks: Sequence[Delayed],
    synthetic: Sequence[Delayed],
    model: Delayed,
    seen: Seen,
    key: KeyRef,
    *,
    alpha: float,
    name: str = "release",
) -> list[Delayed]:
    """Graphs of the released rows of each block, shuffled: `Block`."""
    task = Tasks(name)
    how = task.constant("how", (seen, key, alpha))
    return [
        task("block", _released, how, block, rows, model, number)
        for number, (block, rows) in enumerate(zip(blocks, synthetic, strict=True))
    ]


def _released(how: tuple[Seen, KeyRef, float], block: Block, synthetic: Floats, model: Any, number: int) -> Block:
    seen, key, alpha = how
    inputs = block_mixed(seen.method, block[0], synthetic, alpha=alpha)
    responses = np.asarray(model.predict(seen(inputs)), np.float64)
    if responses.shape != (len(inputs),) or not np.all(np.isfinite(responses)):
        raise SpecError("prediction.regression: it must predict one finite number for each record")
    order = shuffled(load_noise(key), f"prediction/order/block/{number}", len(inputs))
    return inputs[order], responses[order]


def released_parts(
    blocks: Sequence[Delayed], parts: Sequence[Sequence[Piece]], columns: Columns, key: KeyRef, *, name: str = "parts"
) -> list[Delayed]:
    """Graphs of the parts of a release: codes of all attributes, each part shuffled again."""
    task = Tasks(name)
    how = task.constant("how", (columns, key))
    return [
        task("part", _part, how, [blocks[i] for i, _, _ in cut], [(a, b) for _, a, b in cut], number)
        for number, cut in enumerate(parts)
    ]


def _part(how: tuple[Columns, KeyRef], blocks: Sequence[Block], spans: Sequence[tuple[int, int]], number: int) -> Codes:
    columns, key = how
    pairs = list(zip(blocks, spans, strict=True))
    inputs = np.concatenate([block[0][a:b] for block, (a, b) in pairs])
    responses = np.concatenate([block[1][a:b] for block, (a, b) in pairs])
    order = shuffled(load_noise(key), f"prediction/order/part/{number}", len(inputs))
    return columns.codes(inputs[order], responses[order])


# --- the private variant ---------------------------------------------------------------------------------------------


def private_parts(
    model: PrivateModel,
    columns: Columns,
    key: KeyRef,
    *,
    first_stage: str,
    records: int,
    rows_per_part: int,
    name: str = "release",
) -> list[Delayed]:
    """Graphs of the parts of a private release: codes of all attributes."""
    task = Tasks(name)
    how = task.constant("how", (model, columns, key, first_stage))
    starts = range(0, records, rows_per_part)
    return [
        task("part", _private_part, how, min(rows_per_part, records - start), number)
        for number, start in enumerate(starts)
    ]


def _private_part(how: tuple[PrivateModel, Columns, KeyRef, str], rows: int, number: int) -> Codes:
    model, columns, key, first_stage = how
    rng = generator(load_noise(key), "prediction/records", number)
    inputs = FIRST_STAGES[first_stage](model.target, rows, rng)
    pieces = [model.predict(inputs[start : start + _ROWS]) for start in range(0, rows, _ROWS)]
    return columns.codes(inputs, np.concatenate(pieces))
