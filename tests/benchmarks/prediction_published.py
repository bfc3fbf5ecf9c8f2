"""The simulated regression of the two-stage paper: its function, inputs, sizes, grids, kernel and first stages.

Two things are not in the paper's text: the noise of the responses (0.1 here), and which deviation the noise of x3 has.
"N(0, 1)" is printed, but 0.14 is what the section on mismatch uses, so both are run. Rows stay in the units of the
paper, unclipped, because its Weibull and Cauchy first stages leave the unit cube.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from harness import keep
from prediction_models import ALPHAS, NadarayaWatson, Rows, Synthesis, both, key, mean_sd, numbers_plan
from prediction_models import Ridge as OwnRidge
from sklearn.ensemble import AdaBoostRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from dpdist.evaluation.utility.learning import delta_mse, mse
from dpdist.families.prediction.columns import Scale, to_units
from dpdist.families.prediction.first_stage import (
    CELLS,
    FOLDS,
    Target,
    cell_counts,
    correlation,
    fit_marginal,
    latin_hypercube,
    score_sums,
)
from dpdist.families.prediction.lid.inputs import match, mix
from dpdist.families.prediction.lid.ridge import KernelRidge, fit_exact, tune
from dpdist.privacy.arrays import Floats

ROWS, TEST, NOISE = 1000, 200, 0.1
LAMBDAS = np.arange(0, 0.0021, 0.0002)
SIZES = (20, 50, 100, 200, 500, 1000)
SHIFTS = tuple(round(0.1 * i, 1) for i in range(1, 11))


def g(x: Floats) -> Floats:
    """The paper's function."""
    r = np.linalg.norm(x, axis=1)
    return np.asarray(np.maximum(1 - r, 0) ** 5 * (1 + 5 * r) + r * r / 5)


def inputs(rows: int, rng: np.random.Generator, deviation: float) -> Floats:
    """The paper's inputs."""
    x = rng.random((rows, 2))
    return np.column_stack([x, (x**2).sum(axis=1) + rng.normal(0, deviation, rows)])


def table(rows: int, rng: np.random.Generator, deviation: float) -> Rows:
    """Inputs and noisy responses."""
    x = inputs(rows, rng, deviation)
    return x, g(x) + rng.normal(0, NOISE, rows)


class Ridge:
    """The paper's kernel of support 1, lambda by 5-fold cross-validation on 500 rows over the paper's grid."""

    intercept = True

    def fit(self, x: Floats, y: Floats) -> None:
        order = np.random.default_rng(0).permutation(len(x))
        x, y = x[order], y[order]
        some = min(len(x), 500)
        penalties = [max(float(value), 1e-10) * some for value in LAMBDAS]
        chosen = {"kernel": "compact", "width": 1.0, "penalties": penalties, "intercept": self.intercept}
        found = tune(x[:some], y[:some], **chosen)
        self.model: KernelRidge = fit_exact(x, y, kernel=found.kernel, penalty=found.penalty * len(x) / some)

    def predict(self, x: Floats) -> Floats:
        return self.model.predict(x)


class EquationSeven(Ridge):
    """The same without an intercept, as the paper's equation (7) is printed."""

    intercept = False


DEPTHS, TREES = (2, 4, 6, 8, 10), range(10, 201, 10)
Ensemble = tuple[int, int]
"""Depth (every second one of the paper's grid) and number of trees."""


def boosted(x: Floats, y: Floats, size: Ensemble) -> Any:
    """AdaBoost of that size."""
    tree = DecisionTreeRegressor(max_depth=size[0])
    return AdaBoostRegressor(tree, n_estimators=size[1], random_state=0).fit(x, y)


def forest(x: Floats, y: Floats, size: Ensemble) -> Any:
    """A random forest of that size."""
    return RandomForestRegressor(size[1], max_depth=size[0], random_state=0).fit(x, y)


def staged(model: Any, x: Floats) -> list[Floats]:
    """Predictions with each number of trees of the grid."""
    if isinstance(model, RandomForestRegressor):
        trees = np.cumsum([tree.predict(x) for tree in model.estimators_], axis=0)
        return [trees[count - 1] / count for count in TREES]
    each = list(model.staged_predict(x))  # boosting may stop early
    return [each[min(count, len(each)) - 1] for count in TREES]


def sized(make: Callable[[Floats, Floats, Ensemble], Any], x: Floats, y: Floats) -> Ensemble:
    """Depth and trees by 5-fold cross-validation over the paper's grid."""
    folds = np.random.default_rng(0).permutation(len(x)) % 5
    error = np.zeros((len(DEPTHS), len(TREES)))
    for fold in range(5):
        held = folds == fold
        for place, depth in enumerate(DEPTHS):
            model = make(x[~held], y[~held], (depth, TREES[-1]))
            error[place] += [mse(y[held], p) for p in staged(model, x[held])]
    place, count = np.unravel_index(np.argmin(error), error.shape)
    return DEPTHS[int(place)], TREES[int(count)]


class Models:
    """The paper's four models. The sizes of ensembles are chosen once for each kind of table, on its first trial."""

    def __init__(self) -> None:
        self.sizes: dict[tuple[str, str], Ensemble] = {}

    def fitted(self, kind: str, train: Rows, name: str) -> Any:
        """A model of a table."""
        if name in ("KRR", "NW"):
            model: Any = Ridge() if name == "KRR" else NadarayaWatson()
            model.fit(*train)
            return model
        make = boosted if name == "AdaBoost" else forest
        if (name, kind) not in self.sizes:
            self.sizes[name, kind] = sized(make, *train)
        return make(*train, self.sizes[name, kind])

    def errors(self, kind: str, train: Rows, test: Rows, names: tuple[str, ...]) -> dict[str, float]:
        """Mean squared errors on the test rows."""
        return {name: mse(test[1], self.fitted(kind, train, name).predict(test[0])) for name in names}


# --- first stages -----------------------------------------------------------------------------------------------------


def hypercube(
    x: Floats, ends: Sequence[tuple[float, float]], rng: np.random.Generator, *, paper: bool = False
) -> Floats:
    """The product's Latin hypercube between the ends of the columns: densities, perhaps with the paper's bandwidths,
    correlation, inverse distributions.
    """
    scales = [Scale(name=f"x{i}", low=float(low), high=float(high)) for i, (low, high) in enumerate(ends)]
    units, folds = to_units(scales, list(x.T)), rng.integers(0, FOLDS, len(x))
    counts = [cell_counts(units[:, i], folds, CELLS) for i in range(len(scales))]
    marginals = tuple(fit_marginal(one, scale, paper=paper) for one, scale in zip(counts, scales, strict=True))
    made = latin_hypercube(Target(marginals, correlation(score_sums(units, marginals))), len(x), rng)
    return np.column_stack([scale.values(made[:, i]) for i, scale in enumerate(scales)])


def ends_of(x: Floats) -> list[tuple[float, float]]:
    """Ends of the three inputs; the third has none in the paper, so they leave room for its values."""
    return [(0.0, 1.0), (0.0, 1.0), (min(-1.0, x[:, 2].min()), max(3.0, x[:, 2].max()))]


FIRST: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "LHS": lambda x, rng: hypercube(x, ends_of(x), rng),
    "U(0, 1)": lambda x, rng: rng.random(x.shape),
    "Weibull(1, 8)": lambda x, rng: rng.weibull(8, x.shape),
    "Cauchy(0, 1)": lambda x, rng: rng.standard_cauchy(x.shape),
}
RUNS = (
    *((name, name, "nearest") for name in FIRST),
    ("LHS, greedy (published)", "LHS", "greedy"),
    ("U(0, 1), greedy", "U(0, 1)", "greedy"),
    ("LHS, independent", "LHS", "independent"),
)


def near(a: Floats, b: Floats, eta: float) -> float:
    """Share of rows within eta in some column."""
    return float((np.abs(a - b).reshape(len(a), -1) <= eta).any(axis=1).mean())


def moments(x: Floats, made: Floats) -> dict[str, float]:
    """Mean relative errors of means, variances and covariances, and mean total variation of the columns (20 cells)."""
    a, b = np.cov(x.T), np.cov(made.T)
    off = np.triu_indices(len(a), 1)
    apart = []
    for i in range(x.shape[1]):
        edges = np.linspace(x[:, i].min(), x[:, i].max(), 21)
        p = np.histogram(x[:, i], edges)[0] / len(x)
        q = np.histogram(made[:, i], edges)[0] / len(x)
        apart.append((np.abs(p - q).sum() + 1 - q.sum()) / 2)  # what lies outside counts too
    return {
        "mean": float(np.mean(np.abs(made.mean(axis=0) / x.mean(axis=0) - 1))),
        "variance": float(np.mean(np.abs(np.diag(b) / np.diag(a) - 1))),
        "covariance": float(np.mean(np.abs((b - a)[off] / np.diag(a).mean()))),
        "tv": float(np.mean(apart)),
    }


class Found:
    """Values of trials by row, measure and column."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, dict[str, list[float]]]] = {}

    def add(self, measure: str, row: str, column: float, value: float) -> None:
        """Keep a value."""
        self.values.setdefault(measure, {}).setdefault(row, {}).setdefault(f"{column:g}", []).append(value)

    def table(self) -> dict[str, Any]:
        """Means and deviations."""
        return {
            measure: {row: {c: mean_sd(v) for c, v in cells.items()} for row, cells in rows.items()}
            for measure, rows in self.values.items()
        }


def published(trials: int, deviations: tuple[float, ...] = (0.14, 1.0)) -> dict[str, Any]:
    """Errors, disclosure and moments of each first stage and alpha; models are trained on synthetic records alone.

    The noise that is printed for x3 has a quarter of the trials, and the models besides ridge regression a tenth. At
    alpha 1 every first stage gives the original rows.
    """
    out: dict[str, Any] = {"trials": trials, "response_noise": NOISE}
    for deviation in deviations:
        found, models = Found(), Models()
        for trial in range(max(1, trials // 4) if deviation == 1 else trials):
            rng = np.random.default_rng(trial)
            x, y = table(ROWS, rng, deviation)
            seen = inputs(TEST, rng, deviation)
            test = (seen, g(seen))
            teacher = Ridge()
            teacher.fit(x, y)
            for name in ("KRR", "NW"):
                found.add(name, "private, never released", 0, models.errors("private", (x, y), test, (name,))[name])
            for row, first, matching in RUNS:
                made = FIRST[first](x, np.random.default_rng([trial, 1]))
                made = made[match(x, made, method=matching)]
                for alpha in ALPHAS if row == "LHS" else ALPHAS[:-1]:
                    mixed = mix(x, made, alpha=alpha)
                    told = teacher.predict(mixed)
                    every = trial < max(1, trials // 10) and alpha in (0, 0.5, 1) and matching == "nearest"
                    names = ("KRR", "NW", "AdaBoost", "RF") if every else ("KRR",)
                    for name, error in models.errors("synthetic", (mixed, told), test, names).items():
                        found.add(name, row, alpha, error)
                    found.add("LID input, 1e-3", row, alpha, near(x, mixed, 1e-3))
                    found.add("LID output, 1e-3", row, alpha, near(y, told, 1e-3))
                    for what, value in moments(x, mixed).items():
                        found.add(what, row, alpha, value)
            print(f"x3 noise {deviation:g}, trial {trial}", file=sys.stderr, flush=True)
        sizes = {f"{name}, {kind}": size for (name, kind), size in models.sizes.items()}
        out[f"x3 noise {deviation:g}"] = found.table() | {"ensembles": sizes}
    return out


def intercepts(trials: int, deviation: float = 0.14) -> dict[str, Any]:
    """Errors of kernel ridge regression on synthetic records alone, both stages with or without an intercept."""
    found = Found()
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        x, y = table(ROWS, rng, deviation)
        seen = inputs(TEST, rng, deviation)
        for kind in (Ridge, EquationSeven):
            teacher = kind()
            teacher.fit(x, y)
            for row, draw in FIRST.items():
                made = draw(x, np.random.default_rng([trial, 1]))
                made = made[match(x, made)]
                for alpha in ALPHAS:
                    mixed, model = mix(x, made, alpha=alpha), kind()
                    model.fit(mixed, teacher.predict(mixed))
                    found.add(kind.__name__, row, alpha, 1e4 * mse(g(seen), model.predict(seen)))
        print(f"intercepts, trial {trial}", file=sys.stderr, flush=True)
    rows = []
    for row in FIRST:
        for kind, said in ((Ridge, "with"), (EquationSeven, "without, as in equation (7)")):
            cells = found.table()[kind.__name__][row].values()
            rows.append([row, said, *map(shown, cells)])
    about = {
        "title": "The paper's simulated regression: KRR with and without an intercept",
        "note": f"Squared error × 10⁴ of models trained on synthetic records alone, mean ± deviation of {trials} "
        "trials; both stages have the same regression.",
    }
    keep("prediction", "intercepts", about, ["first stage", "intercept", *(f"α = {a:g}" for a in ALPHAS)], rows)
    return {"trials": trials} | found.table()


BOUNDS = {"x1": (0.0, 1.0), "x2": (0.0, 1.0), "x3": (-1.0, 3.0), "y": (-1.0, 3.0)}


def released(trials: int, deviation: float = 0.14) -> dict[str, Any]:
    """The same by whole releases, `prediction.first_stage` with the paper's parameters: rows stay within the bounds."""
    found, scales = Found(), [Scale(name=name, low=low, high=high) for name, (low, high) in BOUNDS.items()]
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        x, y = table(ROWS, rng, deviation)
        seen = inputs(TEST, rng, deviation)
        unit, truth = to_units(scales[:3], list(seen.T)), scales[3].units(g(seen))
        for name in ("lhs", "uniform", "weibull", "cauchy"):
            made = Synthesis(numbers_plan(BOUNDS, first_stage=name, alpha=0.5), [*x.T, y], key(trial))
            for alpha in ALPHAS:
                model = OwnRidge()
                model.fit(*made.rows(alpha=alpha))
                width = BOUNDS["y"][1] - BOUNDS["y"][0]
                found.add("error", name, alpha, 1e4 * width**2 * mse(truth, model.predict(unit)))
        print(f"released, trial {trial}", file=sys.stderr, flush=True)
    rows = [[name, *map(shown, row.values())] for name, row in found.table()["error"].items()]
    about = {
        "title": "The paper's simulated regression by whole releases",
        "note": f"`prediction.first_stage`, Weibull(1, 8) and Cauchy(0, 1) in units of the columns' width and cut at "
        f"their bounds; squared error × 10⁴ of KRR on synthetic records alone, {trials} trials.",
    }
    keep("prediction", "first_stages", about, ["first stage", *(f"α = {alpha:g}" for alpha in ALPHAS)], rows)
    return {"trials": trials} | found.table()


def sizes(trials: int, deviation: float = 0.14) -> dict[str, Any]:
    """What synthetic records (alpha 0.5) take off the error of public sets of several sizes: the paper's Figure 9."""
    found, models = Found(), Models()
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        (x, y), (known, told) = table(ROWS, rng, deviation), table(ROWS, rng, deviation)
        seen = inputs(TEST, rng, deviation)
        teacher = Ridge()
        teacher.fit(x, y)
        made = hypercube(x, ends_of(x), rng)
        mixed = mix(x, made[match(x, made)], alpha=0.5)
        synthetic = mixed, teacher.predict(mixed)
        for count in SIZES:
            public = known[:count], told[:count]
            for name in ("KRR", "NW"):
                errors = [
                    mse(g(seen), models.fitted("", rows, name).predict(seen))
                    for rows in (public, both(public, synthetic))
                ]
                for what, value in zip(("public", "with synthetic"), errors, strict=True):
                    found.add(f"{name}, {what}", "MSE", count, 1e4 * value)
                found.add(f"{name}, ΔMSE, %", "MSE", count, 100 * delta_mse(*errors))
        print(f"sizes, trial {trial}", file=sys.stderr, flush=True)
    rows = [[measure, *map(shown, row["MSE"].values())] for measure, row in found.table().items()]
    about = {
        "title": "Figure 9 of the two-stage paper: the size of the public set",
        "note": f"Simulated regression, squared error × 10⁴, 1,000 synthetic records, α = 0.5, {trials} trials; the "
        "sizes are ours, the paper's values are plotted only.",
    }
    keep("prediction", "sizes", about, ["model", *(f"D′ = {count:,}" for count in SIZES)], rows)
    return {"trials": trials} | found.table()


def shown(cell: dict[str, float]) -> str:
    """A mean and a deviation."""
    digits = 0 if cell["mean"] >= 100 else 1 if cell["mean"] >= 10 else 2
    return f"{cell['mean']:.{digits}f} ± {cell['sd']:.{digits}f}"


def shifted(trials: int, deviation: float = 0.14) -> dict[str, Any]:
    """Test inputs whose x3 has another mean (alpha 0.5): what synthetic records take off the error of public ones."""
    found, models = Found(), Models()
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        (x, y), public = table(ROWS, rng, deviation), table(ROWS, rng, deviation)
        teacher = Ridge()
        teacher.fit(x, y)
        made = hypercube(x, ends_of(x), rng)
        mixed = mix(x, made[match(x, made)], alpha=0.5)
        joined = both(public, (mixed, teacher.predict(mixed)))
        names = ("KRR", "NW", "AdaBoost", "RF")
        alone = {name: models.fitted("public", public, name) for name in names}
        more = {name: models.fitted("both", joined, name) for name in names}
        for mean in SHIFTS:
            seen = np.column_stack([rng.random((TEST, 2)), rng.normal(mean, 0.14, TEST)])
            edges = np.linspace(-0.5, 2.5, 31)
            p, q = (np.histogram(column, edges)[0] / len(column) for column in (x[:, 2], seen[:, 2]))
            found.add("tv of x3", "test", mean, float(np.abs(p - q).sum() / 2))
            for name in names:
                errors = (mse(g(seen), model[name].predict(seen)) for model in (alone, more))
                found.add("delta_mse", name, mean, delta_mse(*errors))
        print(f"shift, trial {trial}", file=sys.stderr, flush=True)
    negative = {
        name: sum(v < 0 for cell in row.values() for v in cell) for name, row in found.values["delta_mse"].items()
    }
    return {"trials": trials, "negative": negative} | found.table()
