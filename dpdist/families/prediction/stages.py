"""The stages of a release of the published method: read, synthesise the inputs, fit, predict and write.

The table is cut into blocks of a fixed number of records, which the workers hold. Each task takes one block, and sums
are added in the order of the blocks, so neither partitions nor workers change a bit of what is released. The stages of
the private variant are in `dpdist.families.prediction.private.stages`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial, reduce
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.data.operators import Operator
from dpdist.errors import CheckFailed
from dpdist.families.base.attempt import Attempt, ReleasedRecords, write_records
from dpdist.families.base.family import Stage
from dpdist.families.base.passes import Passes
from dpdist.families.prediction.columns import Columns, Scale, columns_of
from dpdist.families.prediction.first_stage import correlation
from dpdist.families.prediction.lid import inputs as stage1
from dpdist.families.prediction.lid import regression as stage2
from dpdist.families.prediction.lid.method import (
    Block,
    BlockLayout,
    Method,
    check_records,
    cut_block,
    joined,
    party_records,
    shuffled,
)
from dpdist.families.prediction.lid.method import codes as party_codes
from dpdist.families.prediction.lid.regression import Features
from dpdist.families.prediction.lid.ridge import KernelRidge, Tuning, average, fit_nystroem
from dpdist.families.prediction.plan import FederatedPrivatePlan, LidPlan, PrivatePlan, TwoStagePlan
from dpdist.families.prediction.private import stages as private
from dpdist.families.prediction.second_stage import TUNING_ROWS
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, Counts, Floats

if TYPE_CHECKING:
    from dpdist.cluster.executor import Deferred

LidAttempt = Attempt[TwoStageSpec, LidPlan]

LEAST_ROWS = 10
"""Fewest records of a release of the published method."""


@dataclass(frozen=True, eq=False)
class TableBlocks:
    """The records of the table in blocks."""

    blocks: Sequence[Deferred]
    layout: BlockLayout
    records: tuple[int, ...]  # of each party; of all together where no column names the party


def read(attempt: LidAttempt) -> TableBlocks:
    """Read and check the table; hold its records as blocks in the workers' memory. Raises DataError: the table breaks
    its declared policies; CheckFailed: it or a party has fewer records than declared, or than a regression needs.
    """
    spec, executor, passes = attempt.spec, attempt.executor, Passes(attempt, repeated=True)
    passes.run(Operator(name="records", chunk=_rows_of, combine=operator.add), stage="counting")
    codes = passes.codes()
    count = executor.tasks("sizes")
    sizes = executor.compute([count("count", _rows_of, part) for part in codes])
    layout = BlockLayout(sum(sizes), attempt.plan.method.block_rows)
    if layout.rows < spec.data.minimum_records:
        raise CheckFailed(
            "the table has fewer records than data.minimum_records declares, so nothing is published: declare fewer"
        )
    if layout.rows < LEAST_ROWS:
        raise CheckFailed(f"a regression needs at least {LEAST_ROWS} records, so nothing is published")
    with attempt.stage("cutting blocks") as progress:
        task = executor.tasks("blocks")
        columns = task.constant("columns", columns_of(spec))
        blocks = [
            task("block", cut_block, columns, [codes[i] for i, _, _ in cut], [(a, b) for _, a, b in cut])
            for cut in layout.pieces(sizes)
        ]
        held = executor.persist(blocks, progress=progress)
    records = _party_records(attempt, held, layout)
    attempt.public["records"] = layout.rows
    return TableBlocks(held, layout, records)


def _party_records(attempt: LidAttempt, blocks: Sequence[Deferred], layout: BlockLayout) -> tuple[int, ...]:
    """The records of each party. Raises CheckFailed: a party has fewer than declared."""
    parties = attempt.spec.prediction.parties
    if parties is None:
        return (layout.rows,)
    counted = _summed(attempt, "counting parties", party_records, (attempt.plan.method,), zip(blocks, strict=True))
    records = tuple(counted.tolist())
    check_records(records, least=parties.minimum_records)
    return records


def _total(parts: Sequence[Any]) -> Any:
    return reduce(operator.add, parts)


def _summed(
    attempt: LidAttempt,
    stage: str,
    function: Callable[..., Any],
    known: Sequence[Any],
    blocks: Iterable[Sequence[Any]],
    add: Callable[[Sequence[Any]], Any] = _total,
) -> Any:
    """What a function of something known and each block says of all blocks, added in their order."""
    with attempt.stage(stage) as progress:
        task = attempt.executor.tasks(stage.replace(" ", "-"))
        constants = [task.constant(f"known-{place}", one) for place, one in enumerate(known)]
        parts = [task("block", function, *constants, *block) for block in blocks]
        return attempt.executor.compute([task.tree("add", add, parts)], progress=progress)[0]


def _rows_of(codes: Codes) -> int:
    return len(codes[0])


@dataclass(frozen=True, eq=False)
class SyntheticInputs:
    """The synthetic rows of all blocks, and how they are mixed with the original ones."""

    # sequence of Deferred of float64[n, synthesised inputs]: of each block, in the order of the records
    rows: Sequence[Deferred]
    alpha: float  # share of the original row
    features: Features  # what the regression sees of rows


def synthesise(attempt: LidAttempt) -> SyntheticInputs:
    """Draw synthetic rows, and choose the share of the original. Raises CheckFailed: too much would be disclosed."""
    executor, table, method = attempt.executor, attempt.result(TableBlocks), attempt.plan.method
    inputs = attempt.stored(stage1.InputDistribution, lambda: _distribution(attempt, table))
    with attempt.stage("synthesising") as progress:
        task = executor.tasks("synthesis")
        how, drawn, key = task.constant("method", method), task.constant("inputs", inputs), attempt.key
        tasks = [
            task("match", stage1.synthetic_rows, how, drawn, key, block, number)
            for number, block in enumerate(table.blocks)
        ]
        rows = executor.persist(tasks, progress=progress)
    found = attempt.stored(stage1.Disclosed, lambda: _disclosed(attempt, table, rows))
    attempt.operator["disclosure"] = {"rows_near": found.near, "rows": table.layout.rows}
    attempt.public["alpha"] = found.alpha
    party = None if method.regression.hook is not None else method.party
    features = Features(method.scales, stage1.deviations_of(inputs.parties), method.classes, party)
    return SyntheticInputs(rows, found.alpha, features)


def _distribution(attempt: LidAttempt, table: TableBlocks) -> stage1.InputDistribution:
    method, starts = attempt.plan.method, zip(table.blocks, table.layout.starts, strict=True)
    counting = (attempt, "estimating densities", stage1.fold_counts, (method, attempt.key))
    marginals = stage1.fit_marginals(method, _summed(*counting, starts, stage1.added))
    scoring = (attempt, "estimating correlations", stage1.block_scores, (method, marginals))
    scores = _summed(*scoring, zip(table.blocks, strict=True), stage1.added)
    parties = zip(table.records, marginals, map(correlation, scores), strict=True)
    return stage1.InputDistribution(tuple(stage1.Distribution(*party) for party in parties))


def _disclosed(attempt: LidAttempt, table: TableBlocks, rows: Sequence[Deferred]) -> stage1.Disclosed:
    method, drawn = attempt.plan.method, zip(table.blocks, rows, strict=True)
    near = _summed(attempt, "measuring disclosure", stage1.near_counts, (method,), drawn)
    return stage1.disclosed(method, near, table.records)


@dataclass(frozen=True, eq=False)
class FittedRegression:
    """The regression of the original responses on the original inputs."""

    model: Deferred  # with ``predict(features)``


def regress(attempt: LidAttempt) -> FittedRegression:
    """Tune and fit the regression."""
    executor, table, method = attempt.executor, attempt.result(TableBlocks), attempt.plan.method
    features, regression, rows = attempt.result(SyntheticInputs).features, method.regression, table.layout.rows
    attempt.before_noise()  # from here on the attempt can no longer be given back
    task = executor.tasks("model")
    if regression.hook is not None:
        with attempt.stage("fitting the regression") as progress:
            made = task("fit", stage2.fit_hook, regression.hook, features, list(table.blocks))
            return FittedRegression(executor.persist([made], progress=progress)[0])

    @cache
    def sample() -> stage2.Sample:
        return _sample(attempt, table, features)

    def tuned() -> Tuning:
        with attempt.stage("tuning the regression") as progress:
            made = task("tune", stage2.tuning_of, regression, task.constant("sample", sample()), method.relation)
            tuning: Tuning = executor.compute([made], progress=progress)[0]
            return tuning

    tuning = attempt.stored(Tuning, tuned)
    attempt.public["estimator"] = regression.estimator_for(rows)
    attempt.operator["regression"] = asdict(tuning)
    model = attempt.stored(KernelRidge, lambda: _fitted(attempt, table, features, tuning, sample))
    return FittedRegression(task.constant("model", model))


def _sample(attempt: LidAttempt, table: TableBlocks, features: Features) -> stage2.Sample:
    """The sample that tuning and landmarks take: the records with the smallest keyed words."""
    task, size = attempt.executor.tasks("sample"), max(TUNING_ROWS, attempt.plan.method.regression.landmarks)
    seen, source = task.constant("features", features), task.constant("key", attempt.key)
    starts = zip(table.blocks, table.layout.starts, strict=True)
    parts = [task("sample", stage2.block_sample, seen, source, block, start, size) for block, start in starts]
    drawn: stage2.Sample = attempt.executor.compute(
        [task.tree("join", partial(stage2.join_samples, size=size), parts)]
    )[0]
    return drawn


def _fitted(
    attempt: LidAttempt, table: TableBlocks, features: Features, tuning: Tuning, sample: Callable[[], stage2.Sample]
) -> KernelRidge:
    """The kernel ridge regression of the responses on the features, by the estimator of the spec."""
    task, blocks, rows = attempt.executor.tasks("regression"), table.blocks, table.layout.rows
    regression, seen = attempt.plan.method.regression, task.constant("features", features)
    with attempt.stage("fitting the regression") as progress:
        match regression.estimator_for(rows):
            case "exact":
                made = task("fit", stage2.fit_all, seen, tuning, list(blocks))
            case "distributed":
                how = task.constant("how", (tuning, attempt.key, regression.group_rows, rows))
                groups = [
                    task("groups", stage2.fit_groups, seen, how, block, number) for number, block in enumerate(blocks)
                ]
                made = task("average", average, groups)
            case _:
                landmarks = task.constant("landmarks", sample()[1][: regression.landmarks])
                sums = [task("sums", stage2.landmark_sums, seen, tuning, landmarks, block) for block in blocks]
                solve = partial(fit_nystroem, kernel=tuning.kernel, penalty=tuning.penalty)
                made = task("solve", solve, task.tree("add", _total, sums), landmarks)
        model: KernelRidge = attempt.executor.compute([made], progress=progress)[0]
        return model


def predict(attempt: LidAttempt) -> ReleasedRecords:
    """Mix the inputs, predict the responses, and shuffle the records into the parts of the release. Raises CheckFailed:
    the responses would disclose too much.
    """
    executor, spec, key = attempt.executor, attempt.spec, attempt.key
    table, synthetic = attempt.result(TableBlocks), attempt.result(SyntheticInputs)
    model, alpha = attempt.result(FittedRegression).model, synthetic.alpha
    if attempt.plan.method.disclosure.response is not None:
        found = attempt.stored(stage1.ResponsesDisclosed, lambda: _responses(attempt, table, synthetic, model))
        attempt.operator["disclosure"]["responses_near"] = found.near
        attempt.public["alpha"] = alpha = found.alpha
    with attempt.stage("predicting") as progress:
        task = executor.tasks("release")
        how = task.constant("how", (attempt.plan.method, synthetic.features, alpha))
        made = [
            task("block", _shuffled_block, how, key, block, rows, model, number)
            for number, (block, rows) in enumerate(zip(table.blocks, synthetic.rows, strict=True))
        ]
        held = executor.persist(made, progress=progress) if len(made) > 1 else made
    task = executor.tasks("parts")
    columns = task.constant("columns", columns_of(spec))
    parts = [
        task("part", _part, columns, key, [held[i] for i, _, _ in cut], [(a, b) for _, a, b in cut], number)
        for number, cut in enumerate(table.layout.parts(spec.output.rows_per_part))
    ]
    return ReleasedRecords(parts)


def _responses(
    attempt: LidAttempt, table: TableBlocks, synthetic: SyntheticInputs, model: Deferred
) -> stage1.ResponsesDisclosed:
    method, most = attempt.plan.method, synthetic.alpha
    # tenths below the one that the inputs allow, and that one
    alphas = (*(i / 10 for i in range(10) if i / 10 < most and method.alpha is None), most)
    known = (method, synthetic.features, attempt.spec.response, alphas)
    drawn = zip(table.blocks, synthetic.rows, repeat(model))
    near = _summed(attempt, "measuring responses", _near_responses, known, drawn)
    return stage1.responses_disclosed(method, alphas, near, table.records)


def _near_responses(
    method: Method, features: Features, scale: Scale, alphas: Sequence[float], block: Block, rows: Floats, model: Any
) -> Counts:
    """How many responses of each party in a block would be near the original ones, for each alpha."""
    parties, owners = max(method.parties, 1), party_codes(method, block[0])
    counts = np.zeros((parties, len(alphas)), np.int64)
    for place, alpha in enumerate(alphas):
        _, told = released_block((method, features, alpha), block, rows, model)
        near = np.abs(scale.snap(told) - block[1]) <= method.disclosure.eta
        counts[:, place] = np.bincount(owners[near], minlength=parties)
    return counts


Released = tuple[Method, Features, float]
"""The method, what the regression sees, and alpha."""


def released_block(how: Released, block: Block, rows: Floats, model: Any) -> Block:
    """Mixed inputs and predicted responses of a block, in the order of the records."""
    method, features, alpha = how
    inputs = stage1.mixed_rows(method, block[0], rows, alpha=alpha)
    return inputs, stage2.predicted(model, features, inputs)


def _shuffled_block(how: Released, key: KeyRef, block: Block, rows: Floats, model: Any, number: int) -> Block:
    inputs, responses = released_block(how, block, rows, model)
    order = shuffled(load_noise(key), f"prediction/order/block/{number}", len(inputs))
    return inputs[order], responses[order]


def _part(
    columns: Columns, key: KeyRef, blocks: Sequence[Block], spans: Sequence[tuple[int, int]], number: int
) -> Codes:
    """A part of the release, shuffled again: codes of all attributes."""
    pieces = [(inputs[a:b], responses[a:b]) for (inputs, responses), (a, b) in zip(blocks, spans, strict=True)]
    inputs, responses = joined(pieces)
    order = shuffled(load_noise(key), f"prediction/order/part/{number}", len(inputs))
    return columns.codes(inputs[order], responses[order])


def stages(plan: TwoStagePlan) -> Sequence[Stage[Any, Any]]:
    """The stages of a release, in order."""
    if isinstance(plan, FederatedPrivatePlan):
        return (Stage("measure", private.measure_together), *private.STAGES[1:])
    if isinstance(plan, PrivatePlan):
        return private.STAGES
    return (
        Stage("read", read),
        Stage("synthesise", synthesise),
        Stage("regress", regress),
        Stage("predict", predict),
        Stage("write", write_records),
    )
