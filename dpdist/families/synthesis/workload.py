"""The work of a synthesis: rows, pairs, cells, records."""

from __future__ import annotations

from dpdist.data.count import MAX_PAIR_CELLS, cells_of_pairs
from dpdist.families.base.workload import Layout, Work, values_read
from dpdist.families.synthesis.choices import Choices
from dpdist.families.synthesis.plan import SynthesisPlan

_PASSES = 8
"""Evaluations of the model's cells for each iteration, in units of a cell that is estimated once."""


def fitting(choices: Choices) -> Work:
    """The fit of a model, by the driver."""
    iterations = sum(choices.iterations[min(r, len(choices.iterations) - 1)] for r in range(choices.rounds + 1))
    return Work(name="fitting", tasks=0, units={}, driver={"cell": _PASSES * iterations * choices.cells / 100})


def workload(plan: SynthesisPlan, layout: Layout) -> list[Work]:
    """The stages of a release, as its graphs have them; the model is fitted by the driver."""
    spec, choices = plan.spec, plan.choices
    rows, width = spec.data.minimum_records, len(spec.table.attributes)
    drawn = choices.pool_rows if choices.rake else 2 * max(plan.parts)
    return [
        Work(
            name="counting",
            tasks=layout.partitions,
            units={"read": values_read(plan), "pair": rows * width * (width - 1) / 2},
            summary=8 * min(cells_of_pairs(spec.table.cardinalities), MAX_PAIR_CELLS),
        ),
        fitting(choices),
        Work(
            name="records",
            tasks=len(plan.parts),
            units={"candidate": len(plan.parts) * drawn * width},
            spread=16 * choices.cells,
        ),
        Work(name="writing", tasks=len(plan.parts), units={"write": spec.records * width}),
    ]
