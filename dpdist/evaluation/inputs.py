"""What an evaluation looks at: a release, the table it is compared with, a hold-out, and random samples of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

from dpdist.cluster.executor import Deferred, Executor
from dpdist.data.inputs import Input
from dpdist.data.operators import Look, Split, gather_operator, through
from dpdist.data.records import Records
from dpdist.data.released import ReleasedTable
from dpdist.data.report import RowReport, check
from dpdist.data.source import find_files
from dpdist.data.weighted import WeightedRecords
from dpdist.errors import DataError, EmptyTable, SpecError
from dpdist.evaluation.page.page import PageSection
from dpdist.evaluation.records import View, view_of
from dpdist.evaluation.utility.checks import broken_operator, rules_section
from dpdist.evaluation.utility.marginals import Marginals, chosen_triples, marginals_operator
from dpdist.families.base.attempt import Progress
from dpdist.families.base.bounding import bounded
from dpdist.families.base.graph import table_pass
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Codes
from dpdist.publish.manifest import Manifest
from dpdist.spec.schema import Schema
from dpdist.spec.unit import UnitSpec, WeightSpec

LARGEST_SAMPLE = 2_000_000  # records of each table that are held at once, as codes; of a larger table a random sample
SAMPLE_BYTES = 64 << 20  # memory of the codes of such a sample


@dataclass(frozen=True)
class EvaluatedTables:
    """The private tables of an evaluation, not yet opened."""

    against: Input
    holdout: Input | None = None
    training: Input | None = None  # all that the release was made from, if it is known

    def check_holdout(self) -> None:
        """Refuse a hold-out that is the table, or shares a file with it or with what the release was made from."""
        holdout, against = self.holdout, self.against
        if holdout is None:
            return
        what = "a hold-out holds records that the release was not made from"
        if holdout is against or (holdout.source is None and holdout.fingerprint == against.fingerprint):
            raise SpecError(f"the hold-out is the table itself; {what}")
        own, known = _paths(against), set()
        with suppress(DataError):  # the files of the spec may be elsewhere by now
            known = _paths(self.training)
        for path in sorted(_paths(holdout) & (own | known)):
            where = "--against as well" if path in own else "the table that --spec names"
            raise SpecError(f"--holdout: {path} is in {where}; {what}")


@dataclass(frozen=True, eq=False, repr=False)
class Inputs:
    """A release and the tables it is compared with; confidential."""

    released: ReleasedTable
    against: Input  # where the real records are
    real: Records
    holdout: Records | None
    real_schema: Schema  # of the real records
    look: Look  # from codes of real records to codes of the schema of the release
    executor: Executor
    seed: int  # of every sample and of every model
    progress: Progress
    unit: UnitSpec | None = None  # that the figures of the real records protect
    used: Records | None = None  # the real records whose marginals are counted, where these are not all once
    weight: WeightSpec | None = None  # the weights of real records
    # what the policies met in ``real`` and ``holdout``, once they are read
    reports: dict[str, RowReport] = field(default_factory=dict)

    def bounded(self, key: KeyRef) -> Inputs:
        """The same, whose marginals are those of the real records that are used of each unit; samples are of all."""
        if self.unit is None:
            raise ValueError("the figures protect single records")
        return replace(self, used=bounded(self.executor, self.real, at_most=self.unit.at_most, key=key))

    @property
    def manifest(self) -> Manifest:
        """Of the release."""
        return self.released.manifest

    @property
    def schema(self) -> Schema:
        """Of the released records."""
        return self.released.schema

    @cached_property
    def view(self) -> View:
        """How both tables are looked at."""
        return view_of(self.schema)

    def marginals(self) -> dict[str, Marginals]:
        """Count ``released``, ``real``, ``first half`` and ``second half``, two random parts of the real records.
        Raises DataError: the table does not fit its schema, or its files changed meanwhile.
        """
        chosen = chosen_triples(self.view.sizes, seed=self.seed)
        operator = through(self.view.codes, marginals_operator(self.view.sizes, chosen))
        seen, half = through(self.look, operator), Fraction(1, 2)
        halves = Split(sample_key(self.seed, "halves"), (half, half))
        graphs = [
            table_pass(self.executor, self.released, operator, name="released-marginals"),
            *(
                table_pass(
                    self.executor, self.used or self.real, seen, name="real-marginals", split=halves, label=label
                )
                for label in (0, 1)
            ),
        ]
        (released, _), (first, report), (second, _) = self._compute("counting marginals", graphs)
        self._checked("real", report)
        if self.against.fingerprint != self.real.fingerprint:
            raise DataError("the real table changed while it was read: leave its files alone and run it again")
        return {"released": released, "real": first + second, "first half": first, "second half": second}

    def rules(self) -> PageSection:
        """How many records break the rules of the schema; the real ones were counted with the marginals."""
        rules, report = self.schema.forbidden, self.reports["real"]
        graph = table_pass(self.executor, self.released, broken_operator(rules), name="released-rules")
        ((broken, of),) = self._compute("counting broken rules", [graph])
        return rules_section(rules, broken, report.broken, rows=(of.kept, report.rows))

    @property
    def sample_rows(self) -> int:
        """About how many records each sample has: all that fit, at most `LARGEST_SAMPLE`."""
        row = sum(attribute.dtype.itemsize for attribute in self.schema.attributes)
        return min(LARGEST_SAMPLE, SAMPLE_BYTES // row)

    def samples(self) -> dict[str, Codes]:
        """Random samples, or all records: ``released``, ``real`` and, with a hold-out, ``holdout``."""
        tables: dict[str, Records] = {"released": self.released, "real": self.real}
        if self.holdout is not None:
            tables["holdout"] = self.holdout
        found = self._compute("taking samples", [self._sample(name, table) for name, table in tables.items()])
        samples = {}
        for name, (codes, report) in zip(tables, found, strict=True):
            if name != "released":
                self._checked(name, report)
                require_records(report)
            samples[name] = codes
        return samples

    def _sample(self, name: str, table: Records) -> Deferred:
        """Graph of a random sample of a table; by weights, too, a record is in it once."""
        if self.weight is not None and name != "released":
            table = WeightedRecords(table, self.weight, thinned=sample_key(self.seed, f"weights/{name}"))
        rows, total = self.sample_rows, table.rows
        operator = gather_operator() if name == "released" else through(self.look, gather_operator())
        sample = partial(table_pass, self.executor, table, operator, name=f"{name}-sample")
        if total <= rows:
            return sample()
        share = Fraction(rows, total)
        return sample(split=Split(sample_key(self.seed, f"sample/{name}"), (share, 1 - share)), label=0)

    def _compute(self, stage: str, graphs: Sequence[Deferred]) -> list[Any]:
        self.progress(stage, 0, 1)
        results = self.executor.compute(graphs, progress=lambda done, total: self.progress(stage, done, total))
        self.progress(stage, 1, 1)
        return results

    def _checked(self, name: str, report: RowReport) -> None:
        check(report, self.real_schema, rules=False)  # they are counted
        self.reports[name] = report


def open_inputs(
    released: ReleasedTable,
    tables: EvaluatedTables,
    *,
    executor: Executor,
    seed: int,
    progress: Progress,
    real: tuple[Schema, Look] | None = None,
    unit: UnitSpec | None = None,
    charge: Callable[[str], None] | None = None,
) -> Inputs:
    """Open what an evaluation of released records looks at; reads the manifest, file metadata and, of CSV, the lines.

    `real`: schema and codes of the real table, where they differ from the release's; `unit`: what figures protect.
    `charge` is called with the fingerprint of the real table before a line of it is read.
    Raises DataError: a table cannot be read by the release's schema; SpecError: the hold-out is the table itself;
    EmptyTable: the release holds no record.
    """
    if not released.rows:
        raise EmptyTable("the release holds no record: there is nothing to evaluate")
    schema, look = real or (released.schema, released.decoder.merged)
    against, holdout, weight = tables.against, tables.holdout, weight_of(released.manifest)
    beside = unit or weight
    opened = [against.open(schema, beside=None if beside is None else beside.by)]
    if holdout is not None:
        opened.append(holdout.open(schema, beside=None if weight is None else weight.by))
    tables.check_holdout()
    if charge is not None:
        charge(against.fingerprint)
    progress("finding rows", 0, 1)
    located = [table.on(executor).sides[0] for table in opened]
    progress("finding rows", 1, 1)
    return Inputs(
        released=released,
        against=against,
        real=located[0],
        holdout=located[1] if holdout is not None else None,
        real_schema=schema,
        look=look,
        executor=executor,
        seed=seed,
        progress=progress,
        unit=unit,
        used=None if weight is None else WeightedRecords(located[0], weight),
        weight=weight,
    )


def require_records(report: RowReport) -> None:
    """Refuse a table without records. Raises EmptyTable."""
    if not report.kept:
        raise EmptyTable("the table or the hold-out has no rows that the policies of the schema keep")


def sample_key(seed: int, purpose: str) -> KeyRef:
    """A key that is a function of the seed: samples are repeatable, and nothing here is released."""
    return KeyRef.fixed(hashlib.sha256(f"evaluation/{seed}/{purpose}".encode()).hexdigest())


def weight_of(manifest: Manifest) -> WeightSpec | None:
    """The weights of the records of a release; None where each counted once."""
    weighed = manifest.spec.get("weight")
    return None if weighed is None else WeightSpec.model_validate(weighed)


def _paths(table: Input | None) -> set[str]:
    """The files of a table; not those of the parents' table, which may be one for the real table and the hold-out."""
    if table is None or table.source is None:
        return set()
    source = table.source
    above = () if source.parent is None else source.parent.paths
    return {file.path for file in find_files(replace(source, paths=tuple(p for p in source.paths if p not in above)))}
