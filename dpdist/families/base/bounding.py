"""Bounding: of each unit at most so many records are used, wherever in the table they are.

Each partition is read once, and its rows are sent by the hash of their unit's id to one of several shards. The task of
a shard has all records of its units and keeps at most so many of each (`dpdist.data.keyed_ids`). The shards are the
partitions of the bounded table. Which shard a unit is in depends on the key and on the number of shards; what is kept
depends on neither the shards nor the partitions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpdist.cluster.executor import Executor
from dpdist.data.arrow import HeldRecords
from dpdist.data.keyed_ids import UnitHashes
from dpdist.data.read import BATCH_ROWS, EncodedBatch
from dpdist.data.records import Records
from dpdist.data.report import RowReport
from dpdist.families.base.graph import by_partition
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.privacy.keyed_hash import Hashes
from dpdist.schema.schema import Schema

SHARD_ROWS = 1 << 20
"""Rows of a shard, about: its task holds them at once."""

MOST_SHARDS = 256


@dataclass(frozen=True, eq=False, repr=False)
class Piece:
    """Records of one partition for one shard: hashes of their units' ids, and codes."""

    units: Hashes
    codes: Codes

    def __sizeof__(self) -> int:
        return self.units.nbytes + sum(column.nbytes for column in self.codes)


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
    """Graph of a table with at most so many records of each unit; records without an id are not in it.

    Parameters
    ----------
    executor : Executor
    table : Records
        Located, and opened with the column of the ids.
    at_most : int
    key : KeyRef
        Of the attempt: it decides which records are kept.
    """
    rows = table.rows or 0
    shards = min(max(-(-rows // SHARD_ROWS), 1), MOST_SHARDS)
    task = executor.tasks("bounding")
    parts = [task("split", split_partition, records, i, shards, key) for records, i in by_partition(task, table)]
    reports = [task("report", operator.itemgetter(shards), part) for part in parts]
    schema, bounds = task.constant("schema", table.schema), []
    for shard in range(shards):
        pieces = [task("send", operator.itemgetter(shard), part) for part in parts]
        bounds.append(task("bound", bound_shard, schema, pieces, [] if shard else reports, at_most, key))
    return HeldRecords(table.schema, bounds, rows, table.fingerprint)


def split_partition(table: Records, partition: int, shards: int, key: KeyRef) -> list[Piece | RowReport]:
    """The records of a partition for each shard, and what the policies met."""
    hashes, report = UnitHashes.of(load_noise(key)), RowReport.empty(table.schema)
    found: list[list[Piece]] = [[] for _ in range(shards)]
    for batch in table.batches(partition):
        if batch.ids is None:
            raise TypeError("the table was opened without the column of the ids")
        units, known = hashes.of_ids(batch.ids)
        keep = known if batch.keep is None else known & batch.keep
        report += replace(batch.report, kept=0, nameless=int(np.count_nonzero(~known)))
        rows = np.flatnonzero(keep)
        shard = ((units[rows, 0] >> np.uint64(48)) * np.uint64(shards) >> np.uint64(16)).astype(np.uint16)
        rows = rows[np.argsort(shard, kind="stable")]
        ends = np.cumsum(np.bincount(shard, minlength=shards))
        for number, of_shard in enumerate(np.split(rows, ends[:-1])):
            found[number].append(Piece(units[of_shard], [column[of_shard] for column in batch.codes]))
    return [*(_joined(pieces, table.schema) for pieces in found), report]


def bound_shard(schema: Schema, pieces: list[Piece], reports: list[RowReport], at_most: int, key: KeyRef) -> Shard:
    """The records of a shard that are kept, and a report that counts them and what the partitions met."""
    whole = _joined(pieces, schema)
    kept = UnitHashes.of(load_noise(key)).kept(whole.units, whole.codes, at_most=at_most)
    report = sum(reports, start=RowReport.empty(schema))
    report = replace(report, kept=len(kept), beyond=len(whole.units) - len(kept))
    return Shard(schema, [column[kept] for column in whole.codes], report)


def _joined(pieces: list[Piece], schema: Schema) -> Piece:
    empty = Piece(np.empty((0, 2), np.uint64), [np.empty(0, attribute.dtype) for attribute in schema.attributes])
    columns = zip(*(piece.codes for piece in [empty, *pieces]), strict=True)
    units = np.concatenate([piece.units for piece in [empty, *pieces]])
    return Piece(units, [np.concatenate(column) for column in columns])
