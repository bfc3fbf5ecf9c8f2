"""Drawing records from a fitted model by group rounding, in integers only.

The rows of a part are drawn attribute by attribute. Among the rows with the same parents, the number that gets each
value is the model's probability times the rows, rounded up or down at random so that its mean is exact
(systematic rounding); which of the rows get it is a random order. A part is a pure function of the model, the
key and its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.errors import SpecError
from dpdist.model.balance import CELL_BITS, PairIndex, TableRows, balance
from dpdist.model.fitted import UNIT, UNIT_BITS, Cumulative, Fitted
from dpdist.privacy.arrays import DIGIT_BITS, Codes, Counts, Unsigned, stable_order
from dpdist.privacy.noise import Noise
from dpdist.spec.rules import Rules, a_record, broken_by

MOST_REDRAWS = 32  # how often rows that break a rule are drawn again, at most. Public, as the rules are.
FORMAT = 2  # of how a model and a key give records: weights of a pool belong to the rows that the pool was drawn with
_GOLDEN = 0x9E3779B97F  # the golden ratio less 1, in units
LARGEST_PART = 1 << 20  # most rows of a part: rows times `UNIT` stay below 2**61


def parts_of(records: int, rows_per_part: int) -> list[int]:
    """Rows of each part; the last may have fewer. Raises SpecError: there would be more than a million."""
    whole, rest = divmod(records, rows_per_part)
    if whole > 1_000_000:
        raise SpecError(f"output.rows_per_part: {records:,} records would be {whole:,} parts; put more rows in each")
    return [rows_per_part] * whole + [rest] * bool(rest)


def draw_part(fitted: Fitted, noise: Noise, name: str, rows: int) -> Codes:
    """Rows of one part as values of the table's attributes. Raises ValueError: `rows` is out of range."""
    if not 1 <= rows <= LARGEST_PART:
        raise ValueError(f"a part has from 1 to {LARGEST_PART} rows, got {rows}")
    codes: Codes = [np.zeros(0, np.uint8)] * len(fitted.cardinalities)
    by_size = sorted(range(len(codes)), key=lambda a: -fitted.cardinalities[a])
    for step in fitted.steps:
        groups = np.zeros(rows, np.min_scalar_type(len(step.cumulative)))
        for parent in step.parents:
            groups *= groups.dtype.type(fitted.cardinalities[parent])
            groups += codes[parent]
        others = [codes[a] for a in by_size if len(codes[a]) and a not in step.parents]
        codes[step.attribute] = rounded_groups(groups, step.cumulative, noise, f"{name}/{step.attribute}", others)
    columns: Codes = []
    for i, (attribute, size) in enumerate(zip(fitted.fine, fitted.domain, strict=True)):
        dtype, merged = np.min_scalar_type(size - 1), np.flatnonzero(fitted.values[i] < 0)
        column = fitted.values[i].astype(dtype)[codes[attribute]]
        if len(merged):
            rows_of = np.flatnonzero(codes[attribute] == merged[0])
            group, others = np.zeros(len(rows_of), np.uint8), [codes[a][rows_of] for a in by_size]
            chosen = rounded_groups(group, fitted.rare_cumulative[i], noise, f"{name}/rare/{i}", others)
            column[rows_of] = fitted.rare[i][chosen]
        columns.append(column)
    return columns


def kept_part(fitted: Fitted, noise: Noise, name: str, rows: int, rules: Rules) -> Codes:
    """Rows of one part that break no rule: others are drawn again, then copied from kept rows or a public record."""
    columns = draw_part(fitted, noise, name, rows)
    broken = np.flatnonzero(broken_by(rules, columns)) if rules else np.zeros(0, np.int64)
    for again in range(MOST_REDRAWS):
        if not len(broken):
            return columns
        drawn = draw_part(fitted, noise, f"{name}/again/{again}", len(broken))
        for column, values in zip(columns, drawn, strict=True):
            column[broken] = values
        broken = broken[broken_by(rules, drawn)]
    kept = np.setdiff1d(np.arange(rows), broken)
    if len(kept):
        copied = kept[noise.integers(f"{name}/copied", len(broken), high=len(kept))]
        for column in columns:
            column[broken] = column[copied]
    else:
        for column, value in zip(columns, a_record(rules, len(columns)), strict=True):
            column[:] = value
    return columns


def pool_part(fitted: Fitted, noise: Noise, part: int, rows: int, rules: Rules) -> Codes:
    """One part of the pool of a model's rows, or of public ones, whose weights are raked and which records are then
    taken from.
    """
    if fitted.public:
        return [column[part * rows : (part + 1) * rows] for column in fitted.public]
    return kept_part(fitted, noise, f"pool/{part}", rows, rules)


def draw_records(
    fitted: Fitted,
    noise: Noise,
    part: int,
    rows: int,
    *,
    rounds: int,
    rules: Rules = (),
    pool: WeightedPool | None = None,
) -> Codes:
    """The records of one part: from the model, or a systematic sample by weight of the pool, in its order.

    The pool is drawn again where it is not given. The records are balanced against
    a second sample as large (`rounds`), and put in a random order.
    """
    name = f"records/{part}"
    balanced = rounds > 0 and len(fitted.expected) > 0
    names = [name, f"{name}/spare"] if balanced else [name]
    samples = _samples(fitted, noise, part, names, rows, rules, pool)
    columns = [np.concatenate(column) for column in zip(*samples, strict=True)]
    taken = np.arange(rows)
    if balanced:
        expected = (fitted.expected * rows) >> (UNIT_BITS - CELL_BITS)
        rows_of = TableRows(np.array(columns, np.int32), PairIndex.of(fitted.domain))
        taken = balance(rows_of, taken, expected, noise, f"{name}/balance", rounds=rounds)
    mixed = taken[stable_order(noise.words(f"{name}/mixed", rows))]
    return [column[mixed] for column in columns]


@dataclass(frozen=True, eq=False)
class WeightedPool:
    """The rows of a pool in lexicographic order."""

    columns: Codes
    cumulative: Counts  # of the rows' weights, each below 2**41

    @classmethod
    def of(cls, fitted: Fitted, parts: Sequence[Codes]) -> WeightedPool:
        """All parts with the weights of a model's adjustment, or with equal ones."""
        columns = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
        order = _lexicographic(columns, fitted.domain)
        columns = [column[order] for column in columns]
        weights = None if fitted.adjustment is None else fitted.adjustment.weights(columns, fitted.domain)
        if weights is None or not weights.any():
            weights = np.ones(len(order), np.int64)
        return cls(columns, np.cumsum(weights))

    def sample(self, number: int, word: int) -> Codes:
        """A systematic sample with replacement by one random word; those of words far apart lie between each other."""
        total = int(self.cumulative[-1])
        whole, rest = divmod(total, max(number, 1))
        places = np.arange(number, dtype=np.int64)
        steps = places * whole + (places * rest + (word * total >> 64)) // max(number, 1)
        taken = np.searchsorted(self.cumulative, steps, side="right")
        return [column[taken] for column in self.columns]


def weighted_pool(fitted: Fitted, noise: Noise, rules: Rules) -> WeightedPool:
    """The pool of a model with an adjustment."""
    parts = [pool_part(fitted, noise, p, fitted.pool_rows, rules) for p in range(fitted.pool_parts)]
    return WeightedPool.of(fitted, parts)


def _samples(
    fitted: Fitted,
    noise: Noise,
    part: int,
    names: list[str],
    rows: int,
    rules: Rules,
    held: WeightedPool | None,
) -> list[Codes]:
    """Samples of the model, or of the pool by weight."""
    if fitted.adjustment is None:
        return [kept_part(fitted, noise, name, rows, rules) for name in names]
    held = held or weighted_pool(fitted, noise, rules)
    word, before = int(noise.words("records/taken", 1)[0]), part * len(names)
    return [held.sample(rows, (word + (before + k) * (_GOLDEN << 24)) % (1 << 64)) for k in range(len(names))]


def _lexicographic(columns: Codes, cardinalities: tuple[int, ...]) -> Counts:
    """Order of the rows by their values, equal rows by position; the columns are packed into few keys."""
    keys: list[Unsigned] = []
    room = 0
    for column, cardinality in zip(columns, cardinalities, strict=True):
        if room < cardinality:
            keys.append(column.astype(np.promote_types(np.uint16, np.min_scalar_type(cardinality - 1))))
            room = ((1 << DIGIT_BITS) - 1) // cardinality
        else:
            keys[-1] *= keys[-1].dtype.type(cardinality)
            keys[-1] += column
            room //= cardinality
    return stable_order(*keys)


def rounded_groups(
    groups: Unsigned, cumulative: Cumulative, noise: Noise, name: str, others: Sequence[Unsigned] = ()
) -> Unsigned:
    """A value for each row: within each group (a row of `cumulative`) counts of values are rounded systematically: with
    an offset u in [0, 1), a row of rank j of r gets the value whose interval holds ``(j + u) / r``. Ranks run evenly
    through the rows in the order of `others`, so that values are also even among rows that these have in common.
    """
    rows, sizes = len(groups), np.bincount(groups, minlength=len(cumulative))
    present = np.flatnonzero(sizes)
    keys, room = [groups], 64 - rows.bit_length() - len(cumulative).bit_length()
    for other in others:
        room -= int(other.max(initial=0)).bit_length()
        keys += [other] if room >= 0 else []
    order = stable_order(*keys)
    offsets, turns = (noise.integers(f"{name}/{of}", len(sizes), high=UNIT)[present] for of in ("offset", "turn"))
    sizes = sizes[present]
    # rows j < (cumulative * size - offset) / UNIT, rounded up, have a value up to this one
    ends = -((offsets[:, None] - cumulative[present] * sizes[:, None]) >> UNIT_BITS)
    counts = np.diff(np.maximum(ends, 0), axis=1, prepend=0)
    size = cumulative.shape[1]
    ranked = np.repeat(np.tile(np.arange(size, dtype=np.min_scalar_type(size - 1)), len(present)), counts.ravel())
    strides = np.maximum((sizes * _GOLDEN) >> UNIT_BITS, 1)
    while (shared := np.gcd(strides, sizes) > 1).any():
        strides += shared
    starts, each = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(sizes)), sizes)
    ranks = (np.arange(rows) - starts[each]) * strides[each] + turns[each] % sizes[each]
    values = np.empty_like(ranked)
    values[order] = ranked[ranks % sizes[each] + starts[each]]
    return values
