"""The sections on models: trained on released records, tested on real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dpdist.evaluation.page import plots
from dpdist.evaluation.page.page import Cell, PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.records import View
from dpdist.evaluation.utility import models
from dpdist.families.base.attempt import Progress
from dpdist.privacy.arrays import Codes

_FOREST_ROWS, _FOREST_TREES, _FOREST_TARGETS = 10_000, 20, 40
_SERIES = (("real", plots.REAL), ("released", plots.RELEASED), ("independent", plots.OTHER))

Measured: TypeAlias = dict[str, float | None]  # figures of a model, by name


def training_section(trial: models.Trial, view: View, target: int, *, progress: Progress) -> PageSection:
    """Train on synthetic, test on real, for each kind of model (the paper's Table 3 and the upper part of Table 4)."""
    task = models.Prediction(trial, view, target)
    name, title = "models", f"Models that predict {task.name}"
    if view.axes[target].edges is not None:
        return does_not_apply(name, title, f"{task.name} is a number; see the section on regression.")
    if trial.too_small or len(view.names) < 2:
        return models.too_small(name, title)
    pairs = [(kind, source) for kind in models.CLASSIFIERS for source in trial.training]
    fits: dict[str, dict[str, models.ModelPredictions]] = {kind: {} for kind in models.CLASSIFIERS}
    for done, (kind, source) in enumerate(pairs):
        progress("training models", done, len(pairs))
        fits[kind][source] = task.fit(models.CLASSIFIERS[kind], source)
    progress("training models", len(pairs), len(pairs))
    figures: dict[str, dict[str, Measured]] = {
        kind: {
            source: {
                "accuracy": fitted.accuracy(task.truth),
                "auc": fitted.auc(task.truth),
                "agreement": fitted.agreement(of["real"]),
            }
            for source, fitted in of.items()
        }
        for kind, of in fits.items()
    }
    rows: list[tuple[Cell, ...]] = []
    for kind, source in pairs:
        found = figures[kind][source]
        agreement = None if source == "real" else found["agreement"]
        rows.append((kind, source, found["accuracy"], found["auc"], agreement))
    rows.append(("most frequent value", "real", task.majority, None, None))
    columns = ("model", "trained on", "accuracy", "AUC", "agreement with the model of real records")
    table = PageTable(f"Predicting {task.name}", columns, tuple(rows), trial.sentence)
    series = [(of, [figures[kind][of]["accuracy"] or 0.0 for kind in fits], colour) for of, colour in _SERIES]
    plot = plots.bar_plot(f"Accuracy on real records, predicting {task.name}", list(fits), series, label="accuracy")
    recorded = {
        "target": task.name,
        **trial.figures,
        "held_out": trial.fresh,
        "majority": task.majority,
        "models": figures,
    }
    state, verdict = _judged(figures, task.majority)
    return PageSection(name, title, verdict, state, (table,), (plot,), recorded)


def _judged(figures: Mapping[str, Mapping[str, Measured]], majority: float) -> tuple[State, str]:
    best = max(figures, key=lambda kind: figures[kind]["real"]["accuracy"] or 0.0)
    accuracy = {source: figures[best][source]["accuracy"] or 0.0 for source in ("real", "released")}
    agreement = figures[best]["released"]["agreement"] or 0.0
    text = (
        f"The best model of real records ({best}) is right in {accuracy['real']:.1%} of cases, the same kind of model "
        f"of released ones in {accuracy['released']:.1%}; they agree on {agreement:.1%} of the records. The most "
        f"frequent value alone is right in {majority:.1%}."
    )
    gain = accuracy["real"] - majority
    if gain <= 0.005:
        return "info", text + " No model learns much here, so this says little."
    kept = (accuracy["released"] - majority) / gain
    return ("good" if kept >= 0.9 else "fair" if kept >= 0.6 else "bad"), text


def attribute_section(trial: models.Trial, view: View, *, progress: Progress) -> PageSection:
    """How well a random forest predicts each attribute from all others (the paper's Figures 1 and 2)."""
    name, title = "attributes", "Each attribute from all others"
    trial = trial.part(_FOREST_ROWS, _FOREST_ROWS)
    if trial.too_small or len(view.names) < 2:
        return models.too_small(name, title)
    chosen = np.random.default_rng([trial.seed, 4]).permutation(len(view.names))[:_FOREST_TARGETS]
    targets = sorted(chosen.tolist())
    small = models.ModelKind(models.forest(_FOREST_TREES), "codes")
    rows: list[tuple[Cell, ...]] = []
    figures: dict[str, Measured] = {}
    losses: dict[str, float] = {}
    for done, target in enumerate(targets):
        progress("predicting attributes", done, len(targets))
        task = models.Prediction(trial, view, target)
        real, released = (task.fit(small, source).accuracy(task.truth) for source in ("real", "released"))
        gain = real - task.majority
        kept = (released - task.majority) / gain if gain > 0.005 else None
        rows.append((task.name, view.sizes[target], task.majority, real, released, released - real, kept))
        figures[task.name] = {"most_frequent": task.majority, "real": real, "released": released, "kept": kept}
        losses[task.name] = real - released
    progress("predicting attributes", len(targets), len(targets))
    state, verdict = _judged_losses(losses, [row["kept"] for row in figures.values() if row["kept"] is not None])
    columns = ("attribute", "values", "most frequent", "real", "released", "difference", "gain kept")
    some = (
        f"{len(targets)} of {len(view.names)} attributes, drawn at random. " if len(targets) < len(view.names) else ""
    )
    note = f"{some}Accuracy of {_FOREST_TREES} trees. {trial.sentence}"
    colours = {"real": plots.REAL, "released": plots.RELEASED, "most_frequent": plots.OTHER}
    plot = plots.bar_plot(
        "Accuracy on real records, predicting each attribute",
        list(figures),
        [(key.replace("_", " "), [of[key] or 0.0 for of in figures.values()], c) for key, c in colours.items()],
        label="accuracy",
    )
    table = PageTable(title, columns, tuple(rows), note)
    return PageSection(name, title, verdict, state, (table,), (plot,), {**trial.figures, "attributes": figures})


def _judged_losses(losses: Mapping[str, float], kept: list[float]) -> tuple[State, str]:
    worst, mean = max(losses, key=lambda name: losses[name]), float(np.mean(kept)) if kept else None
    loss = float(np.mean(list(losses.values()))) * 100
    verdict = (
        f"A random forest of released records predicts an attribute {abs(loss):.1f} percentage points "
        f"{'less' if loss >= 0 else 'more'} often right than one of real records on average, with the largest loss of "
        f"{losses[worst] * 100:.1f} for {worst}"
    )
    if mean is None:
        return "info", f"{verdict}."
    state: State = "good" if mean >= 0.85 else "fair" if mean >= 0.5 else "bad"
    return state, f"{verdict}; it keeps {mean:.0%} of what the forest gains over the most frequent value."


SMALL = 200  # records of the small table of one's own that released records are added to
_BOTH = "few real and released"


REGRESSORS = {
    "ridge": models.ModelKind(models.estimator("linear_model:Ridge", alpha=1.0), "indicators"),
    "random forest": models.ModelKind(
        models.estimator("ensemble:RandomForestRegressor", n_estimators=40, min_samples_leaf=3, max_leaf_nodes=600),
        "codes",
    ),
    "gradient boosting": models.ModelKind(
        models.estimator("ensemble:HistGradientBoostingRegressor", max_iter=100, early_stopping=False), "codes"
    ),
}


def regression_section(trial: models.Trial, view: View, target: int, *, progress: Progress) -> PageSection:
    """Mean squared error of a number, for models of real, released and both records (`delta_mse`)."""
    name, title = "regression", f"Regression of {view.names[target]}"
    if view.axes[target].edges is None:
        return does_not_apply(name, "Regression", "the attribute to predict is not a continuous number.")
    if trial.too_small or len(view.names) < 2:
        return models.too_small(name, title)
    encoder = models.Prediction(trial, view, target).encoder
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
