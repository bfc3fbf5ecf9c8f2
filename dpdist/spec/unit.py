"""The unit of protection: all records with one id, such as the visits of a patient, at most so many of each."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from dpdist.spec.schema import Schema
from dpdist.spec.strict import StrictModel

MOST_RECORDS_OF_A_UNIT = 1_000_000

_ID = re.compile(r"(^|[\s_.-]+|(?<=[a-z]{3}))(id|ids|key|no|nr|number|uuid|hash)$", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9 _-]{0,39}")


class UnitSpec(StrictModel):
    """Who is protected, where several records may be about one person."""

    by: str = Field(min_length=1, description="Column of the ids. It is no attribute of the schema.")
    at_most: int = Field(
        ge=1,
        le=MOST_RECORDS_OF_A_UNIT,
        description="Records of each unit that are used; of a unit with more, a keyed choice. Noise grows with it.",
    )
    name: str = Field(default="", description="What a unit is called in guarantees; by default from `by`, without id.")
    missing: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="Records without an id are never used. `refuse`: a table that has some does not keep its contract.",
    )

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


def refuse_released_ids(unit: UnitSpec | None, table: Schema) -> None:
    """Refuse a schema that names the column of the ids. Raises ValueError."""
    if unit is not None and unit.by in table.names:
        raise ValueError(
            f"unit.by: {unit.by!r} is an attribute of the schema, so the ids would be counted and released: leave it "
            "out of the schema"
        )


def protected(unit: UnitSpec | None) -> dict[str, Any]:
    """The unit in the words of a guarantee: arguments of `dpdist.privacy.guarantee.DifferentialPrivacy`."""
    return {} if unit is None else {"unit": unit.name, "records": unit.at_most}


def adjacency_words(unit: UnitSpec | None) -> str:
    """What neighbouring tables differ by: a record, or a unit with its records."""
    if unit is None:
        return "add/remove adjacency"
    return f"add/remove adjacency of a {unit.name} with at most {unit.at_most:,} records"
