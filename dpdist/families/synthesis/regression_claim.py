"""What measured regressions say of a canary: for the claims that `dpdist audit` attacks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpdist.families.synthesis.regression_scores import scores_operator
from dpdist.families.synthesis.regressions import Regressions, measure_regressions
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.regression import Regression
from dpdist.spec.schema import Schema

_FOR_EACH = 100  # made-up records for each coefficient
_ANY = 0.1  # part of them with any values; the others have no attribute's last one, which the canary has
_RECORDS = 1e9
"""What the made-up table is said to stand for: with so many records the steps stay where they begin, and the canary,
which the others say nothing of, far from what is predicted.
"""


def measured_beside(
    regressions: Sequence[Regression], schema: Schema, codes: Codes, *, mu: float, noise: Noise
) -> Regressions:
    """The regressions of some records, if a made-up table of independent values were what is released.

    The guarantee holds whatever was released. In this table no two terms depend on each other.
    """
    rows, rng = _FOR_EACH * max(len(r.names) for r in regressions), np.random.default_rng(0)
    every = rng.random(rows) < _ANY
    released = [
        np.where(every, rng.integers(0, size, rows), rng.integers(0, max(size - 1, 1), rows)).astype(a.dtype)
        for a, size in zip(schema.attributes, schema.cardinalities, strict=True)
    ]
    return measure_regressions(
        regressions,
        released,
        lambda scores: np.asarray(scores_operator(scores).chunk(codes)),
        records=_RECORDS,
        mu=mu,
        noise=noise,
    )


def evidence(
    measured: Regressions, regressions: Sequence[Regression], others: Codes, canary: Codes, *, copies: int
) -> float:
    """The log likelihood ratio of copies of a canary beside others, over the number of copies."""
    parts = []
    for found, regression in zip(measured.measured, regressions, strict=True):
        for number, noisy in enumerate(found.scores):
            score = found.score(regression, number)
            moved: Floats = score.total([column[:1] for column in canary]).astype(np.float64)
            away = np.array(noisy.noisy) - score.total(others) - copies / 2 * moved
            parts.append(float((away * moved).sum()) / noisy.deviation**2)
    return math.fsum(parts)
