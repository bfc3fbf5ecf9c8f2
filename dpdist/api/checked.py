"""Whether a table fits a schema: by public facts, and for its custodian by its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dpdist.api.given import as_input, executor_for, is_partitioned, paths_of, to_arrow
from dpdist.cluster.executor import InProcess
from dpdist.data.files import check_arrow
from dpdist.data.inputs import Files, source_of
from dpdist.errors import ColumnMismatch, EmptyTable, SpecError, UnreadableFile
from dpdist.spec.data import DataSpec
from dpdist.spec.schema import Schema
from dpdist.spec.validation import validated

NOT_READ = "no record was read: what records say is private; who keeps the table asks with custodian=True (--custodian)"


@dataclass(frozen=True, repr=False)
class SchemaCheck:
    """What a check of a table against a schema found.

    Attributes
    ----------
    problems : tuple of str
        By names and types of columns and formats of files: public.
    of_records : tuple of str or None
        By records: private. None where no record was read.
    counts : dict or None
        Numbers of records read and kept, and by column of the values that policies apply to: private. None where no
        record was read.
    """

    problems: tuple[str, ...]
    of_records: tuple[str, ...] | None = None
    counts: dict[str, Any] | None = None

    @property
    def fits(self) -> bool:
        """Whether nothing that was looked at breaks the schema."""
        return not self.problems and not self.of_records

    def __repr__(self) -> str:
        lines = [*self.problems] or ["public: names and types of the columns fit the schema"]
        if self.of_records is None or self.counts is None:
            return "\n".join([*lines, NOT_READ])
        lines.append(f"confidential: {self.counts['rows_kept']:,} of {self.counts['rows_read']:,} rows are kept")
        for name, counts in self.counts["columns"].items():
            found = ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in counts.items() if number)
            lines.append(f"confidential: {name}: {found}")
        return "\n".join([*lines, *(f"confidential: {problem}" for problem in self.of_records)])


def check_schema(schema: Schema, table: Any, *, custodian: bool, layout: Mapping[str, Any]) -> SchemaCheck:
    """See `dpdist.spec.schema.Schema.check`."""
    from dpdist.lifecycle.conformity import check_records

    paths = paths_of(table)
    if paths is None and layout:
        raise SpecError(f"{', '.join(sorted(layout))}: of files only; the table is given in memory")
    problems = _public(schema, table, paths, layout)
    if problems or not custodian:
        return SchemaCheck(problems)
    executor = executor_for(None, dask=is_partitioned(table)) or InProcess()
    given = (
        _files(paths, layout)
        if paths
        else as_input(table, executor=executor, extra_columns="ignore", wanted=schema.names)
    )
    found = check_records(schema, given, executor)
    return SchemaCheck((), found.problems, found.counts)


def _files(paths: list[str], layout: Mapping[str, Any]) -> Files:
    tree = {"path": tuple(paths), "minimum_records": 1, "extra_columns": "ignore", **layout}
    return Files(source_of(validated(DataSpec, tree, "the layout of the files")))


def _public(schema: Schema, table: Any, paths: list[str] | None, layout: Mapping[str, Any]) -> tuple[str, ...]:
    """What names and types break."""
    try:
        if paths is not None:
            _files(paths, layout).open(schema)
        else:
            what = f"the {type(table).__name__}"
            check_arrow(what, _types(table, what), schema, extra="ignore")
    except (ColumnMismatch, EmptyTable, UnreadableFile) as error:
        return tuple(str(error).splitlines())
    return ()


def _types(table: Any, what: str) -> pa.Schema:
    """The types of the columns without a record: of a pandas column of objects nothing is known."""
    if is_partitioned(table):
        table = table._meta
    if hasattr(table, "iloc"):
        table = table.iloc[:0]
    return to_arrow(table, what=what).schema
