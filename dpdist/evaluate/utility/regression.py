"""The section on regression: predicting a number, and pricing with elasticities (two-stage releases).

A user has a small public table of the same kind and trains a model on it; then on the synthetic table; then on both.
``delta_mse`` is what the synthetic table gains. For a log-log demand model the own-price elasticity beta < -1 of a
brand gives its *optimal mark-up* over marginal cost, ``OMU = -1 / (1 + beta)``, and the *optimal profit ratio*: the
profit at the price that an estimated elasticity suggests, over the profit at the price of the true one. ``MAPD`` is
the mean absolute percentage deviation of elasticities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.errors import SpecError
from dpdist.evaluate.binning import View
from dpdist.evaluate.estimators import estimator
from dpdist.evaluate.page import plots
from dpdist.evaluate.page.sections import Cell, Section, State, Table, does_not_apply
from dpdist.evaluate.utility.models import Model
from dpdist.evaluate.utility.trial import Prediction, Trial, too_small
from dpdist.families.base.attempt import Progress
from dpdist.privacy.arrays import Codes, Floats

SMALL = 200
"""Records of the small table of one's own that released records are added to."""

_LEAST_OF_BRAND = 20
_BOTH = "few real and released"


REGRESSORS = {
    "ridge": Model(estimator("linear_model:Ridge", alpha=1.0), "indicators"),
    "random forest": Model(
        estimator("ensemble:RandomForestRegressor", n_estimators=40, min_samples_leaf=3, max_leaf_nodes=600), "codes"
    ),
    "gradient boosting": Model(
        estimator("ensemble:HistGradientBoostingRegressor", max_iter=100, early_stopping=False), "codes"
    ),
}


def regression_section(trial: Trial, view: View, target: int, *, progress: Progress) -> Section:
    """Mean squared error of a number, for models of real, released and both records.

    A user has `SMALL` records of their own; delta MSE is the share of the error that released records remove
    when they are added (`dpdist.evaluate.utility.regression.delta_mse`).
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
    table = Table(title, columns, tuple(rows), f"Few real: {len(small[0]):,} records. {trial.sentence}")
    series = [
        (source, [max(1 - figures[kind][source] / variance, 0.0) for kind in figures], colour)
        for source, colour in (("real", plots.REAL), ("released", plots.RELEASED), ("few real", plots.OTHER))
    ]
    plot = plots.bar_plot(f"Variance of {view.names[target]} explained", list(figures), series, label="explained")
    recorded = {"target": view.names[target], "variance": variance, "mse": figures, "train_rows": trial.rows[0]}
    return Section(name, title, verdict, state, (table,), (plot,), recorded)


def parse_demand(text: str, view: View) -> tuple[int, int, int | None]:
    """The places of quantity, price and brand in ``QUANTITY:PRICE[:BRAND]``. Raises SpecError: it is not of that form,
    or quantity or price is no continuous number of the schema.
    """
    parts = text.split(":")
    if len(parts) not in (2, 3) or not set(parts) <= set(view.names) or len(set(parts)) != len(parts):
        raise SpecError(f"--demand is QUANTITY:PRICE or QUANTITY:PRICE:BRAND, of {', '.join(view.names)}")
    places = [view.names.index(part) for part in parts]
    if any(view.axes[place].edges is None for place in places[:2]):
        raise SpecError("--demand: quantity and price are attributes of kind `number` without bins")
    return places[0], places[1], places[2] if len(places) == 3 else None


def elasticities(records: Codes, quantity: int, price: int, brands: NDArray[Any]) -> dict[int, float]:
    """Own-price elasticity of each brand with enough records: the slope of log quantity on log price."""
    q, p = (np.asarray(records[place], np.float64) for place in (quantity, price))
    positive = (q > 0) & (p > 0)
    found = {}
    for brand in np.unique(brands[positive]).tolist():
        rows = positive & (brands == brand)
        x, y = np.log(p[rows]), np.log(q[rows])
        spread = float(np.var(x))
        if len(x) >= _LEAST_OF_BRAND and spread > 0:
            found[int(brand)] = float(np.mean((x - x.mean()) * (y - y.mean()))) / spread
    return found


def demand_section(real: Codes, released: Codes, view: View, demand: str) -> Section:
    """Elasticities, optimal mark-ups and profit ratios of a log-log demand model, of real and of released records."""
    quantity, price, brand = parse_demand(demand, view)
    name, title = "demand", "Elasticities and prices"

    def of(records: Codes) -> dict[int, float]:
        brands = np.zeros(len(records[0]), np.int64) if brand is None else view.axes[brand].codes(records[brand])
        return elasticities(records, quantity, price, brands)

    true, estimated = of(real), of(released)
    both = sorted(set(true) & set(estimated))
    if not both:
        return does_not_apply(name, title, f"no brand has {_LEAST_OF_BRAND} records with positive quantity and price.")
    betas = [np.array([found[one] for one in both]) for found in (true, estimated)]
    markups = [optimal_markup(beta) for beta in betas]
    ratios = optimal_profit_ratio(*betas)
    mapd = mean_absolute_percentage_deviation(*betas)
    labels = ("all",) if brand is None else view.axes[brand].labels
    rows = tuple(
        (labels[one], betas[0][i], betas[1][i], markups[0][i], markups[1][i], ratios[i]) for i, one in enumerate(both)
    )
    columns = ("brand", "elasticity, real", "released", "optimal mark-up, real", "released", "optimal profit ratio")
    mean = float(np.nanmean(ratios)) if np.isfinite(ratios).any() else float("nan")
    verdict = f"Elasticities deviate by {mapd:.1%} on average (MAPD)" + (
        f"; prices set by released records earn {mean:.1%} of the best profit." if np.isfinite(mean) else "."
    )
    state: State = "good" if mapd <= 0.1 else "fair" if mapd <= 0.3 else "bad"
    figures = {"mapd": mapd, "optimal_profit_ratio": mean, "elasticity": {"real": betas[0], "released": betas[1]}}
    return Section(name, title, verdict, state, (Table(title, columns, rows, "Log-log demand model."),), (), figures)


def mse(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Mean squared error."""
    return float(np.mean((np.asarray(truth, np.float64) - np.asarray(predicted, np.float64)) ** 2))


def delta_mse(without: float, with_synthetic: float) -> float:
    """Share of the error that the synthetic table removes: above zero where it helps."""
    return (without - with_synthetic) / without


def optimal_markup(elasticity: ArrayLike) -> Floats:
    """Optimal mark-up over marginal cost, ``-1 / (1 + beta)``; NaN where demand is not elastic (beta >= -1)."""
    beta = np.asarray(elasticity, np.float64)
    elastic = beta < -1
    return np.where(elastic, -1 / np.where(elastic, 1 + beta, -1.0), np.nan)


def optimal_profit_ratio(true: ArrayLike, estimated: ArrayLike) -> Floats:
    """Profit at the estimated elasticity's price over the profit at the true one's; NaN where one is not elastic.

    With constant marginal cost c and demand ``p^beta`` the profit is ``(p - c) p^beta`` at ``p = c (1 + OMU)``.
    """
    beta, guess = np.asarray(true, np.float64), np.asarray(estimated, np.float64)
    best, chosen = optimal_markup(beta), optimal_markup(guess)
    return np.asarray((chosen / best) * ((1 + chosen) / (1 + best)) ** beta)


def mean_absolute_percentage_deviation(true: ArrayLike, estimated: ArrayLike) -> float:
    """Mean of ``|estimated - true| / |true|``."""
    beta, guess = np.asarray(true, np.float64), np.asarray(estimated, np.float64)
    return float(np.mean(np.abs(guess - beta) / np.abs(beta)))
