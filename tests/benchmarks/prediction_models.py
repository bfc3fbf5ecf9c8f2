"""What the benchmarks of two-stage synthesis share: the models that users of a release train, and their errors."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import AdaBoostRegressor, RandomForestRegressor

from dpdist.evaluation.utility.learning import mse
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse
from dpdist.families.prediction.columns import Scale
from dpdist.families.prediction.lid.method import joined
from dpdist.families.prediction.lid.regression import Features, Sample, fit_all, fit_groups, landmark_sums, tuning_of
from dpdist.families.prediction.lid.ridge import average, fit_nystroem
from dpdist.families.prediction.plan import LidPlan, plan_lid
from dpdist.families.prediction.second_stage import RegressionSpec
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.stages import FittedRegression, SyntheticInputs, TableBlocks, released_block
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Codes, Floats

ROOT = Path(__file__).resolve().parents[2]
ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
FILES = {
    "insurance": "insurance.csv",
    "eia": "eia.csv",
    "california": "california_housing.csv",
    "census1080": "census_1080.csv",
    "tarragona": "tarragona.csv",
}

Rows = tuple[Floats, Floats]


def key(seed: int) -> KeyRef:
    """A key for a trial."""
    return KeyRef.fixed(seed.to_bytes(32, "big").hex())


# --- the published method ---------------------------------------------------------------------------------------------


def numbers_plan(
    bounds: Mapping[str, tuple[float, float]],
    *,
    eta: float = 0.01,
    columns: tuple[str, ...] | None = None,
    **prediction: Any,
) -> LidPlan:
    """A plan of the published method for numbers, the last one the response; no disclosure is refused."""
    tree = {
        "kind": "two-stage",
        "name": "numbers",
        "dataset": "numbers",
        "schema": {"attributes": [{"name": n, "kind": "number", "bounds": list(b)} for n, b in bounds.items()]},
        "data": {"path": "none", "minimum_records": 10},
        "output": {"path": "none"},
        "privacy": {"guarantee": "lid", "disclosure": {"lid": 1.0, "eta": eta, "columns": columns}},
        "prediction": {"response": list(bounds)[-1], **prediction},
    }
    return plan_lid(TwoStageSpec.model_validate(tree))


class Synthesis:
    """The stages of a release of the published method, with its rows in the order of the records.

    Parameters
    ----------
    plan : LidPlan
    codes : Codes
    key : KeyRef
    until : type
        `SyntheticInputs` where no regression is wanted.
    """

    def __init__(self, plan: LidPlan, codes: Codes, key: KeyRef, *, until: type = FittedRegression) -> None:
        made = rehearse(plan, stages_of(plan), codes, key=key, until=until)
        self.method, self.blocks = plan.method, made.result(TableBlocks).blocks
        self.synthetic = made.result(SyntheticInputs)
        self.model = made.result(FittedRegression).model if until is FittedRegression else None
        self.alpha, disclosed = self.synthetic.alpha, made.operator["disclosure"]
        self.lid = disclosed["rows_near"] / disclosed["rows"]

    def rows(self, *, alpha: float | None = None, model: Any = None) -> Rows:
        """Inputs and responses on the unit interval, with another alpha or another regression where given."""
        how = (self.method, self.synthetic.features, self.alpha if alpha is None else alpha)
        pairs = zip(self.blocks, self.synthetic.rows, strict=True)
        return joined([released_block(how, block, rows, model or self.model) for block, rows in pairs])


def plain(width: int) -> Features:
    """Inputs as they are."""
    return Features((Scale(name="x", low=0, high=1),) * width, np.ones(width))


def ridge(regression: RegressionSpec, inputs: Floats, responses: Floats, sample: Sample, key: KeyRef) -> Any:
    """Kernel ridge regression of rows that are in memory."""
    tuning, seen = tuning_of(regression, sample), plain(inputs.shape[1])
    rows, estimator = (inputs, responses), regression.estimator_for(len(inputs))
    if estimator == "exact":
        return fit_all(seen, tuning, [rows])
    if estimator == "distributed":
        return average([fit_groups(seen, (tuning, key, regression.group_rows, len(inputs)), rows, 0)])
    landmarks = sample[1][: regression.landmarks]
    sums = landmark_sums(seen, tuning, landmarks, rows)
    return fit_nystroem(sums, landmarks, kernel=tuning.kernel, penalty=tuning.penalty)


# --- models that users train ------------------------------------------------------------------------------------------


class Ridge:
    """Kernel ridge regression, tuned by cross-validation."""

    width: float | None = None

    def fit(self, inputs: Floats, responses: Floats) -> None:
        order = np.random.default_rng(0).permutation(len(inputs))
        inputs, responses = inputs[order], responses[order]
        sample = (np.arange(400, dtype=np.uint64), inputs[:400], responses[:400])
        self.model = ridge(RegressionSpec(width=self.width), inputs, responses, sample, key(0))

    def predict(self, inputs: Floats) -> Floats:
        return np.asarray(self.model.predict(inputs))


class PublishedRidge(Ridge):
    """The same with the published kernel, of width 1, on the simulated inputs: its penalty alone is tuned."""

    width = 1.0


class NadarayaWatson:
    """Gaussian kernel regression, the bandwidth by leave-one-out on 400 rows."""

    def fit(self, inputs: Floats, responses: Floats) -> None:
        self.inputs, self.responses = inputs, responses
        seen = np.random.default_rng(0).permutation(len(inputs))[:400]
        squares = self._squares(inputs[seen], inputs[seen])
        np.fill_diagonal(squares, np.inf)
        unit = float(np.median(squares[np.isfinite(squares)])) or 1.0
        errors = {}
        for width in unit * np.geomspace(1e-3, 1, 16):
            errors[width] = mse(responses[seen], self._mean(squares, responses[seen], width))
        self.width = min(errors, key=lambda width: errors[width])

    @staticmethod
    def _squares(a: Floats, b: Floats) -> Floats:
        return np.asarray(((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T).clip(0))

    @staticmethod
    def _mean(squares: Floats, responses: Floats, width: float) -> Floats:
        shifted = squares - squares.min(axis=1, keepdims=True)
        weights = np.exp(-shifted / (2 * width))
        return np.asarray(weights @ responses / weights.sum(axis=1))

    def predict(self, inputs: Floats) -> Floats:
        pieces = [inputs[i : i + 500] for i in range(0, len(inputs), 500)]
        return np.concatenate([self._mean(self._squares(p, self.inputs), self.responses, self.width) for p in pieces])


MODELS: dict[str, Callable[[], Any]] = {
    "KRR": Ridge,
    "NW": NadarayaWatson,
    "AdaBoost": lambda: AdaBoostRegressor(n_estimators=50, random_state=0),
    "RF": lambda: RandomForestRegressor(n_estimators=50, min_samples_leaf=3, random_state=0, n_jobs=1),
    "published KRR": PublishedRidge,
}
ALL = ("KRR", "NW", "AdaBoost", "RF")


def errors(train: Rows, test: Rows, names: tuple[str, ...] = ALL) -> dict[str, float]:
    """Mean squared error of each model on the test rows."""
    out = {}
    for name in names:
        model = MODELS[name]()
        model.fit(*train)
        out[name] = mse(test[1], model.predict(test[0]))
    return out


def both(a: Rows, b: Rows) -> Rows:
    """The rows of two tables."""
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])


def mean_sd(values: list[float]) -> dict[str, float]:
    """Mean and standard deviation of trials."""
    return {"mean": float(np.mean(values)), "sd": float(np.std(values))}


class Nothing:
    """No second stage, where only inputs matter."""

    def predict(self, inputs: Floats) -> Floats:
        return np.zeros(len(inputs))


# --- The simulated regression: g, its inputs and its rows


def g(x: Floats) -> Floats:
    """Wendland's function of smoothness 4 in three dimensions."""
    r = np.linalg.norm(x, axis=1)
    return np.asarray(np.maximum(1 - r, 0) ** 6 * (35 * r * r + 18 * r + 3))


def inputs(rows: int, rng: np.random.Generator, mean: float = 0.4) -> Floats:
    """Gaussian inputs on the unit cube, with correlation 0.5."""
    cov = 0.15**2 * (0.5 + 0.5 * np.eye(3))
    return np.clip(rng.multivariate_normal([mean] * 3, cov, rows), 0, 1)


def simulated(rows: int, rng: np.random.Generator, mean: float = 0.4) -> Rows:
    """Rows of the simulated regression."""
    x = inputs(rows, rng, mean)
    return x, g(x) + rng.normal(0, np.sqrt(0.2), rows)
