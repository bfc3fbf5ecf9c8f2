"""What is public beside a table: one as a prior, or earlier releases as evidence (`dpdist.model.learn.measure`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpdist.cluster.executor import InProcess
from dpdist.data.count import PairCounts, pair_counts
from dpdist.data.inputs import table_source
from dpdist.data.report import check
from dpdist.data.source import TableSource, is_input, would_find
from dpdist.data.table import open_table
from dpdist.errors import EmptyTable, ReleaseConflict, SpecError
from dpdist.families.base.graph import encoded
from dpdist.families.base.owners import shared_file
from dpdist.families.synthesis.spec import PriorSpec, WholeSynthesisSpec
from dpdist.model.earlier import EarlierReleases, read_earlier, releases_at
from dpdist.privacy.arrays import Codes
from dpdist.storage.s3 import is_s3


def refuse_own_table(spec: WholeSynthesisSpec) -> None:
    """Refuse a prior that is the released table, or a part of it, by its address, unopened. Raises SpecError: it is."""
    prior = spec.model.prior
    if prior is None or not spec.data.paths:
        return
    for source, paths in ((table_source(spec), prior.paths), (_source(spec, prior), spec.data.paths)):
        for path in paths:
            if path in source.paths or (would_find(source, path) if is_s3(path) else is_input(source, Path(path))):
                raise _is_own(path)


def _is_own(path: str) -> SpecError:
    return SpecError(
        f"model.prior: {path} belongs to the table that data.path names, which only a charged release may read: give "
        "a public one, such as last year's"
    )


def _source(spec: WholeSynthesisSpec, prior: PriorSpec) -> TableSource:
    options = spec.data.storage.options
    return TableSource(prior.paths, prior.format, prior.csv, extra_columns="ignore", storage_options=options)


@dataclass(frozen=True, eq=False)
class Prior:
    """A public table."""

    counts: PairCounts
    rows: Codes  # its kept rows, in their order

    @property
    def digest(self) -> str:
        """SHA-256 of the rows."""
        digest = hashlib.sha256()
        for column in self.rows:
            digest.update(column.tobytes())
        return digest.hexdigest()


def read_prior(spec: WholeSynthesisSpec) -> Prior | None:
    """The public table that a spec names; None where it names none. Raises SpecError: one of its files is the released
    table's; DataError: it cannot be read, or does not follow the schema.
    """
    prior = spec.model.prior
    if prior is None:
        return None
    source = _source(spec, prior)
    if spec.data.paths and (path := shared_file(source, table_source(spec))):
        raise _is_own(path)
    table = open_table(source, spec.table)
    held = encoded(InProcess(), table, name="public").partitions
    for part in held:
        check(part.report, spec.table)
    rows = [np.concatenate(columns) for columns in zip(*(part.codes for part in held), strict=True)]
    if not len(rows[0]):
        raise EmptyTable("model.prior: the public table has no rows that the policies of the schema keep")
    return Prior(pair_counts(rows, spec.table.cardinalities), rows)


def read_evidence(spec: WholeSynthesisSpec) -> EarlierReleases | None:
    """The earlier releases that a spec names; None where none is there. Raises as `read_earlier`."""
    paths = evidence_paths(spec)
    return read_earlier(paths, spec.table, spec.output.storage.options) if paths else None


def evidence_paths(spec: WholeSynthesisSpec) -> dict[str, tuple[str, ...]]:
    """The paths of earlier releases by relation. A pattern stands for those whose names come before this release's."""
    options, own = spec.output.storage.options, spec.output.path.rstrip("/").rpartition("/")[2]
    named = spec.model.evidence.model_dump().items()
    found = {kind: tuple(p for one in paths for p in releases_at(one, options, before=own)) for kind, paths in named}
    return {kind: paths for kind, paths in found.items() if paths}


def public_digest(spec: WholeSynthesisSpec) -> str | None:
    """SHA-256 of the rows of the public table, or of the names of earlier releases, which binds an attempt; None
    without either. Raises as `read_prior` and `read_evidence`.
    """
    found = read_prior(spec) or read_evidence(spec)
    return None if found is None else found.digest


def keep_public(found: Prior | EarlierReleases | None, digest: str | None) -> None:
    """Refuse another prior, or other evidence, than an attempt is bound to by its digest, None where nothing binds it:
    noise is drawn for one only. Raises ReleaseConflict: it was changed after the attempt began.
    """
    if found is not None and digest not in (None, found.digest):
        setting = "prior: the public table was" if isinstance(found, Prior) else "evidence: the earlier releases were"
        raise ReleaseConflict(
            f"model.{setting} changed after this attempt began: put back what was there, or choose another release name"
        )
