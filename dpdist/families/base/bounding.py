"""Bounding: of each unit at most so many records are used, wherever in the table they are.

Each partition is read once, and its rows are sent by the hash of their unit's id to one of several shards. The task of
a shard has all records of its units and keeps at most so many of each (`dpdist.data.keyed_ids`). The shards are the
partitions of the bounded table. Which shard a unit is in depends on the key and on the number of shards; what is kept
depends on neither the shards nor the partitions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Executor
from dpdist.cluster.tasks import Deferred, Tasks
from dpdist.data.arrow import HeldRecords
from dpdist.data.joined import JoinedTable
from dpdist.data.keyed_ids import UnitHashes
from dpdist.data.packed import PackedRows, RowFormat, taken
from dpdist.data.read import EncodedBatch
from dpdist.data.records import Records
from dpdist.data.report import RowReport
from dpdist.data.sizes import BATCH_ROWS
from dpdist.families.base.graph import by_partition, no_codes
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.privacy.keyed_hash import Hashes
from dpdist.spec.schema import Schema

SHARD_ROWS = 1 << 22  # of a shard, about: its task holds them at once
MOST_SHARDS = 256
MOST_BLOCKS = 1 << 16  # of all shards together: their numbers are sorted as 16 bits

# Arrays below 128 KiB are taken from memory that workers have: Dask has them return larger ones to the system, which
# clears the pages of each new one. A block is sorted with 16 bytes a row, in the cache of a processor; rows are read,
# hashed and packed with 8.
BLOCK_ROWS = 6_000
READ_ROWS = 15_000


@dataclass(frozen=True, eq=False, repr=False)
class ShardPiece:
    """Records of one partition for one shard, block by block."""

    form: RowFormat
    rows: PackedRows
    ends: NDArray[np.intp]  # of the blocks, after a first 0

    def __sizeof__(self) -> int:
        return self.rows.nbytes

    def block(self, number: int) -> PackedRows:
        """The rows of a block."""
        return self.rows[self.ends[number] : self.ends[number + 1]]


@dataclass(frozen=True, eq=False, repr=False)
class Shard:
    """The kept records of a shard: a partition of the bounded table."""

    schema: Schema
    codes: Codes
    report: RowReport

    def __sizeof__(self) -> int:
        return sum(column.nbytes for column in self.codes)

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The records, at most `batch_rows` at a time; the first batch has the report."""
        report = self.report
        for start in range(0, max(len(self.codes[0]), 1), batch_rows):
            columns = [column[start : start + batch_rows] for column in self.codes]
            yield EncodedBatch(0, start, columns, None, report)
            report = RowReport.empty(self.schema)


def bounded(executor: Executor, table: Records, *, at_most: int, key: KeyRef) -> HeldRecords:
    """Graph of a table with at most so many records of each unit; records without an id are not in it. `table` is
    located, and opened with the column of the ids; `key`, that of the attempt, decides which records are kept.
    """
    shards = sharded(executor, table, bound_shard, (table.schema, at_most), key=key)
    return HeldRecords(table.schema, shards, table.rows or 0, table.fingerprint)


def sharded(
    executor: Executor, table: Records, bound: Callable[..., object], how: object, *, key: KeyRef
) -> list[Deferred]:
    """Graphs of what a function makes of each shard of a table: `bound` is called with `how`, the pieces of the shard,
    the reports of the partitions (with the first shard only) and `key`.
    """
    sizes = sizes_for(table.rows or 0)
    task = executor.tasks("bounding")
    if isinstance(table, JoinedTable):
        pieces, reports = _joined_pieces(task, table, sizes, key)
    else:
        pieces, reports = _pieces(task, table, sizes, key)
    shared = task.constant("how", how)
    return [task("bound", bound, shared, own, [] if k else reports, key) for k, own in enumerate(pieces)]


def _pieces(
    task: Tasks, table: Records, sizes: tuple[int, int], key: KeyRef
) -> tuple[list[list[Deferred]], list[Deferred]]:
    """For each shard the pieces of all partitions, and the partitions' reports."""
    parts = [task("split", split_partition, records, i, sizes, key) for records, i in by_partition(task, table)]
    reports = [task("report", operator.itemgetter(sizes[0]), part) for part in parts]
    return [[task("send", operator.itemgetter(k), part) for part in parts] for k in range(sizes[0])], reports


def _joined_pieces(
    task: Tasks, table: JoinedTable, sizes: tuple[int, int], key: KeyRef
) -> tuple[list[list[Deferred]], list[Deferred]]:
    """As `_pieces`, of records that are joined with their parents in each shard."""
    shared = task.constant("tables", table)
    sides = [_pieces(task, side, sizes, key) for side in table.sides]
    found = [task("join", join_shard, shared, *both, key) for both in zip(sides[0][0], sides[1][0], strict=True)]
    reports = [task("widen", JoinedTable.widened, shared, k, report) for k in (0, 1) for report in sides[k][1]]
    reports += [task("report", operator.itemgetter(1), one) for one in found]
    return [[task("send", operator.itemgetter(0), one)] for one in found], reports


def join_shard(
    table: JoinedTable, records: list[ShardPiece], parents: list[ShardPiece], key: KeyRef
) -> tuple[ShardPiece, RowReport]:
    """The records of a shard with the attributes of their parents, and what the rules met."""
    hashes, report = UnitHashes.of(load_noise(key)), RowReport.empty(table.schema)
    form, ends = RowFormat.of(table.schema), [0]
    found = [form.pack(np.empty((0, 2), np.uint64), no_codes(table.schema))]
    for own, above in zip(blocks_of(records), blocks_of(parents), strict=True):
        rows, columns, met = table.join(own, above, hashes)
        found.append(form.pack(own[0][rows], columns))
        ends.append(ends[-1] + len(rows))
        report += met
    return ShardPiece(form, np.concatenate(found), np.array(ends, np.intp)), report


def sizes_for(rows: int) -> tuple[int, int]:
    """Number of shards of a table of so many rows, and of blocks of each shard."""
    shards = min(max(-(-rows // SHARD_ROWS), 1), MOST_SHARDS)
    return shards, min(max(rows // shards // BLOCK_ROWS, 1), MOST_BLOCKS // shards)


def split_partition(
    table: Records, partition: int, sizes: tuple[int, int], key: KeyRef
) -> list[ShardPiece | RowReport]:
    """The records of a partition for each of so many shards of so many blocks, and what the policies met."""
    shards, blocks = sizes
    hashes, report = UnitHashes.of(load_noise(key)), RowReport.empty(table.schema)
    form = RowFormat.of(table.schema)
    pieces, numbers = [form.pack(np.empty((0, 2), np.uint64), no_codes(table.schema))], [np.empty(0, np.uint16)]
    for batch in table.batches(partition, batch_rows=READ_ROWS):
        if batch.beside is None:
            raise TypeError("the table was opened without the column of the ids")
        found, known = hashes.of_ids(batch.beside)
        rows, keep = form.pack(found, batch.codes), batch.keep
        if known is not None:
            keep = known if keep is None else known & keep
        report += replace(batch.report, kept=0, nameless=0 if known is None else int(np.count_nonzero(~known)))
        pieces.append(rows if keep is None else taken(rows, np.flatnonzero(keep)))
        first = pieces[-1][:, 0] >> np.uint64(48)
        numbers.append((first * np.uint64(shards * blocks) >> np.uint64(16)).astype(np.uint16))
    whole, block = np.concatenate(pieces), np.concatenate(numbers)
    order = np.argsort(block, kind="stable")
    ends = np.append(0, np.cumsum(np.bincount(block, minlength=shards * blocks)))
    of_shards = [ends[first : first + blocks + 1] for first in range(0, shards * blocks, blocks)]
    return [*(ShardPiece(form, taken(whole, order[own[0] : own[-1]]), own - own[0]) for own in of_shards), report]


def _row_blocks(pieces: list[ShardPiece]) -> Iterator[PackedRows]:
    """The records of a shard, block by block; a unit is in one block."""
    for number in range(len(pieces[0].ends) - 1 if pieces else 0):
        yield np.concatenate([piece.block(number) for piece in pieces])


def blocks_of(pieces: list[ShardPiece]) -> Iterator[tuple[Hashes, Codes]]:
    """The hashes of the ids and the codes of the records of a shard, block by block; a unit is in one block."""
    for rows in _row_blocks(pieces):
        yield np.ascontiguousarray(rows[:, :2]), pieces[0].form.codes(rows)


def bound_shard(how: tuple[Schema, int], pieces: list[ShardPiece], reports: list[RowReport], key: KeyRef) -> Shard:
    """The records of a shard that are kept, and a report that counts them and what the partitions met."""
    schema, at_most = how
    form = RowFormat.of(schema)
    hashes, found, seen = UnitHashes.of(load_noise(key)), [no_codes(schema)], 0
    for rows in _row_blocks(pieces):
        kept = hashes.kept(np.ascontiguousarray(rows[:, :2]), form.values(rows), at_most=at_most)
        found.append(form.codes(taken(rows, kept)))
        seen += len(rows)
    whole = joined(found)
    report = sum(reports, start=RowReport.empty(schema))
    return Shard(schema, whole, replace(report, kept=len(whole[0]), beyond=seen - len(whole[0])))


def joined(pieces: list[Codes]) -> Codes:
    """Records one after another."""
    return [np.concatenate(columns) for columns in zip(*pieces, strict=True)]
