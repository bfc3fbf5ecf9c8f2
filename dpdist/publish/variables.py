"""What the descriptions of a release say of each of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dpdist.publish.manifest import Manifest
from dpdist.publish.parts import arrow_schema
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category

_STATISTICS = {
    "statistic": "What was counted or measured.",
    "of": "Of which attributes, or in which.",
    "cell": "The cell, value or bin that it is about.",
    "noisy": "The statistic with its noise, as it was charged.",
    "value": "The same after what the public knows of it.",
    "standard_error": "Of the value, by its noise.",
}
_TYPES = {"int": "integer", "uint": "integer", "double": "number", "bool": "boolean"}
_TYPES |= {"date32": "date", "timestamp": "datetime"}


@dataclass(frozen=True)
class Variable:
    """One column of the parts, for people and catalogues."""

    name: str
    type: str  # as a data package names it
    title: str
    text: str  # description and unit
    unit: str | None
    nullable: bool
    categories: tuple[tuple[str, str], ...]  # values as they are written, and labels; a missing one last
    missing: str | None  # the category of missing values; written as a null where the column is nullable
    ordered: bool
    ends: tuple[Any, Any] | None  # bounds of numbers, days or moments

    @property
    def written(self) -> tuple[tuple[str, str], ...]:
        """The categories that are values of the column."""
        return self.categories[:-1] if self.nullable and self.missing else self.categories

    @property
    def shown(self) -> str:
        """What it holds, in a line."""
        texts = [value if value == label else f"{value} = {label}" for value, label in self.written[:12]]
        texts += [f"and {len(self.written) - 12} more"] if len(self.written) > 12 else []
        held = ", ".join(texts) or " to ".join(str(end).removesuffix(".0") for end in self.ends or ()) or self.type
        return f"{held}; null = {self.missing}" if self.nullable and self.missing else held


def variables(manifest: Manifest) -> Iterator[Variable]:
    """The columns of the parts."""
    attributes = {attribute.name: attribute for attribute in manifest.table.attributes}
    with_records = manifest.format.layout == "records"
    for field in arrow_schema(manifest.table, manifest.format):
        kind = next((kind for start, kind in _TYPES.items() if str(field.type).startswith(start)), "string")
        attribute = attributes.get(field.name) if with_records else None
        if attribute is None:
            text = _STATISTICS.get(field.name, "")
            yield Variable(field.name, kind, field.name, text, None, field.nullable, (), None, False, None)
            continue
        text = attribute.description or ""
        if attribute.unit:
            text = f"{text.rstrip('. ')}. In {attribute.unit}.".removeprefix(". ")
        missing = attribute.missing.category if isinstance(attribute.missing, Category) else None
        yield Variable(
            name=field.name,
            type=kind,
            title=attribute.label or field.name,
            text=text,
            unit=attribute.unit,
            nullable=field.nullable,
            categories=_categories(attribute, manifest.format.values, missing),
            missing=missing,
            ordered=attribute.kind != "categorical",
            ends=_ends(field, attribute, manifest.format.values),
        )


def _categories(attribute: Attribute, written: str, missing: str | None) -> tuple[tuple[str, str], ...]:
    if attribute.values is None:
        return ()
    values = tuple(map(str, attribute.values))
    labels = attribute.labels or values
    found = list(zip(labels if written == "labels" else values, labels, strict=True))
    found += [] if missing is None else [(missing, missing)]
    return tuple((str(code), label) for code, (_, label) in enumerate(found)) if written == "codes" else tuple(found)


def _ends(field: pa.Field, attribute: Attribute, written: str) -> tuple[Any, Any] | None:
    if attribute.bounds is None or pa.types.is_dictionary(field.type):
        return None
    if written == "codes" and not attribute.is_continuous:
        return 0, attribute.cardinality - 1
    low, high = map(attribute.shown, attribute.bounds) if attribute.dated else attribute.bounds
    return low, high
