"""Records as vectors and back: one table per attribute, from a code to its coordinates.

Unordered attributes become one coordinate per value (one-hot); ordered ones one coordinate, from -1 at the lower
bound of the declared domain to 1 at its upper bound (bins at their centre), and a second one that tells missing
values where these are a declared category. The table of a continuous number holds the coordinates of its two bounds;
what lies between is linear. Everything comes from the schema, so nothing is spent. An image is a row of integer
attributes.

With *centred* scaling the tables are centred at a mean, and with *standardised* scaling ordered attributes are divided
by a deviation, too. The published method takes these from the data, which is not private; here they come from noisy
sums that are charged.

A vector becomes a record by the nearest row of each table: the largest coordinate of a one-hot, the nearest value of an
ordered attribute; a continuous number is clipped to its bounds. So a decoded record is always in the domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError
from dpdist.privacy.arrays import Codes, Floats
from dpdist.spec.schema import Attribute, Schema
from dpdist.spec.strict import OwnFields


@dataclass(frozen=True, eq=False)
class Encoding(OwnFields):
    """How records become vectors."""

    attributes: tuple[Attribute, ...]  # all but the class
    # tuple of float64[cardinality, coordinates]: the coordinates of each code of each attribute, or of the two bounds
    # of a continuous number
    tables: tuple[Floats, ...]

    @property
    def width(self) -> int:
        """Number of coordinates, d."""
        return sum(table.shape[1] for table in self.tables)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A name for each coordinate: ``age``, ``sex=Female``, ``age=unknown``."""
        names: list[str] = []
        for attribute in self.attributes:
            texts = _texts(attribute)
            if attribute.kind == "categorical":
                names += [f"{attribute.name}={text}" for text in texts]
            else:
                names += [attribute.name, *(f"{attribute.name}={text}" for text in texts)]
        return tuple(names)

    @property
    def largest_norm(self) -> float:
        """L2 norm that no record's vector exceeds: the clipping norm that clips nothing."""
        return math.sqrt(sum(float((table**2).sum(axis=1).max()) for table in self.tables)) * (1 + 2.0**-20)

    def encode(self, codes: Codes) -> NDArray[np.float32]:
        """Vectors of n records, float32[n, d], from codes (or continuous numbers) of each attribute, the class left
        out.
        """
        rows = np.empty((len(codes[0]), self.width), np.float32)
        at = 0
        for attribute, table, column in zip(self.attributes, self.tables, codes, strict=True):
            if attribute.is_continuous:
                rows[:, at] = np.interp(column, attribute.bounds or (), table[:, 0])
            else:
                rows[:, at : at + table.shape[1]] = table.astype(np.float32).take(column, axis=0)
            at += table.shape[1]
        return rows

    def decode(self, vectors: NDArray[np.floating]) -> Codes:
        """The records whose vectors (float[n, d]) are nearest, attribute by attribute, the class left out; the first
        code where several are.
        """
        codes: Codes = []
        at = 0
        for attribute, table in zip(self.attributes, self.tables, strict=True):
            piece = np.asarray(vectors[:, at : at + table.shape[1]], np.float64)
            at += table.shape[1]
            if attribute.is_continuous:
                codes.append(np.interp(piece[:, 0], table[:, 0], attribute.bounds or ()))
                continue
            nearest = _nearest_category(piece, table) if attribute.kind == "categorical" else _nearest(piece, table)
            codes.append(nearest.astype(attribute.dtype))
        return codes


def declared_encoding(schema: Schema, *, class_attribute: str) -> Encoding:
    """The encoding by the declared domains; it reads no record. Raises SpecError: the class is not an attribute, or the
    only one.
    """
    if class_attribute not in schema.names:
        raise SpecError(f"mixing.class: {class_attribute!r} is not an attribute of the schema")
    attributes = tuple(a for a in schema.attributes if a.name != class_attribute)
    if not attributes:
        raise SpecError("mixing: the schema needs an attribute besides the class")
    return Encoding(attributes, tuple(_declared_table(a) for a in attributes))


def _declared_table(attribute: Attribute) -> Floats:
    if attribute.is_continuous:
        return np.array([[-1.0], [1.0]])
    if attribute.kind == "categorical":
        return np.eye(attribute.cardinality)
    values = _positions(attribute)
    missing = attribute.missing_code is not None
    table = np.zeros((attribute.cardinality, 1 + missing))
    span = (values[0], values[-1]) if attribute.bounds is None else attribute.bounds
    if span[1] > span[0]:
        table[: len(values), 0] = (2 * values - span[0] - span[1]) / (span[1] - span[0])
    if missing:
        table[-1, 1] = 1.0
    return table


def _positions(attribute: Attribute) -> Floats:
    """Where the codes of an ordered attribute lie: values, centres of bins, or places in the declared order."""
    if attribute.bounds is None:
        return np.arange(len(attribute.values or ()), dtype=np.float64)
    edges = attribute.bin_edges.astype(np.float64)
    if not attribute.is_binned:
        return edges
    step = 1 if attribute.kind == "integer" else 0  # a bin of integers ends before the next one begins
    return np.asarray((edges + np.append(edges[1:] - step, attribute.bounds[1])) / 2)


def _texts(attribute: Attribute) -> list[str]:
    """Names of the one-hot coordinates: the values, or the missing category only where values are ordered."""
    texts = [] if attribute.kind != "categorical" else [str(value) for value in attribute.values or ()]
    if attribute.missing_code is not None:
        texts.append(attribute.missing.category)  # type: ignore[union-attr]
    return texts


def _nearest_category(vectors: Floats, table: Floats) -> NDArray[np.intp]:
    return np.asarray(np.argmax(vectors @ table.T - (table**2).sum(axis=1) / 2, axis=1))


def _nearest(vectors: Floats, table: Floats) -> NDArray[np.intp]:
    declared = len(table) - (table.shape[1] > 1)
    values = table[:declared, 0]
    nearest = np.searchsorted((values[1:] + values[:-1]) / 2, vectors[:, 0])
    if table.shape[1] > 1:
        missing = ((vectors - table[-1]) ** 2).sum(axis=1) < ((vectors - table[nearest]) ** 2).sum(axis=1)
        nearest = np.where(missing, declared, nearest)
    return nearest
