"""The sections on correlations and on principal components."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpdist.data.count import PairCounts
from dpdist.evaluation.binning import View
from dpdist.evaluation.page import plots
from dpdist.evaluation.page.sections import Cell, PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.utility.marginals import Marginals
from dpdist.privacy.arrays import Codes, Floats

_WORST = 15
_DRAWN = 150  # attributes, at most, whose matrices are drawn and go into the figures


def pearson(counts: PairCounts) -> Floats:
    """Pearson correlations of the codes, float64[m, m]; NaN where an attribute is constant."""
    m = len(counts.cardinalities)
    result = np.eye(m)
    total = max(counts.total, 1)
    values = [np.arange(size, dtype=np.float64) for size in counts.cardinalities]
    means = [float(counts.single(i) @ values[i]) / total for i in range(m)]
    spreads = [float(np.sqrt(counts.single(i) @ (values[i] - means[i]) ** 2 / total)) for i in range(m)]
    for i in range(m):
        for j in range(i + 1, m):
            product = (values[i] - means[i]) @ counts.pair(i, j) @ (values[j] - means[j]) / total
            spread = spreads[i] * spreads[j]
            result[i, j] = result[j, i] = product / spread if spread > 0 else np.nan
    return result


def cramers_v(counts: PairCounts) -> Floats:
    """Cramér's V of all pairs, float64[m, m], from 0 (independent) to 1; NaN where an attribute is constant."""
    m = len(counts.cardinalities)
    result = np.eye(m)
    total = max(counts.total, 1)
    for i in range(m):
        for j in range(i + 1, m):
            table = counts.pair(i, j) / total
            expected = np.outer(table.sum(axis=1), table.sum(axis=0))
            inside = expected > 0
            chi = float(((table - expected)[inside] ** 2 / expected[inside]).sum())
            levels = min(np.count_nonzero(table.any(axis=1)), np.count_nonzero(table.any(axis=0))) - 1
            result[i, j] = result[j, i] = np.sqrt(chi / levels) if levels > 0 else np.nan
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
        alt = f"{title} (green above zero, red below) of all pairs: real, released, difference; mean {mean:.3g}."
        sign = "more colour: stronger" if key == "cramers_v" else "green: above zero, red: below; more colour: stronger"
        maps.append(plots.heat_maps(f"{title} ({sign})", labels, drawn, alt=alt))
        figures[key] |= {"attributes": labels, "real": matrices["real"], "released": matrices["released"]}
    state: State = "good" if worst <= 0.03 + halves and most <= 0.15 else "fair" if worst <= 0.1 + halves else "bad"
    verdict = f"Correlations differ from the real ones by {worst:.3f} on average (two real halves: {halves:.3f})" + (
        f", most for {where}: {most:.3f}." if where else "."
    )
    return PageSection("correlations", "Correlations", verdict, state, tuple(tables), tuple(maps), figures)


def component_section(real: Codes, released: Codes, view: View) -> PageSection:
    """Principal components of the real records, and where real and released ones (samples, as codes of the view) lie on
    them.

    Ordered attributes count by their standardised codes, categories by indicators that are scaled like them together.
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
