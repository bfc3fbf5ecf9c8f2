"""The section on regression: predicting a number.

A user has a small public table of the same kind and trains a model on it; then on the synthetic table; then on both.
``delta_mse`` is what the synthetic table gains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpdist.evaluation.binning import View
from dpdist.evaluation.estimators import estimator
from dpdist.evaluation.page import plots
from dpdist.evaluation.page.sections import Cell, PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.utility.models import ModelKind
from dpdist.evaluation.utility.trial import Prediction, Trial, too_small
from dpdist.families.base.attempt import Progress
from dpdist.privacy.arrays import Codes

SMALL = 200
"""Records of the small table of one's own that released records are added to."""

_BOTH = "few real and released"


REGRESSORS = {
    "ridge": ModelKind(estimator("linear_model:Ridge", alpha=1.0), "indicators"),
    "random forest": ModelKind(
        estimator("ensemble:RandomForestRegressor", n_estimators=40, min_samples_leaf=3, max_leaf_nodes=600), "codes"
    ),
    "gradient boosting": ModelKind(
        estimator("ensemble:HistGradientBoostingRegressor", max_iter=100, early_stopping=False), "codes"
    ),
}


def regression_section(trial: Trial, view: View, target: int, *, progress: Progress) -> PageSection:
    """Mean squared error of a number, for models of real, released and both records.

    A user has `SMALL` records of their own; delta MSE is the share of the error that released records remove
    when they are added (`dpdist.evaluation.utility.regression.delta_mse`).
    """
    name, title = "regression", f"Regression of {view.names[target]}"
    if view.axes[target].edges is None:
        return does_not_apply(name, "Regression", "the attribute to predict is not a continuous number.")
    if trial.too_small or len(view.names) < 2:
        return too_small(name, title)
    encoder = Prediction(trial, view, target).encoder
    truth = np.asarray(trial.test[target], np.float64)
    small = [column[:SMALL] for column in trial.training["real"]]
    both: Codes = [np.concatenate(pair) for pair in zip(small, trial.training["released"], strict=True)]
    tables: dict[str, Codes] = {**trial.training, "few real": small, _BOTH: both}
    variance = float(np.var(truth)) or 1.0
    rows: list[tuple[Cell, ...]] = []
    figures: dict[str, dict[str, float]] = {}
    for done, (kind, model) in enumerate(REGRESSORS.items()):
        progress("regression", done, len(REGRESSORS))
        test = encoder.matrix(trial.test, model.sees)
        errors = {}
        for source, codes in tables.items():
            fitted = model.make(trial.seed).fit(encoder.matrix(codes, model.sees), codes[target].astype(np.float64))
            errors[source] = mse(truth, fitted.predict(test))
        gained = delta_mse(errors["few real"], errors[_BOTH])
        figures[kind] = errors | {"delta_mse": gained}
        for source, error in errors.items():
            rows.append((kind, source, error, 1 - error / variance, gained if source == _BOTH else None))
    progress("regression", len(REGRESSORS), len(REGRESSORS))
    best = min(figures, key=lambda kind: figures[kind]["real"])
    ours, theirs = figures[best]["released"], figures[best]["real"]
    gained = figures[best]["delta_mse"]
    effect = f"remove {gained:.1%} of the error" if gained >= 0 else f"raise the error by {-gained:.1%}"
    verdict = (
        f"The best model of real records ({best}) explains {1 - theirs / variance:.1%} of the variance, the same kind "
        f"of model of released ones {1 - ours / variance:.1%}. Released records added to {SMALL} of one's own {effect}."
    )
    explained = 1 - theirs / variance
    kept = (1 - ours / variance) / explained if explained > 0.02 else None
    state: State = "info" if kept is None else "good" if kept >= 0.9 else "fair" if kept >= 0.6 else "bad"
    columns = ("model", "trained on", "MSE", "variance explained", "delta MSE")
    table = PageTable(title, columns, tuple(rows), f"Few real: {len(small[0]):,} records. {trial.sentence}")
    series = [
        (source, [max(1 - figures[kind][source] / variance, 0.0) for kind in figures], colour)
        for source, colour in (("real", plots.REAL), ("released", plots.RELEASED), ("few real", plots.OTHER))
    ]
    plot = plots.bar_plot(f"Variance of {view.names[target]} explained", list(figures), series, label="explained")
    recorded = {"target": view.names[target], "variance": variance, "mse": figures, "train_rows": trial.rows[0]}
    return PageSection(name, title, verdict, state, (table,), (plot,), recorded)


def mse(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Mean squared error."""
    return float(np.mean((np.asarray(truth, np.float64) - np.asarray(predicted, np.float64)) ** 2))


def delta_mse(without: float, with_synthetic: float) -> float:
    """Share of the error that the synthetic table removes: above zero where it helps."""
    return (without - with_synthetic) / without
