"""One pass over a table as tasks: an operator on each partition, then a tree of sums.

An `Operator` is a record of pure functions. A pass in this process (`run_pass`) defines the result. Tasks compute
the same bits for any number of partitions, any batch size and any executor, because the split
addresses records by file and row, and the combination is exact, associative and applied in the order of the rows.

There are two strategies. `table_pass` reads the files each time and holds one batch per task: use it when the table
exceeds the workers' memory or is read once. `encoded_partitions` reads once and keeps codes in worker memory (about one
byte per value); `reduce_partitions` then makes each later pass at memory speed. On Dask, building computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Executor, InProcess
from dpdist.cluster.tasks import Deferred, Tasks
from dpdist.data.arrow import HeldRecords
from dpdist.data.operators import Operator
from dpdist.data.read import EncodedBatch
from dpdist.data.records import Records
from dpdist.data.report import RowReport
from dpdist.data.sizes import BATCH_ROWS
from dpdist.data.split import Split, split_labels
from dpdist.data.weighted import WeightedRecords
from dpdist.ledger.keys import load_noise
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema


def locate(executor: Executor, table: Records, *, name: str = "locate") -> Deferred:
    """Graph of a `Table` whose row numbers are known (CSV: a scan of the files; Parquet: the table as it is).

    The task raises `UnreadableFile` where files cannot be cut.
    """
    task = executor.tasks(name)
    shared = task.constant("plan", table)
    if table.is_located:
        return shared
    counts = [task("scan", type(table).counted, shared, i) for i in range(len(table.partitions))]
    return task("table", type(table).located, shared, counts)


def located_on(executor: Executor, tables: Sequence[Records]) -> list[Records]:
    """Tables with their row numbers, found together by an executor; see `locate`."""
    wanted = [table for table in tables if not table.is_located]
    found = iter(executor.compute([locate(executor, table) for table in wanted]) if wanted else ())
    return [table if table.is_located else next(found) for table in tables]


def table_pass(
    executor: Executor,
    table: Records,
    operator: Operator,
    *,
    name: str,
    split: Split | None = None,
    label: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Deferred:
    """Graph of one pass over the files: read, encode, split, select, summarise.

    `table` is located (see `locate`); `together` computes several operators at once; the names of tasks begin with
    `name`. `label` is the part of the split to use, None for all records. Returns a Deferred of (summary, RowReport):
    the report covers all rows, whatever the label. Pass it to `dpdist.data.report.check` before the summary is used:
    values under the policy ``refuse`` are counted as if they were the first of the domain.
    """
    _check(table, split, label)
    task = executor.tasks(name)
    parts = [
        task(operator.name, pass_partition, records, i, operator, split, label, batch_rows)
        for records, i in by_partition(task, table)
    ]
    return _tree(task, operator, parts)


def run_pass(table: Records, operator: Operator, **how: Any) -> Result:
    """One pass in this process; parameters and result as for `table_pass`."""
    result: Result = table_pass(InProcess(), table, operator, name="pass", **how)
    return result


def located_table(table: Records) -> Records:
    """The table with its row numbers, found in this process; see `locate`."""
    found: Records = locate(InProcess(), table)
    return found


def encoded_partitions(
    executor: Executor,
    table: Records,
    *,
    name: str,
    split: Split | None = None,
    label: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> list[Deferred]:
    """Graphs of the `EncodedPartition` of each partition, to be persisted in worker memory; parameters as for
    `table_pass`. Without a `label` all records are kept, with their labels.
    """
    _check(table, split, label)
    task = executor.tasks(name)
    return [
        task("encode", encode_partition, records, i, split, label, batch_rows)
        for records, i in by_partition(task, table)
    ]


def partition_codes(
    executor: Executor, parts: Sequence[Deferred], *, name: str, label: int | None = None
) -> list[Deferred]:
    """Graphs of the `Codes` of one part of the split in each encoded partition."""
    task = executor.tasks(name)
    return [task("select", select_label, part, label) for part in parts]


def reduce_partitions(
    executor: Executor,
    parts: Sequence[Deferred],
    operator: Operator,
    *,
    name: str,
    label: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Deferred:
    """Graph of one pass over encoded partitions; the same bits as `table_pass`."""
    task = executor.tasks(name)
    return _tree(
        task, operator, [task(operator.name, pass_encoded, part, operator, label, batch_rows) for part in parts]
    )


def by_partition(task: Tasks, table: Records) -> list[tuple[Deferred, int]]:
    """For each partition the records that tasks find it in, and its number there."""
    if isinstance(table, HeldRecords):
        return [(part, 0) for part in table.partitions]
    if isinstance(table, WeightedRecords) and isinstance(table.records, HeldRecords):
        weighed = partial(WeightedRecords, weight=table.weight, once=table.once, thinned=table.thinned)
        return [(task("weigh", weighed, part), 0) for part in table.partitions]
    shared = task.constant("plan", table)
    return [(shared, i) for i in range(len(table.partitions))]


def _tree(task: Tasks, operator: Operator, parts: list[Deferred]) -> Deferred:
    total = task.tree("sum", partial(combine, operator), parts, fan_in=operator.fan_in)
    return task("finish", finish, operator, total)


def _check(table: Records, split: Split | None, label: int | None) -> None:
    if not table.is_located:
        raise ValueError("the rows of a CSV table are located first: see locate")
    if label is not None and (split is None or not 0 <= label < len(split.shares)):
        raise ValueError("a label is the number of a part of the split")


Result = tuple[Any, RowReport]


@dataclass(frozen=True, eq=False, repr=False)
class EncodedPartition:
    """The encoded records of a partition, in the order of the rows; rows that a policy drops are gone."""

    codes: Codes  # list of ndarray of unsigned int, shape (rows,)
    # ndarray of uint8, shape (rows,), or None: label of each record; None without a split, or when only one label was
    # kept
    labels: NDArray[np.uint8] | None
    report: RowReport  # what the policies met in the partition, all labels together

    def __sizeof__(self) -> int:
        return sum(column.nbytes for column in self.codes) + (0 if self.labels is None else self.labels.nbytes)


def pass_partition(
    table: Records, partition: int, operator: Operator, split: Split | None, label: int | None, batch_rows: int
) -> Result:
    """Read a partition and summarise the records of one label."""
    summary, report = operator.chunk(no_codes(table.schema)), RowReport.empty(table.schema)
    for batch, labels in _labelled_batches(table, partition, split, batch_rows):
        codes, _ = _select(batch.codes, labels, batch.keep, label, batch.copies)
        summary = operator.add(summary, codes)
        report += batch.report
    return (operator.compact(summary) if operator.compact else summary), report


def pass_encoded(part: EncodedPartition, operator: Operator, label: int | None, batch_rows: int) -> Result:
    """Summarise the records of one label of an encoded partition."""
    summary = operator.chunk([column[:0] for column in part.codes])
    for start in range(0, len(part.codes[0]), batch_rows):
        rows = slice(start, start + batch_rows)
        labels = None if part.labels is None else part.labels[rows]
        codes, _ = _select([column[rows] for column in part.codes], labels, None, label)
        summary = operator.add(summary, codes)
    return (operator.compact(summary) if operator.compact else summary), part.report


def encode_partition(
    table: Records, partition: int, split: Split | None, label: int | None, batch_rows: int
) -> EncodedPartition:
    """Read a partition and keep the records of one label, or all with their labels."""
    report = RowReport.empty(table.schema)
    pieces = [no_codes(table.schema)]
    labels_of_pieces = [np.empty(0, np.uint8)]
    for batch, labels in _labelled_batches(table, partition, split, batch_rows):
        codes, chosen = _select(batch.codes, labels, batch.keep, label, batch.copies)
        pieces.append(codes)
        if chosen is not None:
            labels_of_pieces.append(chosen)
        report += batch.report
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    labelled = split is not None and label is None
    return EncodedPartition(columns, np.concatenate(labels_of_pieces) if labelled else None, report)


def select_label(part: EncodedPartition, label: int | None) -> Codes:
    """The codes of one label of an encoded partition."""
    return _select(part.codes, part.labels, None, label)[0]


def combine(operator: Operator, parts: list[Result]) -> Result:
    """Combine the results of consecutive partitions, in order."""
    return reduce(lambda a, b: (operator.combine(a[0], b[0]), a[1] + b[1]), parts)


def finish(operator: Operator, result: Result) -> Result:
    """Apply the operator's last step."""
    summary, report = result
    return (operator.finish(summary) if operator.finish else summary), report


def _labelled_batches(
    table: Records, partition: int, split: Split | None, batch_rows: int
) -> Iterator[tuple[EncodedBatch, NDArray[np.uint8] | None]]:
    noise = None if split is None else load_noise(split.key)
    for batch in table.batches(partition, batch_rows=batch_rows):
        if noise is None or split is None:
            yield batch, None
            continue
        rows = len(batch.codes[0])
        yield (batch, split_labels(noise, file=batch.file, row_start=batch.first_row, count=rows, shares=split.shares))


def _select(
    codes: Codes,
    labels: NDArray[np.uint8] | None,
    keep: NDArray[np.bool_] | None,
    label: int | None,
    copies: NDArray[np.int64] | None = None,
) -> tuple[Codes, NDArray[np.uint8] | None]:
    """The kept records of one label (of all for None), each as often as it counts, and their labels."""
    chosen = keep
    if label is not None:
        if labels is None:
            raise ValueError("these records have no labels: encode them with a split and without a label")
        chosen = labels == label if keep is None else keep & (labels == label)
    if copies is not None:
        rows = np.repeat(np.arange(len(copies)), copies if chosen is None else copies * chosen)
    elif chosen is None:
        return codes, labels
    else:
        rows = np.flatnonzero(chosen)
    return [column.take(rows) for column in codes], None if labels is None else labels.take(rows)


def no_codes(schema: Schema) -> Codes:
    """The codes of no records."""
    return [np.empty(0, attribute.dtype) for attribute in schema.attributes]
