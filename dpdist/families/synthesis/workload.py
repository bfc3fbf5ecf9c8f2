"""The work of a synthesis: rows, pairs, cells, records."""

from __future__ import annotations

from dpdist.accuracy.tables import increments
from dpdist.data.count import MAX_PAIR_CELLS, cells_of_pairs, covering_blocks
from dpdist.families.base.workload import Layout, Unit, Work, values_read
from dpdist.families.synthesis.choices import Choices, is_wide
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.regression_steps import STEPS

_PASSES = 2
"""Evaluations of the model's cells for each iteration, in units of a cell that is estimated once."""

_FOR_A_COEFFICIENT = 2
"""Work of a record in a pass over the scores for each coefficient, in units of a record that is added to a table."""


def fitting(choices: Choices) -> Work:
    """The fit of a model, by the driver."""
    iterations = sum(choices.iterations[min(r, len(choices.iterations) - 1)] for r in range(choices.rounds + 1))
    return Work(name="fitting", tasks=0, units={}, driver={"cell": _PASSES * iterations * choices.cells / 100})


def _increments(plan: SynthesisPlan) -> int:
    """Tables that a record is added to."""
    cards, triples = plan.spec.table.cardinalities, plan.accuracy_mu or plan.choices.triple_tables
    if is_wide(cards):
        return len(cards) * (len(cards) - 1) // 2
    return increments(cards) if triples else len(covering_blocks(cards))


def _regressions(plan: SynthesisPlan, layout: Layout) -> list[Work]:
    """The passes that measure declared regressions; the table is read again for them."""
    if not plan.regression_mu:
        return []
    rows, sizes = plan.spec.data.minimum_records, [len(r.names) for r in plan.spec.parsed_regressions]
    added = float(len(STEPS) * rows * _FOR_A_COEFFICIENT * sum(sizes))
    units: dict[Unit, float] = {"read": values_read(plan), "increment": added}
    return [Work(name="regressions", tasks=len(STEPS) * layout.partitions, units=units, summary=8 * sum(sizes))]


def workload(plan: SynthesisPlan, layout: Layout) -> list[Work]:
    """The stages of a release, as its graphs have them; the model is fitted by the driver."""
    spec, choices = plan.spec, plan.choices
    rows, width = spec.data.minimum_records, len(spec.table.attributes)
    drawn = choices.pool_rows if choices.rake else 2 * max(plan.parts)
    return [
        Work(
            name="counting",
            tasks=layout.partitions,
            units={"read": values_read(plan), "increment": rows * _increments(plan)},
            summary=8 * min(cells_of_pairs(spec.table.cardinalities), MAX_PAIR_CELLS),
        ),
        fitting(choices),
        Work(
            name="records",
            tasks=len(plan.parts),
            units={"candidate": len(plan.parts) * drawn * width},
            spread=16 * choices.cells,
        ),
        *_regressions(plan, layout),
        Work(name="writing", tasks=len(plan.parts), units={"write": spec.records * width}),
    ]
