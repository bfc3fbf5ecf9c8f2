"""The noise with which a synthesis finds values, bounds and bins that its schema leaves open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dpdist.families.base.calibration import least_above, tail
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.privacy.arrays import WEIGHT, weight_of
from dpdist.privacy.calibrate import ABOVE

CELLS = 512
"""Cells of a fine histogram, about; of small tables fewer."""

SHARES = 20
"""Steps in which the second naming takes what discovery may spend."""

_COUNTED = 0.2  # part of what discovery may spend that counts records and finds bounds and bins; of one column less
_COLUMNS = 5.0  # weight of histograms from which on it is all of that
_FIRST = 0.1  # part for the first naming
_STEPS = 0.25  # weight of counts of multiples: most of a column's values are, or few

_NAMED = 0.25  # part of delta that is the probability of naming a value of one record; half of it in each naming
_SPREAD = 8.0  # of values that are not named yet, the most frequent has this many times the records of the least


@dataclass(frozen=True)
class Discovery:
    """The noise of what is found."""

    values: float  # deviation of the counts of values in the first naming
    cells: float  # deviation of all other counts, but for fine histograms where not every column needs one
    steps: float  # deviation of the counts of multiples
    named_from: int  # a value is named at first if its noisy count is at least this
    lost: float  # probability that a value of one record is named
    again: float  # the second naming is this mu-GDP at most

    @classmethod
    def of(cls, spec: WholeSynthesisSpec, mu: float) -> Discovery:
        """The noise at which everything is mu-GDP together."""
        texts = len(spec.undeclared_texts)
        weight = 1 + 2 * len(spec.undeclared_numbers) + _STEPS * len(spec.undeclared_steps)
        counted = _COUNTED * min(weight / _COLUMNS, 1.0)
        cells = math.sqrt(weight / counted) / mu * ABOVE
        values, lost = math.sqrt(max(texts, 1) / _FIRST) / mu * ABOVE, lost_by(spec)
        named = least_above(partial(tail, "gaussian", values), lost / 2 / texts) + 1 if texts else 1
        again = mu * math.sqrt(1 - counted - _FIRST) / ABOVE if texts else 0.0
        return cls(values, cells, cells / math.sqrt(_STEPS), named, lost, again)

    def spent(self, values: int, cells: int, steps: int) -> float:
        """Of mu^2, by this many histograms of each kind."""
        return (values / self.values**2 + cells / self.cells**2 + steps / self.steps**2) * ABOVE

    def fine(self, wide: int, binned: int) -> float:
        """The deviation of the fine histograms of some of the columns: what was kept for all of them is theirs."""
        return self.cells * math.sqrt(wide / binned) * ABOVE

    def naming(self, mu: float, texts: int) -> tuple[float, int]:
        """The noise of the second naming and its threshold, in parts of `WEIGHT`, at which it is mu-GDP.

        A record whose values no other has gives some number of sums a weight; whatever the number, one of them is named
        with half of the probability `lost` at most.
        """
        scale = WEIGHT / mu * ABOVE
        above, weights = partial(tail, "gaussian", scale), {number: weight_of(number) for number in range(1, texts + 1)}
        return scale, max(least_above(above, self.lost / 2 / number) + own for number, own in weights.items())

    def unnamed(self, mu: float, texts: int, others: float) -> float:
        """The part of records' values without names after the first naming that is not named by the second either.

        Of a record `others` columns have no name on average. Values are taken to be as many at each size: between the
        first threshold and an eighth of it every doubling of the size has as many records.
        """
        number = min(1 + others * (texts - 1) / texts, texts)  # columns without a name where one has none
        threshold = self.naming(mu, texts)[1] / WEIGHT * math.sqrt(number)
        return min(max(1 - math.log(self.named_from / threshold) / math.log(_SPREAD), 0.0), 1.0)

    def draws(self, spec: WholeSynthesisSpec) -> int:
        """A bound of the draws of noise that one table and its neighbour share."""
        coarse = sum(len(spec.attribute(name).bin_edges) + 1 for name in spec.undeclared_numbers)
        return 1 + 3 * len(spec.undeclared_texts) + coarse + (3 * CELLS + 2) * len(spec.undeclared_numbers)


def lost_by(spec: WholeSynthesisSpec) -> float:
    """The probability with which values of single records may be named."""
    return _NAMED * spec.privacy.delta if spec.undeclared_texts else 0.0
