"""The sections on marginals, correlations and principal components: how near the released table is to the real one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from dpdist.data.count import PairCounts
from dpdist.evaluation.page import plots
from dpdist.evaluation.page.page import Cell, PageSection, PageTable, Plot, State, does_not_apply
from dpdist.evaluation.records import View
from dpdist.evaluation.utility.marginals import (
    SUBSAMPLES,
    Dependence,
    Marginals,
    Subset,
    dependences,
    distances,
    distances_to_independence,
    equivalent_share,
    k_marginal_score,
    parities,
    pictures,
    reserved,
    subsample_scores,
    subsample_scores_by_halves,
    wide_counts,
)
from dpdist.privacy.arrays import Codes, Counts, Floats

GOOD, FAIR = 0.35, 0.75  # largest parts of the way from two real halves to independence that are called so

_WORST = 15
_WORSE: tuple[State, ...] = ("info", "good", "fair", "bad")
_NUMBERS = {1: "one attribute", 2: "two attributes", 3: "three attributes", 4: "four attributes", 5: "five attributes"}
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
    found: Floats  # float64[marginals]: released against real records
    halves: Floats  # one half of the real records against the other
    independent: Floats | None  # real marginals against the products of their one-way marginals; None for k = 1
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
        """The share of the real table whose random part has the same score."""
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
    """Distances of the one-, two- and some three-way marginals, and NIST's score, from `Inputs.marginals`."""
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
        *(_worst(f"{k}-way marginals that differ most", view, one) for k, one in of.items() if k > 1),
    ]
    drawn = [_boxes("Distances of marginals", of), *pictures(counts, view)]
    if 1 < len(view.axes) <= _DRAWN:
        drawn.insert(1, _map(of[2], view))
    found, top = dependences(counts, view), min(2, max(of))
    state, verdict = _judged(top, of[top], found)
    if found:
        rows = tuple((one.text, one.real, one.released) for one in found[:_WORST])
        tables.append(PageTable("What determines what", ("attributes", "real share", "released share"), rows))
    figures = {"records": {name: of_.records for name, of_ in counts.items()}, "seed": seed, **_figures(of, view)}
    figures["determined"] = {one.text: {"real": one.real, "released": one.released} for one in found[:_LISTED]}
    return PageSection("marginals", "Marginals", verdict, state, tuple(tables), tuple(drawn), figures)


def wide_section(samples: Mapping[str, Codes], view: View, *, seed: int) -> PageSection:
    """Distances and parities of marginals of four and five attributes, from samples."""
    if len(view.axes) < 4:
        return does_not_apply("wide", "Four and more attributes", "the table has fewer than four attributes.")
    counts = wide_counts(samples, view, seed=seed)
    of = {k: Distances.of(counts, k, seed=seed, weighted=False) for k in (4, 5) if counts["real"].subsets(k)}
    apart = {k: parities(counts, k) for k in of}
    columns = (*_COLUMNS, "parities", "of halves")
    rows = tuple((f"{k}-way", *one.row, *apart[k]) for k, one in of.items())
    note = (
        "In six groups of each attribute at most, of about as many real records each; at most 100 sets of attributes, "
        f"by seed {seed}. Parities: the mean product of signs, 1 for the upper groups and −1 for the lower ones, is so "
        "far from the real one on average."
    )
    tables = [PageTable("Total variation distance to the real table", columns, rows, note)]
    tables += [_worst(f"{k}-way marginals that differ most", view, one) for k, one in of.items()]
    state, verdict = max((_judged(k, one) for k, one in of.items()), key=lambda one: _WORSE.index(one[0]))
    figures = {**_figures(of, view), "parities": {f"{k}": one for k, one in apart.items()}}
    drawn = (_boxes("Distances of four- and five-way marginals", of),)
    return PageSection("wide", "Four and more attributes", verdict, state, tuple(tables), drawn, figures)


def _boxes(title: str, of: Mapping[int, Distances]) -> Plot:
    groups = {f"{k}-way": one.boxes for k, one in of.items()}
    return plots.box_plot(title, groups, label="total variation distance")


def _map(of: Distances, view: View) -> Plot:
    """The distances of all pairs as a heat map."""
    matrix = np.zeros((len(view.axes), len(view.axes)))
    for (i, j), distance in zip(of.subsets, of.found, strict=True):
        matrix[i, j] = matrix[j, i] = distance
    worst = " × ".join(view.names[i] for i in of.subsets[int(of.found.argmax())])
    alt = f"Distances of all pairs of attributes; the largest is {of.found.max():.3g}, of {worst}."
    return plots.heat_maps("Distances of pairs", view.names, [("total variation distance", matrix)], alt=alt)


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


def _judged(k: int, of: Distances, found: Sequence[Dependence] = ()) -> tuple[State, str]:
    """The verdict on the k-way marginals; it is not good where the release breaks what determines what."""
    mean, near = float(of.found.mean()), float(of.halves.mean())
    text = (
        f"Counted by {_NUMBERS[k]} at a time, {mean:.1%} of the released records would have to change to match the "
        f"real table, on average (total variation distance {mean:.3g}, NIST's score {of.score:.0f} of 1000). A random "
        f"part of {share_text(of.share)} of the real table is as near."
    )
    if of.independent is None:
        return reserved("good" if mean <= 0.02 else "fair" if mean <= 0.1 else "bad", text, found)
    far = float(of.independent.mean())
    text += (
        f" For scale: two halves of the real table are {near:.3g} apart; without any dependence it would be {far:.3g}."
    )
    if far <= near:
        return reserved("info", text + " The attributes are nearly independent, so the distance says little.", found)
    if mean > far:
        text += " So pairs are worse than if each attribute had been released by itself."
    way = (mean - near) / (far - near)
    return reserved("good" if way <= GOOD else "fair" if way <= FAIR else "bad", text, found)


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


_DRAWN = 150  # attributes, at most, whose matrices are drawn and go into the figures


def pearson(counts: PairCounts) -> Floats:
    """Pearson correlations of the codes, float64[m, m]; NaN where an attribute is constant."""
    return _of_pairs(counts, _correlation)


def _correlation(table: Counts) -> float:
    total = max(int(table.sum()), 1)
    away = [np.arange(size) - table.sum(1 - k) @ np.arange(size) / total for k, size in enumerate(table.shape)]
    spread = np.sqrt(np.prod([table.sum(1 - k) @ own**2 for k, own in enumerate(away)]))
    return float(away[0] @ table @ away[1] / spread) if spread > 0 else math.nan


def cramers_v(counts: PairCounts) -> Floats:
    """Cramér's V of all pairs, float64[m, m], from 0 (independent) to 1; NaN where an attribute is constant."""
    return _of_pairs(counts, _association)


def _association(table: Counts) -> float:
    seen = table[table.any(axis=1)][:, table.any(axis=0)] / max(int(table.sum()), 1)
    expected = np.outer(seen.sum(axis=1), seen.sum(axis=0))
    levels = min(seen.shape) - 1
    return math.sqrt(float(((seen - expected) ** 2 / expected).sum()) / levels) if levels > 0 else math.nan


def _of_pairs(counts: PairCounts, measure: Callable[[Counts], float]) -> Floats:
    """A measure of the tables of all pairs as a symmetric matrix, with ones on the diagonal."""
    result = np.eye(len(counts.cardinalities))
    for i, j in combinations(range(len(result)), 2):
        result[i, j] = result[j, i] = measure(counts.pair(i, j))
    return result


def correlation_section(counts: Mapping[str, Marginals], view: View) -> PageSection:
    """Dependence of all pairs of attributes: Cramér's V of all, Pearson's correlation of the ordered ones."""
    names = view.names
    tables, maps = [], []
    figures: dict[str, dict[str, object]] = {}
    worst, halves, most, where = 0.0, 0.0, 0.0, ""
    ordered = [i for i, axis in enumerate(view.axes) if axis.ordered and axis.missing is None]
    kinds = [("cramers_v", "Cramér's V", cramers_v, list(range(len(names))))]
    if len(ordered) > 1:
        kinds.append(("pearson", "Pearson correlation", pearson, ordered))
    for key, title, measure, places in kinds:
        matrices = {name: measure(marginals.pairs)[np.ix_(places, places)] for name, marginals in counts.items()}
        gap = matrices["released"] - matrices["real"]
        chance = matrices["first half"] - matrices["second half"]
        upper = np.triu_indices(len(places), 1)
        sizes, apart = np.abs(gap[upper]), np.abs(chance[upper])
        mean = float(np.nanmean(sizes)) if np.isfinite(sizes).any() else 0.0
        mean_halves = float(np.nanmean(apart)) if np.isfinite(apart).any() else 0.0
        worst, halves = max(worst, mean), max(halves, mean_halves)
        order = np.argsort(-np.nan_to_num(sizes), kind="stable")[:_WORST].tolist()
        if order and np.nan_to_num(sizes)[order[0]] > most:
            most = float(sizes[order[0]])
            where = " × ".join(names[places[int(axis[order[0]])]] for axis in upper)
        rows: list[tuple[Cell, ...]] = []
        for place in order:
            i, j = int(upper[0][place]), int(upper[1][place])
            pair = f"{names[places[i]]} × {names[places[j]]}"
            rows.append((pair, matrices["real"][i, j], matrices["released"][i, j], gap[i, j], chance[i, j]))
        columns = ("attributes", "real", "released", "difference", "two real halves")
        tables.append(PageTable(f"{title}: pairs that differ most", columns, tuple(rows)))
        labels = [names[i] for i in places]
        figures[key] = {"mean_absolute_difference": mean, "mean_absolute_difference_of_halves": mean_halves}
        if len(places) > _DRAWN:
            continue
        drawn = [("real", matrices["real"]), ("released", matrices["released"]), ("difference", gap)]
        alt = f"{title} (blue above zero, orange below) of all pairs: real, released, difference; mean {mean:.3g}."
        maps.append(plots.heat_maps(title, labels, drawn, alt=alt))
        figures[key] |= {"attributes": labels, "real": matrices["real"], "released": matrices["released"]}
    state: State = "good" if worst <= 0.03 + halves and most <= 0.15 else "fair" if worst <= 0.1 + halves else "bad"
    verdict = f"Correlations differ from the real ones by {worst:.3f} on average (two real halves: {halves:.3f})" + (
        f", most for {where}: {most:.3f}." if where else "."
    )
    state, verdict = reserved(state, verdict, dependences(counts, view))
    return PageSection("correlations", "Correlations", verdict, state, tuple(tables), tuple(maps), figures)


def component_section(real: Codes, released: Codes, view: View) -> PageSection:
    """Principal components of the real records, and where samples of both tables lie on them.

    Ordered attributes count by their codes, categories by indicators.
    """
    if min(len(real[0]), len(released[0])) < 2:
        return does_not_apply("components", "Principal components", "it needs two records of each table.")
    points = [indicators(codes, view) for codes in (real, released)]
    centre, scale = points[0].mean(axis=0), np.sqrt(points[0].var(axis=0).sum() / max(len(view.axes), 1))
    standard = [(part - centre) / (scale or 1.0) for part in points]
    values, vectors = np.linalg.eigh(np.cov(standard[0], rowvar=False).reshape(len(centre), -1))
    order = np.argsort(-values, kind="stable")[: min(5, len(centre))]
    values, vectors = values[order], vectors[:, order]
    vectors = vectors * np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(order))] < 0, -1, 1)
    projected = [part @ vectors for part in standard]
    total = float(standard[0].var(axis=0).sum()) or 1.0
    shares = [part.var(axis=0) / total for part in projected]
    shift = np.abs(projected[1].mean(axis=0) - projected[0].mean(axis=0)) / np.sqrt(np.maximum(values, 1e-12))
    rows = tuple(
        (i + 1, shares[0][i], shares[1][i], shares[1][i] / shares[0][i] if shares[0][i] > 0 else None, shift[i])
        for i in range(len(order))
    )
    columns = ("component", "share of variance, real", "released", "ratio", "shift of the mean (deviations)")
    table = PageTable("Principal components of the real records", columns, rows, f"{len(real[0]):,} records of each.")
    drawn = []
    if len(order) > 1:
        clouds = [("real", projected[0][:, :2], plots.REAL), ("released", projected[1][:, :2], plots.RELEASED)]
        drawn.append(
            plots.density_plot(
                "First two principal components",
                clouds,
                labels=("first component", "second component"),
                alt="Where real and released records lie on the first two principal components of the real ones.",
            )
        )
    used = slice(0, min(2, len(order)))
    ratio, moved = shares[1][used] / np.maximum(shares[0][used], 1e-12), float(shift[used].max())
    worst = float(np.abs(ratio - 1).max())
    state: State = "good" if worst <= 0.1 and moved <= 0.1 else "fair" if worst <= 0.35 and moved <= 0.3 else "bad"
    verdict = (
        "On the first two principal components of the real records, released ones have "
        f"{' and '.join(f'{part:.0%}' for part in ratio)} of their variance, and their mean is shifted by at most "
        f"{moved:.2f} standard deviations."
    )
    figures = {"real_share": shares[0], "released_share": shares[1], "shift": shift}
    return PageSection("components", "Principal components", verdict, state, (table,), tuple(drawn), figures)


def indicators(codes: Codes, view: View) -> Floats:
    """Records as points: a standardised code for each ordered attribute, indicators for each other one."""
    columns = []
    for axis, column in zip(view.axes, codes, strict=True):
        if axis.ordered:
            spread = np.sqrt((axis.size**2 - 1) / 12) or 1.0  # of a uniform code: public
            columns.append(column[:, None] / spread)
        else:
            columns.append((column[:, None] == np.arange(axis.size)).astype(np.float64))
    return np.concatenate(columns, axis=1)
