"""Orders by digits against NumPy's sort of whole words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.privacy.arrays import stable_order

WORDS = (np.uint8, np.uint16, np.uint32, np.uint64)


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), st.integers(0, 300), st.integers(0, 2**32))
def test_rows_are_ordered_by_one_key_after_another(types: list[type], rows: int, seed: int) -> None:
    """Few values, so that rows are equal in some keys and in all."""
    rng = np.random.default_rng(seed)
    few = [rng.integers(0, np.iinfo(kind).max, 5, kind, endpoint=True) for kind in types]
    keys = [values[rng.integers(0, 5, rows)] for values in few]
    order = stable_order(*keys)
    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(rows), key=lambda row: tuple(int(key[row]) for key in keys))


def test_words_are_ordered_as_numpy_orders_them() -> None:
    words = np.random.default_rng(0).integers(0, 2**64 - 1, 100_000, np.uint64, endpoint=True)
    np.testing.assert_array_equal(stable_order(words), np.argsort(words, kind="stable"))
    np.testing.assert_array_equal(stable_order(words[::3]), np.argsort(words[::3], kind="stable"))


@pytest.mark.parametrize("kind", [np.int64, np.float64, np.bool_])
def test_other_keys_are_refused(kind: type) -> None:
    with pytest.raises(TypeError, match="unsigned integers"):
        stable_order(np.zeros(3, np.uint8), np.zeros(3, kind))
