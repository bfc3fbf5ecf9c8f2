"""The distinguishing game: a classifier is shown a record and says whether it is real or released.

PD, Section 6.4 and Table 5: a forest and a tree are trained on as many real as released records and tested on others.
At 50 % nobody can tell; independent marginals, the easiest to tell, are the other end of the scale. It measures
fidelity rather than privacy: a release that copies its input cannot be told from it at all.
"""

from __future__ import annotations

import numpy as np

from dpdist.evaluation.attacks.intervals import Estimate, area_under_curve, proportion
from dpdist.evaluation.attacks.records import drawn, independent, size, stacked
from dpdist.evaluation.attacks.tables import AttackTables
from dpdist.evaluation.page.sections import PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.utility.models import Maker, estimator
from dpdist.privacy.arrays import Codes

NAME, TITLE = "distinguishing", "Distinguishing game"

forest = estimator("ensemble:RandomForestClassifier", n_estimators=60, min_samples_leaf=3)
CLASSIFIERS = {"random forest": forest, "tree": estimator("tree:DecisionTreeClassifier", min_samples_leaf=20)}


def play(
    real: Codes, released: Codes, *, classifier: Maker, seed: int, confidence: float = 0.95
) -> tuple[Estimate, Estimate]:
    """Train on one half of the records (as many real as released) and tell the other half apart: the share of right
    guesses, half of them real, and the area under the ROC curve.
    """
    rng = np.random.default_rng([seed, 1])
    count = min(size(real), size(released)) // 2 * 2
    sides = [drawn(table, count, rng) for table in (real, released)]
    train, test = (
        np.stack(stacked(*([column[part::2] for column in side] for side in sides)), axis=1, dtype=np.float32)
        for part in (0, 1)
    )
    labels = np.repeat([0, 1], count // 2)
    fitted = classifier(seed).fit(train, labels)
    scores = fitted.predict_proba(test)[:, 1]
    ties = rng.random(len(scores)) < 0.5
    guesses = np.where(scores == 0.5, ties, scores > 0.5)
    right = int(np.count_nonzero(guesses == labels))
    return (
        proportion(right, count, confidence=confidence),
        area_under_curve(scores[labels == 1], scores[labels == 0], confidence=confidence),
    )


def section(tables: AttackTables) -> PageSection:
    """The game on a release, and on independent marginals of the real records for scale."""
    sizes, holdout = tables.sizes, tables.holdout
    fresh = holdout is not None and size(holdout) >= sizes.least
    real = holdout if fresh and holdout is not None else tables.training
    if min(size(real), size(tables.released)) < sizes.least:
        return does_not_apply(NAME, TITLE, f"it needs {sizes.least} real and released records.")
    rng = tables.rng(2)
    real = drawn(real, sizes.game, rng)
    rivals = {"released": drawn(tables.released, sizes.game, rng), "independent marginals": independent(real, rng)}
    games = {
        (rival, name): play(real, records, classifier=classifier, seed=tables.seed, confidence=sizes.confidence)
        for rival, records in rivals.items()
        for name, classifier in CLASSIFIERS.items()
    }
    count = min(size(real), size(rivals["released"])) // 2 * 2
    table = PageTable(
        "Telling released records from real ones",
        ("records", "classifier", "accuracy", "low", "high", "AUC", "low ", "high "),
        tuple((*key, *accuracy.cells, *area.cells) for key, (accuracy, area) in games.items()),
        f"{count // 2:,} real and as many released records to train on, as many others to be told apart; the real ones "
        f"{'were held out' if fresh else 'are those the release was made from, for want of a hold-out'}. 50 % is "
        f"guessing. {sizes.confidence:.0%} intervals.",
    )
    found = {name: games["released", name][0] for name in CLASSIFIERS}
    name, best = max(found.items(), key=lambda item: item[1].value)
    worst = max(accuracy.value for (rival, _), (accuracy, _) in games.items() if rival != "released")
    verdict = (
        f"A {name} tells released from real records in {best.value:.1%} of cases ({best.low:.1%} to {best.high:.1%}; "
        f"guessing: 50 %, independent marginals: {worst:.1%})."
    )
    figures = {
        f"{rival}, {name}": {"accuracy": a.to_json(), "auc": b.to_json()} for (rival, name), (a, b) in games.items()
    }
    return PageSection(NAME, TITLE, verdict, _state(best.value, worst), (table,), figures={"records": count, **figures})


def _state(accuracy: float, marginals: float) -> State:
    """Good within a third of the way from guessing to independent marginals, bad beyond them."""
    way = (accuracy - 0.5) / max(marginals - 0.5, 0.01)
    return "good" if way < 1 / 3 else "fair" if way < 1 else "bad"
