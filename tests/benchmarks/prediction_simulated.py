"""The simulated regression: what synthetic records train, for each first stage and alpha, and under mismatch."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from prediction_models import (
    ALL,
    ALPHAS,
    MODELS,
    Nothing,
    Rows,
    Synthesis,
    both,
    errors,
    key,
    mean_sd,
    numbers_plan,
)

from dpdist.evaluation.utility.learning import delta_mse, mse
from dpdist.families.prediction.first_stage import FIRST_STAGES
from dpdist.families.prediction.plan import LidPlan
from dpdist.families.prediction.stages import SyntheticInputs
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Floats


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


CUBE = {"x0": (0.0, 1.0), "x1": (0.0, 1.0), "x2": (0.0, 1.0)}
RANGE = (-3.0, 6.0)
"""Bounds of the response."""


def simulated_plan(alpha: float, first_stage: str = "lhs", matching: str = "nearest") -> LidPlan:
    """The published method on the simulated regression; nothing is refused."""
    return numbers_plan(
        {**CUBE, "y": RANGE},
        alpha=alpha,
        first_stage=first_stage,
        matching=matching,
        regression={"width": 1 / 0.15},  # about the published width 1, in units of the deviations
    )


def responded(rows: Rows) -> Rows:
    """Rows with the responses as they were simulated."""
    return rows[0], RANGE[0] + (RANGE[1] - RANGE[0]) * rows[1]


def single_stage(alpha: float, private: Rows, key: KeyRef) -> Rows:
    """The single-stage baseline: the response is a column like the others, mixed with its synthetic value."""
    plan = numbers_plan({**CUBE, "y": (-2.0, 5.0), "none": RANGE}, columns=tuple(CUBE), alpha=alpha)
    codes = [*private[0].T, private[1], private[1]]
    made, _ = Synthesis(plan, codes, key, until=SyntheticInputs).rows(model=Nothing())
    return made[:, :3], plan.method.scales[3].values(made[:, 3])


def near(original: Floats, released: Floats) -> float:
    """Share of the rows within 0.01 of their originals in some column."""
    return float((np.abs(original - released) <= 0.01).any(axis=1).mean())


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
        codes = [*private[0].T, private[1]]
        made = Synthesis(simulated_plan(0.2), codes, noise)
        seconds.append(time.perf_counter() - start)
        synthetic = responded(made.rows())
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
            other = Synthesis(simulated_plan(0.2, first_stage, matching), codes, noise, until=SyntheticInputs)
            for alpha in ALPHAS:
                x_star, y_star = responded(other.rows(alpha=alpha, model=made.model))
                found = errors((x_star, y_star), test, ("published KRR", "NW"))
                add(sweep, name, f"{alpha:g}", found["published KRR"])
                add(watson, name, f"{alpha:g}", found["NW"])
                add(lids, name, f"{alpha:g}", near(private[0], x_star))
        for alpha in ALPHAS:
            single = single_stage(alpha, private, noise)
            found = errors(single, test, ("published KRR", "NW"))
            add(sweep, "one stage (lhs)", f"{alpha:g}", found["published KRR"])
            add(watson, "one stage (lhs)", f"{alpha:g}", found["NW"])
            if alpha < 1:
                add(lids, "closed form", f"{alpha:g}", 1 - (1 - min(0.02 / (1 - alpha), 1.0)) ** 3)

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
        codes = [*private[0].T, private[1]]
        teacher = Synthesis(simulated_plan(0.2), codes, noise).model
        for name, first_stage, matching in STAGE_RUNS:
            made = Synthesis(simulated_plan(0.2, first_stage, matching), codes, noise, until=SyntheticInputs)
            for alpha in ALPHAS:
                synthetic = responded(made.rows(alpha=alpha, model=teacher))
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
        made = responded(Synthesis(simulated_plan(0.2), [*private[0].T, private[1]], noise).rows())
        for mean in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
            public = simulated(200, rng, mean)
            alone = errors(public, (x, g(x)))
            more = errors(both(public, made), (x, g(x)))
            for model in ALL:
                out.setdefault(f"{mean:g}", {}).setdefault(model, []).append(delta_mse(alone[model], more[model]))
    return {
        "trials": trials,
        "delta_mse": {mean: {m: mean_sd(v) | {"least": min(v)} for m, v in row.items()} for mean, row in out.items()},
    }
