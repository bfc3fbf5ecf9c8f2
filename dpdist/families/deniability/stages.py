"""The stages of a plausible-deniability release, in order: count, learn, index the seeds, synthesise, write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dpdist.data.operators import Split, pair_counts_operator
from dpdist.errors import CheckFailed
from dpdist.families.base.attempt import Attempt, ReleasedRecords, write_records
from dpdist.families.base.calibration import confirm
from dpdist.families.base.family import Stage
from dpdist.families.base.network import Network
from dpdist.families.base.passes import Passes
from dpdist.families.deniability import graph
from dpdist.families.deniability.deniability import PrivacyTest, SeedSynthesis, SeedSynthesizer
from dpdist.families.deniability.estimation import estimate_network
from dpdist.families.deniability.own_model import DeclaredModel, OwnSynthesizer
from dpdist.families.deniability.parameters import NoisyTables, ParameterPlan, measure_tables, tables_operator
from dpdist.families.deniability.plan import MEMORY_FOR_SEEDS, PlausibleDeniabilityPlan
from dpdist.families.deniability.pool import PoolPlan, PoolSynthesizer, RecordPool, learn_pool
from dpdist.families.deniability.prefixes import seed_operator
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.structure import (
    Structure,
    StructureStatistics,
    independent_structure,
    learn_structure,
    measure_structure,
)

if TYPE_CHECKING:
    from dpdist.cluster.executor import Deferred

DeniabilityAttempt = Attempt[PlausibleDeniabilitySpec, PlausibleDeniabilityPlan]

STRUCTURE, PARAMETERS, SEEDS = range(3)  # labels of the splits


@dataclass(frozen=True, eq=False)
class IndexedSeeds:
    """What candidates are made from."""

    synthesizer: SeedSynthesis
    # one index of all seeds, or those of their ranges in order; none when every attribute is resampled
    indexes: Sequence[Deferred]


def stages(plan: PlausibleDeniabilityPlan) -> Sequence[Stage[PlausibleDeniabilitySpec, PlausibleDeniabilityPlan]]:
    """The stages of a plausible-deniability release, in order."""
    learning: Sequence[Stage[PlausibleDeniabilitySpec, PlausibleDeniabilityPlan]]
    match plan.model.parameters:
        case DeclaredModel():
            learning = ()
        case PoolPlan() as pool:
            learning = (Stage("model", partial(learn_model, pool)),)
        case ParameterPlan() as tables:
            learning = (Stage("structure", learn_parents), Stage("parameters", partial(learn_parameters, tables)))
    return (*learning, Stage("seeds", index_seeds), Stage("records", synthesise), Stage("write", write_records))


def learn_parents(attempt: DeniabilityAttempt) -> Structure:
    """Parents and order, from noisy statistics of all pairs of attributes in T. Raises DataError: the table breaks its
    declared policies; CheckFailed: too few records for the declared minimum.
    """
    spec, plan = attempt.spec, attempt.plan.model
    check, structure = plan.check, plan.structure
    if check is None or structure is None:
        return independent_structure(spec.table, order=spec.model.order)

    def measure() -> StructureStatistics:
        operator = pair_counts_operator(spec.table.cardinalities)
        counts = _passes(attempt).run(operator, label=_label(spec, STRUCTURE), stage="counting")
        confirm(counts.total, check, noise=attempt.noise, name="structure", setting="data.minimum_records")
        return measure_structure(counts, spec.table, plan=structure, noise=attempt.noise)

    return learn_structure(
        attempt.stored(StructureStatistics, measure),
        spec.table,
        records=spec.data.minimum_records * float(spec.split.shares.parameters),
        table_noise=plan.parameters.standard_deviation,
        order=spec.model.order,
        regressed=spec.regressed,
    )


def learn_parameters(plan: ParameterPlan, attempt: DeniabilityAttempt) -> Network:
    """The network: noisy count tables of P, and the conditional distributions. Raises DataError: a policy is broken."""
    spec, structure = attempt.spec, attempt.result(Structure)

    def measure() -> NoisyTables:
        counts = _passes(attempt).run(
            tables_operator(structure, spec.table), label=_label(spec, PARAMETERS), stage="learning parameters"
        )
        return measure_tables(counts, structure, plan=plan, noise=attempt.noise)

    def estimate() -> Network:
        return estimate_network(tables, structure, spec.table, noise=attempt.noise)

    tables = attempt.stored(NoisyTables, measure)
    with attempt.stage("estimating"):
        return attempt.stored(Network, estimate)


def learn_model(plan: PoolPlan, attempt: DeniabilityAttempt) -> RecordPool:
    """The pool of model records that agree with what candidates keep. Raises DataError: a policy is broken."""
    spec = attempt.spec

    def make() -> RecordPool:
        operator = pair_counts_operator(spec.table.cardinalities)
        counts = _passes(attempt).run(operator, label=_label(spec, PARAMETERS), stage="counting")
        noise = attempt.noise
        with attempt.stage("fitting"):
            order = [spec.table.names.index(name) for name in spec.declared_order or ()]
            return learn_pool(counts, plan, order=order, kept=len(order) - spec.omegas[0], noise=noise)

    return attempt.stored(RecordPool, make)


def index_seeds(attempt: DeniabilityAttempt) -> IndexedSeeds:
    """Indexes of the seeds, held by the workers. Raises CheckFailed: too few seeds for the declared minimum."""
    spec, plan, executor = attempt.spec, attempt.plan.seeds, attempt.executor
    synthesizer = _synthesizer(attempt)
    if plan is None:
        return IndexedSeeds(synthesizer, [])
    passes, code = _passes(attempt), synthesizer.prefix_code
    rows = math.ceil(passes.table.rows * float(spec.split.shares.seeds))
    shards = graph.shard_count(code, records=rows, memory=int(MEMORY_FOR_SEEDS * executor.worker_memory))
    if shards == 1:
        indexes = [passes.held(seed_operator(code), label=_label(spec, SEEDS), stage="indexing seeds")]
    else:
        codes = passes.codes(label=_label(spec, SEEDS))
        with attempt.stage("indexing seeds") as progress:
            indexes = executor.persist(graph.sharded_seeds(executor, codes, code, shards=shards), progress=progress)
    seeds = sum(executor.compute(graph.seed_sizes(executor, indexes)))
    attempt.operator["seeds"] = seeds
    if plan.count is not None:
        confirm(seeds, plan.count, noise=attempt.noise, name="seeds", setting="data.minimum_records")
    return IndexedSeeds(synthesizer, indexes)


def _synthesizer(attempt: DeniabilityAttempt) -> SeedSynthesis:
    spec = attempt.spec
    match attempt.plan.model.parameters:
        case DeclaredModel(hook=hook):
            return OwnSynthesizer.of(hook, spec.table, gamma=spec.privacy.deniability.gamma)
        case PoolPlan():
            return PoolSynthesizer(attempt.result(RecordPool))
        case _:
            return SeedSynthesizer(attempt.result(Network), spec.omegas)


def synthesise(attempt: DeniabilityAttempt) -> ReleasedRecords:
    """The first R candidates that pass, in parts of fixed size. Raises CheckFailed: too few candidates pass."""
    spec, plan, executor, seeds = attempt.spec, attempt.plan, attempt.executor, attempt.result(IndexedSeeds)
    records, size = spec.synthesis.records, plan.batch_size(executor.slots)
    test = PrivacyTest.of(spec.privacy.deniability)
    attempt.before_noise()
    with attempt.stage("synthesising") as progress:
        batches, counts = graph.first_passing(
            executor,
            partial(
                graph.candidate_batches, executor, seeds.synthesizer, test, seeds.indexes, attempt.key, batch_size=size
            ),
            records=records,
            at_least=plan.candidates_at_least,
            at_most=plan.candidates_at_most,
            batch_size=size,
            progress=progress,
        )
    attempt.operator["candidates"] = {"tried": len(batches) * size, "passed": sum(counts)}
    check = None if plan.seeds is None else plan.seeds.passes
    if check is not None:
        first = sum(executor.compute(graph.passed_counts(executor, batches, below=check.candidates)))
        confirm(first, check, noise=attempt.noise, name="passes", setting="synthesis.minimum_pass_rate")
    if sum(counts) < records:
        raise CheckFailed(
            "too few candidates pass the privacy test, so nothing is published: lower synthesis.minimum_pass_rate or "
            "k, raise gamma, or resample more attributes (synthesis.omega). The charge stays spent"
        )
    rows = spec.output.rows_per_part
    return ReleasedRecords(graph.released_parts(executor, batches, counts, records=records, rows_per_part=rows))


def _passes(attempt: DeniabilityAttempt) -> Passes:
    split = attempt.spec.split
    return Passes.shared(attempt, split=Split(attempt.key, split.shares) if split.records == "disjoint" else None)


def _label(spec: PlausibleDeniabilitySpec, label: int) -> int | None:
    """The part of the table that a stage passes over; None for all of it."""
    return label if spec.split.records == "disjoint" else None
