"""Parents with all their members, of a release and of real tables: read once, whole, at most this many rows of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Deferred, Executor
from dpdist.data.keyed_ids import UnitHashes
from dpdist.data.operators import gather_operator, through, together
from dpdist.data.records import Located
from dpdist.data.released import Decoder, ReleasedTable
from dpdist.data.report import RowReport
from dpdist.evaluation.inputs import sample_key
from dpdist.evaluation.utility.checks import broken_operator
from dpdist.families.base.bounding import ShardPiece, blocks_of, sharded
from dpdist.families.base.family import LinkedRows
from dpdist.families.base.graph import no_codes, table_pass
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, Counts, joined

MOST_ROWS = 2_000_000  # members of each table that are held at once, about; of a larger table whole parents at random

_FAN_IN = 16


@dataclass(frozen=True, eq=False, repr=False)
class ParentRecords:
    """Parents with their members, one parent after another; confidential where they are real."""

    linked: LinkedRows
    codes: Codes  # a row for each member, of `linked.schema`
    ends: Counts  # int64, shape (parents + 1,): where the members of each parent begin and end

    @classmethod
    def of(cls, linked: LinkedRows, codes: Codes, sizes: Counts) -> ParentRecords:
        """Parents of this many members each."""
        return cls(linked, codes, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def sizes(self) -> Counts:
        """Members of each parent."""
        return np.diff(self.ends)

    @property
    def owner(self) -> Counts:
        """The parent of each member."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def places(self) -> Counts:
        """The place of each member among those of its parent, from 0."""
        return np.arange(self.ends[-1]) - np.repeat(self.ends[:-1], self.sizes)

    def take(self, chosen: NDArray[np.integer]) -> ParentRecords:
        """Some parents, in this order."""
        sizes = self.sizes[chosen]
        ends = np.cumsum(sizes)
        rows = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.ends[:-1][chosen] - ends + sizes, sizes)
        return ParentRecords.of(self.linked, [column[rows] for column in self.codes], sizes)

    def halves(self, rng: np.random.Generator) -> tuple[ParentRecords, ParentRecords]:
        """The parents in two random halves."""
        order = rng.permutation(len(self))
        return self.take(order[: len(order) // 2]), self.take(order[len(order) // 2 :])

    def loose(self, rng: np.random.Generator) -> ParentRecords:
        """The same parents, each with members drawn from all: nothing is alike within a parent."""
        order, own = rng.permutation(self.ends[-1]), set(map(self.linked.place, self.linked.members))
        return replace(self, codes=[column[order] if i in own else column for i, column in enumerate(self.codes)])

    def top(self) -> Codes:
        """A row for each parent, of `linked.parents_schema`."""
        first, schema = self.ends[:-1], self.linked.parents_schema
        owner = self.owner
        counts = [np.bincount(owner[mask], minlength=len(self)) for mask in self.linked.of_kinds(self.codes)]
        own = [self.codes[self.linked.place(i)][first] for i in self.linked.parent]
        found = [*own, self.sizes - 1, *counts]
        return [column.astype(a.dtype) for column, a in zip(found, schema.attributes, strict=True)]


def real_parents(
    executor: Executor, table: Located, linked: LinkedRows, released: ReleasedTable, *, seed: int
) -> Deferred:
    """Graph of the parents of a real table with their first members, and of what the policies met.

    Parameters
    ----------
    table : Located
        Opened by `linked.read` with the column of the ids.
    released : ReleasedTable
        Says which codes a release can tell apart.
    seed : int
        Of the choice of parents, where there are too many.
    """
    key = sample_key(seed, "parents")
    share = min(MOST_ROWS / max(table.rows, 1), 1.0)
    how = linked, released.decoder.columns[linked.ids :], np.uint64(min(int(share * 2.0**64), (1 << 64) - 1))
    task = executor.tasks("parents")
    return task.tree("both", _both, sharded(executor, table, _shard, how, key=key), fan_in=_FAN_IN)


def _shard(
    how: tuple[LinkedRows, Sequence[Decoder], np.uint64],
    pieces: list[ShardPiece],
    reports: list[RowReport],
    key: KeyRef,
) -> tuple[Codes, Counts, RowReport]:
    """The chosen parents of a shard: codes of members, members of each parent, and what the policies met."""
    linked, decoders, largest = how
    hashes, seen, kept = UnitHashes.of(load_noise(key)), 0, 0
    found, sizes = [no_codes(linked.schema)], [np.empty(0, np.int64)]
    for units, codes in blocks_of(pieces):
        by = None if linked.order is None else codes[linked.order]
        rows, places = hashes.arranged(units, codes, by, at_most=linked.unit.at_most)
        seen, kept = seen + len(units), kept + len(rows)
        chosen = units[rows, 1] <= largest
        rows, places = rows[chosen], places[chosen]
        columns = linked.compared([column[rows] for column in codes])
        found.append([decoder.merged(column) for decoder, column in zip(decoders, columns, strict=True)])
        sizes.append(np.diff(np.flatnonzero(places == 0), append=len(places)))
    report = sum(reports, start=RowReport.empty(linked.read))
    return joined(found), np.concatenate(sizes), replace(report, kept=kept, beyond=seen - kept)


def _both(parts: Sequence[tuple[Codes, Counts, RowReport]]) -> tuple[Codes, Counts, RowReport]:
    codes, sizes, reports = zip(*parts, strict=True)
    return joined(list(codes)), np.concatenate(sizes), sum(reports[1:], start=reports[0])


def released_parents(executor: Executor, released: ReleasedTable, linked: LinkedRows) -> Deferred:
    """Graph of the released parents, and of the released records that break each rule: of all of them."""
    step = -(-released.rows // MOST_ROWS)
    operator = together(
        [
            through(partial(_every, step=step), gather_operator()),
            through(itemgetter(slice(linked.ids, None)), broken_operator(linked.schema.forbidden)),
        ]
    )
    return table_pass(executor, released, operator, name="released-parents")


def _every(codes: Codes, *, step: int) -> Codes:
    """The members of each `step`-th parent: their numbers and what follows the places."""
    chosen = codes[0].astype(np.int64) % step == 0
    return [column[chosen] for column in codes]
