"""Numbers in sentences."""

from __future__ import annotations


def number_of(count: int, what: str) -> str:
    """How many of something, in words: ``1 charge``, ``2,000 charges``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
