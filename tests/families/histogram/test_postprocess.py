"""Post-processing against brute force, solvers and exact distributions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import SpecError
from dpdist.families.base.calibration import common_total, project
from dpdist.families.histogram.postprocess import (
    fit_hierarchy,
    largest_remainder,
    non_negative_integers,
)
from dpdist.privacy.noise import Noise

NOISE = Noise(bytes(range(32)))

noisy_tables = st.lists(st.integers(-50, 200), min_size=1, max_size=12)


class TestProjection:
    @given(noisy_tables, st.one_of(st.none(), st.integers(1, 500)))
    def test_optimality_conditions(self, noisy: list[int], total: int | None) -> None:
        result = project(noisy, total=total)
        expected = max(sum(noisy), 0) if total is None else total
        assert (result >= 0).all()
        assert result.sum() == pytest.approx(expected, abs=1e-9)
        moved = np.array(noisy) - result
        if result.any():
            level = moved[result > 0]
            np.testing.assert_allclose(level, level[0], atol=1e-9)  # one shift for all positive cells,
            assert (moved <= level[0] + 1e-9).all()  # and no zero cell would be better off above zero

    def test_keeps_shape_and_has_no_bias_of_the_total(self) -> None:
        noisy = NOISE.discrete_laplace("p", 10_000, scale=5.0).reshape(100, 100)
        noisy[0] += 1000
        assert project(noisy).shape == (100, 100)
        assert project(noisy).sum() == pytest.approx(noisy.sum())
        assert np.maximum(noisy, 0).sum() > noisy.sum() + 20_000
        assert np.abs(project(noisy) - np.maximum(noisy, 0)).max() > 0

    @pytest.mark.parametrize("total", [-1, np.inf, np.nan])
    def test_refused(self, total: float) -> None:
        with pytest.raises(SpecError, match="total of a histogram"):
            project([1, 2], total=total)


class TestRounding:
    @given(st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=10), st.integers(0, 10**6))
    def test_total_and_nearness(self, values: list[float], total: int) -> None:
        result = largest_remainder(values, total=total)
        mass = sum(values)
        exact = np.array(values) / mass * total if mass else np.full(len(values), total / len(values))
        assert result.dtype == np.int64
        assert result.sum() == total
        assert (result >= 0).all()
        assert np.abs(result - exact).max() <= 1 + 1e-6

    def test_ties_go_to_the_first(self) -> None:
        assert largest_remainder([1, 1, 1], total=4).tolist() == [2, 1, 1]
        assert largest_remainder([0, 0, 0], total=2).tolist() == [1, 1, 0]

    @given(noisy_tables)
    def test_non_negative_integers(self, noisy: list[int]) -> None:
        result = non_negative_integers(noisy)
        assert result.dtype == np.int64
        assert (result >= 0).all()
        assert result.sum() == max(sum(noisy), 0)
        np.testing.assert_array_equal(non_negative_integers(result), result)


class TestConsistency:
    @given(st.integers(0, 2**32), st.integers(1, 4))
    def test_hierarchy_is_generalised_least_squares(self, seed: int, depth: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = np.sort(rng.integers(1, 7, depth))[::-1]
        parents = []
        for below, above in pairwise(sizes):
            link = np.concatenate([np.arange(above), rng.integers(0, above, below - above)])
            parents.append(rng.permutation(link))
        levels = [rng.normal(0, 10, size) for size in sizes]
        variances = rng.uniform(0.1, 5, depth)
        # Counts of every level as sums of the finest.
        up, design, sums = np.eye(sizes[0]), [], []
        for level in range(depth):
            sums.append(up)
            design.append(up / np.sqrt(variances[level]))
            if level < depth - 1:
                up = np.array([[link == node for link in parents[level]] for node in range(sizes[level + 1])]) @ up
        weighted = np.concatenate([y / np.sqrt(v) for y, v in zip(levels, variances, strict=True)])
        finest = np.linalg.lstsq(np.concatenate(design), weighted, rcond=None)[0]
        fitted, spreads = fit_hierarchy(levels, parents=parents, variances=variances.tolist())
        np.testing.assert_allclose(fitted[0], finest, atol=1e-8)
        covariance = np.linalg.inv(np.concatenate(design).T @ np.concatenate(design))
        for matrix, spread in zip(sums, spreads, strict=True):
            np.testing.assert_allclose(spread, np.diag(matrix @ covariance @ matrix.T), rtol=1e-9)
        for below, above, link in zip(fitted, fitted[1:], parents, strict=False):
            np.testing.assert_allclose(np.bincount(link, below, above.size), above, atol=1e-9)

    def test_common_total(self) -> None:
        tables = [np.array([10, 20]), np.array([20, 20, 20, 20])]
        assert common_total(tables, [1.0, 1.0]) == pytest.approx((30 / 2 + 80 / 4) / (1 / 2 + 1 / 4))
        assert common_total([np.array([-5])], [1.0]) == 0
