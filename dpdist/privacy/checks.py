r"""Checks of declared public lower bounds: a noisy count decides whether anything is published.

The number of records is private (add/remove), but noise is scaled with a lower bound of it, and the guarantee of the
released records needs a lower bound of their passing mass Z. The spec declares both; a check confirms them with noise
and **only its outcome shows**. Where a check fails nothing is published. A check that passes by mistake is a failure of
the release, which the event of the check includes. ``docs/guarantees.md`` proves what follows.

**Records of a split.** The count of a split has sensitivity 1. A count below the minimum passes only if the noise is at
least ``t``, the smallest integer with ``Pr[L >= t] <= delta``.

**Passing mass.** Among the first M candidates (M public, all of them drawn) N pass, N ~ Bin(M, Z/n). One seed moves N
by at most G, the (1 - delta) quantile of ``Bin(M, max(h, 1)/n_lo)``, but for a probability of delta; noise of scale
``G/epsilon`` makes it epsilon-DP. With ``Z < Z_declared + h`` and ``n >= n_lo`` a candidate passes with less than
``p* = (Z_declared + h)/n_lo``. Let c be the least number with ``Pr[Bin(M, p*) >= c] <= beta``: the noisy number reaches
``c + t - 1`` with probability at most ``beta + Pr[L >= t]``. The h in p* covers the neighbour: when the smaller table's
Z is below ``Z_declared``, the larger one's is below ``Z_declared + h``, and both are refused. Turned round (Clopper and
Pearson), a noisy number confirms every Z up to ``n_lo Beta_beta(c, M-c+1) - h``, with ``c = noisy - t + 1``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from dpdist.errors import AccountingError
from dpdist.privacy.balls import lower_quantile, trials_needed, upper_quantile
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace


def noise_tail(scale: float, probability: float) -> int:
    """The smallest integer t >= 1 with ``Pr[L >= t] <= probability``, L discrete Laplace with the given scale."""
    if not scale > 0 or not 0 < probability < 1:
        raise AccountingError(f"expected a positive scale and a probability in (0, 1), got {scale}, {probability}")
    # Pr[L >= t] = e^{-t/scale} / (1 + e^{-1/scale})
    return max(math.ceil(-scale * (math.log(probability) + math.log1p(math.exp(-1 / scale))) * (1 + 1e-12)), 1)


@dataclass(frozen=True, kw_only=True)
class CountCheck:
    """A noisy count of the records of a split, against a public minimum."""

    minimum: int  # what passing confirms: the public lower bound of the records in the split
    threshold: int  # the noisy count must reach it
    scale: float  # scale of the discrete Laplace noise on the count
    delta: float  # bound of the probability that a smaller count passes; charged
    unit: int = 1  # records of a unit, at most: by this many neighbouring counts differ

    def passes(self, noisy: int) -> bool:
        """Whether the noisy count confirms the minimum."""
        return int(noisy) >= self.threshold

    @property
    def event(self) -> Composed:
        """What the check costs, false passes included."""
        noise = DiscreteLaplace(self.scale, self.unit, label="noisy count")
        failure = ApproximateDP(0.0, self.delta, label="false pass")
        return Composed((noise, failure), label="check of the number of records")


def count_check(
    *, records: int, share: float = 1.0, epsilon: float, delta: float, failure: float = 1e-6, unit: int = 1
) -> CountCheck:
    """The check of a split's size, from the declared minimum of records of the whole table.
    Raises AccountingError: the parameters are out of range, or so few records cannot be confirmed with this budget.

    Parameters
    ----------
    records : int
        Declared minimum of records of the table.
    share : float
        Probability with which a record goes to the split; 1 for the whole table.
    epsilon, delta : float
        Budget of the check.
    failure : float
        Most that the probability may be that a table of `records` or more is refused.
    unit : int
        Records of a unit, at most.
    """
    if not epsilon > 0 or not 0 < delta < 1 or not 0 < share <= 1 or not 0 < failure < 1 or records < 1:
        raise AccountingError(
            "a count check needs records >= 1, a share in (0, 1], epsilon > 0 and delta and failure in (0, 1), "
            f"got {records}, {share}, {epsilon}, {delta}, {failure}"
        )
    scale = unit / epsilon
    expected = records if share == 1 else lower_quantile(failure / 2, trials=records, rate=share)
    threshold = expected - noise_tail(scale, failure / 2) + 1
    minimum = threshold + 1 - noise_tail(scale, delta)
    if minimum < 1:
        raise AccountingError(
            f"a declared minimum of {records} records is too small to be confirmed for a share of {share:g} at "
            f"epsilon = {epsilon:g}, delta = {delta:g}: declare more records or give the check a larger epsilon"
        )
    return CountCheck(minimum=minimum, threshold=threshold, scale=scale, delta=delta, unit=unit)


def pass_count_sensitivity(*, candidates: int, seeds: int, growth: float, delta: float) -> int:
    """G: how far one seed moves the number of passes among the first M `candidates`, except with probability delta.
    `seeds` is a checked lower bound of their number; `growth`, h, the most by which one seed raises the passing mass
    (`dpdist.privacy.deniability.growth`).
    """
    if candidates < 1 or seeds < 1 or not 0 < delta < 1:
        raise AccountingError(
            f"expected candidates and seeds >= 1 and delta in (0, 1), got {candidates}, {seeds}, {delta}"
        )
    rate = min(max(growth, 1.0) / seeds, 1.0)
    return max(upper_quantile(delta, trials=candidates, rate=rate), 1)


@dataclass(frozen=True, kw_only=True)
class PassCheck:
    """A noisy number of passes among the first candidates, against the declared passing mass."""

    passing_mass: float  # Z, what passing confirms, for the smaller of two neighbours
    candidates: int  # M, each drawn and tested
    seeds: int  # confirmed lower bound of the number of seeds
    growth: float  # h
    sensitivity: int  # G
    scale: float  # scale of the discrete Laplace noise on the number of passes, ``G / epsilon``
    delta: float  # two thirds for false passes, one third for passes that differ by more than G; charged

    @cached_property
    def threshold(self) -> int:
        """The noisy number of passes must reach it; out of reach where no number of passes would do."""
        half = self.delta / 3  # of false passes, one half for the noise's tail, one for the binomial's
        rate = (self.passing_mass + self.growth) / self.seeds * (1 + 1e-12)
        least = upper_quantile(half, trials=self.candidates, rate=rate) if rate < 1 else self.candidates
        return least + noise_tail(self.scale, half)

    def passes(self, noisy: int) -> bool:
        """Whether the noisy number of passes confirms the declared passing mass."""
        return int(noisy) >= self.threshold

    def lower_bound(self, noisy: int) -> float:
        """The passing mass of the smaller neighbour that a noisy number of passes would confirm: above the true one
        with probability at most two thirds of delta, half for the noise's tail, half for the Clopper-Pearson bound.
        """
        from scipy.special import betaincinv

        count = min(int(noisy) - noise_tail(self.scale, self.delta / 3) + 1, self.candidates)
        if count < 1:
            return 0.0
        rate = float(betaincinv(count, self.candidates - count + 1, self.delta / 3)) * (1 - 1e-9)
        return max(self.seeds * rate - self.growth, 0.0)

    @property
    def event(self) -> Composed:
        """What the check costs, its failures included."""
        noise = DiscreteLaplace(self.scale, self.sensitivity, label="noisy number of passes")
        failure = ApproximateDP(0.0, self.delta, label="false pass or large difference")
        return Composed((noise, failure), label="check of the passing mass")


def pass_check(
    *,
    growth: float,
    passing_mass: float,
    seeds: int,
    candidates: int,
    epsilon: float,
    delta: float,
) -> PassCheck:
    """The check of a declared passing mass.
    Raises AccountingError: no outcome of the check could confirm so large a passing mass.

    Parameters
    ----------
    growth : float
        h, the most by which one seed raises the passing mass (`dpdist.privacy.deniability.growth`).
    passing_mass : float
        Z, what passing confirms.
    seeds : int
        Confirmed lower bound of the number of seeds (`CountCheck.minimum`).
    candidates : int
        M.
    epsilon, delta : float
        Budget of the check.
    """
    if not epsilon > 0 or not 0 < delta < 1:
        raise AccountingError(f"a pass check needs epsilon > 0 and delta in (0, 1), got {epsilon}, {delta}")
    moved = pass_count_sensitivity(candidates=candidates, seeds=seeds, growth=growth, delta=delta / 3)
    check = PassCheck(
        passing_mass=passing_mass,
        candidates=candidates,
        seeds=seeds,
        growth=growth,
        sensitivity=moved,
        scale=moved / epsilon,
        delta=delta,
    )
    if not check.passes(candidates + noise_tail(check.scale, delta / 3) - 1):
        raise AccountingError(
            f"a passing mass of {passing_mass:g} cannot be confirmed with {seeds} seeds: declare a smaller one, or "
            "more seeds, or draw more candidates for the check"
        )
    return check


def expected_lower_bound(check: PassCheck, *, pass_rate: float, failure: float = 1e-6) -> float:
    """The passing mass that a table with this true pass rate confirms, except with probability `failure`."""
    passes = lower_quantile(failure / 2, trials=check.candidates, rate=pass_rate)
    return check.lower_bound(passes - noise_tail(check.scale, failure / 2) + 1)


def candidates_needed(*, records: int, pass_rate: float, failure: float = 2.0**-60) -> int:
    """Candidates after which fewer than `records` have passed with probability at most `failure`.

    With the confirmed pass rate ``(Z + h)/n_lo`` less one record's ``max(h, 1)/n_lo`` the shortage, which shows,
    is as rare as the failures of the samplers.
    """
    if records < 1 or not 0 < pass_rate <= 1:
        raise AccountingError(f"expected records >= 1 and a pass rate in (0, 1], got {records}, {pass_rate}")
    return records if pass_rate == 1 else trials_needed(failure, successes=records, rate=pass_rate) + 1
