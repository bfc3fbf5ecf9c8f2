"""A release as its readers use it: its law, its accuracy, its records."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdist.accuracy.intervals import CellErrors
from dpdist.accuracy.measured import Accuracy
from dpdist.data.count import pair_counts
from dpdist.data.released import ReleasedTable
from dpdist.errors import DataNotFound, SpecError, VerificationFailed, meant
from dpdist.inference.law import Law
from dpdist.model.account import Measurements
from dpdist.model.files import PublishedModel, read_model
from dpdist.privacy.arrays import Codes, Floats
from dpdist.publish.manifest import Manifest
from dpdist.publish.tilts import bin_means
from dpdist.publish.verify import open_release
from dpdist.spec.regression import Key, Means, parse_regression
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

NO_ACCURACY = "the release has no measured accuracy (privacy.accuracy_share was 0, or its tables are wide)"


@dataclass(frozen=True, eq=False)
class Declared:
    """A regression that the spec declared: what was measured of the private table."""

    question: str
    coefficients: Floats  # the constant first, then the terms in the question's order; empty where `reason` says why
    covariance: Floats
    reason: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Declared:
        """What a manifest says; KeyError, TypeError or ValueError for anything else."""
        reason = str(data.get("reason", ""))
        coefficients = np.array([] if reason else data["coefficients"], np.float64)
        covariance = np.array([] if reason else data["covariance"], np.float64)
        if not reason and covariance.shape != (len(coefficients), len(coefficients)):
            raise ValueError("the covariance has another shape than the coefficients")
        return cls(str(data["question"]), coefficients, covariance, reason)


@dataclass(frozen=True, eq=False)
class Published:
    """A release with a published model."""

    store: Store
    manifest: Manifest

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        public_key: Ed25519PublicKey | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Published:
        """Open a release; the errors are those of `dpdist.publish.verify.open_release`."""
        return cls(*open_release(uri, public_key, storage_options=storage_options))

    @property
    def schema(self) -> Schema:
        """The attributes of the records."""
        return self.manifest.table

    @cached_property
    def bin_means(self) -> Means:
        """The means of numbers in their bins, of attributes whose bins have tilts."""
        return bin_means(self.schema.attributes, self.manifest.format.tilts)

    @cached_property
    def model(self) -> PublishedModel:
        """The published model; the errors are those of `read_model`."""
        return read_model(self.store, self.manifest)

    @cached_property
    def measurements(self) -> Measurements | None:
        """The published noisy tables; None where the release publishes none."""
        try:
            return self.model.measurements
        except DataNotFound:
            return None

    @cached_property
    def law(self) -> Law:
        """The law of the records."""
        found = self.manifest.learned.get("rules")
        kept = [k for k in found if isinstance(k, int)] if isinstance(found, list) else []
        return Law(self.model, self.schema.forbidden, kept)

    @cached_property
    def records(self) -> int:
        """The noisy number of records of the table."""
        return self.manifest.noisy_records

    @cached_property
    def regressions(self) -> Mapping[Key, Declared]:
        """The regressions that the spec declared, by the key of each."""
        found: Any = self.manifest.parameters.get("regressions", {"measured": []})
        try:
            measured = [Declared.from_json(one) for one in found["measured"]]
        except (KeyError, TypeError, ValueError, ArithmeticError):
            raise VerificationFailed("the manifest's regressions are not in their format: get it again") from None
        return {parse_regression(one.question, self.schema).key: one for one in measured}

    @cached_property
    def errors(self) -> CellErrors | None:
        """What was measured of the accuracy; None where nothing was."""
        found = self.manifest.parameters.get("accuracy")
        if not isinstance(found, dict):
            return None
        try:
            accuracy = Accuracy.from_json(found)
            if accuracy.pairs and len(accuracy.pairs) != comb(len(self.schema.attributes), 2):
                raise ValueError("pairs: another number than there are")
        except (KeyError, TypeError, ValueError, ArithmeticError):
            raise VerificationFailed("the manifest's accuracy is not in its format: get the release again") from None
        counts = reduce(operator.add, (pair_counts(codes, self.schema.cardinalities) for codes in self._parts()))
        pairs = combinations(range(len(self.schema.attributes)), 2)
        return CellErrors(accuracy, {pair: counts.pair(*pair).ravel() for pair in pairs})

    @cached_property
    def codes(self) -> Codes:
        """The released records."""
        return [np.concatenate(columns) for columns in zip(*self._parts(), strict=True)]

    def _parts(self) -> Iterator[Codes]:
        """The records of each part."""
        table = ReleasedTable(self.store, self.manifest)
        for part in range(len(table.partitions)):
            batches = [batch.codes for batch in table.batches(part)]
            yield [np.concatenate(columns) for columns in zip(*batches, strict=True)]

    def measured(self, attributes: tuple[int, ...]) -> tuple[Floats, Floats] | None:
        """The noisy counts of the cells of some attributes, and their deviations; None where not measured."""
        shape = tuple(self.schema.cardinalities[i] for i in attributes)
        return self.model.measurements.combined(attributes, shape)

    def places(self, names: Sequence[str]) -> tuple[int, ...]:
        """The places of attributes.

        Raises
        ------
        SpecError
            There is no attribute of the name, or one is given twice.
        """
        known = self.schema.names
        for name in names:
            if name not in known:
                raise SpecError(f"no attribute is called {name!r}{meant(name, known)}")
        if len(set(names)) < len(names):
            raise SpecError("an attribute is given twice")
        return tuple(known.index(name) for name in names)
