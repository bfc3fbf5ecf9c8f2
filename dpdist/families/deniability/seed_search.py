"""The seeds of a whole-release guarantee: the least k, the pass rate to declare, and its check.

Without a public table the declared pass rate is the one that *every* table with this many seeds reaches
(`dpdist.privacy.deniability.certain_mass`): it needs no check and no honest table is refused. With one, nine tenths of
what a table like it would confirm, if that is more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from dpdist.errors import AccountingError
from dpdist.families.deniability.expectations import Expectations, SeedsChoice
from dpdist.families.deniability.spec import CHECK_SHARE, PlausibleDeniabilitySpec, Shares
from dpdist.families.deniability.splits import lighter
from dpdist.privacy import accountant
from dpdist.privacy.checks import count_check, expected_lower_bound, pass_check
from dpdist.privacy.deniability import SeedRecords, certain_mass, growth

_STEEPNESS = (1.1, 1.25, 1.5, 1.8)  # lam over ln(1/delta)
_LEAST_PASS_RATE = 0.02
_MARGIN = 0.9  # of what a table like the public one confirms
_CHECK_SHARES = (0.05, 0.1, 0.2)  # of the seeds' epsilon: each check, where the pass rate is checked
_COUNT_SHARE = 0.01  # where it need not be
_CHECKED = (1 << 18, 1 << 20, 1 << 22)
_ENOUGH = 0.98
_ROUGHLY = 0.85


class SeedSearch:
    """What the stage of the seeds takes to cost an epsilon, by the number of attributes that candidates keep."""

    def __init__(self, spec: PlausibleDeniabilitySpec, expected: Expectations) -> None:
        self.spec, self.expected = spec, expected
        self.delta, self.records = spec.privacy.release_delta, spec.synthesis.records
        self.steepness, self.correction = _STEEPNESS[1], 1.0

    def choices(self) -> Iterator[int]:
        """Numbers of attributes that candidates may keep of their seeds."""
        for kept in range(1, len(self.expected.order)):
            if self.expected.combinations(kept) is None:
                return
            yield kept

    def _first_k(self, mass: float, stage: float) -> float:
        steep = self.steepness * -math.log(self.delta)
        return self.correction * (1 + steep) ** 2 * 2 * self.records * -math.log(self.delta) / (stage**2 * mass)

    def guess(self, kept: int, share: Fraction, stage: float) -> SeedsChoice | None:
        """k without accounting."""
        seeds = self.spec.data.minimum_records * float(share)
        k = self._first_k(seeds, stage)
        for _ in range(4):
            made = self._declared(kept, share, max(math.ceil(k), 2), stage, rough=True)
            if made is None:
                return None
            k = self._first_k(seeds * made.minimum_pass_rate, stage)
        return made

    def tune(self, shares: Shares, stage: float) -> None:
        """The steepness that costs least at the first guess of k."""
        mass = self.spec.data.minimum_records * float(shares[2])
        k = math.ceil(self._first_k(mass, stage)) + 1

        def cost(steepness: float) -> float:
            return self._cost(k, steepness * -math.log(self.delta) / k, mass)

        costs = {steepness: cost(steepness) for steepness in _STEEPNESS}
        self.steepness = min(costs, key=costs.__getitem__)
        self.correction *= 1.02 * k / self._first_k(mass, costs[self.steepness])

    def _cost(self, k: int, epsilon0: float, mass: float) -> float:
        event = SeedRecords(k=k, gamma=1.0, epsilon0=epsilon0, passing_mass=mass, records=self.records)
        try:
            return accountant.epsilon(lighter(event), delta=self.delta)
        except AccountingError:
            return math.inf

    def seeds(self, kept: int, share: Fraction, stage: float) -> SeedsChoice | None:
        """The least k within the stage's epsilon, to a few parts in a hundred; None if none exists."""
        guess = self.guess(kept, share, stage)
        k = guess.k if guess is not None else 2
        best = None
        for _ in range(8):
            made = self._declared(kept, share, k, stage)
            if made is None:
                return best
            mass = math.floor(self._minimum(share, made.check_epsilon) * made.minimum_pass_rate)
            checks = made.check_epsilon * (2 if made.checked else 1)
            cost = self._cost(k, made.epsilon0, mass)
            ratio = cost / (stage - checks)
            if ratio <= 1:
                best = made if best is None or made.k < best.k else best
            if 0.96 < ratio <= 1:
                return best
            following = math.ceil(k * min((ratio * 1.015) ** 2, 4.0))
            if following == k:
                return best
            k = max(following, 2)
        return best

    def _minimum(self, share: Fraction, check_epsilon: float) -> int:
        """Lower bound of the seeds that the plan will confirm."""
        delta = self.delta * CHECK_SHARE / 2
        return _confirmed_seeds(self.spec.data.minimum_records, float(share), check_epsilon, delta)

    def _declared(self, kept: int, share: Fraction, k: int, stage: float, *, rough: bool = False) -> SeedsChoice | None:
        """The pass rate to declare, and its check (not yet, when rough); None where it is too small."""
        epsilon0 = float(f"{self.steepness * -math.log(self.delta) / k:.3g}")
        made = SeedsChoice(
            kept=kept, k=k, epsilon0=epsilon0, minimum_pass_rate=0.0, check_epsilon=_COUNT_SHARE * stage, checked=0
        )
        minimum = self._minimum(share, made.check_epsilon)
        if k >= minimum:
            return None
        mass = certain_mass(seeds=minimum - 1, combinations=self.expected.cells(kept), k=k, epsilon0=epsilon0)
        made = replace(made, minimum_pass_rate=math.floor(1000 * mass / minimum) / 1000)
        if self.expected.reference.codes is not None:
            if rough:
                other = replace(made, minimum_pass_rate=_ROUGHLY * self.expected.pass_rate(made, share))
            else:
                other = self._confirmed(made, share, stage)
            made = max(made, other, key=lambda one: one.minimum_pass_rate)
        return made if made.minimum_pass_rate >= _LEAST_PASS_RATE else None

    def _confirmed(self, made: SeedsChoice, share: Fraction, stage: float) -> SeedsChoice:
        """The pass rate that a table like the reference would confirm, less a margin."""
        rate, best, worth = self.expected.pass_rate(made, share), made, 0.0
        for part in _CHECK_SHARES:
            epsilon = part * stage
            minimum = self._minimum(share, epsilon)
            for candidates in _CHECKED:
                if made.k >= minimum:
                    break
                check = pass_check(
                    growth=growth(k=made.k, gamma=1.0, epsilon0=made.epsilon0),
                    passing_mass=0.0,
                    seeds=minimum,
                    candidates=max(candidates, self.records),
                    epsilon=epsilon,
                    delta=self.delta * CHECK_SHARE / 2,
                )
                bound = expected_lower_bound(check, pass_rate=rate) / minimum
                if bound * (1 - 2 * part) ** 2 > worth / _ENOUGH:  # the records cost 1 / sqrt(k Z)
                    worth = bound * (1 - 2 * part) ** 2
                    declared = math.floor(1000 * _MARGIN * bound) / 1000
                    best = replace(made, minimum_pass_rate=declared, check_epsilon=epsilon, checked=candidates)
        return best


@lru_cache(maxsize=1024)
def _confirmed_seeds(records: int, share: float, epsilon: float, delta: float) -> int:
    try:
        return count_check(records=records, share=share, epsilon=epsilon, delta=delta).minimum
    except AccountingError:  # too few to be confirmed
        return 0
