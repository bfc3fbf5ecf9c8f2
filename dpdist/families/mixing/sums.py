"""Sums of mixtures straight from the codes of a class: vectors exist shard by shard, inside one task, and no longer.

Codes take a byte or so a value, vectors four bytes a coordinate. A task makes the vectors of a shard, sums what its
mixtures take of it, and goes on to the next; sums of shards are exact, so no shard changes a bit. A block is as many
mixtures as make that worth while.
"""

from __future__ import annotations

import math

import numpy as np

from dpdist.errors import DataError
from dpdist.families.mixing.mixture import Mixer, Rows, clip_rows
from dpdist.families.mixing.scaling import Encoding
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise

SHARD_BYTES = 1 << 28
"""Vectors of a class that a task holds at a time."""

BLOCK_BYTES = 1 << 26
"""Mixtures of a task, at most."""

_LEAST_BLOCK = 1 << 13
_PIECE = 1 << 12


def piece_of(width: int) -> int:
    """Mixtures whose products are summed at a time, by public numbers alone; blocks hold whole pieces."""
    return max(1, min(_PIECE, BLOCK_BYTES // (4 * width)))


def block_of(records: int, *, width: int, slots: int) -> int:
    """Mixtures of a task: a few tasks for each slot, if they are worth it; what is released does not depend on it."""
    piece = piece_of(width)
    wanted = max(_LEAST_BLOCK, math.ceil(records / (4 * slots)))
    return piece * max(1, min(math.ceil(wanted / piece), BLOCK_BYTES // (4 * width * piece)))


def class_sums(
    codes: Codes,
    encoding: Encoding,
    mixer: Mixer,
    noise: Noise,
    start: int,
    stop: int,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Rows:
    """Sums of the rows of mixtures `start` to `stop` - 1 of a class, exact.

    Parameters
    ----------
    codes : Codes
        Of all records of the class, the class attribute left out.

    Returns
    -------
    float32[stop - start, d]

    Raises
    ------
    DataError
        The class has fewer records than a mixture takes.
    """
    size, rows = len(codes[0]), max(1, shard_bytes // (4 * encoding.width))
    total: Rows | None = None
    for first in range(0, size, rows):
        shard = clip_rows(encoding.encode([column[first : first + rows] for column in codes]), clip=mixer.clip)
        sums = mixer.sums(noise, shard, start, stop, first=first, size=size)
        total = sums if total is None else np.add(total, sums, out=total)
    if total is None:
        raise DataError("a class without records is not mixed; leave it out")
    return total
