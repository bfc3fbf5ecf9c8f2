"""All choices of a synthesis, from public facts only: the domains, a minimum of records and the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from dpdist.accuracy.tables import halves_of, small_sets
from dpdist.data.count import MAX_PAIR_CELLS, cells_of_pairs

L1_OF_NOISE = math.sqrt(2 / math.pi)  # mean of |Z| for a standard normal Z
EMPTY = 0.2  # what a fitted cell of an empty table keeps of the noise, in deviations: the fit allows no negative counts
# cells of all pair tables of the model's codes, where those of the values do not fit a worker
MOST_CODED_CELLS = MAX_PAIR_CELLS // 16
OF_ERROR = 2 / 3  # power of tables' errors that gives the weights with the least sum of them
PUBLIC_MISFIT = 0.01  # share of the noisy misfit that says whether public rows are near enough to be released
# a second coarse copy where everything by an attribute matters: a mean by its values takes few cells
SECOND_COPY = (10, 4)
FEWEST = 4  # fewest pairs of a round
MOST_ROUNDS = 5000  # rounds of balancing at most

_ROUNDS = 4  # of them: each is a message of every client
_FITS = 16  # rounds in which the model learns from noisy tables of all pairs, which costs nothing
GRIDS = 0.12  # share of the small tables of all pairs that pairs are picked from, where no distance may be seen

# share of the tables of all triples; those of pairs, which these make more precise, have so much less
_TRIPLES = 0.2
_POOLS = 2  # parts of the pool where triples are measured: one has more noise of sampling than they have
# parts of the share of a round that tables of small sets and their picks may take, how many are measured at most in a
# round, and in which of the last rounds
_HIGH, _HIGH_PICKS, MOST_HIGH, HIGH_ROUNDS = 0.7, 0.1, 8, 2
_OF_RAKE = 0.03  # part of the share of all pairs that they may take in a round, where records are raked
# where fewer pairs than this could be told from their noise, even one-way tables are noise: no pair is measured
_NOTHING = 1e-5
# raked records are balanced where the pool has this many rows a record: a larger sample of it is balanced by itself
_BALANCED_PART = 4
# noise of one-way tables, in parts of the records, from which their share grows, and at which it would be all
_FEW = (0.1, 0.4)
_ALL = 0.9  # one-way tables that would have a larger share have all

_ONE_WAY_ONLY: dict[str, Any] = dict.fromkeys(("tree", "pairs", "picks"), 0.0) | dict.fromkeys(("rounds", "balance"), 0)
_ONE_WAY_ONLY |= {"one_way": 0.3, "one_way_again": 0.7}

_AGAIN = 0.01  # with earlier releases: share of the second one-way tables
_MANY = 300  # pairs of attributes beyond which the fits take most of the time: fewer rounds, and no raking
# the fewest triples that are measured, and the fewest groups of an attribute's values in them: with fewer groups, pairs
# lose more by the share than triples tell
_FEWEST_TRIPLES, _FEWEST_GROUPS = 10, 13


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a synthesis does; shares are of mu^2 and sum to at most 1."""

    mu: float  # the release is mu-GDP
    one_way: float = 0.06  # one_way, one_way_again: shares of the two measurements of the one-way tables
    one_way_again: float = 0.19
    # tree, pairs, picks: shares of the tree's tables, of all further rounds' tables, and of all picks
    tree: float = 0.30
    pairs: float = 0.41
    picks: float = 0.04
    grids: float = 0.0  # share of small tables of all pairs, from which pairs are picked where no distance may be seen
    rake: float = 0.0  # share of the tables of all pairs, which give the model; 0 without raking
    triples: float = 0.0  # share of the tables of triples that records are raked to as well
    # triple_tables, triple_groups: these triples, and groups that an attribute's values are merged to in them
    triple_tables: int = 0
    triple_groups: int = 0
    # high, high_picks: what tables of three and four attributes of few cells, and their picks, may take in each of the
    # last rounds of the share of pairs; it is not counted again
    high: float = 0.0
    high_picks: float = 0.0
    rounds: int = 8  # rounds, per_round: further rounds, and pairs measured in each at most
    per_round: int = 5
    merge_below: float = 1.5  # values with noisy counts under this many deviations are merged
    coarse: tuple[tuple[int, int], ...] = ((24, 20),)  # from so large attributes on, groups of their coarse copies
    cells: int = 150_000  # most cells of all cliques
    # of the fit after the tree and each round; the last number repeats
    iterations: tuple[int, ...] = (24, 32, *[40] * 6, 60)
    penalty: float = 0.5  # part of the expected error of a pair's table that its score is reduced by
    priorities: tuple[tuple[int, int, float], ...] = ()  # pairs of attributes, and their weights; others have 1
    # pool_parts, pool_rows: parts of the pool of model records whose weights are raked, and rows of each
    pool_parts: int = 1
    pool_rows: int = 0
    sweeps: int = 6  # passes of the raking over all pairs; one less with triples, after a first fit to pairs
    prior_cells: int = 0  # most cells of a public table's model; 0 for its tree
    balance: int = 150  # rounds in which records are exchanged so that their pair tables come closer to the model's

    @property
    def spends(self) -> float:
        """The sum of all shares."""
        single = (self.one_way, self.one_way_again, self.tree, self.pairs, self.picks, self.rake)
        return math.fsum((*single, self.triples, self.grids))

    @property
    def of_high(self) -> float:
        """What small sets and their picks may take of the share of all pairs."""
        return HIGH_ROUNDS * (self.high + self.high_picks) if self.rake else 0.0


def is_wide(cardinalities: Sequence[int]) -> bool:
    """Whether pairs are counted on merged codes, in a second pass: all tables do not fit, or one is very large."""
    largest = math.prod(sorted(cardinalities)[-2:]) if len(cardinalities) > 1 else 0
    return largest > MAX_PAIR_CELLS // 4 or cells_of_pairs(cardinalities) > MAX_PAIR_CELLS


def choose(cardinalities: Sequence[int], *, records: int, mu: float, raking: bool = True) -> Choices:
    """The default choices for a minimum of `records`; without `raking` for models that are conditioned."""
    d = len(cardinalities)
    number = d * (d - 1) // 2
    one_way = Choices(mu=mu, **_ONE_WAY_ONLY)
    if not number:
        return one_way
    sizes = np.array([a * b for a, b in combinations(cardinalities, 2)], float)
    capped = median(min(a, 24) * min(b, 24) for a, b in combinations(cardinalities, 2))
    measurable = (0.045 * records * mu * math.sqrt(0.09) / (0.4 * capped)) ** 2
    if measurable < _NOTHING:
        return one_way
    per_round = int(min(max(measurable, FEWEST), max(5, min(d, number / 9))))
    found = Choices(
        mu=mu,
        per_round=per_round,
        cells=int(min(max((6 if number > _MANY else 16) * records, 150_000), 600_000)),
        balance=0 if number > 1000 or is_wide(cardinalities) else 150,  # it holds tables of all pairs of values
        pool_rows=(rows := int(min(max(4 * records, 200_000), 1_000_000))),
    )
    if number > _MANY:
        found = replace(found, rounds=5)
    found = _with_shares(found, cardinalities, records=records)
    noise = 0.4 * float(np.mean(np.minimum(sizes, 2000))) * math.sqrt(number) / (mu * math.sqrt(0.5)) / records
    if raking and found.rounds and noise < 0.06 and number <= _MANY and not is_wide(cardinalities):
        found = replace(found, one_way=0.03, one_way_again=0.05, rake=0.92, rounds=_FITS, iterations=(45,))
        if rows < _BALANCED_PART * records:
            found = replace(found, balance=0)
        # the weights of the pool make up for what the model misses
        cells = min(found.cells, int(max(6 * records, 150_000)))
        found = replace(found, tree=0.0, pairs=0.0, picks=0.0, cells=cells)
        found = _with_triples(found, cardinalities, records)
    return found


def _with_triples(choices: Choices, cardinalities: Sequence[int], records: int) -> Choices:
    """With triples on groups of values, as many that a mean cell of the merged tables holds as many records as the
    deviation of its noise: finer ones lose less than their noise adds. None where records are few.
    """
    number = len(halves_of(cardinalities)[0])
    if number < _FEWEST_TRIPLES:
        return choices
    groups = int((records * choices.mu * math.sqrt(_TRIPLES / number)) ** (1 / 3))
    if groups < _FEWEST_GROUPS:
        return choices
    choices = replace(choices, pool_parts=_POOLS, sweeps=5, triples=_TRIPLES)
    return replace(choices, rake=choices.rake - _TRIPLES, triple_tables=number, triple_groups=groups)


def with_high(choices: Choices, cardinalities: Sequence[int]) -> Choices:
    """With a test of sets of three and four attributes of few cells, where there are any."""
    if not choices.rounds or is_wide(cardinalities) or not small_sets(tuple(cardinalities)):
        return choices
    if choices.rake and choices.prior_cells:
        return choices
    share = _OF_RAKE * choices.rake if choices.rake else choices.pairs / choices.rounds
    return replace(choices, high=_HIGH * share, high_picks=_HIGH_PICKS * share)


def without_triples(choices: Choices) -> Choices:
    """Their shares go to the tables of all pairs."""
    rake = choices.rake + choices.triples
    without = replace(choices, triples=0.0, triple_tables=0, triple_groups=0, rake=rake)
    return replace(without, pool_parts=Choices.pool_parts, sweeps=Choices.sweeps)


def with_evidence(choices: Choices, cardinalities: Sequence[int]) -> Choices:
    """The choices with earlier releases: a tree needs no share, and their pairs may have half of the cells. Where all
    pairs are measured, these and triples have nearly everything, and any number of records is balanced: without earlier
    releases it would be, but for its speed.
    """
    if choices.rake:
        rake, cells = choices.rake + choices.one_way_again - _AGAIN, choices.cells // 2
        choices = replace(choices, balance=Choices.balance, sweeps=2 * choices.sweeps)
        return replace(choices, rake=rake, one_way_again=_AGAIN, prior_cells=cells)
    of_tree = math.ceil((len(cardinalities) - 1) / max(choices.rounds, 1)) * bool(choices.tree)
    return replace(
        choices,
        tree=0.0,
        pairs=choices.tree + choices.pairs,
        per_round=choices.per_round + of_tree,
        prior_cells=choices.cells // 2,
    )


def with_sums(choices: Choices) -> Choices:
    """The choices where no distance may be seen: pairs are picked by noisy grids, which have a share of their own."""
    if not (choices.tree or choices.pairs):
        return choices
    kept = (1 - GRIDS) / (1 - choices.picks)
    shares = ("one_way", "one_way_again", "tree", "pairs")
    scaled: dict[str, Any] = {name: getattr(choices, name) * kept for name in shares}
    rounds = min(choices.rounds, _ROUNDS)
    per_round = -(-choices.per_round * choices.rounds // rounds) if rounds else choices.per_round
    return replace(choices, grids=GRIDS, picks=0.0, rounds=rounds, per_round=per_round, **scaled)


def with_prior(choices: Choices, attributes: int, *, rows: bool = True) -> Choices:
    """The choices with a model of a public table to start from: its tree needs no share of its own. Where a round has
    the fewest pairs, the public model may have half of the cells. Only where its `rows` may be released, a share is
    left for their misfit.
    """
    misfit = PUBLIC_MISFIT * (rows and attributes > 1)
    if choices.rake:
        return replace(choices, one_way_again=choices.one_way_again - misfit)
    few = choices.per_round <= FEWEST
    of_tree = math.ceil((attributes - 1) / max(choices.rounds, 1))
    pairs, again = choices.tree + choices.pairs, choices.one_way_again
    if pairs:
        pairs -= misfit
    else:
        again -= misfit
    return replace(
        choices,
        tree=0.0,
        pairs=pairs,
        one_way_again=again,
        per_round=choices.per_round + (0 if few else of_tree),
        prior_cells=choices.cells // 2 if few else 0,
    )


def _with_shares(choices: Choices, cardinalities: Sequence[int], *, records: int) -> Choices:
    """With shares of the one-way and pair tables without raking.

    One-way tables get a quarter, and more the larger their noise is: where it is more than a tenth of the records,
    pairs could not be told from theirs.
    """
    d = len(cardinalities)
    noise = 0.4 * sum(cardinalities) / d * math.sqrt(d) / (choices.mu * math.sqrt(0.25)) / records
    one_way = min(max(0.25 * math.sqrt(noise / 0.0125), 0.25), 0.4)
    few = noise * sum(min(size, 24) for size in cardinalities) / sum(cardinalities)  # rare values are merged
    one_way = max(one_way, 0.4 + 0.6 * (few - _FEW[0]) / (_FEW[1] - _FEW[0]))
    if one_way > _ALL:
        return replace(choices, **_ONE_WAY_ONLY)
    first, rest = 0.06 + 0.02 * (one_way - 0.25) / 0.15, 0.96 - one_way
    return replace(choices, one_way=first, one_way_again=one_way - first, tree=0.42 * rest, pairs=0.58 * rest)


def reasons(choices: Choices, cardinalities: Sequence[int]) -> dict[str, str]:
    """What was chosen and why, by topic, for people."""
    c, d = choices, len(cardinalities)
    sigma = math.sqrt(d) / (c.mu * math.sqrt(c.one_way + c.one_way_again))
    found = {
        "One-way": f"{d} tables measured {'twice' if c.one_way_again else 'once'} with {_percent(c.one_way)} and "
        f"{_percent(c.one_way_again)} of mu^2, about +-{sigma:,.0f} records a count, the second time with most "
        f"precision where values are rare. Values under {c.merge_below:g} deviations are merged for the fit"
    }
    (least, groups), *further = c.coarse
    if max(cardinalities) >= c.coarse[-1][0]:
        found["Coarse"] = (
            f"attributes with {least} values or more get a copy of {groups} groups"
            + "".join(f", and they or their copies with {more} or more one of {few}" for more, few in further)
            + " of equal mass, or by levels"
        )
    picked = f"by small tables of all pairs, {_percent(c.grids)}" if c.grids else _percent(c.picks)
    if c.tree or c.pairs:
        found["Pairs"] = (
            (f"a tree of {d - 1} pairs ({_percent(c.tree)}), then " if c.tree else "")
            + f"{c.rounds} rounds of up to {c.per_round} pairs "
            f"({_percent(c.pairs)}), picked where the model misses most ({picked}): few enough that "
            f"the noise of a table stays below its signal. The model has at most {c.cells:,} cells"
        )
    if c.high:
        found["Small sets"] = (
            f"up to {MOST_HIGH} tables of three and four attributes of few cells, {HIGH_ROUNDS} times, of the share of "
            f"pairs (each time {_percent(c.high + c.high_picks)} at most), where the model misses more than noise"
        )
    if c.priorities:
        found["Priorities"] = (
            f"{len(c.priorities)} pairs have a weight of their own, which multiplies what the model misses of them "
            "when pairs are picked, and their precision when they are measured"
        )
    if c.rake:
        found["Raking"] = (
            f"the declared records are many for the noise: all {d * (d - 1) // 2} pairs are measured "
            f"({_percent(c.rake)}), the model is learned from them in {c.rounds} rounds, and a pool of "
            f"{c.pool_parts * c.pool_rows:,} of its records is weighted to them"
        )
        if c.triple_tables:
            found["Triples"] = (
                f"{c.triple_tables} tables of three attributes ({_percent(c.triples)}), whose values are merged to up "
                f"to {c.triple_groups} groups of equal mass; they make those of pairs more precise, and the pool is "
                "weighted to them too"
            )
    elif d > 1:
        found["Raking"] = "none: a table of all pairs would be noisier than the model"
    if c.balance:
        found["Balance"] = f"{c.balance} rounds of exchanges bring the records' pair tables to the model's"
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
