"""The section on models that are differentially private themselves, beside models of released records."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdist.evaluate.binning import View
from dpdist.evaluate.page.sections import Cell, Section, State, Table, does_not_apply
from dpdist.evaluate.utility import erm
from dpdist.evaluate.utility.trial import Prediction, Trial, too_small
from dpdist.families.base.attempt import Progress
from dpdist.privacy.arrays import Floats

PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
"""Penalties that are tried; the best for each model is shown."""

_DRAWS = 3


def baseline_section(trial: Trial, view: View, target: int, *, epsilon: float, progress: Progress) -> Section:
    """Models of released records beside models that are differentially private themselves, each with `epsilon` (the
    paper's Table 4). Without a target of two values the section does not apply.
    """
    name, title, task = "dp-erm", "Against models that are private themselves", Prediction(trial, view, target)
    if view.sizes[target] != 2 or view.axes[target].edges is not None:
        return does_not_apply(name, title, f"{task.name} does not have two values.")
    if trial.too_small or len(view.names) < 2:
        return too_small(name, title)
    figures = _best(task, epsilon, progress)
    rows: list[tuple[Cell, ...]] = [
        (loss, how, *found.values(), None if how.startswith("without") else epsilon)
        for loss, of in figures.items()
        for how, found in of.items()
    ]
    ours = max(of["without privacy, released records"]["accuracy"] for of in figures.values())
    theirs = max(of[how]["accuracy"] for of in figures.values() for how in of if how.endswith("perturbation"))
    verdict = (
        f"A linear model of released records is right in {ours:.1%} of cases; the best model of real records that is "
        f"itself ({epsilon:.3g}, 0)-differentially private (replacement; this one model), in {theirs:.1%}."
    )
    note = (
        "Chaudhuri, Monteleoni, Sarwate 2011, Algorithms 1 and 2, replacement adjacency; mean and deviation of "
        f"{_DRAWS} draws; for each the best of the penalties {', '.join(f'{p:g}' for p in PENALTIES)} by the test "
        f"records, which favours all of them. The private models are thrown away. {trial.sentence}"
    )
    columns = ("loss", "model", "accuracy", "deviation", "penalty", "epsilon of the model")
    state: State = "good" if ours >= theirs - 0.005 else "fair" if ours >= theirs - 0.05 else "bad"
    recorded = {"target": task.name, "epsilon": epsilon, "models": figures, "train_rows": trial.rows[0]}
    return Section(name, title, verdict, state, (Table(title, columns, tuple(rows), note),), (), recorded)


def _best(task: Prediction, epsilon: float, progress: Progress) -> dict[str, dict[str, dict[str, float]]]:
    """For each loss and each way to train: mean accuracy, deviation and penalty, of the best penalty."""
    trial = task.trial
    data = {
        source: (erm.unit_rows(task.encoder.indicators(codes)), erm.signs(task.labels(codes), 1))
        for source, codes in (*trial.training.items(), ("test", trial.test))
    }
    test, truth = data.pop("test")
    rng = np.random.default_rng([trial.seed, 2])

    def right(weights: Floats) -> float:
        return float(np.mean(np.where(test @ weights >= 0, 1.0, -1.0) == truth))

    done, total = 0, 2 * len(PENALTIES)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for loss in (erm.LOGISTIC, erm.HUBER_SVM):
        best: dict[str, dict[str, float]] = {}
        start: dict[str, Floats] = {}
        for penalty in PENALTIES:
            progress("private baselines", done, total)
            start, models = _models(loss, data, start, epsilon=epsilon, penalty=penalty, rng=rng)
            for how, weights in models.items():
                values = [right(one) for one in weights]
                mean = float(np.mean(values))
                if how not in best or mean > best[how]["accuracy"]:
                    best[how] = {"accuracy": mean, "sd": float(np.std(values)), "penalty": penalty}
            done += 1
        figures[loss.name] = best
    progress("private baselines", done, total)
    return figures


def _models(
    loss: erm.Loss,
    data: dict[str, tuple[Any, Floats]],
    start: dict[str, Floats],
    *,
    epsilon: float,
    penalty: float,
    rng: np.random.Generator,
) -> tuple[dict[str, Floats], dict[str, list[Floats]]]:
    """The plain model of each table, and the weights of all models by the way they are trained."""
    plain = {
        source: erm.minimise(loss, *table, penalty=penalty, start=start.get(source)) for source, table in data.items()
    }
    x, y = data["real"]
    common: dict[str, Any] = {"epsilon": epsilon, "penalty": penalty, "rng": rng}
    models = {f"without privacy, {source} records": [weights] for source, weights in plain.items()}
    models["output perturbation"] = [plain["real"] + erm.output_noise(x.shape, **common) for _ in range(_DRAWS)]
    models["objective perturbation"] = [
        erm.objective_perturbation(loss, x, y, **common, start=plain["real"]) for _ in range(_DRAWS)
    ]
    return plain, models
