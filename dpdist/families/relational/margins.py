"""The margins of both tables, measured on their own: what the released parents and members are exchanged towards.

The tables of the parents' attributes, and of the members', of one and two attributes, are measured besides those that
the models are fitted to: a model spends most of its budget on how members depend on their parent.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np

from dpdist.data.count import PairCounts
from dpdist.families.relational.layout import Layout
from dpdist.families.synthesis.account import GaussianAccount
from dpdist.families.synthesis.fitted import UNIT, Fitted
from dpdist.families.synthesis.rake import shrink
from dpdist.families.synthesis.tables import Pair
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.conditions import Mask
from dpdist.storage.stored import Stored

ONE_WAY = 0.2
"""Share of the tables of one attribute."""

SWEEPS = 5
"""Of bringing a table to both of its margins."""


@dataclass(frozen=True, eq=False)
class Margins:
    """Noisy tables of one attribute and of two, for some attributes of one table.

    Attributes
    ----------
    singles, pairs : tuple of ndarray of int64
    deviations : ndarray of float64
        Of the cells of each table.
    """

    singles: tuple[Counts, ...]
    pairs: tuple[Counts, ...]
    deviations: Floats

    @property
    def of_pairs(self) -> list[float]:
        """Deviations of the tables of two."""
        found: list[float] = self.deviations[len(self.singles) :].tolist()
        return found


@dataclass(frozen=True, eq=False)
class MeasuredMargins(Stored):
    """The margins of the parents and of the members after the first; drawn once, stored, read back. Public."""

    FILE: ClassVar[str] = "margins.npz"

    tables: tuple[Margins, Margins]


def own_attributes(layout: Layout) -> tuple[range, range]:
    """The parents' attributes in the first table, the members' in the second."""
    given = len(layout.given)
    return range(len(layout.parent)), range(given, given + len(layout.members))


def measure_margins(counts: PairCounts, own: range, *, mu: float, noise: Noise, name: str) -> Margins:
    """Measure the tables of one and two of some attributes.

    Parameters
    ----------
    counts : PairCounts
        Confidential.
    own : range
    mu : float
        For one row of the table.
    """
    account, pairs = GaussianAccount(mu, noise, f"margins/{name}/"), list(combinations(own, 2))
    share = ONE_WAY if pairs else 1 - 2.0**-30
    singles, sigmas = account.measure("one-way", [counts.single(i) for i in own], share=share)
    if not pairs:
        return Margins(tuple(singles), (), sigmas)
    tables, more = account.measure("pairs", [counts.pair(*p) for p in pairs], share=1 - ONE_WAY - 2.0**-30)
    return Margins(tuple(singles), tuple(tables), np.concatenate([sigmas, more]))


def expected_tables(
    model: Fitted, own: range, margins: Margins, records: float, kinds: tuple[int, Mask, Floats] | None = None
) -> dict[Pair, Floats]:
    """Shares of the cells of all pairs: the model's, and where margins were measured, those shrunk towards it.

    Parameters
    ----------
    model : Fitted
        With the expected shares of all pairs.
    records : float
        Noisy number of rows.
    kinds : (int, ndarray of bool, ndarray of float64), optional
        An attribute, which of its values are of each kind, and the shares of the kinds, where they are known better.
    """
    tables, start, cards = {}, 0, model.domain
    for i, j in combinations(range(len(cards)), 2):
        cells = model.expected[start : start + cards[i] * cards[j]].reshape(cards[i], cards[j]) / UNIT
        tables[i, j], start = cells / max(float(cells.sum()), 2.0**-40), start + cells.size
    singles = one_way_of(tables, len(cards))
    for i, noisy, sigma in zip(own, margins.singles, margins.deviations.tolist(), strict=False):
        singles[i] = _estimate(noisy, singles[i], sigma, records)
    if kinds is not None:
        at, masks, shares = kinds
        singles[at] = singles[at] * (_ratio(shares, (masks * singles[at]).sum(1))[:, None] * masks).sum(0)
    for pair, noisy, sigma in zip(combinations(own, 2), margins.pairs, margins.of_pairs, strict=True):
        tables[pair] = _estimate(noisy, tables[pair], sigma, records)
    return {pair: _brought(table, singles[pair[0]], singles[pair[1]]) for pair, table in tables.items()}


def _estimate(noisy: Counts, share: Floats, sigma: float, records: float) -> Floats:
    found = shrink(noisy.ravel().astype(np.float64), share.ravel() * records, sigma)
    total = float(found.sum())
    return (found / total).reshape(share.shape) if total > 0 else share


def one_way_of(tables: dict[Pair, Floats], number: int) -> list[Floats]:
    """The tables of one attribute that those of two have; of an attribute with the next one, and of the last."""
    return [np.asarray(tables[i, i + 1].sum(1) if i + 1 < number else tables[i - 1, i].sum(0)) for i in range(number)]


def _brought(table: Floats, rows: Floats, columns: Floats) -> Floats:
    """A table with these sums of its rows and columns, about."""
    found = table
    for _ in range(SWEEPS):
        found = found * _ratio(rows, found.sum(1))[:, None]
        found = found * _ratio(columns, found.sum(0))
    return found


def _ratio(wanted: Floats, found: Floats) -> Floats:
    return np.divide(wanted, found, out=np.ones_like(found), where=found > 0)
