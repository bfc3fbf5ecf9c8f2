"""Functions, linear algebra and orders that are the same on every processor: accurate, of portable operations."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, special

from dpdist.privacy import portable
from dpdist.privacy.arrays import grid_below, power_of_two, round_to_grid, stable_order

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("ours", "theirs", "places", "error"),
    [
        (portable.exp, np.exp, RNG.uniform(-600, 600, 20_000), 2e-13),
        (portable.log, np.log, 10.0 ** RNG.uniform(-300, 300, 20_000), 1e-15),
        (portable.log1p, np.log1p, 10.0 ** RNG.uniform(-20, 20, 20_000), 1e-14),
        (portable.expm1, np.expm1, 10.0 ** RNG.uniform(-20, 2, 20_000), 1e-13),
        (portable.ndtr, special.ndtr, RNG.uniform(-20, 8, 20_000), 1e-12),
        (portable.ndtri, special.ndtri, RNG.uniform(0, 1, 20_000), 1e-12),
        (portable.ndtri, special.ndtri, 10.0 ** RNG.uniform(-100, 0, 1000), 1e-12),
    ],
)
def test_functions(ours: object, theirs: object, places: np.ndarray, error: float) -> None:
    np.testing.assert_allclose(ours(places), theirs(places), rtol=error, atol=1e-14)  # type: ignore[operator]


def test_the_coefficients_are_those_of_the_function() -> None:
    for z in (0.0, 0.01, 0.5, 1.0, 3.0, 10.0, 25.0):
        exact = float(mpmath.erfc(mpmath.mpf(z)))
        assert float(portable._erfc(np.array([z]))[0]) == pytest.approx(exact, rel=1e-12)


def test_sines_of_turns() -> None:
    turns = RNG.uniform(-3, 3, 20_000)
    np.testing.assert_allclose(portable.sin_turns(turns), np.sin(2 * np.pi * turns), atol=1e-14)
    assert portable.sin_turns(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == [0, 1, 0, -1, 0]


def test_powers() -> None:
    assert (portable.power(np.array([2.0, 3.0]), 5) == [32, 243]).all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 300, 5), (130, 128, 129), (3, 1000, 1)])
def test_products(shape: tuple[int, int, int]) -> None:
    a, b = RNG.normal(size=shape[:2]) * 1e5, RNG.normal(size=shape[1:]) * 1e-9
    bound = np.abs(a).max(1)[:, None] * np.abs(b).max(0) * shape[1] * 2.0**-44
    assert (np.abs(portable.matmul(a, b) - a @ b) <= bound).all()
    np.testing.assert_array_equal(portable.matmul(a, b[:, 0]), portable.matmul(a, b)[:, 0])


def test_slices_are_exact() -> None:
    """Products of whole numbers that fit the slices come out exactly, whatever adds them."""
    a, b = RNG.integers(-(2**22), 2**22, (50, 400)), RNG.integers(-(2**22), 2**22, (400, 20))
    assert (portable.matmul(a.astype(float), b.astype(float)) == a @ b).all()


@pytest.mark.parametrize("size", [1, 5, 64, 150])
def test_systems(size: int) -> None:
    root = RNG.normal(size=(size, size))
    matrix, right = root @ root.T + 0.1 * np.eye(size), RNG.normal(size=(size, 3))
    lower = portable.cholesky(matrix)
    assert (np.triu(lower, 1) == 0).all()
    np.testing.assert_allclose(lower, linalg.cholesky(matrix, lower=True), atol=1e-9)
    np.testing.assert_allclose(matrix @ portable.solve(matrix, right), right, atol=1e-9)
    np.testing.assert_allclose(matrix @ portable.solve(matrix, right[:, 0]), right[:, 0], atol=1e-9)


@pytest.mark.parametrize("size", [60, 100, 400])
@pytest.mark.parametrize("width", [0.05, 1.0, 4.0])
def test_a_nearly_singular_system_is_solved(size: int, width: float) -> None:
    """A smooth kernel of many places, of which LAPACK finds a factor, too."""
    x = np.linspace(0, 1, size)
    matrix = portable.exp(-0.5 * ((x[:, None] - x) / width) ** 2) + 1e-12 * size * np.eye(size)
    lower = portable.cholesky(matrix)
    assert np.abs(lower @ lower.T - matrix).max() < 1e-12
    right = portable.matmul(matrix, np.ones(size))
    assert np.abs(matrix @ portable.solve(matrix, right) - right).max() < 1e-10


def test_eigenvalues_of_nothing_are_refused() -> None:
    for matrix in (np.zeros((0, 0)), np.full((2, 2), np.nan)):
        with pytest.raises(np.linalg.LinAlgError, match="finite matrices"):
            portable.eigh(matrix)


def test_a_system_that_is_not_definite_is_refused() -> None:
    for matrix in (-np.eye(3), np.diag([1.0, 0.0]), np.full((2, 2), np.nan)):
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            portable.cholesky(matrix)


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_eigenvalues(size: int) -> None:
    matrix = RNG.normal(size=(size, size))
    matrix += matrix.T
    values, vectors = portable.eigh(matrix)
    exact, other = np.linalg.eigh(matrix)
    np.testing.assert_allclose(values, exact, atol=1e-12 * size)
    np.testing.assert_allclose(np.abs(vectors.T @ other), np.eye(size), atol=1e-8)
    assert (np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0) > 0).all()
    np.testing.assert_allclose(
        portable.positive_part(matrix), (other * np.maximum(exact, 0)) @ other.T, atol=1e-7 * size
    )
    assert not portable.positive_part(np.zeros((size, size))).any()


def test_distances() -> None:
    a, b = RNG.normal(size=(6, 3)), RNG.normal(size=(4, 3))
    np.testing.assert_allclose(portable.squared_distances(a, b), ((a[:, None] - b[None]) ** 2).sum(-1), rtol=1e-13)


# --- Orders by digits against NumPy's sort of whole words; values on a grid


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


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1), bits=st.integers(-10, 30), noise=st.integers(-(2**51), 2**51))
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
