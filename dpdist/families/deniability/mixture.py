"""A mixture of products as a generative model under the privacy test: an example of `OwnModel`.

Each component is a product of independent attributes. Given a seed s, a component c is drawn from its posterior
``r_c(s) ~ w_c prod_j p_cj(s_j)``, and every attribute anew from the component. So ``p_s(y) = sum_c r_c(s) prod_j
p_cj(y_j)``: no value is copied, and seeds of one component are plausible for each other's candidates.

All probabilities are integers in units of 2**-32, which uniform numbers of 53 bits realise exactly, and the same ones
are drawn from and reported. Where `fit` learns them, the codes are of a public table: nothing here adds noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dpdist.privacy.arrays import Codes, Counts, Floats

_UNIT = 1 << 32


class MixtureOfProducts:
    """The mixture of some components; a subclass whose ``__init__`` takes the schema is a hook.

    Parameters
    ----------
    weights : float64[components]
        Of the components, above 0, in any unit.
    tables : list of float64[components, cardinality]
        Weights of the values of each attribute, in the order of the schema; every value is given at least 2**-32.
    """

    def __init__(self, weights: ArrayLike, tables: Sequence[ArrayLike]) -> None:
        self.weights = np.asarray(weights, np.float64)
        self.tables = [_integers(np.asarray(table, np.float64)) for table in tables]
        self.draws = 1 + len(self.tables)

    def sample(self, seeds: Codes, uniforms: Floats) -> Codes:
        """One record for each seed."""
        words = (uniforms * _UNIT).astype(np.int64)
        component = (self._posterior(seeds).cumsum(axis=0)[:-1] <= words[:, 0]).sum(axis=0)
        return [
            (table.cumsum(axis=1)[component, :-1] <= words[:, i : i + 1]).sum(axis=1)
            for i, table in enumerate(self.tables, start=1)
        ]

    def log_prob(self, records: Codes, seeds: Codes) -> Floats:
        """ln of the probability of records given seeds, element by element."""
        likelihood, scale = self._likelihood(records)
        posterior = self._posterior(seeds)
        total = np.zeros(np.broadcast_shapes(records[0].shape, seeds[0].shape))
        for share, probability in zip(posterior, likelihood, strict=True):  # one order of sums, whatever the shape
            total += share * probability
        values: Floats = np.log(total) + (scale - math.log(_UNIT))
        return values

    def _posterior(self, seeds: Codes) -> Counts:
        """Probability of each component given seeds, integers that sum to 2**32 over the first axis."""
        likelihood, _ = self._likelihood(seeds)
        cumulative = (self.weights.reshape(-1, *(1,) * seeds[0].ndim) * likelihood).cumsum(axis=0)
        ends = (cumulative / cumulative[-1] * _UNIT).astype(np.int64)
        shares: Counts = np.diff(ends, axis=0, prepend=0)
        return shares

    def _likelihood(self, records: Codes) -> tuple[Floats, Floats]:
        """Probability of records in each component, on the first axis, and the logarithm of its unit."""
        product, scale = np.ones((len(self.weights), *records[0].shape)), np.zeros(records[0].shape)
        for table, codes in zip(self.tables, records, strict=True):
            product = product * (table[:, codes] / _UNIT)
            largest = product.max(axis=0)
            product, scale = product / largest, scale + np.log(largest)
        return product, scale


def fit(
    codes: Codes, cardinalities: Sequence[int], *, components: int, rounds: int = 100, seed: int = 0
) -> tuple[Floats, list[Floats]]:
    """Weights and tables of a mixture by expectation maximisation, for `MixtureOfProducts`.

    Not private: `codes` are of a public table, such as last year's (`dpdist.families.deniability.reference.Reference`
    reads one), or of records that were released before.
    """
    rows = len(codes[0])
    shares = np.random.default_rng(seed).dirichlet(np.ones(components), rows)
    for _ in range(rounds):
        weights = shares.sum(axis=0) + 1.0
        tables = [
            np.stack([np.bincount(column, shares[:, c], size) for c in range(components)]) + 1.0 / size
            for column, size in zip(codes, cardinalities, strict=True)
        ]
        logs = np.tile(np.log(weights), (rows, 1))
        for column, table in zip(codes, tables, strict=True):
            logs += np.log(table / table.sum(axis=1, keepdims=True)).T[column]
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    return weights / weights.sum(), [table / table.sum(axis=1, keepdims=True) for table in tables]


def _integers(table: Floats) -> Counts:
    """Rows of weights as integers of at least one that sum to 2**32."""
    if not (np.isfinite(table).all() and (table >= 0).all() and (table.sum(axis=1) > 0).all()):
        raise ValueError("tables of a mixture hold finite weights, none negative, with a positive sum in each row")
    scaled = table / table.sum(axis=1, keepdims=True) * (_UNIT - 2 * table.shape[1])
    whole: Counts = np.maximum(scaled, 0).astype(np.int64) + 1
    whole[np.arange(len(whole)), whole.argmax(axis=1)] += _UNIT - whole.sum(axis=1)
    return whole
