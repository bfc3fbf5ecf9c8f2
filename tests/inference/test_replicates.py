"""Replicate weights: what they say of the errors of records, and what R's survey package makes of them."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.csv as pa_csv
import pytest
from needs import left_out, need
from published import published
from releases import KEY, table
from typer.testing import CliRunner

from dpdist.accuracy.intervals import CellErrors
from dpdist.cli import app
from dpdist.errors import SpecError
from dpdist.inference.comparisons import answer, by_replicates, mean
from dpdist.inference.perturbation import MOST_ATTRIBUTES, largest_error
from dpdist.inference.published import Published
from dpdist.inference.replicates import Replicates, make_replicates
from dpdist.spec.schema import Schema

QUESTIONS = (
    "count where employed = 'yes'",
    "mean score where sex = 1",
    "count where employed = 'yes' over count where sex = 1",
    "regression score on employed = 'yes', sex = 1",
    "logistic regression employed = 'yes' on score, sex = 1",
)
DOCUMENT = Path(__file__).parents[2] / "docs" / "inference.md"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published.open(published(tmp_path_factory.mktemp("replicates"), fixed_key=KEY))


@pytest.fixture(scope="module")
def replicates(opened: Published) -> Replicates:
    return make_replicates(opened, 80)


def test_weights_are_of_the_table_and_positive(opened: Published, replicates: Replicates) -> None:
    assert replicates.ratios.shape == (2_500, 80)
    assert replicates.ratios.min() > 0
    found = replicates.to_arrow()
    assert found.column_names[:5] == list(opened.schema.names)
    assert found["weight"].to_numpy().sum() == pytest.approx(opened.records)
    assert make_replicates(opened, 80).to_arrow().equals(found)
    assert not make_replicates(opened, 80, seed=1).to_arrow().equals(found)
    with pytest.raises(SpecError, match="40 to 100"):
        make_replicates(opened, 5)


def test_a_notebook_shows_a_line(replicates: Replicates) -> None:
    assert re.fullmatch(r"Replicates\([\d,]+ records, 80 replicates, fay=0\.\d+\)", repr(replicates))


def test_deviations_are_as_large_as_errors(replicates: Replicates) -> None:
    """Of all shares of one and two values: the errors of one release, beside the deviations of its replicates."""
    real, names = table(6_000).to_pandas(), ("region", "employed", "sex")
    ratios = []
    for name in names:
        for value in real[name].unique():
            text = f"'{value}'" if isinstance(value, str) else value
            for score in range(8):
                (found,) = by_replicates(replicates, f"share where {name} = {text} and score = {score}")
                truth = float(((real[name] == value) & (real["score"] == score)).mean())
                if truth > 0.01:
                    ratios.append((found.estimate - truth) / found.deviation)
    assert len(ratios) > 40
    # errors of cells may be well below those of a simple random sample, which no deviation of a replicate is
    assert 0.25 < np.sqrt(np.mean(np.square(ratios))) < 1.5


def test_differences_ratios_and_regressions(opened: Published) -> None:
    real = table(6_000).to_pandas()
    yes = real["employed"] == "yes"
    truths = {
        "mean score where employed = 'yes' minus mean score where employed = 'no'": real["score"][yes].mean()
        - real["score"][~yes].mean(),
        "count where employed = 'yes' over count where employed = 'no'": yes.sum() / (~yes).sum(),
    }
    for question, truth in truths.items():
        (found,) = answer(opened, question)
        assert abs(found.estimate - truth) <= 3 * found.deviation
        assert found.low < found.estimate < found.high < found.low + 1
    constant, slope = answer(opened, "regression score on employed = 'yes'")
    assert slope.question.endswith(": employed = 'yes'")
    assert abs(slope.estimate - next(iter(truths.values()))) <= 3 * slope.deviation
    assert constant.estimate > 0
    found, _ = answer(opened, "logistic regression employed = 'yes' on score")
    assert "not reliable" in found.note


def test_values_of_which_no_record_was_released_are_in_the_interval(
    opened: Published, replicates: Replicates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean at the end of its domain and a share of 0 are as unsure as the cells that were not released."""
    monkeypatch.setattr(Published, "measured", lambda *_: None)
    place = opened.schema.names.index("score")
    codes = [np.zeros_like(column) if i == place else column for i, column in enumerate(replicates.codes)]
    alone = replace(replicates, codes=codes)
    errors = opened.errors
    counts = np.array([len(codes[0]), *[0] * 7])
    deviations = errors.half_width((place,), counts)[1:] / 1.96 / opened.records
    for question, least in {
        "mean score": np.sqrt(((np.arange(1, 8) * deviations) ** 2).sum()),
        "share where score = 3": deviations[2],
        "share where score = 3 minus share where score = 2": np.hypot(deviations[1], deviations[2]),
        "share where score = 3 over share where score = 0": deviations[2],
    }.items():
        (found,) = by_replicates(alone, question)
        assert found.estimate == 0
        assert found.deviation == pytest.approx(least, rel=1e-9), question
        assert found.low == 0 or "minus" in question
        assert found.high > 1.9 * least


def test_a_mean_counts_the_noise_of_rare_values(opened: Published, replicates: Replicates) -> None:
    """Noise is equal in all cells of a table, and replicates move the weights of each by a share of its own."""
    place, errors = opened.schema.names.index("age"), opened.errors
    column = np.zeros_like(replicates.codes[place])
    column[::500] = 19
    codes = [column if i == place else other for i, other in enumerate(replicates.codes)]
    alone, counts = replace(replicates, codes=codes), np.bincount(column, minlength=20)
    ages = opened.bin_means["age"]
    slopes = (ages - ages @ counts / counts.sum()) / opened.records
    measured, noise = opened.model.measurements.combined((place,), (20,))
    deviations = errors.half_width((place,), counts) / 1.96
    away = np.hypot(counts * replicates.weight - measured, noise)  # what the noisy table knows better
    deviations = np.where(noise < deviations, away, deviations)
    least = np.sqrt(((deviations * slopes) ** 2).sum())
    unmoved = replace(alone, ratios=np.ones_like(alone.ratios[:, :1]))
    (found,) = by_replicates(unmoved, "mean age")
    assert found.deviation == pytest.approx(least, rel=1e-9)


def test_a_mean_is_that_of_its_noisy_table_where_that_is_nearer(
    opened: Published, replicates: Replicates, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, ages = opened.schema.names.index("age"), opened.bin_means["age"]
    noisy, noise = opened.measured((place,))
    estimate = noisy @ ages / noisy.sum()
    deviation = np.sqrt((((ages - estimate) * noise) ** 2).sum()) / noisy.sum()
    zeros = [np.zeros_like(column) if i == place else column for i, column in enumerate(replicates.codes)]
    moved = replace(replicates, codes=zeros)  # what the records have wrong is in no replicate
    found = mean(moved, "mean age")
    assert (found.estimate, found.deviation) == pytest.approx((estimate, deviation))
    assert found.high - found.low == pytest.approx(2 * 1.96 * deviation, rel=1e-3)
    # where the number of records is hardly known, its noise is in both ends: at each the sum around it is as unsure
    few = np.full(20, noisy.sum() / 7 / np.sqrt(20))
    monkeypatch.setattr(Published, "measured", lambda *_: (noisy, few))
    monkeypatch.setattr(Replicates, "multiple", lambda _: np.inf)
    found = mean(moved, "mean age")
    for end in (found.low, found.high):
        away = ages - end
        assert abs(noisy @ away) == pytest.approx(1.96 * few[0] * np.sqrt((away**2).sum()), rel=1e-9)
    assert found.high - found.estimate != pytest.approx(found.estimate - found.low, rel=1e-2)
    monkeypatch.undo()
    for factor in (20, np.inf):  # a table with more noise, or with cells that were measured together with others only
        monkeypatch.setattr(Published, "measured", lambda *_, factor=factor: (noisy, noise * factor))
        assert [mean(replicates, "mean age")] == by_replicates(replicates, "mean age")


def test_the_mean_of_a_rare_group_may_have_lost_its_dependence(
    opened: Published, replicates: Replicates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of a model that misses how a group differs have one direction: they do not cancel as independent ones do,
    whatever the replicates say. What some cells lose, others gain, which may be more than their released counts.
    """
    monkeypatch.setattr(Published, "measured", lambda *_: None)
    monkeypatch.setattr(
        CellErrors,
        "reaches",
        lambda self, attributes, counts: (np.full(counts.shape, 4.9), np.full(counts.shape, 14.7)),
    )
    names, codes = opened.schema.names, list(replicates.codes)
    age, region = names.index("age"), names.index("region")
    codes[region] = np.where(np.arange(len(codes[region])) % 100, 1, 0).astype(np.uint8)
    unmoved = replace(replicates, codes=codes, ratios=np.ones_like(replicates.ratios[:, :1]))
    found = {}
    for value in range(2):
        text = f"mean age where region = {opened.schema.attributes[region].values[value]!r}"
        (found[value],) = by_replicates(unmoved, text)
        counts = np.bincount(codes[age][codes[region] == value], minlength=20)
        inside = counts * replicates.weight
        errors, drawn = 5.0 * (counts > 0).sum(), np.sqrt(2 / np.pi) * np.sqrt(inside).sum()
        away = opened.bin_means["age"] - found[value].estimate
        lost = np.sqrt(max(errors**2 - drawn**2, (0.1 * errors) ** 2)) * (inside @ away**2) / (inside @ np.abs(away))
        assert found[value].deviation >= 0.99 * lost / 1.96 / inside.sum()
    assert found[0].deviation > 10 * found[1].deviation  # much of a rare group, little of the others
    (both,) = by_replicates(unmoved, f"{text} minus {found[0].question}")
    assert both.deviation == pytest.approx(np.hypot(found[0].deviation, found[1].deviation), rel=1e-3)


def test_a_mean_in_a_group_has_half_of_the_variance_of_its_noisy_table(
    opened: Published, replicates: Replicates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever replicates and mean errors of cells say, no other measurement says more of the group."""
    noise = np.where(np.arange(80) % 7, 3.0, np.inf)  # some cells were measured together with others only
    monkeypatch.setattr(Published, "measured", lambda *_: (np.zeros(80), noise))
    monkeypatch.setattr(CellErrors, "reaches", lambda self, attributes, counts: (np.full(counts.shape, 1e-9),) * 2)
    unmoved = replace(replicates, ratios=np.ones_like(replicates.ratios[:, :1]))
    names, ages = opened.schema.names, opened.bin_means["age"]
    age, region = names.index("age"), names.index("region")
    (found,) = by_replicates(unmoved, f"mean age where region = {opened.schema.attributes[region].values[0]!r}")
    of_group = noise.reshape(20, 4)[:, 0] if age < region else noise[:20]
    slopes = (ages - found.estimate) / ((replicates.codes[region] == 0).sum() * replicates.weight)
    known = np.isfinite(of_group)
    assert found.deviation == pytest.approx(3 * np.sqrt((slopes[known] ** 2).sum() / 2), rel=1e-6)


def test_a_slope_that_the_model_misses_in_a_group_is_in_its_interval(opened: Published, replicates: Replicates) -> None:
    """Replicates move products of two attributes: that a slope differs from group to group is in none. A table whose
    quadrants are each as far off as the interval of their count says has a slope that the interval just holds.
    """
    unmoved = replace(replicates, ratios=np.ones_like(replicates.ratios[:, :1]))
    names, values = opened.schema.names, opened.schema.attributes[opened.schema.names.index("region")].values
    scope = tuple(sorted(names.index(name) for name in ("score", "age", "region")))
    for code, value in enumerate(values or ()):
        question = f"regression score on age where region = {value!r}"
        inside = replicates.codes[names.index("region")] == code
        score, age = (replicates.codes[names.index(name)][inside] for name in ("score", "age"))
        x, y = opened.bin_means["age"][age], score.astype(float)
        product, moved = (x - x.mean()) * (y - y.mean()), np.zeros(len(x))
        sides = [(np.sign(x - x.mean()) == a) & (np.sign(y - y.mean()) == b) for a in (-1, 1) for b in (-1, 1)]
        cells = np.unique(np.stack([score, age]), axis=1, return_inverse=True)[1]
        for side in sides:
            counts = np.bincount(cells[side])
            one = opened.errors.reaches(scope, np.array([side.sum()]))[1][0]
            every = opened.errors.reaches(scope, counts[counts > 0])[1]
            off = max(one, np.sqrt((every**2).sum()))
            moved[side] = off * product[side] / np.abs(product[side]).sum()
        found = by_replicates(unmoved, question)[1]
        lost = (moved @ product) / ((x - x.mean()) ** 2).sum() / replicates.weight
        assert 1.3 * found.deviation < lost < 2 * found.deviation
    (of_all,) = by_replicates(unmoved, "regression score on age")[1:]
    assert 0 < of_all.deviation < found.deviation / 2  # where pairs decide, no triple is in the interval


def test_the_largest_error_is_in_the_unit_of_its_function() -> None:
    """Slopes of a mean over 10^9 records are tiny, and no less unsure."""
    f, q = np.array([-1.0, 2.0, 0.0]), np.array([20.0, 10.0, 5.0])
    assert largest_error(8.0, f, q) == pytest.approx(8 * 60 / 40)
    assert largest_error(8.0, f * 1e-12, q) == pytest.approx(12e-12)
    assert largest_error(8.0, f * 0, q) == 0


def test_errors_that_two_sides_share_cancel(opened: Published) -> None:
    for question in ("mean age minus mean age", "count where score >= 1 over count where score >= 1"):
        (found,) = answer(opened, question)
        assert found.estimate == found.low + found.high - found.estimate
        assert found.deviation == pytest.approx(0, abs=1e-9), question
    (part,) = answer(opened, "share where score >= 2 over share where score >= 1")
    assert part.deviation > 0


def test_a_product_with_more_than_three_attributes_has_no_interval(opened: Published) -> None:
    question = "regression score on employed = 'yes', sex = 1 where region = 'north' and age >= 40"
    assert {found.low for found in answer(opened, question)} == {None}
    (found,) = answer(opened, "mean score where employed = 'yes' and sex = 1 and age >= 40 minus mean score")
    assert "four attributes" in found.note


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("regression score on employed = 'yes' and sex = 1", "not of one attribute"),
        ("regression score on sex = 1, sex = 2", "not linearly independent"),
        ("logistic regression employed = 'yes' on score where score = 0", "not linearly independent"),
        ("regression score on age where score = 0", "is the same in all records"),
        ("logistic regression score on sex = 1", "is a condition"),
        ("regression region on sex = 1", "has no numbers"),
        ("median score minus mean score", "not what replicates answer"),
        ("count minus count minus count", "two at a time"),
        ("count over count where region = 'north' and region = 'south'", "no record"),
    ],
)
def test_what_cannot_be_answered(opened: Published, question: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        answer(opened, question)


def test_of_too_many_attributes_none_are_made(opened: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is computed."""
    assert MOST_ATTRIBUTES == 63
    monkeypatch.setattr("dpdist.inference.replicates.MOST_ATTRIBUTES", 4)
    monkeypatch.setattr("dpdist.inference.replicates.ErrorField", None)
    with pytest.raises(SpecError, match="at most 4 attributes, and the release has 5: counts, shares and quantiles"):
        answer(opened, "mean score")


def test_the_command_writes_what_r_reads(opened: Published, tmp_path: Path) -> None:
    out = tmp_path / "tables" / "new" / "people.csv"
    arguments = ["replicates", opened.store.uri.removeprefix("file://"), "--out", str(out), "--number", "40"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "2,500 rows" in result.stdout
    assert pa_csv.read_csv(out).num_columns == 5 + 1 + 40
    arguments = ["infer", arguments[1], "share where sex = 1 minus share where sex = 2", "--json"]
    (found,) = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert found["low"] < found["estimate"] < found["high"]


def test_weights_do_not_take_the_name_of_an_attribute(replicates: Replicates) -> None:
    renamed = [
        a.model_copy(update={"name": "weight"}) if a.name == "score" else a
        for a in replicates.release.schema.attributes
    ]
    release = SimpleNamespace(schema=Schema(attributes=tuple(renamed)), manifest=replicates.release.manifest)
    names = replace(replicates, release=release).to_arrow().column_names
    assert len(set(names)) == len(names)
    assert names[5:7] == ["survey_weight", "survey_replicate_1"]


def test_r_gives_the_same_standard_errors(
    opened: Published, replicates: Replicates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walkthrough of docs/inference.md; those of regressions have besides what no replicate holds."""
    need("Rscript", "R", "r-cran-survey")
    if subprocess.run(["Rscript", "-e", "library(survey)"], capture_output=True, check=False).returncode:
        left_out("R", "apt-get install r-cran-survey")
    replicates.to_csv(tmp_path / "people.csv")
    answered = [found.deviation for question in QUESTIONS for found in by_replicates(replicates, question)]
    monkeypatch.setattr("dpdist.inference.comparisons._of_products", lambda _, asked, *__: np.zeros(len(asked.names)))
    ours = [found.deviation for question in QUESTIONS for found in by_replicates(replicates, question)]
    assert answered[:3] == ours[:3]
    assert all(more > less for more, less in zip(answered[3:], ours[3:], strict=True))
    (code,) = re.findall(r"```r\n(.+?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "read.R").write_text(code.replace("rho = 0.62", f"rho = {replicates.fay}"))
    ran = subprocess.run(["Rscript", "read.R"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [float(line) for line in ran.stdout.split()] == pytest.approx(ours, rel=1e-6)


def test_a_stranger_gets_the_same_variance_from_the_file(replicates: Replicates, tmp_path: Path) -> None:
    """With pandas and Fay's formula alone."""
    replicates.to_csv(tmp_path / "people.csv")
    people = pd.read_csv(tmp_path / "people.csv").query("sex == 1")
    weights = people.filter(like="replicate_")
    estimate = (people["score"] * people["weight"]).sum() / people["weight"].sum()
    again = weights.mul(people["score"], axis=0).sum() / weights.sum()
    deviation = np.sqrt(((again - estimate) ** 2).mean() / (1 - replicates.fay) ** 2)
    (found,) = by_replicates(replicates, "mean score where sex = 1")
    assert (found.estimate, found.deviation) == (pytest.approx(estimate), pytest.approx(deviation))
