"""The stages of a discovery: count and draw the noise, then write what was found.

Each value of a column is in one shard, whose task adds noise and names what is frequent. A shard is a run of buckets,
and a bucket has its own stream of noise; values take draws from it in the order of their texts. So neither
partitions nor shards change what is named. Rare values never leave the tasks.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpdist.data.arrow import ArrowRecords
from dpdist.data.operators import table_counts_operator
from dpdist.data.table import Table
from dpdist.data.texts import added, bucket_of, count_values
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.bounding import sizes_for
from dpdist.families.base.calibration import Mechanism, add_noise
from dpdist.families.base.family import Stage
from dpdist.families.base.graph import table_pass
from dpdist.families.base.passes import Passes
from dpdist.families.discovery.plan import DiscoveryPlan
from dpdist.families.discovery.spec import MISSING, MOST_VALUES, DiscoverySpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.noise import Noise
from dpdist.publish.parts import STATISTICS, part_name, write_part
from dpdist.storage.stored import Stored

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
    """The values of a `VALUES` table of whole buckets with their noisy counts, where these reach the threshold."""
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


DiscoveryAttempt = Attempt[DiscoverySpec, DiscoveryPlan]


@dataclass(frozen=True)
class Cell:
    """A noisy count of a column."""

    column: str
    statistic: str  # value, missing or bin
    cell: str
    noisy: int


@dataclass(frozen=True)
class Found(Stored):
    """What an attempt found: drawn once, stored, read back."""

    FILE: ClassVar[str] = "found.json"

    cells: tuple[Cell, ...]


def stages(plan: DiscoveryPlan) -> Sequence[Stage[DiscoverySpec, DiscoveryPlan]]:
    """The stages of a discovery, in order."""
    return (Stage("discover", discover), Stage("write", write))


def discover(attempt: DiscoveryAttempt) -> Found:
    """Count values and bins, draw the noise, and keep the values whose noisy counts reach the threshold."""

    def draw() -> Found:
        passes = Passes(attempt)
        cells = [*_values(attempt, passes), *_bins(attempt, passes)]
        order = {name: place for place, name in enumerate(attempt.spec.table.names)}
        return Found(tuple(sorted(cells, key=lambda cell: order[cell.column])))

    return attempt.stored(Found, draw)


def _values(attempt: DiscoveryAttempt, passes: Passes) -> Iterator[Cell]:
    """The numbers of missing values of columns of texts, and their frequent values, the most frequent first."""
    spec, plan = attempt.spec, attempt.plan
    if not spec.texts:
        return
    found, missing = _counted(attempt, passes)
    noisy = noisy_counts(missing, how=(plan.mechanism, plan.scale), noise=attempt.noise, name=MISSING)
    for column, name in enumerate(spec.texts):
        yield Cell(name, MISSING, "", int(noisy[column]))
        own = sorted((-count, value) for place, value, count in found if place == column)
        yield from (Cell(name, "value", value, -count) for count, value in own[:MOST_VALUES])


def _counted(attempt: DiscoveryAttempt, passes: Passes) -> tuple[Named, Any]:
    """The values that are named, and the true numbers of missing values."""
    plan, table, executor = attempt.plan, passes.table, attempt.executor
    names, shards = attempt.spec.texts, sizes_for(table.rows)[0]
    with attempt.stage("counting values") as progress:
        task = executor.tasks("values")
        parts = [task("count", split_values, records, i, names, shards) for records, i in table.parts(task)]
        how = (plan.mechanism, plan.scale, plan.named_from)
        tasks = [
            task(
                "name", name_shard, [task("send", operator.itemgetter(shard), part) for part in parts], how, attempt.key
            )
            for shard in range(shards)
        ]
        missing = task.tree("sum", sum, [task("missing", operator.itemgetter(shards), part) for part in parts])
        *named, total = executor.compute([*tasks, missing], progress=progress)
    return [one for shard in named for one in shard], total


def _bins(attempt: DiscoveryAttempt, passes: Passes) -> Iterator[Cell]:
    """Noisy counts of bins and missing values of the other columns; values of another type are in the first bin."""
    spec, plan = attempt.spec, attempt.plan
    if not spec.binned:
        return
    places = [spec.table.names.index(name) for name in spec.binned]
    sizes = [attribute.cardinality for attribute in spec.table.attributes]
    counting = table_counts_operator(sizes, [(place,) for place in places])
    with attempt.stage("counting bins") as progress:  # what the policies met refuses no table: that would be an answer
        graph = table_pass(attempt.executor, passes.table, counting, name="counting-bins")
        counts, report = attempt.executor.compute([graph], progress=progress)[0]
    attempt.operator["table"] = report.confidential(spec.table)
    noisy = noisy_counts(counts, how=(plan.mechanism, plan.scale), noise=attempt.noise, name="bins")
    start = 0
    for name, place in zip(spec.binned, places, strict=True):
        edges = spec.table.attributes[place].bin_edges.tolist()
        own = noisy[start : start + sizes[place]].tolist()
        yield Cell(name, MISSING, "", own[-1])
        yield from (Cell(name, "bin", repr(edge), count) for edge, count in zip(edges, own[:-1], strict=True))
        start += sizes[place]


def write(attempt: DiscoveryAttempt) -> None:
    """Write the noisy counts as a table of statistics."""
    cells, rows = attempt.result(Found).cells, attempt.spec.output.rows_per_part
    with attempt.stage("writing"):
        attempt.parts = tuple(
            write_part(
                attempt.output,
                part_name(attempt.id, index),
                _table(cells[start : start + rows], attempt.plan.deviation),
            )
            for index, start in enumerate(range(0, len(cells), rows))
        )


def _table(cells: Sequence[Cell], deviation: float) -> pa.Table:
    noisy = np.array([cell.noisy for cell in cells], np.float64)
    texts = [
        pa.array([getattr(cell, field) for cell in cells], pa.string()).dictionary_encode()
        for field in ("statistic", "column", "cell")
    ]
    spread = np.full(len(cells), deviation)
    return pa.Table.from_arrays([*texts, pa.array(noisy), pa.array(noisy.clip(0)), pa.array(spread)], schema=STATISTICS)
