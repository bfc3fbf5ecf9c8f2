"""One stage or two on the simulated regression, beside a public set: Latin hypercube and a diffusion model.

The paper's sizes where it has generative models: 200 public, 500 private, 500 synthetic and 500 test records. *One
stage* draws inputs and response together and mixes both; *two stages* asks the regression of the private records for
the responses. The diffusion model has the paper's Table 6 (256 hidden units, batches of 32, rate 2e-4, 300 epochs,
1,000 steps of 1e-4 to 0.02); two hidden layers and the embedding of time are ours. Its GAN, 2,049 s a trial there, is
not run.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import keep
from prediction_models import both
from prediction_published import Found, Ridge, ends_of, g, hypercube, inputs, near, shown, table
from sklearn.neural_network import MLPRegressor

from dpdist.evaluation.utility.learning import delta_mse, mse
from dpdist.families.prediction.lid.inputs import match, mix
from dpdist.privacy.arrays import Floats

PUBLIC, PRIVATE, TEST = 200, 500, 500
ALPHAS = (0.0, 0.2, 0.5, 0.8)
STEPS, EPOCHS = 1000, 300
RETAINED = np.cumprod(1 - np.linspace(1e-4, 0.02, STEPS))


def diffused(rows: Floats, rng: np.random.Generator) -> Floats:
    """As many rows of a diffusion model of these."""
    seed, mean, deviation = int(rng.integers(2**31)), rows.mean(axis=0), rows.std(axis=0)
    model = MLPRegressor(
        hidden_layer_sizes=(256, 256), batch_size=32, learning_rate_init=2e-4, alpha=0.0, random_state=seed
    )
    scaled = (rows - mean) / deviation
    for _ in range(EPOCHS):
        times, noise = rng.integers(0, STEPS, len(rows)), rng.normal(size=rows.shape)
        kept = RETAINED[times][:, None]
        model.partial_fit(_timed(np.sqrt(kept) * scaled + np.sqrt(1 - kept) * noise, times), noise)
    made = rng.normal(size=rows.shape)
    for step in reversed(range(STEPS)):
        kept, before = RETAINED[step], RETAINED[step - 1] if step else 1.0
        rate = 1 - kept / before
        guess = model.predict(_timed(made, np.full(len(made), step)))
        made = (made - rate / np.sqrt(1 - kept) * guess) / np.sqrt(1 - rate)
        made += np.sqrt(rate * (1 - before) / (1 - kept)) * rng.normal(size=made.shape)
    return mean + deviation * made


def _timed(rows: Floats, times: Any) -> Floats:
    angles = np.outer(times / STEPS, np.pi * 2.0 ** np.arange(6))
    return np.column_stack([rows, np.sin(angles), np.cos(angles)])


GENERATORS: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "Latin hypercube": lambda rows, rng: hypercube(rows, [*ends_of(rows), (-1.0, 3.0)], rng),
    "diffusion": diffused,
}


def generators(trials: int, deviation: float = 0.14) -> dict[str, Any]:
    """Errors of ridge regression on public and synthetic records, and LID of the inputs, for one stage and two."""
    found = Found()
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        public, (x, y) = table(PUBLIC, rng, deviation), table(PRIVATE, rng, deviation)
        seen = inputs(TEST, rng, deviation)
        teacher = Ridge()
        teacher.fit(x, y)

        def error(x: Floats, y: Floats, seen: Floats = seen) -> float:
            model = Ridge()
            model.fit(x, y)
            return 1e4 * mse(g(seen), model.predict(seen))

        alone = error(*public)
        found.add("error", "public D′ alone", 0, alone)
        for name, draw in GENERATORS.items():
            start = time.process_time()
            made = draw(np.column_stack([x, y]), np.random.default_rng([trial, 1]))
            found.add("seconds", name, 0, time.process_time() - start)
            made = made[match(x, made[:, :3])]
            for alpha in ALPHAS:
                mixed = mix(x, made[:, :3], alpha=alpha)
                found.add("LID", name, alpha, 100 * near(x, mixed, 1e-3))
                for stages, told in (("one", mix(y, made[:, 3], alpha=alpha)), ("two", teacher.predict(mixed))):
                    least = error(*both(public, (mixed, told)))
                    found.add("error", f"{name}, {stages}", alpha, least)
                    found.add("gain", f"{name}, {stages}", alpha, 100 * delta_mse(alone, least))
        print(f"generators, trial {trial}", file=sys.stderr, flush=True)
    cells = found.table()
    rows = [["public D′ alone", "", "", *[shown(cells["error"]["public D′ alone"]["0"])] * len(ALPHAS)]]
    for name in GENERATORS:
        seconds = f"{cells['seconds'][name]['0']['mean']:.2f}"
        for measure, unit in (("error", ""), ("gain", ": ΔMSE, %")):
            for stages in ("one", "two"):
                row = cells[measure][f"{name}, {stages}"].values()
                rows.append([name + unit, stages, seconds, *map(shown, row)])
        rows.append([f"{name}: LID of inputs, %", "", "", *map(shown, cells["LID"][name].values())])
    about = {
        "title": "Single-stage and two-stage synthesis beside a public set of 200",
        "note": f"Simulated regression, 500 private, synthetic and test records; squared error × 10⁴ of KRR on D′ + D*,"
        f" mean ± deviation of {trials} trials; LID at η = 10⁻³. The sizes are those of the paper's figures with "
        "generative models (Figures 4 to 8 are plotted only); its GAN, 2,049 s a trial there, is not run.",
    }
    heads = ["first stage", "stages", "CPU seconds", *(f"α = {alpha:g}" for alpha in ALPHAS)]
    keep("prediction", "generators", about, heads, rows)
    return {"trials": trials} | cells
