"""The sections on models: trained on released records, tested on real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpdist.evaluate.binning import View
from dpdist.evaluate.page import plots
from dpdist.evaluate.page.sections import Cell, Section, State, Table, does_not_apply
from dpdist.evaluate.utility.models import CLASSIFIERS, Encoder, Fitted, fit, forest, independent, labels_of
from dpdist.families.base.attempt import Progress
from dpdist.privacy.arrays import Codes

LEAST = 50
"""Fewest records to train on, and to test on."""

_FOREST_ROWS, _FOREST_TREES, _FOREST_TARGETS = 10_000, 20, 40


@dataclass(frozen=True, eq=False)
class Trial:
    """Records to train on and to test on, as codes of the schema; all training tables have the same size.

    Attributes
    ----------
    training : mapping of str to Codes
        ``real``, ``released``, ``independent``: real one-way marginals, attributes independent of each other.
    test : Codes
        Real records that no model of ``real`` is trained on.
    fresh : bool
        Whether the test records are a hold-out: not in the table that the release was made from.
    seed : int
    """

    training: Mapping[str, Codes]
    test: Codes
    fresh: bool
    seed: int

    @property
    def rows(self) -> tuple[int, int]:
        """Number of records to train on and to test on."""
        return len(self.training["real"][0]), len(self.test[0])

    @property
    def too_small(self) -> bool:
        """Whether there is too little to say anything."""
        return min(self.rows) < LEAST

    @property
    def sentence(self) -> str:
        """What was trained and tested on what."""
        train, test = self.rows
        source = "held-out records" if self.fresh else "real records that the release was made from too (no hold-out)"
        return f"Trained on {train:,} records of each table and tested on {test:,} {source}; seed {self.seed}."

    def part(self, train: int, test: int) -> Trial:
        """The first records of each."""
        tables = {name: [column[:train] for column in codes] for name, codes in self.training.items()}
        return Trial(tables, [column[:test] for column in self.test], self.fresh, self.seed)


def make_trial(real: Codes, released: Codes, holdout: Codes | None, *, train: int, test: int, seed: int) -> Trial:
    """Draw the records of a trial.

    Parameters
    ----------
    real, released, holdout : Codes
        Codes of the schema. Without a hold-out, a third of the real records at most is set aside for testing.
    train, test : int
        Records at most.
    seed : int
    """
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(real[0]))
    if holdout is None:
        test = min(test, len(order) // 3)
        tested = [column[order[:test]] for column in real]
        order = order[test:]
    else:
        rows = rng.permutation(len(holdout[0]))[:test]
        tested = [column[rows] for column in holdout]
    train = min(train, len(order), len(released[0]))
    ours = [column[order[:train]] for column in real]
    rows = rng.permutation(len(released[0]))[:train]
    theirs = [column[rows] for column in released]
    training = {"real": ours, "released": theirs, "independent": independent(ours, seed)}
    return Trial(training, tested, holdout is not None, seed)


def default_target(view: View) -> int:
    """The attribute to predict unless one is named: the last with two values, else the one with the fewest."""
    sizes = view.sizes
    finite = [i for i, axis in enumerate(view.axes) if axis.edges is None and axis.size > 1]
    binary = [i for i in finite if sizes[i] == 2]
    return binary[-1] if binary else min(finite, key=lambda i: sizes[i], default=len(sizes) - 1)


def training_section(trial: Trial, view: View, target: int, *, progress: Progress) -> Section:
    """Train on synthetic, test on real, for each kind of model (the paper's Table 3 and the upper part of Table 4)."""
    name, title = "models", f"Models that predict {view.names[target]}"
    if view.axes[target].edges is not None:
        return does_not_apply(name, title, f"{view.names[target]} is a number; see the section on regression.")
    if trial.too_small or len(view.names) < 2:
        return too_small(name, title, trial)
    places = [i for i in range(len(view.names)) if i != target]
    truth = labels_of(trial.test, view, target)
    encoder = Encoder.of(view, places, trial.training["real"])
    fits: dict[str, dict[str, Fitted]] = {kind: {} for kind in CLASSIFIERS}
    total, done = len(CLASSIFIERS) * len(trial.training), 0
    for kind, classifier in CLASSIFIERS.items():
        test = encoder.matrix(trial.test, classifier.sees)
        for source, codes in trial.training.items():
            matrix = encoder.matrix(codes, classifier.sees)
            fits[kind][source] = fit(classifier.make, trial.seed, matrix, labels_of(codes, view, target), test)
            done += 1
            progress("training models", done, total)
    rows: list[tuple[Cell, ...]] = []
    figures: dict[str, dict[str, dict[str, float | None]]] = {}
    for kind, of in fits.items():
        figures[kind] = {}
        for source, fitted in of.items():
            found = {
                "accuracy": fitted.accuracy(truth),
                "auc": fitted.auc(truth),
                "agreement": fitted.agreement(of["real"]),
            }
            figures[kind][source] = found
            agreement = None if source == "real" else found["agreement"]
            rows.append((kind, source, found["accuracy"], found["auc"], agreement))
    majority = _majority(trial, view, target)
    rows.append(("most frequent value", "real", majority, None, None))
    series = [
        (source, [figures[kind][source]["accuracy"] or 0.0 for kind in fits], colour)
        for source, colour in (("real", plots.REAL), ("released", plots.RELEASED), ("independent", plots.OTHER))
    ]
    state, verdict = _judged(figures, majority)
    columns = ("model", "trained on", "accuracy", "AUC", "agreement with the model of real records")
    table = Table(f"Predicting {view.names[target]}", columns, tuple(rows), trial.sentence)
    plot = plots.bar_plot(
        f"Accuracy on real records, predicting {view.names[target]}", list(fits), series, label="accuracy"
    )
    recorded = {
        "target": view.names[target],
        "train_rows": trial.rows[0],
        "test_rows": trial.rows[1],
        "held_out": trial.fresh,
        "seed": trial.seed,
        "majority": majority,
        "models": figures,
    }
    return Section(name, title, verdict, state, (table,), (plot,), recorded)


def _judged(figures: Mapping[str, Mapping[str, Mapping[str, float | None]]], majority: float) -> tuple[State, str]:
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


def attribute_section(trial: Trial, view: View, *, progress: Progress) -> Section:
    """How well a random forest predicts each attribute from all others (the paper's Figures 1 and 2)."""
    name, title = "attributes", "Each attribute from all others"
    trial = trial.part(_FOREST_ROWS, _FOREST_ROWS)
    if trial.too_small or len(view.names) < 2:
        return too_small(name, title, trial)
    rows: list[tuple[Cell, ...]] = []
    figures: dict[str, dict[str, float | None]] = {}
    chosen = np.random.default_rng([trial.seed, 4]).permutation(len(view.names))[:_FOREST_TARGETS]
    targets = sorted(chosen.tolist())
    for done, target in enumerate(targets):
        attribute = view.names[target]
        places = [i for i in range(len(view.names)) if i != target]
        truth = labels_of(trial.test, view, target)
        encoder = Encoder.of(view, places, trial.training["real"])
        test = encoder.codes(trial.test)
        fitted = {
            source: fit(
                lambda seed: forest(seed, trees=_FOREST_TREES),
                trial.seed,
                encoder.codes(trial.training[source]),
                labels_of(trial.training[source], view, target),
                test,
            )
            for source in ("real", "released")
        }
        real, released = (fitted[source].accuracy(truth) for source in ("real", "released"))
        majority = _majority(trial, view, target)
        kept = (released - majority) / (real - majority) if real - majority > 0.005 else None
        rows.append((attribute, view.sizes[target], majority, real, released, released - real, kept))
        figures[attribute] = {"most_frequent": majority, "real": real, "released": released, "kept": kept}
        progress("predicting attributes", done + 1, len(targets))
    kept_of = [row["kept"] for row in figures.values() if row["kept"] is not None]
    mean = float(np.mean(kept_of)) if kept_of else None
    losses = [figures[attribute]["real"] - figures[attribute]["released"] for attribute in figures]  # type: ignore[operator]
    worst = view.names[targets[int(np.argmax(losses))]]
    verdict = (
        f"A random forest of released records predicts an attribute {np.mean(losses) * 100:.1f} percentage points less "
        f"often right than one of real records on average, {max(losses) * 100:.1f} for {worst}"
        + ("." if mean is None else f"; it keeps {mean:.0%} of what the forest gains over the most frequent value.")
    )
    state: State = "info" if mean is None else "good" if mean >= 0.85 else "fair" if mean >= 0.5 else "bad"
    columns = ("attribute", "values", "most frequent", "real", "released", "difference", "gain kept")
    some = (
        f"{len(targets)} of {len(view.names)} attributes, drawn at random. " if len(targets) < len(view.names) else ""
    )
    note = f"{some}Accuracy of {_FOREST_TREES} trees. {trial.sentence}"
    plot = plots.bar_plot(
        "Accuracy on real records, predicting each attribute",
        list(figures),
        [
            (label, [figures[attribute][key] or 0.0 for attribute in figures], colour)
            for label, key, colour in (
                ("real", "real", plots.REAL),
                ("released", "released", plots.RELEASED),
                ("most frequent", "most_frequent", plots.OTHER),
            )
        ],
        label="accuracy",
    )
    recorded = {"train_rows": trial.rows[0], "test_rows": trial.rows[1], "seed": trial.seed, "attributes": figures}
    return Section(name, title, verdict, state, (Table(title, columns, tuple(rows), note),), (plot,), recorded)


def _majority(trial: Trial, view: View, target: int) -> float:
    """How often the most frequent value of the real training records is right."""
    labels = labels_of(trial.training["real"], view, target)
    return float(np.mean(labels_of(trial.test, view, target) == np.bincount(labels).argmax()))


def too_small(name: str, title: str, trial: Trial) -> Section:
    """Why a section says nothing of so few records."""
    return does_not_apply(name, title, f"it needs {LEAST} records to train on and to test on, and two attributes.")


def named_target(view: View, name: str | None) -> int:
    """The place of the attribute to predict.

    Raises
    ------
    SpecError
        There is no such attribute.
    """
    from dpdist.errors import SpecError

    if name is None:
        return default_target(view)
    if name not in view.names:
        raise SpecError(f"--target {name}: expected one of {', '.join(view.names)}")
    return view.names.index(name)
