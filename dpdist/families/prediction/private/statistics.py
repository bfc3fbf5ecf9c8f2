"""What the private variant measures: exact sums over the table, the noise on each, and the regression on noisy sums.

Every sum is an operator of a pass over the table, of integers, so the order of the records does not matter. Features
are rounded towards zero to steps of `FEATURE_STEP`, so that no record's features have a norm above 1 and sums of their
products are exact integers. Each noisy statistic is a mechanism of its own; what a record changes in it, and what is
charged, is in `dpdist.families.prediction.private.mechanisms`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpdist.data.operators import Operator
from dpdist.families.prediction.columns import Columns, Scale
from dpdist.families.prediction.first_stage import Marginal, standard_normal
from dpdist.families.prediction.private.mechanisms import (
    FEATURE_STEP,
    RANK_STEP,
    Cells,
    Deviations,
    PrivateColumn,
    histogram,
    rank_products,
)
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.calibrate import round_up
from dpdist.privacy.noise import Noise
from dpdist.privacy.portable import inner, sin_turns, solve
from dpdist.storage.stored import Stored

RESPONSE_CELLS = 4096
"""Cells of the response, as the ridge statistics see it."""

CHUNK_ROWS = 1 << 13
"""Records whose features are in memory at a time."""

_TURN = 1 << 16  # steps of a turn, in which phases are looked up
_PHASE = 1 << 20  # steps of a turn, in which phases are added


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Features of a record, as integers from tables: a constant, ranks and categories, random Fourier features.

    ``phi`` has norm at most 1. Its parts have squared weights that sum to one: the constant; the ranks of ordered
    columns and the indicators of categories; pairs of a cosine and a sine of random directions in the ranks.
    """

    # tuple of int64[total, width]: for each input the linear features of its fine cells, in steps
    linear: tuple[Counts, ...]
    # tuple of int64[total, frequencies]: for each input the phases of its fine cells, in steps of a turn
    phases: tuple[Counts, ...]
    constant: int  # in steps
    wave: Counts  # int64[turn]: cosine of each step of a turn, times the weight, in steps

    @property
    def size(self) -> int:
        """Number of features."""
        return int(1 + sum(table.shape[1] for table in self.linear) + 2 * self.phases[0].shape[1])

    def __call__(self, cells: Sequence[Cells]) -> Counts:
        """Features of records given by their fine cells: int64[n, size] in steps of `FEATURE_STEP`."""
        out = np.empty((len(cells[0]), self.size), np.int64)
        out[:, 0] = self.constant
        at = 1
        for table, column in zip(self.linear, cells, strict=True):
            out[:, at : at + table.shape[1]] = table[column]
            at += table.shape[1]
        phase = self.phases[0][cells[0]]
        for table, column in zip(self.phases[1:], cells[1:], strict=True):
            phase = phase + table[column]
        turn = (phase // (_PHASE // _TURN)) % _TURN
        frequencies = phase.shape[1]
        out[:, at : at + frequencies] = self.wave[turn]
        out[:, at + frequencies :] = self.wave[(turn - _TURN // 4) % _TURN]
        return out


WEIGHTS = (0.1, 0.2, 0.7)
"""Squared weights of the constant, the linear and the Fourier features."""


def feature_map(
    columns: Sequence[PrivateColumn],
    tables: Sequence[Counts],
    *,
    frequencies: int,
    width: float,
    rng: np.random.Generator,
) -> FeatureMap:
    """The features of records, from public cells and the released ranks of the inputs (int64[total] each,
    `rank_table`).

    `width` is that of the Gaussian kernel that the Fourier features stand for, in units of the ranks' range times the
    square root of the number of columns. The directions are drawn from `rng`, and are public in effect.
    """
    d = len(columns)
    directions = standard_normal(rng, (d, frequencies)) / (width * math.sqrt(d) * 2 * math.pi)
    part = math.sqrt(WEIGHTS[1] / d)
    linear: list[Counts] = []
    phases: list[Counts] = []
    for i, (column, ranks) in enumerate(zip(columns, tables, strict=True)):
        values: NDArray[np.floating[Any]]
        position: NDArray[np.floating[Any]]
        if column.scale.nominal:
            values, position = np.eye(column.total) * part, np.arange(column.total) / 2.0
        else:
            values, position = 2 * part * ranks[:, None] * RANK_STEP, ranks * RANK_STEP
        linear.append(_towards_zero(values))
        phases.append(np.rint(np.outer(position, directions[i]) * _PHASE).astype(np.int64))
    wave = _wave(math.sqrt(WEIGHTS[2] / frequencies))
    return FeatureMap(tuple(linear), tuple(phases), int(math.sqrt(WEIGHTS[0]) / FEATURE_STEP), wave)


@lru_cache(maxsize=8)
def _wave(amplitude: float) -> Counts:
    return _towards_zero(amplitude * sin_turns(np.arange(_TURN) / _TURN + 0.25) * (1 - 2.0**-40))


def _towards_zero(values: NDArray[np.floating[Any]]) -> Counts:
    return np.asarray(np.trunc(values / FEATURE_STEP), np.int64)


@dataclass(frozen=True)
class Window:
    """The part of the response's unit interval that the regression sees: the rest is moved to its ends."""

    centre: float
    half: float

    def table(self) -> Counts:
        """The response of each of its cells, from -1 to 1, in steps of `FEATURE_STEP`."""
        middles = (np.arange(RESPONSE_CELLS) + 0.5) / RESPONSE_CELLS
        return _towards_zero(np.clip((middles - self.centre) / self.half, -1.0, 1.0))


def response_window(marginal: Marginal) -> Window:
    """The window around the mean of the released marginal that leaves half a percent out at most at each end."""
    low, high = marginal.inverse(np.array([0.005, 0.995])).tolist()
    centre = inner(marginal.masses, marginal.middles)
    return Window(centre, max(high - centre, centre - low) + 0.5 / marginal.cells)


@dataclass(frozen=True, eq=False)
class Design:
    """How the ridge regression sees a record."""

    features: FeatureMap  # of its inputs
    window: Window
    response: Scale

    def responses(self, values: NDArray[np.generic]) -> Counts:
        """Values of the response, from -1 to 1, in steps of `FEATURE_STEP`: int64[n]."""
        column = PrivateColumn(scale=self.response, cells=RESPONSE_CELLS, fine=1)
        return self.window.table()[column.cells_of(values)]


def feature_products(features: Counts) -> Counts:
    """``sum phi phi^T``, int64[size, size], in steps of ``FEATURE_STEP**2``."""
    values = features.astype(np.float64)  # products of 2^24 steps: sums of 2^29 records are exact
    return (values.T @ values).astype(np.int64)


def cross_products(features: Counts, responses: Counts) -> Counts:
    """``sum phi y``, int64[size], in steps of ``FEATURE_STEP**2``."""
    return (features.astype(np.float64).T @ responses.astype(np.float64)).astype(np.int64)


def modelled_products(features: Counts, *, total: float) -> Floats:
    """``sum phi phi^T`` of `total` records, as records drawn from the released model have it."""
    return np.asarray(feature_products(features) * (FEATURE_STEP**2 * total / len(features)), np.float64)


FLOOR = 0.5
"""Least penalty that is tried, in units of the norm of the noise of the cross products."""


def ridge_weights(products: Floats, cross: Floats, *, noise: float, product_noise: float, variance: float) -> Floats:
    """Weights of the features, float64[p], the penalty by Stein's estimate of the risk: post-processing.

    `products` has no negative eigenvalues. `noise` is the deviation of the noise of each cross product, `product_noise`
    that of the products, 0 where they are modelled; a penalty below its size is not tried. `variance` is that of the
    responses around the regression, at most.
    """
    values, vectors = np.linalg.eigh(products)
    values = np.maximum(values, 0.0)
    right = vectors.T @ cross
    spread = noise**2 + variance * values
    largest = round_up(max(float(values[-1]), 1e-9))
    least = max(FLOOR * max(noise, product_noise) * math.sqrt(len(cross)), 1e-6 * largest, 1e-9)
    best, chosen = math.inf, least
    for penalty in map(round_up, least * np.geomspace(1, max(largest / least, 1.0) * 10, 60)):
        weights = right / (values + penalty)
        risk = float(values @ weights**2 - 2 * right @ weights + 2 * np.sum(spread / (values + penalty)))
        if math.isinf(best) or risk < best - 1e-9 * abs(best):  # the last bits of the risks decide nothing
            best, chosen = risk, penalty
    return solve(products + chosen * np.eye(len(cross)), cross)


def _add(a: list[Counts], b: list[Counts]) -> list[Counts]:
    return [x + y for x, y in zip(a, b, strict=True)]


class NoisySums(Stored):
    """Sums over records with noise: those of parties with disjoint records are added cell by cell."""

    @classmethod
    def of(cls, sums: Any) -> Self:
        """What an operator summed, as it is."""
        return cls(sums)  # type: ignore[call-arg]

    @classmethod
    def draw(cls, sums: Any, *, charge: Deviations, noise: Noise) -> Self:
        """Add the noise to what an operator summed."""
        raise NotImplementedError

    @property
    def _fields(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]

    @property
    def flat(self) -> Counts:
        """All cells, int64[cells]."""
        parts = [a for value in self._fields for a in (value if isinstance(value, list) else [value])]
        return np.concatenate([part.ravel() for part in parts])

    def filled(self, cells: Counts) -> Self:
        """A statistic of the same shape with these cells, as `flat` has them. Raises ValueError: they do not fit."""
        if cells.shape != self.flat.shape:
            raise ValueError("a statistic of another shape")
        values, start = list[Any](), 0
        for value in self._fields:
            filled = []
            for part in value if isinstance(value, list) else [value]:
                filled.append(cells[start : start + part.size].reshape(part.shape))
                start += part.size
            values.append(filled if isinstance(value, list) else filled[0])
        return type(self)(*values)


def marginal_operator(columns: Columns, private: Sequence[PrivateColumn]) -> Operator:
    """Histograms of all columns: a list of int64[cells], the response last."""
    return Operator(name="marginals", chunk=partial(_histograms, columns, tuple(private)), combine=_add)


def _histograms(columns: Columns, private: tuple[PrivateColumn, ...], codes: Codes) -> list[Counts]:
    pairs = zip(private, columns.values(codes), strict=True)
    return [histogram(column, column.cells_of(values)) for column, values in pairs]


@dataclass(frozen=True, eq=False)
class NoisyMarginals(NoisySums):
    """Histograms with noise in every cell."""

    FILE: ClassVar[str] = "marginals.npz"

    counts: list[Counts]  # list of int64[cells]: of the inputs, then of the response

    @classmethod
    def draw(cls, sums: Sequence[Counts], *, charge: Deviations, noise: Noise) -> NoisyMarginals:
        """Add the noise to exact histograms."""
        return cls(
            [
                column + noise.gaussian_integers(f"prediction/marginal/{i}", len(column), sigma=charge.marginal)
                for i, column in enumerate(sums)
            ]
        )


def rank_operator(columns: Columns, private: Sequence[PrivateColumn], tables: Sequence[Counts]) -> Operator:
    """Sums of the products of ranks of each pair of inputs: int64[pairs]."""
    return Operator(name="ranks", chunk=partial(_ranks, columns, tuple(private), tuple(tables)), combine=operator.add)


def _ranks(columns: Columns, private: tuple[PrivateColumn, ...], tables: tuple[Counts, ...], codes: Codes) -> Counts:
    inputs = zip(private[:-1], tables, columns.values(codes), strict=False)
    return rank_products(np.stack([table[column.cells_of(values)] for column, table, values in inputs], axis=1))


@dataclass(frozen=True, eq=False)
class NoisyCorrelations(NoisySums):
    """Products of ranks with noise."""

    FILE: ClassVar[str] = "correlations.npz"

    products: Counts  # int64[pairs of inputs]: in steps of ``RANK_STEP**2``

    @classmethod
    def draw(cls, sums: Counts, *, charge: Deviations, noise: Noise) -> NoisyCorrelations:
        """Add the noise to exact products."""
        sigma = charge.correlation / RANK_STEP**2
        return cls(sums + noise.gaussian_integers("prediction/correlation", len(sums), sigma=sigma))


def ridge_operator(columns: Columns, private: Sequence[PrivateColumn], design: Design, *, products: bool) -> Operator:
    """Sums of the products of the features (none where they are not measured) and of features and response."""
    return Operator(name="ridge", chunk=partial(_ridge, columns, tuple(private), design, products), combine=_add)


def _ridge(
    columns: Columns, private: tuple[PrivateColumn, ...], design: Design, products: bool, codes: Codes
) -> list[Counts]:
    *inputs, response = columns.values(codes)
    cells = [column.cells_of(values) for column, values in zip(private[:-1], inputs, strict=True)]
    responses = design.responses(response)
    size = design.features.size
    total = [np.zeros((size, size) if products else (0, 0), np.int64), np.zeros(size, np.int64)]
    for start in range(0, len(responses), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        seen = design.features([column[rows] for column in cells])
        if products:
            total[0] += feature_products(seen)
        total[1] += cross_products(seen, responses[rows])
    return total


@dataclass(frozen=True, eq=False)
class NoisyRegression(NoisySums):
    """Statistics of the ridge regression with noise, in steps of ``FEATURE_STEP**2``."""

    FILE: ClassVar[str] = "regression.npz"

    products: Counts  # int64[features, features]: symmetric; int64[0, 0] where they are not measured
    cross: Counts  # int64[features]

    @classmethod
    def of(cls, sums: list[Counts]) -> NoisyRegression:
        """See `NoisySums.of`."""
        return cls(*sums)

    @classmethod
    def draw(cls, sums: Sequence[Counts], *, charge: Deviations, noise: Noise) -> NoisyRegression:
        """Add the noise to exact products and cross products; off the diagonal it is divided by ``sqrt(2)``."""
        products, cross = sums
        size, sigma = len(products), charge.product / FEATURE_STEP**2
        drawn = np.zeros((size, size), np.int64)
        if size:
            upper = np.triu_indices(size, 1)
            drawn[upper] = noise.gaussian_integers(
                "prediction/products/upper", len(upper[0]), sigma=sigma / math.sqrt(2)
            )
            drawn += drawn.T
            drawn[np.diag_indices(size)] = noise.gaussian_integers("prediction/products/diagonal", size, sigma=sigma)
        across = noise.gaussian_integers("prediction/cross", len(cross), sigma=charge.cross / FEATURE_STEP**2)
        return cls(products + drawn, cross + across)
