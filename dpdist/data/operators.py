"""What a pass over the records computes: operators as records of pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.data.count import (
    MAX_PAIR_CELLS,
    WIDE_CELLS,
    add_block_counts,
    add_table_counts,
    block_cells,
    block_counts,
    counts_of_blocks,
    pair_cells,
    pair_counts,
    table_counts,
)

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes


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
    # applied to the summary of a partition before it travels; commutes with `combine`
    compact: Callable[[Any], Any] | None = None
    finish: Callable[[Any], Any] | None = None  # applied to the summary of the whole table
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
        chunk = partial(pair_counts, cardinalities=cardinalities)
        return Operator(name="pairs", chunk=chunk, combine=_add, fan_in=fan_in)
    return Operator(
        name="pairs",
        chunk=partial(block_counts, cardinalities=cardinalities),
        combine=_add,
        update=partial(add_block_counts, cardinalities=cardinalities),
        compact=partial(counts_of_blocks, cardinalities=cardinalities),
        fan_in=fan_in,
    )


def table_counts_operator(cardinalities: Sequence[int], sets: Sequence[tuple[int, ...]]) -> Operator:
    """The joint tables of some sets of attributes, one after another."""
    sizes, tables = tuple(cardinalities), tuple(sets)
    return Operator(
        name="tables",
        chunk=partial(table_counts, cardinalities=sizes, sets=tables),
        combine=_add,
        update=partial(add_table_counts, cardinalities=sizes, sets=tables),
    )


def together(operators: Sequence[Operator]) -> Operator:
    """Several operators in one pass; the summary is a tuple."""
    return Operator(
        name="-".join(operator.name for operator in operators),
        chunk=partial(_chunk_all, tuple(operators)),
        combine=partial(_combine_all, tuple(operators)),
        update=partial(_add_all, tuple(operators)),
        compact=partial(_compact_all, tuple(operators)),
        finish=partial(_finish_all, tuple(operators)),
        fan_in=min(operator.fan_in for operator in operators),
    )


Look = Callable[["Codes"], "Codes"]
"""From codes of the schema to codes as they are looked at."""


def through(look: Look, operator: Operator) -> Operator:
    """An operator on the schema's codes that computes what `operator` does on the codes that a look gives."""
    return replace(
        operator,
        chunk=partial(_chunk_of_look, look, operator),
        update=None if operator.update is None else partial(_update_by_look, look, operator),
    )


def gather_operator() -> Operator:
    """The records themselves, in the order of the rows: `Codes`. For parts of a table that fit in one memory."""
    return Operator(name="gather", chunk=_same, combine=_concatenate)


def _add(a: Any, b: Any) -> Any:
    return a + b


def _chunk_of_look(look: Look, operator: Operator, codes: Codes) -> Any:
    return operator.chunk(look(codes))


def _update_by_look(look: Look, operator: Operator, summary: Any, codes: Codes) -> Any:
    return operator.add(summary, look(codes))


def _same(codes: Codes) -> Codes:
    return codes


def _concatenate(a: Codes, b: Codes) -> Codes:
    return [np.concatenate(pair) for pair in zip(a, b, strict=True)]


def _chunk_all(operators: tuple[Operator, ...], codes: Codes) -> tuple[Any, ...]:
    return tuple(operator.chunk(codes) for operator in operators)


def _combine_all(operators: tuple[Operator, ...], a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(operator.combine(x, y) for operator, x, y in zip(operators, a, b, strict=True))


def _add_all(operators: tuple[Operator, ...], a: Sequence[Any], codes: Codes) -> tuple[Any, ...]:
    return tuple(operator.add(x, codes) for operator, x in zip(operators, a, strict=True))


def _compact_all(operators: tuple[Operator, ...], a: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(operator.compact(x) if operator.compact else x for operator, x in zip(operators, a, strict=True))


def _finish_all(operators: tuple[Operator, ...], a: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(operator.finish(x) if operator.finish else x for operator, x in zip(operators, a, strict=True))
