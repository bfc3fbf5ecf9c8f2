"""Conditionals of ordered attributes by a regression on their bucketised parents, in place of a table of counts.

A code y of an attribute with c codes has the *score* ``u = 2 y - (c - 1)``, which is regressed on indicators of the
buckets of its parents: ``u = mean + m(b) + residual``, m(b) the sum over parents j of ``beta_j[b_j]``. Measured are the
counts of the codes and, for each parent, the sum of the scores in each of its buckets, X'u (`docs/guarantees.md`). X'X
is that of the records which the network generates so far: it costs nothing, and the generated records have the measured
sums although their parents follow the network and not the data.

Residuals are not normal: many people work 40 hours, whatever the parents say. So the conditional is the margin of the
attribute, tilted by the regression: ``Pr(y | b) ~ f(y) exp(-(u(y) - mean - m(b))^2 / (2 s^2))``, with the variance s^2
of the residuals, and the f with which the generated records have the measured margin (Luo, Tsai, *A proportional
likelihood ratio model*, Biometrika 99, 2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from dpdist.privacy.arrays import AnyFloats, Counts, Floats
from dpdist.spec.schema import Schema

# share of a regressed attribute's budget that its sums have: noise in the counts of its codes is in all its pairs
SUMS_SHARE = 0.25
# variance of a score within its code, as of a uniform number on an interval of length 2: the least of a residual
WITHIN_A_CODE = 1 / 3
_SWEEPS = 30
_RIDGE = 1e-9  # of the trace of the matrix, at least: buckets may be empty, or repeat those of other parents
_TINY = 1e-300


def check_regressed(names: Sequence[str], schema: Schema) -> None:
    """Check that each attribute can be regressed: its codes are ordered, and it is listed once. Raises ValueError."""
    attributes = {attribute.name: attribute for attribute in schema.attributes}
    if len(set(names)) != len(names):
        raise ValueError("model.regression: an attribute is listed twice")
    for name in names:
        if name not in attributes:
            raise ValueError(f"model.regression: the schema has no attribute {name!r}")
        if attributes[name].kind == "categorical":
            raise ValueError(f"model.regression: the values of {name!r} are categorical, which have no order")
        if attributes[name].missing_code is not None:
            raise ValueError(
                f"model.regression: the missing category of {name!r} has no place in the order of its values: leave "
                "the attribute out, or set `missing: drop`"
            )
        if attributes[name].cardinality == 1:
            raise ValueError(f"model.regression: {name!r} has one value only")


def scores(cardinality: int) -> Counts:
    """The score of each code, int64[cardinality]: twice its distance from the middle of the codes."""
    return 2 * np.arange(cardinality, dtype=np.int64) - (cardinality - 1)


def regression_table(
    margin: AnyFloats, sums: AnyFloats, variance: float, *, expected: AnyFloats, sizes: Sequence[int], prior: float
) -> AnyFloats:
    """Weights of the codes in each parent configuration, float64[configurations, codes], all positive.

    `margin` are weights of the codes, float64[codes], all positive; `sums` the noisy sums of the scores in the buckets
    of each parent, one parent after another, with noise of this `variance`; `expected`, float64[configurations], how
    often each configuration occurs among as many records of the network; `sizes` the buckets of each parent, at least
    one; `prior` the weight of the margin, in records per code among all records: one regression serves all
    configurations.
    """
    from scipy.special import logsumexp

    shares, values, total = margin / margin.sum(), scores(len(margin)), float(expected.sum())
    mean = float(shares @ values)
    spread = float(shares @ (values - mean) ** 2)
    shift = predicted(sums, variance, mean=mean, expected=expected, sizes=sizes)
    shift = np.clip(shift, values[0] - mean, values[-1] - mean)
    residual = max(spread - float(expected @ shift**2) / total, WITHIN_A_CODE)
    # f by iterative proportional fitting, on logarithms: far from the mean the normal density is below any float
    logs = -((values - mean - shift[:, None]) ** 2) / (2 * residual)
    weight = np.log(np.maximum(expected, _TINY) / total)[:, None]
    for _ in range(_SWEEPS):
        logs -= logsumexp(logs, axis=1, keepdims=True)
        logs += np.log(shares) - logsumexp(logs + weight, axis=0)
    rows = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    return np.asarray(rows * total + prior * len(values) * shares)


def predicted(sums: AnyFloats, variance: float, *, mean: float, expected: AnyFloats, sizes: Sequence[int]) -> Floats:
    """The deviation m(b) from the mean in each parent configuration, float64[configurations]; see `regression_table`.
    Ridge regression on ``X'u = X'X beta + noise``: the coefficients have a prior variance that the sums themselves
    suggest, so that sums which are all noise give no deviation.
    """
    starts = [0, *accumulate(sizes)]
    columns = np.indices(sizes).reshape(len(sizes), -1) + np.array(starts[:-1])[:, None]
    gram = np.zeros((starts[-1], starts[-1]))
    for one in columns:
        for other in columns:
            np.add.at(gram, (one, other), expected)
    held, total = np.diag(gram), float(expected.sum())
    target = sums - mean * held
    for start, end in pairwise(starts):  # deviations from the mean add up to zero
        target[start:end] -= held[start:end] * (target[start:end].sum() / total)
    signal = max(float(target @ target) - variance * len(target), 0.0) / float(held @ held)
    if signal == 0:
        return np.zeros(len(expected))
    squared = gram @ gram
    ridge = max(variance / signal, _RIDGE * float(np.trace(squared)))
    beta = np.linalg.solve(squared + ridge * np.eye(len(target)), gram @ target)
    shift: Floats = beta[columns].sum(axis=0)
    return shift - float(expected @ shift) / total
