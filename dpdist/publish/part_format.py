"""The entries of a manifest: the format of the parts, each part and file, and what a reader should hear first."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpdist.errors import VerificationFailed
from dpdist.limits import PART_BYTES, PART_ROWS

if TYPE_CHECKING:
    from dpdist.storage.store import Store

PART_NAME = r"^data/[0-9a-zA-Z]{1,8}/part-[0-9]{5,}\.parquet$"
"""What the name of a part looks like, as a regular expression."""

FILE_NAME = (
    r"^(_model/[0-9a-zA-Z]{1,8}/[a-z]+\.(json|columnar)|_(README\.md|datapackage\.json|croissant\.json|ddi\.xml))$"
)

FAR: Final = 2
"""From this factor on, more released records than the table has are worth a word."""


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
        description="A binned integer or number as one drawn in its bin, or as the bin's text.",
    )
    tilts: dict[str, tuple[int, ...]] = Field(
        default={},
        description="How numbers are drawn in the bins of an attribute: uniformly, or by the tilt of each bin in "
        "thousandths (`dpdist/publish/tilts.py`).",
    )


class PartRecord(BaseModel):
    """One part, as the manifest lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=PART_NAME, description="Name of the file, from the manifest's folder.")
    rows: int = Field(ge=0, le=PART_ROWS, description="Number of records.")
    bytes: int = Field(ge=0, le=PART_BYTES, description="Size of the file.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file, in hexadecimal.")


class FileRecord(BaseModel):
    """One file beside the parts, as the manifest lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=FILE_NAME, description="Name of the file, from the manifest's folder.")
    bytes: int = Field(ge=0, le=PART_BYTES, description="Size of the file.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file, in hexadecimal.")


def write_file(store: Store, attempt: str, name: str, content: bytes) -> FileRecord:
    """Write a file of an attempt; the errors are those of `Store.write_bytes`."""
    record = FileRecord(
        name=f"_model/{attempt[:8]}/{name}", bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
    )
    store.write_bytes(record.name, content)
    return record


def read_file(store: Store, record: FileRecord) -> bytes:
    """The content of a file, after its SHA-256 was found right.
    Raises VerificationFailed: it is not what the manifest says; DataNotFound, StorageUnavailable: as
    `Store.read_bytes`.
    """
    content = store.read_bytes(record.name, most=record.bytes)
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise VerificationFailed(
            f"{record.name} was changed, its SHA-256 is not that of the manifest: copy the release again from its "
            "publisher"
        )
    return content


_SURE = 2.0  # deviations of a share from which on it is spoken of
_MUCH = 0.01  # the same, at least


def cautions_of(spec: Mapping[str, Any], parameters: Mapping[str, Any], records: int) -> tuple[str, ...]:
    """Compare the noisy number of records of the table, where a manifest has one, with what was declared and released;
    and say where bounds that were found leave records outside.

    Parameters
    ----------
    spec, parameters : mapping
        Of a manifest.
    records : int
        Released records.
    """
    found = [
        f"about {100 * share:.0f} % (+-{200 * far:.0f} %) of the records lie outside of the bounds that were found for "
        f"{name!r}, and are released at their ends: where bounds are public, say so"
        for name, share, far in outside_of(parameters)
        if share >= max(_SURE * far, _MUCH)
    ]
    learned, data = parameters.get("learned"), spec.get("data")
    counted = learned.get("records") if isinstance(learned, Mapping) else None
    least = data.get("minimum_records") if isinstance(data, Mapping) else None
    if not isinstance(counted, int) or not isinstance(least, int) or spec.get("weight"):
        return tuple(found)
    about = f"the table has about {max(counted, 0):,} records (a noisy count)"
    if counted < least:
        found.append(
            f"{about}, and its spec declares at least {least:,} (data.minimum_records): ask its publisher whether it "
            "is the right table"
        )
    if records >= FAR * max(counted, 1):
        found.append(f"{about}, and {records:,} are released: their number says nothing about how exact they are")
    return tuple(found)


def outside_of(parameters: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Columns whose bounds were found, the share of records outside of them by noisy counts, and its deviation; those
    that may have most of them come first.
    """
    discovered = parameters.get("discovered")
    outside = discovered.get("outside") if isinstance(discovered, Mapping) else None
    if not isinstance(outside, Mapping):
        return []
    shares: list[tuple[str, Any, Any]] = [
        (name, one.get("share"), one.get("deviation")) for name, one in outside.items() if isinstance(one, Mapping)
    ]
    shares = [one for one in shares if isinstance(one[1], int | float) and isinstance(one[2], int | float)]
    return sorted(shares, key=lambda one: -one[1] - _SURE * one[2])
