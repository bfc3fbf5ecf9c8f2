"""What each task of a pass does: read a partition, select records, summarise, combine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.operators import Operator, Split, split_labels
from dpdist.data.records import Batches, EncodedBatch
from dpdist.data.report import RowReport
from dpdist.ledger.keys import load_noise
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

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
    table: Batches, partition: int, operator: Operator, split: Split | None, label: int | None, batch_rows: int
) -> Result:
    """Read a partition and summarise the records of one label."""
    summary, report = operator.chunk(no_codes(table.schema)), RowReport.empty(table.schema)
    for batch, labels in _labelled_batches(table, partition, split, batch_rows):
        codes, _ = _select(batch.codes, labels, batch.keep, label, batch.copies)
        summary = operator.add(summary, codes)
        report += batch.report
    return operator.compact(summary), report


def pass_encoded(part: EncodedPartition, operator: Operator, label: int | None, batch_rows: int) -> Result:
    """Summarise the records of one label of an encoded partition."""
    summary = operator.chunk([column[:0] for column in part.codes])
    for start in range(0, len(part.codes[0]), batch_rows):
        rows = slice(start, start + batch_rows)
        labels = None if part.labels is None else part.labels[rows]
        codes, _ = _select([column[rows] for column in part.codes], labels, None, label)
        summary = operator.add(summary, codes)
    return operator.compact(summary), part.report


def encode_partition(
    table: Batches, partition: int, split: Split | None, label: int | None, batch_rows: int
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
    return operator.finish(summary), report


def _labelled_batches(
    table: Batches, partition: int, split: Split | None, batch_rows: int
) -> Iterator[tuple[EncodedBatch, NDArray[np.uint8] | None]]:
    noise = None if split is None else load_noise(split.key)
    for batch in table.batches(partition, batch_rows=batch_rows):
        if noise is None or split is None:
            yield batch, None
            continue
        rows = len(batch.codes[0])
        yield (
            batch,
            split_labels(noise, file=batch.file, row_start=batch.first_row, count=rows, shares=split.shares),
        )


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
