"""What a public description says about a column, and the words and numbers of such descriptions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAMES_RECORDS = "TODO: it names records or their groups: leave it out"
"""What a draft says about an identifier."""

_IDENTIFIER = re.compile(r"\b(?:[Ii]dentifiers?|[Ii]dentification|IDs?|(?:[Ss]erial|[Rr]ecord) ?(?:[Nn]umber|[Nn]o))\b")


@dataclass(frozen=True)
class Described:
    """What a source says about one column."""

    name: str
    note: str = ""  # what it is in words
    items: Mapping[str, str] | None = None  # code to label, in order; labels may be empty
    low: str = ""  # low, high: ends of a range, empty where there is none
    high: str = ""
    integers: bool = True  # whether a range is of integers, or numbers without one are
    texts: bool = False  # whether values are texts, so that a column without codes has no range
    ordered: bool = False  # whether the codes are in an order
    absent: tuple[str, ...] = ()  # texts that mean missing
    nullable: bool = False  # whether values may be missing
    nothing: str = "missing"  # what a missing value is called; empty where records without a value are left out
    others: str = ""  # what becomes of other values: clip, or a category of that name; empty where they are refused

    @property
    def names_records(self) -> bool:
        """Whether the source calls it an identifier, and has no labels for its codes."""
        coded = len([label for label in (self.items or {}).values() if label]) > 1
        return not coded and (self.name.lower() == "id" or _IDENTIFIER.search(f"{self.name} {self.note}") is not None)


def words(*texts: Any) -> str:
    """What a source says about a column, in one line."""
    return ": ".join(" ".join(str(text).split()) for text in texts if text)


def text_of(value: Any) -> str:
    """A value as text, empty where there is none."""
    return "" if value is None else str(value)


def is_number(text: str) -> bool:
    """Whether a text is a number in decimal digits."""
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text.strip()) is not None


def is_whole(text: str) -> bool:
    """Whether a text is an integer, or empty."""
    return not text or re.fullmatch(r"[-+]?\d+(\.0*)?", text.strip()) is not None
