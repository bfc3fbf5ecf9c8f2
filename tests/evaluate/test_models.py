"""Models of real and of released records: leaks and ruins are distinguished."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpdist.errors import SpecError
from dpdist.evaluation.records import independent, view_of
from dpdist.evaluation.report import made_for
from dpdist.evaluation.utility.learning import _judged_losses, attribute_section, regression_section, training_section
from dpdist.evaluation.utility.models import Trial, make_trial, named_target
from dpdist.families.base.attempt import silent
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

SCHEMA = Schema.model_validate(
    {
        "attributes": [
            {"name": "a", "kind": "ordinal", "values": [0, 1, 2, 3, 4, 5]},
            {"name": "b", "kind": "categorical", "values": ["x", "y", "z"]},
            {"name": "y", "kind": "categorical", "values": ["no", "yes"]},
        ]
    }
)
VIEW = view_of(SCHEMA)


def records(rows: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 6, rows)
    b = np.where(rng.random(rows) < 0.7, a // 2, rng.integers(0, 3, rows))
    y = rng.random(rows) < np.where(a > 2, 0.9, 0.15)
    return [a.astype(np.uint8), b.astype(np.uint8), y.astype(np.uint8)]


def trial(released: Codes, rows: int = 3_000) -> Trial:
    return make_trial(records(rows, 0), released, records(2_000, 1), train=1_200, test=1_200, seed=0)


def test_good_records_are_good_and_independent_ones_are_bad() -> None:
    both = trial(records(3_000, 2)), trial(independent(records(3_000, 2), np.random.default_rng(0)))
    good, bad = (training_section(one, VIEW, 2, progress=silent) for one in both)
    assert (good.state, bad.state) == ("good", "bad")
    models = good.figures["models"]
    assert set(models) == {
        *("tree", "random forest", "AdaBoost", "gradient boosting", "logistic regression", "linear SVM")
    }
    for of in models.values():
        assert 0.8 < of["released"]["accuracy"] < 0.95  # the best there is: 0.875
        assert of["released"]["auc"] > 0.85
        assert of["released"]["agreement"] > 0.95
        assert of["real"]["agreement"] == 1
        assert of["independent"]["accuracy"] < 0.7
    assert [attribute_section(one, VIEW, progress=silent).state for one in both] == ["good", "bad"]


def test_a_release_with_one_label_only_is_judged_all_the_same() -> None:
    released = records(3_000, 2)
    released[2][:] = 1
    section = training_section(trial(released), VIEW, 2, progress=silent)
    of = section.figures["models"]["tree"]["released"]
    assert of["auc"] is None
    assert of["accuracy"] == pytest.approx(np.mean(trial(released).test[2] == 1))
    assert section.state == "bad"


def test_a_forest_may_gain_by_the_release() -> None:
    losses = {"age": -0.03, "sex": 0.01}
    assert "1.0 percentage points more often right" in _judged_losses(losses, [])[1]
    assert "largest loss of 1.0 for sex" in _judged_losses(losses, [])[1]
    assert "2.0 percentage points less often right" in _judged_losses({"age": 0.02}, [0.9])[1]


def test_too_few_records_say_nothing() -> None:
    small = make_trial(records(60, 0), records(60, 2), None, train=1_000, test=1_000, seed=0)
    for section in (training_section(small, VIEW, 2, progress=silent), attribute_section(small, VIEW, progress=silent)):
        assert section.state == "info"
        assert "too" in section.verdict or "needs" in section.verdict


def test_records_set_aside_for_testing_train_nothing() -> None:
    rows: Codes = [np.arange(300, dtype=np.uint16), np.arange(300, dtype=np.uint16)]
    made = make_trial(rows, rows, None, train=1_000, test=90, seed=3)
    assert not set(made.test[0].tolist()) & set(made.training["real"][0].tolist())
    assert made.rows == (210, 90)
    assert not made.fresh
    assert "no hold-out" in made.sentence
    assert sorted(made.training["independent"][0].tolist()) == sorted(made.training["real"][0].tolist())


def test_targets() -> None:
    assert named_target(VIEW, None) == 2
    assert named_target(VIEW, "b") == 1
    with pytest.raises(SpecError, match="expected one of a, b, y"):
        named_target(VIEW, "c")


def test_the_default_target_is_the_last_attribute_of_a_few_values() -> None:
    """By the schema alone; a missing category is no value."""
    income = {"name": "income", "kind": "categorical", "values": ["low", "high"], "missing": {"category": "unknown"}}
    country = {"name": "country", "kind": "categorical", "values": [f"c{i}" for i in range(40)]}
    gain = {"name": "gain", "kind": "number", "bounds": [0, 9]}
    sex = {"name": "sex", "kind": "categorical", "values": ["f", "m"]}
    for attributes, place in (((sex, income), 1), ((sex, income, country, gain), 1), ((gain, country), 1)):
        view = view_of(Schema.model_validate({"attributes": list(attributes)}))
        assert named_target(view, None) == place


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"model": {"target": "b"}}, "b"),
        ({"mixing": {"class": "y"}}, "y"),
        ({"model": {"target": "left out"}}, None),
        ({"model": {}}, None),
        ({}, None),
    ],
)
def test_what_a_release_was_made_to_predict_is_predicted(spec: dict[str, Any], name: str | None) -> None:
    assert made_for(SimpleNamespace(spec=spec), VIEW) == name


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMBERS = Schema.model_validate(
    {
        "attributes": [
            {"name": "brand", "kind": "categorical", "values": ["p", "q"]},
            {"name": "price", "kind": "number", "bounds": [0.1, 50]},
            {"name": "quantity", "kind": "number", "bounds": [0, 1e9]},
        ]
    }
)


def sales(rows: int, seed: int, betas: tuple[float, float]) -> Codes:
    rng = np.random.default_rng(seed)
    brand = rng.integers(0, 2, rows)
    price = np.exp(rng.normal(1, 0.4, rows))
    quantity = np.exp(5 + np.array(betas)[brand] * np.log(price) + rng.normal(0, 0.1, rows))
    return [brand.astype(np.uint8), price, quantity]


def test_regression_tells_good_records_from_independent_ones() -> None:
    view = view_of(NUMBERS)

    def section(released: Codes) -> object:
        made = make_trial(sales(3_000, 0, (-1, -2)), released, None, train=1_500, test=800, seed=0)
        return regression_section(made, view, 2, progress=silent)

    released = sales(3_000, 1, (-1, -2))
    good, bad = section(released), section(independent(released, np.random.default_rng(0)))
    assert (good.state, bad.state) == ("good", "bad")
    assert good.figures["mse"]["gradient boosting"]["delta_mse"] > 0
