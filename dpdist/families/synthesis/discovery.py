"""The noise with which a synthesis finds values, bounds and bins that its schema leaves open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dpdist.families.base.calibration import least_above, tail
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.privacy.calibrate import ABOVE

CELLS = 512
"""Cells of a fine histogram, about; of small tables fewer."""

_VALUES = 4.0  # parts of mu^2 that the values of a column get where a histogram of numbers has one: they must be clear
_STEPS = 0.25  # the same for multiples: most of a column's values are, or few

_NAMED = 0.25  # part of delta that is the probability of naming a value of one record


@dataclass(frozen=True)
class Discovery:
    """The noise of what is found."""

    values: float  # deviation of the counts of values
    cells: float  # deviation of all other counts, but for fine histograms where not every column needs one
    steps: float  # deviation of the counts of multiples
    named_from: int  # a value is named if its noisy count is at least this
    lost: float  # probability that a value of one record is named

    @classmethod
    def of(cls, spec: WholeSynthesisSpec, mu: float) -> Discovery:
        """The noise at which everything is mu-GDP together."""
        texts = len(spec.undeclared_texts)
        binned, stepped = len(spec.undeclared_numbers), len(spec.undeclared_steps)
        cells = math.sqrt(1 + _VALUES * texts + 2 * binned + _STEPS * stepped) / mu * ABOVE
        values, lost = cells / math.sqrt(_VALUES), lost_by(spec)
        named = least_above(partial(tail, "gaussian", values), lost / texts) + 1 if texts else 1
        return cls(values, cells, cells / math.sqrt(_STEPS), named, lost)

    def spent(self, values: int, cells: int, steps: int) -> float:
        """Of mu^2, by this many histograms of each kind."""
        return (values / self.values**2 + cells / self.cells**2 + steps / self.steps**2) * ABOVE

    def fine(self, wide: int, binned: int) -> float:
        """The deviation of the fine histograms of some of the columns: what was kept for all of them is theirs."""
        return self.cells * math.sqrt(wide / binned) * ABOVE

    def draws(self, spec: WholeSynthesisSpec) -> int:
        """A bound of the draws of noise that one table and its neighbour share."""
        coarse = sum(spec.attribute(name).cardinality for name in spec.undeclared_numbers)
        return 1 + 2 * len(spec.undeclared_texts) + coarse + (3 * CELLS + 2) * len(spec.undeclared_numbers)


def lost_by(spec: WholeSynthesisSpec) -> float:
    """The probability with which values of single records may be named."""
    return _NAMED * spec.privacy.delta if spec.undeclared_texts else 0.0
