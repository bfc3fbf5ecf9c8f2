"""Questions over time."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from published import ROWS, published
from releases import KEY, table
from scipy.stats import binom
from typer.testing import CliRunner

import dpdist
from dpdist.cli import app
from dpdist.errors import DataNotFound, SpecError
from dpdist.inference.answers import Quantity, infer
from dpdist.inference.published import Published
from dpdist.inference.series import Series, _measured, joint_levels, told
from dpdist.model.account import Measurements, NoisyTable
from dpdist.model.one_way import combine
from dpdist.spec.series import times_of

PERIODS = ("2026-01", "2026-02", "2026-03")
_SURE = 5  # deviations, within which an estimate is for nearly any key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three releases of one table: nothing changes."""
    top = tmp_path_factory.mktemp("series")
    (top / "made").mkdir()
    for k, name in enumerate(PERIODS):
        own = tmp_path_factory.mktemp(name)
        published(own, fixed_key=f"{k}{KEY[1:]}", synthesis={"records": 500}).rename(top / "made" / name)
    return top / "made"


def test_questions_over_time_are_answered_for_all_periods_together(folder: Path) -> None:
    series = Series.open(folder)
    assert series.periods == PERIODS
    true, where = table(ROWS)["region"].to_pylist().count("north"), "region = 'north'"
    levels = series.answer(f"count where {where}")
    assert [one.question[-9:] for one in levels] == [f"[{p}]" for p in PERIODS]
    for level, release in zip(levels, series.releases, strict=True):
        assert abs(float(level.estimate) - true) < _SURE * level.deviation  # type: ignore[operator]
        assert level.deviation < 1.01 * infer(release, f"count where {where}").deviation  # type: ignore[operator]
    frame = dpdist.open_series(folder).frame(f"count where {where}")
    assert frame.index.tolist() == list(PERIODS)
    assert frame["estimate"].tolist() == [level.estimate for level in levels]
    assert (frame["low"] < frame["high"]).all()
    (change,) = series.answer(f"change of count where {where} between 2026-01 and 2026-03")
    north = series.releases[0].schema.attributes[0].values.index("north")  # type: ignore[union-attr]
    apart = [release.measured((0,))[1][north] for release in series.releases]  # type: ignore[index]
    assert abs(float(change.estimate)) < _SURE * change.deviation  # type: ignore[operator]
    assert change.deviation < np.hypot(apart[0], apart[2])
    (total,) = series.answer(f"sum of count where {where}")
    assert total.estimate == pytest.approx(sum(float(level.estimate) for level in levels))
    assert abs(float(total.estimate) - 3 * true) < _SURE * total.deviation  # type: ignore[operator]
    (average,) = series.answer(f"average of share where {where} from 2026-01 to 2026-02")
    assert average.estimate == pytest.approx(true / ROWS, abs=0.02)
    (trend,) = series.answer(f"trend of share where {where}")
    assert abs(float(trend.estimate)) < _SURE * trend.deviation  # type: ignore[operator]
    moving = series.answer(f"moving average of share where {where} over 2")
    assert [one.question[-9:] for one in moving] == [f"[{p}]" for p in PERIODS[1:]]
    assert moving[0].estimate == pytest.approx(average.estimate)
    assert moving[0].deviation == pytest.approx(average.deviation)


def _redrawn(release: Published, codes: list[np.ndarray], rng: np.random.Generator) -> Published:
    """A release of the same table with other noise in all that it measured."""
    known, tables = release.model.measurements, []
    for one in known.tables:
        columns = [known.maps[a][codes[known.source[a]]] if one.coded else codes[a] for a in one.attributes]
        exact = np.bincount(np.ravel_multi_index(columns, one.shape), minlength=one.counts.size)
        noise = np.rint(rng.normal(0, one.deviation, exact.size)).astype(np.int64)
        tables.append(replace(one, counts=exact + noise))
    steps = [[t for t in tables if t.step == step] for step in sorted({t.step for t in tables if t.step[:3] == "one"})]
    found = Published(release.store, release.manifest)
    found.__dict__["model"] = replace(release.model, measurements=replace(known, tables=tuple(tables)))
    found.__dict__["records"] = combine(
        [[t.counts for t in own] for own in steps], [np.array([t.deviation for t in own]) for own in steps]
    ).records
    return found


def test_intervals_cover_as_often_as_they_say(folder: Path) -> None:
    """Over noise that is drawn again, each question misses no more often than 95 % intervals may."""
    whole, rng, keys, where = Series.open(folder), np.random.default_rng(7), 100, "region = 'north'"
    columns, schema = table(ROWS), whole.releases[0].schema
    values = {a.name: np.array(columns[a.name].to_pylist()) for a in schema.attributes}
    codes = [
        values[a.name] // 5 if a.name == "age" else np.array([a.values.index(x) for x in values[a.name].tolist()])
        for a in schema.attributes
    ]
    north = int((values["region"] == "north").sum())
    truths = {"": north, "change of ": 0, "sum of ": 3 * north, "trend of ": 0, "average of ": north}
    asked = {f"{kind}count where {where}": truth for kind, truth in truths.items()} | {"sum of count": 3 * ROWS}
    missed = dict.fromkeys(asked, 0)
    for _ in range(keys):
        series = replace(whole, releases=tuple(_redrawn(release, codes, rng) for release in whole.releases))
        for question, truth in asked.items():
            answer = series.answer(question)[-1]
            missed[question] += not answer.low < truth < answer.high  # type: ignore[operator]
    assert max(missed.values()) <= binom.isf(1e-3, keys, 0.05), missed


def test_a_trend_counts_months_that_are_not_there(folder: Path) -> None:
    """Its slope is that of least squares over the calendar, for a month more."""
    series = replace(Series.open(folder), periods=("2026-01", "2026-02-v2", "2026-06"))
    (trend,) = series.answer("trend of count where region = 'north'")
    levels = [float(one.estimate) for one in series.answer("count where region = 'north'")]
    assert trend.estimate == pytest.approx(np.polyfit([1, 2, 6], levels, 1)[0])
    quarters = times_of(["2025-q4", "2026-q1-v2", "2026-q3"])
    assert [quarters, times_of(["2026-02", "other"])] == [[8104, 8105, 8107], [0, 1]]


def test_no_record_meets_a_condition_that_contradicts_itself(folder: Path) -> None:
    series, never = Series.open(folder), "region = 'north' and region = 'south'"
    for question in (f"count where {never}", f"share where {never}", f"sum of count where {never}"):
        assert {(one.estimate, one.low, one.high) for one in series.answer(question)} == {(0.0, 0.0, 0.0)}


def _without(release: Published, attributes: tuple[int, ...]) -> Published:
    """A release that did not measure a table."""
    known = release.model.measurements
    kept = [t for t in known.tables if attributes != tuple(known.source[a] if t.coded else a for a in t.attributes)]
    found = Published(release.store, release.manifest)
    found.__dict__["model"] = replace(release.model, measurements=replace(known, tables=tuple(kept)))
    return found


def test_a_period_that_did_not_measure_a_table_lies_between_the_others(folder: Path) -> None:
    whole, where = Series.open(folder), "region = 'north'"
    middle = _without(whole.releases[1], (0,))
    part = replace(whole, releases=(whole.releases[0], middle, whole.releases[2]))
    true = table(ROWS)["region"].to_pylist().count("north") / ROWS
    before, found = (series.answer(f"share where {where}") for series in (whole, part))
    assert before[1].deviation < found[1].deviation < 5 * before[1].deviation  # type: ignore[operator]
    assert abs(float(found[1].estimate) - true) < _SURE * found[1].deviation  # type: ignore[operator]
    assert min(float(found[k].estimate) for k in (0, 2)) <= found[1].estimate  # type: ignore[operator]
    assert found[1].estimate <= max(float(found[k].estimate) for k in (0, 2))  # type: ignore[operator]
    nowhere = replace(whole, releases=tuple(_without(one, (0,)) for one in whole.releases))
    assert "errors of the periods are taken to add up" in nowhere.answer(f"trend of share where {where}")[0].note


def test_sums_and_averages_over_a_gap_name_it(folder: Path) -> None:
    whole = Series.open(folder)
    part = replace(whole, periods=("2026-01", "2026-03", "2026-06-v2"))
    assert [one.note for one in part.answer("moving average of count over 2")] == [
        "left out as missing: 1 period",
        "left out as missing: 2 periods",
    ]
    (total,) = part.answer("sum of count where region = 'north'")
    assert total.note == "left out as missing: 3 periods"
    assert "missing" not in "".join(one.note for one in [*whole.answer("sum of count"), *part.answer("count")])
    assert "2026-06-v2" in told(part.answer("moving average of count over 2"))


def test_all_records_are_as_many_as_the_releases_say(folder: Path) -> None:
    series = Series.open(folder)
    (total,) = series.answer("sum of count")
    assert total.estimate == sum(release.records for release in series.releases)
    assert abs(float(total.estimate) - 3 * ROWS) < _SURE * total.deviation  # type: ignore[operator]
    assert [(one.estimate, one.low, one.high) for one in series.answer("share")] == [(1.0, 1.0, 1.0)] * 3
    assert repr(series).startswith("A series of 3 releases\nPeriods     2026-01 to 2026-03\n")


def test_errors_of_shares_hold_those_of_the_number_of_records() -> None:
    """Of a value that most records have, in a table that is measured as finely as the number of records, and not."""
    rng, condition = np.random.default_rng(5), SimpleNamespace(attributes=(1,), cells=lambda *_: np.arange(4) < 3)
    exact = [np.full(50, 200), np.array([5_000, 2_000, 2_000, 1_000])]
    asked = Quantity("share", "share", condition)  # type: ignore[arg-type]
    schema = SimpleNamespace(cardinalities=(50, 4), forbidden=())
    for deviations in ((5.0, 5.0), (20.0, 2.0), (1.0, 30.0)):
        away = []
        for _ in range(2000):
            noisy = [x + rng.normal(0, sigma, x.size) for x, sigma in zip(exact, deviations, strict=True)]
            tables = tuple(
                NoisyTable("one-way", (i,), False, sigma, x.shape, x)  # type: ignore[arg-type]
                for i, (x, sigma) in enumerate(zip(noisy, deviations, strict=True))
            )
            measured = Measurements(tables, (0, 1), (np.arange(50), np.arange(4)))
            records = combine([noisy], [np.array(deviations)]).records
            release = SimpleNamespace(
                schema=schema, records=records, model=SimpleNamespace(measurements=measured),
                measured=lambda s, of=measured: of.combined(s, (4,)),
            )  # fmt: skip
            share, variance = _measured(release, asked)  # type: ignore[arg-type, misc]
            away.append((share - 0.9) / np.sqrt(variance))
        assert 0.92 < np.std(away) < 1.08


@pytest.mark.parametrize("unmeasured", [None, 2])
def test_errors_of_counts_hold_those_of_the_number_of_records(unmeasured: int | None) -> None:
    """Where most records have a value and the levels lend each other their errors; a period lacks the table."""
    rng, condition = np.random.default_rng(6), SimpleNamespace(attributes=(0,), cells=lambda *_: np.arange(4) < 3)
    exact, deviations = [np.array([8_000, 4_000, 4_000, 4_000]), np.full(50, 400)], (20.0, 20.0)
    asked = Quantity("count", "count", condition)  # type: ignore[arg-type]
    schema = SimpleNamespace(cardinalities=(4, 50), forbidden=())
    away = []
    for _ in range(400):
        releases = []
        for period in range(4):
            noisy = [x + rng.normal(0, sigma, x.size) for x, sigma in zip(exact, deviations, strict=True)]
            tables = tuple(
                NoisyTable("one-way", (i,), False, sigma, x.shape, x)  # type: ignore[arg-type]
                for i, (x, sigma) in enumerate(zip(noisy, deviations, strict=True))
            )
            measured = Measurements(tables, (0, 1), (np.arange(4), np.arange(50)))
            own = None if period == unmeasured else measured.combined((0,), (4,))
            records = combine([noisy], [np.array(deviations)]).records
            releases.append(
                SimpleNamespace(
                    schema=schema,
                    records=records,
                    model=SimpleNamespace(measurements=measured),
                    measured=lambda _, own=own: own,
                )
            )
        series = Series(("a", "b", "c", "d"), tuple(releases))  # type: ignore[arg-type]
        series.__dict__["_drift"] = SimpleNamespace(
            at_most=lambda spread: (0 * spread, 0 * spread), faster=lambda *_: 1.0
        )
        known = [_measured(release, asked) for release in releases]  # type: ignore[arg-type]
        levels, errors, _ = series._together(asked, np.eye(4), known)
        away.append((levels - 16_000) / errors)
    assert (np.std(away, axis=0) > 0.88).all()
    assert (np.std(away, axis=0) < 1.12).all()


def test_a_plot_has_bands(folder: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = Series.open(folder).plot("share where region = 'north'")
    (line,), (band,) = axes.lines, axes.collections
    assert len(line.get_ydata()) == len(PERIODS)
    (vertices,) = (path.vertices[:, 1] for path in band.get_paths())
    assert vertices.min() < min(line.get_ydata()) < max(line.get_ydata()) < vertices.max()
    pyplot.close(axes.figure)


def test_by_command(folder: Path) -> None:
    for place in (str(folder), f"{folder}/2026-0?"):
        result = CliRunner().invoke(app, ["infer", place, "trend of count", "--json"], catch_exceptions=False)
        (answer,) = json.loads(result.stdout)
        assert answer["question"] == "trend of count"
        assert answer["low"] < answer["estimate"] < answer["high"]
    shown = CliRunner().invoke(app, ["infer", str(folder), "share where region = 'north'"]).stdout.splitlines()
    assert shown[0] == "share where region = 'north', with 95 % intervals"
    assert [line.split()[0] for line in shown[1:]] == list(PERIODS)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("change of count between 2026-01 and 2027-01", "no period '2027-01': the series has 2026-01, 2026-02"),
        ("change of count between 2026-02 and 2026-01", "comes after"),
        ("sum of share", "shares are not summed"),
        ("moving average of share over 4", "over 1 to 3 periods"),
        ("average of share over 2", "a moving average is over"),
        ("change of mean age", "ask for a count or a share"),
    ],
)
def test_questions_that_have_no_answer(folder: Path, question: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Series.open(folder).answer(question)


def test_a_series_has_two_releases_at_least(folder: Path) -> None:
    with pytest.raises(DataNotFound, match="two releases or more"):
        Series.open(f"{folder}/2026-01*")


@pytest.mark.parametrize(("persons", "step"), [(0.0, 0.001), (1.0, 0.0), (0.5, 0.2), (0.0, 25.0)])
def test_joint_levels_cover(persons: float, step: float) -> None:
    """Of levels, changes, sums and trends, with periods of unequal noise; nearer than each period by itself."""
    rng, number, runs = np.random.default_rng(3), 8, 4000
    variances = np.linspace(0.5, 2, number)
    walk = 50 + np.cumsum(rng.normal(0, np.sqrt(step), (runs, number)), axis=1)
    true = walk + rng.normal(0, np.sqrt(persons), walk.shape)
    noisy = true + rng.normal(0, np.sqrt(variances), walk.shape)
    # each level is a sum of the noisy ones, with the same weights for all of them
    sums = [*zip(np.eye(number), np.eye(number), variances.tolist(), strict=True)]
    moves, covariance = joint_levels(sums, persons=persons, step=step)
    first, _ = joint_levels([*zip(np.eye(number), noisy[0], variances, strict=True)], persons=persons, step=step)
    levels = noisy @ moves.T
    assert levels[0] == pytest.approx(first)
    away = np.arange(number) - (number - 1) / 2
    for weights in (np.eye(number)[3], np.eye(number)[5] - np.eye(number)[2], np.ones(number), away / (away @ away)):
        deviation = np.sqrt(weights @ covariance @ weights)
        covered = np.abs((levels - true) @ weights) < 1.96 * deviation
        assert 0.935 < covered.mean() < 0.965
        assert deviation <= np.sqrt(weights**2 @ variances) * 1.001


@pytest.mark.parametrize(("persons", "step"), [(0.0, 0.001), (0.5, 0.2), (0.0, 25.0)])
def test_what_a_quarter_measured_brings_its_months_nearer(persons: float, step: float) -> None:
    rng, weights, runs = np.random.default_rng(4), np.array([0.3, 0.3, 0.4]), 4000
    true = 50 + np.cumsum(rng.normal(0, np.sqrt(step), (runs, 3)), axis=1) + rng.normal(0, np.sqrt(persons), (runs, 3))
    noisy, variances = true + rng.normal(0, 1, true.shape), np.ones(3)
    quarters = true @ weights + rng.normal(0, 0.5, runs)
    model = {"persons": persons, "step": step}
    units = np.eye(4)  # each level is a sum of the noisy numbers, with the same weights for all of them
    months = [*zip(np.eye(3), units[:3], variances.tolist(), strict=True)]
    moves, covariance = joint_levels([*months, (weights, units[3], 0.25)], **model)
    levels = np.column_stack([noisy, quarters]) @ moves.T
    before = joint_levels(months, **model)[1]
    for asked in (np.eye(3)[1], np.eye(3)[2] - np.eye(3)[1], weights):
        deviation = np.sqrt(asked @ covariance @ asked)
        assert 0.935 < (np.abs((levels - true) @ asked) < 1.96 * deviation).mean() < 0.965
        assert deviation <= np.sqrt(asked @ before @ asked) * 1.001
    assert weights @ covariance @ weights < 0.8 * weights @ before @ weights
