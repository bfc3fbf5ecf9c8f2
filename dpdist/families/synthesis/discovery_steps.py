"""Values, bounds and bins that a synthesis finds before it learns its model, within the same Gaussian account.

One record changes one cell by 1 of each histogram, so histograms of deviations s_i cost the sum of ``1/s_i^2`` of mu^2.
Values of texts are named twice: the frequent ones by counts, then others by sums of weights, which are the larger the
fewer values of a record have no name yet. How much that may cost depends on the number of records and on what counts
left. Which columns get fine histograms depends on what coarse ones released. The model has what is left of mu^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import pyarrow.compute as pc

from dpdist.data.arrow import ArrowRecords
from dpdist.data.table import Table
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.values import bin_counts, named_values, noisy_counts
from dpdist.families.synthesis.discovery import SHARES, Discovery
from dpdist.families.synthesis.ranges import CLEAR, GAPS, LEAST_CELLS, STEPS, Range
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.privacy.arrays import Counts
from dpdist.privacy.calibrate import ABOVE
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import MISSING, OTHERS, is_unbounded
from dpdist.spec.validation import change
from dpdist.storage.stored import Stored, tree_of

MOST_VALUES = 100
"""Values of a column that are named at most, the most frequent first."""

_LARGEST = 1 << 62  # no sum of weights is larger: values that are named later are listed later
_RESOLVED = 3.0  # deviations of the records of a coarse bin between public bounds, on average
_FEW = 40.0  # deviations of all records up to which coarse bins are powers of four
# and moments: of days
_DAYS = ((1.0, r"^\s*-?\d{4,}-\d\d-\d\d([ T]00:00(:00(\.0*)?)?(Z|[+-]\d\d:?\d\d)?)?\s*$"),)

if TYPE_CHECKING:
    from dpdist.families.synthesis.plan import SynthesisPlan

DiscoveringAttempt: TypeAlias = "Attempt[WholeSynthesisSpec, SynthesisPlan]"


@dataclass(frozen=True)
class Discovered(Stored):
    """What was found, drawn once."""

    FILE: ClassVar[str] = "discovered.json"

    attributes: str  # as JSON
    outside: dict[str, tuple[float, float]]  # share of the records outside of bounds that were found, and its deviation
    records: int  # the noisy number of records, less four deviations
    spent: float  # of mu^2


def discover(attempt: DiscoveringAttempt) -> Discovered:
    """Find what the schema leaves open; the attempt goes on with a spec and a plan that have it."""
    spec, plan = attempt.spec, attempt.plan
    if plan.discovery is None:  # the step is repeated
        return attempt.result(Discovered)
    found = attempt.stored(Discovered, lambda: _found(attempt))
    attempt.public["discovered"] = {
        "columns": list(spec.undeclared),
        "share_of_mu_squared": found.spent / plan.mu**2,
        "outside": {
            name: {"share": share, "deviation": deviation} for name, (share, deviation) in found.outside.items()
        },
        **tree_of(plan.discovery),
    }
    settings = {"schema": Schema.model_validate_json(found.attributes), "discover": None}
    attempt.become(plan.knowing(change(spec, settings | {"data.minimum_records": found.records}), found.spent))
    return found


def _found(attempt: DiscoveringAttempt) -> Discovered:
    spec, noise, table = attempt.spec, attempt.plan.discovery, attempt.records
    if noise is None:
        raise ValueError("the schema leaves nothing open")

    def noisy(name: str, counts: Counts, deviation: float = noise.cells) -> Counts:
        return noisy_counts(counts, how=("gaussian", deviation), noise=attempt.noise, name=name)

    rows = int(noisy("records", np.array([table.rows], np.int64))[0])
    texts, numbers, stepped = spec.undeclared_texts, spec.undeclared_numbers, spec.undeclared_steps
    named, absent = named_values(attempt, table, texts, ("gaussian", noise.values, noise.named_from))
    lacking = noisy("missing", absent, noise.values)
    made = {name: _text(name, i, named, lacking[i], noise) for i, name in enumerate(texts)}
    wide: list[Range] = []
    outside = dict[str, tuple[float, float]]()
    if numbers:
        exact, _ = bin_counts(attempt, table, numbers)
        groups = [_groups(spec.attribute(name), rows / noise.cells) for name in numbers]
        has_missing = [spec.attribute(name).missing_code is not None for name in numbers]
        exact = [own if has else np.append(own, 0) for own, has in zip(exact, has_missing, strict=True)]
        grouped = [np.add.reduceat(own, [*first, len(own) - 1]) for own, first in zip(exact, groups, strict=True)]
        coarse = np.split(noisy("bins", np.concatenate(grouped)), np.cumsum([len(own) for own in grouped])[:-1])
        steps = dict[str, Counts]()
        if stepped:
            counts = noisy("steps", _multiples(attempt, stepped).ravel(), noise.steps).reshape(-1, len(STEPS))
            steps = dict(zip(stepped, counts, strict=True))
        for name, first, cells in zip(numbers, groups, coarse, strict=True):
            own = steps.get(name, np.zeros(1, np.int64))
            found = Range.of(spec.attribute(name), first, cells, own, rows=rows, noise=noise)
            if found.is_wide:
                wide.append(found)
            made[name] = found.attribute()
            outside |= found.outside(rows)
    if wide:
        deviation = noise.fine(len(wide), len(numbers))
        wide = [replace(one, deviation=deviation) for one in wide]
        fine = Schema(attributes=tuple(one.refined() for one in wide))
        parts, _ = bin_counts(attempt, attempt.read_by(fine), fine.names)
        split = np.split(noisy("fine", np.concatenate(parts), deviation), np.cumsum([*map(len, parts)])[:-1])
        for one, own in zip(wide, split, strict=True):
            made[one.name] = one.attribute(own[:-1])
            outside |= one.outside(rows, own)
    schema = _known(spec.table, made)
    others = rows * len(texts) - int(lacking.sum()) - sum(count for _, _, count in named)
    again = _again(attempt, schema, rows, others)
    if again:
        known = [[value for place, value, _ in named if place == column] for column in range(len(texts))]
        more, _ = named_values(attempt, table, texts, ("gaussian", *noise.naming(again, len(texts))), known=known)
        named = [*named, *((place, value, count - _LARGEST) for place, value, count in more)]
        schema = _known(schema, {name: _text(name, i, named, lacking[i], noise) for i, name in enumerate(texts)})
    spent = noise.spent(len(texts), 1 + len(numbers) * (2 if wide else 1), len(stepped)) + again**2 * ABOVE
    records = max(rows - math.ceil(CLEAR * noise.cells), 1)
    return Discovered(schema.model_dump_json(exclude_defaults=True), outside, records, spent)


def _known(schema: Schema, made: dict[str, Attribute]) -> Schema:
    return Schema(attributes=tuple(made.get(a.name, a) for a in schema.attributes))


def _again(attempt: DiscoveringAttempt, found: Schema, records: int, others: int) -> float:
    """The mu of the second naming; 0 for none. `records` have about so many `others` among their values that have no
    name yet. It has the least error of two-way tables that may be expected: by the noise of a model of what was
    `found` till then, and by values without a name.
    """
    plan, noise = attempt.plan, attempt.plan.discovery
    texts, records = len(attempt.spec.undeclared_texts), max(records, 1)
    if noise is None or not texts:
        return 0.0
    unnamed = min(max(others / records, 0.0), float(texts))
    in_pairs = 2 * unnamed / len(attempt.spec.table.attributes)
    left = plan.mu**2 - noise.spent(texts, 1 + 2 * len(attempt.spec.undeclared_numbers), 0)

    def error(again: float) -> float:
        lost = noise.unnamed(again, texts, unnamed) if again else 1.0
        return plan.error_at(found, math.sqrt(left - again**2), records) + in_pairs * lost

    return min((noise.again * math.sqrt(step / SHARES) for step in range(SHARES + 1)), key=error)


def _groups(given: Attribute, records: float) -> Counts:
    """The first bin of each group of bins that gets a count of its own; `records` are in deviations of the noise.

    Between public bounds the groups are few enough that on average their records stand out of the noise. Without
    bounds, powers of two become powers of four where records are few.
    """
    lows = given.bin_ends()[0]
    if not is_unbounded(given):
        number = min(max(int(records / _RESOLVED), LEAST_CELLS // 2), len(lows))
        return np.arange(number) * len(lows) // number
    beside = np.arange(len(lows)) - int(np.searchsorted(lows, 0))
    kept = (beside == 0) | (beside % 2 == (beside > 0)) | (records > _FEW)
    return np.unique(np.append(np.flatnonzero(kept), 0))


def _multiples(attempt: DiscoveringAttempt, names: Sequence[str]) -> Counts:
    """How many values of each column are multiples of a step, and of none before it."""
    with attempt.stage("counting steps") as progress:
        task = attempt.executor.tasks("steps")
        dated = [name for name in names if attempt.spec.attribute(name).dated]
        parts = [task("count", count_multiples, part, i, names, dated) for part, i in attempt.records.parts(task)]
        counts: Counts = attempt.executor.compute([task.tree("sum", sum, parts)], progress=progress)[0]
    return counts


def count_multiples(
    table: Table | ArrowRecords, partition: int, names: Sequence[str], dated: Sequence[str] = ()
) -> Counts:
    """See `_multiples`; for one partition."""
    counts = np.zeros((len(names), len(STEPS)), np.int64)
    for arrays in table.texts(partition, names):
        for name, column, texts in zip(names, counts, arrays, strict=True):
            for place, (_, text) in enumerate(_DAYS if name in dated else STEPS):
                column[place] += pc.sum(pc.match_substring_regex(texts, text)).as_py() or 0
    return counts


def _text(name: str, column: int, named: Sequence[tuple[int, str, int]], lacking: int, noise: Discovery) -> Attribute:
    """A column of texts: its frequent values, and one category for all others, and for missing ones if they are few."""
    found = sorted((-count, value) for place, value, count in named if place == column)[:MOST_VALUES]
    values = [value for _, value in found if value not in (MISSING, OTHERS)]
    has_gaps = lacking >= GAPS * noise.values or not values
    tree = {"name": name, "kind": "categorical", "values": [*values, OTHERS] if has_gaps else values}
    missing, others = {"category": MISSING if has_gaps else OTHERS}, {"category": OTHERS}
    return Attribute.model_validate({**tree, "missing": missing, "out_of_domain": others})
