"""The parties of a table: which records are whose.

Without a column that names the party, all records are one party's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import CheckFailed
from dpdist.families.prediction.blocks import Block
from dpdist.families.prediction.lid.method import Method
from dpdist.privacy.arrays import Counts, Floats

Rows = slice | NDArray[np.int64]
"""Rows of a block."""


def codes(method: Method, inputs: Floats) -> NDArray[np.int64]:
    """The party of each row of the unit cube, int64[n]."""
    if method.party is None:
        return np.zeros(len(inputs), np.int64)
    return method.scales[method.party].codes(inputs[:, method.party])


def rows_of_parties(method: Method, block: Block) -> list[Rows]:
    """The rows of each party in a block, in their order."""
    if method.party is None:
        return [slice(None)]
    found = codes(method, block[0])
    return [np.flatnonzero(found == party) for party in range(method.parties)]


def party_records(method: Method, block: Block) -> Counts:
    """Records of each party in a block, int64[parties]."""
    return np.bincount(codes(method, block[0]), minlength=max(method.parties, 1)).astype(np.int64)


def check_records(records: Sequence[int], *, least: int) -> None:
    """Raises CheckFailed: a party has fewer records than `least`. The error says neither which nor how many."""
    if min(records) < least:
        raise CheckFailed(
            "a party has fewer records than prediction.parties.minimum_records, so nothing is published: declare fewer "
            "(at least 10), or put small parties together or leave them out in the schema; every value of the column "
            "is a party"
        )
