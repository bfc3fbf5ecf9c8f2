"""Confidence intervals of proportions, of their differences and of areas under a ROC curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpdist.evaluation.page.page import Cell, PageSection, State, does_not_apply
from dpdist.evaluation.records import size
from dpdist.privacy.arrays import Codes, Floats
from dpdist.spec.schema import Schema


@dataclass(frozen=True)
class Estimate:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float

    def covers(self, value: float) -> bool:
        """Whether `value` lies in the interval."""
        return self.low <= value <= self.high

    @property
    def cells(self) -> tuple[float, float, float]:
        """Value and limits, for a table."""
        return self.value, self.low, self.high


def proportion(hits: int, trials: int, *, confidence: float = 0.95) -> Estimate:
    """A proportion with its exact interval (Clopper, Pearson 1934). Raises ValueError: hits do not fit trials."""
    from scipy.stats import binomtest

    if not 0 <= hits <= trials or trials < 1:
        raise ValueError(f"a proportion needs 0 <= hits <= trials and a trial, got {hits} of {trials}")
    found = binomtest(hits, trials).proportion_ci(confidence)
    return Estimate(hits / trials, float(found.low), float(found.high))


def difference(first: tuple[int, int], second: tuple[int, int], *, confidence: float = 0.95) -> Estimate:
    """The difference of two independent proportions (hits, trials), with Newcombe's interval (1998, method 10)."""
    a, b = proportion(*first, confidence=confidence), proportion(*second, confidence=confidence)
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(value, max(low, -1.0), min(high, 1.0))


def area_under_curve(positive: ArrayLike, negative: ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """The probability that a positive scores higher than a negative (ties count half), with DeLong's interval.

    The variance (DeLong, DeLong, Clarke-Pearson 1988) is by midranks (Sun, Xu 2014); the interval is symmetric on the
    logit scale. Scores that are separated or all tied have that of a proportion of as many trials as the smaller side.
    Raises ValueError: fewer than two scores on a side.
    """
    from scipy.special import expit, logit
    from scipy.stats import norm, rankdata

    above, below = np.asarray(positive, np.float64), np.asarray(negative, np.float64)
    m, n = len(above), len(below)
    if min(m, n) < 2:
        raise ValueError(f"an area needs two scores on each side, got {m} and {n}")
    ranks = rankdata(np.concatenate([above, below]))
    wins = (ranks[:m] - rankdata(above)) / n  # of each positive, over negatives
    losses = 1 - (ranks[m:] - rankdata(below)) / m  # of each negative
    area = float(wins.mean())
    deviation = math.sqrt(wins.var(ddof=1) / m + losses.var(ddof=1) / n)
    if deviation == 0 or not 0 < area < 1:
        side = min(m, n)
        exact = proportion(round(area * side), side, confidence=confidence)
        return Estimate(area, min(exact.low, area), max(exact.high, area))
    reach = norm.ppf((1 + confidence) / 2) * deviation / (area * (1 - area))
    return Estimate(area, float(expit(logit(area) - reach)), float(expit(logit(area) + reach)))


@dataclass(frozen=True)
class OperatingPoint:
    """How many positives are found when hardly any negative is."""

    allowed: float  # share of negatives that may be accused
    found: Estimate  # found, accused: shares of positives and of negatives at or above the threshold
    accused: Estimate


def operating_point(
    positive: ArrayLike, negative: ArrayLike, *, allowed: float, confidence: float = 0.95
) -> OperatingPoint:
    """True positives at the lowest threshold that accuses at most the share `allowed` of the negatives."""
    above, below = np.asarray(positive, np.float64), np.sort(np.asarray(negative, np.float64))
    spare = math.floor(allowed * len(below))
    bar = below[len(below) - 1 - spare]  # at most `spare` negatives exceed it
    return OperatingPoint(
        allowed,
        proportion(int(np.count_nonzero(above > bar)), len(above), confidence=confidence),
        proportion(int(np.count_nonzero(below > bar)), len(below), confidence=confidence),
    )


def roc_curve(positive: ArrayLike, negative: ArrayLike, *, points: int = 200) -> tuple[Floats, Floats]:
    """Ascending rates of accused negatives and found positives, at most `points`, dense where few are accused."""
    above, below = np.sort(np.asarray(positive, np.float64)), np.sort(np.asarray(negative, np.float64))
    bars = np.unique(np.concatenate([above, below]))[::-1]
    found = np.concatenate([[0.0], 1 - np.searchsorted(above, bars) / len(above)])
    accused = np.concatenate([[0.0], 1 - np.searchsorted(below, bars) / len(below)])
    if len(bars) > points:
        places = np.searchsorted(accused, np.geomspace(1 / len(below), 1, points - 2))
        keep = np.unique(np.concatenate([[0], np.minimum(places, len(accused) - 1), [len(accused) - 1]]))
        accused, found = accused[keep], found[keep]
    return accused, found


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of samples; tables that are smaller are used whole."""

    targets: int = 10_000  # members, and as many non-members, that counting attacks tell apart
    searched: int = 2_000  # targets of attacks that search nearest records, on each side
    linked: int = 1_000  # the same for linkage, which sorts neighbours
    compared: int = 50_000  # released records that such a search goes through
    game: int = 12_000  # real, and as many released, records of the distinguishing game
    shadows: int = 4  # shadow releases
    confidence: float = 0.95  # of every interval
    least: int = 100  # records below which an attack says nothing


# columns of the cells of an `Excess`
EXCESS = ("training", "low", "high", "hold-out", "low ", "high ", "excess", "low  ", "high  ")
Hits = tuple[int, int]  # successes, and trials


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttackTables:
    """A release, the records it was made from, and records of the same population that it was not made from."""

    released: Codes
    training: Codes
    holdout: Codes | None
    schema: Schema
    seed: int  # of the samples and of the classifiers; the same seed gives the same figures
    sizes: Sizes = Sizes()

    def rng(self, attack: int) -> np.random.Generator:
        """Random numbers of one attack, by its number."""
        return np.random.default_rng([self.seed, attack])

    @property
    def comparable(self) -> tuple[Codes, Codes] | None:
        """Training records and held-out ones; None without a hold-out, or where a table is too small."""
        if self.holdout is None or min(map(size, (self.released, self.training, self.holdout))) < self.sizes.least:
            return None
        return self.training, self.holdout

    def not_comparable(self, name: str, title: str) -> PageSection:
        """Why an attack says nothing without a hold-out, or of so few records."""
        why = f"it needs {self.sizes.least} records in the release, its training and a hold-out."
        return does_not_apply(name, title, why)

    def excess(self, training: Hits, holdout: Hits, *, among: int) -> Excess:
        """The excess of one of several comparisons, which hold together with the confidence of the attack."""
        confidence = self.sizes.confidence
        return Excess(
            proportion(*training, confidence=confidence),
            proportion(*holdout, confidence=confidence),
            difference(training, holdout, confidence=1 - (1 - confidence) / among),
        )

    @property
    def together(self) -> str:
        """What the intervals of excesses mean, for a note."""
        return f"Excesses hold together with {self.sizes.confidence:.0%} confidence."


@dataclass(frozen=True)
class Excess:
    """How often an attack succeeds on training records, on held-out ones, and the difference."""

    training: Estimate
    holdout: Estimate
    more: Estimate

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Cells under `EXCESS`."""
        return (*self.training.cells, *self.holdout.cells, *self.more.cells)


def leak_state(least: float, *, severe: float = 0.01) -> State:
    """How bad an excess is, by the lower end of its interval."""
    return "good" if least <= 0 else "bad" if least > severe else "fair"
