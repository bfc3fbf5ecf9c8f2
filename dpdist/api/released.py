"""A release as an object: its guarantee, its records as frames, its evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.privacy.formatting import Displayed, Fact
from dpdist.publish.columns import Column, columns
from dpdist.publish.manifest import Manifest
from dpdist.publish.part_format import PartFormat, outside_of
from dpdist.publish.parts import arrow_schema, write_csv
from dpdist.publish.verify import part_batches, read_manifest, read_release
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from pandas import DataFrame

    from dpdist.evaluation.run import Evaluated
    from dpdist.inference.comparisons import Answers
    from dpdist.inference.published import Published
    from dpdist.inference.replicates import Replicates
    from dpdist.lifecycle.publication import Outcome
    from dpdist.publish.verify import VerifyReport


_TOLD = 5  # columns whose records outside of bounds are spoken of


class Release(Displayed):
    """A release that can be read; `dpdist.release` and `dpdist.open_release` return one.

    Parameters
    ----------
    path : str or path
        Folder or ``s3://`` prefix.
    public_key : Ed25519PublicKey, optional
        The signature is then required.
    storage_options : mapping, optional
        Of object storage.
    outcome : Outcome, optional
        Of the run, where the release has just been made.

    Attributes
    ----------
    path : str
    manifest : Manifest
    outcome : Outcome or None
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        public_key: Ed25519PublicKey | None = None,
        storage_options: Mapping[str, Any] | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        self._key, self._options = public_key, dict(storage_options or {})
        self.manifest: Manifest = read_manifest(path, public_key, storage_options=self._options)
        self.path = Store(path, self._options).uri
        self.outcome = outcome

    @property
    def budget(self) -> str:
        """What the data set has left, where the release has just been made."""
        return "" if self.outcome is None else self.outcome.budget

    @property
    def name(self) -> str:
        """Name of the release."""
        return self.manifest.name

    @property
    def schema(self) -> Schema:
        """The schema of the released records."""
        return self.manifest.table

    @property
    def guarantee(self) -> str:
        """What is guaranteed, in sentences."""
        return self.manifest.guarantee

    @property
    def guarantees(self) -> tuple[dict[str, Any], ...]:
        """The same in numbers; the one about the whole release first."""
        return self.manifest.guarantees

    @property
    def epsilon(self) -> float | None:
        """Epsilon of the first guarantee, if it has one."""
        found = self.guarantees[0].get("epsilon")
        return None if found is None else float(found)

    @property
    def delta(self) -> float | None:
        """Delta of the first guarantee, if it has one."""
        found = self.guarantees[0].get("delta")
        return None if found is None else float(found)

    def __len__(self) -> int:
        return self.manifest.rows

    @cached_property
    def _raw(self) -> pa.Table:
        return read_release(self.path, self._key, storage_options=self._options)

    def to_arrow(self, *, labels: bool = False) -> pa.Table:
        """The records; texts are dictionaries of all declared values, ordered where the attribute is. A missing
        category is its name among texts and labels, and null elsewhere.

        Parameters
        ----------
        labels : bool
            Whether declared labels take the place of values.

        Raises
        ------
        VerificationFailed
            A part is not what the manifest says.
        """
        return typed(self._raw, self.schema, self.manifest.format, labels=labels)

    def to_pandas(self, *, labels: bool = False) -> DataFrame:
        """The records as a DataFrame: categoricals, ordered where ordinal, and nullable integers. As `to_arrow`."""
        return to_pandas(self._raw, self.schema, self.manifest.format, labels=labels)

    def to_dask(self, *, labels: bool = False) -> Any:
        """The records as a Dask DataFrame, with a partition for each part, which is read where it is computed."""
        from dpdist.cluster.executor import frame_of_parts

        store = Store(self.path, self._options)
        form = self.manifest.format
        empty = to_pandas(arrow_schema(self.schema, form).empty_table(), self.schema, form, labels=labels)
        return frame_of_parts(
            _part, len(self.manifest.parts), empty, store=store, manifest=self.manifest, labels=labels
        )

    def to_csv(self, path: str | os.PathLike[str], *, labels: bool = False) -> None:
        """Write the records to one CSV file; nulls are empty fields."""
        write_csv(self.to_arrow(labels=labels), path)

    def __fspath__(self) -> str:
        return self.path

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def verify(self) -> VerifyReport:
        """Check every file, value and sentence of the release again; see `dpdist.verify`."""
        from dpdist.publish.verify import verify

        return verify(self.path, self._key, storage_options=self._options)

    @cached_property
    def _published(self) -> Published:
        from dpdist.inference.published import Published

        return Published.open(self.path, self._key, storage_options=self._options)

    def sample(self, n: int = 1, *, where: str | None = None, seed: int = 0, labels: bool = False) -> DataFrame:
        """New records from the published model, given a condition; it costs nothing. See docs/inference.md."""
        return to_pandas(self.drawn(n, where=where, seed=seed), self.schema, self.manifest.format, labels=labels)

    def drawn(self, n: int, *, where: str | None = None, seed: int = 0) -> pa.Table:
        """As `sample`, as Arrow."""
        from dpdist.inference.records import draw_table

        return draw_table(self._published, n, where=where, seed=seed).table

    def tabulate(self, *names: str) -> pa.Table:
        """The model's counts of all cells of some attributes, with standard errors and 95 % intervals."""
        from dpdist.inference.answers import tabulate

        return tabulate(self._published, list(names))

    def infer(self, question: str) -> Answers:
        """Answers with intervals: one, or one for each term of a regression. See docs/inference.md."""
        from dpdist.inference.comparisons import Answers, answer

        return Answers(answer(self._published, question))

    def replicates(self, number: int = 80, *, seed: int = 0) -> Replicates:
        """The records with replicate weights, for R's survey package, Stata or samplics."""
        from dpdist.inference.replicates import make_replicates

        return make_replicates(self._published, number, seed=seed)

    def evaluate(self, against: Any = None, *, holdout: Any = None, **options: Any) -> Evaluated:
        """Compare the release with the real table; see `dpdist.evaluate`."""
        from dpdist.api.evaluation import evaluate

        return evaluate(self, against, holdout=holdout, **options)

    def _facts(self) -> list[Fact]:
        manifest = self.manifest
        facts = [Fact("NOT PRIVATE", "made with a fixed test key")] if manifest.not_private else []
        facts += [Fact("Guarantee", self.guarantee), Fact("Release", self.path)]
        facts += [Fact(manifest.counted.capitalize(), f"{manifest.rows:,}")]
        if outside := outside_of(manifest.parameters):
            shares = [f"{name} {100 * share:.0f} % (+-{200 * far:.0f} %)" for name, share, far in outside[:_TOLD]]
            others = " and less of others" * (len(outside) > _TOLD)
            facts.append(Fact("Outside", f"by noisy counts, of bounds that were found: {', '.join(shares)}{others}"))
        facts += [Fact("WARNING", caution) for caution in manifest.cautions]
        return [*facts, Fact("Budget", self.budget)] if self.budget else facts

    @property
    def _heading(self) -> str:
        return f"Release {self.name} ({self.manifest.kind})"


def _part(number: int, *, store: Store, manifest: Manifest, labels: bool) -> DataFrame:
    """One part of a release as a DataFrame."""
    batches = part_batches(store, manifest, number)
    table = pa.Table.from_batches(batches, arrow_schema(manifest.table, manifest.format)).unify_dictionaries()
    return to_pandas(table, manifest.table, manifest.format, labels=labels)


def typed(table: pa.Table, schema: Schema, form: PartFormat, *, labels: bool = False) -> pa.Table:
    """Released records as Arrow: texts become dictionaries of all declared values, ordered where the attribute is.

    `table` is as it is read from the parts, `schema` and `form` are those of the manifest; with `labels`, declared
    labels take the place of values.
    """
    if form.layout == "statistics" or form.values == "codes":
        return table
    arrays = [
        _typed(values, column, attribute, labels=labels)
        for values, column, attribute in zip(table.columns, columns(schema, form), schema.attributes, strict=True)
    ]
    return pa.table(arrays, names=table.column_names)


def _typed(values: pa.Array | pa.ChunkedArray, column: Column, attribute: Attribute, *, labels: bool) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    names = attribute.labels if labels and attribute.values is not None else None
    if column.texts is None:
        if names is None:
            return values
        known = column.written(column.integers[: len(names)]) if column.integers is not None else values[:0]
        places, shown = pc.index_in(values, known), list(names)
        if isinstance(attribute.missing, Category):  # a null, where integers are written
            places, shown = places.fill_null(len(shown)), [*shown, attribute.missing.category]
    else:
        shown = list(dict.fromkeys(column.texts))
        places = pc.index_in(values.dictionary, pa.array(shown)).take(values.indices)
        if names is not None and shown[: len(names)] == list(map(str, attribute.values or ())):
            shown[: len(names)] = names
    kept = list(dict.fromkeys(shown))  # two values with one label are one category
    places = pa.array([kept.index(text) for text in shown], pa.int32()).take(places)
    return pa.DictionaryArray.from_arrays(places, pa.array(kept, pa.string()), ordered=attribute.kind != "categorical")


def to_pandas(table: pa.Table, schema: Schema, form: PartFormat, *, labels: bool = False) -> DataFrame:
    """Released records as a pandas DataFrame, by the parameters of `typed`.

    Categorical and ordinal attributes become categoricals of all declared values, ordered where they are ordinal.
    Integers and booleans that may be missing are nullable (``Int64``, ``boolean``). Dates and datetimes are
    ``datetime64``.
    """
    import pandas as pd

    shown = typed(table, schema, form, labels=labels)
    if form.layout == "statistics" or form.values == "codes":
        return shown.to_pandas()
    made: dict[str, Any] = {}
    for attribute, name in zip(schema.attributes, shown.column_names, strict=True):
        values = shown.column(name).combine_chunks()
        if pa.types.is_integer(values.type):
            made[name] = _integers(values, attribute, pd)
        elif pa.types.is_boolean(values.type) and attribute.missing_code is not None:
            made[name] = values.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
        elif attribute.dated is not None:
            made[name] = values.to_pandas(date_as_object=False)
        else:
            made[name] = values.to_pandas()
    return pd.DataFrame(made)


def _integers(values: pa.Array, attribute: Attribute, pd: Any) -> Any:
    """Integers: plain, nullable, or a categorical of the declared values."""
    if attribute.values is not None:
        places = pc.index_in(values, pa.array(attribute.values, values.type)).fill_null(-1).to_numpy()
        index = pd.Index(np.array(attribute.values, np.int64))
        return pd.Categorical.from_codes(places, categories=index, ordered=attribute.kind == "ordinal")
    return values.to_pandas(
        types_mapper={pa.int64(): pd.Int64Dtype()}.get if attribute.missing_code is not None else None
    )
