"""The stages of a release of two linked tables: link and count once, learn both models, draw, write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpdist.data.count import PairCounts
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.family import Stage
from dpdist.families.base.writing import ReleasedRecords, write_records
from dpdist.families.relational.draw import draw_linked
from dpdist.families.relational.exchange import Targets
from dpdist.families.relational.layout import Layout
from dpdist.families.relational.linking import count_both
from dpdist.families.relational.margins import MeasuredMargins, measure_margins, own_attributes
from dpdist.families.relational.plan import RelationalPlan
from dpdist.families.relational.spec import RelationalSpec
from dpdist.families.synthesis.expected import pair_deviation
from dpdist.families.synthesis.fitted import Fitted
from dpdist.families.synthesis.learn import Learned, learn
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema
from dpdist.storage.stored import Stored

RelationalAttempt = Attempt[RelationalSpec, RelationalPlan]


@dataclass(frozen=True, eq=False)
class LearnedMembers(Stored):
    """The model of the members after the first."""

    FILE: ClassVar[str] = "members.npz"

    learned: Learned


def stages(plan: RelationalPlan) -> Sequence[Stage[RelationalSpec, RelationalPlan]]:
    """The stages of a release, in order."""
    return Stage("models", learn_models), Stage("records", draw), Stage("write", write_records)


def learn_models(attempt: RelationalAttempt) -> None:
    """Count both tables in one pass and learn a model of each; they are stored.

    Raises
    ------
    DataError
        The table breaks its declared policies.
    """
    plan, layout = attempt.plan, attempt.spec.layout
    counts = cache(lambda: count_both(attempt))

    def make(k: int) -> Learned:
        found: PairCounts = counts()[k]
        choices, rules = ((plan.first, layout.first_rules), (plan.others, ()))[k]
        noise, prefix = attempt.noise, ("", "members/")[k]
        levels = (layout.first, layout.others)[k].level_maps
        with attempt.stage(f"fitting {('parents', 'members')[k]}") as progress:
            drawing = load_noise(attempt.drawing_key)
            return learn(
                found,
                choices=choices,
                noise=noise,
                drawing=drawing,
                rules=rules,
                levels=levels,
                prefix=prefix,
                progress=progress,
            )

    def margins() -> MeasuredMargins:
        made = [
            measure_margins(counts()[k], own, mu=mu, noise=attempt.noise, name=("parents", "members")[k])
            for k, (own, mu) in enumerate(zip(own_attributes(layout), plan.margins, strict=True))
        ]
        return MeasuredMargins((made[0], made[1]))

    attempt.stored(MeasuredMargins, margins)
    first = attempt.stored(Learned, lambda: make(0))
    others = attempt.stored(LearnedMembers, lambda: LearnedMembers(make(1))).learned
    tables = (("parents", first, layout.first), ("members", others, layout.others))
    attempt.public["learned"] = {
        name: _reported(learned, schema, share)
        for (name, learned, schema), share in zip(tables, plan.shares, strict=True)
    }


def _reported(learned: Learned, schema: Schema, share: float) -> dict[str, object]:
    """What was learned, with names of columns, and parts of the whole account."""
    names = schema.names
    return learned.report | {
        "account": [[step, of * share] for step, of in learned.report["account"]],
        "pairs": [
            [f"{names[i]} (coarse)" if coarse else names[i] for i, coarse in pair] for pair in learned.report["pairs"]
        ],
    }


@dataclass(frozen=True, eq=False)
class _Source:
    """What parts are drawn from."""

    layout: Layout
    models: tuple[Fitted, Fitted]
    targets: Targets
    key: KeyRef


def draw(attempt: RelationalAttempt) -> ReleasedRecords:
    """The members of the parents of each part, a function of the models, the public drawing key and its number."""
    attempt.before_noise()
    first, others = attempt.result(Learned), attempt.result(LearnedMembers).learned
    models = first.fitted, others.fitted
    plan, layout = attempt.plan, attempt.spec.layout
    targets = Targets.of(
        layout,
        models,
        attempt.result(MeasuredMargins),
        (first.report["records"], others.report["records"]),
        pair_deviation(plan.first, len(layout.first.attributes)),
    )
    task = attempt.executor.tasks("records")
    source = task.constant("models", _Source(layout, models, targets, attempt.drawing_key))
    starts = np.cumsum([0, *attempt.plan.parts]).tolist()
    parts = [task("part", _part, source, part, rows, starts[part]) for part, rows in enumerate(attempt.plan.parts)]
    binned = [a.name for a in (layout.schema.attributes[i] for i in layout.parent) if a.is_binned]
    finish = partial(_alike, binned, attempt.plan.released.names[0]) if binned else None
    return ReleasedRecords(parts, key=attempt.drawing_key, finish=finish)


def _alike(names: list[str], parent: str, table: pa.Table) -> pa.Table:
    """A part in which a number that was drawn in its bin is the same for all members of a parent."""
    numbers = table[parent].to_numpy()
    first = np.searchsorted(numbers, numbers)
    for name in names:
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), table[name].take(first))
    return table


def _part(source: _Source, part: int, rows: int, start: int) -> Codes:
    noise = load_noise(source.key)
    layout = source.layout
    _, (parent, place), columns = draw_linked(layout, source.models, source.targets, noise, part, rows)
    return [(parent + start + 1).astype(np.float64), place.astype(np.min_scalar_type(layout.at_most)), *columns]
