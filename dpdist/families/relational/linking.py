"""Linking: the members of each parent brought together by its id, bounded, and laid out as rows of two tables.

The records are sent by the hash of their parent's id, as where units are bounded (`dpdist.families.base.bounding`). The
task of a shard has whole parents and keeps the first members of each.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from dpdist.cluster.executor import Executor
from dpdist.cluster.tasks import Deferred
from dpdist.data.count import PairCounts
from dpdist.data.keyed_ids import UnitHashes
from dpdist.data.operators import pair_counts_operator
from dpdist.data.records import HeldRecords, Located, RecordsInMemory
from dpdist.data.report import RowReport, check
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.bounding import ShardPiece, blocks_of, joined, sharded
from dpdist.families.base.graph import no_codes, table_pass
from dpdist.families.relational.layout import Layout
from dpdist.families.relational.plan import RelationalPlan
from dpdist.families.relational.spec import RelationalSpec
from dpdist.ledger.keys import KeyRef, load_noise
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
    """Pair counts of both tables, by one pass over the records. Confidential.

    Raises
    ------
    DataError
        The table breaks its declared policies.
    """
    executor, layout, table = attempt.executor, attempt.spec.layout, attempt.located
    shards = sharded(executor, table, link_shard, layout, key=attempt.key)
    task = executor.tasks("linking")
    reports = [task("report", operator.itemgetter(2), shard) for shard in shards]
    report = task.tree("sum", _total, reports, fan_in=_FAN_IN)
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


def _total(reports: list[RowReport]) -> RowReport:
    return reduce(operator.add, reports)
