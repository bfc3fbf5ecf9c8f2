"""Likeness: can released records be told from real ones, and do they repeat the records that they were made from?

*The distinguishing game* (PD, Section 6.4 and Table 5): a forest and a tree are trained on as many real as released
records and tested on others. At 50 % nobody can tell; independent marginals are the other end of the scale.

*Copies*, exact and near: popular records repeat by chance. What the release repeats of held-out records is chance, and
the excess is memory.
"""

from __future__ import annotations

import numpy as np

from dpdist.evaluation.attacks.intervals import (
    AttackTables,
    Estimate,
    Hits,
    area_under_curve,
    difference,
    leak_state,
    proportion,
)
from dpdist.evaluation.page.page import PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.records import Agreement, drawn, independent, size, stacked
from dpdist.evaluation.utility.models import Maker, estimator
from dpdist.privacy.arrays import Codes

forest = estimator("ensemble:RandomForestClassifier", n_estimators=60, min_samples_leaf=3)
CLASSIFIERS = {"random forest": forest, "tree": estimator("tree:DecisionTreeClassifier", min_samples_leaf=20)}


def play(
    real: Codes, released: Codes, *, classifier: Maker, seed: int, confidence: float = 0.95
) -> tuple[Estimate, Estimate]:
    """Tell real from released records: the share of right guesses, and the area under the ROC curve."""
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


def game(tables: AttackTables) -> PageSection:
    """The game on a release, and on independent marginals of the real records for scale."""
    name, title = "distinguishing", "Distinguishing game"
    sizes, holdout = tables.sizes, tables.holdout
    fresh = holdout is not None and size(holdout) >= sizes.least
    real = holdout if fresh and holdout is not None else tables.training
    if min(size(real), size(tables.released)) < sizes.least:
        return does_not_apply(name, title, f"it needs {sizes.least} real and released records.")
    rng = tables.rng(2)
    real = drawn(real, sizes.game, rng)
    rivals = {"released": drawn(tables.released, sizes.game, rng), "independent marginals": independent(real, rng)}
    games = {
        (rival, kind): play(real, records, classifier=classifier, seed=tables.seed, confidence=sizes.confidence)
        for rival, records in rivals.items()
        for kind, classifier in CLASSIFIERS.items()
    }
    count = min(size(real), size(rivals["released"])) // 2 * 2
    table = PageTable(
        "Telling released records from real ones",
        ("records", "classifier", "accuracy", "low", "high", "AUC", "low ", "high "),
        tuple((*key, *accuracy.cells, *area.cells) for key, (accuracy, area) in games.items()),
        f"{count // 2:,} real and as many released records to train on, as many others to distinguish; the real ones "
        f"{'were held out' if fresh else 'are those the release was made from, for want of a hold-out'}. 50 % is "
        f"guessing. {sizes.confidence:.0%} intervals.",
    )
    found = {kind: games["released", kind][0] for kind in CLASSIFIERS}
    kind, best = max(found.items(), key=lambda item: item[1].value)
    worst = max(accuracy.value for (rival, _), (accuracy, _) in games.items() if rival != "released")
    verdict = (
        f"A {kind} tells released from real records in {best.value:.1%} of cases ({best.low:.1%} to {best.high:.1%}; "
        f"guessing: 50 %, independent marginals: {worst:.1%})."
    )
    figures = {f"{rival}, {kind}": {"accuracy": a, "auc": b} for (rival, kind), (a, b) in games.items()}
    way = (best.value - 0.5) / max(worst - 0.5, 0.01)  # from guessing to independent marginals
    state: State = "good" if way < 1 / 3 else "fair" if way < 1 else "bad"
    return PageSection(name, title, verdict, state, (table,), figures={"records": count, **figures})


_EQUAL = "released records that equal one of them"
_NAMES = {
    "exact": "records that the release repeats",
    "exact, unique": "records like no other that the release repeats",
    "near": "records repeated but for one attribute at most",
}


def copies(tables: AttackTables) -> PageSection:
    """Count the records of the training table, and of an equally large hold-out, that the release repeats.

    A near copy agrees on all attributes but one at most.
    """
    name, title, both = "copies", "Copies", tables.comparable
    if both is None:
        return tables.not_comparable(name, title)
    rng, count, released = tables.rng(3), min(map(size, both)), size(tables.released)
    agreement, everyone = Agreement(len(tables.schema.attributes), seed=tables.seed), stacked(*both)
    sides = {name: drawn(table, count, rng) for name, table in zip(("training", "hold-out"), both, strict=True)}
    equal = {side: int(np.count_nonzero(agreement.exact(tables.released, records))) for side, records in sides.items()}
    of = {side: _repeated(records, tables.released, everyone, agreement) for side, records in sides.items()}
    hits = {kind: {side: found[kind] for side, found in of.items()} for kind in of["training"]}
    confidence = tables.sizes.confidence
    together = 1 - (1 - confidence) / len(hits)
    excess = {
        kind: difference(found["training"], found["hold-out"], confidence=together) for kind, found in hits.items()
    }
    rows = [(_EQUAL, side, (number, released)) for side, number in equal.items()]
    rows += [(_NAMES[kind], side, found) for kind, by_side in hits.items() for side, found in by_side.items()]
    repeated = PageTable(
        "Repeated records",
        ("what", "table", "count", "of", "share", "low", "high"),
        tuple((what, side, *found, *proportion(*found, confidence=confidence).cells) for what, side, found in rows),
        f"{released:,} released records against {count:,} records drawn from each table. {confidence:.0%} intervals.",
    )
    differences = PageTable(
        "Excess over the hold-out",
        ("what", "training less hold-out", "low", "high"),
        tuple((_NAMES[kind], *interval.cells) for kind, interval in excess.items()),
        f"Above zero: the release remembers records. The intervals hold together with {confidence:.0%} confidence.",
    )
    figures = {
        "compared": count,
        **{kind: {side: {"count": h, "of": n} for side, (h, n) in found.items()} for kind, found in hits.items()},
        "excess": excess,
    }
    state = leak_state(max(interval.low for interval in excess.values()))
    verdict = _copies_verdict(hits, excess, count)
    return PageSection(name, title, verdict, state, (repeated, differences), figures=figures)


def _repeated(records: Codes, released: Codes, everyone: Codes, agreement: Agreement) -> dict[str, Hits]:
    """How many of some records the release repeats: of all, of those like no other, and but for one attribute."""
    count, repeated = size(records), agreement.exact(records, released) > 0
    unique = agreement.exact(records, everyone) == 1
    hits = {
        "exact": (int(repeated.sum()), count),
        "exact, unique": (int((repeated & unique).sum()), max(int(unique.sum()), 1)),
    }
    if agreement.attributes > 1:
        near = (agreement.without(records, released) > 0).any(axis=0)
        hits["near"] = (int(near.sum()), count)
    return hits


def _copies_verdict(hits: dict[str, dict[str, Hits]], excess: dict[str, Estimate], count: int) -> str:
    exact, base, more = hits["exact"]["training"][0], hits["exact"]["hold-out"][0], excess["exact"]
    words = "no more than chance explains"
    if more.low > 0:
        words = f"{more.value:.2%} more than chance ({more.low:.2%} to {more.high:.2%})"
    verdict = (
        f"The release repeats {exact:,} of {count:,} training records and {base:,} of as many it never saw: {words}."
    )
    if excess["exact, unique"].low > 0:
        hit, trials = hits["exact, unique"]["training"]
        verdict += f" Of {trials:,} training records that are like no other it repeats {hit:,}."
    return verdict
