"""Two tables with ids of the same units, read as one: each record of the first has the attributes of its parent.

The tables need not be aligned. Tasks read both, send the rows by the hash of their ids, and join them there
(`dpdist.families.base.bounding`). A record without a parent, a parent without records, and all but one of several
parents with one id are not used; which one is kept depends on these parents alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Executor
from dpdist.data.keyed_ids import UnitHashes
from dpdist.data.read import EncodedBatch
from dpdist.data.report import RowReport
from dpdist.data.sizes import BATCH_ROWS
from dpdist.data.source import TableSource, fingerprint_of_sides, sides_of
from dpdist.data.table import Table, open_table
from dpdist.errors import SpecError
from dpdist.privacy.arrays import Codes
from dpdist.privacy.keyed_hash import Hashes
from dpdist.spec.schema import Schema


@dataclass(frozen=True, repr=False)
class JoinedTable:
    """A table and the one of its parents.

    Attributes
    ----------
    schema : Schema
        Of the joined records, with the rules.
    records, parents : Table
        Each with its part of the attributes, and the column of the ids.
    """

    schema: Schema
    records: Table
    parents: Table

    @property
    def sides(self) -> tuple[Table, Table]:
        """Both tables."""
        return self.records, self.parents

    @property
    def partitions(self) -> Sequence[object]:
        """Those of both tables."""
        return (*self.records.partitions, *self.parents.partitions)

    @property
    def rows(self) -> int | None:
        """Number of rows of the first table; confidential."""
        return self.records.rows

    @property
    def is_located(self) -> bool:
        """Whether both are."""
        return self.records.is_located and self.parents.is_located

    @property
    def cells(self) -> int:
        """About how many values there are in both."""
        return self.records.cells + self.parents.cells

    @property
    def fingerprint(self) -> str:
        """Of the files of both, and which are the parents'."""
        return fingerprint_of_sides(*(table.fingerprint for table in self.sides))

    def on(self, executor: Executor) -> JoinedTable:
        """Both tables; see `dpdist.data.table.Table.on`."""
        return replace(self, records=self.records.on(executor), parents=self.parents.on(executor))

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """Not here: records are joined where units are bounded."""
        raise TypeError("joined tables are read by the tasks that bound units")

    def counted(self, partition: int) -> list[int]:
        """As that of the table which the partition is of."""
        first = len(self.records.partitions)
        return self.records.counted(partition) if partition < first else self.parents.counted(partition - first)

    def located(self, counts: Sequence[Sequence[int]]) -> JoinedTable:
        """Both with their row numbers."""
        first = len(self.records.partitions)
        return replace(self, records=self.records.located(counts[:first]), parents=self.parents.located(counts[first:]))

    def places(self, side: int) -> list[int]:
        """Places of the attributes of one of the tables in the schema."""
        return [self.schema.names.index(name) for name in self.sides[side].schema.names]

    def widened(self, side: int, report: RowReport) -> RowReport:
        """The report of one of the tables as one of joined records."""
        empty = RowReport.empty(self.schema)
        empty.counts[self.places(side)] = report.counts
        rows = report.rows if side == 0 else 0
        return replace(empty, rows=rows, kept=0, nameless=report.nameless)

    def join(
        self, records: tuple[Hashes, Codes], parents: tuple[Hashes, Codes], hashes: UnitHashes
    ) -> tuple[NDArray[np.intp], Codes, RowReport]:
        """The rows of the first table that are used, the joined records, and what the rules met."""
        (units, codes), (owners, above) = records, parents
        kept, _ = hashes.arranged(owners, above, None, at_most=1)  # in the order of their hashes
        keys = owners[kept]
        place = np.searchsorted(keys[:, 0], units[:, 0])
        found = np.flatnonzero(place < len(keys))
        found = found[(keys[place[found]] == units[found]).all(1)]
        columns: Codes = [np.empty(0, attribute.dtype) for attribute in self.schema.attributes]
        for k, i in enumerate(self.places(0)):
            columns[i] = codes[k][found]
        for k, i in enumerate(self.places(1)):
            columns[i] = above[k][kept[place[found]]]
        report = replace(
            RowReport.empty(self.schema),
            orphans=len(units) - len(found),
            childless=len(keys) - len(np.unique(place[found])),
            repeated=len(owners) - len(keys),
        )
        drop = np.zeros(len(found), bool)
        for number, rule in enumerate(self.schema.forbidden):
            broken = rule.broken_by(columns)
            report.broken[number] = np.count_nonzero(broken)
            drop |= broken & (rule.rule.broken == "drop")
        used = np.flatnonzero(~drop)
        return found[used], [column[used] for column in columns], report


def open_joined(source: TableSource, schema: Schema, *, partitions: int | None = None) -> Table | JoinedTable:
    """The table of a source, joined with that of its parents where it names one; parameters as `open_table`.

    Raises
    ------
    SpecError
        The attributes of the parents are not those of the schema, or there are no ids to join by.
    DataError
        As `open_table`.
    """
    parent = source.parent
    if parent is None:
        return open_table(source, schema, partitions=partitions)
    if source.beside is None:
        raise SpecError("data.parent: tables are joined by the ids of units: declare `unit`")
    own = [a for a in schema.attributes if a.name not in parent.attributes]
    above = [a for a in schema.attributes if a.name in parent.attributes]
    if not own or not above:
        raise SpecError("data.parent: some attributes of the schema are the parent's, and some are not")
    records, parents = sides_of(source)
    return JoinedTable(
        schema,
        open_table(records, Schema(attributes=tuple(own)), partitions=partitions),
        open_table(parents, Schema(attributes=tuple(above)), partitions=partitions),
    )
