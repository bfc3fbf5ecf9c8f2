"""The private variant on arrays: noise on exact sums, and the model that follows from what was released.

Each `noisy_…` function is a mechanism of its own, and is what a release calls; everything else is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.families.prediction.blocks import generator
from dpdist.families.prediction.density import Marginal
from dpdist.families.prediction.latin import Target, latin_hypercube
from dpdist.families.prediction.private.charge import Charge
from dpdist.families.prediction.private.features import (
    RESPONSE_CELLS,
    FeatureMap,
    PrivateModel,
    Window,
    cross_products,
    feature_map,
    feature_products,
    modelled_products,
    positive_part,
    response_window,
    ridge_weights,
)
from dpdist.families.prediction.private.mechanisms import (
    FEATURE_STEP,
    RANK_STEP,
    Cells,
    PrivateColumn,
    histogram,
    noisy_total,
    private_correlation,
    private_marginal,
    rank_products,
    rank_table,
)
from dpdist.families.prediction.scales import Scale
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise

_MODELLED_ROWS = 1 << 15  # drawn from the released model for the second moments of the features


# --- mechanisms ------------------------------------------------------------------------------------------------------


def noisy_marginals(counts: Sequence[Counts], *, charge: Charge, noise: Noise) -> list[Counts]:
    """Histograms with noise in every cell."""
    return [
        column + noise.gaussian_integers(f"prediction/marginal/{i}", len(column), sigma=charge.marginal)
        for i, column in enumerate(counts)
    ]


def noisy_ranks(products: Counts, *, charge: Charge, noise: Noise) -> Counts:
    """Products of ranks with noise, in steps."""
    if not len(products):
        return products
    sigma = charge.correlation / RANK_STEP**2
    return products + noise.gaussian_integers("prediction/correlation", len(products), sigma=sigma)


def noisy_products(products: Counts, *, charge: Charge, noise: Noise) -> Counts:
    """Products of the features with noise, symmetric, in steps; off the diagonal the noise is divided by sqrt(2)."""
    size, scale = len(products), charge.product / FEATURE_STEP**2
    upper = np.triu_indices(size, 1)
    out = np.zeros((size, size), np.int64)
    sigma = scale / math.sqrt(2)
    out[upper] = noise.gaussian_integers("prediction/products/upper", len(upper[0]), sigma=sigma)
    out += out.T
    out[np.diag_indices(size)] = noise.gaussian_integers("prediction/products/diagonal", size, sigma=scale)
    return products + out


def noisy_cross(cross: Counts, *, charge: Charge, noise: Noise) -> Counts:
    """Cross products with noise, in steps."""
    return cross + noise.gaussian_integers("prediction/cross", len(cross), sigma=charge.cross / FEATURE_STEP**2)


# --- what follows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class InputModel:
    """What noisy marginals say.

    Attributes
    ----------
    total : float
        Number of records.
    marginals : tuple of Marginal
        Of the inputs, then of the response.
    tables : tuple of int64[total]
        Ranks of the fine cells of each input.
    """

    total: float
    marginals: tuple[Marginal, ...]
    tables: tuple[Counts, ...]

    def target(self, noisy: Counts) -> Target:
        """Marginals and correlation of the inputs, with noisy products of ranks."""
        inputs = self.marginals[:-1]
        return Target(inputs, private_correlation(noisy, self.tables, inputs, total=self.total))


def input_model(columns: Sequence[PrivateColumn], noisy: Sequence[Counts]) -> InputModel:
    """The marginals of noisy histograms: inputs, then the response."""
    total = noisy_total(noisy)
    marginals = tuple(
        private_marginal(column, counts, total=total) for column, counts in zip(columns, noisy, strict=True)
    )
    tables = tuple(rank_table(column, m) for column, m in zip(columns[:-1], marginals[:-1], strict=True))
    return InputModel(total, marginals, tables)


@dataclass(frozen=True, eq=False)
class Design:
    """How the ridge regression sees a record.

    Attributes
    ----------
    feature : FeatureMap
    window : Window
    response : PrivateColumn
    """

    feature: FeatureMap
    window: Window
    response: PrivateColumn


def design(
    columns: Sequence[PrivateColumn], known: InputModel, *, frequencies: int, width: float, noise: Noise
) -> Design:
    """Features and window of the responses, from what was released."""
    rng = generator(noise, "prediction/directions", 0)
    feature = feature_map(columns[:-1], known.tables, frequencies=frequencies, width=width, rng=rng)
    response = PrivateColumn(scale=columns[-1].scale, cells=RESPONSE_CELLS, fine=1)
    return Design(feature, response_window(known.marginals[-1]), response)


def fitted_model(
    columns: Sequence[PrivateColumn],
    known: InputModel,
    target: Target,
    seen: Design,
    *,
    products: Counts | None,
    cross: Counts,
    charge: Charge,
    noise: Noise,
) -> PrivateModel:
    """The model of a private release, from noisy statistics alone; `products` is None where they are modelled."""
    if products is None:
        drawn = latin_hypercube(target, _MODELLED_ROWS, generator(noise, "prediction/modelled", 0))
        cells = [
            np.clip((drawn[:, i] * column.total).astype(np.int64), 0, column.total - 1)
            for i, column in enumerate(columns[:-1])
        ]
        second = modelled_products(seen.feature(cells), total=known.total)
    else:
        second = positive_part(np.asarray(products * FEATURE_STEP**2, np.float64))
    marginal, window = known.marginals[-1], seen.window
    middles = (np.arange(marginal.cells) + 0.5) / marginal.cells
    values, masses = np.clip((middles - window.centre) / window.half, -1, 1), np.diff(marginal.cumulative)
    weights = ridge_weights(
        second,
        np.asarray(cross * FEATURE_STEP**2, np.float64),
        noise=charge.cross,
        product_noise=charge.product,
        variance=float(masses @ (values - masses @ values) ** 2),
    )
    return PrivateModel(tuple(columns[:-1]), target, seen.feature, weights, window)


def private_model(
    columns: Sequence[PrivateColumn],
    values: Sequence[Floats],
    charge: Charge,
    noise: Noise,
    *,
    frequencies: int,
    width: float,
) -> PrivateModel:
    """The whole private variant but for drawing records, in this process.

    Parameters
    ----------
    columns : sequence of PrivateColumn
        Inputs, then the response.
    values : sequence of float64[n]
        Of the same columns.
    charge : Charge
    noise : Noise
    frequencies, width :
        As for `dpdist.families.prediction.private.features.feature_map`.
    """
    fine: list[Cells] = [column.cells_of(v) for column, v in zip(columns, values, strict=True)]
    counts = [histogram(column, cells) for column, cells in zip(columns, fine, strict=True)]
    known = input_model(columns, noisy_marginals(counts, charge=charge, noise=noise))
    ranks = np.stack([table[cells] for table, cells in zip(known.tables, fine, strict=False)], axis=1)
    target = known.target(noisy_ranks(rank_products(ranks), charge=charge, noise=noise))
    seen = design(columns, known, frequencies=frequencies, width=width, noise=noise)
    features, responses = seen.feature(fine[:-1]), seen.window.table()[seen.response.cells_of(values[-1])]
    products = None
    if charge.product:
        products = noisy_products(feature_products(features), charge=charge, noise=noise)
    cross = noisy_cross(cross_products(features, responses), charge=charge, noise=noise)
    return fitted_model(columns, known, target, seen, products=products, cross=cross, charge=charge, noise=noise)


def private_records(model: PrivateModel, response: Scale, rows: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Records drawn from a private model: inputs on the unit cube, and values of the response."""
    inputs = latin_hypercube(model.target, rows, rng)
    return inputs, response.values(model.predict(inputs))
