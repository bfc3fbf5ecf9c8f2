"""How many mixtures a task makes: a few tasks for each slot, of bounded memory; no release depends on it."""

from __future__ import annotations

import math

BLOCK_BYTES = 1 << 26
"""Mixtures of a task, at most."""

_LEAST_BLOCK = 1 << 13
_PIECE = 1 << 12


def piece_of(width: int) -> int:
    """Mixtures whose products are summed at a time, by public numbers alone; blocks hold whole pieces."""
    return max(1, min(_PIECE, BLOCK_BYTES // (4 * width)))


def block_of(records: int, *, width: int, slots: int) -> int:
    """Mixtures of a task: a few tasks for each slot, if they are worth it."""
    piece = piece_of(width)
    wanted = max(_LEAST_BLOCK, math.ceil(records / (4 * slots)))
    return piece * max(1, min(math.ceil(wanted / piece), BLOCK_BYTES // (4 * width * piece)))
