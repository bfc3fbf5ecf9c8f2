"""Who is protected and how records count: units of several records, such as the visits of a patient, and weights.

Each record of a survey stands for several of the population, at most for a public number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from dpdist.spec.schema import Schema
from dpdist.spec.strict import StrictModel

MOST_RECORDS_OF_A_UNIT = 1_000_000

LARGEST_WEIGHT = 1_000_000

_ID = re.compile(r"(^|[\s_.-]+|(?<=[a-z]{3}))(id|ids|key|no|nr|number|uuid|hash)$", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9 _-]{0,39}")


class UnitSpec(StrictModel):
    """Who is protected, where several records may be about one person."""

    by: str = Field(min_length=1, description="Column of the ids. It is no attribute of the schema.")
    at_most: int = Field(ge=1, le=MOST_RECORDS_OF_A_UNIT)
    """Records of each unit that are used; of a unit with more, a keyed choice. Noise grows with it."""
    name: str = ""
    """What a unit is called in guarantees; by default from `by`, without id."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Records without an id are never used. `refuse`: a table that has some does not keep its contract."""

    @model_validator(mode="after")
    def _named(self) -> UnitSpec:
        if not self.name:
            found = _ID.sub("", self.by)
            object.__setattr__(self, "name", found if _WORD.fullmatch(found) else "unit")
        if not _WORD.fullmatch(self.name) or self.name in ("record", "curve"):
            raise ValueError(
                "unit.name: a word of letters and digits, at most 40, such as patient; `record` and `curve` are taken"
            )
        return self


@dataclass(frozen=True)
class Following:
    """How the units of a panel are followed from period to period."""

    period: int  # place of the attribute whose codes are the periods
    values: tuple[int, ...]  # places of the attributes that count
    changes: int  # of these values, at most


class WeightSpec(StrictModel):
    """The column of the weights. A record of weight w counts as w equal records.

    Weights are rounded to whole numbers; the charge of a record covers a weight of `at_most`.
    """

    by: str = Field(min_length=1, description="Column of the weights. It is no attribute of the schema.")
    at_most: int = Field(ge=1, le=LARGEST_WEIGHT)
    """Largest weight, from public knowledge. Noise grows with it, so fewer heavy records may be worth less noise
    (`above: clip`)."""
    total: int | None = Field(default=None, ge=1)
    """What all weights add up to, about, where that is public (the population). It decides nothing but the plan's
    choices."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Records without a weight of 0 or more are never used. `refuse`: a table that has some is refused."""
    above: Literal["refuse", "clip"] = "refuse"
    """Records above `at_most`: refuse the table, or count them as `at_most`."""


def refuse_released(unit: UnitSpec | None, weight: WeightSpec | None, table: Schema) -> None:
    """Refuse weights of a unit's records, and a schema that names the column of ids or weights. Raises ValueError."""
    if unit is not None and weight is not None:
        raise ValueError("weight: the charge of weights is known for single records, not for a `unit`: leave one out")
    if unit is not None and unit.by in table.names:
        raise ValueError(
            f"unit.by: {unit.by!r} is an attribute of the schema, so the ids would be counted and released: leave it "
            "out of the schema"
        )
    if weight is not None and weight.by in table.names:
        raise ValueError(
            f"weight.by: {weight.by!r} is an attribute of the schema. Leave it out of the schema for records that "
            "count by their weights, or leave `weight` out to release it as an attribute"
        )


def protected(unit: UnitSpec | None) -> dict[str, Any]:
    """The unit in the words of a guarantee: arguments of `dpdist.privacy.guarantee.DifferentialPrivacy`."""
    return {} if unit is None else {"unit": unit.name, "records": unit.at_most}


def adjacency_words(unit: UnitSpec | None) -> str:
    """What neighbouring tables differ by: a record, or a unit with its records."""
    if unit is None:
        return "add/remove adjacency"
    return f"add/remove adjacency of a {unit.name} with at most {unit.at_most:,} records"
