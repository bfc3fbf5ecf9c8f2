"""The spec of a discovery: which columns are asked for their frequent values, and which for their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError, model_validator

from dpdist.spec.release import Epsilon, PrivacyLimit, ReleaseSpec
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import undeclared

MOST_VALUES = 1_000
"""Values named of a column at most, the most frequent first: a schema of more is written by nobody."""


Bound = Annotated[int | FiniteFloat, Field(union_mode="smart")]
Kind = Literal["text", "integer", "number"] | tuple[Bound, Bound]
Columns = Annotated[dict[str, Kind], Field(min_length=1, max_length=500)]


class DiscoveryPrivacy(PrivacyLimit):
    """What the whole release may cost."""

    epsilon: Epsilon
    delta: float = Field(ge=1e-12, lt=0.1, allow_inf_nan=False)
    """Delta of the whole release; half of it is the probability that a value of one record is named."""


class DiscoverySpec(ReleaseSpec):
    """Frequent values of columns of texts, bounds of columns of numbers, and how many values are missing."""

    kind: Literal["discovery"]
    columns: Columns
    """By column: text (its frequent values are named, whatever the file holds them as), integer or number (bounds are
    found among powers of two), or public bounds such as [0, 99], which cost nothing."""
    table: Schema = Field(default_factory=lambda: schema_of({"column": "text"}), alias="schema")
    """It follows from `columns`: leave it out."""
    privacy: DiscoveryPrivacy

    @model_validator(mode="before")
    @classmethod
    def _of_columns(cls, tree: Any) -> Any:
        try:
            columns = TypeAdapter(Columns).validate_python(tree.get("columns") if isinstance(tree, Mapping) else None)
        except ValidationError:
            return tree  # the fields say what is wrong
        schema = schema_of(columns)
        if tree.get("schema") is None:
            return {**tree, "schema": schema}
        given = Schema.model_validate(tree["schema"])
        by_name = attrgetter("name")
        if sorted(given.attributes, key=by_name) != sorted(schema.attributes, key=by_name) or given.rules:
            raise ValueError("schema: a discovery has `columns` instead, leave it out")
        return {**tree, "schema": given}  # a manifest keeps the order of the columns here

    @property
    def asks_of_table(self) -> str | None:
        """Which values there are."""
        return (
            "kind: discovery asks which values a table has, and a contract has fixed them: take the schema from the "
            "contract (dpdist contract show). Discover before the data set has one"
        )

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Columns whose values are named, in order."""
        return tuple(name for name in self.table.names if self.columns[name] == "text")

    @cached_property
    def binned(self) -> tuple[str, ...]:
        """The other columns, in order."""
        return tuple(name for name in self.table.names if self.columns[name] != "text")


def schema_of(columns: Mapping[str, Any]) -> Schema:
    """The schema by which the columns are read: no value is outside of it. Raises ValueError: bounds are no bounds."""
    return Schema.model_validate({"attributes": [undeclared(name, kind) for name, kind in columns.items()]})
