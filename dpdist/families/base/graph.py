"""One pass over a table as tasks: an operator on each partition, then a tree of sums.

An `Operator` is a record of pure functions. A pass in this process (`run_pass`) defines the result. Tasks compute
the same bits for any number of partitions, any batch size and any executor, because the split
addresses records by file and row, and the combination is exact, associative and applied in the order of the rows.

There are two strategies. A pass over a table reads the files each time and holds one batch per task: use it when the
table exceeds the workers' memory or is read once. `encoded` reads once and keeps codes in worker memory (about one byte
per value); each later pass over these runs at memory speed. On Dask, building computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Deferred, Executor, InProcess
from dpdist.data.operators import Operator, Split, split_labels
from dpdist.data.records import BATCH_ROWS, Batches, EncodedBatch, HeldRecords, Records, RecordsInMemory
from dpdist.data.report import RowReport
from dpdist.ledger.keys import load_noise
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

Result = tuple[Any, RowReport]


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
    """Graph of one pass over a table: read, encode, split, select, summarise.

    `together` computes several operators at once; the names of tasks begin with `name`. `label` is the part of the
    split to use, None for all records. Returns a Deferred of (summary, RowReport): the report covers all rows, whatever
    the label. Pass it to `dpdist.data.report.check` before the summary is used: values under the policy ``refuse`` are
    counted as if they were the first of the domain.
    """
    _check(split, label)
    task = executor.tasks(name)
    parts = [
        task(operator.name, pass_partition, part, i, operator, split, label, batch_rows)
        for part, i in table.parts(task)
    ]
    total = task.tree("sum", partial(_combine, operator), parts, fan_in=operator.fan_in)
    return task("finish", _finish, operator, total)


def run_pass(table: Records, operator: Operator, **how: Any) -> Result:
    """One pass in this process; parameters and result as for `table_pass`."""
    result: Result = table_pass(InProcess(), table, operator, name="pass", **how)
    return result


def encoded(
    executor: Executor,
    table: Records,
    *,
    name: str,
    split: Split | None = None,
    label: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> HeldRecords:
    """The table as graphs of `RecordsInMemory`, to be persisted in worker memory; parameters as for `table_pass`.
    Without a `label` all records are kept, with their labels.
    """
    _check(split, label)
    task = executor.tasks(name)
    parts = [task("encode", encode_partition, part, i, split, label, batch_rows) for part, i in table.parts(task)]
    return HeldRecords(table.schema, parts, table.rows, table.fingerprint)


def partition_codes(executor: Executor, table: HeldRecords, *, name: str, label: int | None = None) -> list[Deferred]:
    """Graphs of the `Codes` of one part of the split in each partition of an `encoded` table."""
    task = executor.tasks(name)
    return [task("select", _codes_of, part, label) for part in table.partitions]


def _check(split: Split | None, label: int | None) -> None:
    if label is not None and (split is None or not 0 <= label < len(split.shares)):
        raise ValueError("a label is the number of a part of the split")


def pass_partition(
    table: Batches, partition: int, operator: Operator, split: Split | None, label: int | None, batch_rows: int
) -> Result:
    """Read a partition and summarise the records of one label."""
    summary, report = operator.chunk(no_codes(table.schema)), RowReport.empty(table.schema)
    for batch, labels in _labelled_batches(table, partition, split, batch_rows):
        codes, _ = _select(batch.codes, labels, batch.keep, label, batch.copies)
        summary = operator.add(summary, codes)
        report += batch.report
    return operator.compact(summary), report


def encode_partition(
    table: Batches, partition: int, split: Split | None, label: int | None, batch_rows: int
) -> RecordsInMemory:
    """Read a partition and keep the records of one label, or all with their labels, in the order of the rows."""
    report = RowReport.empty(table.schema)
    pieces, labels_of_pieces = [no_codes(table.schema)], [np.empty(0, np.uint8)]
    for batch, labels in _labelled_batches(table, partition, split, batch_rows):
        codes, chosen = _select(batch.codes, labels, batch.keep, label, batch.copies)
        pieces.append(codes)
        if chosen is not None:
            labels_of_pieces.append(chosen)
        report += batch.report
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    labelled = np.concatenate(labels_of_pieces) if split is not None and label is None else None
    return RecordsInMemory(table.schema, columns, [(0, len(columns[0]))], report, labelled, file=-1)


def _codes_of(part: RecordsInMemory, label: int | None) -> Codes:
    """The codes of one label of an encoded partition."""
    return _select(part.codes, part.labels, None, label)[0]


def _combine(operator: Operator, parts: list[Result]) -> Result:
    """Combine the results of consecutive partitions, in order."""
    return reduce(lambda a, b: (operator.combine(a[0], b[0]), a[1] + b[1]), parts)


def _finish(operator: Operator, result: Result) -> Result:
    """Apply the operator's last step."""
    return operator.finish(result[0]), result[1]


def _labelled_batches(
    table: Batches, partition: int, split: Split | None, batch_rows: int
) -> Iterator[tuple[EncodedBatch, NDArray[np.uint8] | None]]:
    """Batches with the labels that they have, or those that the split gives to the addresses of their rows."""
    noise = None if split is None else load_noise(split.key)
    for batch in table.batches(partition, batch_rows=batch_rows):
        labels = batch.labels
        if labels is None and noise is not None and split is not None:
            if batch.file < 0:
                raise ValueError("these records have no labels: encode them with a split and without a label")
            place, rows = {"file": batch.file, "row_start": batch.first_row}, len(batch.codes[0])
            labels = split_labels(noise, **place, count=rows, shares=split.shares)
        yield batch, labels


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
