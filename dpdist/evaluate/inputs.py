"""What an evaluation looks at: a release, the table it is compared with, a hold-out, and random samples of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from dpdist.cluster.executor import Executor
from dpdist.data.graph import locate, table_pass
from dpdist.data.operators import gather_operator, pair_counts_operator, together
from dpdist.data.report import RowReport, check
from dpdist.data.source import TableSource, find_files, fingerprint
from dpdist.data.split import Split
from dpdist.data.table import Table, open_table
from dpdist.errors import DataError, EmptyTable, SpecError
from dpdist.evaluate.binning import Look, View, through, view_of
from dpdist.evaluate.passes import release_pass
from dpdist.evaluate.released import ReleaseDecoder
from dpdist.evaluate.utility.marginals import Marginals, chosen_triples, marginals_of, triples_operator
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Codes
from dpdist.publish.manifest import Manifest
from dpdist.schema.schema import Schema
from dpdist.storage.store import Store

LARGEST_SAMPLE = 2_000_000
"""Records of each table that are held at once, as codes; of a larger table a random sample."""

SAMPLE_BYTES = 64 << 20
"""Memory of the codes of such a sample."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class Material:
    """A release and the tables it is compared with; confidential.

    Attributes
    ----------
    store, manifest : Store, Manifest
        The release.
    schema : Schema
        Of its records.
    real_schema, look : Schema, callable
        Of the real records, and what turns their codes into codes of `schema`.
    table, holdout : Table, Table or None
        The real table and the hold-out, located.
    cluster : Cluster
    seed : int
        Of every sample and of every model.
    progress : callable
    """

    store: Store
    manifest: Manifest
    schema: Schema
    real_schema: Schema
    look: Look
    table: Table
    holdout: Table | None
    cluster: Executor
    seed: int
    progress: Progress
    decoder: ReleaseDecoder
    view: View
    reports: dict[str, RowReport] = field(default_factory=dict)

    def key(self, purpose: str) -> KeyRef:
        """A key that is a function of the seed: samples are repeatable, and nothing here is released."""
        return KeyRef.fixed(hashlib.sha256(f"evaluation/{self.seed}/{purpose}".encode()).hexdigest())

    def marginals(self, triples: tuple[tuple[int, ...], ...] | None = None) -> dict[str, Marginals]:
        """Counts of the released records, of the real ones, and of the two halves of these by a fair coin.

        Returns
        -------
        dict of str to Marginals
            ``released``, ``real``, ``first half``, ``second half``.

        Raises
        ------
        DataError
            The table does not fit its schema, or its files changed meanwhile.
        """
        sizes = self.view.sizes
        chosen = chosen_triples(sizes, seed=self.seed) if triples is None else triples
        operator = together([pair_counts_operator(sizes), triples_operator(sizes, chosen)])
        halves = Split(self.key("halves"), (Fraction(1, 2), Fraction(1, 2)))
        seen = through(partial(_look_twice, self.look, self.view.codes), operator)
        graphs = [
            release_pass(
                self.cluster,
                self.store,
                self.manifest,
                self.decoder,
                through(self.view.codes, operator),
                name="released-marginals",
            ),
            *(
                table_pass(self.cluster, self.table, seen, name="real-marginals", split=halves, label=label)
                for label in (0, 1)
            ),
        ]
        released, (first, report), (second, _) = self._compute("counting marginals", graphs)
        self._checked("real", report)
        if fingerprint(self.table.source) != self.table.fingerprint:
            raise DataError("the real table changed while it was read: leave its files alone and run it again")
        of = [marginals_of(pairs, cells, chosen) for pairs, cells in (released, first, second)]
        return {"released": of[0], "real": of[1] + of[2], "first half": of[1], "second half": of[2]}

    @property
    def sample_rows(self) -> int:
        """Records of each sample, about: as many as fit, at most `LARGEST_SAMPLE`."""
        row = sum(8 if attribute.is_continuous else attribute.dtype.itemsize for attribute in self.schema.attributes)
        return min(LARGEST_SAMPLE, SAMPLE_BYTES // row)

    def samples(self) -> dict[str, Codes]:
        """Random samples of the records, or all of them, as codes of the schema in the order of the rows.

        Returns
        -------
        dict of str to Codes
            ``released``, ``real`` and, with a hold-out, ``holdout``.
        """
        rows = self.sample_rows
        tables = {"real": self.table} | ({"holdout": self.holdout} if self.holdout is not None else {})
        graphs = [
            release_pass(
                self.cluster,
                self.store,
                self.manifest,
                self.decoder,
                gather_operator(),
                name="released-sample",
                **self._sampled("released", rows, self.manifest.records),
            )
        ]
        seen = through(self.look, gather_operator())
        for name, table in tables.items():
            sampled = self._sampled(name, rows, table.rows or 0)
            graphs.append(table_pass(self.cluster, table, seen, name=f"{name}-sample", **sampled))
        released, *others = self._compute("taking samples", graphs)
        samples = {"released": released}
        for name, (codes, report) in zip(tables, others, strict=True):
            self._checked(name, report)
            samples[name] = codes
        return samples

    def _sampled(self, name: str, rows: int, total: int) -> dict[str, Any]:
        if total <= rows:
            return {}
        share = Fraction(rows, total)
        return {"split": Split(self.key(f"sample/{name}"), (share, 1 - share)), "label": 0}

    def _compute(self, stage: str, graphs: list[Any]) -> list[Any]:
        self.progress(stage, 0, 1)
        results = self.cluster.compute(graphs, progress=lambda done, total: self.progress(stage, done, total))
        self.progress(stage, 1, 1)
        return results

    def _checked(self, name: str, report: RowReport) -> None:
        check(report, self.real_schema)
        self.reports[name] = report


def open_material(
    store: Store,
    manifest: Manifest,
    *,
    against: TableSource,
    holdout: TableSource | None,
    cluster: Executor,
    seed: int,
    progress: Progress,
    real: tuple[Schema, Look] | None = None,
    training: TableSource | None = None,
) -> Material:
    """Open what an evaluation of released records looks at; reads the manifest, file metadata and, of CSV, the lines.

    Parameters
    ----------
    store, manifest, cluster, seed, progress
        As in `Material`.
    against, holdout : TableSource, TableSource or None
    real : (Schema, callable), optional
        The schema of the real table and what turns its codes into codes of the release's, where they differ.
    training : TableSource, optional
        All that the release was made from, if it is known: no file of the hold-out may be among it.

    Raises
    ------
    DataError
        The table or the hold-out cannot be read by the release's schema; see `dpdist.data.table.open_table`.
    SpecError
        The hold-out is the table itself.
    EmptyTable
        The release holds no record.
    """
    if not manifest.records:
        raise EmptyTable("the release holds no record: there is nothing to evaluate")
    schema = manifest.table
    decoder = ReleaseDecoder.of(schema, manifest.format)
    real_schema, look = real or (schema, decoder.merged)
    tables = [open_table(against, real_schema)]
    if holdout is not None:
        tables.append(open_table(holdout, real_schema))
        _keep_apart(tables[1], {file.found.path for file in tables[0].files}, training)
    progress("finding rows", 0, 1)
    located = cluster.compute([locate(cluster, table) for table in tables])
    progress("finding rows", 1, 1)
    return Material(
        store=store,
        manifest=manifest,
        schema=schema,
        real_schema=real_schema,
        look=look,
        table=located[0],
        holdout=located[1] if holdout is not None else None,
        cluster=cluster,
        seed=seed,
        progress=progress,
        decoder=decoder,
        view=view_of(schema),
    )


def size(codes: Codes) -> int:
    """Number of records."""
    return len(codes[0])


def take(codes: Codes, rows: np.ndarray) -> Codes:
    """Some records, by their places."""
    return [column[rows] for column in codes]


def shuffled(codes: Codes, count: int, seed: int) -> Codes:
    """At most `count` records, at random and in random order."""
    rows = np.random.default_rng(seed).permutation(size(codes))[:count]
    return take(codes, rows)


def _keep_apart(holdout: Table, against: set[str], training: TableSource | None) -> None:
    """Refuse a hold-out that shares a file with the table, or with what the release was made from."""
    known = set(against)
    if training is not None:
        with suppress(DataError):  # the files of the spec may be elsewhere by now
            known |= {file.path for file in find_files(training)}
    for file in holdout.files:
        if file.found.path in known:
            where = "--against as well" if file.found.path in against else "the table that --spec names"
            raise SpecError(
                f"--holdout: {file.found.path} is in {where}; a hold-out holds records that the release was not made "
                "from"
            )


def _look_twice(first: Look, second: Look, codes: Codes) -> Codes:
    return second(first(codes))
