"""Releases of statistics: their manifest counts cells, and verification looks at types and numbers."""

import json
import tracemalloc
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from manifests import manifest_of
from pydantic import ValidationError

from dpdist.errors import VerificationFailed
from dpdist.privacy.events import DiscreteLaplace
from dpdist.privacy.guarantee import DifferentialPrivacy
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import MANIFEST, Manifest, publish
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import STATISTICS, arrow_schema, decode, part_name, write_part
from dpdist.publish.tilts import UNIT, means_of, tilts_of, together
from dpdist.publish.verify import read_release, verify
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

SCHEMA = Schema(attributes=(Attribute(name="n", kind="integer", bounds=(0, 3)),))
ATTEMPT = "0123abcd-4567"


def statistics(noisy: list[Any], value: list[Any], schema: pa.Schema = STATISTICS) -> pa.Table:
    texts = [pa.array(["x"] * len(noisy)).dictionary_encode() for _ in range(3)]
    errors = pa.array([1.0] + [None] * (len(noisy) - 1), pa.float64())
    return pa.Table.from_arrays([*texts, pa.array(noisy), pa.array(value), errors], schema=schema)


def released(place: Path, table: pa.Table, **form: Any) -> Manifest:
    store = Store(str(place))
    part = write_part(store, part_name(ATTEMPT, 0), table)
    manifest = manifest_of(
        guarantees=[DifferentialPrivacy(epsilon=1, delta=0, adjacency="add/remove", covers="the whole release")],
        kind="histogram",
        name="one",
        attempt=ATTEMPT,
        created=date(2026, 1, 1),
        parameters={"event": DiscreteLaplace(scale=1.0).to_json()},
        spec_sha256="0" * 64,
        spec={},
        table=SCHEMA,
        form=PartFormat(layout="statistics", **form),
        parts=[part],
    )
    return publish(store, manifest)


def test_cells_are_counted_and_records_are_not_there(tmp_path: Path) -> None:
    manifest = released(tmp_path, statistics([-1.0, 2.5], [0.0, 2.0]), non_negative=True)
    fields = json.loads((tmp_path / MANIFEST).read_bytes())
    assert (fields["cells"], "records" in fields, manifest.counted, manifest.rows) == (2, False, "cells", 2)
    assert fields["format"] == {"layout": "statistics", "non_negative": True, "values": "values", "bins": "uniform"}
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    report = verify(tmp_path)
    assert (report.cells, report.records, report.counted) == (2, 0, "2 cells")
    assert report.to_json()["cells"] == 2
    assert "records" not in report.to_json()
    assert read_release(tmp_path).schema.equals(STATISTICS)
    assert arrow_schema(SCHEMA, PartFormat(layout="statistics")) == STATISTICS


@pytest.mark.parametrize(
    ("noisy", "value", "promise", "column"),
    [
        ([1.0, np.inf], [1.0, 1.0], False, "noisy"),
        ([1.0, np.nan], [1.0, 1.0], False, "noisy"),
        ([1.0, 1.0], [1.0, np.nan], False, "value"),
        ([1.0, 1.0], [1.0, -0.5], True, "value"),
    ],
)
def test_numbers_that_are_no_statistics_are_refused(
    tmp_path: Path, noisy: list[float], value: list[float], promise: bool, column: str
) -> None:
    released(tmp_path, statistics(noisy, value), non_negative=promise)
    with pytest.raises(VerificationFailed, match=f"part-00000.parquet: column '{column}' holds values outside"):
        verify(tmp_path)


def test_negative_values_are_fine_where_nothing_is_promised(tmp_path: Path) -> None:
    released(tmp_path, statistics([-1.0], [-1.0]))
    assert verify(tmp_path).cells == 1


def test_other_columns_are_refused(tmp_path: Path) -> None:
    other = pa.schema([*list(STATISTICS)[:4], pa.field("value", pa.int64(), nullable=False), STATISTICS[5]])
    released(tmp_path, statistics([1.0], [1], other))
    with pytest.raises(VerificationFailed, match="part-00000"):
        verify(tmp_path)


def test_records_and_cells_exclude_each_other(tmp_path: Path) -> None:
    manifest = released(tmp_path, statistics([1.0], [1.0]))
    fields = manifest.model_dump()
    for changes in ({"cells": None}, {"records": 1}, {"cells": 2}, {"format": PartFormat()}):
        with pytest.raises(ValidationError, match="cells"):
            Manifest(**{**fields, **changes})


# --- Numbers lie within wide bins as the counts of the neighbouring bins say, and means of bins follow


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


def test_numbers_that_follow_each_other_are_drawn_together() -> None:
    """Couples, and then a child that is at random: gaps come near to those before binning, shares stay uniform."""
    random, households, bins, width = np.random.default_rng(0), 40_000, 12, 5
    first = random.uniform(0, bins * width, households)
    second = np.abs(first + random.normal(0, 4, households))
    second = np.minimum(second, 2 * bins * width - second)
    ages = np.stack([first, second, random.uniform(0, bins * width, households)], axis=1)
    codes = (ages / width).astype(np.uint8)
    codes[::10, 1] = bins  # missing: neither drawn with the first nor the third with it
    follows = np.tile([False, True, True], households)
    words = random.integers(0, 2**64, 3 * households, dtype=np.uint64)
    moved = together(codes.ravel(), bins, follows, words).reshape(-1, 3)
    shares = [(w >> np.uint64(11)) * 2.0**-53 for w in (words.reshape(-1, 3), moved)]
    alone, gaps = shares
    known = codes[:, 1] < bins
    for share in gaps.T:
        counts = np.histogram(share, 20, (0, 1))[0]
        assert np.abs(counts - households / 20).max() < 6 * (households / 20) ** 0.5
    real, uniform, drawn = (
        np.abs(np.diff(numbers[known, :2])).mean()
        for numbers in (ages, width * (codes + alone), width * (codes + gaps))
    )
    assert uniform > 1.15 * real
    assert drawn - real < 0.5 * (uniform - real)
    assert np.abs(alone - gaps)[~known].max() < 1e-12
    assert np.corrcoef((codes + gaps)[known, 1:].T)[0, 1] == pytest.approx(0, abs=0.03)
    assert np.corrcoef(gaps[known, 1:].T)[0, 1] == pytest.approx(0, abs=0.03)


def test_rows_are_moved_in_parts_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part begins where no row follows, be it long after a part is full; a part takes memory, the others none."""
    random, rows = np.random.default_rng(1), 100_000
    codes, words = random.integers(0, 13, rows).astype(np.uint8), random.integers(0, 2**64, rows, dtype=np.uint64)
    follows = random.random(rows) < 0.7
    follows[40_000:43_500] = True
    tracemalloc.start()
    found = together(codes, 12, follows, words)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * rows
    for size in (3_000, rows):
        monkeypatch.setattr("dpdist.publish.tilts._ROWS", size)
        assert (together(codes, 12, follows, words) == found).all()


@pytest.mark.parametrize("bins", [1, 300])
def test_few_or_many_bins_are_drawn_alone(bins: int) -> None:
    words = np.arange(8, dtype=np.uint64) << np.uint64(60)
    codes = np.zeros(8, np.uint16)
    moved = together(codes, bins, np.arange(8) % 2 == 1, words)
    assert np.abs((moved >> np.uint64(11)) - (words >> np.uint64(11)).astype(np.float64)).max() <= 2
    assert together(codes[:0], bins, codes[:0] == 1, words[:0]).size == 0
