"""What a release reads: files, two tables that are joined, a table in memory, or one that others hold.

Two tables have ids of the same units: each record of the first has the attributes of its parent. They need not be
aligned. Tasks read both, send the rows by the hash of their ids, and join them there (`dpdist.families.base.bounding`).
A record without a parent, a parent without records, and all but one of several parents with one id are not used; which
one is kept depends on these parents alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Executor, TaskProgress
from dpdist.data.keyed_ids import Hashes, UnitHashes
from dpdist.data.records import Opened, RecordsInMemory
from dpdist.data.report import RowReport
from dpdist.data.source import TableSource, fingerprint, fingerprint_of, fingerprint_of_sides, sides_of
from dpdist.data.table import Table, TableFiles
from dpdist.errors import SpecError
from dpdist.privacy.arrays import Codes
from dpdist.spec.data import TableSpec
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema


class Input(Protocol):
    """What a release reads."""

    @property
    def source(self) -> TableSource | None:
        """The files, where it is files."""

    @property
    def fingerprint(self) -> str:
        """The identity of the input as it is now, to which attempts are bound."""

    def open(
        self, schema: Schema, *, partitions: int | None = None, checked: bool = False, beside: str | None = None
    ) -> Opened:
        """Check the columns against a schema, to read the records by it and, `beside`, a column of ids or weights.

        Of an input that was `checked` against a contract, which says the columns that a table may have, those outside
        the schema are passed over. Raises DataError: the columns are not those of the schema, or files cannot be read.
        """


@dataclass(frozen=True)
class Files:
    """The files of a table; the fingerprint covers their paths, sizes and versions."""

    source: TableSource

    @property
    def fingerprint(self) -> str:
        """See `dpdist.data.source.fingerprint`."""
        return fingerprint(self.source)

    def open(
        self, schema: Schema, *, partitions: int | None = None, checked: bool = False, beside: str | None = None
    ) -> TableFiles | JoinedFiles:
        """See `Input.open`. Raises SpecError: the attributes of the parents, if they have a table of their own, are not
        those of the schema, or there are no ids to join by.
        """
        source = replace(self.source, beside=beside, extra_columns="ignore" if checked else self.source.extra_columns)
        parent = source.parent
        if parent is None:
            return TableFiles.of(source, schema, partitions=partitions)
        if beside is None:
            raise SpecError("data.parent: tables are joined by the ids of units: declare `unit`")
        above = tuple(a for a in schema.attributes if a.name in parent.attributes)
        own = tuple(a for a in schema.attributes if a.name not in parent.attributes)
        if not own or not above:
            raise SpecError("data.parent: some attributes of the schema are the parent's, and some are not")
        records, parents = sides_of(source)
        first = TableFiles.of(records, Schema(attributes=own), partitions=partitions)
        return JoinedFiles(schema, (first, TableFiles.of(parents, Schema(attributes=above), partitions=partitions)))


@dataclass(frozen=True)
class HeldByClients:
    """No records here: clients of a federated release hold them."""

    source: None = None

    @property
    def fingerprint(self) -> str:
        """That of no files."""
        return fingerprint_of(())

    def open(
        self, schema: Schema, *, partitions: int | None = None, checked: bool = False, beside: str | None = None
    ) -> RecordsInMemory:
        """No records."""
        return RecordsInMemory.of(schema, [np.empty(0, attribute.dtype) for attribute in schema.attributes])


def input_of(spec: ReleaseSpec) -> Input:
    """The input that a spec names."""
    return Files(table_source(spec)) if spec.data.paths else HeldByClients()


def table_source(spec: ReleaseSpec, *, checked: bool = False) -> TableSource:
    """The table a spec names; of one that was `checked` against a contract as `Input.open` says."""
    return source_of(spec.data, checked=checked)


def source_of(data: TableSpec, *, paths: tuple[str, ...] = (), checked: bool = False) -> TableSource:
    """The table of the section `data` of a spec or a contract, or `paths` that are read alike; see `table_source`."""
    return TableSource(
        paths=(*(paths or data.paths), *(data.parent.paths if data.parent else ())),
        parent=data.parent,
        format=data.format,
        csv=data.csv,
        extra_columns="ignore" if checked else data.extra_columns,
        storage_options=data.storage.options,
    )


@dataclass(frozen=True, repr=False)
class JoinedTable:
    """A table and the one of its parents, each with its part of the attributes and the column of the ids."""

    schema: Schema  # of the joined records, with the rules
    sides: tuple[Table, Table]

    @property
    def rows(self) -> int:
        """Number of rows of the first table; confidential."""
        return self.sides[0].rows

    @property
    def fingerprint(self) -> str:
        """Of the files of both, and which are the parents'."""
        return fingerprint_of_sides(*(table.fingerprint for table in self.sides))


@dataclass(frozen=True, repr=False)
class JoinedFiles:
    """The files of a `JoinedTable`; no record was read."""

    schema: Schema
    sides: tuple[TableFiles, TableFiles]

    @property
    def cells(self) -> int:
        """About how many values there are in both tables."""
        return sum(files.cells for files in self.sides)

    def on(self, executor: Executor, *, progress: TaskProgress | None = None) -> JoinedTable:
        """Both tables; see `dpdist.data.table.TableFiles.on`."""
        records, parents = (files.on(executor, progress=progress) for files in self.sides)
        return JoinedTable(self.schema, (records, parents))


@dataclass(frozen=True)
class Join:
    """How the records of two tables become records of one schema."""

    schema: Schema
    sides: tuple[Schema, Schema]  # of the records and of their parents

    def _places(self, side: int) -> list[int]:
        """Places of the attributes of one of the tables in the schema."""
        return [self.schema.names.index(name) for name in self.sides[side].names]

    def widened(self, side: int, report: RowReport) -> RowReport:
        """The report of one of the tables as one of joined records."""
        empty = RowReport.empty(self.schema)
        empty.counts[self._places(side)] = report.counts
        return replace(empty, rows=0 if side else report.rows, kept=0, nameless=report.nameless)

    def joined(
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
        for k, i in enumerate(self._places(0)):
            columns[i] = codes[k][found]
        for k, i in enumerate(self._places(1)):
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
