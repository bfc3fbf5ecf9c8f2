"""Stage 2 of the published method: what the regression sees, a sample of records, and the fit over all blocks.

A response without order is predicted by kernel ridge regression on an indicator of each class (the largest prediction
wins; the first of equal ones), or by a classifier of the user's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError
from dpdist.families.prediction.columns import Scale
from dpdist.families.prediction.lid import ridge
from dpdist.families.prediction.lid.method import Block, Method, joined
from dpdist.families.prediction.lid.ridge import KernelRidge, NystroemSums, RadialKernel, Tuning
from dpdist.families.prediction.second_stage import TUNING_ROWS, RegressionSpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Floats, stable_order
from dpdist.spec.kinds import load_hook


@dataclass(frozen=True, eq=False)
class Features:
    """What the regression sees: ordered inputs in units of their deviation, an indicator for each category."""

    scales: tuple[Scale, ...]  # of the inputs
    deviations: Floats  # float64[inputs]
    classes: int = 0  # of the response; 0 where it is a number
    party: int | None = None  # place of the input that names the party: its number is the last column

    def __call__(self, inputs: Floats) -> Floats:
        """Features of rows of the unit cube, float64[n, p]."""
        columns = []
        for i, scale in enumerate(self.scales):
            if i == self.party:
                continue
            if scale.nominal:
                columns.append(np.eye(scale.count or 1)[scale.codes(inputs[:, i])])
            else:
                columns.append(inputs[:, i : i + 1] / self.deviations[i])
        if self.party is not None:
            columns.append(self.scales[self.party].codes(inputs[:, self.party])[:, None].astype(np.float64))
        return np.concatenate(columns, axis=1)

    def of(self, block: Block) -> Block:
        """Features and targets of a block: float64[n], or an indicator of each class, float64[n, classes]."""
        return self(block[0]), np.eye(self.classes)[self.codes(block[1])] if self.classes else block[1]

    def codes(self, responses: Floats) -> NDArray[np.int64]:
        """Class of each response, int64[n]."""
        return np.clip((responses * self.classes).astype(np.int64), 0, self.classes - 1)


Sample = tuple[NDArray[np.uint64], Floats, Floats]
"""Words, features and targets of sampled records, the smallest words first."""


def block_sample(features: Features, key: KeyRef, block: Block, start: int, size: int) -> Sample:
    """The records of a block that may be in the sample; `start` is the number of its first record."""
    words = load_noise(key).words("prediction/sample", len(block[1]), start=start)
    first = np.argsort(words, kind="stable")[:size]
    return words[first], *features.of((block[0][first], block[1][first]))


def join_samples(samples: Sequence[Sample], size: int) -> Sample:
    """The sample of several blocks together."""
    words, inputs, responses = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    first = np.argsort(words, kind="stable")[:size]
    return words[first], inputs[first], responses[first]


def tuning_of(regression: RegressionSpec, sample: Sample, relation: tuple[int, float | None] = (0, None)) -> Tuning:
    """Width, penalty and correlation as given or cross-validated; `relation`: number of parties, given correlation."""
    parties, given = relation
    correlation = given if parties else 1.0
    if regression.width is not None and regression.penalty is not None and correlation is not None:
        kernel = RadialKernel(
            name=regression.kernel,
            width=regression.width,
            parties=parties,
            correlation=correlation,
            intercept=regression.intercept,
        )
        return Tuning(kernel=kernel, penalty=regression.penalty)
    penalties = ridge.PENALTIES if regression.penalty is None else (regression.penalty,)
    inputs, responses = (part[:TUNING_ROWS] for part in sample[1:])
    return ridge.tune(
        inputs,
        responses,
        kernel=regression.kernel,
        width=regression.width,
        penalties=penalties,
        parties=parties,
        correlations=ridge.CORRELATIONS if correlation is None else (correlation,),
        intercept=regression.intercept,
    )


def fit_all(features: Features, tuning: Tuning, blocks: Sequence[Block]) -> KernelRidge:
    """One system of all records."""
    inputs, responses = joined([features.of(block) for block in blocks])
    return ridge.fit_exact(inputs, responses, kernel=tuning.kernel, penalty=tuning.penalty)


def fit_groups(
    features: Features, how: tuple[Tuning, KeyRef, int, int], block: Block, number: int
) -> list[KernelRidge]:
    """The estimators of the groups of a block; records go to groups of nearly equal size by the key."""
    tuning, key, group_rows, rows = how
    inputs, responses = features.of(block)
    order = stable_order(load_noise(key).words(f"prediction/groups/{number}", len(inputs)))
    count = max(1, math.ceil(len(inputs) / group_rows))
    groups = np.array_split(order, count)
    if tuning.kernel.parties:  # every group has its share of every party
        dealt = order[np.argsort(tuning.kernel.codes(inputs)[order], kind="stable")]
        groups = [dealt[first::count] for first in range(count)]
    shares = [tuning.penalty * len(group) / rows for group in groups]  # lambda is that of all rows
    return [
        ridge.fit_exact(inputs[group], responses[group], kernel=tuning.kernel, penalty=penalty)
        for group, penalty in zip(groups, shares, strict=True)
    ]


def landmark_sums(features: Features, tuning: Tuning, landmarks: Floats, block: Block) -> NystroemSums:
    """The sums of the Nystroem estimator over the records of a block."""
    return ridge.nystroem_sums(*features.of(block), landmarks=landmarks, kernel=tuning.kernel)


def fit_hook(hook: str, features: Features, blocks: Sequence[Block]) -> Any:
    """A user's regression or classifier, fitted to all records; a classifier is given codes of classes, int64[n]."""
    model = load_hook(hook, setting="prediction.regression.hook")()
    inputs, responses = joined(blocks)
    model.fit(features(inputs), features.codes(responses) if features.classes else responses)
    return model


def predicted(model: Any, features: Features, inputs: Floats) -> Floats:
    """The predicted responses, float64[n], of rows of the unit cube. Raises SpecError: it predicts something else."""
    responses = np.asarray(model.predict(features(inputs)), np.float64)
    if features.classes:
        codes = responses.argmax(axis=1) if isinstance(model, KernelRidge) else responses
        if codes.shape != (len(inputs),) or not np.isin(codes, np.arange(features.classes)).all():
            raise SpecError("prediction.regression: it must predict the code of one class for each record")
        return np.asarray((codes + 0.5) / features.classes)
    if responses.shape != (len(inputs),) or not np.all(np.isfinite(responses)):
        raise SpecError("prediction.regression: it must predict one finite number for each record")
    return responses


FIRST_STAGE, REGRESSION = "prediction.first_stage", "prediction.regression.hook"

_ROWS = 40  # made up


def own_rows(hook: str, original: Floats, rng: np.random.Generator) -> Floats:
    """Synthetic rows of a user's first stage, on the unit cube. Raises SpecError: another shape, or not finite."""
    rows = np.asarray(load_hook(hook, setting=FIRST_STAGE)(original.copy(), rng), np.float64)
    if rows.shape != original.shape or not np.all(np.isfinite(rows)):
        raise SpecError(f"{FIRST_STAGE}: it must return finite rows of the shape it was given")
    return np.clip(rows, 0.0, 1.0)


def rehearse_hooks(method: Method) -> None:
    """Call the user's own stages on made-up rows. Raises SpecError: one is not found, takes other arguments, fails, or
    returns something else.
    """
    rng, own = np.random.default_rng(0), ":" in method.first_stage
    block: Block = rng.random((_ROWS, len(method.scales))), rng.random(_ROWS)
    if own:
        _takes(load_hook(method.first_stage, setting=FIRST_STAGE), FIRST_STAGE, "original, rng")
        with _failing(FIRST_STAGE):
            own_rows(method.first_stage, block[0][:, list(method.made)], rng)
    if method.regression.hook is not None:
        _takes(load_hook(method.regression.hook, setting=REGRESSION), REGRESSION, "")
        features = Features(method.scales, np.ones(len(method.scales)), method.classes)
        with _failing(REGRESSION):
            predicted(fit_hook(method.regression.hook, features, [block]), features, block[0])


def _takes(hook: Callable[..., Any], setting: str, arguments: str) -> None:
    try:
        inspect.signature(hook).bind(*filter(None, arguments.split(", ")))
    except TypeError:
        raise SpecError(f"{setting}: it must be callable as {hook.__name__}({arguments})") from None
    except ValueError:  # compiled code states no signature
        return


@contextmanager
def _failing(setting: str) -> Iterator[None]:
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{setting}: on {_ROWS} made-up rows it failed with {type(error).__name__}: {error}") from error
