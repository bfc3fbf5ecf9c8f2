"""Stage 2 of the published method, block by block: features, a sample for tuning and landmarks, and the fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.families.prediction.kernels import Kernel
from dpdist.families.prediction.lid import ridge
from dpdist.families.prediction.lid.method import Regression
from dpdist.families.prediction.lid.ridge import KernelRidge, Tuning
from dpdist.families.prediction.plugins import load
from dpdist.families.prediction.scales import Scale
from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise


def features(scales: Sequence[Scale], inputs: Floats, deviations: Floats) -> Floats:
    """What the regression sees: ordered columns in units of their deviation, an indicator for each category."""
    columns = []
    for i, scale in enumerate(scales):
        if scale.nominal:
            size = scale.count or 1
            codes = np.clip((inputs[:, i] * size).astype(np.int64), 0, size - 1)
            columns.append(np.eye(size)[codes])
        else:
            columns.append(inputs[:, i : i + 1] / deviations[i])
    return np.concatenate(columns, axis=1)


def sample_words(noise: Noise, rows: int, *, start: int) -> NDArray[np.uint64]:
    """A word for each record; the records with the smallest ones are the sample that tuning and landmarks take."""
    return noise.words("prediction/sample", rows, start=start)


def block_sample(words: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """The records of a block that may be in a sample of so many, those with the smallest words first."""
    return np.argsort(words, kind="stable")[:size].astype(np.int64)


Sample = tuple[NDArray[np.uint64], Floats, Floats]
"""Words, features and responses of sampled records, the smallest words first."""


def join_samples(samples: Sequence[Sample], size: int) -> Sample:
    """The sample of several blocks together."""
    words, inputs, responses = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    first = np.argsort(words, kind="stable")[:size]
    return words[first], inputs[first], responses[first]


def tuning_of(method: Regression, sample: Sample) -> Tuning:
    """Width and penalty, as given or by cross-validation on the sample."""
    _, inputs, responses = sample
    if method.width is not None and method.penalty is not None:
        return Tuning(kernel=Kernel(name=method.kernel, width=method.width), penalty=method.penalty, error=math.nan)
    penalties = ridge.PENALTIES if method.penalty is None else (method.penalty,)
    rows = min(method.tuning_rows, len(inputs))
    return ridge.tune(inputs[:rows], responses[:rows], kernel=method.kernel, width=method.width, penalties=penalties)


def fit(method: Regression, blocks: Sequence[tuple[Floats, Floats]], sample: Sample, noise: Noise) -> Any:
    """The regression of the responses on the features.

    Parameters
    ----------
    method : Regression
    blocks : sequence of (float64[n, p], float64[n])
        Features and responses, block by block.
    sample : Sample
        Of at least `Regression.tuning_rows` and `Regression.landmarks` records, or all.
    noise : Noise
        For the groups.

    Returns
    -------
    object with ``predict(features)``
    """
    if method.hook is not None:
        return fit_hook(method.hook, *_joined(blocks))
    tuning, rows = tuning_of(method, sample), sum(len(responses) for _, responses in blocks)
    estimator = method.estimator_for(rows)
    if estimator == "exact":
        return ridge.fit_exact(*_joined(blocks), kernel=tuning.kernel, penalty=tuning.penalty)
    if estimator == "distributed":
        return ridge.average(
            [
                part
                for number, block in enumerate(blocks)
                for part in block_groups(method, *block, tuning, noise, rows=rows, number=number)
            ]
        )
    landmarks = sample[1][: method.landmarks]
    sums = [ridge.nystroem_sums(*block, landmarks=landmarks, kernel=tuning.kernel) for block in blocks]
    total = reduce(lambda a, b: a + b, sums)
    return ridge.fit_nystroem(total, landmarks=landmarks, kernel=tuning.kernel, penalty=tuning.penalty)


def block_groups(
    method: Regression, inputs: Floats, responses: Floats, tuning: Tuning, noise: Noise, *, rows: int, number: int
) -> list[KernelRidge]:
    """The estimators of the groups of a block; records go to groups of nearly equal size by the key."""
    order = np.argsort(noise.words(f"prediction/groups/{number}", len(inputs)), kind="stable")
    groups = np.array_split(order, max(1, math.ceil(len(inputs) / method.group_rows)))
    return [
        ridge.fit_group(inputs[group], responses[group], rows=rows, kernel=tuning.kernel, penalty=tuning.penalty)
        for group in groups
    ]


def fit_hook(hook: str, inputs: Floats, responses: Floats) -> Any:
    """A user's regression, fitted to all rows."""
    made: Callable[[], Any] = load(hook, setting="prediction.regression.hook")
    model = made()
    model.fit(inputs, responses)
    return model


def _joined(blocks: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    return np.concatenate([inputs for inputs, _ in blocks]), np.concatenate([responses for _, responses in blocks])
