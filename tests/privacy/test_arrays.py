"""Orders by digits against NumPy's sort of whole words; values on a grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.privacy.arrays import grid_below, power_of_two, round_to_grid, stable_order

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


@given(step=st.floats(2.0**-900, 2.0**900))
def test_grid_below_is_the_largest_power_of_two(step: float) -> None:
    grid = grid_below(step)
    assert math.frexp(grid)[0] == 0.5
    assert grid <= step < 2 * grid


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf"), 2.0**901, 2.0**-901])
def test_grid_below_refuses(step: float) -> None:
    with pytest.raises(ValueError, match="step must be a finite number"):
        grid_below(step)


def test_power_of_two() -> None:
    assert power_of_two(1) == 1.0
    assert power_of_two(2.0**-30) == 2.0**-30
    for refused in (0, -2, 0.1, 3, float("nan"), float("inf"), 2.0**901):
        with pytest.raises(ValueError, match=r"grid must be a power of two.*grid_below"):
            power_of_two(refused)


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1),
    bits=st.integers(-10, 30),
    noise=st.integers(-(2**51), 2**51),
)
def test_rounded_values_and_noise_add_exactly(values: list[float], bits: int, noise: int) -> None:
    grid = 2.0**-bits
    rounded = round_to_grid(values, grid=grid)
    assert np.all(np.abs(rounded - values) <= grid / 2)
    steps = [int(x) for x in rounded / grid]
    total = rounded + noise * grid
    assert [int(x) for x in total / grid] == [step + noise for step in steps]


@pytest.mark.parametrize("refused", [float("nan"), float("inf"), 2.0**22])
def test_round_to_grid_refuses_without_the_value(refused: float) -> None:
    with pytest.raises(ValueError, match="must be finite and below") as caught:
        round_to_grid([1.0, refused], grid=2.0**-30)
    assert str(refused) not in str(caught.value)
