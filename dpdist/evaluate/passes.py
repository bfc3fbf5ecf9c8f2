"""Passes over a release as Dask graphs: one task per part, then a tree of sums, like the passes over a table.

`dpdist.data.graph.table_pass` does the same for the real table. Building a graph computes nothing.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

from dpdist.cluster.executor import Executor
from dpdist.cluster.tasks import Deferred
from dpdist.data.operators import Operator
from dpdist.data.read import BATCH_ROWS
from dpdist.data.split import Split, split_labels
from dpdist.evaluate.released import ReleaseDecoder
from dpdist.ledger.keys import load_noise
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import part_batches
from dpdist.storage.store import Store


def release_pass(
    executor: Executor,
    store: Store,
    manifest: Manifest,
    decoder: ReleaseDecoder,
    operator: Operator,
    *,
    name: str,
    split: Split | None = None,
    label: int | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Deferred:
    """Graph of one pass over released records: read, check, decode, select, summarise.

    Parameters
    ----------
    executor : Executor
    store, manifest : Store, Manifest
        The release.
    decoder : ReleaseDecoder
    operator : Operator
        What to compute from the codes.
    name : str
        Beginning of the tasks' names.
    split, label : Split, int, optional
        Only the records of one label, as in `dpdist.data.graph.table_pass`; a part is a file.
    batch_rows : int
        Rows decoded at a time. A worker holds the bytes of one part besides.

    Returns
    -------
    Deferred of the summary
        Its task raises `VerificationFailed` where a part is not what the manifest says.
    """
    task = executor.tasks(name)
    shared = task.constant("plan", (store, manifest))
    parts = [
        task(operator.name, _pass_part, shared, i, decoder, operator, split, label, batch_rows)
        for i in range(len(manifest.parts))
    ]
    total = task.tree(
        "sum",
        partial(_combine, operator),
        parts or [task(operator.name, _pass_nothing, decoder, operator)],
        fan_in=operator.fan_in,
    )
    return task("finish", _finish, operator, total)


def run_release_pass(
    store: Store, manifest: Manifest, decoder: ReleaseDecoder, operator: Operator, *, batch_rows: int = BATCH_ROWS
) -> Any:
    """The same pass in this process: what `release_pass` reproduces bit for bit."""
    summaries = [
        _pass_part((store, manifest), i, decoder, operator, None, None, batch_rows) for i in range(len(manifest.parts))
    ]
    return _finish(operator, _combine(operator, summaries or [_pass_nothing(decoder, operator)]))


def _pass_part(
    shared: tuple[Store, Manifest],
    part: int,
    decoder: ReleaseDecoder,
    operator: Operator,
    split: Split | None,
    label: int | None,
    batch_rows: int,
) -> Any:
    store, manifest = shared
    noise = None if split is None else load_noise(split.key)
    summary, start = operator.chunk(decoder.none()), 0
    for batch in part_batches(store, manifest, part, batch_rows=batch_rows):
        codes = decoder.codes(batch)
        if noise is not None and split is not None:
            labels = split_labels(noise, file=part, row_start=start, count=batch.num_rows, shares=split.shares)
            rows = (labels == label).nonzero()[0]
            codes = [column.take(rows) for column in codes]
        start += batch.num_rows
        summary = operator.add(summary, codes)
    return operator.compact(summary) if operator.compact else summary


def _pass_nothing(decoder: ReleaseDecoder, operator: Operator) -> Any:
    summary = operator.chunk(decoder.none())
    return operator.compact(summary) if operator.compact else summary


def _combine(operator: Operator, parts: list[Any]) -> Any:
    return reduce(operator.combine, parts)


def _finish(operator: Operator, summary: Any) -> Any:
    return operator.finish(summary) if operator.finish else summary
