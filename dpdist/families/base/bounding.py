"""Bounding: of each unit at most this many records are used, wherever in the table they are.

Each partition is read once, and its rows are sent by the hash of their unit's id to one of several shards. The task of
a shard has all records of its units and keeps at most this many of each (`dpdist.data.keyed_ids`). The shards are the
partitions of the bounded table. Which shard a unit is in depends on the key and on the number of shards; what is kept
depends on neither the shards nor the partitions.

Of a panel each unit is followed through one stay: one record each period, from its first one to the first gap. Once its
values have changed as often as is declared, they stay.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Deferred, Executor, Tasks
from dpdist.data.inputs import Join
from dpdist.data.keyed_ids import Hashes, UnitHashes
from dpdist.data.records import Batches, HeldRecords, Located, Records, RecordsInMemory
from dpdist.data.report import RowReport
from dpdist.families.base.graph import no_codes
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, joined
from dpdist.spec.schema import Schema
from dpdist.spec.unit import Following

SHARD_ROWS = 1 << 22  # of a shard, about: its task holds them at once
MOST_SHARDS = 256
MOST_BLOCKS = 1 << 16  # of all shards together: their numbers are sorted as 16 bits

# Arrays below 128 KiB are taken from memory that workers have: Dask has them return larger ones to the system, which
# clears the pages of each new one. A block is sorted with 16 bytes a row, in the cache of a processor; rows are read,
# hashed and packed with 8.
BLOCK_ROWS = 6_000
READ_ROWS = 15_000

PackedRows: TypeAlias = NDArray[np.uint64]
"""Packed records, uint64[records, words]; the first two words are the hash of the unit's id."""

_HASH = 16  # bytes
_WIDTH = 32
_PACKED = 1 << 12  # rows packed at a time, in the cache of a processor


@dataclass(frozen=True)
class RowFormat:
    """How the records of a schema are packed row by row: the hash of the unit's id, then the codes.

    A row of 32 bytes is moved in one step, where a column at a time would be gathered from as many places as there are
    attributes. Longer rows are padded to a multiple of 16.
    """

    kinds: tuple[np.dtype[Any], ...]  # of the codes of each attribute

    @classmethod
    def of(cls, schema: Schema) -> RowFormat:
        """That of a schema."""
        return cls(tuple(attribute.dtype for attribute in schema.attributes))

    @cached_property
    def _fields(self) -> np.dtype[np.void]:
        offsets = np.cumsum([_HASH, *(kind.itemsize for kind in self.kinds)]).tolist()
        width = _WIDTH if offsets[-1] <= _WIDTH else -(-offsets[-1] // 16) * 16
        names = [str(place) for place in range(len(self.kinds))]
        return np.dtype({"names": names, "formats": list(self.kinds), "offsets": offsets[:-1], "itemsize": width})

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self._fields.itemsize

    def pack(self, units: Hashes, codes: Sequence[NDArray[Any]]) -> PackedRows:
        """Rows, from the hashes of the units' ids and the codes."""
        rows = np.zeros((len(units), self.width // 8), np.uint64)
        for start in range(0, len(units), _PACKED):
            part = slice(start, start + _PACKED)
            rows[part, :2] = units[part]
            fields = rows[part].view(self._fields)[:, 0]
            for place, column in enumerate(codes):
                fields[str(place)] = column[part]
        return rows

    def codes(self, rows: PackedRows) -> Codes:
        """The codes."""
        fields = rows.view(self._fields)[:, 0]
        return [np.ascontiguousarray(fields[str(place)]) for place in range(len(self.kinds))]

    def values(self, rows: PackedRows) -> NDArray[np.uint8]:
        """The bytes of the codes of each row, uint8[rows, bytes]."""
        return rows.view(np.uint8)[:, _HASH : _HASH + sum(kind.itemsize for kind in self.kinds)]


def taken(rows: PackedRows, order: NDArray[np.intp]) -> PackedRows:
    """Some of the rows, in an order."""
    whole = rows.view(f"V{8 * rows.shape[1]}")[:, 0].take(order)
    return whole.view(np.uint64).reshape(-1, rows.shape[1])


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


def bounded(
    executor: Executor, table: Located, *, at_most: int, key: KeyRef, following: Following | None = None
) -> HeldRecords:
    """Graph of a table, opened with the column of the ids, with at most this many records of each unit; records without
    an id are not in it. The key of the attempt decides which records are kept.
    """
    shards = sharded(executor, table, bound_shard, (table.schema, at_most, following), key=key)
    return HeldRecords(table.schema, shards, table.rows, table.fingerprint)


def sharded(
    executor: Executor, table: Located, bound: Callable[..., object], how: object, *, key: KeyRef
) -> list[Deferred]:
    """Graphs of what a function makes of each shard of a table: called with `how`, the pieces of the shard, the reports
    of the partitions (with the first shard only) and `key`.
    """
    sizes = sizes_for(table.rows)
    task = executor.tasks("bounding")
    pieces, reports = _pieces(task, table.sides[0], sizes, key)
    if len(table.sides) == 2:
        parents = _pieces(task, table.sides[1], sizes, key)
        join = Join(table.schema, (table.sides[0].schema, table.sides[1].schema))
        pieces, reports = _joined_pieces(task, join, (pieces, reports), parents, key)
    shared = task.constant("how", how)
    return [task("bound", bound, shared, own, [] if k else reports, key) for k, own in enumerate(pieces)]


Pieces = tuple[list[list[Deferred]], list[Deferred]]
"""For each shard the pieces of all partitions, and the partitions' reports."""


def _pieces(task: Tasks, table: Records, sizes: tuple[int, int], key: KeyRef) -> Pieces:
    """The records of a table, sent by the hashes of their ids."""
    parts = [task("split", split_partition, records, i, sizes, key) for records, i in table.parts(task)]
    reports = [task("report", operator.itemgetter(sizes[0]), part) for part in parts]
    return [[task("send", operator.itemgetter(k), part) for part in parts] for k in range(sizes[0])], reports


def _joined_pieces(task: Tasks, join: Join, records: Pieces, parents: Pieces, key: KeyRef) -> Pieces:
    """The pieces of records that are joined with their parents in each shard."""
    shared = task.constant("join", join)
    found = [task("join", join_shard, shared, *both, key) for both in zip(records[0], parents[0], strict=True)]
    reports = [task("widen", Join.widened, shared, k, one) for k in (0, 1) for one in (records, parents)[k][1]]
    reports += [task("report", operator.itemgetter(1), one) for one in found]
    return [[task("send", operator.itemgetter(0), one)] for one in found], reports


def join_shard(
    join: Join, records: list[ShardPiece], parents: list[ShardPiece], key: KeyRef
) -> tuple[ShardPiece, RowReport]:
    """The records of a shard with the attributes of their parents, and what the rules met."""
    hashes, report = UnitHashes.of(load_noise(key)), RowReport.empty(join.schema)
    form, ends = RowFormat.of(join.schema), [0]
    found = [form.pack(np.empty((0, 2), np.uint64), no_codes(join.schema))]
    for own, above in zip(blocks_of(records), blocks_of(parents), strict=True):
        rows, columns, met = join.joined(own, above, hashes)
        found.append(form.pack(own[0][rows], columns))
        ends.append(ends[-1] + len(rows))
        report += met
    return ShardPiece(form, np.concatenate(found), np.array(ends, np.intp)), report


def sizes_for(rows: int) -> tuple[int, int]:
    """Number of shards of a table of this many rows, and of blocks of each shard."""
    shards = min(max(-(-rows // SHARD_ROWS), 1), MOST_SHARDS)
    return shards, min(max(rows // shards // BLOCK_ROWS, 1), MOST_BLOCKS // shards)


def split_partition(
    table: Batches, partition: int, sizes: tuple[int, int], key: KeyRef
) -> list[ShardPiece | RowReport]:
    """The records of a partition for each shard and each of its blocks, and what the policies met."""
    shards, blocks = sizes
    hashes, report = UnitHashes.of(load_noise(key)), RowReport.empty(table.schema)
    form = RowFormat.of(table.schema)
    pieces, numbers = [form.pack(np.empty((0, 2), np.uint64), no_codes(table.schema))], [np.empty(0, np.uint16)]
    for batch in table.batches(partition, batch_rows=READ_ROWS):
        if batch.beside is None:
            raise ValueError("the table was opened without the column of the ids")
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


def bound_shard(
    how: tuple[Schema, int, Following | None], pieces: list[ShardPiece], reports: list[RowReport], key: KeyRef
) -> RecordsInMemory:
    """The records of a shard that are kept, and a report that counts them and what the partitions met."""
    schema, at_most, following = how
    form = RowFormat.of(schema)
    hashes, found, seen, frozen = UnitHashes.of(load_noise(key)), [no_codes(schema)], 0, 0
    for rows in _row_blocks(pieces):
        units = np.ascontiguousarray(rows[:, :2])
        if following is None:
            found.append(form.codes(taken(rows, hashes.kept(units, form.values(rows), at_most=at_most))))
        else:
            codes, late = followed(hashes, units, form.codes(rows), following)
            found.append(codes)
            frozen += late
        seen += len(rows)
    whole = joined(found)
    report = sum(reports, start=RowReport.empty(schema))
    report = replace(report, kept=len(whole[0]), beyond=seen - len(whole[0]), frozen=frozen)
    return RecordsInMemory.of(schema, whole, report=report)


def followed(hashes: UnitHashes, units: Hashes, codes: Codes, how: Following) -> tuple[Codes, int]:
    """The records of a panel that are used, with the values that count, and how many count with earlier values.

    Of several records of a unit in one period a keyed one is used. All follows from the unit's own records.
    """
    period = codes[how.period].astype(np.int64)
    rows, place = hashes.arranged(units, codes, period, at_most=len(period))
    first, now = place == 0, period[rows]
    again = ~first & (np.diff(now, prepend=-1) == 0)
    rows, first, now = rows[~again], first[~again], now[~again]
    stay = _since(first, ~first & (np.diff(now, prepend=-1) > 1)) == 0
    rows, first = rows[stay], first[stay]
    own = [codes[i][rows] for i in how.values]
    moved = np.zeros(len(rows), np.bool_)
    for column in own:
        moved[1:] |= column[1:] != column[:-1]
    before = np.maximum.accumulate(np.where(_since(first, moved & ~first) <= how.changes, np.arange(len(rows)), 0))
    found, late = [column[rows] for column in codes], np.zeros(len(rows), np.bool_)
    for i, column in zip(how.values, own, strict=True):
        found[i] = column[before]
        late |= found[i] != column
    return found, int(late.sum())


def _since(first: NDArray[np.bool_], event: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many events there were in each unit up to a row; `first` marks the first row of each."""
    number = np.cumsum(event)
    return np.asarray(number - number[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))])
