"""The section on marginals: how near the released table is to the real one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb

import numpy as np

from dpdist.evaluation.binning import View
from dpdist.evaluation.page import plots
from dpdist.evaluation.page.sections import Cell, PageSection, PageTable, State
from dpdist.evaluation.utility.marginals import (
    SUBSAMPLES,
    Marginals,
    Subset,
    distances,
    distances_to_independence,
    equivalent_share,
    k_marginal_score,
    subsample_scores,
    subsample_scores_by_halves,
)
from dpdist.privacy.arrays import Floats

GOOD, FAIR = 0.35, 0.75
"""Largest part of the way from two real halves to independence that is called good, and with reserve."""

_WORST = 15
_NUMBERS = {2: "Two", 3: "Three"}
_COLUMNS = (
    *("marginals", "number", "mean", "median", "largest"),
    *("two real halves", "independence", "score", "like a part of"),
)
_NOTE = (
    "Two real halves: the distance of one random half of the real table to the other, what chance alone makes of half "
    "as many records. Independence: of the real marginals to the products of their one-way marginals. Score: NIST's "
    "k-marginal score (SDNist), 1000 times one minus the mean distance. Like a part of: a random part of the real "
    "table of this size has the same score. Three-way marginals: {triples} of {all}, sample with seed {seed}."
)
_LISTED = 10_000  # distances of one order, at most, that go into the figures


@dataclass(frozen=True, eq=False)
class Distances:
    """How far the k-way marginals are apart."""

    subsets: list[Subset]  # the attributes of each marginal
    # found, halves: float64[marginals]: released against real records, and one half of the real ones against the other
    found: Floats
    halves: Floats
    # float64[marginals] or None: real marginals against the products of their one-way marginals; None for k = 1
    independent: Floats | None
    score: float  # NIST's k-marginal score
    parts: Floats  # float64[shares]: scores of random parts of the real table, of the shares `SUBSAMPLES`

    @classmethod
    def of(cls, counts: Mapping[str, Marginals], k: int, *, seed: int, weighted: bool) -> Distances:
        """The distances of the k-way marginals."""
        real, found = counts["real"], distances(counts["released"], counts["real"], k)
        halves = distances(counts["first half"], counts["second half"], k)
        return cls(
            real.subsets(k),
            found,
            halves,
            distances_to_independence(real, k) if k > 1 else None,
            k_marginal_score(found),
            subsample_scores_by_halves(halves) if weighted else subsample_scores(real, k, seed=seed),
        )

    @property
    def share(self) -> float | None:
        """The share of the real table of which a random part has the same score."""
        return equivalent_share(self.score, self.parts)

    @property
    def row(self) -> tuple[Cell, ...]:
        """Cells under `_COLUMNS`."""
        found, far = self.found, None if self.independent is None else self.independent.mean()
        numbers = (found.size, found.mean(), np.median(found), found.max(), self.halves.mean(), far)
        return (*numbers, round(self.score, 1), share_text(self.share))

    @property
    def boxes(self) -> list[tuple[str, Floats, str]]:
        """Boxes of the plot."""
        boxes = [("two real halves", self.halves, plots.REAL), ("released", self.found, plots.RELEASED)]
        return boxes if self.independent is None else [*boxes, ("independence", self.independent, plots.OTHER)]


def marginal_section(counts: Mapping[str, Marginals], view: View, *, seed: int, weighted: bool = False) -> PageSection:
    """Distances of the one-, two- and some three-way marginals, and NIST's score, from the counts of
    `Inputs.marginals`. The seed is that of the sample of three-way marginals and of the random parts; `weighted` says
    that records count by their weights.
    """
    real = counts["real"]
    of = {k: Distances.of(counts, k, seed=seed, weighted=weighted) for k in (1, 2, 3) if real.subsets(k)}
    note = _NOTE.format(triples=len(real.triples), all=comb(len(view.axes), 3), seed=seed)
    tables = [
        PageTable(
            "Total variation distance to the real table",
            _COLUMNS,
            tuple((f"{k}-way", *one.row) for k, one in of.items()),
            note,
        ),
        _one_way(counts, view, of[1]),
        *(_worst(f"{_NUMBERS[k]}-way marginals that differ most", view, one) for k, one in of.items() if k > 1),
    ]
    plot = plots.box_plot(
        "Distances of marginals", {f"{k}-way": one.boxes for k, one in of.items()}, label="total variation distance"
    )
    top = min(2, max(of))
    state, verdict = _judged(top, of[top])
    figures = {"records": {name: of_.records for name, of_ in counts.items()}, "seed": seed, **_figures(of, view)}
    return PageSection("marginals", "Marginals", verdict, state, tuple(tables), (plot,), figures)


def _figures(of: Mapping[int, Distances], view: View) -> dict[str, object]:
    far = {k: one.independent for k, one in of.items() if one.independent is not None}
    return {
        "mean_distance": {f"{k}": one.found.mean() for k, one in of.items()},
        "mean_distance_of_halves": {f"{k}": one.halves.mean() for k, one in of.items()},
        "mean_distance_to_independence": {f"{k}": found.mean() for k, found in far.items()},
        "k_marginal_score": {f"{k}": one.score for k, one in of.items()},
        "scores_of_random_parts": {
            f"{k}": dict(zip(map(str, SUBSAMPLES), one.parts, strict=True)) for k, one in of.items()
        },
        "like_a_random_part_of": {f"{k}": one.share for k, one in of.items()},
        "distances": {
            " x ".join(view.names[i] for i in which): distance
            for one in of.values()
            if one.found.size <= _LISTED
            for which, distance in zip(one.subsets, one.found, strict=True)
        },
    }


def _judged(k: int, of: Distances) -> tuple[State, str]:
    mean, near = float(of.found.mean()), float(of.halves.mean())
    number = "one attribute" if k == 1 else "two attributes"
    text = (
        f"Counted by {number} at a time, {mean:.1%} of the released records would have to change to match the real "
        f"table, on average (total variation distance {mean:.4f}, NIST's score {of.score:.0f} of 1000). A random part "
        f"of {share_text(of.share)} of the real table is as near."
    )
    if of.independent is None:
        return ("good" if mean <= 0.02 else "fair" if mean <= 0.1 else "bad"), text
    far = float(of.independent.mean())
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


def _one_way(counts: Mapping[str, Marginals], view: View, of: Distances) -> PageTable:
    rows: list[tuple[Cell, ...]] = []
    for i, axis in enumerate(view.axes):
        real, released = (counts[name].table((i,)) / max(counts[name].records, 1) for name in ("real", "released"))
        place = int(np.argmax(np.abs(released - real)))
        rows.append((axis.name, axis.size, of.found[i], of.halves[i], axis.labels[place], real[place], released[place]))
    columns = ("attribute", "values", "distance", "two real halves", "differs most at", "real share", "released share")
    return PageTable("One-way marginals", columns, tuple(rows))


def _worst(title: str, view: View, of: Distances) -> PageTable:
    columns = [of.found, of.halves, *([] if of.independent is None else [of.independent])]
    order = np.argsort(-of.found, kind="stable")[:_WORST].tolist()
    rows = tuple(
        (" × ".join(view.names[i] for i in of.subsets[place]), *(column[place] for column in columns))
        for place in order
    )
    return PageTable(title, ("attributes", "distance", "two real halves", "independence"), rows)
