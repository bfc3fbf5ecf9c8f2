"""Two-stage releases as task graphs. Building a graph computes nothing.

The published method works on blocks of a fixed number of records, cut from the encoded partitions and held by the
workers; every task takes one block, and sums over blocks are added in the order of the blocks. So neither partitions
nor workers change a bit of what is released. The private variant makes three passes over the table, each an exact
sum, and then draws records part by part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dask.delayed import Delayed

from dpdist.cluster.tasks import Tasks
from dpdist.families.prediction.blocks import Piece
from dpdist.families.prediction.columns import Columns
from dpdist.families.prediction.density import Marginal
from dpdist.families.prediction.latin import Target
from dpdist.families.prediction.lid import work
from dpdist.families.prediction.lid.method import Method, Regression
from dpdist.families.prediction.lid.regression import join_samples, tuning_of
from dpdist.families.prediction.lid.ridge import Tuning
from dpdist.families.prediction.lid.work import Seen
from dpdist.families.prediction.private.features import PrivateModel
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Floats

# --- blocks ----------------------------------------------------------------------------------------------------------


def partition_rows(codes: Sequence[Delayed], *, name: str = "rows") -> list[Delayed]:
    """Graphs of the number of records of each partition."""
    task = Tasks(name)
    return [task("count", work.rows_of, part) for part in codes]


def table_blocks(
    codes: Sequence[Delayed], pieces: Sequence[Sequence[Piece]], columns: Columns, *, name: str = "blocks"
) -> list[Delayed]:
    """Graphs of the blocks of a table.

    Parameters
    ----------
    codes : sequence of Delayed of Codes
        Partition by partition.
    pieces : sequence of sequence of Piece
        Rows of the partitions in each block (`dpdist.families.prediction.blocks.Layout.pieces`).
    columns : Columns

    Returns
    -------
    list of Delayed of Block
    """
    task = Tasks(name)
    how = task.constant("columns", columns)
    return [
        task("block", work.cut_block, how, [codes[i] for i, _, _ in cut], [(a, b) for _, a, b in cut]) for cut in pieces
    ]


# --- stage 1 ---------------------------------------------------------------------------------------------------------


def density_counts(
    blocks: Sequence[Delayed], starts: Sequence[int], method: Method, key: KeyRef, *, name: str = "densities"
) -> Delayed:
    """Graph of the counts of all blocks; `starts` are the numbers of their first records."""
    task = Tasks(name)
    how = task.constant("how", (method, key))
    parts = [task("count", work.counts, how, block, start) for block, start in zip(blocks, starts, strict=True)]
    return task.tree("add", work.all_counts, parts)


def score_products(
    blocks: Sequence[Delayed], method: Method, marginals: Sequence[Marginal], *, name: str = "correlations"
) -> Delayed:
    """Graph of the sums of the products of normal scores."""
    task = Tasks(name)
    how = task.constant("how", (method, tuple(marginals)))
    return task.tree("add", work.total, [task("scores", work.scores, how, block) for block in blocks])


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
    return [task("match", work.synthetic, how, block, number) for number, block in enumerate(blocks)]


def disclosure_counts(
    blocks: Sequence[Delayed], synthetic: Sequence[Delayed], method: Method, *, name: str = "disclosure"
) -> Delayed:
    """Graph of the number of rows that would be near their originals, for each alpha."""
    task = Tasks(name)
    how = task.constant("how", method)
    parts = [task("near", work.near, how, block, rows) for block, rows in zip(blocks, synthetic, strict=True)]
    return task.tree("add", work.total, parts)


# --- stage 2 ---------------------------------------------------------------------------------------------------------


def regression_sample(
    blocks: Sequence[Delayed], starts: Sequence[int], seen: Seen, key: KeyRef, *, size: int, name: str = "sample"
) -> Delayed:
    """Graph of the sample on which the regression is tuned, and from which landmarks are taken."""
    task = Tasks(name)
    how = task.constant("how", (seen, key, size))
    parts = [task("sample", work.sample, how, block, start) for block, start in zip(blocks, starts, strict=True)]
    return task.tree("join", partial(join_samples, size=size), parts)


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

    Raises
    ------
    ValueError
        There is no tuning, and no regression of the user's.
    """
    task = Tasks(name)
    method = seen.method.regression
    if method.hook is not None:
        return task("fit", work.fit_hook, task.constant("how", (seen, method.hook)), list(blocks))
    if tuning is None:
        raise ValueError("kernel ridge regression is tuned before it is fitted")
    how = task.constant("how", (seen, tuning, landmarks, key, rows))
    estimator = method.estimator_for(rows)
    if estimator == "exact":
        return task("fit", work.fit_exact, how, list(blocks))
    if estimator == "distributed":
        groups = [task("groups", work.fit_groups, how, block, number) for number, block in enumerate(blocks)]
        return task("average", work.average, groups)
    sums = [task("sums", work.nystroem_sums, how, block) for block in blocks]
    return task("solve", work.fit_nystroem, how, task("add", work.total, sums))


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
        task("block", work.released, how, block, rows, model, number)
        for number, (block, rows) in enumerate(zip(blocks, synthetic, strict=True))
    ]


def released_parts(
    blocks: Sequence[Delayed], parts: Sequence[Sequence[Piece]], columns: Columns, key: KeyRef, *, name: str = "parts"
) -> list[Delayed]:
    """Graphs of the parts of a release: codes of all attributes, each part shuffled again."""
    task = Tasks(name)
    how = task.constant("how", (columns, key))
    return [
        task("part", work.part, how, [blocks[i] for i, _, _ in cut], [(a, b) for _, a, b in cut], number)
        for number, cut in enumerate(parts)
    ]


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
        task("part", work.private_part, how, min(rows_per_part, records - start), number)
        for number, start in enumerate(starts)
    ]
