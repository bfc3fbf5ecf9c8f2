"""The one Gaussian account of a release: shares of mu^2 become deviations, and never sum to more than one.

Every step is mu_i-GDP with ``mu_i^2 = share_i mu^2``: k tables in each of which a record changes one cell by 1 (and
integers of sensitivity 1) cost the sum of ``1/sigma_i^2``, K picks at scale b ``K pick_cost(b)^2``
(`dpdist.privacy.selection`). Which steps follow may depend on what was released before (`docs/guarantees.md`,
*Synthesis*). The rounded Gaussian on integers is post-processing of the continuous one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import AccountingError
from dpdist.privacy.arrays import Counts
from dpdist.privacy.calibrate import ABOVE
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import Candidates, draws_of_pick, pick_cost, pick_scale


@dataclass(frozen=True)
class Line:
    """One step of the account: what was released and what it cost, in mu^2."""

    name: str
    spent: float


@dataclass
class GaussianAccount:
    """Draws the noise of a release and keeps its account."""

    mu: float  # the release is mu-GDP
    noise: Noise
    prefix: str = ""  # what all noise names begin with, where one key serves several accounts
    lines: list[Line] = field(default_factory=list)  # what was spent, in order
    draws: int = 0  # keyed draws so far; each may miss its distribution by `dpdist.privacy.noise.SAMPLER_DELTA`
    # the noisy tables in order: name of the step, number in it, table, deviation
    noisy: list[tuple[str, int, Counts, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.mu < math.inf:
            raise AccountingError(f"an account is of a finite mu above 0, got {self.mu}")

    @property
    def left(self) -> float:
        """The share of mu^2 that is not spent."""
        return max(1 - math.fsum(line.spent for line in self.lines) / self.mu**2, 0.0)

    def _spend(self, name: str, spent: float, draws: int) -> None:
        total = math.fsum([*(line.spent for line in self.lines), spent])
        if not (spent >= 0 and total <= self.mu**2):
            raise AccountingError(f"the step {name} would take the release over its account")
        if any(line.name == name for line in self.lines):
            raise AccountingError(f"the step {name} was taken already: a noise name is used once")
        self.lines.append(Line(name, spent))
        self.draws += draws

    def deviations(self, share: float, weights: Sequence[float]) -> NDArray[np.float64]:
        """Deviation of each of several statistics: ``1 / sigma_i^2 = share mu^2 weight_i / sum(weights)``.

        Weights are rounded to powers of the root of two: each deviation has a sampler of its own, which takes some
        milliseconds to set up.
        """
        rounded = np.array([math.sqrt(2.0 ** round(2 * math.log2(weight))) for weight in weights])
        portions = rounded / rounded.sum()
        sigmas: NDArray[np.float64] = 1 / (self.mu * np.sqrt(share * portions)) * ABOVE
        return sigmas

    def measure(
        self,
        name: str,
        tables: Sequence[Counts],
        *,
        share: float,
        weights: Sequence[float] | None = None,
        sensitivity: int = 1,
    ) -> tuple[list[Counts], NDArray[np.float64]]:
        """Integer tables with rounded Gaussian noise, and the deviation of each.

        `name`: noise name; table i draws from ``name/i``. `tables`: one record changes the cells of each by at most
        `sensitivity` in L2 norm. `share`: of mu^2. `weights`: equal where not given. Raises AccountingError: the
        account has not so much left, or the name was used before.
        """
        sigmas = self.deviations(share, [1.0] * len(tables) if weights is None else weights) * sensitivity
        spent = sensitivity**2 * math.fsum((1 / sigmas**2).tolist())
        self._spend(name, spent, sum(table.size for table in tables))
        noisy = [
            table
            + self.noise.gaussian_integers(f"{self.prefix}{name}/{i}", table.size, sigma=sigma).reshape(table.shape)
            for i, (table, sigma) in enumerate(zip(tables, sigmas.tolist(), strict=True))
        ]
        self.noisy += [(name, i, *pair) for i, pair in enumerate(zip(noisy, sigmas.tolist(), strict=True))]
        return noisy, sigmas

    def pick_scale(self, share: float, picks: int) -> float:
        """The scale at which so many picks cost this share together."""
        return pick_scale(cost=self.mu * math.sqrt(share / picks) / ABOVE)

    def pick(self, name: str, candidates: Candidates, *, scale: float, allowed: Callable[[int], bool]) -> int:
        """The index that the exponential mechanism picks among those that a public rule allows.

        One record changes each score of the candidates by at most 1; `scale` is theirs.
        """
        self._spend(name, pick_cost(scale=scale) ** 2, draws_of_pick(len(candidates)))
        return self.noise.pick(f"{self.prefix}{name}", candidates, allowed=allowed)
