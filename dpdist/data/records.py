"""What stages read: records in partitions, from files (`dpdist.data.table`), from memory, or held by tasks.

An input is *opened* before the charge: its columns are checked, and no record is read. The tasks of an executor then
find its rows (`Opened.on`), which counts the lines of CSV files. From then on each record has an address, the number
of its file and of its row, which does not depend on the partitions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Deferred, Executor, TaskProgress, Tasks
from dpdist.data.report import RowReport
from dpdist.spec.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from dpdist.privacy.arrays import Codes

BATCH_ROWS = 1 << 17
"""Rows of a batch; of CSV, the bytes of about as many rows."""

MOST_TEXT_BYTES = 200
"""Longest text (UTF-8) of a record that a discovery looks at."""


@dataclass(frozen=True, eq=False, repr=False)
class EncodedBatch:
    """Consecutive rows of a file, encoded."""

    file: int  # file, first_row: address of the first row
    first_row: int
    codes: Codes  # unsigned int (float64 if continuous), shape (rows,), in schema order
    keep: NDArray[np.bool_] | None  # rows that no policy drops; None for all
    report: RowReport  # counts of defects
    beside: pa.Array | None = None  # ids of the units, or weights, if any: they stay in the task that reads them
    copies: NDArray[np.int64] | None = None  # how often each record counts, 0 for those not kept; None for once
    # part of a split that each record is in; records without an address (file -1) are in no other split
    labels: NDArray[np.uint8] | None = None


class Located(Protocol):
    """The rows of one table, or of two that are joined by the ids of units."""

    @property
    def schema(self) -> Schema:
        """The attributes of the records."""

    @property
    def rows(self) -> int:
        """Number of rows before any policy; confidential."""

    @property
    def fingerprint(self) -> str:
        """Identity of the input: attempts are bound to it."""

    @property
    def sides(self) -> tuple[Records, ...]:
        """The table itself; or the records and their parents, each with its own attributes."""


class Records(Located, Protocol):
    """The records of one table, in partitions."""

    def parts(self, task: Tasks) -> list[tuple[Deferred, int]]:
        """For each partition, in the order of the rows: what has its `Batches` in a task, and its number there."""


class Opened(Protocol):
    """An input whose columns were checked; no record of it was read."""

    @property
    def cells(self) -> int:
        """About how many values there are; it decides where the work is done, never what is released."""

    def on(self, executor: Executor, *, progress: TaskProgress | None = None) -> Located:
        """The rows where the tasks of an executor find them. Raises DataError: lines of a file cannot be counted."""


class Batches(Protocol):
    """What a task reads."""

    @property
    def schema(self) -> Schema:
        """The attributes of the records."""

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The encoded rows of a partition, at most about `batch_rows` at a time."""


class _Numbered(Protocol):
    @property
    def partitions(self) -> Sequence[object]: ...


class Partitions:
    """What records have whose partitions are numbered: they are `Records`, and `Opened` as they are."""

    def parts(self: _Numbered, task: Tasks) -> list[tuple[Deferred, int]]:
        """See `Records.parts`: one object has all partitions."""
        shared = task.constant("plan", self)
        return [(shared, i) for i in range(len(self.partitions))]

    @property
    def sides(self: Records) -> tuple[Records, ...]:
        """The records themselves."""
        return (self,)

    @property
    def cells(self: Records) -> int:
        """Number of values."""
        return self.rows * len(self.schema.attributes)

    def on(self: Records, executor: Executor, *, progress: TaskProgress | None = None) -> Records:
        """The records themselves."""
        return self


def even_parts(rows: int, number: int) -> list[tuple[int, int]]:
    """First row and the row after the last of parts of about the same size."""
    return list(pairwise(rows * i // number for i in range(number + 1)))


def slices(sizes: Iterable[int], rows: int) -> list[list[tuple[int, int, int]]]:
    """Cut a sequence of arrays of these sizes into runs of `rows` rows, the last one shorter.

    Returns for each run the arrays that it takes rows from: their number, the first of these rows, the row after the
    last.
    """
    ends = list(accumulate(sizes, initial=0))
    runs = []
    for start in range(0, ends[-1], rows):
        stop = min(start + rows, ends[-1])
        places = range(bisect_right(ends, start) - 1, bisect_left(ends, stop))
        cuts = [(i, max(start - ends[i], 0), min(stop, ends[i + 1]) - ends[i]) for i in places]
        runs.append([cut for cut in cuts if cut[1] < cut[2]])
    return runs


@dataclass(frozen=True, eq=False, repr=False)
class RecordsInMemory(Partitions):
    """Records that are encoded already, as rows of one file; no policy drops one."""

    schema: Schema
    codes: Codes  # a column for each attribute
    partitions: Sequence[tuple[int, int]]  # first row and the row after the last, of each partition
    report: RowReport | None = None  # what the policies met, which the first batch has; None for nothing
    labels: NDArray[np.uint8] | None = None  # see `EncodedBatch`
    file: int = 0
    fingerprint: str = ""  # of no files

    @classmethod
    def of(
        cls, schema: Schema, codes: Codes, *, partitions: int = 1, report: RowReport | None = None
    ) -> RecordsInMemory:
        """Records cut into partitions of about the same size."""
        return cls(schema, codes, even_parts(len(codes[0]), partitions), report)

    def __sizeof__(self) -> int:
        return sum(column.nbytes for column in self.codes) + (0 if self.labels is None else self.labels.nbytes)

    @property
    def rows(self) -> int:
        """Number of rows; confidential."""
        return len(self.codes[0])

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The rows of a partition, `batch_rows` at a time."""
        first, stop = self.partitions[partition]
        for start in range(first, max(stop, first + 1), batch_rows):
            end = min(start + batch_rows, stop)
            columns, report = [column[start:end] for column in self.codes], self.report
            if report is None or start:
                report = RowReport.empty(self.schema, end - start if report is None else 0)
            labels = None if self.labels is None else self.labels[start:end]
            yield EncodedBatch(self.file, start, columns, None, report, labels=labels)


@dataclass(frozen=True, eq=False, repr=False)
class HeldRecords(Partitions):
    """Records that tasks hold, a partition each."""

    schema: Schema
    partitions: Sequence[Deferred]  # of `Batches` with one partition
    rows: int  # confidential
    fingerprint: str

    def parts(self, task: Tasks) -> list[tuple[Deferred, int]]:
        """The partitions, read where they are held."""
        return [(part, 0) for part in self.partitions]
