"""Records as vectors and back: one table per attribute, from a code to its coordinates.

Unordered attributes become one coordinate per value (one-hot); ordered ones one coordinate, from -1 at the lower
bound of the declared domain to 1 at its upper bound (bins at their centre), and a second one that tells missing
values where these are a declared category. The table of a continuous number holds the coordinates of its two bounds;
what lies between is linear.

With *centred* scaling the tables are centred at a mean, and with *standardised* scaling ordered attributes are divided
by a deviation, too. The published method takes these from the data, which is not private; here they come from noisy
sums that are charged (`Moments`). A vector becomes a record by the nearest row of each table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dpdist.errors import SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.privacy.arrays import Codes, Floats, round_to_grid
from dpdist.privacy.events import Gaussian
from dpdist.privacy.noise import Noise
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema
from dpdist.spec.strict import OwnFields
from dpdist.storage.stored import Stored


@dataclass(frozen=True, eq=False)
class Encoding(OwnFields):
    """How records become vectors."""

    attributes: tuple[Attribute, ...]  # all but the class
    tables: tuple[Floats, ...]  # coordinates of each code of each attribute, or of the bounds of a continuous number

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
        """Vectors of n records, float32[n, d], from codes (or continuous numbers) of each attribute but the class."""
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
        """The records with the nearest vectors (float[n, d]), attribute by attribute; of several the first code."""
        codes: Codes = []
        at = 0
        for attribute, table in zip(self.attributes, self.tables, strict=True):
            piece = np.asarray(vectors[:, at : at + table.shape[1]], np.float64)
            at += table.shape[1]
            if attribute.is_continuous:
                codes.append(np.interp(piece[:, 0], table[:, 0], attribute.bounds or ()))
                continue
            if attribute.kind == "categorical":
                nearest = np.argmax(piece @ table.T - (table**2).sum(axis=1) / 2, axis=1)
            else:
                nearest = _nearest(piece, table)
            codes.append(nearest.astype(attribute.dtype))
        return codes


def declared_encoding(schema: Schema, *, class_attribute: str) -> Encoding:
    """The encoding by the declared domains; it reads no record."""
    attributes = tuple(a for a in schema.attributes if a.name != class_attribute)
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
    lows, highs = attribute.bin_ends()
    return np.asarray((lows.astype(np.float64) + highs) / 2)


def _texts(attribute: Attribute) -> list[str]:
    """Names of the one-hot coordinates: the values, or the missing category only where values are ordered."""
    texts = [] if attribute.kind != "categorical" else [str(value) for value in attribute.values or ()]
    if attribute.missing_code is not None:
        texts.append(attribute.missing.category)  # type: ignore[union-attr]
    return texts


def _nearest(vectors: Floats, table: Floats) -> NDArray[np.intp]:
    declared = len(table) - (table.shape[1] > 1)
    values = table[:declared, 0]
    nearest = np.searchsorted((values[1:] + values[:-1]) / 2, vectors[:, 0])
    if table.shape[1] > 1:
        missing = ((vectors - table[-1]) ** 2).sum(axis=1) < ((vectors - table[nearest]) ** 2).sum(axis=1)
        nearest = np.where(missing, declared, nearest)
    return nearest


MOMENT_GRID = 2.0**-17  # grid to which coordinates and squares are rounded before their sums are taken
LEAST_DEVIATION = 2.0**-6  # of an ordered attribute, whose values span [-1, 1]
_SUMMED = 1 << 20  # continuous numbers summed at a time


@dataclass(frozen=True, eq=False)
class Moments(Stored):
    """Noisy moments of the coordinates of a declared encoding: drawn once, stored, read back."""

    FILE: ClassVar[str] = "moments.npz"

    mean: Floats  # mean, variance: float64[d]
    variance: Floats
    deviation: Floats  # float64[d]: what standardised coordinates are divided by; 1 for unordered attributes

    def norm(self, *, divide: bool) -> float:
        """Root mean square norm of a scaled record, by these moments: a sensible clipping norm."""
        scaled = self.variance / self.deviation**2 if divide else self.variance
        return math.sqrt(max(float(scaled.sum()), LEAST_DEVIATION**2))

    def scaled(self, encoding: Encoding, *, divide: bool) -> Encoding:
        """A declared encoding centred at the means; with `divide`, by the deviations of ordered attributes, too."""
        tables, at = [], 0
        for table in encoding.tables:
            place = slice(at, at + table.shape[1])
            tables.append((table - self.mean[place]) / (self.deviation[place] if divide else 1.0))
            at = place.stop
        return replace(encoding, tables=tuple(tables))


@dataclass(frozen=True, kw_only=True)
class MomentPlan:
    """Noise on the number of records, the sums of all coordinates, and the sums of squares of ordered attributes.

    `sensitivity` is the largest norm of what a record, or a unit, adds to these sums.
    """

    sigma: float  # deviation of the noise on each sum, before rounding
    sensitivity: float

    @property
    def event(self) -> Gaussian:
        """The charge."""
        return Gaussian(noise_multiplier=self.sigma / self.sensitivity, label="means and deviations")


def moment_plan(encoding: Encoding, *, epsilon: float, delta: float, unit: int = 1) -> MomentPlan:
    """The noise of the moments within a budget, for a unit's records. Raises AccountingError: no valid budget."""
    pairs = zip(encoding.attributes, encoding.tables, strict=True)
    moments = (round_to_grid(_with_squares(attribute, table), grid=MOMENT_GRID) for attribute, table in pairs)
    largest = 1 + sum(float((table**2).sum(axis=1).max()) for table in moments)
    sensitivity = unit * math.sqrt(largest) * (1 + 2.0**-40)
    sigma = GaussianPlan.of(sensitivity=sensitivity, epsilon=epsilon, delta=delta).sigma
    return MomentPlan(sigma=sigma, sensitivity=sensitivity)


def moment_sums(encoding: Encoding, place: int, column: NDArray[Any]) -> NDArray[np.int64]:
    """Sums of the coordinates of the attribute at `place` and, if it is ordered, of the squares of its values.

    Returns int64[coordinates (+ 1)] in steps of `MOMENT_GRID`; exact.
    """
    attribute, table = encoding.attributes[place], encoding.tables[place]
    if attribute.is_continuous:
        total = np.zeros(2, np.int64)
        for start in range(0, len(column), _SUMMED):
            values = np.interp(column[start : start + _SUMMED], attribute.bounds or (), table[:, 0])
            total += [int(np.rint(power / MOMENT_GRID).sum()) for power in (values, values**2)]
        return total
    steps = np.rint(_with_squares(attribute, table) / MOMENT_GRID).astype(np.int64)
    return np.asarray(np.bincount(column, minlength=attribute.cardinality).astype(np.int64) @ steps)


def noisy_moments(
    noise: Noise,
    encoding: Encoding,
    records: int,
    sums: Sequence[NDArray[np.int64]],
    plan: MomentPlan,
    *,
    minimum: int,
    name: str = "mixing/moments",
) -> Moments:
    """Means and deviations of the table, with noise at the address `name`.

    `records` and `sums` are confidential; the noisy number is raised to the public bound `minimum`.
    """
    exact = np.append(float(records), np.concatenate(sums) * MOMENT_GRID)
    noisy = exact + noise.grid_gaussian(name, len(exact), sigma=plan.sigma, grid=MOMENT_GRID)
    averages = np.clip(noisy[1:] / max(noisy[0], minimum), -1.0, 1.0)
    means, deviations, variances = [], [], []
    at = 0
    for attribute, table in zip(encoding.attributes, encoding.tables, strict=True):
        mean = averages[at : at + table.shape[1]]
        deviation, variance = np.ones(len(mean)), np.maximum(mean * (1 - mean), 0.0)
        at += len(mean)
        if attribute.kind != "categorical":
            variance[0] = max(averages[at] - mean[0] ** 2, 0.0)
            deviation[0] = math.sqrt(max(variance[0], LEAST_DEVIATION**2))
            at += 1
        means.append(mean)
        deviations.append(deviation)
        variances.append(variance)
    return Moments(np.concatenate(means), np.concatenate(variances), np.concatenate(deviations))


def _with_squares(attribute: Attribute, table: Floats) -> Floats:
    return table if attribute.kind == "categorical" else np.column_stack([table, table[:, 0] ** 2])


def vector_schema(encoding: Encoding, label: Attribute, *, reach: float) -> Schema:
    """A number for each coordinate, and the class. Raises SpecError: two coordinates have the same name."""
    numbers = [{"name": name, "kind": "number", "bounds": (-reach, reach)} for name in encoding.names]
    plain = label.model_dump(exclude={"buckets"}, exclude_defaults=True)
    try:
        return Schema.model_validate({"attributes": [*numbers, plain]})
    except ValidationError:
        raise SpecError(
            "mixing.release: two columns of the vectors would have the same name, such as those of an attribute 'a=b' "
            "and of the value 'b' of an attribute 'a'; rename one in the schema"
        ) from None
