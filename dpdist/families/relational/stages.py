"""The stages of a release of two linked tables: link and count once, learn both models, draw, write.

The records are sent by the hash of their parent's id, as where units are bounded (`dpdist.families.base.bounding`). The
task of a shard has whole parents, keeps the first members of each, and lays them out as rows of two tables.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Deferred, Executor
from dpdist.data.count import PairCounts
from dpdist.data.keyed_ids import UnitHashes
from dpdist.data.operators import pair_counts_operator
from dpdist.data.records import HeldRecords, Located, RecordsInMemory
from dpdist.data.report import RowReport, check
from dpdist.families.base.attempt import Attempt, ReleasedRecords, write_records
from dpdist.families.base.bounding import ShardPiece, blocks_of, sharded
from dpdist.families.base.family import Stage
from dpdist.families.base.graph import no_codes, table_pass
from dpdist.families.relational.draw import LinkedLaw, Prepared, draw_linked, prepare
from dpdist.families.relational.exchange import MeasuredMargins, Targets, measure_margins, own_attributes
from dpdist.families.relational.layout import Layout
from dpdist.families.relational.plan import RelationalPlan
from dpdist.families.relational.spec import RelationalSpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.model.account import GaussianAccount
from dpdist.model.forecast import pair_deviation
from dpdist.model.learn import Known, Learned, learn
from dpdist.privacy.arrays import Codes, joined
from dpdist.publish.tilts import tilts_in, together
from dpdist.spec.schema import Schema

_FAN_IN = 16

Linked = tuple[RecordsInMemory, RecordsInMemory, RowReport]
"""Rows of the parents' and of the members' table of a shard, and what the policies met."""


def link_shard(layout: Layout, pieces: list[ShardPiece], reports: list[RowReport], key: KeyRef) -> Linked:
    """The rows of both tables of the parents of a shard."""
    hashes, seen = UnitHashes.of(load_noise(key)), 0
    first, others, kept = [no_codes(layout.first)], [no_codes(layout.others)], 0
    for units, codes in blocks_of(pieces):
        by = None if layout.order is None else codes[layout.order]
        rows, places = hashes.arranged(units, codes, by, at_most=layout.at_most)
        parents, members = layout.flattened(codes, rows, places)
        first.append(parents)
        others.append(members)
        seen, kept = seen + len(units), kept + len(rows)
    report = replace(sum(reports, start=RowReport.empty(layout.schema)), kept=kept, beyond=seen - kept)
    return RecordsInMemory.of(layout.first, joined(first)), RecordsInMemory.of(layout.others, joined(others)), report


def count_both(attempt: Attempt[RelationalSpec, RelationalPlan]) -> tuple[PairCounts, PairCounts]:
    """Pair counts of both tables, by one pass over the records. Confidential. Raises DataError: the table breaks its
    declared policies.
    """
    executor, layout, table = attempt.executor, attempt.spec.layout, attempt.located
    shards = sharded(executor, table, link_shard, layout, key=attempt.key)
    task = executor.tasks("linking")
    reports = [task("report", operator.itemgetter(2), shard) for shard in shards]
    report = task.tree("sum", partial(reduce, operator.add), reports, fan_in=_FAN_IN)
    passes = [
        _counted(executor, schema, [task(name, operator.itemgetter(k), shard) for shard in shards], table, name)
        for k, (name, schema) in enumerate((("parents", layout.first), ("members", layout.others)))
    ]
    with attempt.stage("counting") as progress:
        (first, _), (others, _), met = executor.compute([*passes, report], progress=progress)
    attempt.operator["table"] = met.confidential(layout.schema)
    check(met, layout.schema)
    return first, others


def _counted(executor: Executor, schema: Schema, parts: Sequence[Deferred], table: Located, name: str) -> Deferred:
    held = HeldRecords(schema, parts, table.rows, table.fingerprint)
    return table_pass(executor, held, pair_counts_operator(schema.cardinalities), name=f"counting-{name}")


RelationalAttempt = Attempt[RelationalSpec, RelationalPlan]


class LearnedMembers(Learned):
    """The model of the members after the first."""

    FILE: ClassVar[str] = "members.npz"


def stages(plan: RelationalPlan) -> Sequence[Stage[RelationalSpec, RelationalPlan]]:
    """The stages of a release, in order."""
    return Stage("models", learn_models), Stage("records", draw), Stage("write", write_records)


def learn_models(attempt: RelationalAttempt) -> None:
    """Count both tables in one pass and learn a model of each, stored. Raises DataError: a policy is broken."""
    plan, layout = attempt.plan, attempt.spec.layout
    counts = cache(lambda: count_both(attempt))

    def make(k: int) -> Learned:
        found: PairCounts = counts()[k]
        choices, rules = ((plan.first, layout.first_rules), (plan.others, ()))[k]
        account = GaussianAccount(choices.mu, attempt.noise, ("", "members/")[k])
        known = Known(rules, (layout.first, layout.others)[k].level_maps, given=(0, len(layout.given))[k])
        with attempt.stage(f"fitting {('parents', 'members')[k]}") as progress:
            drawing = load_noise(attempt.drawing_key)
            return learn(found, account, choices=choices, drawing=drawing, known=known, progress=progress)

    def margins() -> MeasuredMargins:
        made = [
            measure_margins(counts()[k], own, mu=mu, noise=attempt.noise, name=("parents", "members")[k])
            for k, (own, mu) in enumerate(zip(own_attributes(layout), plan.margins, strict=True))
        ]
        return MeasuredMargins((made[0], made[1]))

    attempt.stored(MeasuredMargins, margins)
    first = attempt.stored(Learned, lambda: make(0))
    others = attempt.stored(LearnedMembers, lambda: LearnedMembers(**vars(make(1))))
    tables = (("parents", first, layout.first), ("members", others, layout.others))
    attempt.public["learned"] = {
        name: learned.named(schema.names, share)
        for (name, learned, schema), share in zip(tables, plan.shares, strict=True)
    }


def draw(attempt: RelationalAttempt) -> ReleasedRecords:
    """The members of the parents of each part, a function of the models, the public drawing key and its number."""
    attempt.before_noise()
    first, others = attempt.result(Learned), attempt.result(LearnedMembers)
    models = first.fitted, others.fitted
    plan, layout = attempt.plan, attempt.spec.layout
    targets = Targets.of(
        layout,
        models,
        attempt.result(MeasuredMargins),
        (first.report["records"], others.report["records"]),
        pair_deviation(plan.first, len(layout.first.attributes)),
        others.measurements,
    )
    task = attempt.executor.tasks("records")
    law, key = task.constant("models", LinkedLaw(layout, models, targets)), attempt.drawing_key
    starts = np.cumsum([0, *plan.parts]).tolist()
    prepared = task("prepared", _prepared, law, key, len(plan.parts), starts[-1])
    parts = [task("part", _part, law, prepared, key, part, ends) for part, ends in enumerate(pairwise(starts))]
    attempt.form = plan.form.model_copy(update={"tilts": _tilts(layout, first, others)})
    kept = [i for i in range(len(layout.schema.attributes)) if i != layout.order]
    above = tuple(2 + place for place, i in enumerate(kept) if i in layout.parent)
    bins = {a.name: len(a.bin_edges) for a in layout.schema.attributes if a.name in attempt.form.tilts}
    own = {2 + k: bins[name] for k, i in enumerate(kept) if (name := layout.schema.names[i]) in bins}
    return ReleasedRecords(parts, key=attempt.drawing_key, moved=partial(_moved, above, own))


def _tilts(layout: Layout, first: Learned, others: Learned) -> dict[str, tuple[int, ...]]:
    """How numbers lie within bins, from the noisy one-way tables of the parents and of all members."""
    known, schema = [], layout.schema
    start, given = len(layout.parent) + 1 + layout.counts, len(layout.given)
    for i in (*layout.parent, *layout.members):
        shape = (schema.attributes[i].cardinality,)
        if i in layout.parent:
            known.append((schema.attributes[i], first.measurements.combined((layout.parent.index(i),), shape)))
            continue
        k = layout.members.index(i)
        both = first.measurements.combined((start + k,), shape), others.measurements.combined((given + k,), shape)
        found = [estimate for estimate in both if estimate is not None]
        counts, deviations = (np.array(columns) for columns in zip(*found, strict=True))
        known.append((schema.attributes[i], (counts.sum(0), np.sqrt((deviations**2).sum(0)))))
    return tilts_in(known)


def _moved(
    above: tuple[int, ...], bins: dict[int, int], codes: Codes, index: int, words: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Words by which numbers are drawn in their bins: of a parent's attribute (`above`) the same for all members, of a
    member's with this many bins together with that of the member before.
    """
    parents = codes[0]
    if index in above:
        return words[np.searchsorted(parents, parents)]
    if index not in bins:
        return words
    return together(codes[index], bins[index], np.diff(parents, prepend=0) == 0, words)


def _prepared(law: LinkedLaw, key: KeyRef, parts: int, rows: int) -> Prepared:
    return prepare(law, load_noise(key), parts, rows)


def _part(law: LinkedLaw, prepared: Prepared, key: KeyRef, part: int, ends: tuple[int, int]) -> Codes:
    start, end = ends
    _, (parent, place), columns = draw_linked(law, prepared, load_noise(key), part, end - start)
    return [(parent + start + 1).astype(np.float64), place.astype(np.min_scalar_type(law.layout.at_most)), *columns]
