"""What a release reads: files, a table in memory, or a table whose partitions others hold; each has an identity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from dpdist.cluster.executor import Executor
from dpdist.data.joined import JoinedTable, open_joined
from dpdist.data.records import Records
from dpdist.data.source import TableSource, fingerprint, fingerprint_of
from dpdist.data.table import Table
from dpdist.spec.data import TableSpec
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema


class Opened(Records, Protocol):
    """The records of an input, opened for a release."""

    @property
    def cells(self) -> int:
        """About how many values there are; it decides where the work is done, never what is released."""

    def on(self, executor: Executor) -> Records:
        """The records where the tasks of an executor find them."""


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
        """The records, read by a schema, and the ids of their units, or their weights, where a column has them.

        Of an input that was `checked` against a contract, columns outside the schema are passed over: which columns a
        table may have besides is then said in the contract, not in the spec.

        Raises
        ------
        DataError
            The columns are not those of the schema, or files cannot be read.
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
    ) -> Table | JoinedTable:
        """See `dpdist.data.joined.open_joined`."""
        source = replace(self.source, beside=beside, extra_columns="ignore" if checked else self.source.extra_columns)
        return open_joined(source, schema, partitions=partitions)


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
    ) -> Table:
        """A table without files."""
        return Table(TableSource(("held by clients",)), schema, "parquet", (), ())


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
