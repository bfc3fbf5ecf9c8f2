"""How many records the attacks look at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of samples; tables that are smaller are used whole.

    Attributes
    ----------
    targets : int
        Members, and as many non-members, that counting attacks tell apart.
    searched : int
        Targets of attacks that search nearest records, on each side.
    linked : int
        The same for linkage, which sorts neighbours.
    compared : int
        Released records that such a search goes through.
    game : int
        Real, and as many released, records of the distinguishing game.
    shadows : int
        Shadow releases.
    confidence : float
        Of every interval.
    least : int
        Records below which an attack says nothing.
    """

    targets: int = 10_000
    searched: int = 2_000
    linked: int = 1_000
    compared: int = 50_000
    game: int = 12_000
    shadows: int = 4
    confidence: float = 0.95
    least: int = 100
