"""Released records as frames with the types of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.publish.columns import Column, columns
from dpdist.publish.part_format import PartFormat
from dpdist.spec.schema import Attribute, Category, Schema

if TYPE_CHECKING:
    from pandas import DataFrame


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
