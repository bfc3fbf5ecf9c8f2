"""The section on models that are differentially private themselves, beside models of released records."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdist.evaluate.binning import View
from dpdist.evaluate.page.sections import Cell, Section, State, Table, does_not_apply
from dpdist.evaluate.utility import erm
from dpdist.evaluate.utility.learning import Trial, too_small
from dpdist.evaluate.utility.models import Encoder, labels_of
from dpdist.families.base.attempt import Progress
from dpdist.privacy.arrays import Floats

PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
"""Penalties that are tried; the best for each model is shown."""

_DRAWS = 3


def baseline_section(trial: Trial, view: View, target: int, *, epsilon: float, progress: Progress) -> Section:
    """Models of released records beside models that are differentially private themselves (the paper's Table 4).

    Parameters
    ----------
    trial : Trial
    view : View
    target : int
        Of an attribute with two values; else the section does not apply.
    epsilon : float
        Of each DP model.
    """
    name, title = "dp-erm", "Against models that are private themselves"
    if view.sizes[target] != 2 or view.axes[target].edges is not None:
        return does_not_apply(name, title, f"{view.names[target]} does not have two values.")
    if trial.too_small or len(view.names) < 2:
        return too_small(name, title, trial)
    places = [i for i in range(len(view.names)) if i != target]
    encoder = Encoder.of(view, places, trial.training["real"])
    data = {
        source: (erm.unit_rows(encoder.indicators(codes)), erm.signs(labels_of(codes, view, target), 1))
        for source, codes in (*trial.training.items(), ("test", trial.test))
    }
    x, y = data["real"]
    test, truth = data["test"]
    rng = np.random.default_rng([trial.seed, 2])
    rows: list[tuple[Cell, ...]] = []
    figures: dict[str, dict[str, dict[str, float]]] = {}

    def right(weights: Floats) -> float:
        return float(np.mean(np.where(test @ weights >= 0, 1.0, -1.0) == truth))

    done = 0
    for loss in (erm.LOGISTIC, erm.HUBER_SVM):
        found: dict[str, list[list[float]]] = {}
        plain: dict[str, Floats] = {}
        for penalty in PENALTIES:
            plain = {
                source: erm.minimise(loss, *data[source], penalty=penalty, start=plain.get(source))
                for source in trial.training
            }
            tries = {f"without privacy, {source} records": [right(weights)] for source, weights in plain.items()}
            common: dict[str, Any] = {"epsilon": epsilon, "penalty": penalty, "rng": rng}
            tries["output perturbation"] = [
                right(plain["real"] + erm.output_noise(x.shape, **common)) for _ in range(_DRAWS)
            ]
            tries["objective perturbation"] = [
                right(erm.objective_perturbation(loss, x, y, **common, start=plain["real"])) for _ in range(_DRAWS)
            ]
            for how, values in tries.items():
                found.setdefault(how, []).append(values)
            done += 1
            progress("private baselines", done, 2 * len(PENALTIES))
        figures[loss.name] = {}
        for how, by_penalty in found.items():
            place = int(np.argmax([np.mean(values) for values in by_penalty]))
            mean, spread = float(np.mean(by_penalty[place])), float(np.std(by_penalty[place]))
            figures[loss.name][how] = {"accuracy": mean, "sd": spread, "penalty": PENALTIES[place]}
            private = None if how.startswith("without") else epsilon
            rows.append((loss.name, how, mean, spread, PENALTIES[place], private))
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
    recorded = {"target": view.names[target], "epsilon": epsilon, "models": figures, "train_rows": trial.rows[0]}
    return Section(name, title, verdict, state, (Table(title, columns, tuple(rows), note),), (), recorded)
