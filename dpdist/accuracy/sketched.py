"""The accuracy of released records where no one sees exact tables: from noisy sums of signed differences.

Absolute differences are no sums over tables of disjoint records; sums of signed differences are. In some tables of each
order the cells of a class (`dpdist.accuracy.measured`) fall into a few groups, each with a public random sign. Of a
group with noise of deviation sigma, ``d^2 - sigma^2`` is an unbiased estimate of the sum of its cells' squared
differences, with d the noisy signed sum less that of the released counts (Alon, Matias, Szegedy 1999). One record moves
one group of a table by 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpdist.accuracy.measured import EDGES, Accuracy, Order, at_scale, classes_of
from dpdist.accuracy.tables import Attributes, Tables, halves_of
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise

WEIGHTS = {1: 1.0, 2: 2.0, 3: 2.0}  # of the orders, in the share of mu^2
_GROUPS = {1: 4, 2: 2, 3: 2}  # of a class in a table
_MOST_TABLES = 60  # of an order: the noise of each grows with their root
_MOST_CELLS = 1 << 16  # of a table: the groups of its cells are sent
_CLASSES = len(EDGES) + 1
_OF_ROOT = 0.75  # mean difference of the cells of a class over the root of their mean square, about


@dataclass(frozen=True, eq=False)
class Sketch:
    """What is asked for of a table."""

    attributes: Attributes
    place: int  # of the table among the compared ones of its order
    groups: Counts  # of each cell, from 1; negative where it is subtracted


def tables_of(cardinalities: Sequence[int]) -> dict[int, list[tuple[int, Attributes]]]:
    """The tables that are looked at, by order: with their places among all."""
    m, found = len(cardinalities), dict[int, list[tuple[int, Attributes]]]()
    singles: list[Attributes] = [(i,) for i in range(m)]
    for order, sets in enumerate((singles, combinations(range(m), 2), halves_of(cardinalities)[1]), 1):
        small = [(k, s) for k, s in enumerate(sets) if math.prod(cardinalities[i] for i in s) <= _MOST_CELLS]
        if small:
            found[order] = small[:: -(-len(small) // _MOST_TABLES)]
    return found


def sketches(released: Tables, drawing: Noise) -> dict[int, list[Sketch]]:
    """The groups and signs of the cells, by the classes that the released counts give and a public key."""
    number, found = released.pairs.total, dict[int, list[Sketch]]()
    for order, sets in tables_of(released.pairs.cardinalities).items():
        tables = released.compared(order)
        for place, attributes in sets:
            words = drawing.words(f"accuracy/{order}/{place}", tables[place].size)
            within = ((words >> np.uint64(1)) % np.uint64(_GROUPS[order])).astype(np.int64)
            groups = 1 + classes_of(tables[place], number) * _GROUPS[order] + within
            signed = np.where(words & np.uint64(1), groups, -groups)
            found.setdefault(order, []).append(Sketch(attributes, place, signed))
    return found


def signed_sums(cells: Counts, groups: Counts, size: int) -> Counts:
    """The sum of the cells of each group, with their signs."""
    return np.rint(np.bincount(np.abs(groups) - 1, weights=np.sign(groups) * cells, minlength=size)).astype(np.int64)


def group_number(order: int) -> int:
    """The number of groups of a table."""
    return _CLASSES * _GROUPS[order]


def draws(cardinalities: Sequence[int]) -> int:
    """Number of keyed draws of the measurement."""
    return sum(len(sets) * group_number(order) for order, sets in tables_of(cardinalities).items())


def measure(
    released: Tables,
    drawing: Noise,
    *,
    records: int,
    ask: Callable[[Sequence[Sketch], Sequence[float]], tuple[Sequence[Counts], Floats]],
) -> Accuracy:
    """Estimate the accuracy; `ask` gives noisy signed sums of the private tables, by their weights in the share."""
    asked = sketches(released, drawing)
    each = [(order, sketch) for order, found in asked.items() for sketch in found]
    noisy, sigmas = ask([s for _, s in each], [WEIGHTS[order] / len(asked[order]) for order, _ in each])
    squares = {order: np.zeros((3, _CLASSES)) for order in asked}  # of differences, their variance; number of cells
    number = released.pairs.total
    for (order, sketch), found, sigma in zip(each, noisy, sigmas.tolist(), strict=True):
        found = np.pad(found, (0, group_number(order) - found.size))  # groups of classes that the table has not
        table = at_scale(released.compared(order)[sketch.place], records=records, released=number)
        away = (found - signed_sums(table, sketch.groups, found.size)).astype(np.float64)
        of_group = np.bincount(np.abs(sketch.groups) - 1, minlength=found.size)
        rows = (away**2 - sigma**2) * (of_group > 0), np.maximum(away**4 / 1.5, 2 * sigma**4) * (of_group > 0), of_group
        squares[order] += np.stack([row.reshape(_CLASSES, -1).sum(1) for row in rows])
    orders = tuple(_order(order, released.compared(order), number, found) for order, found in squares.items())
    return Accuracy(records, number, orders)


def _order(order: int, tables: Sequence[Counts], number: int, squares: Floats) -> Order:
    """The sums of absolute differences that the squares give for each class, and their deviations."""
    counts = np.concatenate([table.ravel() for table in tables])
    classes, (squared, variance, looked) = classes_of(counts, number), squares
    cells = np.bincount(classes, minlength=_CLASSES)
    mass = np.rint(np.bincount(classes, weights=counts, minlength=_CLASSES)).astype(np.int64)
    seen = np.maximum(looked, 1)
    mean, unsure = np.maximum(squared, 0) / seen, np.sqrt(np.maximum(variance, 1)) / seen
    unsure[looked == 0] = float(number) ** 2
    errors = _OF_ROOT * np.sqrt(mean)
    deviations = np.maximum(_OF_ROOT * np.sqrt(mean + unsure) - errors, 1e-6) * np.maximum(cells, 1)
    sums = np.rint(errors * cells).astype(np.int64)
    return Order(
        order,
        len(tables),
        *(tuple(sums.tolist()), tuple(deviations.tolist()), tuple(cells.tolist()), tuple(mass.tolist())),
    )
