"""From public coefficients to those of the table: Newton steps with measured scores and the released records' Hessian.

The coefficients b* of a table are where its score is zero,

    s(b) = sum over records of x (y - f(x'b)),    f(t) = t, or 1 / (1 + e^-t) in a logistic regression,

with x the terms of a record, the constant first. Measured is ``sum of round(clip(T x (y - f(x'b))))`` with public b and
T; `docs/guarantees.md` proves its sensitivity. T is the root of the Hessian H of released records: records then move
the score alike in all directions, and the noise has the shape of sampling errors. ``b + H^-1 s(b)`` is nearer to b* by
a factor that says how near the Hessians are, so a few steps leave the noise of the last ones (`STEPS`). The norm at
which records are clipped is that with the least sum of the variances of noise and of what clipping may lose, by the
released records; what these lose on average is added again.

An interval holds three parts, all public: the noise; the loss, which may differ from that of the released records by as
much as itself, and by sampling; and what the steps leave: the errors that the last ones met, times the contraction that
the first two show. Where the last step is larger than noise makes it, what a geometric series of further ones would add
counts as a deviation in its direction.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from dpdist.accuracy.measured import DEPENDENT, check_rank, newton
from dpdist.data.operators import Operator
from dpdist.errors import SpecError
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.portable import exp
from dpdist.spec.conditions import Condition
from dpdist.spec.regression import Regression, Term

GRID = 1 << 20  # the largest norm of a record's vector, in integers
LARGEST = 2.0**100  # public factors are below it, so that no product of three overflows
_ROWS = 1 << 14  # at a time: they stay in the cache
_STEEP = 40.0  # beyond it a logistic function is 0 or 1 to all digits that matter


def sensitivity(coefficients: int) -> int:
    """The most that one record moves the measured score of this many coefficients by, in L2 norm, rounded up. That is
    `GRID` and, for each value, an integer's step: half of it covers the rounding, the other half what floating point
    leaves of the clipping.
    """
    return GRID + math.isqrt(coefficients - 1) + 1


@dataclass(frozen=True, eq=False)
class Score:
    """What is measured of one regression in a step. Public. Raises ValueError: a number is infinite, or too large."""

    is_logistic: bool
    where: Condition  # records that do not meet it count nothing
    outcome: Term
    terms: tuple[Term, ...]  # without the constant
    at: Floats  # shape (d,); the coefficients b
    transform: Floats  # shape (d, d); T

    def __post_init__(self) -> None:
        for numbers in (self.at, self.transform, self.outcome.values, *(term.values for term in self.terms)):
            if not (np.abs(numbers) < LARGEST).all():
                raise ValueError("a public number of a score is too large")

    def vectors(self, codes: Codes) -> Floats:
        """``T x (y - f(x'b))`` of each record, coefficients x records. Confidential if the records are."""
        rows = len(codes[0])
        predicted = np.full(rows, self.at[0])
        found = np.repeat(self.transform[:, :1], rows, axis=1)
        for k, term in enumerate(self.terms, 1):
            column = codes[term.attribute]
            predicted += (self.at[k] * term.values)[column]
            found += np.take(self.transform[:, k : k + 1] * term.values, column, axis=1)
        if self.is_logistic:
            predicted = 1 / (1 + exp(-np.clip(predicted, -_STEEP, _STEEP)))
        found *= self.outcome.values[codes[self.outcome.attribute]] - predicted
        found[:, ~self.where.holds(codes)] = 0
        return found

    def contributions(self, codes: Codes) -> Counts:
        """The vectors, clipped and rounded to integers."""
        found = self.vectors(codes)
        found *= np.minimum(1.0, GRID / np.maximum(norms(found), 1.0))  # none is longer than `GRID`
        return np.rint(found, out=found).astype(np.int64)

    def total(self, codes: Codes) -> Counts:
        """The sum of the contributions of some records."""
        total = np.zeros(len(self.at), np.int64)
        for start in range(0, len(codes[0]), _ROWS):
            total += self.contributions([column[start : start + _ROWS] for column in codes]).sum(1)
        return total


def norms(vectors: Floats) -> Floats:
    """The norm of each column, added in the order of the rows."""
    squares = np.zeros(vectors.shape[1])
    for row in vectors:
        squares += row * row
    return np.sqrt(squares)


def scores_operator(scores: Sequence[Score]) -> Operator:
    """The totals of some scores, one after another, in one pass."""
    return Operator(name="scores", chunk=partial(_totals, tuple(scores)), combine=operator.add)


def _totals(scores: tuple[Score, ...], codes: Codes) -> Counts:
    return np.concatenate([score.total(codes) for score in scores])


STEPS = (0.2, 0.3, 0.5)  # the parts of the regressions' share of mu^2 that the steps take
MOST_VALUES = 1 << 23  # released records from which Hessians are computed, times coefficients, at most
_FEW = 5  # released records for each coefficient: below it nothing is measured
_QUANTILES = (0.8, 0.9, 0.95, 0.98, 0.99, 0.997, 0.999, 0.9997, 0.9999, 1.0)
_LARGEST_STEP = 2.0  # root mean square of what a step changes the linear predictor by
_CONTRACTION = 0.25  # square of what is taken for the contraction at most, unless the steps show more
_LIKELY = 4.0  # deviations of the square of a step's length
# probabilities that noise alone makes a step so large that it is not taken for noise, and the sum of two such steps
_BY_CHANCE, _BY_CHANCE_TOGETHER = 1e-7, 1e-4
_LARGEST_RATIO = 0.9  # of the last two steps' lengths
NO_END = "the steps do not become smaller: in the released records the terms depend on each other in another way"
TOO_LARGE = "the noise is too large for a table of this size: a step changed what is predicted beyond all measure"
TOO_FEW = "the release has fewer than five records for each coefficient"


@dataclass(frozen=True, eq=False)
class ScoreStep:
    """One step of one regression. Public."""

    score: Score  # what was measured, of standardised terms
    found: Floats  # the coefficients after the step, of standardised terms
    hessian: Floats  # of a released record, on average
    noise: float  # variance of the noise in each whitened direction
    clipped: Floats  # covariance of what clipping may have lost
    size: float  # square of the length of the step, in the metric of the Hessian


class Steps:
    """The steps of one regression from the released records; all of it public. `codes`: released records. `records`:
    the noisy number of records of the table. Raises SpecError: the released records do not determine the coefficients.
    """

    def __init__(self, regression: Regression, codes: Codes, *, records: float) -> None:
        used = min(len(codes[0]), MOST_VALUES // (len(regression.terms) + 1))
        codes = [column[:used] for column in codes]
        inside = regression.where.holds(codes)
        if inside.sum() < _FEW * (len(regression.terms) + 1):
            raise SpecError(TOO_FEW)
        self.codes = [column[inside] for column in codes]
        self.records = max(records * float(inside.mean()), 1.0)
        self.regression = regression
        standard = [_standardised(term, self.codes) for term in regression.terms]
        self._means, self._scales = np.array([s[1] for s in standard]), np.array([s[2] for s in standard])
        outcome = (regression.outcome, 0.0, 1.0)
        if not regression.is_logistic:
            outcome = _standardised(regression.outcome, self.codes)
        self._shift, self._unit = outcome[1:]
        terms, nothing = tuple(s[0] for s in standard), np.zeros(0)
        self._score = Score(regression.is_logistic, regression.where, outcome[0], terms, nothing, nothing)
        columns = [term.values[self.codes[term.attribute]] for term in self._score.terms]
        self._rows = np.stack([np.ones(len(self.codes[0])), *columns], axis=1)
        self._outcome = outcome[0].values[self.codes[outcome[0].attribute]]
        self.start = _rounded(self._fitted())
        self.steps: list[ScoreStep] = []

    @property
    def means(self) -> Floats:
        """What was taken from the outcome and from each term."""
        return np.append(self._shift, self._means)

    @property
    def scales(self) -> Floats:
        """What they were divided by."""
        return np.append(self._unit, self._scales)

    def next(self, deviation: float) -> Score:
        """What the next step measures, for noise of this deviation on its integers."""
        at = self.steps[-1].found if self.steps else self.start
        self._hessian, residual = self._state(at)
        check_rank(self._hessian)
        try:
            white = np.linalg.inv(np.linalg.cholesky(self._hessian))
        except np.linalg.LinAlgError:
            raise SpecError(DEPENDENT) from None
        vectors = (white @ self._rows.T) * residual
        lengths = norms(vectors)
        relative, n, released = deviation / GRID, self.records, len(residual)
        best = (math.inf, 1.0)
        for length in np.quantile(lengths, _QUANTILES).tolist():
            if length > 0:
                lost = np.maximum(lengths - length, 0)
                clipped = (n * lost.mean()) ** 2 + n * (1 + n / released) * (lost**2).mean()
                noise = len(at) * (relative * length) ** 2
                best = min(best, (noise + clipped + (n / released * length) ** 2, length))
        transform = _rounded(white * (GRID / best[1]))
        try:
            return replace(self._score, at=at, transform=transform)
        except ValueError:
            raise SpecError(TOO_LARGE) from None

    def take(self, score: Score, noisy: Counts, deviation: float) -> None:
        """Take the step that a noisy score says. Raises SpecError: it is too large to mean anything."""
        n, released = self.records, len(self._outcome)
        vectors = score.vectors(self.codes)
        lengths = norms(vectors)
        over = np.maximum(lengths - GRID, 0)
        lost = vectors * (over / np.maximum(lengths, 1.0))
        back = np.linalg.inv(score.transform @ self._hessian) / n
        step = back @ (noisy + n * lost.mean(1))
        size = float(step @ self._hessian @ step)
        if not size < _LARGEST_STEP**2:
            raise SpecError(TOO_LARGE)
        spread = _spread(lost, over, n=n, released=released)
        unseen = (n / released * GRID) ** 2 / len(step) * np.eye(len(step))
        noise = float(np.trace(back @ back.T @ self._hessian)) / len(step) * deviation**2
        found = _rounded(score.at + step)
        self.steps.append(ScoreStep(score, found, self._hessian, noise, back @ (spread + unseen) @ back.T, size))

    def result(self) -> tuple[Floats, Floats]:
        """The coefficients of the terms and their covariance. Raises SpecError: the steps do not become smaller."""
        d, later = len(self.start), self.steps[1:]
        precision = np.array([1 / step.noise for step in later])
        weights, rest = precision / precision.sum(), self._rest()
        if rest.any():  # the steps before the last are further off
            weights = np.eye(len(later))[-1]
        before = [
            max(step.size - d * step.noise, d * previous.noise) for previous, step in pairwise(self.steps)
        ]  # squares of the errors that the steps met
        left = self._contraction() * float(weights**2 @ before) / d
        noise = float(weights**2 @ (1 / precision))
        covariance = (noise + left) * np.linalg.inv(later[-1].hessian) + later[-1].clipped + np.outer(rest, rest)
        found = np.asarray(weights @ np.stack([step.found for step in later]))
        turn = np.diag(self._unit / np.append(1.0, self._scales))
        turn[0, 1:] = -self._unit * self._means / self._scales
        coefficients = turn @ found
        coefficients[0] += self._shift
        return _rounded(coefficients), _rounded(turn @ covariance @ turn.T)

    def _contraction(self) -> float:
        """The square of the factor by which a step makes an error smaller, by the first two steps."""
        first, second = self.steps[:2]
        d, noise, start = len(self.start), first.noise + second.noise, max(first.size, 1e-300)
        rest, doubt = second.size - d * noise, math.sqrt(2 * d) * noise
        most = max(_CONTRACTION, min((rest - doubt) / start, 1.0))
        return min((max(rest, 0.0) + doubt) / start, most)

    def _rest(self) -> Floats:
        """What further steps would add, if the last step is larger than by the noise: a geometric series.

        The square of a step that is noise alone is chi-squared over its variance. For a last step above four deviations
        the series is added if it converges. If it does not, the steps have not ended, or the last two are both noise.
        Steps of noise point against each other, and are not larger than noise makes them.

        Raises SpecError: the steps have not ended.
        """
        first, before, last = self.steps[-3:]
        d, noise = len(self.start), before.noise + last.noise
        if last.size <= (d + _LIKELY * math.sqrt(2 * d)) * noise:
            return np.zeros(d)
        ratio = math.sqrt((last.size - d * noise) / max(before.size, 1e-300))
        if ratio <= _LARGEST_RATIO:
            return (last.found - last.score.at) * (ratio / (1 - ratio))
        from scipy.special import chdtri  # a tenth of a second

        both = last.found - before.score.at
        together = float(both @ last.hessian @ both)
        if (
            together > chdtri(d, _BY_CHANCE_TOGETHER) * (first.noise + last.noise)
            or last.size > chdtri(d, _BY_CHANCE) * noise
        ):
            raise SpecError(NO_END)
        return np.zeros(d)

    def _fitted(self) -> Floats:
        """The coefficients of the released records."""
        normal = self._rows.T @ self._rows
        check_rank(normal)
        if self.regression.is_logistic:
            return newton(self._rows, self._outcome, np.ones(len(self._rows)), np.zeros(self._rows.shape[1]))
        return np.asarray(np.linalg.solve(normal, self._rows.T @ self._outcome))

    def _state(self, at: Floats) -> tuple[Floats, Floats]:
        """The Hessian of a released record, on average, and the residuals."""
        predicted = self._rows @ at
        slope = np.ones(len(predicted))
        if self.regression.is_logistic:
            predicted = 1 / (1 + np.exp(-np.clip(predicted, -50, 50)))
            slope = predicted * (1 - predicted)
        return (self._rows * slope[:, None]).T @ self._rows / len(slope), self._outcome - predicted


def _spread(lost: Floats, over: Floats, *, n: float, released: int) -> Floats:
    """Covariance of the error of what clipping loses: as large as the loss itself, in its directions, and sampling."""
    inverse = np.divide(1.0, over, out=np.zeros_like(over), where=over > 0)
    doubt = n * n * float(over.mean()) / released * (lost * inverse) @ lost.T
    return np.asarray(doubt + n * (1 + n / released) / released * lost @ lost.T)


def _standardised(term: Term, codes: Codes) -> tuple[Term, float, float]:
    """A term with mean 0 and deviation 1 in some records, and what it had."""
    column = term.values[codes[term.attribute]]
    mean, scale = float(column.mean()), float(column.std())
    if not scale > 1e-9 * max(abs(mean), 1e-9):
        raise SpecError(f"{term.text.strip()!r} is the same for all records of the release")
    if not np.abs(term.values - mean).max() / scale < LARGEST:
        raise SpecError(f"{term.text.strip()!r}: the numbers are too large")
    return replace(term, values=(term.values - mean) / scale), mean, scale


def _rounded(numbers: Floats) -> Floats:
    """Numbers to 24 bits: the last bits of linear algebra depend on the processor, and are not used."""
    return numbers.astype(np.float32).astype(np.float64)


def draws_of(regressions: Sequence[Regression]) -> int:
    """Keyed draws of the measurement."""
    return len(STEPS) * sum(len(regression.names) for regression in regressions)
