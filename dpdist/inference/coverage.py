"""How often intervals of a release cover what the real table says: of cells, and of a regression. Confidential.

`against_law` measures it on made-up tables, where nothing is private: a chain of attributes, each depending on the
one before, with random conditional distributions that a seed gives. So the law is known, and intervals for the
population (with the sampling variance added) can be compared with it as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from math import prod
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from dpdist.accuracy.intervals import SMALL, CellErrors
from dpdist.accuracy.measured import Accuracy, linear
from dpdist.data.count import pair_counts, table_counts
from dpdist.errors import SpecError
from dpdist.families.base.accuracy import STAGE, ReleaseAccuracy
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.inference.published import Published
from dpdist.inference.replicates import make_replicates
from dpdist.model.account import Measurements
from dpdist.model.learn import Learned
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.publish.part_format import PartFormat
from dpdist.spec.schema import Schema

TRIPLES = 50
TERMS = 10
_NORMAL_95 = 1.96
_NAMES = {1: "one-way cells", 2: "two-way cells", 3: "three-way cells"}


@dataclass(frozen=True)
class Covered:
    """How often intervals covered."""

    of: str
    number: int  # of estimates
    coverage: float  # share of the nominal 95 % intervals that held the truth
    naive: float  # the same of intervals that take the records for a simple random sample
    width: float  # median length, in lengths of the intervals of a simple random sample as large as the table


class Rehearsed(Published):
    """A release that was rehearsed and not written: what intervals need of it."""

    def __init__(self, schema: Schema, codes: Codes, accuracy: Accuracy, measurements: Measurements | None) -> None:
        pairs = list(combinations(range(len(schema.attributes)), 2))
        counts = pair_counts(codes, schema.cardinalities)
        errors = CellErrors(accuracy, {pair: counts.pair(*pair).ravel() for pair in pairs})
        manifest = SimpleNamespace(table=schema, attempt="rehearsal", records=len(codes[0]), format=PartFormat())
        self.__dict__.update(manifest=manifest, codes=codes, errors=errors)
        self.__dict__.update(records=accuracy.records, measurements=measurements)


def coverage_of(real: Codes, release: Published, *, law: Codes | None = None) -> list[Covered]:
    """How often the intervals of a release with measured accuracy cover what the real table says.

    Cells above `SMALL` of the records, of all attributes and pairs and of up to `TRIPLES` triples; coefficients of the
    linear regression of whether the last attribute has its commonest released value on the same of the others, up to
    `TERMS` of them.

    Parameters
    ----------
    law : Codes, optional
        Many more records of the law that the table is a sample of: what is covered is then the law.
    """
    cards, m = release.schema.cardinalities, range(len(release.schema.attributes))
    triples = [t for t in combinations(m, 3) if prod(cards[i] for i in t) <= 1 << 20]
    step = max(len(triples) // TRIPLES, 1)
    sets: dict[int, Sequence[tuple[int, ...]]] = {1: [(i,) for i in m], 2: list(combinations(m, 2))}
    sets[3] = triples[::step][:TRIPLES]
    found = []
    for order, of_order in sets.items():
        cells = (
            np.concatenate([_cells(real, release, s, law) for s in of_order], axis=1) if of_order else np.zeros((4, 0))
        )
        if cells.shape[1]:
            means = cells.mean(axis=1)
            width = float(np.median(cells[2] / cells[3]))
            found.append(Covered(_NAMES[order], cells.shape[1], float(means[0]), float(means[1]), width))
    if len(m) > 1:
        with suppress(SpecError):  # terms that depend on each other, or too many attributes for replicates
            found.append(_regression(real, release, law))
    return found


def _cells(real: Codes, release: Published, attributes: tuple[int, ...], law: Codes | None) -> Floats:
    """For each large cell: whether it is covered, and naively; the half width, and that of a sample like the table."""
    if release.errors is None:
        raise ValueError("nothing was measured of the accuracy")
    shape = tuple(release.schema.cardinalities[i] for i in attributes)
    ours = table_counts(release.codes, release.schema.cardinalities, [attributes])
    rows, released = len(real[0]), len(release.codes[0])
    truth = table_counts(real if law is None else law, release.schema.cardinalities, [attributes]).astype(np.float64)
    truth *= 1 if law is None else rows / len(law[0])
    measured = release.measurements
    known = None if measured is None or len(attributes) == 3 else measured.combined(attributes, shape)
    interval = release.errors.interval(attributes, ours, measured=known)
    share = ours / released
    sampled = 0.0 if law is None else _NORMAL_95**2 * rows * share * (1 - share)
    low = interval.estimate - np.sqrt((interval.estimate - interval.low) ** 2 + sampled)
    high = interval.estimate + np.sqrt((interval.high - interval.estimate) ** 2 + sampled)
    naive = _NORMAL_95 * np.sqrt(rows * share * (1 - share))
    sample = _NORMAL_95 * np.sqrt(np.maximum(truth * (1 - truth / rows), 1))
    covered = (low <= truth) & (truth <= high), np.abs(share * rows - truth) <= naive
    return np.stack([*covered, (high - low) / 2, sample])[:, share > SMALL]


def _regression(real: Codes, release: Published, law: Codes | None) -> Covered:
    replicates = make_replicates(release)
    common = [int(np.bincount(column).argmax()) for column in release.codes]
    chosen = list(range(len(common) - 1))[-TERMS:]

    def columns(codes: Codes) -> NDArray[np.uint8]:
        return np.stack([codes[i] == common[i] for i in (*chosen, len(common) - 1)], axis=1).astype(np.uint8)

    rows, weights = replicates.grouped(np.arange(len(replicates.ratios)), list(columns(release.codes).T))
    varying = [i for i in range(len(chosen)) if np.ptp(rows[:, i])]
    terms = np.column_stack([np.ones(len(rows)), rows[:, varying]])
    found = linear(terms, rows[:, -1], weights)
    deviations = np.sqrt(replicates.variances(found[:, 0], found[:, 1:]))[1:]
    truths, number = np.unique(columns(real if law is None else law), axis=0, return_counts=True)
    design, outcome = np.column_stack([np.ones(len(truths)), truths[:, varying]]), truths[:, -1].astype(np.float64)
    coefficients = linear(design, outcome, number[:, None].astype(np.float64))[:, 0]
    inverse = np.linalg.inv((design.T * number) @ design)
    left = outcome - design @ coefficients
    sample = np.sqrt(np.diag(inverse @ ((design.T * (number * left**2)) @ design) @ inverse))[1:]
    sample *= np.sqrt(number.sum() / len(real[0]))
    truth = coefficients[1:]
    half = replicates.multiple() * np.hypot(deviations, 0 if law is None else sample)
    away = np.abs(found[1:, 0] - truth)
    shares = float((away <= half).mean()), float((away <= _NORMAL_95 * sample).mean())
    return Covered("regression", len(truth), *shares, float(np.median(half / (_NORMAL_95 * sample))))


def made_up(cardinalities: Sequence[int], records: int, *, law: int, seed: int) -> Codes:
    """Records of a known law: a chain of attributes with random conditional distributions."""
    conditionals = np.random.default_rng(law)
    rng = np.random.default_rng([law, seed])
    columns: Codes = []
    for size in cardinalities:
        before = columns[-1] if columns else np.zeros(records, np.int64)
        tables = conditionals.dirichlet(np.full(size, 0.5), size=int(cardinalities[len(columns) - 1]) if columns else 1)
        ends = np.cumsum(0.8 * tables + 0.2 * tables.mean(0), axis=1)
        words, codes = rng.random(records), np.zeros(records, np.int64)
        for value in np.unique(before):
            codes[before == value] = np.searchsorted(ends[value], words[before == value])
        columns.append(np.minimum(codes, size - 1))
    return columns


def against_law(plan: Plan, *, records: int, runs: int) -> dict[str, list[Covered]]:
    """Releases of made-up tables: coverage of what the table says, and of the law itself.

    The rules of the schema are left out: made-up tables do not keep them.

    Raises
    ------
    SpecError
        The plan's releases measure no accuracy.
    """
    if plan.spec.table.rules:
        bare = Schema(attributes=plan.spec.table.attributes)
        plan = make_plan(plan.spec.model_copy(update={"table": bare}))
    schema = plan.spec.table
    if STAGE not in [stage.name for stage in stages_of(plan)]:
        raise SpecError("releases of this spec measure no accuracy: only a synthesis with privacy.accuracy_share does")
    found: dict[str, list[list[Covered]]] = {"table": [], "law": []}
    for run in range(runs):
        codes = made_up(schema.cardinalities, records, law=1, seed=run)
        codes = [column.astype(a.dtype) for column, a in zip(codes, schema.attributes, strict=True)]
        key = key_from(Noise(np.random.default_rng([run, 7]).bytes(32)))
        stages = [stage for stage in stages_of(plan) if stage.name not in ("publish model", "write")]
        made = rehearse(plan, stages, codes, key=key, until=None)
        accuracy = made.result(ReleaseAccuracy).accuracy
        release = Rehearsed(schema, released_codes(made), accuracy, made.result(Learned).measurements)
        found["table"].append(coverage_of(codes, release))
        many = made_up(schema.cardinalities, 40 * records, law=1, seed=runs)
        found["law"].append(coverage_of(codes, release, law=many))
    return {name: [_mean(same) for same in zip(*runs_of, strict=True)] for name, runs_of in found.items()}


def _mean(same: Sequence[Covered]) -> Covered:
    """The mean of the same figures of several releases, by their numbers of estimates."""
    weights = [one.number for one in same]
    figures = np.average([(one.coverage, one.naive, one.width) for one in same], axis=0, weights=weights)
    return Covered(same[0].of, sum(weights), *figures.tolist())
