"""What follows from the choices before a record is read: the draws, their deviations and the expected accuracy.

Which tables a round measures depends on noise, so deviations are bounded: a table's part of its share is at least what
the weights of the other tables leave it (`Learner.round`, `measure_one_way`).

The expected accuracy is a mean total variation distance of two-way tables (`docs/planning.md`). Attributes are taken as
independent with Zipf shares 1, 1/2, 1/3, ... Two parts of the error add as squares: *noise*, of a table of each pair as
precise as those that the plan measures, and *sampling* of the released records. `KEPT_OF_NOISE` and
`KEPT_OF_SAMPLING` were set on Adult, ACS 2013 and ACS 2024 at epsilon 0.1 to 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpdist.accuracy.tables import MOST_SETS, SET_CELLS, triples_of
from dpdist.errors import AccountingError
from dpdist.model.choices import EMPTY, HIGH_ROUNDS, L1_OF_NOISE, MOST_CODED_CELLS, MOST_HIGH, Choices, is_wide
from dpdist.model.grids import GROUPS
from dpdist.privacy.arrays import LARGEST_SCALE, Floats
from dpdist.privacy.selection import draws_of_pick, pick_scale


def draws_at_most(choices: Choices, cardinalities: Sequence[int]) -> int:
    """A bound of the keyed draws that carry a model's guarantee."""
    cells = sum(a * b for a, b in combinations(cardinalities, 2))
    largest = math.prod(sorted(cardinalities)[-2:])
    if is_wide(cardinalities):
        largest = min(largest, MOST_CODED_CELLS)
    tables = 0 if choices.rake else len(cardinalities) + 2 * choices.rounds * choices.per_round
    raked = cells if choices.rake else 0
    m = len(cardinalities)
    copies = 1 + len(choices.coarse)  # an attribute and its coarse copies
    pick = draws_of_pick(math.comb(copies * m, 2) + 1)  # of all pairs, or to stop
    triples = 0
    if choices.triple_tables:
        groups = [min(size, choices.triple_groups) for size in cardinalities]
        triples = sum(math.prod(groups[i] for i in triple) for triple in triples_of(cardinalities))
    if choices.high:
        triples += HIGH_ROUNDS * MOST_HIGH * (SET_CELLS + draws_of_pick(MOST_SETS + 1))
    if choices.grids:
        triples += math.comb(m, 2) * GROUPS**2
    return 3 * sum(cardinalities) + 1 + tables * (min(largest, cells) + pick) + raked + triples


ROUNDED = 1.5  # weights are rounded to powers of the root of two: a part of a share changes by so much at most
# the largest ratio of the priorities of pairs, and of the weights of an attribute with and without a rare value
_PRIORITIES, _OF_RARE = 1 << 10, 4


def refuse_undrawable(choices: Choices, cardinalities: Sequence[int]) -> None:
    """Refuse choices with a step whose noise could not be drawn. Raises AccountingError."""
    c, m = choices, len(cardinalities)
    pairs, values = m * (m - 1) // 2, math.sqrt(max(cardinalities))
    of_pairs = _PRIORITIES * 2 * math.prod(sorted(cardinalities)[-2:]) ** 0.5
    rounds = max(c.rounds, 1)
    for name, share, tables, ratio, size in (
        ("one_way", c.one_way, m, values, 1),
        ("one_way_again", c.one_way_again, m, _OF_RARE * (values + 1), 1),
        ("tree", c.tree, m - 1, of_pairs, 1),
        ("pairs", c.pairs / rounds, c.per_round, of_pairs, 1),
        ("rake", c.rake, pairs, of_pairs, 1),
        ("triples", c.triples, c.triple_tables, 1.0, 1),
        ("high", c.high, MOST_HIGH, 1.0, 1),
    ):
        if share:
            check_deviation(f"privacy.epsilon: {name}", size * math.sqrt(ROUNDED * tables * ratio / share) / c.mu)
    of_round = c.picks / max(c.rounds + bool(c.tree), 1)
    for name, share, picks in (
        ("picks", of_round * bool(c.tree), m - 1),
        ("picks", of_round * bool(c.rounds), c.per_round),
        ("high_picks", c.high_picks, MOST_HIGH),
    ):
        if share and picks:
            try:
                pick_scale(cost=c.mu * math.sqrt(share / picks))
            except AccountingError as error:
                raise AccountingError(f"privacy.epsilon: {name}: {error}: change epsilon") from None


def check_deviation(setting: str, deviation: float) -> None:
    """Refuse noise of a deviation that is not drawn. Raises AccountingError: it names the share that pays for it."""
    if not deviation <= LARGEST_SCALE:
        raise AccountingError(
            f"{setting}: noise of a deviation of up to {deviation:.2g} would be needed, and at most 2^45 is drawn: "
            "raise epsilon or this share, or leave the share out"
        )


USABLE = 0.2  # error of a group's mean, in deviations of the number, at which it is still of use
KEPT_OF_NOISE = 0.3
KEPT_OF_SAMPLING = 0.5
_PAIRS = 300  # of more only some are looked at


@dataclass(frozen=True)
class Expected:
    """Expected error of two-way tables, in total variation: its parts by noise and by sampling."""

    noise: float
    sampling: float

    @property
    def error(self) -> float:
        """Both together."""
        return math.hypot(self.noise, self.sampling)


def expected(cardinalities: Sequence[int], choices: Choices, *, minimum: int, released: int) -> Expected:
    """What a plan is expected to give, for this many records in the table at least and this many released ones."""
    pairs = list(combinations(cardinalities, 2))
    if not pairs:
        return Expected(0.0, 0.0)
    sigma = pair_deviation(choices, len(cardinalities))
    noise, sampling = [], []
    for a, b in pairs[:: max(1, len(pairs) // _PAIRS)]:
        shares = np.outer(_zipf(a), _zipf(b))
        noise.append(np.minimum(L1_OF_NOISE * sigma, minimum * shares + EMPTY * sigma).sum() / 2 / minimum)
        sampling.append(np.minimum(L1_OF_NOISE * np.sqrt(shares / released), shares).sum() / 2)
    return Expected(KEPT_OF_NOISE * float(np.mean(noise)), KEPT_OF_SAMPLING * float(np.mean(sampling)))


def _zipf(size: int) -> Floats:
    weights = 1 / np.arange(1, size + 1)
    shares: Floats = weights / weights.sum()
    return shares


def pair_deviation(choices: Choices, attributes: int) -> float:
    """Deviation of a cell of a pair's table: of all pairs, or between those of the tree's and of the rounds' tables."""
    if choices.rake:
        return math.sqrt(attributes * (attributes - 1) / 2 / choices.rake) / choices.mu
    steps = [(choices.tree, attributes - 1), (choices.pairs, choices.rounds * choices.per_round)]
    precisions = [share * choices.mu**2 / tables for share, tables in steps if share and tables]
    if not precisions:  # one-way tables only
        return one_way_deviation(choices, attributes)
    return 1 / math.sqrt(sum(precisions) / len(precisions))


def usable_group(choices: Choices, cardinalities: Sequence[int]) -> int | None:
    """Records of a group in which the mean of a number is off by about `USABLE` of the number's deviation, by noise in
    the table of both; None where no pair is measured. Codes of the number are taken to be as frequent as each other.
    """
    if not (choices.tree or choices.pairs or choices.rake):
        return None
    codes = min(max(cardinalities), choices.coarse[0 if choices.rake else -1][1])  # raking takes no coarse copies
    found = pair_deviation(choices, len(cardinalities)) * math.sqrt(codes) / USABLE
    step = int(10 ** max(math.floor(math.log10(found)) - 1, 0))
    return math.ceil(found / step) * step


def one_way_deviation(choices: Choices, attributes: int) -> float:
    """Deviation of a cell of a one-way table, measured once or twice."""
    return math.sqrt(attributes / (choices.one_way + choices.one_way_again)) / choices.mu
