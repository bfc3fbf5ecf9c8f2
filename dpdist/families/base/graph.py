"""One pass over a table as tasks: an operator on each partition, then a tree of sums.

An `Operator` is a record of pure functions. A pass in this process (`run_pass`) defines the result. Tasks compute
the same bits for any number of partitions, any batch size and any executor, because the split
addresses records by file and row, and the combination is exact, associative and applied in the order of the rows.

There are two strategies. `table_pass` reads the files each time and holds one batch per task: use it when the table
exceeds the workers' memory or is read once. `encoded_partitions` reads once and keeps codes in worker memory (about one
byte per value); `reduce_partitions` then makes each later pass at memory speed. On Dask, building computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dpdist.cluster.executor import Executor, InProcess
from dpdist.cluster.tasks import Deferred, Tasks
from dpdist.data.operators import Operator, Split
from dpdist.data.records import BATCH_ROWS, Records
from dpdist.families.base.partitions import (
    Result,
    combine,
    encode_partition,
    finish,
    pass_encoded,
    pass_partition,
    select_label,
)


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

    Parameters
    ----------
    executor : Executor
    table : Records
    operator : Operator
        What to compute; see `together` for several.
    name : str
        Stage name, the beginning of every task's name.
    split : Split, optional
        The split of the records.
    label : int, optional
        The part of the split to use; None for all records.
    batch_rows : int
        Rows read at a time.

    Returns
    -------
    Deferred of (summary, RowReport)
        The report covers all rows, whatever the label. Pass it to `dpdist.data.report.check` before the summary is
        used: values under the policy ``refuse`` are counted as if they were the first of the domain.
    """
    _check(split, label)
    task = executor.tasks(name)
    parts = [
        task(operator.name, pass_partition, records, i, operator, split, label, batch_rows)
        for records, i in table.parts(task)
    ]
    return _tree(task, operator, parts)


def run_pass(
    table: Records,
    operator: Operator,
    *,
    split: Split | None = None,
    label: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Result:
    """One pass in this process; parameters and result as for `table_pass`."""
    result: Result = table_pass(
        InProcess(), table, operator, name="pass", split=split, label=label, batch_rows=batch_rows
    )
    return result


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
    _check(split, label)
    task = executor.tasks(name)
    return [task("encode", encode_partition, records, i, split, label, batch_rows) for records, i in table.parts(task)]


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
        task,
        operator,
        [task(operator.name, pass_encoded, part, operator, label, batch_rows) for part in parts],
    )


def _tree(task: Tasks, operator: Operator, parts: list[Deferred]) -> Deferred:
    total = task.tree("sum", partial(combine, operator), parts, fan_in=operator.fan_in)
    return task("finish", finish, operator, total)


def _check(split: Split | None, label: int | None) -> None:
    if label is not None and (split is None or not 0 <= label < len(split.shares)):
        raise ValueError("a label is the number of a part of the split")
