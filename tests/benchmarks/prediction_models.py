"""What the benchmarks of two-stage synthesis share: the models that users of a release train, and their errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import AdaBoostRegressor, RandomForestRegressor

from dpdist.families.prediction.lid.method import Regression
from dpdist.families.prediction.lid.regression import fit
from dpdist.families.prediction.metrics import mse
from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data"))
ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
FILES = {
    "insurance": "insurance.csv",
    "eia": "eia.csv",
    "california": "california_housing.csv",
    "census1080": "census_1080.csv",
    "tarragona": "tarragona.csv",
}

Rows = tuple[Floats, Floats]


def key(seed: int) -> Noise:
    """A key for a trial."""
    return Noise(seed.to_bytes(32, "big"))


class Ridge:
    """Kernel ridge regression, tuned by cross-validation."""

    width: float | None = None

    def fit(self, inputs: Floats, responses: Floats) -> None:
        order = np.random.default_rng(0).permutation(len(inputs))
        inputs, responses = inputs[order], responses[order]
        words = np.arange(len(inputs), dtype=np.uint64)
        method = Regression(tuning_rows=400, width=self.width)
        self.model = fit(method, [(inputs, responses)], (words, inputs, responses), key(0))

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
    """No second stage."""

    def fit(self, inputs: Floats, responses: Floats) -> None:
        pass

    def predict(self, inputs: Floats) -> Floats:
        return np.zeros(len(inputs))


IDLE = Regression(hook=f"{__name__}:Nothing")
"""No second stage, where only inputs matter."""
