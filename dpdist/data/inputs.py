"""What a release reads: files, a table in memory, or a table whose partitions others hold; each has an identity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dpdist.data.joined import JoinedFiles, open_files
from dpdist.data.records import Opened, RecordsInMemory
from dpdist.data.source import CsvOptions, ParentSource, TableSource, fingerprint, fingerprint_of
from dpdist.data.table import TableFiles
from dpdist.ledger.contract import InputSpec
from dpdist.spec.release import CsvSpec, DataSpec, ParentTable, ReleaseSpec
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
        """See `dpdist.data.joined.open_files`."""
        source = replace(self.source, beside=beside, extra_columns="ignore" if checked else self.source.extra_columns)
        return open_files(source, schema, partitions=partitions)


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


def source_of(data: DataSpec, *, checked: bool = False) -> TableSource:
    """The table of a spec's section `data`; see `table_source`."""
    return TableSource(
        paths=(*data.paths, *(data.parent.paths if data.parent else ())),
        parent=_parent(data.parent),
        format=data.format,
        csv=csv_options(data.csv),
        extra_columns="ignore" if checked else data.extra_columns,
        storage_options=data.storage.options,
    )


def contract_source(data: InputSpec, *, paths: tuple[str, ...]) -> TableSource:
    """Files that the contract of a data set names, read as it says."""
    return TableSource(
        paths=(*paths, *(data.parent.paths if data.parent else ())),
        parent=_parent(data.parent),
        format=data.format,
        csv=csv_options(data.csv),
        extra_columns=data.extra_columns,
        storage_options=data.storage.options,
    )


def _parent(parent: ParentTable | None) -> ParentSource | None:
    return None if parent is None else ParentSource(parent.paths, parent.attributes)


def csv_options(csv: CsvSpec) -> CsvOptions:
    """How CSV files are read, from a spec or a contract."""
    return CsvOptions(
        header=csv.header,
        columns=csv.columns,
        delimiter=csv.delimiter,
        strip=csv.strip,
        comment=csv.comment,
        skip_rows=csv.skip_rows,
    )
