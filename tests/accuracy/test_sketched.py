"""Accuracy from signed sums: what a record moves, unbiased squares, and intervals that cover."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dpdist.accuracy import sketched
from dpdist.accuracy.intervals import CellErrors
from dpdist.accuracy.measured import Accuracy, measure_accuracy
from dpdist.accuracy.sketched import Sketch
from dpdist.accuracy.tables import Tables
from dpdist.model.sums import AskedCounts
from dpdist.privacy.noise import Noise

CARDS = (9, 5, 4, 12, 3, 7)
ROWS = 60_000
KEY = Noise(bytes(32))


def codes(seed: int, away: float = 0.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    latent = rng.random(ROWS)
    columns = []
    for size in CARDS:
        shares = 1 / np.arange(1, size + 1) ** 1.5
        shares = (1 - away) * shares / shares.sum() + away / size
        edges = np.cumsum(shares)[:-1]
        columns.append(np.searchsorted(edges, (latent + 0.7 * rng.random(ROWS)) % 1).astype(np.uint8))
    return columns


@pytest.fixture(scope="module")
def exact() -> Tables:
    return Tables.counted(codes(1), CARDS)


def asking(exact: Tables, sigma: float) -> Callable[..., Any]:
    rng = np.random.default_rng(7)

    def ask(asked: Sequence[Sketch], weights: Sequence[float]) -> Any:
        sigmas = sigma * np.sqrt(max(weights) / np.array(weights))
        sums = [AskedCounts(CARDS).of(*one.attributes) for one in asked]
        parts = [type(s)(s.attributes, s.maps, one.groups).of(exact) for s, one in zip(sums, asked, strict=True)]
        return [p + np.rint(rng.normal(0, s, p.size)).astype(int) for p, s in zip(parts, sigmas, strict=True)], sigmas

    return ask


def sketch(exact: Tables, away: float, sigma: float = 20.0) -> tuple[Accuracy, Tables]:
    released = Tables.counted(codes(2, away), CARDS)
    return sketched.measure(released, KEY, records=ROWS, ask=asking(exact, sigma)), released


def test_a_record_moves_one_group_of_each_table_by_one(exact: Tables) -> None:
    more = exact + Tables.counted([np.array([size - 1], np.uint8) for size in CARDS], CARDS)
    asked = sketched.sketches(Tables.counted(codes(2), CARDS), KEY)
    assert {order: len(found) for order, found in asked.items()} == {1: 6, 2: 15, 3: 20}
    for order, found in asked.items():
        for one in found:
            size = sketched.group_number(order)
            moved = [sketched.signed_sums(t.of(order)[one.place], one.groups, size) for t in (exact, more)]
            assert np.abs(moved[1] - moved[0]).sum() == 1


def test_errors_are_those_of_the_tables_and_larger_ones_are_seen(exact: Tables) -> None:
    for away, least in ((0.02, 1.0), (0.2, 3.0)):
        found, released = sketch(exact, away)
        true = measure_accuracy(exact, released, records=ROWS, mu=1e6, noise=KEY)
        for order, expected in zip(found.orders, true.orders, strict=True):
            assert order.cells == expected.cells
            assert order.mass == expected.mass
            ratio = sum(order.sums) / sum(expected.sums)
            assert 0.6 < ratio < 1.5
            assert sum(expected.sums) > least * 1_000
    assert Accuracy.from_json(found.to_json()) is not None


def test_intervals_cover_as_those_of_measured_sums(exact: Tables) -> None:
    found, released = sketch(exact, 0.05, sigma=100.0)
    errors = CellErrors(found)
    for order in (2, 3):
        sets = list(combinations(range(len(CARDS)), order))
        covered = []
        for which, table, counts in zip(sets, exact.of(order), released.of(order), strict=True):
            interval = errors.interval(which, counts)
            covered.append((interval.low <= table) & (table <= interval.high))
        assert np.concatenate(covered).mean() > 0.93
    assert math.isfinite(errors.within(2))
