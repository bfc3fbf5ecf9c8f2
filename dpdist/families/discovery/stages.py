"""The stages of a discovery: count and draw the noise, then write what was found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from dpdist.families.base.attempt import Attempt, write_tables
from dpdist.families.base.family import Stage
from dpdist.families.base.passes import Passes
from dpdist.families.base.values import bin_counts, canary_counts, named_values, noisy_counts
from dpdist.families.discovery.plan import DiscoveryPlan
from dpdist.families.discovery.spec import MOST_VALUES, DiscoverySpec
from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim
from dpdist.publish.manifest import Manifest
from dpdist.publish.parts import STATISTICS
from dpdist.spec.described import NAMES_RECORDS, Described
from dpdist.spec.reader import load_public
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
    counts, report = bin_counts(attempt, passes.table, spec.binned)
    attempt.operator["table"] = report.confidential(spec.table)
    whole = np.concatenate(counts)
    noisy = noisy_counts(whole, how=(plan.mechanism, plan.scale), noise=attempt.noise, name="bins")
    for name, cells in zip(spec.binned, np.split(noisy, np.cumsum([*map(len, counts)])[:-1]), strict=True):
        edges = spec.table.attributes[spec.table.names.index(name)].bin_edges.tolist()
        *own, missing = cells.tolist()
        yield Cell(name, MISSING, "", missing)
        yield from (Cell(name, "bin", repr(edge), count) for edge, count in zip(edges, own, strict=True))


def write(attempt: DiscoveryAttempt) -> None:
    """Write the noisy counts as a table of statistics."""
    cells, rows = attempt.result(Found).cells, attempt.spec.output.rows_per_part
    starts = range(0, len(cells), rows)
    write_tables(attempt, (_table(cells[start : start + rows], attempt.plan.deviation) for start in starts))


def _table(cells: Sequence[Cell], deviation: float) -> pa.Table:
    noisy = np.array([cell.noisy for cell in cells], np.float64)
    texts = [
        pa.array([getattr(cell, field) for cell in cells], pa.string()).dictionary_encode()
        for field in ("statistic", "column", "cell")
    ]
    spread = np.full(len(cells), deviation)
    return pa.Table.from_arrays([*texts, pa.array(noisy), pa.array(noisy.clip(0)), pa.array(spread)], schema=STATISTICS)


_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_OTHER = "values that are not named"


def described(manifest: Manifest, table: pa.Table) -> list[Described]:
    """What a discovery says about each column. It costs nothing."""
    spec = cast(DiscoverySpec, load_public(manifest.spec, manifest.table))
    return [_column(name, table, spec, manifest.parameters) for name in spec.table.names]


def _column(name: str, table: pa.Table, spec: DiscoverySpec, parameters: Mapping[str, Any]) -> Described:
    cells = [
        (row["statistic"], row["cell"], row["value"])
        for row in table.select(["statistic", "of", "cell", "value"]).to_pylist()
        if row["of"] == name
    ]
    seen, deviation = float(parameters["seen_from"]), float(parameters["deviation"])
    lacking = next(value for statistic, _, value in cells if statistic == MISSING)
    said = f"about {lacking:,.0f} missing" if lacking >= seen else "few missing or none"
    counts = f"counts are noisy, +-{deviation:.3g}"
    # a few missing values would not be seen: a draft that refused them could cost its release
    few = _OTHER if name in spec.texts else ""
    common: dict[str, Any] = {"name": name, "nullable": True, "nothing": MISSING if lacking >= seen else few}
    if name in spec.texts:
        found = [cell for statistic, cell, _ in cells if statistic == "value"]
        values = dict.fromkeys(sorted(found, key=int) if all(map(_INTEGER.fullmatch, found)) else found, "")
        note = f"values with a noisy count from {parameters['named_from']:,}; {said}; {counts}"
        if not values:
            note = f"no value has a noisy count of {parameters['named_from']:,} or more. {NAMES_RECORDS}, if so"
        return Described(**common, note=note, items=values, texts=True, others=_OTHER)
    kind, integers = spec.columns[name], spec.table.attributes[spec.table.names.index(name)].kind == "integer"
    if not isinstance(kind, str):
        low, high = kind
        note = f"bounds as the spec declares them; {said}, or outside; {counts}"
    else:
        low, high = _bounds(name, [value >= seen for statistic, _, value in cells if statistic == "bin"], spec)
        note = f"bounds are powers of two that hold all but few values; {said}; {counts}"
        strange = next(value for statistic, _, value in cells if statistic == "bin")  # of another type, or huge
        if strange >= seen:
            note = f"about {strange:,.0f} are no such numbers: discover it as text; {said}; {counts}"
    return Described(**common, note=note, low=_text(low), high=_text(high), integers=integers, others="clip")


def _bounds(name: str, seen: list[bool], spec: DiscoverySpec) -> tuple[Any, Any]:
    """The ends of the bins that have records; empty texts where none seems to."""
    attribute = spec.table.attributes[spec.table.names.index(name)]
    places = [place for place, has in enumerate(seen) if has and place]
    if not places or attribute.bounds is None:
        return "", ""
    edges = [*attribute.bin_edges.tolist(), attribute.bounds[1] + (attribute.kind == "integer")]
    low, high = edges[places[0]], edges[places[-1] + 1] - (attribute.kind == "integer")
    return (type(low)(0) if 0 < low * low <= high else low), high  # a range that begins far below its end has a 0


def _text(end: Any) -> str:
    return end if isinstance(end, str) else repr(end)


def claims(plan: DiscoveryPlan) -> tuple[Claim, ...]:
    """What an audit attacks: the counts of the first columns, with one record more in every column, by the functions
    that a release calls.
    """
    name = f"counts of {len(plan.spec.columns)} columns ({plan.mechanism}, values from {plan.named_from:,})"
    return (Claim.of(name, partial(_released, plan), (0, 1), epsilon=plan.epsilon, delta=plan.delta),)


def _released(plan: DiscoveryPlan, record: int, noise: Noise) -> Floats:
    how = plan.mechanism, plan.scale, plan.named_from
    return canary_counts(
        len(plan.spec.texts),
        len(plan.spec.binned),
        record,
        named_as=how,
        counted_as=how[:2],
        noise=noise,
    )
