"""The stages of a plausible-deniability release, in order: count, learn, index the seeds, synthesise, write."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from dpdist.data.graph import encoded_partitions, locate, partition_codes, reduce_partitions, table_pass
from dpdist.data.operators import Operator, pair_counts_operator
from dpdist.data.report import RowReport, check
from dpdist.data.split import Split
from dpdist.data.table import Table
from dpdist.errors import CheckFailed
from dpdist.families.attempt import Context
from dpdist.families.deniability.candidates import Synthesizer
from dpdist.families.deniability.deniability import PrivacyTest
from dpdist.families.deniability.estimation import estimate_network
from dpdist.families.deniability.graph import (
    BATCH_SIZE,
    candidate_batches,
    passed_counts,
    released_parts,
    seed_operator,
    shard_count,
    sharded_seeds,
)
from dpdist.families.deniability.network import Network
from dpdist.families.deniability.parameters import NoisyTables, add_to_tables, count_tables, measure_tables
from dpdist.families.deniability.plan import PlausibleDeniabilityPlan
from dpdist.families.deniability.structure import (
    StructureStatistics,
    independent_structure,
    learn_structure,
    measure_structure,
)
from dpdist.publish.graph import written_parts
from dpdist.publish.parts import PartFormat

if TYPE_CHECKING:
    from dask.delayed import Delayed


STRUCTURE, PARAMETERS, SEEDS = range(3)
"""Labels of the splits."""

_MEMORY_FOR_CODES = 0.25
_MEMORY_FOR_SEEDS = 0.1
_SMALLEST_BATCH = 1 << 14


class Passes:
    """One pass over one split at a time: over codes in worker memory where they fit, else over the files again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._split = Split(context.key, _plan(context).spec.split.shares)
        self._checked = False

    @cached_property
    def table(self) -> Table:
        """The table with its row numbers."""
        if self._context.table.is_located:
            return self._context.table
        with self._context.stage("locating rows") as progress:
            located: Table = self._context.cluster.compute([locate(self._context.table)], progress=progress)[0]
            return located

    @cached_property
    def _encoded(self) -> list[Delayed] | None:
        """The encoded partitions in worker memory; None where they do not fit."""
        cluster, schema = self._context.cluster, self._context.spec.table
        row = sum(attribute.dtype.itemsize for attribute in schema.attributes) + 1
        if (self.table.rows or 0) * row > _MEMORY_FOR_CODES * cluster.memory:
            return None
        with self._context.stage("reading") as progress:
            graphs = encoded_partitions(self.table, name="read", split=self._split)
            return cluster.persist(graphs, progress=progress)

    def run(self, operator: Operator, label: int, *, stage: str) -> Any:
        """The operator's summary of one split; the first pass refuses a table that breaks its policies."""
        encoded = self._encoded
        with self._context.stage(stage) as progress:
            graph = self._graph(operator, label, encoded, name=stage.replace(" ", "-"))
            summary, report = self._context.cluster.compute([graph], progress=progress)[0]
        self._check(report)
        return summary

    def held(self, operator: Operator, label: int, *, stage: str) -> Delayed:
        """As `run`, but the summary stays where it was computed."""
        encoded = self._encoded
        with self._context.stage(stage) as progress:
            graph = self._graph(operator, label, encoded, name=stage.replace(" ", "-"))
            kept: Delayed = self._context.cluster.persist([graph], progress=progress)[0]
        return kept[0]

    def codes(self, label: int) -> list[Delayed]:
        """Graphs of the codes of one split, partition by partition."""
        encoded = self._encoded
        if encoded is None:
            encoded = encoded_partitions(self.table, name="seeds", split=self._split, label=label)
            return partition_codes(encoded, name="seeds")
        return partition_codes(encoded, name="seeds", label=label)

    def _graph(self, operator: Operator, label: int, encoded: list[Delayed] | None, *, name: str) -> Delayed:
        if encoded is not None:
            return reduce_partitions(encoded, operator, label=label, name=name)
        return table_pass(self.table, operator, split=self._split, label=label, name=name)

    def _check(self, report: RowReport) -> None:
        if not self._checked:
            self._context.operator["table"] = report.confidential(self._context.spec.table)
            check(report, self._context.spec.table)
            self._checked = True


def learn_structure_step(context: Context) -> None:
    """Parents and order, from noisy statistics of all pairs of attributes in T."""
    spec, plan = _plan(context).spec, _plan(context).model
    check, structure = plan.check, plan.structure
    if check is None or structure is None:
        context.results["structure"] = independent_structure(spec.table, order=spec.model.order)
        return

    def measure() -> bytes:
        counts = _passes(context).run(pair_counts_operator(spec.table.cardinalities), STRUCTURE, stage="counting")
        _confirm(check, counts.total, context=context, name="structure", setting="data.minimum_records")
        return measure_structure(counts, spec.table, plan=structure, noise=context.noise).to_bytes()

    statistics = StructureStatistics.from_bytes(context.stored("structure-statistics.json", measure))
    context.results["structure"] = learn_structure(
        statistics,
        spec.table,
        records=spec.data.minimum_records * float(spec.split.parameters),
        table_noise=plan.parameters.standard_deviation,
        max_parent_configurations=spec.model.max_parent_configurations,
        order=spec.model.order,
    )


def _confirm(check: Any, count: int, *, context: Context, name: str, setting: str) -> None:
    """Compare a noisy count with a declared public lower bound."""
    noisy = count + int(context.noise.discrete_laplace(f"checks/{name}", 1, scale=check.scale)[0])
    if not check.passes(noisy):
        raise CheckFailed(
            f"a declared public lower bound was not confirmed, so nothing is published: {setting} is more than the "
            "table supports with the noise of the check; declare less, from public knowledge, under another release "
            "name. The charge stays spent"
        )


def learn_parameters_step(context: Context) -> None:
    """The network: noisy count tables of P, and the conditional distributions they support."""
    spec, plan, structure = _plan(context).spec, _plan(context).model, context.results["structure"]

    def measure() -> bytes:
        maps = tuple(attribute.bucket_map for attribute in spec.table.attributes)
        model = {"structure": structure, "bucket_maps": maps}
        count = Operator(
            name="tables",
            chunk=partial(count_tables, **model),
            combine=operator.add,
            update=partial(add_to_tables, **model),
        )
        counts = _passes(context).run(count, PARAMETERS, stage="learning parameters")
        return measure_tables(counts, structure, plan=plan.parameters, noise=context.noise).to_bytes()

    tables = NoisyTables.from_bytes(context.stored("parameter-tables.npz", measure))

    def estimate() -> bytes:
        model = spec.model
        network = estimate_network(
            tables, structure, spec.table, noise=context.noise, prior=model.prior, estimate=model.estimate
        )
        return network.to_bytes()

    with context.stage("estimating"):
        context.results["network"] = Network.from_bytes(context.stored("network.bin", estimate))


def index_seeds_step(context: Context) -> None:
    """Indexes of the seeds, held by the workers; their number is confirmed first."""
    spec, plan = _plan(context).spec, _plan(context).seeds
    synthesizer = Synthesizer(context.results["network"], spec.omegas)
    context.results["synthesizer"], context.results["seeds"] = synthesizer, []
    if plan is None:
        return
    passes, code = _passes(context), synthesizer.prefix_code
    rows = math.ceil((passes.table.rows or 0) * float(spec.split.seeds))
    shards = shard_count(code, records=rows, memory=int(_MEMORY_FOR_SEEDS * context.cluster.worker_memory))
    if shards == 1:
        indexes = [passes.held(seed_operator(code), SEEDS, stage="indexing seeds")]
    else:
        with context.stage("indexing seeds") as progress:
            graphs = sharded_seeds(passes.codes(SEEDS), code, shards=shards)
            indexes = context.cluster.persist(graphs, progress=progress)
    seeds = sum(context.cluster.compute([index.size for index in indexes]))
    context.operator["seeds"] = seeds
    if plan.count is not None:
        _confirm(plan.count, seeds, context=context, name="seeds", setting="data.minimum_records")
    context.results["seeds"] = indexes


def release_records_step(context: Context) -> None:
    """The first R candidates that pass, written in parts of a fixed number of rows."""
    spec, cluster, plan = _plan(context).spec, context.cluster, _plan(context).seeds
    synthesizer, seeds = context.results["synthesizer"], context.results["seeds"]
    records, most = spec.synthesis.records, spec.synthesis.records if plan is None else plan.candidates
    checked = plan.passes.candidates if plan is not None and plan.passes is not None else 0
    share = math.ceil(max(records, checked) / cluster.slots)
    size = min(BATCH_SIZE, max(_SMALLEST_BATCH, 1 << math.ceil(math.log2(share))))
    test = spec.privacy.deniability
    epsilon0 = test.epsilon0 if test.test == "randomised" else None
    privacy_test = PrivacyTest(k=test.k, gamma=test.gamma, epsilon0=epsilon0)
    batches: list[Delayed] = []
    counts: list[int] = []
    context.before_noise()
    with context.stage("synthesising") as progress:
        wanted = math.ceil(max(records, checked) / size)
        shown: Callable[[int, int], None] | None = _share(progress, min(1, wanted * size / most))
        while True:
            numbers = range(len(batches), len(batches) + wanted)
            made = candidate_batches(synthesizer, privacy_test, seeds, context.key, batches=numbers, batch_size=size)
            made = cluster.persist(made, progress=shown)
            shown = None  # how many are tried from here on is private, and not only the operator sees progress
            batches += made
            counts += cluster.compute(passed_counts(made))
            missing = records - sum(counts)
            context.operator["candidates"] = {"tried": len(batches) * size, "passed": sum(counts)}
            if missing <= 0 or len(batches) * size >= most:
                break
            rate = max(sum(counts), 1) / len(counts)
            wanted = min(math.ceil(missing / rate), 2 * len(batches), math.ceil(most / size) - len(batches))
    if plan is not None and plan.passes is not None:
        first = sum(cluster.compute(passed_counts(batches, below=checked)))
        _confirm(plan.passes, first, context=context, name="passes", setting="synthesis.minimum_pass_rate")
    if missing > 0:
        raise CheckFailed(
            "too few candidates pass the privacy test, so nothing is published: lower synthesis.minimum_pass_rate or "
            "k, raise gamma, or resample more attributes (synthesis.omega). The charge stays spent"
        )
    with context.stage("writing") as progress:
        rows = spec.output.rows_per_part
        graphs = written_parts(
            released_parts(batches, counts, records=records, rows_per_part=rows),
            schema=spec.table,
            form=PartFormat(values=spec.output.values, bins=spec.output.bins),
            store=context.output,
            attempt=context.attempt,
            key=context.key,
            rows_per_part=rows,
        )
        context.parts = tuple(cluster.compute(graphs, progress=progress))


def _share(progress: Callable[[int, int], None], share: float) -> Callable[[int, int], None]:
    """Progress of a part of a stage."""
    return lambda done, total: progress(math.floor(1000 * share * done / max(total, 1)), 1000)


def _plan(context: Context) -> PlausibleDeniabilityPlan:
    plan: PlausibleDeniabilityPlan = context.plan  # type: ignore[assignment]
    return plan


def _passes(context: Context) -> Passes:
    if "passes" not in context.results:
        context.results["passes"] = Passes(context)
    passes: Passes = context.results["passes"]
    return passes


STEPS: dict[str, Callable[[Context], None]] = {
    "structure": learn_structure_step,
    "parameters": learn_parameters_step,
    "seeds": index_seeds_step,
    "records": release_records_step,
}
"""The steps of a plausible-deniability release, in order."""
