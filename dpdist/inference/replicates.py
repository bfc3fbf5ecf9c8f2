"""Replicate weights: the released records with weights whose spread is that of the records' errors.

An estimate is computed with the weights of all records, and again with each replicate's weights; the mean of the
squared differences, divided by the square of `Replicates.step`, is its variance. This is Fay's method of balanced
repeated replication (Judkins 1990, *Fay's method for variance estimation*, Journal of Official Statistics 6, 223-239)
with the coefficient 1 - step; `dpdist.inference.perturbation` makes the perturbations. The estimates are for the
private table. Where the table is a sample of a population, add the sampling variance.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import stdtrit

from dpdist.errors import SpecError
from dpdist.inference.perturbation import MOST_ATTRIBUTES, ErrorField
from dpdist.inference.published import NO_ACCURACY, Published
from dpdist.limits import REPLICATE_VALUES
from dpdist.privacy.arrays import AnyFloats, Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.publish.parts import decode, write_csv
from dpdist.spec.attribute import Attribute
from dpdist.spec.conditions import ends_of

NUMBER = 80  # replicates, unless another number is asked for
_LARGEST = 0.9  # no weight moves by more than this share of itself
_AT_ONCE = 8  # replicates that are summed at a time


@dataclass(frozen=True, eq=False, repr=False)
class Replicates:
    """Released records with replicate weights."""

    release: Published
    codes: Codes  # the released records
    weight: float  # of each record: all together are the noisy number of records of the table
    ratios: AnyFloats  # float32: records x replicates: a replicate's weight over `weight`
    step: float  # variances are divided by its square: 1 minus Fay's coefficient

    def __repr__(self) -> str:
        return f"Replicates({len(self.ratios):,} records, {self.number} replicates, fay={self.fay:g})"

    @property
    def number(self) -> int:
        """How many replicates there are."""
        return int(self.ratios.shape[1])

    @property
    def fay(self) -> float:
        """Fay's coefficient, as R's survey package (rho), Stata (fay) and samplics (fay_coef) take it."""
        return 1 - self.step

    @property
    def prefix(self) -> str:
        """What the names of the columns of weights begin with, so that no attribute has one of them."""
        prefix, added = "", ["weight", *(f"replicate_{k + 1}" for k in range(self.number))]
        while {prefix + name for name in added} & set(self.release.schema.names):
            prefix += "survey_"
        return prefix

    def to_arrow(self) -> pa.Table:
        """The records with columns ``weight``, ``replicate_1`` and so on, after `prefix`."""
        manifest = self.release.manifest
        noise = Noise(hashlib.sha256(b"dpdist replicates values\0" + manifest.attempt.encode()).digest())
        table = decode(self.release.schema, self.codes, form=manifest.format, noise=noise)
        prefix = self.prefix
        table = table.append_column(f"{prefix}weight", pa.array(np.full(len(self.ratios), self.weight)))
        for k in range(self.number):
            column = self.weight * self.ratios[:, k].astype(np.float64)
            table = table.append_column(f"{prefix}replicate_{k + 1}", pa.array(column))
        return table

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """What `to_arrow` gives, as one CSV file."""
        write_csv(self.to_arrow(), path)

    def variances(self, estimate: Floats, replicates: Floats) -> Floats:
        """Of estimates: from those of the replicates, estimates x replicates."""
        return np.asarray(((replicates - estimate[:, None]) ** 2).mean(1) / self.step**2)

    def multiple(self, confidence: float = 0.95) -> float:
        """Standard errors to each side of an interval: Student's, as the variance is from this many replicates."""
        return float(stdtrit(self.number, 0.5 + confidence / 2))

    def totals(self, rows: Counts, values: Floats) -> Floats:
        """Sums of values (values x rows) of some records: with the weights of all records, and of each replicate."""
        sums = np.empty((len(values), 1 + self.number))
        sums[:, 0] = values.sum(1)
        for k in range(0, self.number, _AT_ONCE):
            sums[:, 1 + k : 1 + k + _AT_ONCE] = values @ self.ratios[rows, k : k + _AT_ONCE]
        return sums * self.weight

    def grouped(self, rows: Counts, columns: Sequence[NDArray[Any]]) -> tuple[Floats, Floats]:
        """The different rows of columns of some records, and their weights: of all records, and of each replicate."""
        index = np.zeros(len(columns[0]), np.int64)
        for column in columns:  # in the order of the rows; the numbers stay below that of the records
            values, codes = np.unique(column, return_inverse=True)
            _, first, index = np.unique(index * len(values) + codes, return_index=True, return_inverse=True)
        of_row = sparse.csr_array((np.ones(len(index)), (index, np.arange(len(index)))))
        sums = np.empty((len(first), 1 + self.number))
        sums[:, 0] = np.bincount(index)
        for k in range(0, self.number, _AT_ONCE):
            sums[:, 1 + k : 1 + k + _AT_ONCE] = of_row @ self.ratios[rows, k : k + _AT_ONCE]
        return np.stack([column[first].astype(np.float64) for column in columns], axis=1), sums * self.weight


def make_replicates(release: Published, number: int = NUMBER, *, seed: int = 0) -> Replicates:
    """Replicate weights for the records of a release; the same number and seed give the same.

    Raises
    ------
    SpecError
        The accuracy of the release was not measured, it has too many attributes, or the number is not between 20
        and 1,000.
    """
    if not 20 <= number <= 1_000:
        raise SpecError(f"{number} replicates: ask for 40 to 100 (20 to 1,000 are admitted)")
    if not release.manifest.records * number <= REPLICATE_VALUES:
        raise SpecError(
            f"{number} replicates of {release.manifest.records:,} records are more than the {REPLICATE_VALUES:,} "
            "weights that are made: ask for fewer; counts, shares and quantiles have intervals without them"
        )
    if release.errors is None:
        raise SpecError(f"{NO_ACCURACY}: nothing says how far its records are from the table")
    if len(release.schema.attributes) > MOST_ATTRIBUTES:
        raise SpecError(
            f"replicate weights are made for at most {MOST_ATTRIBUTES} attributes, and the release has "
            f"{len(release.schema.attributes)}: counts, shares and quantiles have intervals without them; for means, "
            "differences, ratios and regressions release fewer attributes"
        )
    schema, codes = release.schema, release.codes
    numbers = [_numbers(attribute) for attribute in schema.attributes]
    field = ErrorField(codes, schema.cardinalities, release.errors, numbers, release.measurements)
    source = f"dpdist replicates\0{release.manifest.attempt}\0{number}\0{seed}".encode()
    perturbed, start = np.empty((len(codes[0]), number), np.float32), 0
    for part in field.draw(number, Noise(hashlib.sha256(source).digest())):
        perturbed[:, start : start + part.shape[1]] = part
        start += part.shape[1]
    return Replicates(release, codes, release.records / len(codes[0]), *ratios_of(perturbed))


def without_replicates(release: Published) -> Replicates:
    """The records with their weight alone: estimates follow, and no interval."""
    codes = release.codes
    rows = len(codes[0])
    return Replicates(release, codes, release.records / rows, np.empty((rows, 0), np.float32), 1.0)


def ratios_of(perturbed: AnyFloats) -> tuple[AnyFloats, float]:
    """Perturbations as ratios of weights, in place, and the step that keeps them above ``1 - _LARGEST``."""
    largest = max(float(perturbed.max()), -float(perturbed.min()))
    step = min(1.0, _LARGEST / largest)
    digits = 2 - math.floor(math.log10(step)) - 1
    step = math.floor(step * 10**digits) / 10**digits
    perturbed *= perturbed.dtype.type(step)
    perturbed += 1
    return perturbed, step


def _numbers(attribute: Attribute) -> Floats | None:
    """The number of each code of an attribute whose values are ordered; NaN of a missing value."""
    ends = ends_of(attribute)
    if ends is not None:
        found = (ends[0].astype(np.float64) + ends[1]) / 2
    elif attribute.kind == "ordinal":
        found = np.arange(len(attribute.values or ()), dtype=np.float64)
    else:
        return None
    return np.append(found, np.full(attribute.cardinality - len(found), np.nan))
