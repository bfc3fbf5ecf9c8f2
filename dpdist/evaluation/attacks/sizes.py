"""How many records the attacks look at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of samples; tables that are smaller are used whole."""

    targets: int = 10_000  # members, and as many non-members, that counting attacks tell apart
    searched: int = 2_000  # targets of attacks that search nearest records, on each side
    linked: int = 1_000  # the same for linkage, which sorts neighbours
    compared: int = 50_000  # released records that such a search goes through
    game: int = 12_000  # real, and as many released, records of the distinguishing game
    shadows: int = 4  # shadow releases
    confidence: float = 0.95  # of every interval
    least: int = 100  # records below which an attack says nothing
