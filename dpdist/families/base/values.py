"""Frequent values of columns of texts: counted, with noise and a threshold.

Each value of a column is in one shard, whose task adds noise and names what is frequent. A shard is a run of buckets,
and a bucket has its own stream of noise; values take draws from it in the order of their texts. So neither
partitions nor shards change what is named. Rare values never leave the tasks.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpdist.data.arrow import ArrowRecords
from dpdist.data.operators import table_counts_operator
from dpdist.data.records import Records
from dpdist.data.report import RowReport
from dpdist.data.table import Table
from dpdist.data.texts import VALUES, added, bucket_of, count_values, weigh_values
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.bounding import sizes_for
from dpdist.families.base.calibration import Mechanism, add_noise, deviation
from dpdist.families.base.graph import table_pass
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Counts, Floats, weight_of
from dpdist.privacy.noise import Noise

BUCKETS = 1024
"""Parts into which the values of a column are divided by a public hash."""

Named = list[tuple[int, str, int]]
"""Column, value and noisy count."""

How = tuple[Mechanism, float, int]
"""The noise of each count, and the threshold from which on a value is named."""

_MOST_COLUMNS = 8  # of an audit
_FREQUENT = 20  # deviations above the threshold


def named_values(
    attempt: Attempt[Any, Any],
    table: Records,
    names: Sequence[str],
    how: How,
    *,
    known: Sequence[Sequence[str]] | None = None,
) -> tuple[Named, Any]:
    """The values of some columns that are named, and the true numbers of missing values. With values that are `known`
    of each column the others are named, by sums of weights (`dpdist.data.texts.weigh_values`), with noise of their own.
    """
    executor, shards = attempt.executor, sizes_for(table.rows)[0]
    with attempt.stage("counting values") as progress:
        task = executor.tasks("values")
        parts = [task("count", split_values, records, i, names, shards, known) for records, i in table.parts(task)]
        sent = [[task("send", operator.itemgetter(shard), part) for part in parts] for shard in range(shards)]
        stream = "" if known is None else "again/"
        tasks = [task("name", name_shard, pieces, how, attempt.key, stream) for pieces in sent]
        missing = task.tree("sum", sum, [task("missing", operator.itemgetter(shards), part) for part in parts])
        *found, total = executor.compute([*tasks, missing], progress=progress)
    return [one for shard in found for one in shard], total


def bin_counts(attempt: Attempt[Any, Any], table: Records, names: Sequence[str]) -> tuple[list[Counts], RowReport]:
    """The one-way tables of some attributes, and what the policies met, which refuses no table: that would be an
    answer.
    """
    sizes, places = table.schema.cardinalities, [table.schema.names.index(name) for name in names]
    counting = table_counts_operator(sizes, [(place,) for place in places])
    with attempt.stage("counting bins") as progress:
        graph = table_pass(attempt.executor, table, counting, name="counting-bins")
        counts, report = attempt.executor.compute([graph], progress=progress)[0]
    return np.split(counts, np.cumsum([sizes[place] for place in places])[:-1]), report


def split_values(
    table: Table | ArrowRecords,
    partition: int,
    names: Sequence[str],
    shards: int,
    known: Sequence[Sequence[str]] | None = None,
) -> list[object]:
    """The counts of a partition for each shard, a `VALUES` table a column; then the numbers of missing values, or 0
    where values are known.
    """
    batches, missing = table.texts(partition, names), np.zeros(len(names), np.int64)
    if known is None:
        counts, missing = count_values(batches, len(names))
    else:
        counts = weigh_values(batches, known)
    shares = [bucket_of(counted["value"], BUCKETS) * shards // BUCKETS for counted in counts]
    pieces: list[object] = [
        [counted.filter(pa.array(share == shard)) for counted, share in zip(counts, shares, strict=True)]
        for shard in range(shards)
    ]
    return [*pieces, missing]


def name_shard(pieces: list[list[pa.Table]], how: How, key: KeyRef, stream: str = "") -> Named:
    """The values of a shard with their noisy counts, where these reach the threshold."""
    noise, found = load_noise(key), []
    for column, tables in enumerate(zip(*pieces, strict=True)):
        found += named(added(tables), column, how, noise, stream)
    return found


def named(counts: pa.Table, column: int, how: How, noise: Noise, stream: str = "") -> Named:
    """The values of a `VALUES` table of whole buckets with their noisy counts, where these reach the threshold; names
    of noise begin with `stream`.
    """
    mechanism, scale, threshold = how
    counts = counts.sort_by("value")
    buckets = bucket_of(counts["value"], BUCKETS)
    order = np.argsort(buckets, kind="stable")
    true, ends = counts["count"].to_numpy()[order], np.cumsum(np.bincount(buckets, minlength=BUCKETS))
    found: Named = []
    for bucket in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
        own = slice(ends[bucket - 1] if bucket else 0, ends[bucket])
        noisy = noisy_counts(true[own], how=(mechanism, scale), noise=noise, name=f"{stream}{column}/{bucket}")
        kept = np.flatnonzero(noisy >= threshold)
        values = counts["value"].take(pa.array(order[own][kept])).to_pylist()
        found += [(column, value, count) for value, count in zip(values, noisy[kept].tolist(), strict=True)]
    return found


def noisy_counts(
    counts: NDArray[np.int64], *, how: tuple[Mechanism, float], noise: Noise, name: str
) -> NDArray[np.int64]:
    """Counts with noise from a stream of their own."""
    return add_noise(counts, mechanism=how[0], scale=how[1], noise=noise, name=f"discovery/{name}")


def canary_counts(
    texts: int,
    others: int,
    record: int,
    *,
    named_as: How,
    counted_as: tuple[Mechanism, float],
    noise: Noise,
    again: How | None = None,
) -> Floats:
    """What an audit reads: noisy counts of columns of a table with this many canaries, which are 0 or 1.

    In columns of texts a canary has a value that is frequent without it, with a count so many deviations
    above the threshold, and one of no other record in the last of them; in `others` a bin of its own. With
    `again` these values are counted by weight as well, as if none were known.
    """
    texts, others, far = min(texts, _MOST_COLUMNS), min(others, _MOST_COLUMNS), deviation(*counted_as)
    frequent = named_as[2] + round(_FREQUENT * far)
    counts = [0.0] * texts
    for column in range(texts):
        own = {"rare": record} if column and column == texts - 1 else {"frequent": frequent + record}
        values = [value for value, count in own.items() if count]
        table = pa.table([values, [own[value] for value in values]], schema=VALUES)
        counts[column] = float(sum(count for _, _, count in named(table, column, named_as, noise)))
    if again is not None and texts:
        frequent = again[2] + round(_FREQUENT * again[1]) + record * weight_of(texts)
        tables = [pa.table([["frequent"], [frequent]], schema=VALUES)] * texts
        sums = [sum(count for _, _, count in named(own, i, again, noise, "again/")) for i, own in enumerate(tables)]
        counts += [total * far / again[1] for total in sums]  # with noise as large as that of the others
    bins = noisy_counts(np.full(others, record, np.int64), how=counted_as, noise=noise, name="bins")
    return np.array([*counts, *bins], np.float64)
