"""Numbers lie within wide bins as the counts of the neighbouring bins say, and means of bins follow."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.privacy.noise import Noise
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import decode
from dpdist.publish.tilts import UNIT, means_of, tilts_of
from dpdist.spec.schema import Attribute, Schema

EDGES = [0, 1, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 1_000_000]
ROWS = 40_000


def attribute(**given: object) -> Attribute:
    about = {"name": "x", "kind": "integer", "bounds": [0, 1_999_999], "bins": {"edges": EDGES}}
    return Attribute.model_validate({**about, **given})


def incomes(rows: int) -> np.ndarray:
    """Incomes of a law with a Pareto tail, a tenth of them none: its quantiles, without chance."""
    u = (np.arange(rows) + 0.5) / rows
    found = np.where(u < 0.9, 60_000 * u**0.8, 0.9**0.8 * 60_000 * (0.1 / (1 - u)) ** (1 / 1.7))
    found[::10] = 0
    return np.minimum(found, 1_999_999)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kind": "number", "bounds": [0.0, 2e6], "bins": {"edges": [float(e) for e in EDGES]}},
        {"kind": "number", "bounds": [0.0, 2e6], "bins": {"edges": [float(e) for e in EDGES]}, "step": 0.01},
        {"missing": {"category": "none"}},
    ],
)
def test_numbers_are_drawn_by_the_tilts(given: dict[str, object]) -> None:
    of, size = attribute(**given), len(EDGES)
    tilts = (1000, 1000, 300, 1500, 8000, 125, 2500, 1100, 6000)[:size]
    form = PartFormat(tilts={"x": tilts})
    codes = np.repeat(np.arange(size), ROWS).astype(np.uint8)
    drawn = decode(Schema(attributes=(of,)), [codes], form=form, noise=Noise(bytes(32)))["x"].to_numpy()
    lows, highs = of.bin_ends()
    assert ((lows[codes] <= drawn) & (drawn <= highs[codes])).all()
    means, found = means_of(of, tilts), drawn.reshape(size, ROWS)
    assert (np.abs(found.mean(1) - means) <= 5.5 * found.std(1) / ROWS**0.5 + 1e-9).all()
    middles = (lows + highs) / 2
    assert (np.sign(means - middles)[2:] == np.sign(UNIT - np.array(tilts))[2:]).all()
    # with the tilt 8 the median is at w / (8 - 7 w) = 1 / 9 of the width, a quarter lies below 1 / 25
    assert (found[4] < lows[4] + (highs[4] - lows[4]) / 9).mean() == pytest.approx(0.5, abs=0.015)
    assert (found[4] < lows[4] + (highs[4] - lows[4]) / 25).mean() == pytest.approx(0.25, abs=0.015)


def test_tilts_bring_means_near() -> None:
    """By the middles of bins the mean is more than 10 % too high; the counts of neighbours leave 4 %."""
    values, of = incomes(100_000), attribute()
    counts = np.histogram(values, [*EDGES, 2_000_000])[0].astype(np.float64)
    lows, highs = of.bin_ends()
    uniform = float((counts * (lows + highs) / 2).sum()) / len(values)
    tilts = tilts_of(of, counts, np.full(len(counts), 20.0))
    tilted = float((counts * means_of(of, tilts)).sum()) / len(values)
    assert uniform > 1.1 * values.mean()
    assert tilted == pytest.approx(values.mean(), rel=0.04)
    assert tilts[0] == UNIT  # zeros are a point


def test_noise_tilts_nothing() -> None:
    counts = np.random.default_rng(0).normal(0, 50, len(EDGES))
    for deviation in (50.0, np.inf):
        tilts = tilts_of(attribute(), counts, np.full(len(counts), deviation))
        assert np.abs(np.log(np.array(tilts) / UNIT)).max() < 0.6
    assert set(tilts) == {UNIT}
    assert set(tilts_of(attribute(bins={"edges": [0, 1]}), np.array([5.0, 500.0]), np.ones(2))) == {UNIT}
