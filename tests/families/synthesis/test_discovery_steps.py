"""What a synthesis finds before it learns: one record is in one cell of each histogram."""

import math
from collections import Counter
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of
from hypothesis import given
from hypothesis import strategies as st

from dpdist.data.arrow import ArrowRecords
from dpdist.data.inputs import table_source
from dpdist.data.table import open_table
from dpdist.data.texts import weigh_values
from dpdist.families.base import values as base_values
from dpdist.families.base.calibration import least_above, tail
from dpdist.families.base.values import named_values
from dpdist.families.synthesis import discovery_steps, ranges
from dpdist.families.synthesis.discovery import Discovery
from dpdist.families.synthesis.discovery_steps import count_multiples
from dpdist.families.synthesis.ranges import Range
from dpdist.privacy.arrays import WEIGHT, weight_of
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import DAY, text_of
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import undeclared

SCHEMA = Schema.model_validate(
    {"attributes": [{"name": "v", "kind": "number", "bounds": [0, 9], "bins": {"count": 3}}]}
)


def counted(array: pa.Array, dated: list[str] | None = None) -> list[int]:
    table = pa.table({"v": array})
    found = count_multiples(ArrowRecords(SCHEMA, table, [(0, len(table))], "0"), 0, ["v"], dated or [])
    return [int(count) for count in found[0]]


@given(st.from_regex(r"\A-?[0-9]{1,3}\.?[0-9]{0,3}\Z") | st.text(max_size=6))
def test_a_record_counts_at_most_once(text: str) -> None:
    assert sum(counted(pa.array([text]))) <= 1


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["5", "5.", "5.0", "5.00", "-3"], [5, 0]),
        (["5.5", "5.05", "5.50", "-0.25"], [0, 4]),
        (["5.125", "", "1e5", ".5", "x"], [0, 0]),
    ],
)
def test_whole_numbers_and_cents(texts: list[str], expected: list[int]) -> None:
    assert counted(pa.array(texts)) == expected


def test_floats_are_read_as_they_are_written() -> None:
    assert counted(pa.array(np.array([1.0, 2.5, 2.25, 1 / 3]))) == [1, 2]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "Asia/Tokyo"), pa.string()], ids=str
)
def test_moments_that_begin_a_day_are_counted(kind: pa.DataType) -> None:
    texts = pa.array(["2020-01-01", "1969-12-31 00:00:00", "2020-01-01 00:00:01", "2020-01-01 10:00", None])
    moments = texts.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(kind) and kind.tz:
        moments = pc.assume_timezone(moments, kind.tz)
    assert counted(texts if kind == pa.string() else moments.cast(kind), ["v"]) == [2, 0]


@pytest.mark.parametrize("width", [20.0, 32.0, 368.0, 4_000.0])
def test_bins_of_moments_begin_with_periods_and_stay_in_their_order(width: float) -> None:
    for kind, unit in (("date", 1), ("datetime", DAY)):
        lows = [ranges._short((k * width - 3_000) * unit, width * unit, kind) for k in range(8)]
        shown = [text_of(round(low), kind) for low in lows]  # type: ignore[arg-type]
        assert np.all(np.abs(np.array(lows) / unit - np.arange(8) * width + 3_000) <= width / 2)
        assert all(text[5:10] == "01-01" for text in shown) or width < 368
        assert all(text[8:10] == "01" for text in shown) or width < 32
        assert all(text[10:] in ("", " 00:00:00") for text in shown)
    assert text_of(round(ranges._short(1e9, 90.0, "datetime")), "datetime") == "2001-09-09 01:47:00"


NAMES = ("one", "two")
ATTRIBUTES = [
    *(undeclared(name, "text") for name in NAMES),
    undeclared("whole", "integer"),
    undeclared("real", "number"),
    undeclared("at", "datetime"),
    undeclared("sure", "integer", nullable=False),
]
VALUES = {
    "one": ["a", "b", "c", None],
    "two": ["x", "y", None],
    "whole": [0, 300, None],
    "real": ["5.00", "0.1", None],
    "at": [datetime(2020, 1, 1), datetime(2020, 1, 2, 10)],
    "sure": [3, 300],
}
FIRST = [(0, "a", 50), (1, "x", 50)]  # what is named at first


def measured(
    records: list[tuple[Any, ...]], folder: Path, monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any]
) -> tuple[dict[str, tuple[Any, float]], Discovery]:
    """The exact counts of each histogram and their deviations; what is seen of them is the `outcome`, once set."""
    spec = load(
        {
            "kind": "synthesis",
            "name": "found",
            "dataset": "people",
            "schema": {"attributes": ATTRIBUTES},
            "discover": {"columns": list(VALUES)},
            "data": {"path": str(folder / "t.parquet"), "minimum_records": 1, "extra_columns": "ignore"},
            "output": {"path": str(folder / "out")},
            "privacy": {"epsilon": 8, "delta": 1e-3},
        }
    )
    columns = zip(VALUES, zip(*records, strict=True), strict=True)
    types = {"whole": pa.int64(), "sure": pa.int64(), "at": pa.timestamp("us", "Europe/Berlin")}
    made = {name: pa.array(values, types.get(name, pa.string())) for name, values in columns}
    pq.write_table(pa.table(made), folder / "t.parquet")
    found: dict[str, tuple[Any, float]] = {}

    def seen(counts: Any, *, how: tuple[str, float], noise: Any, name: str) -> Any:
        found[name] = np.array(counts), how[1]
        return outcome.setdefault(name, np.array(counts) * 100)

    def named(attempt: Any, table: Any, names: Any, how: tuple[str, float, int], *, known: Any = None) -> Any:
        values, absent = named_values(attempt, table, names, (how[0], how[1], 0), known=known)
        return (FIRST if known is None else values), absent

    monkeypatch.setattr(discovery_steps, "noisy_counts", seen)
    monkeypatch.setattr(base_values, "noisy_counts", seen)
    monkeypatch.setattr(discovery_steps, "named_values", named)
    monkeypatch.setattr(discovery_steps, "_again", lambda attempt, *_: attempt.plan.discovery.again)
    attempt = attempt_of(spec, folder)
    attempt.open = lambda schema: open_table(table_source(spec), schema)
    discovery_steps._found(attempt)
    return found, attempt.plan.discovery


def test_one_record_moves_all_histograms_by_what_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    kinds = [(*kind, VALUES["sure"][k // 2 % 2]) for k, kind in enumerate(product(*list(VALUES.values())[:-1]))]
    records = [kinds[i] for i in rng.integers(0, len(kinds), 40)]
    outcome: dict[str, Any] = {}
    before, noise = measured(records, tmp_path, monkeypatch, outcome)
    assert sum(name.startswith("again/") for name in before) == 3, "b, c and y are not named at first"
    charged = noise.spent(2, 1 + 2 * 4, 2) + noise.again**2  # a step is asked of the number and the moment
    most = 0.0
    for record in (kind for kind in kinds if kind[0] != "c" or kind[1] == "y"):  # alone, c moves what b does
        after, _ = measured([*records, record], tmp_path, monkeypatch, outcome)
        assert after.keys() == before.keys()
        moved = sum(float(((after[name][0] - before[name][0]) ** 2).sum()) / before[name][1] ** 2 for name in before)
        assert moved <= charged
        most = max(most, moved)
    assert most >= 0.99 * charged


@given(st.lists(st.tuples(*[st.sampled_from(["a", "b", "long", "", None])] * 5), min_size=1, max_size=6))
def test_a_record_has_one_weight_in_all(records: list[tuple[str | None, ...]]) -> None:
    """What a record adds to all sums has a norm of `WEIGHT` at most, and nearly that if one of its values is new."""
    known = [["a"], ["a", "b"], [], [], ["long"]]
    arrays = [pa.array(values, pa.large_string()) for values in zip(*records, strict=True)]

    def sums(batches: list[list[pa.Array]]) -> Counter[tuple[int, str]]:
        tables = weigh_values(batches, known)
        return Counter({(i, row["value"]): row["count"] for i, t in enumerate(tables) for row in t.to_pylist()})

    whole = sums([arrays])
    assert whole == sums([[array[:2] for array in arrays], [array[2:] for array in arrays]])
    without = sums([[array[1:] for array in arrays]])
    moved = sum((whole[cell] - without[cell]) ** 2 for cell in whole)
    others = [value for value, names in zip(records[0], known, strict=True) if value and value not in names]
    assert moved <= WEIGHT**2
    assert moved >= 0.99 * WEIGHT**2 * bool(others)


def chance(scale: float, count: int) -> float:
    return tail("gaussian", scale, count)


@pytest.mark.parametrize("texts", [1, 2, 9, 40])
def test_the_values_of_one_record_are_named_with_the_stated_probability(texts: int) -> None:
    """All outcomes of both namings for a table of one record, all of whose values no other has."""
    lost, first = 2.5e-4, 30.0
    at_first = chance(first, (named := least_above(partial(chance, first), lost / 2 / texts) + 1) - 1)
    noise = Discovery(first, 1.0, 1.0, named, lost, again=0.1)
    scale, again = noise.naming(0.1, texts)
    by_number = {t: 1 - (1 - chance(scale, again - weight_of(t))) ** t for t in range(1, texts + 1)}
    total = 0.0
    for number in range(texts + 1):  # without a name after the first naming
        of_these = math.comb(texts, number) * (1 - at_first) ** number * at_first ** (texts - number)
        total += of_these * (by_number[number] if number == texts and number else 1.0)
    assert total <= lost
    assert max(by_number.values()) >= 0.99 * lost / 2, "the second naming has no slack"


def test_more_is_spent_on_naming_where_more_has_no_name() -> None:
    noise = Discovery(60.0, 1.0, 1.0, 400, 2.5e-10, again=0.13)
    parts = [noise.unnamed(mu, 9, 4.0) for mu in (0.02, 0.05, 0.1, 0.13)]
    assert parts == sorted(parts, reverse=True)
    assert parts[0] == 1.0
    assert 0 < parts[-1] < 0.6
    assert noise.unnamed(0.1, 9, 1.0) < noise.unnamed(0.1, 9, 8.0)


@given(
    st.sampled_from(["integer", "number", "date", "datetime", (0, 5_000), (0.0, 1e-9)]),
    st.integers(0, 2**32),
    st.data(),
)
def test_what_is_found_is_valid_whatever_the_noise_and_the_data(kind: Any, seed: int, data: st.DataObject) -> None:
    """Far values, none at all, and noise of any size; fine cells of nothing but noise."""
    draw = np.random.default_rng(seed)
    given_ = Attribute.model_validate(undeclared("v", kind, bins=64))
    noise = Discovery(data.draw(st.floats(1, 300)), data.draw(st.floats(1, 300)), data.draw(st.floats(1, 300)), 1, 0, 0)
    rows = data.draw(st.sampled_from([0, 1, 1_000, 10**6]))
    first = discovery_steps._groups(given_, rows / noise.cells)
    cells = np.zeros(len(first) + 1, np.int64)
    for _ in range(data.draw(st.integers(0, 3))):
        cells[data.draw(st.integers(0, len(first)))] += rows
    cells += np.rint(draw.normal(0, noise.cells, len(cells))).astype(np.int64)
    steps = np.array([data.draw(st.sampled_from([0, rows])), 0]) + np.rint(draw.normal(0, noise.steps, 2)).astype(int)
    found = Range.of(given_, first, cells, steps, rows=rows, noise=noise)
    if not found.is_wide:
        found.attribute()
        return
    fine = found.refined()
    counts = np.rint(draw.normal(0, noise.cells, fine.cardinality)).astype(np.int64)
    made = found.attribute(counts[: fine.declared])
    assert made.bounds is not None
    assert np.isfinite(made.bounds).all()


def test_bounds_of_a_small_table_cut_few_records() -> None:
    """Of 1,338 ages, with the noise of epsilon 1, few are cut, and their share is seen within five deviations."""
    draw, shares = np.random.default_rng(0), []
    noise, given_ = Discovery(35.0, 44.0, 88.0, 1, 0, 0), Attribute.model_validate(undeclared("v", "integer"))
    ages = draw.integers(18, 65, 1_338)

    def noisy(attribute: Attribute, groups: Any, held: Any, absent: int) -> Any:
        place = np.searchsorted(attribute.bin_edges, held, side="right") - 1
        counts = np.add.reduceat(np.bincount(place, minlength=attribute.declared), groups)
        return np.append(counts, absent) + np.rint(draw.normal(0, noise.cells, len(groups) + 1)).astype(int)

    for _ in range(100):
        first = discovery_steps._groups(given_, len(ages) / noise.cells)
        found = Range.of(given_, first, noisy(given_, first, ages, 0), np.zeros(1, int), rows=len(ages), noise=noise)
        made, told = found.attribute(), found.outside(len(ages))
        if found.is_wide:
            held, fine = ages[(ages >= found.edges[0]) & (ages < found.edges[-1])], found.refined()
            counts = noisy(fine, np.arange(fine.declared), held, len(ages) - len(held))
            made, told = found.attribute(counts[:-1]), found.outside(len(ages), counts)
        assert made.bounds is not None
        shares.append(float(((ages < made.bounds[0]) | (ages > made.bounds[1])).mean()))
        share, deviation = told["v"]
        assert shares[-1] <= share + 5 * deviation
    assert np.mean(shares) < 0.06
