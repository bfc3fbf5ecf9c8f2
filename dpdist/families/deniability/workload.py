"""The work of a plausible-deniability release: rows, attributes, pairs, cells, candidates."""

from __future__ import annotations

import math

from dpdist.data.count import covering_blocks, pair_cells
from dpdist.families.base.workload import GIB, Layout, Unit, Work, values_read
from dpdist.families.deniability.own_model import DeclaredModel
from dpdist.families.deniability.plan import MEMORY_FOR_SEEDS, PlausibleDeniabilityPlan
from dpdist.families.deniability.pool import PoolPlan
from dpdist.families.synthesis.workload import fitting

_CODES = 0.25  # share of the workers' memory that codes may take
_TABLE_CELLS = 1 << 13  # of an attribute's count table, in the networks that were learned from public tables

_PAIR = 0.05  # of what a candidate takes that is tested by ranks, for each seed that one is compared with


def workload(plan: PlausibleDeniabilityPlan, layout: Layout) -> list[Work]:
    """The stages of a release, as its graphs have them."""
    held = plan.resources()["encoded_bytes"] <= _CODES * layout.bytes
    reading = values_read(plan)
    stages = [Work(name="reading", tasks=layout.partitions, units={"read": reading})] if held else []
    stages += _learning(plan, layout, again=0.0 if held else reading)
    ranges, index = 1, 0
    if plan.seeds is not None:
        index = int(16 * _distinct_seeds(plan))
        ranges = max(1, math.ceil(index / (MEMORY_FOR_SEEDS * layout.memory * GIB)))
        stages += _indexing(plan, layout, ranges, again=0.0 if held else reading)
    return stages + _synthesis(plan, layout, ranges, index)


def table_cells(plan: PlausibleDeniabilityPlan) -> int:
    """About how many cells the count tables of a network have."""
    return min(plan.model.parameters.cells_at_most, len(plan.spec.table.attributes) * _TABLE_CELLS)


def _learning(plan: PlausibleDeniabilityPlan, layout: Layout, *, again: float) -> list[Work]:
    """Structure and parameters of the model; `again` is read where the codes are not held."""
    if isinstance(plan.model.parameters, DeclaredModel):
        return []
    spec, share, stages = plan.spec, plan.spec.split.shares, []
    rows, width = spec.data.minimum_records, len(spec.table.attributes)
    if plan.model.structure is not None:
        blocks = len(covering_blocks(spec.table.cardinalities))
        units: dict[Unit, float] = {"read": again, "increment": rows * float(share.structure) * blocks}
        summary = 8 * pair_cells(spec.table.cardinalities)
        stages.append(Work(name="counting", tasks=layout.partitions, units=units, summary=summary))
    if isinstance(plan.model.parameters, PoolPlan):
        blocks = len(covering_blocks(spec.table.cardinalities))
        units = {"read": again, "increment": rows * float(share.parameters) * blocks}
        summary = 8 * pair_cells(spec.table.cardinalities)
        counting = Work(name="counting", tasks=layout.partitions, units=units, summary=summary)
        return [counting, fitting(plan.model.parameters.choices)]
    cells = table_cells(plan)
    units = {"read": again, "table": rows * float(share.parameters) * width}
    stages.append(Work(name="learning parameters", tasks=layout.partitions, units=units, summary=8 * cells))
    stages.append(Work(name="estimating", tasks=0, units={}, driver={"cell": cells}))
    return stages


def _seeds(plan: PlausibleDeniabilityPlan) -> float:
    return plan.spec.data.minimum_records * float(plan.spec.split.shares.seeds)


def _compared(plan: PlausibleDeniabilityPlan) -> float:
    """What a candidate takes, in those that are tested by ranks: of a model of the user's own, one for each seed."""
    return 1.0 if plan.spec.model.hook is None else 1 + _PAIR * _seeds(plan)


def _distinct_seeds(plan: PlausibleDeniabilityPlan) -> float:
    """Seeds that differ in what candidates keep, at most."""
    return min(_seeds(plan), plan.spec.kept_combinations or math.inf)


def _indexing(plan: PlausibleDeniabilityPlan, layout: Layout, ranges: int, *, again: float) -> list[Work]:
    """The index of the seeds, in one piece or in ranges that fit a worker."""
    seeds, partitions = _seeds(plan), layout.partitions
    summary = int(16 * min(seeds / partitions, _distinct_seeds(plan)))
    stages = [Work(name="indexing seeds", tasks=partitions, units={"read": again, "key": seeds}, summary=summary)]
    if ranges > 1:
        tasks = (2 + ranges) * partitions
        stages.append(Work(name="indexing seeds", tasks=tasks, units={}, summary=summary // ranges))
    return stages


def _synthesis(plan: PlausibleDeniabilityPlan, layout: Layout, ranges: int, index: int) -> list[Work]:
    """Candidates in batches, and the parts."""
    spec, width, size = plan.spec, len(plan.spec.table.attributes), plan.batch_size(layout.workers)
    batches = math.ceil(plan.candidates_at_least / size)
    return [
        Work(
            name="synthesising",
            tasks=batches * (1 if ranges == 1 else 2 * ranges + 2),
            units={"candidate": batches * size * width * _compared(plan)},
            spread=index if ranges == 1 else 0,
        ),
        Work(
            name="writing",
            tasks=math.ceil(spec.synthesis.records / spec.output.rows_per_part),
            units={"write": spec.synthesis.records * width},
        ),
    ]
