"""Distances between the marginals of two tables; a picture of each attribute, and what determines what.

The distance of two marginals is their total variation distance, half the sum of the absolute differences of their
relative frequencies: the largest difference in the share of records that any statement about these attributes can show.
The k-marginal score of NIST's SDNist is ``(2 - mean sum |p - q|) * 500``, that is a thousand times one minus the mean
distance of the k-way marginals [1]_.

References
----------
.. [1] Task, Bhagat, Howarth, *SDNist v2: Deidentified Data Report Tool*, NIST, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import combinations, permutations
from math import comb, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts
from dpdist.data.operators import Operator, pair_counts_operator, table_counts_operator, together
from dpdist.data.records import BATCH_ROWS
from dpdist.evaluation.page.page import Plot, State
from dpdist.evaluation.page.panels import BothShares, profile_plot
from dpdist.evaluation.records import View
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.formatting import number_of

Subset = tuple[int, ...]

MAX_TRIPLES = 200  # three-way marginals compared, unless fewer exist
TRIPLE_CELLS = 1 << 23  # cells of all three-way tables together (64 MiB of int64)


@dataclass(frozen=True, eq=False, repr=False)
class Marginals:
    """Counts of the one-, two- and some wider marginals of a table; confidential where the table is."""

    pairs: PairCounts
    triples: Mapping[Subset, Counts]  # of three attributes or more

    @property
    def records(self) -> int:
        """Number of records counted."""
        return self.pairs.total

    def __add__(self, other: Marginals) -> Marginals:
        return Marginals(
            self.pairs + other.pairs, {which: table + other.triples[which] for which, table in self.triples.items()}
        )

    def table(self, which: Subset) -> Counts:
        """Counts of one marginal, flat, in C order."""
        if len(which) == 1:
            return self.pairs.single(which[0])
        if len(which) == 2:
            return self.pairs.pair(*which).ravel()
        return self.triples[which]

    def subsets(self, k: int) -> list[Subset]:
        """The k-way marginals that are counted."""
        if k > 2:
            return [which for which in self.triples if len(which) == k]
        return list(combinations(range(len(self.pairs.cardinalities)), k))


def chosen_triples(
    sizes: Sequence[int], *, seed: int, most: int = MAX_TRIPLES, cells: int = TRIPLE_CELLS
) -> tuple[Subset, ...]:
    """Three-way marginals: all, or a random sample of `most` whose tables have at most `cells` together."""
    every = list(combinations(range(len(sizes)), 3))
    order = np.random.default_rng(seed).permutation(len(every))
    chosen: list[Subset] = []
    left = cells
    for place in order.tolist():
        need = prod(sizes[i] for i in every[place])
        if len(chosen) < most and need <= left:
            chosen.append(every[place])
            left -= need
    return tuple(sorted(chosen))


def marginals_operator(sizes: Sequence[int], triples: Sequence[Subset]) -> Operator:
    """`Marginals` of records of these sizes, in one pass."""
    both = together([pair_counts_operator(sizes), table_counts_operator(sizes, triples)])
    return replace(both, finish=partial(_marginals, triples=tuple(triples)))


def _marginals(counted: tuple[PairCounts, Counts], triples: Sequence[Subset]) -> Marginals:
    pairs, cells = counted
    ends = np.cumsum([prod(pairs.cardinalities[i] for i in which) for which in triples])
    tables = np.split(cells, ends[:-1]) if triples else []
    return Marginals(pairs, dict(zip(triples, tables, strict=True)))


def total_variation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Total variation distance of two tables of counts or probabilities, each divided by its sum; 1 if one is empty."""
    total_a, total_b = float(a.sum()), float(b.sum())
    if total_a <= 0 or total_b <= 0:
        return float(total_a > 0 or total_b > 0)
    return float(np.abs(a / total_a - b / total_b).sum() / 2)


def distances(a: Marginals, b: Marginals, k: int) -> Floats:
    """Total variation distances of all k-way marginals, float64[subsets]."""
    return np.array([total_variation(a.table(which), b.table(which)) for which in a.subsets(k)])


def distances_to_independence(a: Marginals, k: int) -> Floats:
    """Distances of the k-way marginals to the products of the table's own one-way marginals, float64[subsets]."""
    shares = [a.table((i,)) / max(a.records, 1) for i in range(len(a.pairs.cardinalities))]
    result = []
    for which in a.subsets(k):
        product = shares[which[0]]
        for i in which[1:]:
            product = np.multiply.outer(product, shares[i]).ravel()
        result.append(total_variation(a.table(which), product))
    return np.array(result)


def k_marginal_score(distance: Floats) -> float:
    """NIST's score, from 0 to 1000: a thousand times one minus the mean distance; NaN without marginals."""
    return float(1000 * (1 - distance.mean())) if distance.size else float("nan")


SUBSAMPLES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


def subsample_scores(a: Marginals, k: int, *, seed: int, shares: Sequence[float] = SUBSAMPLES) -> Floats:
    """The score of a random part of the table itself, for each share, float64[shares].

    Each marginal is thinned by itself: the expected score of one part on all marginals is the same.
    """
    rng = np.random.default_rng(seed)
    tables = [table[table > 0] for table in map(a.table, a.subsets(k))]
    return np.array(
        [k_marginal_score(np.array([total_variation(rng.binomial(t, share), t) for t in tables])) for share in shares]
    )


def subsample_scores_by_halves(halves: Floats) -> Floats:
    """As `subsample_scores`, from the distances of two random halves: about, for small parts.

    Heavy records are in a part with all their weight, or not at all.
    """
    odds = np.array(SUBSAMPLES) / (1 - np.array(SUBSAMPLES))
    return np.asarray(1000 * (1 - halves.mean() / 2 / np.sqrt(odds)))


def equivalent_share(score: float, scores: Floats, shares: Sequence[float] = SUBSAMPLES) -> float | None:
    """The share of the table whose random part scores like `score`; None below the smallest share.

    Interpolated in the logarithms of share and distance; 1.0 above the largest share.
    """
    if not np.isfinite(score) or score < scores[0]:
        return None
    if score >= scores[-1]:
        return 1.0
    gaps = np.log(np.maximum(1000 - np.maximum.accumulate(scores), 1e-9))
    return float(np.exp(np.interp(-np.log(max(1000 - score, 1e-9)), -gaps, np.log(shares))))


_PICTURES = 60  # attributes drawn, at most
# shares of records: that keep a dependence at least, that a release may lose, or lose of one without an exception, and
# that it keeps unless it is bad
_SURE, _LOST, _LOST_OF_ALL, _BROKEN = 0.98, 0.02, 0.005, 0.8
_CONSTANT = 0.95  # share of one value from which on an attribute says nothing that another could determine
_LEAST = 20  # real records for each value of what determines
_GROUPS, _SUBSETS = 6, 100


def pictures(counts: Mapping[str, Marginals], view: View) -> tuple[Plot, ...]:
    """The shares of the values of each attribute, real beside released."""
    drawn = [
        BothShares(axis, *(counts[name].table((i,)) / max(counts[name].records, 1) for name in ("real", "released")))
        for i, axis in enumerate(view.axes[:_PICTURES])
    ]
    more = f", {len(view.axes) - _PICTURES} more are in the tables" if len(view.axes) > _PICTURES else ""
    return (profile_plot(f"Each attribute{more}", drawn),)


@dataclass(frozen=True)
class Dependence:
    """Two attributes; the first determines the second in the real table."""

    text: str  # the pair
    real: float  # shares of the records that keep it
    released: float

    @property
    def is_broken(self) -> bool:
        """Whether the release breaks it."""
        return self.released < self.real - (_LOST if self.real < 1 else _LOST_OF_ALL)


def dependences(counts: Mapping[str, Marginals], view: View) -> list[Dependence]:
    """What determines what in the real table, and for what share of the records; the most broken first."""
    found = []
    tables = {name: counts[name].pairs for name in ("real", "released")}
    for i, j in permutations(range(len(view.axes)), 2):
        real, released = (tables[name].pair(i, j) for name in ("real", "released"))
        total, seen = max(int(real.sum()), 1), real.sum(axis=1) > 0
        holds, most = real.max(axis=1).sum() / total, real.sum(axis=0).max() / total
        if holds < _SURE or most > _CONSTANT or total < _LEAST * seen.sum():
            continue
        kept = released[np.flatnonzero(seen), real.argmax(axis=1)[seen]].sum() / max(int(released[seen].sum()), 1)
        found.append(Dependence(f"{view.names[i]} determines {view.names[j]}", float(holds), float(kept)))
    return sorted(found, key=lambda one: one.released)


def reserved(state: State, text: str, found: Sequence[Dependence]) -> tuple[State, str]:
    """A verdict, which is not good where the release breaks a dependence."""
    broken = [one for one in found if one.is_broken]
    if not broken:
        return state, text
    worst = broken[0]
    more = f" ({number_of(len(broken) - 1, 'more such pair')})" if len(broken) > 1 else ""
    text += f" But {worst.text} in the real table, and only in {worst.released:.1%} of the released records{more}."
    return ("bad" if state == "bad" or worst.released < _BROKEN else "fair"), text


def wide_counts(samples: Mapping[str, Codes], view: View, *, seed: int) -> dict[str, Marginals]:
    """Counts of four- and five-way marginals of samples, as `Inputs.marginals` names them. Each attribute is looked at
    in a few groups of about as many real records each, categories by their size.
    """
    codes = {name: view.codes(samples[name]) for name in ("real", "released")}
    looks = [
        _groups(np.bincount(column, minlength=axis.size), ordered=axis.ordered)
        for axis, column in zip(view.axes, codes["real"], strict=True)
    ]
    rng = np.random.default_rng(seed)
    coin = rng.random(len(codes["real"][0])) < 0.5
    grouped = {
        name: [look[column] for look, column in zip(looks, columns, strict=True)] for name, columns in codes.items()
    }
    parts = {
        **grouped,
        "first half": [c[coin] for c in grouped["real"]],
        "second half": [c[~coin] for c in grouped["real"]],
    }
    subsets = [which for k in (4, 5) for which in _chosen(len(looks), k, rng)]
    operator = marginals_operator([int(look.max()) + 1 for look in looks], subsets)

    def counted(columns: Codes) -> Marginals:
        batches = [[c[at : at + BATCH_ROWS] for c in columns] for at in range(0, max(len(columns[0]), 1), BATCH_ROWS)]
        summary = reduce(operator.add, batches[1:], operator.chunk(batches[0]))
        made: Marginals = operator.finish(operator.compact(summary))
        return made

    return {name: counted(columns) for name, columns in parts.items()}


def parity(counts: Marginals, which: Subset) -> float:
    """The mean product of the signs of some attributes: 1 where a value is in an upper group, else −1. It sees what
    is left of a dependence of all of them when every smaller one is right.
    """
    shape = [counts.pairs.cardinalities[i] for i in which]
    table = counts.table(which).reshape(shape) / max(counts.records, 1)
    for size in shape:
        table = np.tensordot(np.where(np.arange(size) < size / 2, -1.0, 1.0), table, axes=(0, 0))
    return float(table)


def parities(counts: Mapping[str, Marginals], k: int) -> tuple[float, float]:
    """How far the parities are apart, on average: released and real ones, and those of two real halves."""
    every = counts["real"].subsets(k)
    of = {name: np.array([parity(one, which) for which in every]) for name, one in counts.items()}
    return (
        float(np.abs(of["released"] - of["real"]).mean()),
        float(np.abs(of["first half"] - of["second half"]).mean()),
    )


def _groups(counts: Counts, *, ordered: bool) -> np.ndarray:
    """For each code its group."""
    if len(counts) <= _GROUPS:
        return np.arange(len(counts), dtype=np.uint8)
    if not ordered:
        groups = np.full(len(counts), _GROUPS - 1, np.uint8)
        groups[np.argsort(-counts, kind="stable")[: _GROUPS - 1]] = np.arange(_GROUPS - 1)
        return groups
    middle: Floats = (np.cumsum(counts) - counts / 2) / max(int(counts.sum()), 1)
    return np.unique(np.minimum(middle * _GROUPS, _GROUPS - 1).astype(np.uint8), return_inverse=True)[1].astype(
        np.uint8
    )


def _chosen(attributes: int, k: int, rng: np.random.Generator) -> list[Subset]:
    """Sets of k attributes: all, or a random sample."""
    if comb(attributes, k) <= _SUBSETS:
        return list(combinations(range(attributes), k))
    chosen: set[Subset] = set()
    while len(chosen) < _SUBSETS:
        chosen.add(tuple(sorted(rng.choice(attributes, k, replace=False).tolist())))
    return sorted(chosen)
