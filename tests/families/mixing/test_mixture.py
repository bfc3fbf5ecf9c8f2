from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from dpdist.errors import DataError, SpecError
from dpdist.families.mixing import mixture
from dpdist.families.mixing.mixture import (
    LARGEST_ORDER,
    Mixer,
    clip_rows,
    row_grid,
    sample_rows,
    sum_rows,
    sum_rows_of_shard,
)
from dpdist.privacy.noise import Noise

NOISE = Noise(bytes(range(32)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.floats(1e-6, 1e6), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_clipped_rows_are_on_the_grid_and_within_the_norm_exactly(n, d, clip, spread, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * clip * spread / np.sqrt(d)
    out = clip_rows(rows, clip=clip)
    grid = row_grid(clip)
    steps = out.astype(np.float64) / grid
    assert out.dtype == np.float32
    assert np.all(steps == np.rint(steps))
    assert grid * 2**12 <= clip < grid * 2**13
    squares = [sum(int(s) ** 2 for s in row) for row in steps]
    assert max(squares) <= (clip / grid) ** 2
    norms = np.linalg.norm(rows, axis=1)
    expected = rows * np.minimum(1, clip / norms)[:, None]
    assert np.all(np.abs(out - expected) <= grid * (0.5 + np.sqrt(d) / 2 + 1e-6))
    inside = norms <= clip - grid * np.sqrt(d)
    assert np.all(np.abs(out[inside] - rows[inside]) <= grid / 2)


def test_clipping_does_not_depend_on_how_rows_are_cut():
    rows = np.random.default_rng(0).normal(size=(30_000, 50))
    whole = clip_rows(rows, clip=6.0)
    assert np.array_equal(whole[17:400], clip_rows(rows[17:400], clip=6.0))
    assert np.array_equal(whole, clip_rows(whole, clip=6.0))


def test_the_norm_of_a_wide_row_does_not_depend_on_the_rows_beside_it():
    rows = np.random.default_rng(0).normal(size=(20, 10_000))
    assert np.array_equal(mixture._squares(rows), [mixture._squares(row[None])[0] for row in rows])


def test_huge_rows_are_clipped():
    assert np.linalg.norm(clip_rows(np.full((2, 3), 1e30), clip=1.0), axis=1) == pytest.approx([1, 1], rel=1e-3)
    assert np.all(np.isfinite(clip_rows(np.full((2, 3), 1e300), clip=1.0)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_refused_without_a_value(bad):
    with pytest.raises(DataError, match="not finite") as error:
        clip_rows(np.array([[1.0, bad]]), clip=1.0)
    assert "1.0" not in str(error.value)


class Digits:
    """Stands for the noise: mixture number i takes the digits of i in base `size`, round by round."""

    def __init__(self, size: int, order: int, width: int, rounds: int) -> None:
        draws = order + width * rounds
        self.table = np.array(list(product(range(size), repeat=draws)), dtype=np.int64)
        self.order, self.width, self.rounds = order, width, rounds

    def integers(self, name: str, count: int, *, high: int, start: int = 0) -> np.ndarray:
        assert start == 0
        if "/again/" not in name:
            return self.table[:, : self.order].reshape(-1).copy()
        again = int(name.rsplit("/", 1)[1])
        at = self.order + self.width * (again - 1)
        if again <= self.rounds:
            return self.table[:, at : at + self.width].reshape(-1)
        return np.repeat((np.arange(len(self.table)) + again) % high, self.width)  # ends; not counted below


@pytest.mark.parametrize(("size", "order", "rounds"), [(4, 2, 2), (6, 3, 1), (8, 2, 2), (5, 3, 1), (3, 2, 3)])
def test_sets_are_exactly_uniform_over_all_draws(size, order, rounds):
    sampled = order if 2 * order <= size else size - order
    width = 1 + sampled * sampled // size
    digits = Digits(size, sampled, width, rounds)
    sets = sample_rows(digits, "x", 0, len(digits.table), size=size, order=order)  # type: ignore[arg-type]
    # Only mixtures that ended within the enumerated rounds: that event is symmetric in the rows.
    ended = np.array([len(set(row)) >= sampled for row in replay(digits.table, sampled, width)])
    found = np.unique(sets[ended], axis=0, return_counts=True)
    assert len(found[0]) == comb(size, order)
    assert len(set(found[1].tolist())) == 1
    assert ended.mean() > 0.5


def replay(table: np.ndarray, order: int, width: int) -> list[list[int]]:
    """The first distinct numbers of each row of draws, in plain Python."""
    out = []
    for draws in table.tolist():
        seen = list(dict.fromkeys(draws[:order]))
        for at in range(order, len(draws), width):
            missing = order - len(seen)
            for value in draws[at : at + min(missing, width)]:
                if value not in seen:
                    seen.append(value)
        out.append(seen)
    return out


def test_sampled_sets_are_those_of_the_replay():
    size, order = 7, 3
    width = 1 + order * order // size
    count = 200
    drawn = [NOISE.integers("s", count * order, high=size).reshape(count, order)]
    for again in range(1, 12):
        drawn.append(NOISE.integers(f"s/again/{again}", count * width, high=size).reshape(count, width))
    expected = np.sort(np.array(replay(np.hstack(drawn), order, width)), axis=1)
    assert np.array_equal(sample_rows(NOISE, "s", 0, count, size=size, order=order), expected)


@pytest.mark.parametrize(("size", "order"), [(1000, 300), (1000, 500), (900, 700), (50_000, 64)])
def test_rows_are_distinct_and_equally_frequent(size, order):
    count = 3000
    sets = sample_rows(NOISE, "large", 0, count, size=size, order=order)
    assert sets.shape == (count, order)
    assert np.all(np.diff(sets, axis=1) > 0)
    assert sets.min() >= 0
    assert sets.max() < size
    counts = np.bincount(sets.ravel(), minlength=size)
    rate = order / size
    statistic = ((counts - count * rate) ** 2).sum() / (count * rate * (1 - rate)) * (size - 1) / size
    assert chi2.sf(statistic, size - 1) > 1e-20
    assert chi2.cdf(statistic, size - 1) > 1e-20


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.data())
def test_a_mixture_does_not_depend_on_its_block(size, data):
    order = data.draw(st.integers(1, size))
    cuts = sorted(data.draw(st.lists(st.integers(0, 60), max_size=4)))
    whole = sample_rows(NOISE, "b", 0, 60, size=size, order=order)
    pieces = [
        sample_rows(NOISE, "b", a, b, size=size, order=order) for a, b in zip([0, *cuts], [*cuts, 60], strict=True)
    ]
    assert np.array_equal(whole, np.concatenate(pieces))


@pytest.mark.parametrize(("size", "order"), [(3, 4), (0, 1), (5, 0)])
def test_a_class_smaller_than_a_mixture_is_refused_without_its_size(size, order):
    with pytest.raises(DataError, match="fewer records") as error:
        sample_rows(NOISE, "x", 0, 1, size=size, order=order)
    assert str(size) not in str(error.value)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 30), st.integers(1, 50), st.integers(0, 2**32 - 1), st.data())
def test_sums_are_exact_and_shards_add_up(n, d, t, seed, data):
    rng = np.random.default_rng(seed)
    order = data.draw(st.integers(1, n))
    rows = clip_rows(rng.normal(size=(n, d)), clip=2.0)
    indices = np.sort(rng.permuted(np.tile(np.arange(n), (t, 1)), axis=1)[:, :order], axis=1)
    steps = (rows / np.float32(row_grid(2.0))).astype(np.int64)
    expected = steps[indices].sum(axis=1)
    sums = sum_rows(rows, indices)
    assert np.array_equal(sums / np.float32(row_grid(2.0)), expected)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    shards = [sum_rows_of_shard(rows[a:b], indices, first=a) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    assert np.array_equal(np.sum(shards, axis=0), sums)


def test_sums_of_the_largest_order_are_exact():
    clip = np.nextafter(2.0, 0)  # the finest grid for the norm: 2**13 steps
    rows = clip_rows(np.full((LARGEST_ORDER + 1, 1), clip), clip=clip)
    sums = sum_rows(rows, np.arange(LARGEST_ORDER)[None, :])
    assert sums[0, 0] == LARGEST_ORDER * float(rows[0, 0])
    assert rows[0, 0] / row_grid(clip) == 2**13 - 1


MIXER = Mixer(order=8, clip=2.0, sigma=0.05, name="mixing/0")


def test_classes_and_keys_have_noise_of_their_own():
    rows = clip_rows(np.random.default_rng(0).normal(size=(100, 7)), clip=2.0)
    one = MIXER.mixtures(NOISE, rows, 0, 50)
    other = Mixer(order=8, clip=2.0, sigma=0.05, name="mixing/1").mixtures(NOISE, rows, 0, 50)
    keyed = MIXER.mixtures(Noise(bytes(32)), rows, 0, 50)
    assert not np.any(np.all(one == other, axis=1))
    assert not np.any(np.all(one == keyed, axis=1))


def test_mixtures_are_means_of_sampled_rows_plus_noise():
    rows = clip_rows(np.random.default_rng(3).normal(size=(50, 4)), clip=2.0)
    indices = MIXER.sample(NOISE, 10, 30, size=50)
    noise = NOISE.grid_gaussian("mixing/0/noise", 80, sigma=0.4, grid=MIXER.grid, start=40).reshape(20, 4)
    expected = (rows.astype(np.float64)[indices].sum(axis=1) + noise) / 8
    assert np.array_equal(MIXER.mixtures(NOISE, rows, 10, 30), expected.astype(np.float32))


@pytest.mark.parametrize(
    "bad",
    [
        {"order": 0},
        {"order": LARGEST_ORDER + 1},
        {"clip": 0.0},
        {"clip": float("inf")},
        {"sigma": 0.0},
        {"sigma": float("nan")},
    ],
)
def test_mixers_that_make_no_sense_are_refused(bad):
    with pytest.raises(SpecError):
        Mixer(**({"order": 8, "clip": 1.0, "sigma": 1.0, "name": "x"} | bad))
