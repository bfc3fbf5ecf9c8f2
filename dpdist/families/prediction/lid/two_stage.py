"""The published method on arrays, block by block: the meaning of a release, which the graph reproduces bit for bit.

Rows live on the unit cube (`dpdist.families.prediction.scales`). Not differentially private: original rows are mixed
into the
output, and the regression is trained on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import CheckFailed
from dpdist.families.prediction.blocks import Layout, generator
from dpdist.families.prediction.density import FOLDS, Marginal, cell_count, cell_counts, fit_marginal
from dpdist.families.prediction.latin import FIRST_STAGES, ScoreSums, Target, correlation, score_sums
from dpdist.families.prediction.lid.disclosure import choose_alpha, near_counts
from dpdist.families.prediction.lid.hybrid import match, mix
from dpdist.families.prediction.lid.method import Method
from dpdist.families.prediction.lid.regression import block_sample, features, fit, join_samples, sample_words
from dpdist.families.prediction.plugins import checked_rows, load
from dpdist.families.prediction.scales import snapped
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise

# --- statistics of a block -------------------------------------------------------------------------------------------


def block_counts(method: Method, inputs: Floats, noise: Noise, *, start: int) -> tuple[Counts, ...]:
    """Records in each cell of each input by fold; `start` is the number of the block's first record."""
    folds = (noise.words("prediction/folds", len(inputs), start=start) % np.uint64(FOLDS)).astype(np.int64)
    return tuple(cell_counts(inputs[:, i], folds, cell_count(scale)) for i, scale in enumerate(method.scales))


def add_counts(a: Sequence[Counts], b: Sequence[Counts]) -> tuple[Counts, ...]:
    """Counts of two blocks together."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def marginals_of(method: Method, counts: Sequence[Counts]) -> tuple[Marginal, ...]:
    """The marginals of all inputs."""
    return tuple(
        fit_marginal(count, scale, rule=method.bandwidth) for count, scale in zip(counts, method.scales, strict=True)
    )


def deviations_of(marginals: Sequence[Marginal]) -> Floats:
    """Deviation of each column on the unit interval; 1 where it does not vary."""
    out = np.ones(len(marginals))
    for i, marginal in enumerate(marginals):
        middles, masses = (np.arange(marginal.cells) + 0.5) / marginal.cells, np.diff(marginal.cumulative)
        variance = float(masses @ (middles - masses @ middles) ** 2)
        out[i] = math.sqrt(variance) if variance > 1e-18 else 1.0
    return out


def block_scores(method: Method, inputs: Floats, marginals: Sequence[Marginal]) -> ScoreSums:
    """Sums of the products of the normal scores of the inputs that are synthesised."""
    made = list(method.made)
    return score_sums(inputs[:, made], [marginals[i] for i in made])


def target_of(method: Method, marginals: Sequence[Marginal], sums: ScoreSums) -> Target:
    """What stage 1 reproduces."""
    return Target(tuple(marginals[i] for i in method.made), correlation(sums))


# --- stage 1 ---------------------------------------------------------------------------------------------------------


def block_synthetic(
    method: Method, inputs: Floats, target: Target, deviations: Floats, noise: Noise, *, number: int
) -> Floats:
    """The synthetic row of each record of a block, in the order of the records: float64[n, made columns]."""
    made = list(method.made)
    original = inputs[:, made]
    rng = generator(noise, "prediction/first-stage", number)
    if method.first_stage in FIRST_STAGES:
        synthetic = FIRST_STAGES[method.first_stage](target, len(inputs), rng)
    else:
        hook = load(method.first_stage, setting="prediction.first_stage")
        synthetic = checked_rows(hook(original.copy(), rng), original, setting="prediction.first_stage")
    compared = [place for place, i in enumerate(made) if not method.scales[i].nominal]
    weights = 1 / deviations[[made[place] for place in compared]]
    places = match(
        original[:, compared] * weights,
        synthetic[:, compared] * weights,
        method=method.matching,
        exact_rows=method.exact_rows,
    )
    return synthetic[places]


def block_near(method: Method, inputs: Floats, synthetic: Floats) -> NDArray[np.int64]:
    """How many rows of a block would be near their originals, for each of the method's alphas."""
    return near_counts(
        inputs[:, list(method.made)],
        synthetic,
        scales=method.made_scales,
        eta=method.disclosure.eta,
        columns=method.watched,
        alphas=method.alphas,
    )


def alpha_of(method: Method, counts: NDArray[np.int64], rows: int) -> float:
    """The share of the original row in the release.

    Raises
    ------
    CheckFailed
        The disclosure would exceed the declared bound.
    """
    lid = method.disclosure.lid
    if not method.watched:
        return method.most_alpha if method.alpha is None else method.alpha
    if method.alpha is not None:
        if counts[0] > lid * rows:
            raise CheckFailed(
                f"with alpha {method.alpha:g} more than {lid:g} of the released rows would be near their originals, so "
                "nothing is published: lower prediction.alpha, or leave it out to have it chosen; a column that hardly "
                "varies is always near (privacy.disclosure.columns says which are looked at)"
            )
        return method.alpha
    alpha = choose_alpha(counts, rows, lid=lid, most=method.most_alpha, alphas=method.alphas)
    if alpha is None:
        raise CheckFailed(
            f"even with alpha 0 more than {lid:g} of the released rows would be near their originals, so nothing is "
            "published: raise privacy.disclosure.lid, lower its eta, or set prediction.matching: independent; a column "
            "that hardly varies is always near (privacy.disclosure.columns says which are looked at)"
        )
    return alpha


def block_mixed(method: Method, inputs: Floats, synthetic: Floats, *, alpha: float) -> Floats:
    """The released inputs of a block, in the order of the records."""
    made, scales = list(method.made), method.made_scales
    out = inputs.copy()
    mixed = np.array([not scale.nominal for scale in scales], bool)
    out[:, made] = snapped(scales, mix(inputs[:, made], synthetic, alpha=alpha, mixed=mixed))
    return out


# --- the whole -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Synthesis:
    """What both stages give, in the order of the records.

    Attributes
    ----------
    inputs : float64[n, d]
        On the unit cube.
    responses : float64[n]
        On the scale of the responses that were given.
    alpha : float
    lid : float
        Measured on the released rows; 0 without columns to look at.
    model : object
        The regression.
    """

    inputs: Floats
    responses: Floats
    alpha: float
    lid: float
    model: Any


def synthesise(method: Method, inputs: Floats, responses: Floats, noise: Noise) -> Synthesis:
    """Both stages, in this process.

    Parameters
    ----------
    method : Method
    inputs : float64[n, d]
        On the unit cube.
    responses : float64[n]
    noise : Noise

    Raises
    ------
    CheckFailed
        The disclosure would exceed its bound.
    """
    layout = Layout(len(inputs), method.block_rows)
    ends = np.cumsum([0, *layout.sizes]).tolist()
    spans = [slice(a, b) for a, b in pairwise(ends)]
    counts = reduce(add_counts, [block_counts(method, inputs[span], noise, start=span.start) for span in spans])
    marginals = marginals_of(method, counts)
    deviations = deviations_of(marginals)
    sums = reduce(lambda a, b: a + b, [block_scores(method, inputs[span], marginals) for span in spans])
    target = target_of(method, marginals, sums)
    synthetic = [
        block_synthetic(method, inputs[span], target, deviations, noise, number=number)
        for number, span in enumerate(spans)
    ]
    near = reduce(
        lambda a, b: a + b,
        [block_near(method, inputs[span], rows) for span, rows in zip(spans, synthetic, strict=True)],
    )
    alpha = alpha_of(method, near, len(inputs))
    size = max(method.regression.tuning_rows, method.regression.landmarks)
    blocks, samples = [], []
    for span in spans:
        seen = features(method.scales, inputs[span], deviations)
        words = sample_words(noise, len(seen), start=span.start)
        first = block_sample(words, size)
        blocks.append((seen, responses[span]))
        samples.append((words[first], seen[first], responses[span][first]))
    model = fit(method.regression, blocks, join_samples(samples, size), noise)
    mixed = [block_mixed(method, inputs[span], rows, alpha=alpha) for span, rows in zip(spans, synthetic, strict=True)]
    predicted = [model.predict(features(method.scales, rows, deviations)) for rows in mixed]
    place = method.alphas.index(alpha) if alpha in method.alphas else None
    lid = float(near[place]) / len(inputs) if place is not None else math.nan
    return Synthesis(np.concatenate(mixed), np.concatenate(predicted), alpha, lid, model)
