"""The table that a spec names: its files, and their fingerprint."""

from __future__ import annotations

from dpdist.data.source import CsvOptions, TableSource, fingerprint, fingerprint_of
from dpdist.data.table import Table, open_table
from dpdist.schema.spec import CsvSpec, ReleaseSpec


def table_source(spec: ReleaseSpec, *, checked: bool = False) -> TableSource:
    """The table a spec names; of one that was `checked` against a contract, columns outside the schema are passed over.

    Which columns a table may have besides those of its contract is then said in the contract, not in the spec.
    """
    data = spec.data
    return TableSource(
        paths=data.paths,
        format=data.format,
        csv=csv_options(data.csv),
        extra_columns="ignore" if checked else data.extra_columns,
        storage_options=data.storage.options,
    )


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


def open_input(spec: ReleaseSpec, *, checked: bool = False) -> Table:
    """The table of a release; where clients hold the records, a table without files."""
    if spec.data.paths:
        return open_table(table_source(spec, checked=checked), spec.table, partitions=spec.cluster.partitions)
    return Table(TableSource(("held by clients",)), spec.table, "parquet", (), ())


def input_fingerprint(spec: ReleaseSpec) -> str:
    """The fingerprint of the files a release reads, as they are now."""
    return fingerprint(table_source(spec)) if spec.data.paths else fingerprint_of(())
