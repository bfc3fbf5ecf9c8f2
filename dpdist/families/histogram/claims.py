"""What the histogram family states, mechanism by mechanism, on small tables made to contradict it.

- *counts*: one record or none (add/remove; all equal records of a unit or none), or one record that moves to another
  cell of every table (replacement);
- *choice of bins*: the same records, at their nodes of every level;
- *entropies*: one record alone in its bin, where the entropy moves by its sensitivity;
- *curves*: a curve of the largest norm in the direction that the kernel passes best.

The noise is drawn by the functions that a release calls, from streams of the same names.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpdist.families.base.calibration import add_noise
from dpdist.families.histogram.binning import FAN_OUT, BinningPlan, noisy_levels
from dpdist.families.histogram.counts import CountPlan, histograms
from dpdist.families.histogram.curves import CurvePlan, CurveSums, release_mean, sum_curves
from dpdist.families.histogram.entropy import EntropyPlan, release_entropies
from dpdist.families.histogram.panel import ABSENT
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.federated.plan import require_one_curator
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.guarantee import Adjacency
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Canaries, Claim

_LARGEST = 1 << 16  # cells of a table that are drawn in each run: those up to the second record's cell


def counts_claim(plan: HistogramPlan) -> Claim:
    """The noisy tables, at the cells of two records. Raises ValueError: the plan has no noisy histograms."""
    event = plan.event if plan.measurement is None else plan.measurement.event
    if plan.counts is None or plan.is_exact:
        raise ValueError("no noisy histogram: nothing to audit")
    replaced = plan.spec.privacy.adjacency == "replacement"
    other, canary = (_tables_of_one(plan.counts, second) for second in (False, True))
    if plan.binning is not None:  # a bin for each of the first codes, whatever bins are chosen
        apart = {(axis.histogram, axis.axis): np.arange(axis.bins) for axis in plan.binning.axes}
        other, canary = (plan.binning.merged(tables, apart) for tables in (other, canary))
    absent = other if replaced else [np.zeros_like(table) for table in other]
    if plan.panel is None:
        canary = [table * plan.spec.records_of_a_unit for table in canary]
    else:
        other = canary = [plan.panel.measured(table) for table in _tables_of_worst(plan)]
    inside = np.unique(
        np.concatenate([np.flatnonzero((a + b).reshape(-1)) for a, b in zip(other, canary, strict=True)])
    )
    places = [inside[inside < min(table.size, _LARGEST)] for table in canary]  # shared noise shows at the same place
    kinds = "/".join(sorted({kind for kind, _ in plan.noise}))
    count = len(plan.counts.queries)
    epsilon = accountant.epsilon(event, delta=plan.delta)
    name = f"{count} histogram{'s' if count > 1 else ''} ({kinds}, {plan.spec.privacy.adjacency})"
    return Claim.of(name, partial(_noisy_cells, plan, places), (absent, canary), epsilon=epsilon, delta=plan.delta)


def bins_claim(plan: BinningPlan, *, adjacency: Adjacency, delta: float) -> Claim:
    """The noisy levels from which bins are chosen, at the nodes of two records that share none of them."""
    unit = plan.measurement.unit
    codes = [FAN_OUT ** (len(grid.levels) - 1) for grid in plan.grids]
    canary = [np.bincount([0], minlength=code + 1) * unit for code in codes]
    other = [np.bincount([code]) for code in codes]
    absent = other if adjacency == "replacement" else [np.zeros_like(counts) for counts in other]
    epsilon = accountant.epsilon(plan.event, delta=delta)
    name = f"choice of bins ({plan.measurement.mechanism}, {adjacency})"
    return Claim.of(name, partial(_noisy_nodes, plan), (absent, canary), epsilon=epsilon, delta=delta)


def _noisy_nodes(plan: BinningPlan, tables: list[Counts], noise: Noise) -> Floats:
    """First and last node of each level: of the codes up to that of the second record, which are all that is drawn."""
    levels = [level for i, counts in enumerate(tables) for level in noisy_levels(counts, plan, i, noise=noise)]
    return np.array([float(level[place]) for level in levels for place in (0, -1)])


def _tables_of_one(counts: CountPlan, second: bool) -> list[Counts]:
    """The tables of one record: the first code of every attribute, or the first one in another bucket."""
    codes = []
    for size, buckets in zip(counts.cardinalities, counts.bucket_maps, strict=True):
        map_ = np.array(buckets or (0,))
        code = int(np.argmax(map_ != map_[0])) or max(size - 1, 0)
        codes.append(np.array([code if second else 0], np.min_scalar_type(max(size - 1, 0))))
    return histograms(codes, counts)


def _tables_of_worst(plan: HistogramPlan) -> list[Counts]:
    """The tables of a unit with the history that costs most: a code of every attribute for each of its cells."""
    if plan.panel is None or plan.counts is None or plan.spec.following is None:
        raise ValueError("the plan has no panel")
    present = [(t, cell) for t, cell in enumerate(plan.panel.worst) if cell != ABSENT]
    codes = [np.array([min(cell, max(size - 1, 0)) for _, cell in present]) for size in plan.counts.cardinalities]
    codes[plan.spec.following.period] = np.array([t for t, _ in present])
    return histograms(codes, plan.counts)


def _noisy_cells(plan: HistogramPlan, places: list[NDArray[np.intp]], tables: list[Counts], noise: Noise) -> Floats:
    cells = []
    for number, (table, (mechanism, scale), where) in enumerate(zip(tables, plan.noise, places, strict=True)):
        part = table.reshape(-1)[: int(where.max(initial=0)) + 1]
        if scale is not None:
            part = add_noise(part, mechanism=mechanism, scale=scale, noise=noise, name=f"histogram/table/{number}")
        cells.append(part[where])
    return np.concatenate(cells).astype(np.float64)


def canaries(plan: HistogramPlan) -> tuple[Canaries, ...]:
    """The noisy table with the most cells; a canary for each cell: one record (or unit) in it, or none (add/remove).

    None under another adjacency, of a panel, or where no noisy histogram is planned.
    """
    shared = plan.panel is not None or plan.spec.federated is not None
    if plan.measurement is None or shared or plan.measurement.adjacency != "add/remove":
        return ()
    cells, mechanism = plan.cells, plan.measurement.mechanism
    number = int(np.argmax(cells))
    scale, stream = plan.measurement.scales[number], f"histogram/table/{number}"

    def scores(noise: Noise, present: NDArray[np.bool_]) -> Floats:
        table = present.astype(np.int64) * plan.spec.records_of_a_unit
        return add_noise(table, mechanism=mechanism, scale=scale, noise=noise, name=stream).astype(np.float64)

    name = f"histogram {number} of {len(cells)} ({mechanism}), one run"
    epsilon = accountant.epsilon(plan.measurement.event, delta=plan.delta)
    return (Canaries(name=name, scores=scores, count=cells[number], epsilon=epsilon, delta=plan.delta),)


def _noisy_entropies(plan: EntropyPlan, table: NDArray[np.int64], noise: Noise) -> Floats:
    return release_entropies([table] * len(plan.orders), plan, noise=noise, name="histogram/entropy")


def curves_claim(plan: CurvePlan, *, delta: float) -> Claim:
    """The function-valued mean, with and without a curve (or unit) of the largest norm; epsilon is stated at `delta`.

    It is looked at along the direction in which the curve moves it most, and along another.
    """
    weights = plan.basis.weights
    directions, _, rows = np.linalg.svd(plan.matrix * plan.matrix_unit / np.sqrt(weights), full_matrices=False)
    curve = plan.clip * rows[0] / np.sqrt(weights)
    others = CurveSums(plan.curves - plan.unit, np.zeros(plan.basis.times.size, np.int64))
    one, opposite = (
        sum_curves(np.tile(values, (plan.unit, 1)), plan.basis, clip=plan.clip) for values in (curve, -curve)
    )
    without = others if plan.adjacency == "add/remove" else others + opposite
    axes = directions[:, : min(2, directions.shape[1])]
    noisy, epsilon = partial(_noisy_mean, plan, axes), accountant.epsilon(plan.event, delta=delta)
    name = f"mean of curves ({plan.adjacency})"
    return Claim.of(name, noisy, (without, others + one), epsilon=epsilon, delta=delta)


def _noisy_mean(plan: CurvePlan, axes: Floats, sums: CurveSums, noise: Noise) -> Floats:
    mean = release_mean(sums, plan, noise=noise, name="curves")
    return np.append((mean.coefficients * mean.curves) @ axes, float(mean.curves))


def claims(plan: HistogramPlan) -> tuple[Claim, ...]:
    """Each mechanism of a plan, with its noise, on a small table made to contradict it."""
    require_one_curator(plan)
    made = []
    if plan.counts is not None and not plan.is_exact:
        made.append(counts_claim(plan))
    if plan.binning is not None:
        made.append(bins_claim(plan.binning, adjacency=plan.spec.privacy.adjacency, delta=plan.delta))
    if plan.entropies is not None:
        # The noisy entropies of a table of the fewest records, each of a unit's alone in its bin or with the others
        n, own = plan.entropies.records, plan.entropies.unit
        alone = np.array([n - own] + [1] * own, np.int64)
        without = np.array([n - own if plan.entropies.adjacency == "add/remove" else n] + [0] * own, np.int64)
        noisy = partial(_noisy_entropies, plan.entropies)
        epsilon = accountant.epsilon(plan.entropies.event, delta=plan.delta)
        name = f"{len(plan.entropies.orders)} entropies ({plan.entropies.mechanism}, {plan.entropies.adjacency})"
        made.append(Claim.of(name, noisy, (without, alone), epsilon=epsilon, delta=plan.delta))
    if plan.curves is not None:
        made.append(curves_claim(plan.curves, delta=plan.delta))
    return tuple(made)
