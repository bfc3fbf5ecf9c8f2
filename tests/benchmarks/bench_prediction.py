"""What two-stage synthetic data are worth to those who predict with them, and how fast they are made.

Run ``python tests/benchmarks/bench_prediction.py simulation --json simulation.json`` with scikit-learn installed; the
other tasks are ``stages``, ``mismatch``, ``pricing``, ``tables``, ``linked``, ``private``, ``scale`` and
``estimators``. Tables are read from ``../shared/data`` or the folder that DPDIST_DATA names; ``--only`` chooses some.

*simulation*: 1,000 private records, three inputs, y = g(x) + noise; a user has 200 public records of the same kind and
trains on them, on the synthetic records, or on both. g is Wendland's function ``(1 - r)^6_+ (35 r^2 + 18 r + 3)``, the
noise has variance 0.2, the inputs are Gaussian (mean 0.4, deviation 0.15, correlation 0.5) on the unit cube.
*stages*: the same with four models for each first stage and alpha. *mismatch*: the public records have another mean.
*pricing*: five simulated brands with log-log demand and known elasticities, and canned tuna where ``tuna.csv`` (of the
R package bayesm) is there. *tables*: five public tables. *linked*: how often a released row is nearest to the row it
was mixed from. *private*: the differentially private variant beside the published method and plausible-deniability
synthesis. Errors are against what was never used; on tables on the scale of the response.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from scipy.spatial import KDTree
from sklearn.ensemble import AdaBoostRegressor, RandomForestRegressor

from dpdist.data.operators import gather_operator
from dpdist.data.passes import located_table, run_pass
from dpdist.data.table import open_table
from dpdist.families import build_spec, load_spec
from dpdist.prediction.columns import Columns
from dpdist.prediction.disclosure import lid_bound, measured_lid
from dpdist.prediction.latin import FIRST_STAGES
from dpdist.prediction.method import Disclosure, Method, Regression
from dpdist.prediction.metrics import (
    delta_mse,
    mean_absolute_percentage_deviation,
    mse,
    optimal_markup,
    optimal_profit_ratio,
)
from dpdist.prediction.plan import plan
from dpdist.prediction.private_model import private_model, private_records
from dpdist.prediction.regression import features, fit
from dpdist.prediction.scales import Floats, Scale
from dpdist.prediction.two_stage import (
    block_counts,
    block_mixed,
    block_scores,
    block_synthetic,
    deviations_of,
    marginals_of,
    synthesise,
    target_of,
)
from dpdist.privacy.ledger import Ledger
from dpdist.privacy.noise import Noise
from dpdist.run import run_release, table_source

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data"))
ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
EPSILONS = (1.0, 3.0, 10.0)
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


# --- models of the public -------------------------------------------------------------------------------------------


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


# --- the simulated regression ----------------------------------------------------------------------------------------


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


CUBE = tuple(Scale(name=f"x{i}", low=0, high=1) for i in range(3))


def simulated_method(alpha: float, first_stage: str = "lhs", matching: str = "nearest", columns: int = 3) -> Method:
    """The published method on the simulated regression; nothing is refused."""
    scales = CUBE if columns == 3 else (*CUBE, Scale(name="y", low=-2, high=5))
    return Method(
        scales=scales,
        disclosure=Disclosure(lid=1.0, eta=0.01, columns=(0, 1, 2)),
        alpha=alpha,
        first_stage=first_stage,
        matching=matching,
        regression=Regression(width=1 / 0.15),  # about the published width 1, in units of the deviations
    )


def single_stage(alpha: float, private: Rows, noise: Noise) -> Rows:
    """The single-stage baseline: the response is a column like the others, mixed with its synthetic value."""
    scale = Scale(name="y", low=-2, high=5)
    table = np.column_stack([private[0], scale.units(private[1])])
    method = replace(simulated_method(alpha, columns=4), regression=Regression(hook=f"{__name__}:Nothing"))
    made = synthesise(method, table, private[1], noise).inputs
    return made[:, :3], scale.values(made[:, 3])


class Nothing:
    """No second stage."""

    def fit(self, inputs: Floats, responses: Floats) -> None:
        pass

    def predict(self, inputs: Floats) -> Floats:
        return np.zeros(len(inputs))


def simulation(trials: int) -> dict[str, Any]:
    """Errors of four models on public, synthetic and both; and of KRR for each first stage and alpha."""
    models: dict[str, dict[str, list[float]]] = {}
    sweep: dict[str, dict[str, list[float]]] = {}
    watson: dict[str, dict[str, list[float]]] = {}
    lids: dict[str, dict[str, list[float]]] = {}
    seconds = []

    def add(where: dict[str, dict[str, list[float]]], row: str, column: str, value: float) -> None:
        where.setdefault(row, {}).setdefault(column, []).append(value)

    for trial in range(trials):
        rng, noise = np.random.default_rng(trial), key(trial)
        private, public, x = simulated(1000, rng), simulated(200, rng), inputs(1000, rng)
        test = (x, g(x))
        start = time.perf_counter()
        made = synthesise(simulated_method(0.2), *private, noise)
        seconds.append(time.perf_counter() - start)
        synthetic = (made.inputs, made.responses)
        single = single_stage(0.2, private, noise)
        for name, train in {
            "public": public,
            "private (never released)": private,
            "synthetic, two stages": synthetic,
            "both, two stages": both(public, synthetic),
            "synthetic, one stage": single,
            "both, one stage": both(public, single),
        }.items():
            for model, error in errors(train, test).items():
                add(models, name, model, error)
        for name, first_stage, matching in (
            *((stage, stage, "nearest") for stage in FIRST_STAGES),
            ("lhs, independent rows", "lhs", "independent"),
        ):
            method = simulated_method(0.2, first_stage, matching)
            marginals = marginals_of(method, block_counts(method, private[0], noise, start=0))
            deviations = deviations_of(marginals)
            target = target_of(method, marginals, block_scores(method, private[0], marginals))
            rows = block_synthetic(method, private[0], target, deviations, noise, number=0)
            for alpha in ALPHAS:
                x_star = block_mixed(method, private[0], rows, alpha=alpha)
                y_star = made.model.predict(features(method.scales, x_star, deviations))
                found = errors((x_star, y_star), test, ("published KRR", "NW"))
                add(sweep, name, f"{alpha:g}", found["published KRR"])
                add(watson, name, f"{alpha:g}", found["NW"])
                add(lids, name, f"{alpha:g}", measured_lid(private[0], x_star, eta=0.01, columns=(0, 1, 2)))
        for alpha in ALPHAS:
            single = single_stage(alpha, private, noise)
            found = errors(single, test, ("published KRR", "NW"))
            add(sweep, "one stage (lhs)", f"{alpha:g}", found["published KRR"])
            add(watson, "one stage (lhs)", f"{alpha:g}", found["NW"])
            if alpha < 1:
                add(lids, "closed form", f"{alpha:g}", lid_bound(alpha, eta=0.01, columns=3))

    def table(where: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
        return {row: {column: mean_sd(values) for column, values in cells.items()} for row, cells in where.items()}

    x = inputs(100_000, np.random.default_rng(99))
    return {
        "trials": trials,
        "variance_of_g": float(g(x).var()),
        "models_alpha_0.2": table(models),
        "krr_by_alpha": table(sweep),
        "nw_by_alpha": table(watson),
        "lid_by_alpha_eta_0.01": table(lids),
        "seconds_of_a_synthesis": mean_sd(seconds),
    }


STAGE_RUNS = (
    *((stage, stage, "nearest") for stage in ("lhs", "uniform", "weibull", "cauchy")),
    ("lhs, independent rows", "lhs", "independent"),
    ("uniform, independent rows", "uniform", "independent"),
)


def stages(trials: int) -> dict[str, Any]:
    """Errors of four models trained on synthetic records, alone and with the public ones, by first stage and alpha.

    Errors are against g, on inputs of the private distribution and on uniform inputs of the whole cube.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {}

    def add(what: str, name: str, alpha: float, error: float) -> None:
        found.setdefault(what, {}).setdefault(name, {}).setdefault(f"{alpha:g}", []).append(error)

    for trial in range(trials):
        rng, noise = np.random.default_rng(trial), key(trial)
        private, public, x = simulated(1000, rng), simulated(200, rng), inputs(1000, rng)
        cube = rng.random((1000, 3))
        teacher = synthesise(simulated_method(0.2), *private, noise).model
        for name, first_stage, matching in STAGE_RUNS:
            method = simulated_method(0.2, first_stage, matching)
            marginals = marginals_of(method, block_counts(method, private[0], noise, start=0))
            deviations = deviations_of(marginals)
            target = target_of(method, marginals, block_scores(method, private[0], marginals))
            rows = block_synthetic(method, private[0], target, deviations, noise, number=0)
            for alpha in ALPHAS:
                x_star = block_mixed(method, private[0], rows, alpha=alpha)
                synthetic = (x_star, np.asarray(teacher.predict(features(method.scales, x_star, deviations))))
                for label in ("published KRR", "NW", "AdaBoost", "RF"):
                    for what, train in (("synthetic", synthetic), ("both", both(public, synthetic))):
                        model = MODELS[label]()
                        model.fit(*train)
                        add(f"{label}, {what}", name, alpha, mse(g(x), model.predict(x)))
                        if what == "synthetic":
                            add(f"{label}, {what}, whole cube", name, alpha, mse(g(cube), model.predict(cube)))
        print(f"trial {trial}", file=sys.stderr, flush=True)
    return {"trials": trials} | {
        what: {name: {alpha: mean_sd(v) for alpha, v in row.items()} for name, row in rows.items()}
        for what, rows in found.items()
    }


def mismatch(trials: int) -> dict[str, Any]:
    """What the synthetic records add to public records of another mean."""
    out: dict[str, dict[str, list[float]]] = {}
    for trial in range(trials):
        rng, noise = np.random.default_rng(trial), key(trial)
        private, x = simulated(1000, rng), inputs(1000, rng)
        made = synthesise(simulated_method(0.2), *private, noise)
        for mean in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
            public = simulated(200, rng, mean)
            alone = errors(public, (x, g(x)))
            more = errors(both(public, (made.inputs, made.responses)), (x, g(x)))
            for model in ALL:
                out.setdefault(f"{mean:g}", {}).setdefault(model, []).append(delta_mse(alone[model], more[model]))
    return {
        "trials": trials,
        "delta_mse": {mean: {m: mean_sd(v) | {"least": min(v)} for m, v in row.items()} for mean, row in out.items()},
    }


# --- pricing ---------------------------------------------------------------------------------------------------------

ELASTICITIES = (-1.8, -2.2, -2.6, -3.2, -3.9)


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
    scales = tuple(Scale(name=f"p{i}", low=low, high=high) for i in range(prices.shape[1]))
    units = np.column_stack([scale.units(prices[:, i]) for i, scale in enumerate(scales)])
    original = [elasticity(prices, sales[:, brand], brand) for brand in brands]
    rows.setdefault("original", {}).setdefault("elasticity", []).append(original)
    rows["original"].setdefault("omu", []).append(optimal_markup(original))
    for matching in ("nearest", "independent"):
        for alpha in ALPHAS[1:]:
            method = Method(
                scales=scales,
                disclosure=Disclosure(lid=1.0, eta=0.001, columns=tuple(range(len(scales)))),
                alpha=alpha,
                matching=matching,
            )
            estimated, lid = [], 0.0
            for brand in brands:
                made = synthesise(method, units, sales[:, brand], key(1000 * seed + brand))
                back = np.column_stack([scale.values(made.inputs[:, i]) for i, scale in enumerate(scales)])
                estimated.append(elasticity(back, made.responses, brand))
                lid += made.lid / len(brands)
            row = rows.setdefault(f"{matching}, alpha {alpha:g}", {})
            row.setdefault("lid", []).append(lid)
            row.setdefault("mapd", []).append(mean_absolute_percentage_deviation(original, estimated))
            row.setdefault("omu", []).append(optimal_markup(estimated))
            row.setdefault("opr", []).append(optimal_profit_ratio(original, estimated))


# --- five tables -----------------------------------------------------------------------------------------------------


class Task:
    """A public table with its spec, split into private, public and test rows."""

    def __init__(self, name: str, seed: int) -> None:
        path = ROOT / "deploy" / "releases" / f"{name}.yaml"
        self.name, self.spec = name, load_spec(path, {"data.path": str(DATA / FILES[name])})
        table = located_table(open_table(table_source(self.spec), self.spec.table, partitions=1))
        codes, _ = run_pass(table, gather_operator())
        spec = self.spec
        place = spec.table.names.index(spec.prediction.response)
        self.columns = Columns(spec.table.attributes, spec.inputs, spec.response, place)
        order = np.random.default_rng(seed).permutation(len(codes[0]))
        cuts = np.split(order, [round(0.7 * len(order)), round(0.8 * len(order))])
        self.private, self.public, self.test = ([column[cut] for column in codes] for cut in cuts)
        inputs, _ = self.columns.units(self.private)
        self.deviations = np.maximum(inputs.std(axis=0), 1e-9)

    def seen(self, codes: list[Any]) -> Rows:
        """What models see of some records."""
        inputs, responses = self.columns.units(codes)
        return features(self.columns.scales, inputs, self.deviations), responses

    def rows(self, inputs: Floats, responses: Floats) -> Rows:
        """What models see of rows of the unit cube."""
        return features(self.columns.scales, inputs, self.deviations), responses


def linked(original: Floats, released: Floats) -> float:
    """Share of the released rows whose nearest original row (all inputs) is the one they were mixed from."""
    _, nearest = KDTree(original).query(released)
    return float(np.mean(nearest == np.arange(len(released))))


def linkage(trials: int, names: Sequence[str] = tuple(FILES)) -> dict[str, Any]:
    """How often a released row is nearest to the row it was mixed from, at the disclosure of the spec and beside it."""
    out: dict[str, Any] = {}
    for name in names:
        rows: dict[str, dict[str, list[float]]] = {}
        for trial in range(trials if name != "california" else 1):
            task = Task(name, trial)
            method = plan(task.spec).method
            if method is None:
                raise ValueError(name)
            inputs, responses = task.columns.units(task.private)
            original = task.seen(task.private)[0]
            idle = Regression(hook=f"{__name__}:Nothing")
            free = replace(method.disclosure, lid=1.0)
            made = synthesise(replace(method, regression=idle), inputs, responses, key(trial))
            settings = {"as released": (method.matching, made.alpha)}
            for matching in ("nearest", "independent"):
                settings |= {f"{matching}, alpha {a:g}": (matching, a) for a in (0.0, 0.2, 0.5, 0.8)}
            for label, (matching, alpha) in settings.items():
                other = replace(method, regression=idle, disclosure=free, matching=matching, alpha=alpha)
                made = synthesise(other, inputs, responses, key(trial))
                row = rows.setdefault(label, {})
                row.setdefault("alpha", []).append(made.alpha)
                row.setdefault("lid", []).append(made.lid)
                row.setdefault("linked", []).append(linked(original, task.rows(made.inputs, responses)[0]))
        print(name, file=sys.stderr, flush=True)
        out[name] = {"records": len(original)} | {
            label: {what: float(np.mean(values)) for what, values in row.items()} for label, row in rows.items()
        }
    return out


def tables(trials: int, names: Sequence[str] = tuple(FILES)) -> dict[str, Any]:
    """Disclosure and gain on five tables, with the disclosure of their specs."""
    out: dict[str, Any] = {}
    for name in names:
        rows: dict[str, list[float]] = {}
        for trial in range(trials if name != "california" else 1):
            task = Task(name, trial)
            method = plan(task.spec).method
            if method is None:
                raise ValueError(name)
            start = time.perf_counter()
            made = synthesise(method, *task.columns.units(task.private), key(trial))
            rows.setdefault("seconds", []).append(time.perf_counter() - start)
            rows.setdefault("alpha", []).append(made.alpha)
            rows.setdefault("lid", []).append(made.lid)
            synthetic, public, test = (
                task.rows(made.inputs, made.responses),
                task.seen(task.public),
                task.seen(task.test),
            )
            rows.setdefault("linked", []).append(linked(task.seen(task.private)[0], synthetic[0]))
            alone, more = errors(public, test), errors(both(public, synthetic), test)
            only, best = errors(synthetic, test), errors(task.seen(task.private), test)
            for model in ALL:
                rows.setdefault(f"public {model}", []).append(alone[model])
                rows.setdefault(f"synthetic {model}", []).append(only[model])
                rows.setdefault(f"both {model}", []).append(more[model])
                rows.setdefault(f"private {model}", []).append(best[model])
                rows.setdefault(f"delta_mse {model}", []).append(delta_mse(alone[model], more[model]))
        disclosure = task.spec.privacy.disclosure
        out[name] = {
            "records": sum(len(part[0]) for part in (task.private, task.public, task.test)),
            "required_lid": disclosure.lid,
            "eta": disclosure.eta,
            **{what: float(np.mean(values)) for what, values in rows.items()},
            "least_delta_mse": min(min(v) for what, v in rows.items() if what.startswith("delta_mse")),
        }
    return out


# --- the private variant ---------------------------------------------------------------------------------------------


def private(trials: int, names: Sequence[str] = ("simulation", *FILES)) -> dict[str, Any]:
    """Errors of models trained on private releases, beside the published method and plausible deniability."""
    out: dict[str, Any] = {}
    for name in names:
        rows: dict[str, dict[str, list[float]]] = {}
        for trial in range(trials if name != "california" else 1):
            task = SimulatedTask(trial) if name == "simulation" else Task(name, trial)
            test, noise = task.seen(task.test), key(trial)
            for label, train in compared(task, noise).items():
                for model, error in errors(train, test, ("KRR", "RF")).items():
                    rows.setdefault(label, {}).setdefault(model, []).append(error)
        variance = float(test[1].var())
        print(name, file=sys.stderr, flush=True)
        out[name] = {
            "private_records": len(task.private[0]),
            "variance_of_response": variance,
            **{label: {m: float(np.mean(v)) for m, v in row.items()} for label, row in rows.items()},
        }
    return out


class SimulatedTask(Task):
    """The simulated regression with 20,000 private records, as a table."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        attributes = [{"name": f"x{i}", "kind": "number", "bounds": [0, 1]} for i in range(3)]
        attributes.append({"name": "y", "kind": "number", "bounds": [-3, 6]})
        self.name = "simulation"
        self.spec = build_spec(
            {
                "kind": "two-stage",
                "name": "simulation",
                "dataset": "simulation",
                "schema": {"attributes": attributes},
                "data": {"path": "none", "minimum_records": 14_000},
                "output": {"path": "none"},
                "privacy": {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.001}},
                "prediction": {"response": "y"},
            }
        )
        self.columns = Columns(self.spec.table.attributes, self.spec.inputs, self.spec.response, 3)
        x, y = simulated(20_000, rng)
        test = inputs(2000, rng)
        self.private = [*x.T, y]
        self.public, self.test = [*x[:200].T, y[:200]], [*test.T, g(test)]
        self.deviations = np.maximum(x.std(axis=0), 1e-9)


def compared(task: Task, noise: Noise) -> dict[str, Rows]:
    """Training rows by how they were made."""
    values, count = task.columns.values(task.private), len(task.private[0])
    method = plan(task.spec).method
    if method is None:
        raise ValueError("the spec is that of the published method")
    made = synthesise(method, *task.columns.units(task.private), noise)
    out = {"original": task.seen(task.private), "published (not DP)": task.rows(made.inputs, made.responses)}
    for epsilon in EPSILONS:
        for products in ("modelled", "measured"):
            spec = private_spec(task, epsilon, products, count)
            planned = plan(spec)
            if planned.charge is None:
                raise ValueError("the spec is that of the private variant")
            wanted = spec.prediction.features
            model = private_model(
                planned.columns, values, planned.charge, noise, frequencies=wanted.frequencies, width=wanted.width
            )
            drawn, responses = private_records(model, task.columns.response, count, np.random.default_rng(1))
            out[f"private, {products} moments, epsilon {epsilon:g}"] = task.rows(
                drawn, task.columns.response.units(responses)
            )
        out[f"plausible deniability (omega all), epsilon {epsilon:g}"] = deniable(task, epsilon, count)
    return out


def private_spec(task: Task, epsilon: float, products: str, count: int) -> Any:
    """The private variant's spec for a task."""
    tree = task.spec.model_dump(mode="json", by_alias=True)
    tree["privacy"] = {"guarantee": "dp", "epsilon": epsilon, "delta": 1e-6}
    tree["prediction"] = {
        "response": tree["prediction"]["response"],
        "log": tree["prediction"]["log"],
        "records": count,
        "features": {"products": products},
    }
    tree["data"]["minimum_records"] = round(0.9 * count)
    return build_spec(tree)


def deniable(task: Task, epsilon: float, count: int) -> Rows:
    """Records of a plausible-deniability release (every attribute resampled) at the same budget, 16 bins a number.

    With fewer than 5,000 records a structure cannot be learned within these budgets: independent marginals.
    """
    attributes, learned = [], count >= 5000
    for attribute, scale in zip(task.columns.attributes, task.columns._in_order, strict=True):
        tree = attribute.model_dump(mode="json", exclude_defaults=True)
        if attribute.kind == "number" or (attribute.kind == "integer" and (scale.count or 0) > 16):
            edges = [float(attribute.bounds[0]), *scale.edges(16).tolist()]
            tree["bins"] = {"edges": edges if attribute.kind == "number" else [round(e) for e in edges]}
        attributes.append(tree)
    with tempfile.TemporaryDirectory() as folder:
        columns = []
        for attribute, column in zip(task.columns.attributes, task.private, strict=True):
            if attribute.kind == "integer":
                columns.append(pa.array(column.astype(np.int64) + int(attribute.bounds[0])))
            elif attribute.values is not None:
                columns.append(pa.array([attribute.values[code] for code in column]))
            else:
                columns.append(pa.array(column))
        pq.write_table(pa.table(columns, names=list(task.spec.table.names)), f"{folder}/table.parquet")
        ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
        ledger.create_dataset("d", epsilon=100, delta="1e-5", guarantees=("dp",))
        ledger.close()
        spec = build_spec(
            {
                "kind": "plausible-deniability",
                "name": "r",
                "dataset": "d",
                "schema": {"attributes": attributes},
                "data": {"path": f"{folder}/table.parquet", "minimum_records": round(0.8 * count)},
                "output": {"path": f"{folder}/release"},
                "ledger": f"sqlite:///{folder}/ledger.db",
                "work": f"{folder}/work",
                "cluster": {"mode": "threads", "partitions": 1},
                "privacy": {"model": {"epsilon": epsilon, "delta": 1e-6}},
                "split": {"structure": 0.3 if learned else 0, "parameters": 0.7 if learned else 1, "seeds": 0},
                "model": {"structure": "learned" if learned else "independent"},
                "synthesis": {"records": count, "omega": "all"},
            }
        )
        run_release(spec)
        released = pq.read_table(f"{folder}/release/data")
    codes: list[Any] = []
    for attribute in task.columns.attributes:
        column = released[attribute.name].to_pylist()
        if attribute.kind == "integer":
            codes.append(np.clip(np.array(column) - int(attribute.bounds[0]), 0, attribute.cardinality - 1))
        elif attribute.values is not None:
            codes.append(np.array([attribute.values.index(value) for value in column]))
        else:
            codes.append(np.array(column, np.float64))
    return task.seen(codes)


# --- speed -----------------------------------------------------------------------------------------------------------


def estimators(trials: int) -> dict[str, Any]:
    """Distributed and Nystroem ridge regression against the exact one, at 10,000 records."""
    out: dict[str, dict[str, list[float]]] = {}
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        x, y = simulated(10_000, rng)
        test = inputs(4000, rng)
        sample = (np.arange(1000, dtype=np.uint64), x[:1000], y[:1000])
        for estimator, settings in {
            "exact": {},
            "distributed, 5 groups of 2,000": {"group_rows": 2000},
            "distributed, 20 groups of 500": {"group_rows": 500},
            "distributed, 100 groups of 100": {"group_rows": 100},
            "nystroem, 1,000 landmarks": {"landmarks": 1000},
            "nystroem, 200 landmarks": {"landmarks": 200},
        }.items():
            method = Regression(estimator=estimator.split(",")[0], width=1.0, **settings)
            start = time.perf_counter()
            model = fit(method, [(x, y)], sample, key(trial))
            fitted = time.perf_counter()
            error = mse(g(test), model.predict(test))
            row = out.setdefault(estimator, {})
            row.setdefault("mse", []).append(error)
            row.setdefault("fit_seconds", []).append(fitted - start)
            row.setdefault("predict_4000_seconds", []).append(time.perf_counter() - fitted)
    return {name: {what: mean_sd(values) for what, values in row.items()} for name, row in out.items()}


def scale(rows: int) -> dict[str, Any]:
    """A whole release of `rows` records and ten columns, on two workers: seconds and the largest process."""
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        z = rng.multivariate_normal(np.zeros(9), 0.3 + 0.7 * np.eye(9), rows)
        y = np.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2] + 0.5 * z[:, 3] + rng.normal(0, 0.5, rows)
        names = [f"x{i}" for i in range(9)]
        columns = [pa.array(column) for column in np.clip(z, -6, 6).T]
        table = pa.table([*columns, pa.array(np.clip(y, -30, 30))], names=[*names, "y"])
        pq.write_table(table, f"{folder}/table.parquet", row_group_size=100_000)
        attributes = [{"name": n, "kind": "number", "bounds": [-6, 6]} for n in names]
        attributes.append({"name": "y", "kind": "number", "bounds": [-30, 30]})
        out = {}
        for guarantee in ("lid", "dp"):
            tree: dict[str, Any] = {
                "kind": "two-stage",
                "name": guarantee,
                "dataset": "d",
                "schema": {"attributes": attributes},
                "data": {"path": f"{folder}/table.parquet", "minimum_records": round(0.9 * rows)},
                "output": {"path": f"{folder}/{guarantee}"},
                "ledger": f"sqlite:///{folder}/ledger.db",
                "work": f"{folder}/work",
                "cluster": {"workers": 2, "partitions": 10, "memory_limit": "3GiB"},
                "privacy": {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.001}},
                "prediction": {"response": "y"},
            }
            if guarantee == "dp":
                tree["privacy"] = {"guarantee": "dp", "epsilon": 1, "delta": 1e-6}
                tree["prediction"] |= {"records": rows}
            Path(f"{folder}/{guarantee}.json").write_text(json.dumps(tree))
            Path(f"{folder}/{guarantee}.yaml").write_text(json.dumps(tree))
            command = [str(Path(sys.executable).parent / "dpdist")]
            if guarantee == "lid":
                create = [
                    "ledger",
                    "create",
                    "d",
                    "--epsilon",
                    "10",
                    "--delta",
                    "1e-5",
                    "--allow",
                    "dp",
                    "--allow",
                    "lid",
                ]
                subprocess.run([*command, *create, "--ledger", tree["ledger"]], check=True, capture_output=True)
            start = time.perf_counter()
            run = subprocess.Popen(
                [*command, "release", f"{folder}/{guarantee}.yaml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            largest, total = watch(run)
            if run.returncode:
                raise RuntimeError((run.stderr.read() if run.stderr else b"").decode())
            record = next(iter(Path(f"{folder}/work").glob("*/run-record.json")))
            for each in Path(f"{folder}/work").glob("*/run-record.json"):
                if json.loads(each.read_text())["release"] == guarantee:
                    record = each
            out[guarantee] = {
                "rows": rows,
                "columns": 10,
                "seconds": round(time.perf_counter() - start, 1),
                "largest_process_mb": round(largest / 1e6),
                "all_processes_mb": round(total / 1e6),
                "stages": json.loads(record.read_text())["seconds"],
                "disclosure": json.loads(record.read_text()).get("disclosure"),
            }
        return out


def watch(run: Any) -> tuple[int, int]:
    """Largest resident size of one process of a run, and of all together, until it ends."""
    import psutil

    largest = total = 0
    process = psutil.Process(run.pid)
    while run.poll() is None:
        sizes = []
        try:
            for one in (process, *process.children(recursive=True)):
                sizes.append(one.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
        largest, total = max([largest, *sizes]), max(total, sum(sizes))
        time.sleep(0.2)
    return largest, total


def main() -> None:
    """Run one task, or all of them."""
    tasks: dict[str, tuple[Callable[..., dict[str, Any]], int]] = {
        "simulation": (simulation, 20),
        "stages": (stages, 20),
        "mismatch": (mismatch, 10),
        "pricing": (pricing, 3),
        "tables": (tables, 3),
        "linked": (linkage, 3),
        "private": (private, 3),
        "estimators": (estimators, 3),
        "scale": (scale, 1_000_000),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=[*tasks, "all"], default="all")
    parser.add_argument("--size", type=int, help="trials, or records for the task scale")
    parser.add_argument("--only", nargs="+", choices=["simulation", *FILES], help="for tables, linked and private")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = tasks if options.task == "all" else {options.task: tasks[options.task]}
    out = {}
    for name, (task, size) in chosen.items():
        some = (options.only,) if options.only and name in ("tables", "linked", "private") else ()
        out[name] = task(options.size or size, *some)
    text = json.dumps(out, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
