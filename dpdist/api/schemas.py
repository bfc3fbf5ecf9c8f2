"""Schemas: drafted from what is public or from a charged discovery, and checked against a table.

A check is by public facts, and for the custodian of the table by its records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpdist.api.given import as_input, executor_for, is_partitioned, paths_of, to_arrow
from dpdist.cluster.executor import InProcess
from dpdist.data.files import check_arrow
from dpdist.data.inputs import Files, source_of
from dpdist.errors import ColumnMismatch, EmptyTable, SpecError, UnreadableFile, meant
from dpdist.spec.data import DataSpec
from dpdist.spec.draft import draft, drafted
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import bounds_in
from dpdist.spec.validation import validated

if TYPE_CHECKING:
    from dpdist.publish.manifest import Manifest

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


_KINDS = ("text", "integer", "number")


def draft_of(
    source: str | Path, *, public: bool, columns: tuple[str, ...], without: tuple[str, ...], table: str | None = None
) -> str:
    """A schema file drafted from a file or a folder of Parquet files that describes a table
    (`dpdist.spec.draft.draft`), or from the folder of a discovery. Raises SpecError: the source says nothing of a
    column, or has no known format, or is a release that says nothing of columns; VerificationFailed: it is damaged.
    """
    source, folder = str(source), Path(source)
    # a folder of Parquet files is a table; a release has them in a folder of their own
    if folder.is_dir() and ((folder / "_manifest.json").is_file() or not any(folder.rglob("*.parquet"))):
        from dpdist.families.base.registry import FAMILIES
        from dpdist.publish.verify import read_manifest, read_release

        manifest = read_manifest(source)
        family = FAMILIES.get(manifest.kind)
        if family is None or family.described is None:
            raise SpecError(f"{source} is a release of kind {manifest.kind}; a schema is drafted from kind: discovery")
        found = family.described(manifest, read_release(source))
        return drafted(_heading(manifest), found, source=source, columns=columns, without=without)
    return draft(source, public=public, columns=columns, without=without, table=table)


def _heading(manifest: Manifest) -> list[str]:
    """The heading of a draft, with the guarantee."""
    return [
        f"Drafted from the {manifest.kind} {manifest.name} of {manifest.created}: frequent values and bounds, with "
        "noise.",
        manifest.guarantee,
        f"The attempt {manifest.attempt} was charged for it, and whatever is made of this draft costs nothing more.",
        "Policies: `missing` and `out_of_domain` refuse a table unless they say drop, clip or {category: NAME}.",
    ]


def discovered(
    source: Path, folder: str, columns: Sequence[str], *, dataset: str, budget: tuple[float, float], ledger: str
) -> str:
    """A schema file drafted from a private table, by a discovery that is charged and published first.

    Repeated, it ends what was interrupted, and costs nothing more. `columns` are ``NAME``, ``NAME=integer``,
    ``NAME=number`` or ``NAME=LOW..HIGH``, `budget` is epsilon and delta. Raises DpdistError: as `dpdist.release`.
    """
    from dpdist.api.calls import release

    asked = dict(map(_column, columns))
    if len(asked) < len(columns):
        raise SpecError("--column: a column is named twice; keep one of them")
    spec = {
        "kind": "discovery",
        "name": Path(folder).name,
        "dataset": dataset,
        "columns": asked,
        "data": {"path": str(source), "minimum_records": 1, "extra_columns": "ignore"},
        "privacy": {"epsilon": budget[0], "delta": budget[1]},
        "output": {"path": folder},
    }
    release(spec, ledger=ledger, attempt="once", progress=True)
    return draft_of(folder, public=False, columns=(), without=())


def _column(text: str) -> tuple[str, Any]:
    """A column and what is asked of it."""
    name, sign, kind = text.rpartition("=")
    if not sign:
        return text, "text"
    if (bounds := bounds_in(kind)) and not isinstance(bounds[0], str):  # days, which a discovery does not bound
        return name, list(bounds)
    if kind not in _KINDS:
        near = meant(kind, _KINDS, otherwise="")
        raise SpecError(f"--column {text}: expected {', '.join(_KINDS)} or bounds such as 0..99 after the sign{near}")
    return name, kind
