"""Records that are cut and put together again; plans import nothing heavier with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dpdist.privacy.arrays import Codes


def joined(pieces: Iterable[Codes]) -> Codes:
    """Records one after another."""
    return [np.concatenate(columns) for columns in zip(*pieces, strict=True)]


def spans_of(blocks: Sequence[Codes], spans: Sequence[tuple[int, int]]) -> Codes:
    """The records of a span of each block, one after another."""
    return joined([column[a:b] for column in block] for block, (a, b) in zip(blocks, spans, strict=True))
