"""The stages of a discovery: count and draw the noise, then write what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpdist.data.operators import table_counts_operator
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.family import Stage
from dpdist.families.base.graph import table_pass
from dpdist.families.base.passes import Passes
from dpdist.families.base.values import named_values, noisy_counts
from dpdist.families.discovery.plan import DiscoveryPlan
from dpdist.families.discovery.spec import MOST_VALUES, DiscoverySpec
from dpdist.publish.parts import STATISTICS, part_name, write_part
from dpdist.spec.undeclared import MISSING
from dpdist.storage.stored import Stored

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
    how = (plan.mechanism, plan.scale, plan.named_from)
    found, missing = named_values(attempt, passes.table, spec.texts, how)
    noisy = noisy_counts(missing, how=(plan.mechanism, plan.scale), noise=attempt.noise, name=MISSING)
    for column, name in enumerate(spec.texts):
        yield Cell(name, MISSING, "", int(noisy[column]))
        own = sorted((-count, value) for place, value, count in found if place == column)
        yield from (Cell(name, "value", value, -count) for count, value in own[:MOST_VALUES])


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
