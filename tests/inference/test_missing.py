"""Missing values are left out, values are ordered as numbers, and intervals end where their quantity does."""

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest
from published import ROWS, published
from releases import KEY, SCHEMA, table

from dpdist.accuracy.measured import linear
from dpdist.errors import SpecError
from dpdist.inference.answers import parse_quantity, tabulate
from dpdist.inference.comparisons import BINS_NOTE, MEASURED_NOTE, answer, ratio_range
from dpdist.inference.published import Published
from dpdist.spec.conditions import Condition
from dpdist.spec.regression import numbers_in, parse_regression
from dpdist.spec.schema import Schema

NONE = {"category": "none"}
TREE: dict[str, Any] = deepcopy(SCHEMA)
TREE["attributes"][0] |= {"kind": "ordinal", "values": ["west", "south", "north"]}
TREE["attributes"][0] |= {"missing": NONE, "missing_values": ["east"]}
TREE["attributes"][3] |= {"kind": "categorical", "values": [6, 4, 3, 2, 1, 0]}
TREE["attributes"][3] |= {"missing": NONE, "missing_values": ["5", "7"]}
TREE["attributes"][4] |= {"values": ["yes"], "missing": NONE, "missing_values": ["no"]}
TABLE = Schema.model_validate(TREE)
DECLARED = "regression score on age, region = 'north'"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp("missing")
    return Published.open(published(folder, fixed_key=KEY, schema=TREE, regressions=[DECLARED]))


@pytest.fixture(scope="module")
def unmeasured(tmp_path_factory: pytest.TempPathFactory) -> Published:
    privacy = {"epsilon": 8, "delta": 1e-7, "accuracy_share": 0}
    return Published.open(published(tmp_path_factory.mktemp("unmeasured"), fixed_key=KEY, schema=TREE, privacy=privacy))


def released(opened: Published) -> pd.DataFrame:
    """The released records as numbers and texts; NaN or None where they are missing."""
    codes = dict(zip(opened.schema.names, opened.codes, strict=True))
    found = {"region": np.array(["west", "south", "north", None])[codes["region"]]}
    found |= {"age": 2.0 + 5 * codes["age"], "sex": np.array([1, 2])[codes["sex"]]}
    return pd.DataFrame(found | {"score": np.array([6, 4, 3, 2, 1, 0, np.nan])[codes["score"]]})


def private() -> pd.DataFrame:
    real = table(ROWS).to_pandas()
    return real.assign(
        score=real["score"].astype(float).mask(real["score"].isin([5, 7])),
        region=real["region"].replace({"east": None}),
    )


def truths(data: pd.DataFrame) -> dict[str, float]:
    """What pandas says, which leaves missing values out."""
    north, score, sex = data["region"] == "north", data["score"], data["sex"]
    whole = data.dropna(subset=["score", "region"])
    rows = np.column_stack([np.ones(len(whole)), whole["region"] == "north"])
    slope = linear(rows, whole["score"].to_numpy(), np.ones((len(whole), 1)))[1, 0]
    return {
        "mean score": score.mean(),
        "mean score with missing as 0": score.fillna(0).mean(),
        "mean score where region = 'north' minus mean score where sex = 1": score[north].mean()
        - score[sex == 1].mean(),
        "mean score where sex = 2 over mean score where age >= 40": score[sex == 2].mean()
        / score[data["age"] >= 40].mean(),
        "regression score on region = 'north'": slope,
    }


def last(opened: Published, question: str) -> float:
    return float(answer(opened, question)[-1].estimate)


def test_answers_leave_missing_values_out_as_the_records_do(opened: Published, unmeasured: Published) -> None:
    """The same estimates by the records, but for means of one table; and about those of the private table."""
    assert private()["score"].isna().mean() > 0.1
    for release in (opened, unmeasured):
        exact, real = truths(released(release)), truths(private())
        by_table = ["mean score", "mean score with missing as 0"]
        for question, expected in exact.items():
            found = last(release, question)
            assert found == pytest.approx(expected, abs=0.1 if question in by_table else 1e-9), question
            assert found == pytest.approx(real[question], abs=0.15), question


def test_a_declared_regression_leaves_missing_values_out(opened: Published) -> None:
    found = answer(opened, DECLARED)
    whole = private().dropna(subset=["score", "region"])
    ages = 2.0 + 5 * (whole["age"] // 5)
    rows = np.column_stack([np.ones(len(whole)), ages, whole["region"] == "north"])
    exact = linear(rows, whole["score"].to_numpy(), np.ones((len(whole), 1)))[:, 0]
    for one, truth in zip(found, exact, strict=True):
        assert one.note == f"{MEASURED_NOTE}; {BINS_NOTE}"
        assert abs(one.estimate - truth) < 4 * one.deviation < 1
    filled = private().assign(score=private()["score"].fillna(16 / 6))  # the mean of the declared values
    rows = np.column_stack([np.ones(ROWS), 2.0 + 5 * (filled["age"] // 5), filled["region"] == "north"])
    other = linear(rows, filled["score"].to_numpy(), np.ones((ROWS, 1)))[:, 0]
    assert abs(found[1].estimate - other[1]) > 6 * found[1].deviation


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("score", [True] * 6 + [False]),
        ("score with missing as -2", [True] * 7),
        ("score >= 2", [True] * 6 + [False]),
        ("not (score = 2)", [True] * 6 + [False]),
        ("score is missing", [True] * 7),
        ("score = 2 or score is missing", [True] * 7),
        ("`score` = 'none'", [True] * 7),
    ],
)
def test_a_term_says_what_becomes_of_missing_values(text: str, counted: list[bool]) -> None:
    found = parse_regression(f"regression age on {text}", TABLE)
    assert found.terms[0].counted.tolist() == counted
    assert found.where.admitted(3, 7).tolist() == counted
    assert not found.terms[0].values[~found.terms[0].counted].any()


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("regression score on age where score is missing", "no record can meet its condition and have all values"),
        ("mean age with missing as 0", "no category for missing values"),
        ("mean score with missing as none", "expected a number after `with missing as` instead of 'none'"),
        ("mean region", "has no numbers"),
        ("median employed", "'employed' has no order"),
        ("mean score where score is missing", "has a value"),
    ],
)
def test_what_has_no_value(opened: Published, question: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        answer(opened, question)


def test_the_error_names_a_question_without_a_condition(opened: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Condition, "holds", lambda self, codes: np.zeros(len(codes[0]), bool))
    for question in ("mean score", "regression score on age"):
        with pytest.raises(SpecError, match=f"values? for the question '{question}'"):
            answer(opened, question)


def test_quantiles_are_in_the_order_of_numbers(opened: Published, unmeasured: Published) -> None:
    score = private()["score"].dropna().to_numpy()
    for release in (opened, unmeasured):
        for level in (0.1, 0.5, 0.9):
            (found,) = answer(release, f"quantile {level} score")
            exact = np.quantile(score, level, method="inverted_cdf")
            assert abs(found.estimate - exact) <= 1
            if release is opened:
                assert found.low <= min(found.estimate, exact) <= max(found.estimate, exact) <= found.high
    (zero,) = answer(opened, "quantile 0.01 score with missing as -3")
    assert (zero.estimate, last(opened, "quantile 0.99 score with missing as 9")) == (-3, 9)


def test_an_ordinal_text_has_quantiles_in_its_order(opened: Published) -> None:
    place = private()["region"].map({"west": 0, "south": 1, "north": 2}).dropna()
    (found,) = answer(opened, "median region")
    assert found.estimate == ["west", "south", "north"][int(place.median())]
    assert [answer(opened, f"quantile {q} region")[0].estimate for q in (0.01, 0.99)] == ["west", "north"]
    assert numbers_in("region", TABLE, ordered=True).shown(1) == "south"


# --- intervals end where their quantity does --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A release of so much noise that intervals would be wider than the domain."""
    folder = published(
        tmp_path_factory.mktemp("noisy"), fixed_key=KEY, schema=TREE, privacy={"epsilon": 0.02, "delta": 1e-7}
    )
    return Published.open(folder)


@pytest.mark.parametrize(
    ("question", "low", "high"),
    [
        ("mean age", 0, 99),
        ("mean age where age >= 90 and sex = 1", 90, 99),
        ("mean score with missing as -2 where region = 'west'", -2, 6),
        ("mean score where region = 'west' minus mean score where region = 'north'", -6, 6),
        ("share where sex = 1 and region = 'west'", 0, 1),
        ("share where sex = 1 minus share where sex = 2", -1, 1),
        ("count where sex = 1 and region = 'west' over count where sex = 1", 0, 1),
        ("count where sex = 1 over count where region = 'west'", 0, math.inf),
        ("mean age where age >= 50 over mean age where age < 50 and age >= 20", 50 / 49, 99 / 20),
        ("count where region = 'west'", 0, math.inf),
        ("quantile 0.9 age where age >= 50", 50, 99),
        ("share where age >= 0", 1, 1),
        ("share where score <= 6 or score is missing", 1, 1),
    ],
)
def test_intervals_end_where_the_quantity_does(noisy: Published, question: str, low: float, high: float) -> None:
    (found,) = answer(noisy, question)
    assert low <= found.low <= found.estimate <= found.high <= high


def test_estimates_are_within_their_intervals(noisy: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement below zero is no answer: the count is 0, with an interval around 0, however far below it was."""
    below = np.full(4, -3.0), np.full(4, 1.0)  # of the cells of region
    monkeypatch.setattr(Published, "measured", lambda release, attributes: below)
    for kind in ("count", "share"):
        (found,) = answer(noisy, f"{kind} where region = 'west'")
        assert found.low == found.estimate == 0
        assert found.high == pytest.approx(1.96 * found.deviation)
    cells = tabulate(noisy, ["region"])
    assert cells["count"].to_pylist() == cells["low"].to_pylist() == [0] * 4
    assert pc.min(cells["high"]).as_py() == pytest.approx(1.96)


def test_wide_intervals_are_cut(noisy: Published) -> None:
    """The intervals of the release are wide enough that the test above can fail."""
    for question, low, high in (
        ("mean age where age >= 90 and sex = 1", 90, 99),
        ("mean score with missing as -2 where region = 'west'", -2, 6),
        ("mean score where region = 'west' minus mean score where region = 'north'", -6, 6),
        ("count where sex = 1 and region = 'west' over count where sex = 1", 0, 1),
    ):
        (found,) = answer(noisy, question)
        assert found.estimate - 1.96 * found.deviation < low or found.estimate + 1.96 * found.deviation > high


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("count where sex = 1 and score = 2", "count where sex = 1", (0, 1)),
        ("count where sex = 1", "count where sex = 1 and score = 2", (0, math.inf)),
        ("count", "share", (0, math.inf)),
        ("mean age where age >= 50", "mean age where age < 50", (0, math.inf)),
        ("mean score with missing as -1", "mean score where score >= 2", (-0.5, 3)),
        ("mean score", "mean score with missing as -1", (-math.inf, math.inf)),
        ("mean score", "count", (0, math.inf)),
        ("count", "mean score where score >= 2", (0, math.inf)),
    ],
)
def test_what_a_ratio_can_be(left: str, right: str, expected: tuple[float, float]) -> None:
    found = ratio_range(parse_quantity(left, TABLE), parse_quantity(right, TABLE))
    assert found == pytest.approx(expected)
