"""Survey weights: each record stands for so many of the population, at most a public number."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpdist.spec.schema import Schema
from dpdist.spec.strict import StrictModel

LARGEST_WEIGHT = 1_000_000


class WeightSpec(StrictModel):
    """The column of the weights. A record of weight w counts as w equal records.

    Weights are rounded to whole numbers; the charge of a record covers a weight of `at_most`.
    """

    by: str = Field(min_length=1, description="Column of the weights. It is no attribute of the schema.")
    at_most: int = Field(
        ge=1,
        le=LARGEST_WEIGHT,
        description="Largest weight, from public knowledge. Noise grows with it, so fewer heavy records may be worth "
        "less noise (`above: clip`).",
    )
    total: int | None = Field(
        default=None,
        ge=1,
        description="What all weights add up to, about, where that is public (the population). It decides nothing but "
        "the plan's choices.",
    )
    missing: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="Records without a weight of 0 or more are never used. `refuse`: a table that has some is refused.",
    )
    above: Literal["refuse", "clip"] = Field(
        default="refuse", description="Records above `at_most`: refuse the table, or count them as `at_most`."
    )


def refuse_released_weights(weight: WeightSpec | None, table: Schema) -> None:
    """Refuse a schema that names the column of the weights. Raises ValueError."""
    if weight is not None and weight.by in table.names:
        raise ValueError(
            f"weight.by: {weight.by!r} is an attribute of the schema. Leave it out of the schema for records that "
            "count by their weights, or leave `weight` out to release it as an attribute"
        )
