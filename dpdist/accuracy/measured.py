"""The accuracy of released records, measured at a small charge: how far their cells are from those of the table.

The records are public when this is measured. Their cells fall into classes by their share of the records. For one,
two and three attributes at a time, the sum of ``|count - released count|`` over the cells of each class is measured,
and the L1 distance of each pair's table.

One record moves one cell of each table by 1, and so each table's contribution to one class by at most 1: the sums of
an order have sensitivity (number of tables) in L1, hence in L2; the distances of P pairs have sqrt(P) in L2. Everything
is an integer and gets rounded Gaussian noise, so that all of it together is one Gaussian mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import comb
from typing import Any

import numpy as np

from dpdist.accuracy.tables import Tables, halves_of
from dpdist.errors import SpecError
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.calibrate import ABOVE
from dpdist.privacy.noise import Noise
from dpdist.storage.stored import tree_of, value_of

DEPENDENT = "the terms are not linearly independent in the records: leave one out"
_NEARLY_DEPENDENT = 1e10  # condition number of the normal matrix with a diagonal of ones


def linear(rows: Floats, outcome: Floats, weights: Floats) -> Floats:
    """Coefficients of weighted least squares, for each column of weights: coefficients x columns.
    Raises SpecError: the terms are not linearly independent.
    """
    products = rows[:, :, None] * rows[:, None, :]
    left = np.einsum("kij,kr->rij", products, weights, optimize=True)
    right = np.einsum("ki,kr->ri", rows * outcome[:, None], weights, optimize=True)
    check_rank(left[0])
    return np.asarray(np.linalg.solve(left, right[:, :, None])[:, :, 0].T)


def logistic(rows: Floats, outcome: Floats, weights: Floats) -> Floats:
    """Coefficients of weighted logistic regression, as `linear`.
    Raises SpecError: the terms are not linearly independent, or the coefficients are infinite.
    """
    scale = np.abs(rows).max(0)
    if not scale.all():
        raise SpecError(DEPENDENT)
    rows, found = rows / scale, np.zeros((rows.shape[1], weights.shape[1]))
    first = newton(rows, outcome, weights[:, 0], found[:, 0])
    for r in range(weights.shape[1]):
        found[:, r] = first if not r else newton(rows, outcome, weights[:, r], first)
    return np.asarray(found / scale[:, None])


def newton(rows: Floats, outcome: Floats, weights: Floats, start: Floats) -> Floats:
    """Coefficients of a weighted logistic regression, from a start. Raises SpecError: as `logistic`."""
    found = start.copy()
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(rows @ found, -50, 50)))
        left = (rows * (weights * p * (1 - p))[:, None]).T @ rows
        check_rank(left)
        step = np.linalg.solve(left, rows.T @ (weights * (outcome - p)))
        found += step
        if np.abs(step).max() < 1e-10:
            return np.asarray(found)
        if np.abs(found).max() > 1e4:
            break
    raise SpecError("the logistic regression has no finite coefficients: leave out a term that separates the outcome")


def check_rank(normal: Floats) -> None:
    """Refuse a normal matrix of terms that depend on each other. Raises SpecError: they do."""
    diagonal = np.sqrt(np.maximum(np.diag(normal), 1e-300))
    if not np.isfinite(normal).all() or np.linalg.cond(normal / np.outer(diagonal, diagonal)) > _NEARLY_DEPENDENT:
        raise SpecError(DEPENDENT)


EDGES = (1, 3, 10, 30, 100, 300, 1000, 3000)  # lower ends of the classes of cells by their share, in units of 1e-4
MOST_PAIRS = 1000  # more pairs have no distance each: the noise of a distance grows with their root
_WEIGHTS = {1: 1.0, 2: 1.5, 3: 1.5}  # shares of the orders' sums, and of the pairs' distances, before they sum to 1
_PAIRS_WEIGHT = 2.0


@dataclass(frozen=True)
class Order:
    """What was measured of the tables of this many attributes."""

    attributes: int  # 1, 2 or 3
    tables: int
    sums: tuple[int, ...]  # for each class the noisy sum of ``|count - released count|`` over its cells in all tables
    deviation: float | tuple[float, ...]  # of each sum; one where all have the same
    # cells, mass: for each class the number of its cells, and of the released records in them
    cells: tuple[int, ...]
    mass: tuple[int, ...]


@dataclass(frozen=True)
class Accuracy:
    """The measured accuracy of released records. Public."""

    records: int  # noisy number of records of the table; released counts are compared at this scale
    released: int  # number of released records
    orders: tuple[Order, ...]
    pairs: tuple[int, ...] = ()  # noisy L1 distance of each pair's table, in order; empty where not measured
    pairs_deviation: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**tree_of(self), "edges": [e / 10_000 for e in EDGES]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Accuracy:
        """What `to_json` wrote; KeyError, TypeError or ValueError for anything else."""
        if [round(edge * 10_000) for edge in data["edges"]] != list(EDGES):
            raise ValueError("edges: other classes than this version's")
        made: Accuracy = value_of(cls, {field.name: data[field.name] for field in fields(cls)})
        least = 1e-9 if made.pairs else 0
        if not (_are((made.records, *made.pairs), int) and _are((made.pairs_deviation,), float, least=least)):
            raise ValueError("records, pairs: expected numbers")
        if not (_are((made.released,), int, least=1) and all(map(_is_order, made.orders))):
            raise ValueError("released, orders: expected numbers of each class")
        return made


def _is_order(order: Order) -> bool:
    """Whether the numbers of an order are some that can have been measured."""
    classes = (order.sums, order.cells, order.mass)
    sizes = all(isinstance(numbers, tuple) and len(numbers) == len(EDGES) + 1 for numbers in classes)
    deviations = np.ravel(np.array(order.deviation)).tolist()
    sizes = sizes and len(deviations) in (1, len(EDGES) + 1)
    whole = sizes and _are(order.sums, int) and _are((*order.cells, *order.mass), int, least=0)
    counted = order.attributes in (1, 2, 3) and _are((order.tables,), int, least=1)
    return whole and any(order.cells) and counted and _are(deviations, float, least=1e-9)


def _are(values: Sequence[Any], kind: type, *, least: float = -(2**62)) -> bool:
    """Whether all values are numbers of a kind, integers among the others, from `least` to 2**62."""
    kinds = int if kind is int else (int, float)
    return all(isinstance(v, kinds) and not isinstance(v, bool) and least <= v <= 2**62 for v in values)


def classes_of(counts: Counts, released: int) -> Counts:
    """The class of each released cell."""
    least = [-(-edge * released // 10_000) for edge in EDGES]
    return np.searchsorted(np.array(least), counts, side="right").astype(np.int64)


def at_scale(counts: Counts, *, records: int, released: int) -> Counts:
    """Released counts at the scale of the table: multiplied by records / released and rounded, halves upwards."""
    return (2 * records * counts + released) // (2 * released)


def deviations(cardinalities: Sequence[int], *, mu: float) -> dict[str, float]:
    """Deviation of each measured statistic, by the name of its noise; all together are mu-GDP."""
    m = len(cardinalities)
    numbers = (m, comb(m, 2), len(halves_of(cardinalities)[1]))
    tables = {order: number for order, number in enumerate(numbers, 1) if number}
    sensitivity = {f"accuracy/{order}": float(number) for order, number in tables.items()}
    weight = {f"accuracy/{order}": _WEIGHTS[order] for order in tables}
    if 1 < tables.get(2, 0) <= MOST_PAIRS:
        sensitivity["accuracy/pairs"], weight["accuracy/pairs"] = math.sqrt(tables[2]), _PAIRS_WEIGHT
    total = math.fsum(weight.values())
    return {name: s / (mu * math.sqrt(weight[name] / total)) * ABOVE for name, s in sensitivity.items()}


def draws(cardinalities: Sequence[int]) -> int:
    """Number of keyed draws of the measurement, at most."""
    return 3 * (len(EDGES) + 1) + min(comb(len(cardinalities), 2), MOST_PAIRS)


def measure_accuracy(exact: Tables, released: Tables, *, records: int, mu: float, noise: Noise) -> Accuracy:
    """Measure how far the tables of released records are from those of the private table.

    Parameters
    ----------
    exact : Tables
        Of the private table.
    released : Tables
        Of the released records: public, and at least one record.
    records : int
        The scale of the comparison: a public number, or one that was released before.
    mu : float
        The measurement is mu-GDP.
    """
    cards, number = released.pairs.cardinalities, released.pairs.total
    sigmas = deviations(cards, mu=mu)
    orders, distances = [], np.zeros(0, np.int64)
    for order in (1, 2, 3):
        name = f"accuracy/{order}"
        if name not in sigmas:
            continue
        sums, cells, mass = (np.zeros(len(EDGES) + 1, np.int64) for _ in range(3))
        of_table = []
        for counts, published in zip(exact.compared(order), released.compared(order), strict=True):
            away = np.abs(counts - at_scale(published, records=records, released=number))
            classes = classes_of(published, number)
            for total, added in ((sums, away), (cells, np.ones_like(away)), (mass, published)):
                np.add.at(total, classes, added)
            of_table.append(int(away.sum()))
        noisy = sums + noise.gaussian_integers(name, len(sums), sigma=sigmas[name])
        orders.append(
            Order(
                order,
                len(of_table),
                *(tuple(noisy.tolist()), sigmas[name], tuple(cells.tolist()), tuple(mass.tolist())),
            )
        )
        if order == 2 and "accuracy/pairs" in sigmas:
            sigma = sigmas["accuracy/pairs"]
            distances = np.array(of_table, np.int64) + noise.gaussian_integers(
                "accuracy/pairs", len(of_table), sigma=sigma
            )
    return Accuracy(records, number, tuple(orders), tuple(distances.tolist()), sigmas.get("accuracy/pairs", 0.0))
