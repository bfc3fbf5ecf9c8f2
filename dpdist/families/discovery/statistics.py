"""Counts of values in tasks: each value of a column is in one shard, whose task adds noise and names what is frequent.

A shard is a run of buckets, and a bucket has its own stream of noise, of which the values take draws in the order of
their texts. So neither partitions nor shards change what is named. Rare values never leave the tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpdist.data.arrow import ArrowRecords
from dpdist.data.table import Table
from dpdist.data.texts import added, bucket_of, count_values
from dpdist.families.base.calibration import Mechanism, add_noise
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.noise import Noise

BUCKETS = 1024
"""Parts into which the values of a column are divided by a public hash."""

Named = list[tuple[int, str, int]]
"""Column, value and noisy count."""


def split_values(table: Table | ArrowRecords, partition: int, names: Sequence[str], shards: int) -> list[object]:
    """The counts of a partition for each shard, a `VALUES` table a column; then the numbers of missing values."""
    counts, missing = count_values(table.texts(partition, names), len(names))
    shares = [bucket_of(counted["value"], BUCKETS) * shards // BUCKETS for counted in counts]
    pieces: list[object] = [
        [counted.filter(pa.array(share == shard)) for counted, share in zip(counts, shares, strict=True)]
        for shard in range(shards)
    ]
    return [*pieces, missing]


def name_shard(pieces: list[list[pa.Table]], how: tuple[Mechanism, float, int], key: KeyRef) -> Named:
    """The values of a shard with their noisy counts, where these reach the threshold."""
    noise, found = load_noise(key), []
    for column, tables in enumerate(zip(*pieces, strict=True)):
        found += named(added(tables), column, how, noise)
    return found


def named(counts: pa.Table, column: int, how: tuple[Mechanism, float, int], noise: Noise) -> Named:
    """The values of a `VALUES` table with their noisy counts, where these reach the threshold.

    Parameters
    ----------
    counts : pyarrow.Table
        All values of some buckets, each once.
    column : int
        Number of the column among those of texts.
    how : (mechanism, scale, threshold)
    noise : Noise
    """
    mechanism, scale, threshold = how
    counts = counts.sort_by("value")
    buckets = bucket_of(counts["value"], BUCKETS)
    order = np.argsort(buckets, kind="stable")
    true, ends = counts["count"].to_numpy()[order], np.cumsum(np.bincount(buckets, minlength=BUCKETS))
    found: Named = []
    for bucket in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
        own = slice(ends[bucket - 1] if bucket else 0, ends[bucket])
        noisy = noisy_counts(true[own], how=(mechanism, scale), noise=noise, name=f"{column}/{bucket}")
        kept = np.flatnonzero(noisy >= threshold)
        values = counts["value"].take(pa.array(order[own][kept])).to_pylist()
        found += [(column, value, count) for value, count in zip(values, noisy[kept].tolist(), strict=True)]
    return found


def noisy_counts(
    counts: NDArray[np.int64], *, how: tuple[Mechanism, float], noise: Noise, name: str
) -> NDArray[np.int64]:
    """Counts with noise from a stream of their own."""
    return add_noise(counts, mechanism=how[0], scale=how[1], noise=noise, name=f"discovery/{name}")
