"""Records that count by their weights: a row of weight w is read as w equal records.

So whatever counts records counts weights, and a record changes a count by at most its weight: the charge is that of a
unit of `WeightSpec.at_most` records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpdist.cluster.executor import Deferred, Tasks
from dpdist.data.records import BATCH_ROWS, Batches, EncodedBatch, Partitions, Records
from dpdist.data.report import RowReport
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Counts
from dpdist.spec.schema import Schema
from dpdist.spec.unit import WeightSpec


def copies_of(weights: pa.Array, at_most: int) -> tuple[Counts, NDArray[np.bool_], NDArray[np.bool_]]:
    """How often each record counts, by weights as `dpdist.data.keyed_ids.ids_of` gives them.

    Returns int64[rows]: weights rounded to whole numbers, halves up, at most `at_most`, 0 where none exists; and
    bool[rows] twice: where there is no weight of 0 or more, and where it is more than `at_most`.
    """
    if not pa.types.is_large_string(weights.type):
        found = weights.to_numpy(zero_copy_only=False).astype(np.float64)
    else:
        found = np.array([_number(text) for text in weights.to_pylist()], np.float64)
    without = ~(found >= 0)
    above = found > at_most
    copies = np.floor(np.clip(np.where(without, 0.0, found), 0, at_most) + 0.5).astype(np.int64)
    return copies, without, above


def _number(text: str | None) -> float:
    """The number that a text is, else NaN."""
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


@dataclass(frozen=True, eq=False, repr=False)
class WeightedRecords(Partitions):
    """Records in partitions, each as often as its weight says. Equal records of a row share its number."""

    records: Records  # opened with the column of the weights
    weight: WeightSpec
    once: bool = False  # each record once, whatever its weight, for what is not about weights
    # key of a sample in which each record is once or not at all, with a chance in proportion to its weight
    thinned: KeyRef | None = None

    @property
    def schema(self) -> Schema:
        """The attributes of the records."""
        return self.records.schema

    @property
    def rows(self) -> int:
        """Number of records if all had the largest weight; confidential."""
        alone = self.once or self.thinned is not None
        return self.records.rows if alone else self.records.rows * self.weight.at_most

    @property
    def fingerprint(self) -> str:
        """Identity of the input."""
        return self.records.fingerprint

    def parts(self, task: Tasks) -> list[tuple[Deferred, int]]:
        """Those of the records, weighted where they are read."""
        parts = self.records.parts(task)
        weigh = partial(WeightedBatches, weight=self.weight, once=self.once, thinned=self.thinned)
        weighted = {which: task("weigh", weigh, part) for which, part in {id(part): part for part, _ in parts}.items()}
        return [(weighted[id(part)], number) for part, number in parts]


@dataclass(frozen=True, eq=False, repr=False)
class WeightedBatches:
    """What a task reads of `WeightedRecords`."""

    table: Batches
    weight: WeightSpec
    once: bool
    thinned: KeyRef | None

    @property
    def schema(self) -> Schema:
        """The attributes of the records."""
        return self.table.schema

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The rows of a partition with how often each counts: about `batch_rows` records, at least one row."""
        for batch in self.table.batches(partition, batch_rows=batch_rows):
            if batch.beside is None:
                raise ValueError("the table was opened without the column of the weights")
            copies, without, above = copies_of(batch.beside, self.weight.at_most)
            if batch.keep is not None:
                copies *= batch.keep
            used = int(np.count_nonzero(copies))
            report = replace(batch.report, kept=used, uncounted=batch.report.kept - used)
            report = replace(report, weightless=int(without.sum()), heavy=int(above.sum()))
            if self.once:
                copies = np.ones_like(copies) if batch.keep is None else batch.keep.astype(np.int64)
            if self.thinned is not None:
                copies = self._drawn(self.thinned, copies, batch)
            ends, start = np.cumsum(copies), 0
            while start < len(copies):
                before = int(ends[start - 1]) if start else 0
                stop = max(int(np.searchsorted(ends, before + batch_rows, side="right")), start + 1)
                columns = [column[start:stop] for column in batch.codes]
                first = batch.first_row + start
                yield EncodedBatch(batch.file, first, columns, None, report, copies=copies[start:stop])
                start, report = stop, RowReport.empty(self.schema)

    def _drawn(self, key: KeyRef, copies: Counts, batch: EncodedBatch) -> Counts:
        """1 for the records of the sample, else 0: the heaviest ones are in it."""
        words = load_noise(key).words(f"weights/{batch.file}", len(copies), start=batch.first_row)
        chance = (copies << 32) // self.weight.at_most
        return (words >> np.uint64(32) < chance.astype(np.uint64)).astype(np.int64)
