"""What a plan and a manifest say of the parts of a release: their format, and each part's name, size and checksum."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dpdist.limits import PART_BYTES, PART_ROWS

PART_NAME = r"^data/[0-9a-zA-Z]{1,8}/part-[0-9]{5,}\.parquet$"
"""What the name of a part looks like, as a regular expression."""


class PartFormat(BaseModel):
    """How codes are written, or that the release holds statistics."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: Literal["records", "statistics"] = Field(
        default="records",
        description="One row per released record, or one per statistic (columns statistic, of, cell, noisy, value).",
    )
    non_negative: bool = Field(
        default=False, description="Of statistics: whether no number in the column `value` is negative."
    )
    values: Literal["values", "labels", "codes"] = Field(
        default="values", description="The declared values, their labels where there are any, or integer codes."
    )
    bins: Literal["uniform", "label"] = Field(
        default="uniform",
        description="A binned integer or number as one drawn uniformly in its bin, or as the bin's text.",
    )


class PartRecord(BaseModel):
    """One part, as the manifest lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=PART_NAME, description="Name of the file, from the manifest's folder.")
    rows: int = Field(ge=0, le=PART_ROWS, description="Number of records.")
    bytes: int = Field(ge=0, le=PART_BYTES, description="Size of the file.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file, in hexadecimal.")
