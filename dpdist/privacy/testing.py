r"""Empirical lower bounds on epsilon: a mechanism is run with and without a canary, and distinguished.

**Many runs** (`audit`). A mechanism that is (epsilon, delta)-DP makes every event S about as likely with the canary as
without it, so for any S and in either direction

    epsilon >= ln( (Pr[S | one table] - delta) / Pr[S | the other] ).

Events compare one released number, or a combination fitted to tell the tables apart, with a threshold. One half of
the runs chooses an event for each direction; the other half bounds its two probabilities (Clopper and Pearson). The
four bounds hold together with the stated confidence (Bonferroni), however badly the event was chosen.

**One run** (`audit_in_one_run`). Each of m canaries is in the table or not by a fair coin; whoever sees the release
guesses r of the coins. Under (epsilon, 0)-DP the number of right guesses is dominated by ``Bin(r, 1/(1 +
e^-epsilon))`` [1]_; delta adds ``2 m delta max_i Pr[v - i <= Bin < v] / i`` to the p-value of v right guesses. Several
runs on tables of their own are one run on all of them: a canary is in one table only. It is the tighter one where
canaries do not disturb each other, such as one for each cell of a count table.

An audit can only reject. A lower bound below the stated epsilon says that *this* canary and *these* events
showed nothing wrong.

References
----------
.. [1] Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, 2023, Theorem 5.2 and Appendix D.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise

Mechanism: TypeAlias = Callable[[Noise], ArrayLike]
"""One run on a table of its own: the numbers that are released, always as many."""

_TAILS = 48  # thresholds tried on each combination of the numbers
_RIDGE = 1e-9  # of the unit variances: numbers that differ by a constant are distinguished all the same
_LARGEST = 64.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A mechanism, two neighbouring tables, and the guarantee that is stated for it."""

    name: str
    # absent, present: noise to released numbers (always as many), on the table without and with the canary
    absent: Mechanism
    present: Mechanism
    epsilon: float  # epsilon, delta: what is stated (add/remove)
    delta: float = 0.0

    @classmethod
    def of(cls, name: str, run: Callable[..., Any], sides: Iterable[Any], *, epsilon: float, delta: float) -> Claim:
        """The claim about a function of a table and of noise: `sides` are the tables without and with the canary."""
        absent, present = (partial(run, side) for side in sides)
        return cls(name=name, absent=absent, present=present, epsilon=epsilon, delta=delta)


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """A mechanism whose table has each of many canaries or not, and the guarantee that is stated for it."""

    name: str
    # noise and which canaries are in the table, bool[count], to a score of each that is higher where it seems to be
    scores: Callable[[Noise, NDArray[np.bool_]], ArrayLike]
    count: int  # m, canaries in a table
    epsilon: float  # epsilon, delta: what is stated for one record (add/remove)
    delta: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an audit found."""

    name: str
    epsilon: float  # epsilon, delta: what is stated
    delta: float
    # no mechanism with a smaller epsilon at this delta looks like this, except with probability 1 - `confidence`
    lower_bound: float
    confidence: float
    runs: int  # releases that were made
    evidence: str  # what told the tables apart

    @property
    def rejected(self) -> bool:
        """Whether the stated guarantee is refuted."""
        return self.lower_bound > self.epsilon

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return "rejected" if self.rejected else "not rejected"

    def to_json(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        return asdict(self) | {"verdict": self.verdict}


def table_of(findings: Iterable[Finding]) -> str:
    """Findings as a table for people: stated epsilon against the measured lower bound."""
    findings = list(findings)
    width = max([len(finding.name) for finding in findings], default=0)
    lines = [f"{'mechanism':{width}}  stated epsilon   delta     at least  releases  confidence  verdict"]
    lines += [
        f"{f.name:{width}}  {f.epsilon:14.4g}   {f.delta:<8.2g}  {f.lower_bound:8.3f}  {f.runs:8,}"
        f"  {f.confidence:10.4%}  {f.verdict}"
        for f in findings
    ]
    return "\n".join(lines)


def audit(claim: Claim, *, runs: int, confidence: float = 0.999, key: bytes | None = None) -> Finding:
    """Bound a mechanism's epsilon from below by running it on both tables, with a key of its own each time.
    Raises ValueError: `runs` or `confidence` is out of range.

    Parameters
    ----------
    runs : int
        Runs on each of the two tables, at least 4; a half chooses the events.
    confidence : float
        Probability with which the lower bound is one.
    key : bytes, optional
        32 bytes from which the keys of the runs are derived, for an audit that can be repeated.
    """
    _check(runs, 4, confidence)
    source = Noise(key or secrets.token_bytes(32))
    absent, present = (
        np.array([np.atleast_1d(mechanism(noise)) for noise in _noises(source, side, runs)], np.float64)
        for side, mechanism in (("absent", claim.absent), ("present", claim.present))
    )
    half, error = runs // 2, (1 - confidence) / 4
    best, evidence = 0.0, "nothing"
    for more, fewer, where in ((present, absent, "with"), (absent, present, "without")):
        event = _likely_event(more[:half], fewer[:half], delta=claim.delta, error=error)
        hits = [int(np.count_nonzero(event.happens(numbers[half:]))) for numbers in (more, fewer)]
        bound = float(_lower_bound(*hits, trials=runs - half, delta=claim.delta, error=error))
        if bound > best:
            best, evidence = bound, f"{event}, more often {where} the canary"
    return _finding(claim, best, confidence, 2 * runs, evidence)


def _noises(source: Noise, side: str, runs: int) -> Iterator[Noise]:
    """Noise with a key of its own for each run."""
    keys = source.words(f"audit/keys/{side}", 4 * runs).tobytes()
    return (Noise(keys[32 * i : 32 * (i + 1)]) for i in range(runs))


def _check(runs: int, least: int, confidence: float) -> None:
    if runs < least or not 0.5 <= confidence < 1:
        raise ValueError(
            f"an audit needs at least {least} runs and a confidence in [0.5, 1), got {runs} and {confidence}"
        )


def _finding(claim: Claim | Canaries, bound: float, confidence: float, runs: int, evidence: str) -> Finding:
    return Finding(
        name=claim.name,
        epsilon=claim.epsilon,
        delta=claim.delta,
        lower_bound=bound,
        confidence=confidence,
        runs=runs,
        evidence=evidence,
    )


# --- many runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Event:
    """``clip(numbers, low, high) @ weights >= threshold``."""

    weights: Floats
    low: ArrayLike = -math.inf
    high: ArrayLike = math.inf
    threshold: float = math.inf

    def scores(self, numbers: Floats) -> Floats:
        return np.asarray(np.clip(numbers, self.low, self.high) @ self.weights)

    def happens(self, numbers: Floats) -> NDArray[np.bool_]:
        return self.scores(numbers) >= self.threshold

    def __str__(self) -> str:
        used = np.flatnonzero(self.weights)
        return f"number {used[0]}" if len(used) == 1 else f"a combination of {len(used)} numbers"


def _likely_event(more: Floats, fewer: Floats, *, delta: float, error: float) -> _Event:
    """The event with the largest lower bound on these runs.

    Scores are each number, Fisher's discriminant (the likelihood ratio of Gaussian noise is of this form), and the
    discriminant of numbers clipped to the two means (that of Laplace noise).
    """
    means = np.array([more.mean(axis=0), fewer.mean(axis=0)])
    low, high = means.min(axis=0), means.max(axis=0)
    single = np.eye(more.shape[1])
    scores = [_Event(weights) for weights in (*single, *-single, _fisher(more, fewer))]
    scores.append(_Event(_fisher(np.clip(more, low, high), np.clip(fewer, low, high)), low, high))
    tails = np.geomspace(2 / len(more), 1, _TAILS)
    best, chosen = -1.0, scores[0]
    for score in scores:
        ours, theirs = np.sort(score.scores(more)), np.sort(score.scores(fewer))
        both = np.sort(np.concatenate([ours, theirs]))
        thresholds = np.unique(both[np.minimum(len(both) - (tails * len(both)).astype(int), len(both) - 1)])
        hits = [len(sorted_) - np.searchsorted(sorted_, thresholds) for sorted_ in (ours, theirs)]
        bounds = _lower_bound(*hits, trials=len(more), delta=delta, error=error)
        place = int(np.argmax(bounds))
        if bounds[place] > best:
            best, chosen = float(bounds[place]), replace(score, threshold=float(thresholds[place]))
    return chosen


def _fisher(more: Floats, fewer: Floats) -> Floats:
    """Fisher's linear discriminant: the combination that separates the means most, for its variance."""
    scale = np.sqrt(more.var(axis=0) + fewer.var(axis=0))
    scale[scale == 0] = 1.0
    more, fewer = more / scale, fewer / scale
    spread = np.atleast_2d(np.cov(more, rowvar=False) + np.cov(fewer, rowvar=False))
    weights = np.linalg.solve(spread + _RIDGE * np.eye(len(spread)), more.mean(axis=0) - fewer.mean(axis=0))
    return np.asarray(weights / scale)


def _lower_bound(more: Any, fewer: Any, *, trials: int, delta: float, error: float) -> Floats:
    """``ln((p - delta)/q)``, p a lower and q an upper Clopper-Pearson bound, each wrong with probability `error`."""
    from scipy.stats import beta

    more, fewer = np.asarray(more), np.asarray(fewer)
    p = np.where(more > 0, beta.ppf(error, np.maximum(more, 1), trials - more + 1), 0.0)
    q = np.where(fewer < trials, beta.ppf(1 - error, fewer + 1, np.maximum(trials - fewer, 1)), 1.0)
    return np.asarray(np.log(np.maximum((p - delta) / q, 1.0)))


# --- one run ----------------------------------------------------------------------------------------------------------


def audit_in_one_run(
    canaries: Canaries, *, runs: int = 2, confidence: float = 0.999, key: bytes | None = None
) -> Finding:
    """Bound a mechanism's epsilon from below by guessing which of many canaries were in its table.
    Raises ValueError: `runs` or `confidence` is out of range.

    Parameters
    ----------
    runs : int
        Tables, each with all canaries by coins of its own, at least 2; the first chooses how many guesses are made.
    confidence : float
        Probability with which the lower bound is one.
    key : bytes, optional
        32 bytes from which coins and keys are derived, for an audit that can be repeated.
    """
    _check(runs, 2, confidence)
    source = Noise(key or secrets.token_bytes(32))
    m = canaries.count
    ordered = np.empty((runs, m), bool)
    coins = (source.words("audit/coins", runs * m) >> np.uint64(63)).astype(bool).reshape(runs, m)
    for row, coin, noise in zip(ordered, coins, _noises(source, "coins", runs), strict=True):
        row[:] = coin[np.argsort(-np.asarray(canaries.scores(noise, coin), np.float64), kind="stable")]

    def bound(tables: NDArray[np.bool_], side: int) -> float:
        """From guesses on the `side` highest scores (in) and the `side` lowest (out) of each table."""
        right = int(np.count_nonzero(tables[:, :side]) + np.count_nonzero(~tables[:, m - side :]))
        return _guessing_bound(right, 2 * side * len(tables), m * len(tables), canaries.delta, 1 - confidence)

    sides = np.unique(np.geomspace(1, m // 2, _TAILS).astype(int))
    side = max(sides.tolist(), key=lambda number: bound(ordered[:1], number))
    evidence = f"{2 * side * (runs - 1):,} guesses on {m * (runs - 1):,} canaries"
    return _finding(canaries, bound(ordered[1:], side), confidence, runs, evidence)


def guessing_p_value(right: int, guesses: int, *, canaries: int, epsilon: float, delta: float) -> float:
    """The largest probability of at least `right` right guesses among `guesses` on the coins of `canaries` under
    (epsilon, delta)-DP; ``0 <= right <= guesses <= canaries``.
    """
    from scipy.stats import binom

    q = 1 / (1 + math.exp(-epsilon))
    value = float(binom.sf(right - 1, guesses, q))
    if delta > 0 and right > 0:
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
        value += 2 * canaries * delta * float((below / np.arange(1, right + 1)).max())
    return min(value, 1.0)


def _guessing_bound(right: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """The smallest epsilon that is not refuted, to 2^-20, rounded downwards."""

    def refuted(epsilon: float) -> bool:
        return guessing_p_value(right, guesses, canaries=canaries, epsilon=epsilon, delta=delta) < error

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, _LARGEST
    while high - low > 2.0**-20:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
