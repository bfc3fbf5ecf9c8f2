"""Adaptive bins on real columns, against bins of equal width, the fine grid, and a tree of picked medians.

    python tests/benchmarks/bench_adaptive_bins.py --json bench/adaptive_bins.json [--keys 10]

All are epsilon-DP for one record more or less (delta 0: Laplace noise), and made into shares of the grid's codes, even
within a bin:

- *adaptive*: as released, a third of epsilon for the choice (`dpdist.families.histogram.binning`);
- *medians*: the same, with nodes halved at medians that the exponential mechanism picks (NumPy's random numbers:
  this is no release), and bins counted with the same two thirds;
- *width*: bins of equal width, all of epsilon for their counts; *exact width* has no noise;
- *fine*: a count of each code of the grid, fitted to non-negative ones; *tree*: all levels of the tree with all of
  epsilon, fitted as for the choice of bins, and no bins.

Errors, in per cent: *Kolmogorov*, the largest error of a cumulative share; *range*, the mean error of the share between
two random quantiles (2,000 pairs); *total variation* over the hundred ranges between true percentiles.
"""

import csv
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from harness import DATA, argument_parser, spec_without_places, write

from dpdist.families.base.calibration import add_noise, project
from dpdist.families.base.registry import make_plan
from dpdist.families.histogram.binning import choose, fitted_masses, noisy_levels
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.privacy.noise import Noise

SHARE = 1 / 3
ADULT = {"fnlwgt": 2, "capital-gain": 10, "hours": 12}
"""Places of columns in Adult."""


def on_grid(values: np.ndarray, low: float, high: float, codes: int) -> np.ndarray:
    """Counts on a grid of equal widths, values beyond it clipped."""
    places = np.floor((values.astype(np.float64) - low) * codes / (high - low)).astype(np.int64)
    return np.bincount(np.clip(places, 0, codes - 1), minlength=codes)


def columns() -> dict[str, np.ndarray]:
    """Counts of each column on its public grid."""
    rows = []
    for name in ("adult.data", "adult.test"):
        with (DATA / name).open() as lines:
            rows += [row for row in csv.reader(lines, skipinitialspace=True) if len(row) == 15]
    adult = {name: np.array([float(row[place]) for row in rows]) for name, place in ADULT.items()}
    held = {}
    for name, column in (("insurance", "charges"), ("california_housing", "population")):
        with (DATA / f"{name}.csv").open() as lines:
            held[column] = np.array([float(row[column]) for row in csv.DictReader(lines)])
    income, value = (
        pq.read_table(DATA / f"acs2024_{name}.parquet", columns=[column])[column].drop_null().to_numpy()
        for name, column in (("persons", "PINCP"), ("households", "VALP"))
    )
    return {
        "insurance charges": on_grid(held["charges"], 0, 65_536, 4_096),
        "California population": on_grid(held["population"], 0, 40_000, 8_000),
        "Adult hours": on_grid(adult["hours"], 1, 100, 99),
        "Adult fnlwgt": on_grid(adult["fnlwgt"], 0, 1_500_000, 30_000),
        "Adult capital-gain": on_grid(adult["capital-gain"], 0, 100_000, 50_000),
        "ACS 2024 home value": on_grid(value, 0, 5_000_000, 10_000),
        "ACS 2024 income": on_grid(income, -20_000, 2_000_000, 20_200),
    }


def planned(codes: int, bins: int, epsilon: float) -> HistogramPlan:
    """A release of one column of this many codes."""
    schema = {"attributes": [{"name": "x", "kind": "integer", "bounds": [0, codes - 1]}]}
    queries = [{"columns": ["x"], "adaptive": {"x": bins}}]
    plan = make_plan(spec_without_places("histogram", schema, 1_000, privacy={"epsilon": epsilon}, histograms=queries))
    if not isinstance(plan, HistogramPlan) or plan.binning is None:
        raise TypeError("no plan with adaptive bins")
    return plan


def spread(counts: np.ndarray, first: np.ndarray, codes: int) -> np.ndarray:
    """Counts of bins, even over their codes."""
    widths = np.diff(np.append(first, codes))
    return np.repeat(counts / widths, widths)


def counted(counts: np.ndarray, first: np.ndarray, *, epsilon: float, noise: Noise) -> np.ndarray:
    """Noisy counts of bins, non-negative, spread over the codes."""
    table = np.add.reduceat(counts, first)
    noisy = add_noise(table, mechanism="laplace", scale=1 / epsilon, noise=noise, name="counts")
    return spread(project(noisy), first, counts.size)


def adaptive(counts: np.ndarray, plan: HistogramPlan, noise: Noise) -> np.ndarray:
    """As released."""
    if plan.binning is None:
        raise TypeError("no adaptive bins")
    first = choose([counts], plan.binning, noise=noise)[0, 0]
    return counted(counts, first, epsilon=plan.spec.privacy.epsilon * (1 - SHARE), noise=noise)


def medians(counts: np.ndarray, bins: int, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """First codes of bins: nodes are halved where the exponential mechanism picks; a record is in one pick a level."""
    ends = np.append(0, np.cumsum(counts))
    scale = 2 * math.ceil(math.log2(bins)) / (epsilon * SHARE)
    nodes = [(0, counts.size, bins)]
    while any(count > 1 and stop - start > 1 for start, stop, count in nodes):
        halves = []
        for start, stop, count in nodes:
            if count < 2 or stop - start < 2:
                halves.append((start, stop, 1))
                continue
            scores = -np.abs(2 * ends[start + 1 : stop] - ends[start] - ends[stop])
            cut = start + 1 + int(np.argmax(scores / scale + rng.gumbel(size=scores.size)))
            left = max(min(count // 2, cut - start), count - (stop - cut))
            halves += [(start, cut, left), (cut, stop, min(count - left, stop - cut))]
        nodes = halves
    return np.array([start for start, _, _ in nodes])


def tree(counts: np.ndarray, plan: HistogramPlan, noise: Noise) -> np.ndarray:
    """The tree of the choice, alone."""
    if plan.binning is None:
        raise TypeError("no adaptive bins")
    levels = noisy_levels(counts, plan.binning, 0, noise=noise)
    return fitted_masses(levels, deviations=plan.binning.level_deviations(0))


def errors(counts: np.ndarray, found: np.ndarray) -> tuple[float, float, float]:
    """Kolmogorov distance, mean error of ranges, total variation over percentiles; in per cent."""
    true = np.append(0.0, np.cumsum(counts)) / counts.sum()
    total = found.sum()
    held = np.append(0.0, np.cumsum(found)) / total if total else np.linspace(0, 1, true.size)
    ends = np.searchsorted(true, np.random.default_rng(0).random((2_000, 2)))
    gaps = (true - held)[ends]
    percentiles = np.unique(np.append(np.searchsorted(true, np.arange(100) / 100), counts.size))
    variation = np.abs(np.diff(true[percentiles]) - np.diff(held[percentiles])).sum() / 2
    return 100 * float(np.abs(true - held).max()), 100 * float(np.abs(gaps[:, 0] - gaps[:, 1]).mean()), 100 * variation


def methods(counts: np.ndarray, bins: int, epsilon: float) -> dict[str, Callable[[int], np.ndarray]]:
    """Each way, from the number of a key to its counts of codes."""
    codes = counts.size
    plan, whole = planned(codes, bins, epsilon), planned(codes, bins, epsilon / SHARE)
    width = np.arange(bins) * codes // bins

    def key(number: int) -> Noise:
        return Noise(bytes([number]) * 32)

    def picked(number: int) -> np.ndarray:
        first = medians(counts, bins, epsilon, np.random.default_rng(number))
        return counted(counts, first, epsilon=epsilon * (1 - SHARE), noise=key(number))

    def fine(number: int) -> np.ndarray:
        return project(add_noise(counts, mechanism="laplace", scale=1 / epsilon, noise=key(number), name="fine"))

    return {
        "adaptive": lambda number: adaptive(counts, plan, key(number)),
        "medians": picked,
        "width": lambda number: counted(counts, width, epsilon=epsilon, noise=key(number)),
        "exact width": lambda number: spread(np.add.reduceat(counts, width), width, codes),
        "fine": fine,
        "tree": lambda number: tree(counts, whole, key(number)),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--keys", type=int, default=10, help="releases of each")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for column, counts in columns().items():
        for epsilon in (0.1, 1.0):
            for bins in (16, 64):
                row: dict[str, Any] = {"column": column, "records": int(counts.sum()), "codes": counts.size}
                row |= {"epsilon": epsilon, "bins": bins}
                for name, made in methods(counts, bins, epsilon).items():
                    start = time.process_time()
                    found = np.array([errors(counts, made(number)) for number in range(1, options.keys + 1)])
                    mean, deviation = found.mean(axis=0), found.std(axis=0) / math.sqrt(options.keys)
                    for place, error in enumerate(("Kolmogorov", "range", "total variation")):
                        row[f"{name}, {error}"] = [round(float(mean[place]), 3), round(float(deviation[place]), 3)]
                    row[f"{name}, seconds"] = round((time.process_time() - start) / options.keys, 4)
                rows.append(row)
                print(json.dumps(row), flush=True)
    write(options, rows)


if __name__ == "__main__":
    main()
