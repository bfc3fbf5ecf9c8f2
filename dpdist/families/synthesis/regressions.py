"""Declared regressions, measured after the records are drawn: coefficients of the private table with their covariance.

All regressions are measured together, one pass over the table for each step
(`dpdist.families.synthesis.regression_steps`), in the account of the release. What is measured is public; so is why a
regression was not: that depends on the released records and on noisy numbers alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from dpdist.errors import SpecError
from dpdist.families.synthesis.regression_steps import STEPS, Score, Steps, sensitivity
from dpdist.model.account import GaussianAccount
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.regression import Regression
from dpdist.storage.stored import Stored, tree_of, value_of

T = TypeVar("T")
MOST_COEFFICIENTS = 64  # of one regression, with the constant

Count = Callable[[Sequence[Score]], Counts]  # the totals of scores over the private table, one after another


@dataclass(frozen=True)
class MeasuredScore:
    """One noisy score: ``sum of round(clip(transform x (y - f(x'at))))`` and noise. Public."""

    # of terms from which `means` were taken, and which were divided by `scales`; the outcome comes first there
    at: tuple[float, ...]
    transform: tuple[tuple[float, ...], ...]
    noisy: tuple[int, ...]
    deviation: float


@dataclass(frozen=True)
class MeasuredRegression:
    """What was measured of a declared regression. Public."""

    question: str  # as the spec has it
    names: tuple[str, ...]  # of the coefficients, the constant first
    # of the private table, up to an error with this covariance; empty where they could not be found
    coefficients: tuple[float, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    reason: str = ""  # why none exist
    means: tuple[float, ...] = ()  # means, scales: of the outcome and the terms in the scores
    scales: tuple[float, ...] = ()
    scores: tuple[MeasuredScore, ...] = ()

    def score(self, regression: Regression, number: int) -> Score:
        """What the noisy score of this number is of."""
        given = [
            replace(term, values=(term.values - mean) / scale)
            for term, mean, scale in zip((regression.outcome, *regression.terms), self.means, self.scales, strict=True)
        ]
        at, transform = np.array(self.scores[number].at), np.array(self.scores[number].transform)
        return Score(regression.is_logistic, regression.where, given[0], tuple(given[1:]), at, transform)

    def found(self) -> dict[str, Any]:
        """What a reader of the manifest needs, as a JSON object."""
        every, found = tree_of(self), ("reason",) if self.reason else ("coefficients", "covariance")
        return {name: every[name] for name in ("question", "names", *found)}


@dataclass(frozen=True)
class Regressions(Stored):
    """The measured regressions of a release: drawn once, stored, read back. Public."""

    FILE: ClassVar[str] = "regressions.json"

    measured: tuple[MeasuredRegression, ...]

    def to_bytes(self) -> bytes:
        """JSON with sorted names."""
        return (json.dumps({"regressions": tree_of(self.measured)}, sort_keys=True, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Regressions:
        """What `to_bytes` wrote."""
        return cls(value_of(tuple[MeasuredRegression, ...], json.loads(content)["regressions"]))


def measure_regressions(
    regressions: Sequence[Regression], released: Codes, count: Count, *, records: float, mu: float, noise: Noise
) -> Regressions:
    """Measure regressions of a private table. `released`: released records: public. `count`: a pass over the private
    table. `records`: the noisy number of records of the table: released before. `mu`: all of it together is mu-GDP.
    """
    account = GaussianAccount(mu, noise, "regressions/")
    every = [_UnderWay(regression) for regression in regressions]
    for one in every:
        one.start(released, records=records)
    for number, share in enumerate(STEPS):
        measured = [one for one in every if not one.reason]
        bound = sensitivity(max((len(one.regression.names) for one in measured), default=1))
        deviation = float(account.deviations(share, [1.0] * max(len(measured), 1))[0]) * bound
        wanted = [(one, score) for one in measured if (score := one.wanted(deviation)) is not None]
        if not wanted:
            break
        scores = [score for _, score in wanted]
        totals = np.split(count(scores), np.cumsum([len(score.at) for score in scores])[:-1])
        noisy, sigmas = account.measure(f"step/{number}", totals, share=share, sensitivity=bound)
        for (one, score), found, sigma in zip(wanted, noisy, sigmas.tolist(), strict=True):
            one.take(score, found, sigma)
    return Regressions(tuple(one.result() for one in every))


@dataclass(eq=False)
class _UnderWay:
    """A regression while it is measured; all of it public."""

    regression: Regression
    reason: str = ""
    steps: Steps | None = None
    scores: list[MeasuredScore] = field(default_factory=list)

    def _tried(self, step: Callable[[], T]) -> T | None:
        """What a step gives; None, and the reason is kept, where it cannot be taken."""
        try:
            return step()
        except SpecError as error:
            self.reason = str(error)
            return None

    def start(self, released: Codes, *, records: float) -> None:
        """The coefficients of the released records."""
        self.steps = self._tried(lambda: Steps(self.regression, released, records=records))

    def wanted(self, deviation: float) -> Score | None:
        """What the next step measures."""
        steps = self.steps
        return None if steps is None else self._tried(lambda: steps.next(deviation))

    def take(self, score: Score, noisy: Counts, deviation: float) -> None:
        """Take a step."""
        transform, steps = tuple(_numbers(row) for row in score.transform), self.steps
        self.scores.append(MeasuredScore(_numbers(score.at), transform, tuple(noisy.tolist()), deviation))
        if steps is not None:
            self._tried(lambda: steps.take(score, noisy, deviation))

    def result(self) -> MeasuredRegression:
        """What was measured."""
        found = MeasuredRegression(self.regression.text, tuple(self.regression.names), reason=self.reason)
        if self.steps is None:
            return found
        means, scales = _numbers(self.steps.means), _numbers(self.steps.scales)
        ended = None if self.reason else self._tried(self.steps.result)
        found = replace(found, means=means, scales=scales, scores=tuple(self.scores), reason=self.reason)
        if ended is None:
            return found
        coefficients, covariance = ended
        return replace(
            found, coefficients=_numbers(coefficients), covariance=tuple(_numbers(row) for row in covariance)
        )


def _numbers(values: Floats) -> tuple[float, ...]:
    return tuple(values.tolist())
