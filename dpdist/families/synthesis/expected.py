"""The accuracy that a synthesis is expected to have, from public facts alone.

These are the declared domains and minimum of records, the choices of the plan and the number
of released records. Of the frequencies nothing is known, so attributes are taken as independent with Zipf shares 1,
1/2, 1/3, ... The error of two-way tables is a mean total variation distance to the table. It has two parts, which add
as squares:

- *noise*: a table of each pair as precise as those that the plan measures, where no cell can miss more than it is
  expected to hold. What pairs imply for others and what the fit smooths leaves a part of it, `KEPT_OF_NOISE`;
- *sampling*: released records drawn at random, of which group rounding and balancing leave `KEPT_OF_SAMPLING`.

The two parts were set on Adult, ACS 2013 and ACS 2024 at epsilon 0.1 to 8 (`docs/planning.md`). What a model
of pairs misses of a table's dependence is not public, and can be more than both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpdist.families.synthesis.choices import EMPTY, L1_OF_NOISE, Choices
from dpdist.privacy.arrays import Floats

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
    """What a plan is expected to give, for so many records in the table at least and so many released ones."""
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


def one_way_deviation(choices: Choices, attributes: int) -> float:
    """Deviation of a cell of a one-way table, measured once or twice."""
    return math.sqrt(attributes / (choices.one_way + choices.one_way_again)) / choices.mu
