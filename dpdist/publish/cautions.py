"""What a reader of a release should hear before its numbers: said by the run, the manifest and every verification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FAR: Final = 2
"""From this factor on, more released records than the table has are worth a word."""


def cautions_of(spec: Mapping[str, Any], parameters: Mapping[str, Any], records: int) -> tuple[str, ...]:
    """Compare the noisy number of records of the table, where a manifest has one, with what was declared and released.
    `spec`, `parameters` (mapping): of a manifest; `records`: released records.
    """
    learned, data = parameters.get("learned"), spec.get("data")
    counted = learned.get("records") if isinstance(learned, Mapping) else None
    least = data.get("minimum_records") if isinstance(data, Mapping) else None
    if not isinstance(counted, int) or not isinstance(least, int) or spec.get("weight"):
        return ()
    found, about = [], f"the table has about {max(counted, 0):,} records (a noisy count)"
    if counted < least:
        found.append(
            f"{about}, and its spec declares at least {least:,} (data.minimum_records): ask its publisher whether it "
            "is the right table"
        )
    if records >= FAR * max(counted, 1):
        found.append(f"{about}, and {records:,} are released: their number says nothing about how exact they are")
    return tuple(found)
