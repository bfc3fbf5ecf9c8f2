"""What a pass computes, as records of pure functions, and from which part of a random split of the records.

The coin of a record is a function of key, file and row, for any partitions: one 64-bit word, which gets the label whose
interval contains it. The ends of the intervals are ``floor(2^64 * cumulative share)``, computed in exact rationals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import (
    MAX_PAIR_CELLS,
    WIDE_CELLS,
    add_table_counts,
    block_cells,
    counts_of_blocks,
    covering_blocks,
    pair_cells,
    pair_counts,
    table_counts,
)
from dpdist.errors import SpecError

if TYPE_CHECKING:
    from dpdist.ledger.keys import KeyRef
    from dpdist.privacy.arrays import Codes
    from dpdist.privacy.noise import Noise

_WORD = 1 << 64


def _same(summary: Any) -> Any:
    return summary


@dataclass(frozen=True)
class Operator:
    """What a pass computes from the records."""

    name: str  # for people: it appears in task names
    chunk: Callable[[Codes], Any]  # codes of a batch (possibly of no rows) to a summary
    # two summaries of consecutive records to the summary of both; exact, associative and pure
    combine: Callable[[Any, Any], Any]
    # adds a batch to a summary that the task owns, in place where that is faster; by default ``combine(summary,
    # chunk(codes))``, which it equals
    update: Callable[[Any, Codes], Any] | None = None
    compact: Callable[[Any], Any] = _same  # applied to the summary of a partition; commutes with `combine`
    finish: Callable[[Any], Any] = _same  # applied to the summary of the whole table
    fan_in: int = 8  # summaries combined by one task

    def add(self, summary: Any, codes: Codes) -> Any:
        """The summary with one more batch; the summary given is no longer used."""
        if self.update is not None:
            return self.update(summary, codes)
        return self.combine(summary, self.chunk(codes))


def pair_counts_operator(cardinalities: Sequence[int]) -> Operator:
    """All single and pairwise counts: `dpdist.data.count.PairCounts`. Raises SpecError: too many cells; see
    `dpdist.data.count.pair_cells`.
    """
    cardinalities = tuple(cardinalities)
    fan_in = 8 if pair_cells(cardinalities) <= MAX_PAIR_CELLS // 16 else 2
    if block_cells(cardinalities) > WIDE_CELLS:
        return Operator("pairs", partial(pair_counts, cardinalities=cardinalities), add, fan_in=fan_in)
    tables = table_counts_operator(cardinalities, covering_blocks(cardinalities))
    compact = partial(counts_of_blocks, cardinalities=cardinalities)
    return replace(tables, name="pairs", compact=compact, fan_in=fan_in)


def table_counts_operator(cardinalities: Sequence[int], sets: Sequence[tuple[int, ...]]) -> Operator:
    """The joint tables of some sets of attributes, one after another."""
    of: dict[str, Any] = {"cardinalities": tuple(cardinalities), "sets": tuple(sets)}
    return Operator("tables", partial(table_counts, **of), add, update=partial(add_table_counts, **of))


def together(operators: Sequence[Operator]) -> Operator:
    """Several operators in one pass; the summary is a tuple."""
    each = tuple(operators)
    return Operator(
        name="-".join(one.name for one in each),
        chunk=partial(_all_of, [one.chunk for one in each]),
        combine=partial(_each, [one.combine for one in each]),
        update=partial(_all_added, each),
        compact=partial(_each, [one.compact for one in each]),
        finish=partial(_each, [one.finish for one in each]),
        fan_in=min(one.fan_in for one in each),
    )


Look = Callable[["Codes"], "Codes"]
"""From codes of the schema to codes as they are looked at."""


def through(look: Look, operator: Operator) -> Operator:
    """An operator on the schema's codes that computes what `operator` does on the codes that a look gives."""
    return replace(
        operator,
        chunk=partial(_looked, look, operator.chunk),
        update=None if operator.update is None else partial(_looked, look, operator.update),
    )


def gather_operator() -> Operator:
    """The records themselves, in the order of the rows: `Codes`. For parts of a table that fit in one memory."""
    return Operator(name="gather", chunk=_same, combine=_concatenated)


def _looked(look: Look, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments[:-1], look(arguments[-1]))


def _concatenated(a: Codes, b: Codes) -> Codes:
    return [np.concatenate(pair) for pair in zip(a, b, strict=True)]


def _all_of(functions: Sequence[Callable[[Codes], Any]], codes: Codes) -> tuple[Any, ...]:
    return tuple(function(codes) for function in functions)


def _each(functions: Sequence[Callable[..., Any]], *summaries: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(function(*own) for function, *own in zip(functions, *summaries, strict=True))


def _all_added(operators: tuple[Operator, ...], summary: Sequence[Any], codes: Codes) -> tuple[Any, ...]:
    return tuple(operator.add(own, codes) for operator, own in zip(operators, summary, strict=True))


@dataclass(frozen=True)
class Split:
    """A random split of the records into disjoint parts. Raises SpecError: the shares are not exact, not in [0, 1] or
    do not sum to one.
    """

    key: KeyRef  # where tasks find the attempt's key; the key itself never enters a graph
    shares: tuple[Fraction, ...]  # expected share of each label 0, 1, ...; exact, at most 255, summing to one

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", exact_shares(self.shares))


def exact_shares(shares: Sequence[Fraction | int | str]) -> tuple[Fraction, ...]:
    """Check the shares of a split. Raises SpecError: a share is a float (0.1 is not one tenth) or outside [0, 1], or
    they do not sum to one.
    """
    try:
        if any(isinstance(share, float) for share in shares):
            raise ValueError
        exact = tuple(Fraction(share) for share in shares)
    except (ValueError, ZeroDivisionError, TypeError):
        raise SpecError('the shares of the split must be exact: fractions such as "1/3" or decimals as text') from None
    if not 1 <= len(exact) <= 255 or min(exact) < 0 or sum(exact) != 1:
        shown = " + ".join(map(str, exact))
        raise SpecError(f"the shares of the split must lie in [0, 1] and sum to one, not {shown} = {sum(exact)}")
    return exact


def split_labels(
    noise: Noise, *, file: int, row_start: int, count: int, shares: Sequence[Fraction | int | str]
) -> NDArray[np.uint8]:
    """Labels of consecutive rows of a file, uint8[count]; the stream is ``split/<file>``, and row r takes its word r.

    Label j has probability ``(floor(2^64 * s_j) - floor(2^64 * s_(j-1))) / 2^64``, s the cumulative shares
    (`exact_shares`).
    """
    thresholds = [int(total * _WORD) for total in accumulate(exact_shares(shares))]
    words = noise.words(f"split/{file}", count, start=row_start)
    labels = np.zeros(count, np.uint8)
    for threshold in thresholds[:-1]:
        if threshold < _WORD:
            labels += words >= np.uint64(threshold)
    return labels
