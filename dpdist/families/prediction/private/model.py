"""What follows from the noisy statistics of the private variant: post-processing, at no cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.families.prediction.blocks import generator
from dpdist.families.prediction.density import Marginal
from dpdist.families.prediction.latin import Target, latin_hypercube
from dpdist.families.prediction.private.charge import Charge
from dpdist.families.prediction.private.features import (
    Design,
    FeatureMap,
    Window,
    feature_map,
    modelled_products,
    response_window,
    ridge_weights,
)
from dpdist.families.prediction.private.mechanisms import (
    FEATURE_STEP,
    Cells,
    PrivateColumn,
    noisy_total,
    private_correlation,
    private_marginal,
    rank_table,
)
from dpdist.families.prediction.private.statistics import NoisyCorrelations, NoisyMarginals, NoisyRegression
from dpdist.families.prediction.second_stage import FREQUENCIES, WIDTH
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.portable import inner, matmul, positive_part

_MODELLED_ROWS = 1 << 15  # drawn from the released model for the second moments of the features


@dataclass(frozen=True, eq=False)
class InputModel:
    """What noisy marginals say."""

    total: float  # number of records
    marginals: tuple[Marginal, ...]  # of the inputs, then of the response
    tables: tuple[Counts, ...]  # tuple of int64[total]: ranks of the fine cells of each input

    def target(self, noisy: NoisyCorrelations | None) -> Target:
        """Marginals and correlation of the inputs; without products of ranks there is one input."""
        inputs = self.marginals[:-1]
        products = np.zeros(0, np.int64) if noisy is None else noisy.products
        return Target(inputs, private_correlation(products, self.tables, inputs, total=self.total))


def input_model(columns: Sequence[PrivateColumn], noisy: NoisyMarginals) -> InputModel:
    """The marginals of noisy histograms: inputs, then the response."""
    total = noisy_total(noisy.counts)
    marginals = tuple(
        private_marginal(column, counts, total=total) for column, counts in zip(columns, noisy.counts, strict=True)
    )
    tables = tuple(rank_table(column, m) for column, m in zip(columns[:-1], marginals[:-1], strict=True))
    return InputModel(total, marginals, tables)


def design(columns: Sequence[PrivateColumn], known: InputModel, *, noise: Noise) -> Design:
    """How the regression sees records, from what was released."""
    rng = generator(noise, "prediction/directions", 0)
    features = feature_map(columns[:-1], known.tables, frequencies=FREQUENCIES, width=WIDTH, rng=rng)
    return Design(features, response_window(known.marginals[-1]), columns[-1].scale)


@dataclass(frozen=True, eq=False)
class PrivateModel:
    """What was released, and what follows from it."""

    columns: tuple[PrivateColumn, ...]  # the inputs
    target: Target  # marginals and correlation of the inputs
    features: FeatureMap
    weights: Floats  # float64[p]
    window: Window  # of the responses

    def predict(self, inputs: Floats) -> Floats:
        """Responses on the unit interval, for rows of the unit cube, float64[n, d]."""
        predicted = matmul(self.features(_cells(self.columns, inputs)).astype(np.float64), self.weights) * FEATURE_STEP
        return np.clip(self.window.centre + self.window.half * np.clip(predicted, -1.0, 1.0), 0.0, 1.0)


def fitted_model(
    columns: Sequence[PrivateColumn],
    known: InputModel,
    target: Target,
    seen: Design,
    noisy: NoisyRegression,
    *,
    charge: Charge,
    noise: Noise,
) -> PrivateModel:
    """The model of a private release, from noisy statistics alone."""
    inputs, window = tuple(columns[:-1]), seen.window
    if len(noisy.products):
        second = positive_part(np.asarray(noisy.products * FEATURE_STEP**2, np.float64))
    else:
        drawn = latin_hypercube(target, _MODELLED_ROWS, generator(noise, "prediction/modelled", 0))
        second = modelled_products(seen.features(_cells(inputs, drawn)), total=known.total)
    response = known.marginals[-1]
    values = np.clip((response.middles - window.centre) / window.half, -1, 1)
    weights = ridge_weights(
        second,
        np.asarray(noisy.cross * FEATURE_STEP**2, np.float64),
        noise=charge.cross,
        product_noise=charge.product,
        variance=inner(response.masses, (values - inner(response.masses, values)) ** 2),
    )
    return PrivateModel(inputs, target, seen.features, weights, window)


def _cells(columns: Sequence[PrivateColumn], inputs: Floats) -> list[Cells]:
    """The fine cells of rows of the unit cube."""
    return [
        np.clip((inputs[:, i] * column.total).astype(np.int64), 0, column.total - 1) for i, column in enumerate(columns)
    ]
