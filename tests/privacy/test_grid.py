"""Grids are powers of two, and rounding to them is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.privacy.grid import grid_below, power_of_two, round_to_grid


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
