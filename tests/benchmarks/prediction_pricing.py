"""Prices from synthetic sales: elasticities, mark-ups and profits of brands with log-log demand.

The own-price elasticity beta < -1 of a brand gives its *optimal mark-up* over marginal cost, ``OMU = -1 / (1 + beta)``,
and the *optimal profit ratio*: the profit at the price that an estimated elasticity suggests, over the profit at the
price of the true one. ``MAPD`` is the mean absolute percentage deviation of elasticities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
from harness import DATA
from numpy.typing import ArrayLike
from prediction_models import ALPHAS, Synthesis, key, numbers_plan

from dpdist.privacy.arrays import Floats

ELASTICITIES = (-1.8, -2.2, -2.6, -3.2, -3.9)


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


def demand(rows: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Log prices, float64[n, 5], and log sales, float64[n, 5], of five brands: simulated, with known elasticities."""
    prices = rng.normal(np.log([2.0, 2.4, 2.9, 3.3, 3.8]), 0.18, (rows, 5))
    prices += np.log(0.8) * (rng.random((rows, 5)) < 0.2)  # promotions of 20 %
    cross = np.full((5, 5), 0.25)
    np.fill_diagonal(cross, ELASTICITIES)
    return prices, 7 + prices @ cross.T + rng.normal(0, 0.35, (rows, 5))


def elasticity(prices: Floats, sales: Floats, brand: int) -> float:
    """Own-price elasticity by least squares on all log prices."""
    design = np.column_stack([np.ones(len(prices)), prices])
    return float(np.linalg.lstsq(design, sales, rcond=None)[0][1 + brand])


def tuna() -> tuple[Floats, Floats, list[int]] | None:
    """Log prices of seven brands, log sales, and the five brands with elastic demand; None without the file.

    Canned tuna in one chain, 338 weeks: ``tuna.csv`` is the table ``tuna`` of the R package bayesm.
    """
    path = DATA / "tuna.csv"
    if not path.exists():
        return None
    table = pa_csv.read_csv(path)
    prices = np.column_stack([np.asarray(table[f"LPRICE{i}"]) for i in range(1, 8)])
    sales = np.log(np.column_stack([np.asarray(table[f"MOVE{i}"], np.float64) for i in range(1, 8)]))
    betas = [elasticity(prices, sales[:, brand], brand) for brand in range(7)]
    return prices, sales, sorted(np.argsort(betas)[:5].tolist())


def pricing(trials: int) -> dict[str, Any]:
    """Elasticities, mark-ups and profits from synthetic sales of five brands: simulated, and real where at hand."""
    out: dict[str, Any] = {"true_elasticities": ELASTICITIES, "true_omu": optimal_markup(ELASTICITIES).tolist()}
    rows: dict[str, dict[str, list[Any]]] = {}
    for trial in range(trials):
        prices, sales = demand(520, np.random.default_rng(trial))
        priced(rows, prices, sales, list(range(5)), low=-0.5, high=2.5, seed=trial)
    out["simulated"] = averaged(rows)
    real, rows = tuna(), {}
    if real is not None:
        for trial in range(trials):
            priced(rows, *real, low=-1.0, high=2.0, seed=trial)
        out["tuna_brands"] = [brand + 1 for brand in real[2]]
        out["tuna"] = averaged(rows)
    return out


def averaged(rows: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
    """Means over trials."""
    return {
        name: {what: np.mean(values, axis=0).round(4).tolist() for what, values in row.items()}
        for name, row in rows.items()
    }


def priced(
    rows: dict[str, dict[str, list[Any]]],
    prices: Floats,
    sales: Floats,
    brands: list[int],
    *,
    low: float,
    high: float,
    seed: int,
) -> None:
    """Add a trial: elasticities of brands from the original table and from synthetic ones."""
    bounds = {f"p{i}": (low, high) for i in range(prices.shape[1])}
    original = [elasticity(prices, sales[:, brand], brand) for brand in brands]
    rows.setdefault("original", {}).setdefault("elasticity", []).append(original)
    rows["original"].setdefault("omu", []).append(optimal_markup(original))
    for matching in ("nearest", "independent"):
        for alpha in ALPHAS[1:]:
            estimated, lid = [], 0.0
            for brand in brands:
                sold = (float(sales[:, brand].min()) - 1, float(sales[:, brand].max()) + 1)
                plan = numbers_plan({**bounds, "sold": sold}, eta=0.001, alpha=alpha, matching=matching)
                made = Synthesis(plan, [*prices.T, sales[:, brand]], key(1000 * seed + brand))
                inputs, responses = made.rows()
                back = np.column_stack([scale.values(inputs[:, i]) for i, scale in enumerate(plan.method.scales)])
                estimated.append(elasticity(back, plan.spec.response.values(responses), brand))
                lid += made.lid / len(brands)
            row = rows.setdefault(f"{matching}, alpha {alpha:g}", {})
            row.setdefault("lid", []).append(lid)
            row.setdefault("mapd", []).append(mean_absolute_percentage_deviation(original, estimated))
            row.setdefault("omu", []).append(optimal_markup(estimated))
            row.setdefault("opr", []).append(optimal_profit_ratio(original, estimated))
