"""The published histogram experiments again: REAEDP's tables and figures, and PML's Figure 1.

Run ``python tests/benchmarks/bench_histogram_papers.py --data ../shared/data --json papers.json --plots figures``.

REAEDP adds noise for one record more or less (add/remove) while it states replacement; here the adjacency of every
number is add/remove, and PML, which is about replacement, is compared with differential privacy under replacement.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.histogram.bins import Bins
from dpdist.histogram.entropy import bounds, renyi, shannon
from dpdist.histogram.leakage import plan_leakage
from dpdist.histogram.measurement import Measurement, add_noise, plan_measurement
from dpdist.histogram.postprocess import non_negative_integers, synthetic_counts
from dpdist.privacy.noise import Noise

Counts = NDArray[np.int64]
Record = dict[str, Any]

NOISE = Noise(bytes(32))
DELTA = 1e-5
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def columns(data: Path) -> dict[str, NDArray[np.float64]]:
    """The two columns of Table S3 that are at hand."""
    prices = np.loadtxt(data / "house_prices_saleprice.csv", skiprows=1)
    with (data / "UNRATE.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    rates = np.array([float(value) for date, value in rows if date >= "1974-02"][:601])
    return {"SalePrice": prices, "UNRATE": rates}


def histogram(values: NDArray[np.float64], bins: int) -> Counts:
    """Equal bins from the smallest to the largest value, as published (so the edges are not private)."""
    return np.bincount(Bins.equal(values.min(), values.max(), count=bins).encode(values, column="x"), minlength=bins)


def measured(cells: int, mechanism: str, epsilon: float, adjacency: str = "add/remove") -> Measurement:
    """The noise of one histogram."""
    delta = DELTA if mechanism == "gaussian" else 0.0
    return plan_measurement(
        [cells],
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,  # type: ignore[arg-type]
    )


def noisy(counts: Counts, mechanism: str, epsilon: float, repeats: int, name: str) -> Counts:
    """Many noisy copies, shape (repeats, cells)."""
    plan = measured(counts.size, mechanism, epsilon)
    table = np.tile(counts, (repeats, 1))
    return add_noise(table, mechanism=plan.mechanism, scale=plan.scales[0], noise=NOISE, name=name)


def table_s3(values: dict[str, NDArray[np.float64]], repeats: int) -> list[Record]:
    """Table S3: entropies of 30 bins, original and noisy (epsilon = 1), with exact sensitivity and published bound."""
    records = []
    for name, column in values.items():
        counts = histogram(column, 30)
        both = bounds(records=counts.sum(), order=1, adjacency="replacement")
        copies = np.maximum(noisy(counts, "laplace", 1.0, repeats, f"s3/{name}"), 0)
        entropies = [shannon(copy) for copy in copies]
        records.append(
            {
                "column": name,
                "records": int(counts.sum()),
                "entropy": shannon(counts),
                "entropy_noisy_mean": float(np.mean(entropies)),
                "entropy_noisy_deviation": float(np.std(entropies)),
                "sensitivity": both.sensitivity,
                "published_bound": both.published_bound,
                "largest_change_in_this_table": empirical(counts, 1.0),
                "renyi": [
                    {
                        "order": order,
                        "sensitivity": (
                            b := bounds(records=counts.sum(), order=order, adjacency="replacement")
                        ).sensitivity,
                        "published_bound": b.published_bound,
                        "largest_change_in_this_table": empirical(counts, order),
                    }
                    for order in (0.5, 2.0, 5.0, 10.0)
                ],
            }
        )
    return records


def empirical(counts: Counts, order: float) -> float:
    """Largest change of an entropy when one record of this very table moves to another bin."""
    own, worst = renyi(counts, order=order), 0.0
    for start in np.flatnonzero(counts):
        for stop in range(counts.size):
            moved = counts.copy()
            moved[start] -= 1
            moved[stop] += 1
            worst = max(worst, abs(renyi(moved, order=order) - own))
    return worst


BASELINES: dict[str, Callable[[Counts, float, int, str], list[Counts]]] = {
    "laplace": lambda counts, epsilon, repeats, name: [
        np.maximum(copy, 0) for copy in noisy(counts, "laplace", epsilon, repeats, name)
    ],
    "gaussian": lambda counts, epsilon, repeats, name: [
        np.maximum(copy, 0) for copy in noisy(counts, "gaussian", epsilon, repeats, name)
    ],
    "laplace, fitted": lambda counts, epsilon, repeats, name: [
        non_negative_integers(copy) for copy in noisy(counts, "laplace", epsilon, repeats, name)
    ],
    "synthetic from laplace": lambda counts, epsilon, repeats, name: [
        synthetic_counts(np.maximum(copy, 0), records=int(counts.sum()), noise=NOISE, name=f"{name}/draw/{i}")
        for i, copy in enumerate(noisy(counts, "laplace", epsilon, repeats, name))
    ],
    "synthetic from gaussian": lambda counts, epsilon, repeats, name: [
        synthetic_counts(np.maximum(copy, 0), records=int(counts.sum()), noise=NOISE, name=f"{name}/draw/{i}")
        for i, copy in enumerate(noisy(counts, "gaussian", epsilon, repeats, name))
    ],
}


def variation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Total variation distance of two histograms as distributions."""
    return 0.5 * float(np.abs(a / max(a.sum(), 1) - b / b.sum()).sum())


def errors(values: dict[str, NDArray[np.float64]], repeats: int) -> list[Record]:
    """Error against epsilon (30 bins) and against the number of bins (epsilon = 1)."""
    records = []
    settings = [(30, epsilon) for epsilon in EPSILONS] + [(bins, 1.0) for bins in (5, 10, 20, 50, 100, 200)]
    for name, column in values.items():
        for bins, epsilon in settings:
            counts = histogram(column, bins)
            for baseline, function in BASELINES.items():
                copies = function(counts, epsilon, repeats, f"errors/{name}/{bins}/{epsilon}/{baseline}")
                records.append(
                    {
                        "column": name,
                        "bins": bins,
                        "epsilon": epsilon,
                        "baseline": baseline,
                        "total_variation": float(np.mean([variation(copy, counts) for copy in copies])),
                        "mean_absolute_error": float(np.mean([np.abs(copy - counts).mean() for copy in copies])),
                        "entropy_error": float(
                            np.mean([abs(shannon(copy) - shannon(counts)) if copy.any() else 0.0 for copy in copies])
                        ),
                    }
                )
    return records


def pml_figure(repeats: int) -> list[Record]:
    """PML's Figure 1: total variation of noisy counts of 1,000 uniform records, PML against DP at the same epsilon."""
    records, people = [], 1000
    rng = np.random.default_rng(0)
    for bins in (5, 10, 20, 50):
        counts = np.bincount(rng.integers(0, bins, people), minlength=bins)
        for share in (1.0, 0.5, 0.1):  # alpha as a share of 1/k
            alpha = share / bins
            for epsilon in [e for e in (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0) if e < noiseless_leakage(alpha)]:
                leakage = plan_leakage(epsilon=epsilon, alpha=alpha, bins=bins)
                scales = {
                    "pml": leakage.scale or 0.0,
                    "dp": measured(bins, "laplace", epsilon, "replacement").scales[0],
                }
                distance = {}
                for kind, scale in scales.items():
                    name = f"pml/{bins}/{share}/{epsilon}/{kind}"
                    draws = NOISE.discrete_laplace(name, repeats * bins, scale=scale).reshape(repeats, bins)
                    distance[kind] = 0.5 * float(np.abs(draws).sum(axis=1).mean()) / people
                records.append(
                    {
                        "bins": bins,
                        "alpha": alpha,
                        "epsilon": epsilon,
                        "scale_pml": scales["pml"],
                        "scale_dp": scales["dp"],
                        "total_variation_pml": distance["pml"],
                        "total_variation_dp": distance["dp"],
                        **{
                            f"expected_{kind}": bins / (2 * people * math.sinh(1 / scale))
                            for kind, scale in scales.items()
                        },
                        "smallest_count": int(counts.min()),
                    }
                )
    return records


def attacks(values: dict[str, NDArray[np.float64]], repeats: int) -> list[Record]:
    """Accuracy of telling two neighbours apart: likelihood ratio (membership) and nearest reference release (linkage).

    The tables differ by one record in the bin that is hardest to hide; the best possible accuracy is
    ``e^epsilon / (1 + e^epsilon)``.
    """
    records = []
    for column, numbers in values.items():
        counts = histogram(numbers, 30)
        other = counts.copy()
        other[np.argmin(counts)] += 1
        for epsilon in EPSILONS:
            name = f"attacks/{column}/{epsilon}"
            releases = [noisy(t, "laplace", epsilon, repeats, f"{name}/{i}") for i, t in enumerate((counts, other))]
            references = [
                noisy(t, "laplace", epsilon, repeats, f"{name}/ref/{i}") for i, t in enumerate((counts, other))
            ]
            likelihood = [
                np.abs(r - other).sum(axis=1) - np.abs(r - counts).sum(axis=1) for r in releases
            ]  # the log ratio, times -scale
            linked = [
                np.linalg.norm(r - references[0], axis=1) <= np.linalg.norm(r - references[1], axis=1) for r in releases
            ]
            records.append(
                {
                    "column": column,
                    "epsilon": epsilon,
                    "membership_accuracy": 0.5 * float((likelihood[0] > 0).mean() + (likelihood[1] <= 0).mean()),
                    "linkage_accuracy": 0.5 * float(linked[0].mean() + (~linked[1]).mean()),
                    "bound": 1 / (1 + math.exp(-epsilon)),
                }
            )
    return records


def images(repeats: int) -> list[Record]:
    """The supplement's image: 64 x 64 pixels of 0 to 255, noise on every pixel, epsilon per pixel."""
    y, x = np.meshgrid(np.linspace(0, 1, 64), np.linspace(0, 1, 64), indexing="ij")
    image = np.rint(255 * (0.5 + 0.3 * np.sin(4 * np.pi * x) * np.cos(2 * np.pi * y))).astype(np.int64)
    records = []
    for mechanism in ("laplace", "gaussian"):
        for epsilon in EPSILONS:
            unit = measured(1, mechanism, epsilon)
            scores = []
            for i in range(repeats):
                name = f"image/{mechanism}/{epsilon}/{i}"
                copy = add_noise(image, mechanism=unit.mechanism, scale=255 * unit.scales[0], noise=NOISE, name=name)
                scores.append(similarity(image, np.clip(copy, 0, 255)))
            psnr, mae, ssim = np.mean(scores, axis=0).tolist()
            records.append({"mechanism": mechanism, "epsilon": epsilon, "psnr": psnr, "mae": mae, "ssim": ssim})
    return records


def similarity(a: NDArray[Any], b: NDArray[Any]) -> tuple[float, float, float]:
    """Peak signal-to-noise ratio in dB, mean absolute error, and structural similarity over the whole image."""
    difference = (a - b).astype(np.float64)
    psnr = 10 * math.log10(255**2 / max(float(np.mean(difference**2)), 1e-12))
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    covariance = float(np.mean((a - a.mean()) * (b - b.mean())))
    ssim = (2 * a.mean() * b.mean() + c1) * (2 * covariance + c2)
    ssim /= (a.mean() ** 2 + b.mean() ** 2 + c1) * (a.var() + b.var() + c2)
    return psnr, float(np.abs(difference).mean()), float(ssim)


def pass_rates(data: Path, candidates: int = 1 << 16) -> list[Record]:
    """REAEDP's Figure 1 with the real test: pass rate against gamma, on ACS 2024, four to eight of eleven resampled."""
    from bench_privacy_test import SCHEMA, learn, read

    from dpdist.schema import Schema
    from dpdist.synthesis.candidates import Synthesizer
    from dpdist.synthesis.deniability import PrivacyTest, candidate_batch
    from dpdist.synthesis.prefixes import SeedIndex, seed_keys

    schema = Schema.from_yaml(SCHEMA)
    codes = read(schema, data / "acs2024_workers.parquet")
    ascending = sorted(range(len(codes)), key=schema.cardinalities.__getitem__)
    synthesizer = Synthesizer(learn(schema, codes, ascending), (4, 5, 6, 7, 8))
    code = synthesizer.prefix_code
    index = SeedIndex(code, seed_keys(code, [column[::640] for column in codes]))
    records = []
    for k in (5, 10, 20, 50):
        for gamma in (1.1, 1.5, 2.0, 4.0, 6.0, 8.0, 12.0):
            test = PrivacyTest(k=k, gamma=gamma, epsilon0=0.1)
            passed = candidate_batch(NOISE, synthesizer, index, test, 0, candidates)
            records.append({"k": k, "gamma": gamma, "pass_rate": len(passed) / candidates})
    return records


def plot(results: dict[str, list[Record]], folder: Path) -> None:
    """One PNG per experiment; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)

    def draw(
        name: str, records: Sequence[Record], x: str, y: Sequence[str], split: Callable[[Record], str], log: bool = True
    ) -> None:
        figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
        for label in dict.fromkeys(map(split, records)):
            chosen = [r for r in records if split(r) == label]
            for field in y:
                axis.plot([r[x] for r in chosen], [r[field] for r in chosen], "o-", label=f"{label} {field}")
        axis.set(xlabel=x, title=name, xscale="log", yscale="log" if log else "linear")
        axis.legend(fontsize=6)
        figure.savefig(folder / f"{name}.png", dpi=120)
        pyplot.close(figure)

    prices = [r for r in results["errors"] if r["column"] == "SalePrice"]
    draw(
        "errors-epsilon",
        [r for r in prices if r["bins"] == 30],
        "epsilon",
        ["total_variation"],
        lambda r: r["baseline"],
    )
    draw("errors-bins", [r for r in prices if r["epsilon"] == 1], "bins", ["total_variation"], lambda r: r["baseline"])
    tight = [r for r in results["pml"] if r["alpha"] * r["bins"] > 0.99]
    draw("pml", tight, "epsilon", ["total_variation_pml", "total_variation_dp"], lambda r: f"k={r['bins']}")
    accuracies = ["membership_accuracy", "linkage_accuracy", "bound"]
    draw("attacks", results["attacks"], "epsilon", accuracies, lambda r: r["column"], log=False)
    if "pass_rates" in results:
        draw("pass-rates", results["pass_rates"], "gamma", ["pass_rate"], lambda r: f"k={r['k']}", log=False)
    draw("images", results["images"], "epsilon", ["psnr"], lambda r: r["mechanism"], log=False)


def main() -> None:
    """Print Table S3 and the claims of the figures; with ``--json`` and ``--plots``, write all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--plots", type=Path, help="write the figures to this folder")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--pass-rates", action="store_true", help="also run the privacy test, for some ten seconds")
    parser.add_argument("--pml-repeats", type=int, default=10_000)
    arguments = parser.parse_args()
    values = columns(arguments.data)
    results = {
        "table_s3": table_s3(values, arguments.repeats),
        "errors": errors(values, arguments.repeats),
        "pml": pml_figure(arguments.pml_repeats),
        "attacks": attacks(values, 20 * arguments.repeats),
        "images": images(max(arguments.repeats // 20, 1)),
    }
    if arguments.pass_rates:
        results["pass_rates"] = pass_rates(arguments.data)
    for r in results["table_s3"]:
        print(
            f"{r['column']:<10} n {r['records']}  H {r['entropy']:.4f}  noisy {r['entropy_noisy_mean']:.4f}  "
            f"sensitivity {r['sensitivity']:.6f}  published {r['published_bound']:.6f}  "
            f"found {r['largest_change_in_this_table']:.6f}"
        )
    gaps = [r["expected_dp"] - r["expected_pml"] for r in results["pml"]]
    apart = max(abs(r[f"total_variation_{k}"] / r[f"expected_{k}"] - 1) for r in results["pml"] for k in ("pml", "dp"))
    widest = results["pml"][int(np.argmax(gaps))]["epsilon"]
    print(f"PML below DP in {sum(g > 0 for g in gaps)} of {len(gaps)} settings, widest gap at epsilon {widest}")
    print(f"simulated distances within {apart:.2%} of their expectation")
    over = max(r["membership_accuracy"] - r["bound"] for r in results["attacks"])
    print(f"membership accuracy minus its bound: at most {over:+.4f}")
    if arguments.plots:
        plot(results, arguments.plots)
    if arguments.json:
        machine = {"machine": platform.machine(), "python": sys.version.split()[0], "numpy": np.__version__}
        arguments.json.write_text(json.dumps({**machine, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
