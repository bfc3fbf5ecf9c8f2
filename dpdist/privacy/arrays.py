"""The aliases of array types, each once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
"""Real numbers."""

AnyFloats: TypeAlias = NDArray[np.floating[Any]]
"""Real numbers of any precision."""

Counts: TypeAlias = NDArray[np.int64]
"""Numbers of records, and other integers that are summed."""

Unsigned: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Codes of one attribute, and other integers of any length that are ordered or grouped by."""

Codes: TypeAlias = list[NDArray[Any]]
"""Records by column: the code of each attribute's value, unsigned integers (float64 where it is continuous)."""
