"""All choices of a synthesis, from public facts only: the domains, a minimum of records and the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

L1_OF_NOISE = math.sqrt(2 / math.pi)
"""Mean of |Z| for a standard normal Z."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a synthesis does; shares are of mu^2 and sum to at most 1.

    Attributes
    ----------
    mu : float
        The release is mu-GDP.
    one_way, one_way_again : float
        Shares of the two measurements of the one-way tables.
    tree, pairs, picks : float
        Shares of the tree's tables, of all further rounds' tables, and of all picks.
    misfit, rake : float
        Shares of the noisy misfit that decides about raking, and of all pair tables; 0 without raking.
    rounds, per_round : int
        Further rounds, and pairs measured in each at most.
    merge_below : float
        Values with noisy counts under so many deviations are merged.
    coarse : tuple of (int, int)
        (from, groups): attributes with so many codes get a coarse copy of so many groups.
    cells : int
        Most cells of all cliques.
    iterations : tuple of int
        Of the fit after the tree and after each round; the last number repeats.
    tree_penalty, penalty : float
        Part of the expected noise of a pair's table that its score is reduced by.
    pool_parts, pool_rows : int
        Parts of the pool of model records whose weights are raked, and rows of each.
    sweeps : int
        Passes of the raking over all pairs.
    balance : int
        Rounds in which records are exchanged so that their pair tables come closer to the model's.
    """

    mu: float
    one_way: float = 0.06
    one_way_again: float = 0.14
    tree: float = 0.34
    pairs: float = 0.42
    picks: float = 0.04
    misfit: float = 0.0
    rake: float = 0.0
    rounds: int = 5
    per_round: int = 5
    merge_below: float = 2.0
    coarse: tuple[tuple[int, int], ...] = ((24, 20),)
    cells: int = 150_000
    iterations: tuple[int, ...] = (60, 80, 100, 150)
    tree_penalty: float = 0.5
    penalty: float = 0.7
    pool_parts: int = 1
    pool_rows: int = 0
    sweeps: int = 8
    balance: int = 150


def choose(cardinalities: Sequence[int], *, records: int, mu: float) -> Choices:
    """The default choices.

    Parameters
    ----------
    cardinalities : sequence of int
    records : int
        Declared minimum of records.
    mu : float
    """
    d = len(cardinalities)
    number = d * (d - 1) // 2
    sizes = np.array([a * b for a, b in combinations(cardinalities, 2)], float)
    capped = np.array([min(a, 24) * min(b, 24) for a, b in combinations(cardinalities, 2)], float)
    measurable = (0.045 * records * mu * math.sqrt(0.09) / (0.4 * float(np.median(capped)))) ** 2
    per_round = int(min(max(measurable, 4), max(5, min(d, number / 9))))
    found = Choices(mu=mu, per_round=per_round, cells=int(min(max(6 * records, 150_000), 600_000)))
    if number > 1000:
        found = replace(found, balance=0)
    noise = 0.4 * float(np.mean(np.minimum(sizes, 2000))) * math.sqrt(number) / (mu * math.sqrt(0.5)) / records
    if noise < 0.06 and number <= 300:
        pool = int(min(max(4 * records, 200_000), 1_000_000))
        parts = -(-pool // 125_000)
        found = replace(
            found,
            one_way=0.03,
            one_way_again=0.05,
            tree=0.12,
            pairs=0.21,
            misfit=0.004,
            rake=0.546,
            pool_parts=parts,
            pool_rows=pool // parts,
            balance=0,
        )
    return found
