"""The section on marginals: how near the released table is to the real one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpdist.evaluate.binning import View
from dpdist.evaluate.page import plots
from dpdist.evaluate.page.sections import Cell, Section, State, Table
from dpdist.evaluate.utility.marginals import (
    SUBSAMPLES,
    Marginals,
    Subset,
    distances,
    distances_to_independence,
    equivalent_share,
    k_marginal_score,
    subsample_scores,
)
from dpdist.privacy.arrays import Floats

GOOD, FAIR = 0.35, 0.75
"""Largest part of the way from two real halves to independence that is called good, and with reserve."""

_WORST = 15
_LISTED = 10_000  # distances of one order, at most, that go into the figures


def marginal_section(counts: Mapping[str, Marginals], view: View, *, seed: int) -> Section:
    """Distances of the one-, two- and some three-way marginals, and NIST's score.

    Parameters
    ----------
    counts : mapping
        ``released``, ``real``, ``first half`` and ``second half`` (`Material.marginals`).
    view : View
    seed : int
        Of the sample of three-way marginals and of the random parts.
    """
    real = counts["real"]
    orders = [k for k in (1, 2, 3) if real.subsets(k)]
    found = {k: distances(counts["released"], real, k) for k in orders}
    halves = {k: distances(counts["first half"], counts["second half"], k) for k in orders}
    independent = {k: distances_to_independence(real, k) for k in orders if k > 1}
    parts = {k: subsample_scores(real, k, seed=seed) for k in orders}
    scores = {k: k_marginal_score(found[k]) for k in orders}
    shares = {k: equivalent_share(scores[k], parts[k]) for k in orders}
    rows: list[tuple[Cell, ...]] = [
        (
            f"{k}-way",
            found[k].size,
            found[k].mean(),
            np.median(found[k]),
            found[k].max(),
            halves[k].mean(),
            independent[k].mean() if k in independent else None,
            round(scores[k], 1),
            share_text(shares[k]),
        )
        for k in orders
    ]
    columns = (
        "marginals",
        "number",
        "mean",
        "median",
        "largest",
        "two real halves",
        "independence",
        "score",
        "like a part of",
    )
    tables = [
        Table(
            "Total variation distance to the real table",
            columns,
            tuple(rows),
            "Two real halves: the distance of one random half of the real table to the other, what chance alone makes "
            "of half as many records. Independence: of the real marginals to the products of their one-way marginals. "
            "Score: NIST's k-marginal score (SDNist), 1000 times one minus the mean distance. Like a part of: a "
            "random part of the real table of this size has the same score. Three-way marginals: "
            f"{len(real.triples)} of {_choose3(len(view.axes))}, sample with seed {seed}.",
        ),
        _one_way(counts, view, found[1], halves[1]),
    ]
    for k, title in ((2, "Two-way marginals that differ most"), (3, "Three-way marginals that differ most")):
        if k in orders:
            tables.append(_worst(title, real.subsets(k), view, found[k], halves[k], independent[k]))
    groups = {
        f"{k}-way": [
            ("two real halves", halves[k], plots.REAL),
            ("released", found[k], plots.RELEASED),
            *([("independence", independent[k], plots.OTHER)] if k in independent else []),
        ]
        for k in orders
    }
    plot = plots.box_plot("Distances of marginals", groups, label="total variation distance")
    top = 2 if 2 in orders else 1
    state, verdict = _judged(top, found[top], halves[top], independent.get(top), scores[top], shares[top])
    figures = {
        "records": {name: marginals.records for name, marginals in counts.items()},
        "seed": seed,
        "mean_distance": {f"{k}": found[k].mean() for k in orders},
        "mean_distance_of_halves": {f"{k}": halves[k].mean() for k in orders},
        "mean_distance_to_independence": {f"{k}": independent[k].mean() for k in independent},
        "k_marginal_score": {f"{k}": scores[k] for k in orders},
        "scores_of_random_parts": {f"{k}": dict(zip(map(str, SUBSAMPLES), parts[k], strict=True)) for k in orders},
        "like_a_random_part_of": {f"{k}": shares[k] for k in orders},
        "distances": {
            " x ".join(view.names[i] for i in which): distance
            for k in orders
            if found[k].size <= _LISTED
            for which, distance in zip(real.subsets(k), found[k], strict=True)
        },
    }
    return Section("marginals", "Marginals", verdict, state, tuple(tables), (plot,), figures)


def _judged(
    k: int, found: Floats, halves: Floats, independent: Floats | None, score: float, share: float | None
) -> tuple[State, str]:
    mean, near = float(found.mean()), float(halves.mean())
    number = "one attribute" if k == 1 else "two attributes"
    text = (
        f"Counted by {number} at a time, {mean:.1%} of the released records would have to change to match the real "
        f"table, on average (total variation distance {mean:.4f}, NIST's score {score:.0f} of 1000). A random part of "
        f"{share_text(share)} of the real table is as near."
    )
    if independent is None:
        return ("good" if mean <= 0.02 else "fair" if mean <= 0.1 else "bad"), text
    far = float(independent.mean())
    text += (
        f" For scale: two halves of the real table are {near:.4f} apart; without any dependence it would be {far:.4f}."
    )
    if far <= near:
        return "info", text + " The attributes are nearly independent, so the distance says little."
    if mean > far:
        text += " So pairs are worse than if each attribute had been released by itself."
    way = (mean - near) / (far - near)
    return ("good" if way <= GOOD else "fair" if way <= FAIR else "bad"), text


def share_text(share: float | None) -> str:
    """The size of a random part of the real table, in words."""
    if share is None:
        return f"less than {SUBSAMPLES[0] * 100:.2g} %"
    if share >= 1:
        return f"more than {SUBSAMPLES[-1] * 100:.2g} %"
    return f"{share * 100:.2g} %"


def _one_way(counts: Mapping[str, Marginals], view: View, found: Floats, halves: Floats) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for i, axis in enumerate(view.axes):
        shares = [counts[name].table((i,)) / max(counts[name].records, 1) for name in ("real", "released")]
        place = int(np.argmax(np.abs(shares[1] - shares[0])))
        rows.append((axis.name, axis.size, found[i], halves[i], axis.labels[place], shares[0][place], shares[1][place]))
    columns = ("attribute", "values", "distance", "two real halves", "differs most at", "real share", "released share")
    return Table("One-way marginals", columns, tuple(rows))


def _worst(title: str, subsets: list[Subset], view: View, found: Floats, halves: Floats, independent: Floats) -> Table:
    order = np.argsort(-found, kind="stable")[:_WORST].tolist()
    rows: list[tuple[Cell, ...]] = [
        (" × ".join(view.names[i] for i in subsets[place]), found[place], halves[place], independent[place])
        for place in order
    ]
    return Table(title, ("attributes", "distance", "two real halves", "independence"), tuple(rows))


def _choose3(m: int) -> int:
    return m * (m - 1) * (m - 2) // 6
