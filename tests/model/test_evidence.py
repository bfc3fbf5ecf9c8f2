"""What of a noisy pair table is taken for dependence."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.model.descent import with_evidence


def table(strength: float, size: int = 6) -> np.ndarray:
    """Uniform margins, and a diagonal of this strength."""
    return (1 - strength) * np.full((size, size), size**-2.0) + strength * np.eye(size) / size


@pytest.mark.parametrize(("strength", "most"), [(0.0, 0.45), (0.02, 0.75), (0.8, 1.01)])
def test_the_error_falls_where_there_is_little_dependence_and_never_rises(strength: float, most: float) -> None:
    rng, sigma, truth, known = np.random.default_rng(0), 0.01, table(strength), table(0.0)
    before, after = [], []
    for _ in range(200):
        noisy = truth + sigma * rng.normal(size=truth.shape)
        found = with_evidence(noisy, known, sigma**-2.0)
        before.append(((noisy - truth) ** 2).sum())
        after.append(((found - truth) ** 2).sum())
        for axis in (0, 1):  # the margins are as they were measured
            np.testing.assert_allclose(found.sum(axis), noisy.sum(axis))
    assert np.mean(after) < most * np.mean(before)


def test_a_table_of_one_value_has_no_dependence() -> None:
    noisy = np.array([[0.3, 0.8]])
    np.testing.assert_array_equal(with_evidence(noisy, np.array([[0.5, 0.5]]), 100.0), noisy)
