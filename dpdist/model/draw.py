"""Drawing records from a fitted model by group rounding, in integers only.

The rows of a part are drawn attribute by attribute. Among the rows with the same parents, the number that gets each
value is the model's probability times the rows, rounded up or down at random so that its mean is exact
(systematic rounding); which of the rows get it is a random order. A part is a pure function of the model, the
key and its number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.errors import SpecError
from dpdist.model.balance import CELL_BITS, PairIndex, TableRows, balance
from dpdist.model.fitted import UNIT, UNIT_BITS, Cumulative, Fitted
from dpdist.privacy.arrays import DIGIT_BITS, Codes, Counts, Unsigned, stable_order
from dpdist.privacy.noise import Noise
from dpdist.spec.rules import Rules, a_record, broken_by

MOST_REDRAWS = 32  # how often rows that break a rule are drawn again, at most. Public, as the rules are.
FORMAT = 1  # of how a model and a key give records: weights of a pool belong to the rows that the pool was drawn with
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
    for step in fitted.steps:
        groups = np.zeros(rows, np.min_scalar_type(len(step.cumulative)))
        for parent in step.parents:
            groups *= groups.dtype.type(fitted.cardinalities[parent])
            groups += codes[parent]
        codes[step.attribute] = rounded_groups(groups, step.cumulative, noise, f"{name}/{step.attribute}")
    columns: Codes = []
    for i, (attribute, size) in enumerate(zip(fitted.fine, fitted.domain, strict=True)):
        dtype, merged = np.min_scalar_type(size - 1), np.flatnonzero(fitted.values[i] < 0)
        column = fitted.values[i].astype(dtype)[codes[attribute]]
        if len(merged):
            rows_of = np.flatnonzero(codes[attribute] == merged[0])
            group = np.zeros(len(rows_of), np.uint8)
            chosen = rounded_groups(group, fitted.rare_cumulative[i], noise, f"{name}/rare/{i}")
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
    pool: Sequence[Codes] | None = None,
) -> Codes:
    """The records of one part: from the model, or a systematic sample by weight of a part of the pool, in its order.

    The parts of the pool serve in turn, and are drawn again where they are not given. The records are balanced against
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


def _samples(
    fitted: Fitted, noise: Noise, part: int, names: list[str], rows: int, rules: Rules, held: Sequence[Codes] | None
) -> list[Codes]:
    """Samples of the model, or of a part of the pool by weight."""
    if fitted.adjustment is None:
        return [kept_part(fitted, noise, name, rows, rules) for name in names]
    number = part % fitted.pool_parts
    pool = pool_part(fitted, noise, number, fitted.pool_rows, rules) if held is None else held[number]
    weights = fitted.adjustment.weights(pool, fitted.domain)
    order = _lexicographic(pool, fitted.domain)
    words = [int(noise.words(f"{name}/taken", 1)[0]) for name in names]
    taken = [order[_systematic(weights[order], rows, word)] for word in words]
    return [[column[rows] for column in pool] for rows in taken]


def _systematic(weights: Counts, number: int, word: int) -> Counts:
    """Positions of a systematic sample with replacement, by integer weights below 2**41 and one random word."""
    cumulative = np.cumsum(weights)
    total = int(cumulative[-1])
    if total <= 0:
        return np.arange(number) % len(weights)
    whole, rest = divmod(total, number)
    places = np.arange(number, dtype=np.int64)
    steps = places * whole + (places * rest + (word * total >> 64)) // number
    return np.searchsorted(cumulative, steps, side="right")


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


def rounded_groups(groups: Unsigned, cumulative: Cumulative, noise: Noise, name: str) -> Unsigned:
    """A value for each row: within each group (a row of `cumulative`) counts of values are rounded systematically. With
    an offset u in [0, 1), row j of r in random order gets the value whose interval holds ``(j + u) / r``.
    """
    rows, sizes = len(groups), np.bincount(groups, minlength=len(cumulative))
    present = np.flatnonzero(sizes)
    # 32 random bits order the rows of a group; equal ones keep their order
    bits = noise.words(f"{name}/order", -(-rows // 2)).astype("<u8", copy=False).view("<u4")[:rows]
    order = stable_order(groups, bits)
    offsets = noise.integers(f"{name}/offset", len(cumulative), high=UNIT)[present]
    # rows j < (cumulative * size - offset) / UNIT, rounded up, have a value up to this one
    ends = -((offsets[:, None] - cumulative[present] * sizes[present, None]) >> UNIT_BITS)
    counts = np.diff(np.maximum(ends, 0), axis=1, prepend=0)
    size = cumulative.shape[1]
    values = np.empty(rows, np.min_scalar_type(size - 1))
    values[order] = np.repeat(np.tile(np.arange(size, dtype=values.dtype), len(present)), counts.ravel())
    return values
