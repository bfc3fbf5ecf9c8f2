"""Stage 2: kernels, kernel ridge regression in its three forms, tuning; and the measures of what it is worth."""

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest

from dpdist.evaluation.utility.learning import delta_mse, mse
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse, released_codes
from dpdist.families.prediction.columns import Scale
from dpdist.families.prediction.lid import ridge
from dpdist.families.prediction.lid.method import Block
from dpdist.families.prediction.lid.regression import (
    Features,
    Sample,
    block_sample,
    fit_all,
    fit_groups,
    join_samples,
    landmark_sums,
    predicted,
    tuning_of,
)
from dpdist.families.prediction.lid.ridge import PROFILES, RadialKernel, Tuning, reach
from dpdist.families.prediction.plan import plan
from dpdist.families.prediction.second_stage import RegressionSpec
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.ledger.keys import KeyRef

KEY = KeyRef.fixed(bytes(range(32)).hex())
UNIT = tuple(Scale(name=f"x{i}", low=0, high=1) for i in range(3))


def truth(x: np.ndarray) -> np.ndarray:
    """Wendland's function of smoothness 4, as in the authors' simulations of distributed kernel ridge regression."""
    r = np.linalg.norm(x, axis=1)
    return np.maximum(1 - r, 0) ** 6 * (35 * r * r + 18 * r + 3)


def simulated(rows: int, seed: int, noise: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 3))
    return x, truth(x) + rng.normal(0, noise, rows)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("dimension", [1, 3, 8])
def test_kernels_are_positive_definite_and_one_at_zero(name: str, dimension: int) -> None:
    points = np.random.default_rng(0).random((60, dimension))
    gram = RadialKernel(name=name, width=reach(name, dimension))(points, points)
    assert np.diag(gram) == pytest.approx(1)
    assert np.linalg.eigvalsh(gram).min() > -1e-10
    r = np.array([1e-3])  # the same curvature at zero as exp(-r^2 / 2)
    assert PROFILES[name](r / reach(name, dimension), dimension) == pytest.approx(1 - r**2 / 2, abs=2e-8)


def test_the_compact_kernel_of_three_inputs_is_the_published_one() -> None:
    r = np.linspace(0, 2, 50)
    assert PROFILES["compact"](r, 3) == pytest.approx(np.maximum(1 - r, 0) ** 4 * (4 * r + 1))


@pytest.mark.parametrize("intercept", [True, False])
def test_exact_ridge_solves_its_equations(intercept: bool) -> None:
    x, y = simulated(80, 1)
    kernel, penalty, mean = RadialKernel(name="compact", width=1.0, intercept=intercept), 0.3, y.mean() * intercept
    model = ridge.fit_exact(x, y, kernel=kernel, penalty=penalty)
    alpha = np.linalg.solve(kernel(x, x) + penalty * np.eye(80), y - mean)
    grid = np.random.default_rng(2).random((30, 3))
    assert model.predict(grid) == pytest.approx(mean + kernel(grid, x) @ alpha)
    assert model.predict(grid + 9) == pytest.approx(mean)  # out of reach of every record
    again = ridge.KernelRidge.from_bytes(model.to_bytes())
    assert np.array_equal(again.predict(grid), model.predict(grid))


@pytest.mark.parametrize("intercept", [True, False])
def test_nystroem_with_all_landmarks_is_exact(intercept: bool) -> None:
    x, y = simulated(60, 1)
    kernel = RadialKernel(name="matern", width=1.0, intercept=intercept)
    sums = ridge.nystroem_sums(x[:25], y[:25], landmarks=x, kernel=kernel)
    sums += ridge.nystroem_sums(x[25:], y[25:], landmarks=x, kernel=kernel)
    nystroem = ridge.fit_nystroem(sums, landmarks=x, kernel=kernel, penalty=0.1)
    exact = ridge.fit_exact(x, y, kernel=kernel, penalty=0.1)
    assert nystroem.predict(x) == pytest.approx(exact.predict(x), abs=1e-6)


def test_distributed_with_one_group_is_exact_and_lambda_is_that_of_the_full_size() -> None:
    x, y = simulated(60, 1)
    features, tuning = Features(UNIT, np.ones(3)), Tuning(kernel=RadialKernel(name="gaussian", width=0.5), penalty=0.2)
    exact = ridge.fit_exact(x, y, kernel=tuning.kernel, penalty=0.2)
    [one] = fit_groups(features, (tuning, KEY, 60, 60), (x, y), 0)
    assert one.predict(x) == pytest.approx(exact.predict(x))
    halves = fit_groups(features, (tuning, KEY, 30, 60), (x, y), 0)
    chosen = [[np.flatnonzero((x == row).all(axis=1))[0] for row in half.centres[0]] for half in halves]
    assert sorted(np.concatenate(chosen)) == list(range(60))
    by_hand = [ridge.fit_exact(x[rows], y[rows], kernel=tuning.kernel, penalty=0.1).predict(x) for rows in chosen]
    assert ridge.average([halves]).predict(x) == pytest.approx((by_hand[0] + by_hand[1]) / 2)


def sample_of(features: Features, blocks: list[Block], size: int) -> Sample:
    starts = np.cumsum([0, *(len(block[1]) for block in blocks)]).tolist()
    parts = [block_sample(features, KEY, block, start, size) for block, start in zip(blocks, starts, strict=False)]
    return join_samples(parts, size)


def estimators(
    features: Features, blocks: list[Block], sample: Sample, rows: tuple[int, int], relation: Any = (0, None)
) -> dict[str, ridge.KernelRidge]:
    """Each estimator, with this many rows of a group and this many landmarks."""
    tuning, marks = tuning_of(RegressionSpec(width=1.0), sample, relation), sample[1][: rows[1]]
    how = (tuning, KEY, rows[0], sum(len(block[1]) for block in blocks))
    groups = [fit_groups(features, how, block, i) for i, block in enumerate(blocks)]
    sums = reduce(add, (landmark_sums(features, tuning, marks, block) for block in blocks))
    return {
        "exact": fit_all(features, tuning, blocks),
        "distributed": ridge.average(groups),
        "nystroem": ridge.fit_nystroem(sums, marks, kernel=tuning.kernel, penalty=tuning.penalty),
    }


@pytest.mark.slow
def test_distributed_and_nystroem_are_near_exact() -> None:
    x, y = simulated(3000, 1)
    grid = np.random.default_rng(5).random((1000, 3))
    features, blocks = Features(UNIT, np.ones(3)), [(x, y)]
    models = estimators(features, blocks, sample_of(features, blocks, 800), (500, 200))
    errors = {estimator: mse(truth(grid), model.predict(grid)) for estimator, model in models.items()}
    assert errors["exact"] < 0.003
    assert errors["distributed"] < 1.5 * errors["exact"]
    assert errors["nystroem"] < 1.5 * errors["exact"]


def test_several_columns_are_each_predicted_as_one_alone() -> None:
    """One system serves all columns: solved, averaged, over landmarks, and in cross-validation."""
    x, y = simulated(90, 1)
    columns = np.eye(3)[np.digitize(y, [5.0, 15.0])]
    kernel = RadialKernel(name="matern", width=1.0)

    def made(targets: np.ndarray) -> list[ridge.KernelRidge]:
        halves = [ridge.fit_exact(x[i::2], targets[i::2], kernel=kernel, penalty=0.1) for i in (0, 1)]
        sums = ridge.nystroem_sums(x, targets, landmarks=x[:20], kernel=kernel)
        return [
            ridge.fit_exact(x, targets, kernel=kernel, penalty=0.2),
            ridge.average([halves]),
            ridge.fit_nystroem(sums, landmarks=x[:20], kernel=kernel, penalty=0.2),
        ]

    together, grid = made(columns), np.random.default_rng(2).random((30, 3))
    for place in range(3):
        for whole, alone in zip(together, made(columns[:, place]), strict=True):
            assert whole.predict(grid)[:, place] == pytest.approx(alone.predict(grid))
    again = ridge.KernelRidge.from_bytes(together[1].to_bytes())
    assert np.array_equal(again.predict(grid), together[1].predict(grid))
    errors = [ridge.tune(x, part, width=1.0, penalties=[0.1]).error for part in (columns, *columns.T)]
    assert errors[0] == pytest.approx(sum(error or 0 for error in errors[1:]))


def test_classes_are_predicted_where_the_response_has_no_order() -> None:
    """The class of the largest prediction, as code; a class that stands for nothing between two others is no mean."""
    rng = np.random.default_rng(3)
    x = rng.random((600, 3))
    codes = np.where(x[:, 0] < 0.5, 0, 2)  # class 1 never occurs, and is between the others
    features = Features(UNIT, np.ones(3), 3)
    blocks = [(x[:300], (codes[:300] + 0.5) / 3), (x[300:], (codes[300:] + 0.5) / 3)]
    sample = sample_of(features, blocks, 200)
    assert sample[2].shape == (200, 3)
    for model in estimators(features, blocks, sample, (150, 100)).values():
        grid = rng.random((400, 3))
        found = predicted(model, features, grid)
        assert np.mean(features.codes(found) == np.where(grid[:, 0] < 0.5, 0, 2)) > 0.93
        assert set(features.codes(found)) == {0, 2}


def test_tuning_is_five_fold_cross_validation() -> None:
    x, y = simulated(100, 3)
    tuning = ridge.tune(x, y, kernel="compact", width=1.0)
    centred, kernel = y - y.mean(), RadialKernel(name="compact", width=1.0)
    errors = {}
    for penalty in ridge.PENALTIES:
        loss = 0.0
        for fold in range(5):
            out, rest = np.arange(100) % 5 == fold, np.arange(100) % 5 != fold
            alpha = np.linalg.solve(kernel(x[rest], x[rest]) + penalty * np.eye(rest.sum()), centred[rest])
            loss += ((centred[out] - kernel(x[out], x[rest]) @ alpha) ** 2).sum()
        errors[penalty] = loss / 100
    assert tuning.penalty == min(errors, key=lambda penalty: errors[penalty])
    assert tuning.error == pytest.approx(min(errors.values()), rel=1e-6)


def test_constant_inputs_and_repeated_rows_do_not_break_the_fit() -> None:
    x, y = np.zeros((40, 2)), np.arange(40.0)
    tuning = ridge.tune(x, y)
    model = ridge.fit_exact(x, y, kernel=tuning.kernel, penalty=1e-300)
    assert model.predict(x[:1]) == pytest.approx(y.mean(), rel=1e-3)


def test_features_have_an_indicator_for_each_category() -> None:
    scales = (Scale(name="a", low=0, high=1), Scale(name="c", low=0, high=2, discrete=True, nominal=True))
    inputs = np.array([[0.5, 0.5 / 3], [1.0, 2.5 / 3]])
    assert Features(scales, np.array([0.25, 1.0]))(inputs).tolist() == [[2, 1, 0, 0], [4, 0, 0, 1]]


def test_the_sample_does_not_depend_on_the_cut() -> None:
    x, y = np.arange(300.0).reshape(100, 3), np.arange(100.0)
    samples = [
        sample_of(Features(UNIT, np.ones(3)), [(x[i : i + rows], y[i : i + rows]) for i in range(0, 100, rows)], 10)
        for rows in (100, 7)
    ]
    assert all(np.array_equal(a, b) for a, b in zip(*samples, strict=True))
    assert len(samples[0][2]) == 10


class Mean:
    """A user's regression."""

    def fit(self, inputs: np.ndarray, responses: np.ndarray) -> None:
        self.mean = responses.mean()

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return np.full(len(inputs), self.mean)


def shifted(original: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A user's first stage."""
    return (original + 0.1 + 0 * rng.random()) % 1


def synthesised(x: np.ndarray, y: np.ndarray, **prediction: object) -> tuple[np.ndarray, np.ndarray]:
    """What the stages of a release make of some records, in an order of their own."""
    bounds = {"x0": [0, 1], "x1": [0, 1], "x2": [0, 1], "y": [-3, 6]}
    tree = {
        "kind": "two-stage",
        "name": "r",
        "dataset": "d",
        "schema": {"attributes": [{"name": n, "kind": "number", "bounds": b} for n, b in bounds.items()]},
        "data": {"path": "x", "minimum_records": 100},
        "output": {"path": "y"},
        "privacy": {"guarantee": "lid", "disclosure": {"lid": 1, "eta": 0.01}},
        "prediction": {"response": "y"} | prediction,
    }
    planned = plan(TwoStageSpec.model_validate(tree))
    made = rehearse(planned, stages_of(planned), [*x.T, y], key=KEY)
    *inputs, responses = released_codes(made)
    return np.stack(inputs, axis=1), responses


def test_both_stages_are_exchangeable() -> None:
    x, y = simulated(200, 1)
    mean = {"hook": f"{__name__}:Mean"}
    _, responses = synthesised(x, y, alpha=0.5, regression=mean)
    assert responses == pytest.approx(y.mean())
    inputs, _ = synthesised(x, y, alpha=0.0, first_stage=f"{__name__}:shifted", matching="independent", regression=mean)
    expected = (x + 0.1) % 1
    assert inputs[np.argsort(inputs[:, 0])] == pytest.approx(expected[np.argsort(expected[:, 0])])


def test_synthetic_data_train_as_well_as_the_original() -> None:
    x, y = simulated(1000, 7)
    grid = np.random.default_rng(5).random((1000, 3))
    kernel = RadialKernel(name="compact", width=1.0)

    def error(inputs: np.ndarray, responses: np.ndarray) -> float:
        tuning = ridge.tune(inputs[:400], responses[:400], width=1.0)
        return mse(truth(grid), ridge.fit_exact(inputs, responses, kernel=kernel, penalty=tuning.penalty).predict(grid))

    made = error(*synthesised(x, y, alpha=0.2))
    assert made < 1.5 * error(x, y)
    assert made < 0.2 * float(truth(grid).var())


def test_measures() -> None:
    assert mse([1, 2], [1, 4]) == 2
    assert delta_mse(2.0, 1.5) == 0.25
