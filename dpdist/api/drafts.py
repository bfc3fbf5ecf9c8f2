"""Schemas drafted from what is public, or from a discovery in a private table, which is charged first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.errors import SpecError, meant
from dpdist.spec.draft import draft, drafted
from dpdist.spec.undeclared import bounds_in

if TYPE_CHECKING:
    from dpdist.publish.manifest import Manifest

_KINDS = ("text", "integer", "number")


def draft_of(
    source: str | Path, *, public: bool, columns: tuple[str, ...], without: tuple[str, ...], table: str | None = None
) -> str:
    """A schema file drafted from a file or a folder of Parquet files that describes a table
    (`dpdist.spec.draft.draft`), or from the folder of a discovery. Raises SpecError: the source says nothing of a
    column, or has no known format, or is a release that says nothing of columns; VerificationFailed: it is damaged.
    """
    source = str(source)
    if Path(source).is_dir() and not _holds_files(Path(source)):
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


def _holds_files(folder: Path) -> bool:
    """Whether a folder is a table of Parquet files, which a release has in a folder of their own."""
    return not (folder / "_manifest.json").is_file() and any(folder.rglob("*.parquet"))


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
    if bounds := bounds_in(kind):
        return name, list(bounds)
    if kind not in _KINDS:
        near = meant(kind, _KINDS, otherwise="")
        raise SpecError(f"--column {text}: expected {', '.join(_KINDS)} or bounds such as 0..99 after the sign{near}")
    return name, kind
