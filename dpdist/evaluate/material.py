"""What an evaluation looks at: a release, the table it is compared with, a hold-out, and random samples of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.data.cluster import Cluster
from dpdist.data.count import Codes
from dpdist.data.graph import locate, table_pass
from dpdist.data.operators import gather_operator, pair_counts_operator, together
from dpdist.data.report import RowReport, check
from dpdist.data.source import TableSource
from dpdist.data.split import Split
from dpdist.data.table import Table, open_table
from dpdist.errors import EmptyTable, SpecError
from dpdist.evaluate.graph import release_pass
from dpdist.evaluate.marginals import Marginals, chosen_triples, marginals_of, triples_operator
from dpdist.evaluate.released import ReleaseDecoder
from dpdist.evaluate.view import View, through, view_of
from dpdist.privacy.keys import KeyRef
from dpdist.publish.manifest import Manifest
from dpdist.publish.store import Store
from dpdist.schema import Schema

LARGEST_SAMPLE = 2_000_000
"""Records of each table that are held at once, as codes; of a larger table a random sample."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class Material:
    """A release and the tables it is compared with; confidential.

    Attributes
    ----------
    store, manifest : Store, Manifest
        The release.
    schema : Schema
        Of its records, and of the real ones.
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
    table: Table
    holdout: Table | None
    cluster: Cluster
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
        """
        sizes = self.view.sizes
        chosen = chosen_triples(sizes, seed=self.seed) if triples is None else triples
        operator = together([pair_counts_operator(sizes), triples_operator(sizes, chosen)])
        halves = Split(self.key("halves"), (Fraction(1, 2), Fraction(1, 2)))
        seen = through(partial(_look_real, self.decoder, self.view), operator)
        graphs = [
            release_pass(
                self.store, self.manifest, self.decoder, through(self.view.codes, operator), name="released-marginals"
            ),
            *(table_pass(self.table, seen, name="real-marginals", split=halves, label=label) for label in (0, 1)),
        ]
        released, (first, report), (second, _) = self._compute("counting marginals", graphs)
        self._checked("real", report)
        of = [marginals_of(pairs, cells, chosen) for pairs, cells in (released, first, second)]
        return {"released": of[0], "real": of[1] + of[2], "first half": of[1], "second half": of[2]}

    def samples(self, rows: int = LARGEST_SAMPLE) -> dict[str, Codes]:
        """Random samples of about `rows` records, or all of them, as codes of the schema in the order of the rows.

        Returns
        -------
        dict of str to Codes
            ``released``, ``real`` and, with a hold-out, ``holdout``.
        """
        tables = {"real": self.table} | ({"holdout": self.holdout} if self.holdout is not None else {})
        graphs = [
            release_pass(
                self.store,
                self.manifest,
                self.decoder,
                gather_operator(),
                name="released-sample",
                **self._sampled("released", rows, self.manifest.records),
            )
        ]
        seen = through(self.decoder.merged, gather_operator())
        for name, table in tables.items():
            sampled = self._sampled(name, rows, table.rows or 0)
            graphs.append(table_pass(table, seen, name=f"{name}-sample", **sampled))
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
        check(report, self.schema)
        self.reports[name] = report


def open_material(
    store: Store,
    manifest: Manifest,
    *,
    against: TableSource,
    holdout: TableSource | None,
    cluster: Cluster,
    seed: int,
    progress: Progress,
) -> Material:
    """Open what an evaluation of released records looks at; reads the manifest, file metadata and, of CSV, the lines.

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
    tables = [open_table(against, schema)]
    if holdout is not None:
        tables.append(open_table(holdout, schema))
        shared = {found.found.path for found in tables[0].files} & {found.found.path for found in tables[1].files}
        if shared:
            raise SpecError(
                f"{min(shared)} is in both --against and --holdout: a hold-out holds records the release was not "
                "made from"
            )
    progress("finding rows", 0, 1)
    located = cluster.compute([locate(table) for table in tables])
    progress("finding rows", 1, 1)
    return Material(
        store=store,
        manifest=manifest,
        schema=schema,
        table=located[0],
        holdout=located[1] if holdout is not None else None,
        cluster=cluster,
        seed=seed,
        progress=progress,
        decoder=ReleaseDecoder.of(schema, manifest.format),
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


def file_bytes(tables: Mapping[str, Table | None]) -> int:
    """Bytes of the files of some tables."""
    return sum(file.found.size for table in tables.values() if table is not None for file in table.files)


def _look_real(decoder: ReleaseDecoder, view: View, codes: Codes) -> Codes:
    return view.codes(decoder.merged(codes))


def default_output(release: str) -> Path:
    """The folder of an evaluation unless another is given."""
    name = release.rstrip("/").rsplit("/", 1)[-1] or "release"
    return Path(f"evaluation-{name}")
