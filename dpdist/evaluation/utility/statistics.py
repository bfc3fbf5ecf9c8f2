"""Evaluating a release of statistics: the error of every count, entropy and mean against the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dpdist.cluster.executor import Executor
from dpdist.data.inputs import Input
from dpdist.data.report import RowReport, check
from dpdist.data.weighted import WeightedRecords
from dpdist.errors import SpecError, VerificationFailed
from dpdist.evaluation.inputs import require_records
from dpdist.evaluation.page import plots
from dpdist.evaluation.page.page import Cell, PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.utility.marginals import total_variation
from dpdist.families.base.attempt import Progress
from dpdist.families.base.family import Truth
from dpdist.families.base.graph import table_pass
from dpdist.families.base.registry import family_of, make_plan
from dpdist.privacy.arrays import Floats
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import part_batches
from dpdist.spec.reader import load_public

if TYPE_CHECKING:
    from dpdist.storage.store import Store

_SHOWN = 15


def statistics_sections(
    store: Store, manifest: Manifest, against: Input, cluster: Executor, *, progress: Progress
) -> tuple[list[PageSection], RowReport]:
    """Compare released statistics with the table's. Raises DataError, VerificationFailed: it, or a part, is wrong."""
    spec = load_public(manifest.spec, manifest.table)
    truth = family_of(spec).truth
    if truth is None:
        raise SpecError(f"a release of kind {spec.kind!r} has statistics that nothing is compared with")
    operator, truths = truth(make_plan(spec), manifest.parameters)
    weight = spec.weight
    table = against.open(manifest.table, beside=None if weight is None else weight.by)
    progress("counting", 0, 1)
    located = table.on(cluster).sides[0]
    if weight is not None:
        located = WeightedRecords(located, weight)
    summary, report = cluster.compute([table_pass(cluster, located, operator, name="true-statistics")])[0]
    check(report, manifest.table)
    require_records(report)
    progress("counting", 1, 1)
    batches = [batch for i in range(len(manifest.parts)) for batch in part_batches(store, manifest, i)]
    released = pa.Table.from_batches(batches) if batches else pa.table({"statistic": [], "of": [], "cell": []})
    why = (
        f"a {manifest.kind} release holds statistics, not records: there is nothing to train a model on and no "
        "record to attack. What it reveals is bounded by its guarantee; dpdist audit attacks the mechanism."
    )
    missing = does_not_apply("records", "Models and attacks", why)
    return [*_compared(released, truths(summary)), missing], report


@dataclass(frozen=True, eq=False)
class Compared:
    """Released statistics of one kind, of one thing, beside the true ones."""

    statistic: str
    of: str
    truth: Floats
    noisy: Floats
    value: Floats
    cells: pa.ChunkedArray

    @property
    def errors(self) -> Floats:
        """Absolute errors of the released values."""
        return np.abs(self.value - self.truth)

    @property
    def relative(self) -> float | None:
        """Their sum over that of the true values."""
        total = float(np.abs(self.truth).sum())
        return float(self.errors.sum()) / total if total else None

    @property
    def row(self) -> tuple[Cell, ...]:
        """Cells of the table of all statistics."""
        drawn, errors = np.abs(self.noisy - self.truth).mean(), self.errors
        own = (self.of, self.statistic, len(self.truth), drawn)
        return (*own, errors.mean(), errors.max(), self.relative, self.distance)

    @property
    def distance(self) -> float | None:
        """Total variation distance between shares, where the statistic is a count."""
        value = np.maximum(self.value, 0)
        if self.statistic != "count" or not self.truth.sum() or not value.sum():
            return None
        return total_variation(self.truth, value)


def _compared(released: pa.Table, truths: list[Truth]) -> list[PageSection]:
    """One section for counts, entropies and means each."""
    if released.num_rows != sum(len(values) for _, _, values in truths):
        raise VerificationFailed("the release does not hold the statistics its spec names: copy it again")
    start, found = 0, dict[str, list[Compared]]()
    for statistic, of, truth in truths:
        piece = released.slice(start, len(truth))
        start += len(truth)
        noisy, value = (piece[name].to_numpy() for name in ("noisy", "value"))
        name = str(piece["statistic"][0]) if len(truth) else statistic
        found.setdefault(statistic, []).append(Compared(name, of, truth, noisy, value, piece["cell"]))
    titles = {"count": ("counts", "Counts"), "entropy": ("entropies", "Entropies"), "mean": ("means", "Mean curve")}
    return [_section(*titles[statistic], compared) for statistic, compared in found.items()]


def _section(name: str, title: str, found: list[Compared]) -> PageSection:
    columns = (
        *("of", "statistic", "number", "mean error as drawn"),
        *("mean error", "largest", "errors / truth", "distance"),
    )
    rows = [one.row for one in found]
    worst: list[tuple[Cell, ...]] = []
    for one in found:
        for place in np.argsort(-one.errors, kind="stable")[:_SHOWN].tolist():
            difference = float(one.value[place] - one.truth[place])
            worst.append((one.of, str(one.cells[place]), float(one.truth[place]), float(one.value[place]), difference))
    worst = sorted(worst, key=lambda row: -abs(float(str(row[4]))))[:_SHOWN]
    relative = {one.of: one.relative for one in found if one.relative is not None}
    if not relative:
        state: State = "info"
        verdict = f"{title}: all true values are zero."
    else:
        mean, most = float(np.mean(list(relative.values()))), max(relative, key=lambda of: relative[of] or 0.0)
        state = "good" if mean <= 0.02 else "fair" if mean <= 0.15 else "bad"
        verdict = (
            f"The released values are off by {mean:.2%} of the true ones on average (sum of errors over the sum "
            f"of true values), by {relative[most]:.2%} for {most}."
        )
    note = "Errors are absolute. Distance: total variation between shares, for counts."
    tables = (
        PageTable(title, columns, tuple(rows), note),
        PageTable("Where it differs most", ("of", "cell", "true", "released", "difference"), tuple(worst)),
    )
    drawn = plots.bar_plot(
        f"{title}: errors over the true values",
        list(relative)[:40],
        [("released", [value or 0.0 for value in list(relative.values())[:40]], plots.RELEASED)],
        label="sum of absolute errors / sum of true values",
    )
    figures = {"relative_error": relative, "of": [dict(zip(columns, row, strict=True)) for row in rows]}
    return PageSection(name, title, verdict, state, tables, (drawn,) if relative else (), figures)
