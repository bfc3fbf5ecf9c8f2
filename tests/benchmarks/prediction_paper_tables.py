"""The five brands and the five tables of the two-stage paper, with its columns, sizes and requirements."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
from harness import DATA, keep
from numpy.typing import ArrayLike
from prediction_models import ALL, FILES, Ridge, Rows, both, errors, mean_sd
from prediction_published import hypercube, near

from dpdist.evaluation.utility.learning import delta_mse
from dpdist.families.prediction.lid.inputs import match, mix
from dpdist.privacy.arrays import Floats

ETAS = (1e-3, 1e-4)
GRIDS = ("paper", "ours")
"""Bandwidths of the densities: 0.05 to 2 on columns of width 1, or 0.02 to 2 of Silverman's rule."""

MATCHINGS = ("nearest", "greedy", "independent")

# --- prices -----------------------------------------------------------------------------------------------------------

BETAS = (-1.5, -1.7, -2.01, -1.98, -1.9)
"""Elasticities, derived from the paper's mark-ups."""

PRINTED_MAPD = {
    "public D'": "2.63",
    "original D": "0.33",
    "nearest, alpha 0.2, with D'": "0.12",
    "nearest, alpha 0.2": "0.32",
    "nearest, alpha 0.5": "0.32",
    "nearest, alpha 0.8": "0.32",
    "nearest, alpha 1": "0.33",
}

LEVEL, SPREAD, NOISE = 2.0, 0.18, 0.5
"""Mean and deviation of log prices and deviation of the noise; the text has none of them, and two determine MAPD."""


def slope(x: Floats, y: Floats) -> float:
    """Least squares through the origin."""
    return float(x @ y / (x @ x))


def paper_prices(trials: int) -> dict[str, Any]:
    """Mark-ups, profits and deviations of elasticities, as in the paper's Tables 4 and 8.

    The paper indexes the noise by brand; its printed errors have one sign and nearly one size in all brands, as one
    draw for all brands would give. Both are run.
    """
    found = {said: _prices(trials, draws) for said, draws in (("by brand", len(BETAS)), ("one for all", 1))}
    rows = [
        [name, printed, *(f"{found[said][name]['mapd']:.2f} ± {found[said][name]['mapd_sd']:.2f}" for said in found)]
        for name, printed in PRINTED_MAPD.items()
    ]
    about = {
        "title": "The paper's prices: MAPD by how noise is drawn",
        "note": f"Per cent, mean ± deviation of {trials} trials. The paper indexes noise by brand.",
    }
    keep("prediction", "prices_noise", about, ["data", "paper", "a draw for each brand", "one draw for all"], rows)
    return found


def _prices(trials: int, draws: int) -> dict[str, Any]:
    found: dict[str, dict[str, list[Any]]] = {}

    def add(name: str, betas: list[float], lid: float | None = None) -> None:
        row = found.setdefault(name, {})
        row.setdefault("omu", []).append(100 * np.array(optimal_markup(betas)))
        row.setdefault("opr", []).append(100 * np.array(optimal_profit_ratio(BETAS, betas)))
        row.setdefault("mapd", []).append(100 * mean_absolute_percentage_deviation(BETAS, betas))
        if lid is not None:
            row.setdefault("lid", []).append(100 * lid)

    for trial in range(trials):
        rng = np.random.default_rng(trial)
        x, noise = rng.normal(LEVEL, SPREAD, 1040), rng.normal(0, NOISE, (draws, 1040))
        x_public, public = rng.normal(LEVEL, SPREAD, 20), rng.normal(0, NOISE, (draws, 20))
        original, known = (
            [
                beta * prices + errors
                for beta, errors in zip(BETAS, np.resize(drawn, (len(BETAS), len(prices))), strict=True)
            ]
            for prices, drawn in ((x, noise), (x_public, public))
        )
        made = hypercube(x[:, None], [(x.min() - 0.5, x.max() + 0.5)], rng)
        teachers = []
        for y in original:
            teacher = Ridge()
            teacher.fit(x[:, None], y)
            teachers.append(teacher)
        add("original D", [slope(x, y) for y in original])
        add("public D'", [slope(x_public, y) for y in known])
        for matching in MATCHINGS:
            matched = made[match(x[:, None], made, method=matching)]
            for alpha in (0.2, 0.5, 0.8, 1.0):
                mixed = mix(x[:, None], matched, alpha=alpha)
                told = [teacher.predict(mixed) for teacher in teachers]
                lid = near(x[:, None], mixed, 1e-4)
                add(f"{matching}, alpha {alpha:g}", [slope(mixed[:, 0], y) for y in told], lid)
                if alpha == 0.2:
                    x_all = np.concatenate([x_public, mixed[:, 0]])
                    all_y = [np.concatenate(pair) for pair in zip(known, told, strict=True)]
                    add(f"{matching}, alpha 0.2, with D'", [slope(x_all, y) for y in all_y])
    return {
        name: {what: np.mean(values, axis=0).round(3).tolist() for what, values in row.items()}
        | {"mapd_sd": float(np.std(row["mapd"]))}
        for name, row in found.items()
    }


SHIFTED = (0.2, 0.6, 1.0, 1.4, 2.0)
"""Deviations of what is added to test prices, of the paper's 0.2 to 2.0."""


def mismatched_prices(trials: int) -> dict[str, Any]:
    """What synthetic records (alpha 0.2) take off the error at other prices than were seen: the paper's Figure 12."""
    found: dict[float, dict[str, list[float]]] = {}
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        x, known, test = (rng.normal(LEVEL, SPREAD, size) for size in (1040, 20, 1040))
        made = hypercube(x[:, None], [(x.min() - 0.5, x.max() + 0.5)], rng)
        mixed = mix(x[:, None], made[match(x[:, None], made)], alpha=0.2)
        for beta in BETAS:
            teacher = Ridge()
            teacher.fit(x[:, None], beta * x + rng.normal(0, NOISE, 1040))
            public = known, beta * known + rng.normal(0, NOISE, 20)
            joined = np.concatenate([known, mixed[:, 0]]), np.concatenate([public[1], teacher.predict(mixed)])
            slopes = slope(*public), slope(*joined)
            for spread in SHIFTED:
                seen = test + rng.normal(0, spread, len(test))
                edges = np.linspace(-6, 10, 81)
                p, q = (np.histogram(column, edges)[0] / len(column) for column in (x, seen))
                errors_of = [float(np.mean((one * seen - beta * seen) ** 2)) for one in slopes]
                row = found.setdefault(spread, {"tv": [], "public": [], "joined": [], "gain": []})
                for name, value in zip(row, (np.abs(p - q).sum() / 2, *errors_of, delta_mse(*errors_of)), strict=True):
                    row[name].append(float(value))
    rows = [
        [
            f"{spread:g}",
            f"{np.mean(row['tv']):.2f}",
            *(f"{1e4 * np.mean(row[name]):.1f}" for name in ("public", "joined")),
            f"{100 * np.median(row['gain']):.0f}",
            f"{100 * np.mean(np.array(row['gain']) > 0):.0f}",
        ]
        for spread, row in found.items()
    ]
    about = {
        "title": "Figure 12 of the two-stage paper: other prices than were seen",
        "note": f"Test prices with added N(0, s²); squared error × 10⁴ of the fitted line, α = 0.2, {trials} trials of "
        "five brands; a line through the origin errs in proportion, so its ΔMSE does not depend on s.",
    }
    heads = ["s", "tv of prices", "public D′", "D′ + D*", "median ΔMSE, %", "ΔMSE above 0, %"]
    keep("prediction", "mismatched_prices", about, heads, rows)
    return {"trials": trials, "rows": rows}


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaperTable:
    """A table as the paper uses it."""

    inputs: str  # column names
    response: str
    sizes: tuple[int, int, int]  # private, public and test records
    lid: tuple[float, float]  # most LID of inputs and of the response, per cent
    gain: float  # least delta MSE, per cent
    kept: str = ""  # inputs that stay original


TABLES = {
    "insurance": PaperTable(
        "age bmi children sex smoker region", "charges", (1000, 200, 138), (15, 2), 5, "children sex smoker region"
    ),
    "eia": PaperTable(
        "RESREVENUE RESSALES COMREVENUE COMSALES INDSALES OTHREVENUE OTHRSALES TOTREVENUE TOTSALES",
        "INDREVENUE",
        (1000, 300, 200),
        (5, 12),
        50,
    ),
    "california": PaperTable(
        "longitude latitude housing_median_age total_rooms total_bedrooms population households median_income "
        "ocean_proximity",
        "median_house_value",
        (1000, 300, 200),
        (12, 1.5),
        10,
        "ocean_proximity",
    ),
    "census1080": PaperTable(
        "AFNLWGT AGI EMCONTRB PTOTVAL STATETAX TAXINC POTHVAL INTVAL PEARNVAL FICA WSALVAL ERNVAL",
        "FEDTAX",
        (800, 180, 100),
        (6, 5),
        30,
    ),
    "tarragona": PaperTable("PAID.UP.CAPITAL OPERATING.PROFIT GROSS.PROFIT", "NET.PROFIT", (600, 134, 100), (5, 3), 50),
}


NAMES = dict(zip(TABLES, ("Insurance", "EIA", "California", "Census", "Tarragona"), strict=True))


def columns(name: str) -> tuple[Floats, Floats, list[int]]:
    """Inputs and response of a table on [0, 1] by their ranges, and the places of the inputs that are synthesised."""
    paper, table = TABLES[name], pa_csv.read_csv(DATA / FILES[name]).drop_null()
    names, kept, inputs, made = paper.inputs.split(), paper.kept.split(), [], []
    for column in names:
        values = table[column].to_numpy(zero_copy_only=False)
        if values.dtype == object:
            _, codes = np.unique(values.astype(str), return_inverse=True)
            inputs += list(np.eye(codes.max() + 1)[codes].T)  # an indicator for each category
            continue
        if column not in kept:
            made.append(len(inputs))
        inputs.append(np.asarray(values, np.float64))
    response = table[paper.response].to_numpy(zero_copy_only=False).astype(np.float64)
    every = np.column_stack([*inputs, response])
    every = (every - every.min(axis=0)) / np.ptp(every, axis=0)
    return every[:, :-1], every[:, -1], made


def synthetic(x: Floats, made: list[int], rng: np.random.Generator, *, paper: bool) -> dict[str, Floats]:
    """The matched synthetic rows of each way of matching."""
    original = x[:, made]
    drawn = hypercube(original, [(0.0, 1.0)] * len(made), rng, paper=paper)
    weights = 1 / np.maximum(original.std(axis=0), 1e-9)
    return {how: drawn[match(original * weights, drawn * weights, method=how)] for how in MATCHINGS}


def paper_tables(trials: int, names: Sequence[str] = tuple(TABLES)) -> dict[str, Any]:
    """LID of inputs and response at both etas, and the gain for four models, at alpha 0.5; and the alphas that meet."""
    out: dict[str, Any] = {}
    for name in names:
        paper, found = TABLES[name], dict[str, list[float]]()
        x, y, made = columns(name)

        def add(what: str, value: float, found: dict[str, list[float]] = found) -> None:
            found.setdefault(what, []).append(value)

        for trial in range(trials):
            rng = np.random.default_rng(trial)
            rows = rng.permutation(len(y))[: sum(paper.sizes)]
            parts = np.split(rows, np.cumsum(paper.sizes)[:-1])
            private, public, test = ((x[part], y[part]) for part in parts)
            teacher = Ridge()
            teacher.fit(*private)
            alone = errors(public, test)
            rows_of = {
                f"{grid}, {how}": matched
                for grid in GRIDS
                for how, matched in synthetic(private[0], made, rng, paper=grid == "paper").items()
            }
            for how, matched in rows_of.items():
                mixed = _mixed(private[0], matched, made, 0.5)
                told: Rows = mixed, teacher.predict(mixed)
                for eta in ETAS:
                    add(f"{how}, LID input, {eta:g}", 100 * near(private[0][:, made], mixed[:, made], eta))
                    add(f"{how}, LID output, {eta:g}", 100 * near(private[1], told[1], eta))
                    add(f"{how}, largest alpha, {eta:g}", _largest(private[0][:, made], matched, paper.lid[0], eta))
                if not how.endswith("greedy"):
                    for model, error in errors(both(public, told), test).items():
                        add(f"{how}, delta MSE, {model}", 100 * delta_mse(alone[model], error))
        out[name] = {"required": {"LID": paper.lid, "delta MSE": paper.gain}, "trials": trials} | {
            what: mean_sd(values) | {"least": min(values), "median": float(np.median(values))}
            for what, values in found.items()
        }
        print(name, file=sys.stderr, flush=True)
    if len(names) == len(TABLES):
        _kept(out, trials)
    return out


def _kept(out: dict[str, Any], trials: int) -> None:
    """Write both tables of the results again."""
    about = {
        "title": "The paper's five tables: LID",
        "note": f"Per cent at η = 10⁻³ | 10⁻⁴, α = 0.5, means of {trials} splits, columns on [0, 1] by their ranges. "
        "Paper: `density.bandwidths: paper`; ours: `silverman`. Greedy matching is the published one. —: no α.",
    }
    lid, gain = [], []
    for name, found in out.items():
        most, least = found["required"]["LID"], found["required"]["delta MSE"]
        for grid in GRIDS:
            row = [f"{found[f'{grid}, {how}, LID input, {eta:g}']['mean']:.1f}" for how in MATCHINGS for eta in ETAS]
            row += [f"{found[f'{grid}, {how}, LID output, {eta:g}']['mean']:.1f}" for how in MATCHINGS for eta in ETAS]
            alphas = [found[f"{grid}, {how}, largest alpha, {eta:g}"]["least"] for how in MATCHINGS for eta in ETAS]
            row += ["—" if alpha < 0 else f"{alpha:g}" for alpha in alphas]
            pairs = [" | ".join(row[at : at + 2]) for at in range(0, len(row), 2)]
            lid.append([NAMES[name], grid, str(most[0]), *pairs[:3], str(most[1]), *pairs[3:]])
            for how in MATCHINGS:
                errors_of = [found.get(f"{grid}, {how}, delta MSE, {model}") for model in ALL]
                if all(errors_of):
                    gain.append(
                        [NAMES[name], grid, how, str(least)]
                        + [f"{one['mean']:.0f} ± {one['sd']:.0f} ({one['median']:.0f})" for one in errors_of if one]
                    )
    names = ("optimal", "greedy", "independent")
    columns = ["table", "bandwidths", "LID of inputs, at most", *(f"inputs, {how}" for how in names)]
    columns += ["LID of the response, at most", *(f"response, {how}" for how in names)]
    keep("prediction", "tables_lid", about, [*columns, *(f"largest α, {how}" for how in names)], lid)
    about = {
        "title": "The paper's five tables: ΔMSE",
        "note": f"Per cent, α = 0.5, mean ± deviation (median) of {trials} splits.",
    }
    columns = ["table", "bandwidths", "matching", "at least", "KRR", "Nadaraya–Watson", "AdaBoost", "random forest"]
    keep("prediction", "tables_mse", about, columns, gain)


def _mixed(x: Floats, matched: Floats, made: list[int], alpha: float) -> Floats:
    out = x.copy()
    out[:, made] = mix(x[:, made], matched, alpha=alpha)
    return out


def _largest(original: Floats, matched: Floats, most: float, eta: float) -> float:
    """The largest alpha, of a grid, whose LID is within the requirement; -1 where none exists."""
    within = [a / 20 for a in range(20) if 100 * near(original, mix(original, matched, alpha=a / 20), eta) <= most]
    return max(within, default=-1.0)


# --- Prices from synthetic sales: elasticities, mark-ups and profits of brands with log-log demand


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
