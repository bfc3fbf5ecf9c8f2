"""The passes of an attempt over its table: the policies are checked at the first, and no summary is seen before."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from dpdist.cluster.executor import Deferred
from dpdist.data.operators import Operator, Split
from dpdist.data.records import HeldRecords, Records
from dpdist.data.report import RowReport, check, check_weights
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.graph import encoded, partition_codes, table_pass

_MEMORY_FOR_CODES = 0.25  # share of the workers' memory that codes may take


class Passes:
    """Passes over the table of an attempt, or over one part of a random split of it.

    Where several records may be about one unit, they pass over a table with a bounded number of each. The ledger is
    told before the first of them: from then on the charge stays, whatever the records are. Where there are several
    passes (`repeated`), the codes stay in worker memory if they fit.
    """

    def __init__(self, attempt: Attempt[Any, Any], *, split: Split | None = None, repeated: bool = False) -> None:
        if split is not None and attempt.spec.unit is not None:
            raise ValueError("a split sends records, not units: the family protects single records only")
        self._attempt = attempt
        self._split = split
        self._repeated = repeated
        self.report: RowReport | None = None

    @classmethod
    def shared(cls, attempt: Attempt[Any, Any], *, split: Split | None = None) -> Passes:
        """The passes that several stages of an attempt share."""
        try:
            return attempt.result(cls)
        except LookupError:  # no stage has needed one: what an earlier one measured was stored
            passes = cls(attempt, split=split, repeated=True)
            attempt.keep(passes)
            return passes

    @property
    def table(self) -> Records:
        """See `Attempt.records`."""
        return self._attempt.records

    @cached_property
    def _encoded(self) -> HeldRecords | None:
        """The encoded records in worker memory; None where they do not fit or are read once."""
        executor, schema = self._attempt.executor, self.table.schema
        row = sum(attribute.dtype.itemsize for attribute in schema.attributes) + 1
        if not self._repeated or self.table.rows * row > _MEMORY_FOR_CODES * executor.memory:
            return None
        with self._attempt.stage("reading") as progress:
            read = encoded(executor, self.table, name="read", split=self._split)
            return replace(read, partitions=executor.persist(read.partitions, progress=progress))

    def run(self, operator: Operator, *, stage: str, label: int | None = None) -> Any:
        """The operator's summary of the table, or of one part of the split. Raises DataError: the table breaks its
        declared policies (the first pass tells).
        """
        graph = self._graph(operator, label, name=stage)
        with self._attempt.stage(stage) as progress:
            summary, report = self._attempt.executor.compute([graph()], progress=progress)[0]
        self._check(report)
        return summary

    def held(self, operator: Operator, *, stage: str, label: int | None = None) -> Deferred:
        """As `run`, but the summary stays where it was computed; only the policies are checked here."""
        graph, executor = self._graph(operator, label, name=stage), self._attempt.executor
        with self._attempt.stage(stage) as progress:
            kept = executor.persist([graph()], progress=progress)[0]
        self._check(executor.compute([kept[1]])[0])
        return kept[0]

    def codes(self, *, label: int | None = None) -> list[Deferred]:
        """The codes of each partition, or of one part of the split in it."""
        executor, read = self._attempt.executor, self._encoded
        if read is None:
            read, label = encoded(executor, self.table, name="codes", split=self._split, label=label), None
        return partition_codes(executor, read, name="codes", label=label)

    def _graph(self, operator: Operator, label: int | None, *, name: str) -> Any:
        """What makes the graph of a pass; in process, making it computes it."""
        table, name = self._encoded or self.table, name.replace(" ", "-")
        return partial(table_pass, self._attempt.executor, table, operator, split=self._split, label=label, name=name)

    def _check(self, report: RowReport) -> None:
        if self.report is None:
            self._attempt.operator["table"] = report.confidential(self.table.schema)
            check(report, self.table.schema)
            if self._attempt.spec.weight is not None:
                check_weights(report, self._attempt.spec.weight)
            self.report = report
