"""Stage 1 of the published method on blocks of records: statistics, synthetic rows, disclosure, mixed rows.

Rows live on the unit cube (`dpdist.families.prediction.scales`). Not differentially private: original rows are mixed
into the output, and the regression is trained on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from dpdist.errors import CheckFailed, SpecError
from dpdist.families.base.plugins import load
from dpdist.families.base.stored import Stored
from dpdist.families.prediction.blocks import Block, generator
from dpdist.families.prediction.density import FOLDS, Marginal, cell_count, cell_counts, fit_marginal
from dpdist.families.prediction.latin import FIRST_STAGES, ScoreSums, Target, score_sums
from dpdist.families.prediction.lid.hybrid import match, mix
from dpdist.families.prediction.lid.method import Method
from dpdist.families.prediction.scales import snapped
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Counts, Floats


@dataclass(frozen=True, eq=False)
class InputDistribution(Stored):
    """The distribution of the inputs as stage 1 sees it."""

    FILE: ClassVar[str] = "target.npz"

    marginals: tuple[Marginal, ...]  # of all inputs
    correlation: Floats  # float64[d, d]: of the normal scores of the inputs that are synthesised

    def target(self, method: Method) -> Target:
        """What synthetic rows reproduce."""
        return Target(tuple(self.marginals[i] for i in method.made), self.correlation)

    @cached_property
    def deviations(self) -> Floats:
        """Deviation of each input on the unit interval, float64[inputs]; 1 where it does not vary."""
        out = np.ones(len(self.marginals))
        for i, marginal in enumerate(self.marginals):
            variance = marginal.variance
            out[i] = math.sqrt(variance) if variance > 1e-18 else 1.0
        return out


def fold_counts(method: Method, key: KeyRef, block: Block, start: int) -> tuple[Counts, ...]:
    """Records in each cell of each input by fold; `start` is the number of the block's first record."""
    inputs, _ = block
    words = load_noise(key).words("prediction/folds", len(inputs), start=start)
    folds = (words % np.uint64(FOLDS)).astype(np.int64)
    return tuple(cell_counts(inputs[:, i], folds, cell_count(scale)) for i, scale in enumerate(method.scales))


def add_counts(parts: Sequence[tuple[Counts, ...]]) -> tuple[Counts, ...]:
    """Counts of several blocks together."""
    return tuple(sum(column[1:], column[0]) for column in zip(*parts, strict=True))


def fit_marginals(method: Method, counts: Sequence[Counts]) -> tuple[Marginal, ...]:
    """The marginals of all inputs."""
    return tuple(
        fit_marginal(count, scale, rule=method.bandwidth) for count, scale in zip(counts, method.scales, strict=True)
    )


def block_scores(method: Method, marginals: Sequence[Marginal], block: Block) -> ScoreSums:
    """Sums of the products of the normal scores of the inputs that are synthesised."""
    made = list(method.made)
    return score_sums(block[0][:, made], [marginals[i] for i in made])


def synthetic_rows(method: Method, inputs: InputDistribution, key: KeyRef, block: Block, number: int) -> Floats:
    """The synthetic row of each record of a block, in the order of the records: float64[n, synthesised inputs]."""
    made = list(method.made)
    original = block[0][:, made]
    rng = generator(load_noise(key), "prediction/first-stage", number)
    if method.first_stage in FIRST_STAGES:
        synthetic = FIRST_STAGES[method.first_stage](inputs.target(method), len(original), rng)
    else:
        hook = load(method.first_stage, setting="prediction.first_stage")
        synthetic = checked_rows(hook(original.copy(), rng), original, setting="prediction.first_stage")
    compared = [place for place, scale in enumerate(method.made_scales) if not scale.nominal]
    weights = 1 / inputs.deviations[[made[place] for place in compared]]
    places = match(
        original[:, compared] * weights,
        synthetic[:, compared] * weights,
        method=method.matching,
        exact_rows=method.exact_rows,
    )
    return synthetic[places]


def near_counts(method: Method, block: Block, synthetic: Floats) -> Counts:
    """How many released rows of a block would be near their originals, int64[alphas] for each of the method's alphas.

    Near is within eta in some of the columns that are looked at. `synthetic`, float64[n, synthesised inputs], is
    matched: row i is mixed with record i.
    """
    watched, columns = list(method.watched), list(method.disclosure.columns)
    mine, theirs, scales = block[0][:, columns], synthetic[:, watched], [method.scales[i] for i in columns]
    mixed = np.array([not scale.nominal for scale in scales], bool)
    discrete = any(scale.discrete for scale in scales)
    counts = np.zeros(len(method.alphas), np.int64)
    for place, alpha in enumerate(method.alphas):
        released = mix(mine, theirs, alpha=alpha, mixed=mixed)
        if discrete:
            released = snapped(scales, released)
        counts[place] = np.count_nonzero((np.abs(mine - released) <= method.disclosure.eta).any(axis=1))
    return counts


@dataclass(frozen=True)
class Disclosed(Stored):
    """The measured disclosure, and the share of the original row that follows from it."""

    FILE: ClassVar[str] = "alpha.json"

    alpha: float
    near: int | None  # rows near their originals; confidential. None where no column is looked at


def disclosed(method: Method, counts: Counts, rows: int) -> Disclosed:
    """The share of the original row in the release: the one given, or the largest within the disclosure. `counts` are
    those of `near_counts`, over all `rows`. Raises CheckFailed: the disclosure would exceed the declared bound.
    """
    lid, most = method.disclosure.lid, method.most_alpha if method.alpha is None else method.alpha
    if not method.watched:
        return Disclosed(most, None)
    pairs = zip(method.alphas, counts.tolist(), strict=True)
    within = [Disclosed(alpha, near) for alpha, near in pairs if near <= lid * rows and alpha <= most]
    if within:
        return within[-1]
    if method.alpha is not None:
        raise CheckFailed(
            f"with alpha {method.alpha:g} more than {lid:g} of the released rows would be near their originals, so "
            "nothing is published: lower prediction.alpha, or leave it out to have it chosen; a column that hardly "
            "varies is always near (privacy.disclosure.columns says which are looked at)"
        )
    raise CheckFailed(
        f"even with alpha 0 more than {lid:g} of the released rows would be near their originals, so nothing is "
        "published: raise privacy.disclosure.lid, lower its eta, or set prediction.matching: independent; a column "
        "that hardly varies is always near (privacy.disclosure.columns says which are looked at)"
    )


def mixed_rows(method: Method, inputs: Floats, synthetic: Floats, *, alpha: float) -> Floats:
    """The released inputs of a block, float64[n, inputs], in the order of the records."""
    made, scales = list(method.made), method.made_scales
    out = inputs.copy()
    mixed = np.array([not scale.nominal for scale in scales], bool)
    out[:, made] = snapped(scales, mix(inputs[:, made], synthetic, alpha=alpha, mixed=mixed))
    return out


def checked_rows(rows: object, like: Floats, *, setting: str) -> Floats:
    """What a user's first stage returned, if it is what was asked for. Raises SpecError: it has another shape, or
    values that are not finite; values outside the unit cube are moved to its faces.
    """
    out = np.asarray(rows, np.float64)
    if out.shape != like.shape or not np.all(np.isfinite(out)):
        raise SpecError(f"{setting}: it must return finite rows of the shape it was given")
    return np.clip(out, 0.0, 1.0)
