"""Function-valued means: REAEDP's Figure 2 setting, the sensitivity by random search, and a million curves.

Run ``python tests/benchmarks/bench_curves.py --json curves.json``. The setting: 50 chi-square-like paths (squares of
Wiener paths), 80 steps, penalties 1e-6, 1e-3 and 0.1, epsilon 1, delta 1e-5. The clipping norm is public: 1.5.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.families.histogram.curves import CurvePlan, coefficient_steps, plan_mean, release_mean, sum_curves
from dpdist.families.histogram.kernels import Basis, eigenbasis
from dpdist.families.histogram.spec import KernelSpec
from dpdist.privacy.noise import Noise

TIMES = np.linspace(0, 1, 80)
PENALTIES = (1e-6, 1e-3, 0.1)
KERNELS = (KernelSpec(), KernelSpec(name="gaussian", length=0.2), KernelSpec(name="matern", length=0.3))
CLIP, EPSILON, DELTA = 1.5, 1.0, 1e-5
NOISE = Noise(bytes(32))


def paths(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Squares of Wiener paths: chi-square with one degree of freedom, times t, at every t."""
    walks = np.cumsum(rng.normal(0, 1 / math.sqrt(TIMES.size - 1), (count, TIMES.size - 1)), axis=1)
    return np.concatenate([np.zeros((count, 1)), walks], axis=1) ** 2


def planned(basis: Basis, penalty: float, curves: int, adjacency: str) -> CurvePlan:
    """The plan of the setting."""
    return plan_mean(
        basis,
        penalty=penalty,
        clip=CLIP,
        curves=curves,
        budget=(EPSILON, DELTA),
        adjacency=adjacency,  # type: ignore[arg-type]
    )


def searched(basis: Basis, plan: CurvePlan, rng: np.random.Generator, trials: int) -> float:
    """Largest change of the coefficients of the sum that any of many pairs of neighbours makes."""
    pairs = [rng.normal(0, 3, (2, TIMES.size)) for _ in range(trials)]
    pairs += [np.stack([1e3 * row, -1e3 * row]) for row in basis.functions]
    best = 0.0
    for one, other in pairs:
        other = other if plan.adjacency == "replacement" else np.zeros_like(one)
        steps = [coefficient_steps(sum_curves(c[None], basis, clip=CLIP), plan) for c in (one, other)]
        best = max(best, plan.grid * math.dist(*steps))
    return best


def figure(curves: int, repeats: int) -> list[dict[str, Any]]:
    """Root mean square errors of the released mean, and one release of each for the plot."""
    rng = np.random.default_rng(42)
    table = paths(rng, curves)
    truth = table.mean(axis=0)
    records = []
    for kernel in KERNELS:
        basis = eigenbasis(kernel, TIMES)
        sums = sum_curves(table, basis, clip=CLIP)
        for adjacency in ("replacement", "add/remove"):
            for penalty in PENALTIES:
                plan = planned(basis, penalty, curves, adjacency)
                name = f"{kernel.name}/{adjacency}/{penalty}"
                means = [release_mean(sums, plan, noise=NOISE, name=f"{name}/{i}").values for i in range(repeats)]
                smooth = (basis.eigenvalues / (basis.eigenvalues + penalty)) * (basis.functions * basis.weights @ truth)
                records.append(
                    {
                        "kernel": kernel.name,
                        "adjacency": adjacency,
                        "penalty": penalty,
                        "curves": curves,
                        "sensitivity": plan.mean_sensitivity,
                        "closed_form": (2 if adjacency == "replacement" else 1)
                        * CLIP
                        / curves
                        * float(np.max(np.sqrt(basis.eigenvalues) / (basis.eigenvalues + penalty))),
                        "found_by_search": searched(basis, plan, rng, 50) / curves,
                        "sigma": plan.sigma / curves,
                        "noise_rmse": plan.expected_error,
                        "rmse": math.sqrt(float(np.mean([(mean - truth) ** 2 for mean in means]))),
                        "bias_rmse": math.sqrt(float(np.mean((smooth @ basis.functions - truth) ** 2))),
                        "truncation": plan.truncation,
                        "truth": truth.tolist(),
                        "released": means[0].tolist(),
                    }
                )
    return records


def scale(curves: int, batch: int = 100_000) -> dict[str, Any]:
    """A stream of many curves: seconds, and memory that does not grow with their number."""
    basis = eigenbasis(KernelSpec(), TIMES)
    plan = planned(basis, 1e-3, curves, "add/remove")
    source = paths(np.random.default_rng(1), batch)
    sums = sum_curves(source[:0], basis, clip=CLIP)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begin = time.process_time()
    for _ in range(curves // batch):
        sums += sum_curves(source, basis, clip=CLIP)
    seconds = time.process_time() - begin
    mean = release_mean(sums, plan, noise=NOISE, name="scale")
    truth = source.mean(axis=0)
    return {
        "curves": sums.count,
        "cpu_seconds": seconds,
        "curves_per_cpu_second": sums.count / seconds,
        "peak_memory_added_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before,
        "rmse": math.sqrt(float(np.mean((mean.values - truth) ** 2))),
    }


def plot(records: list[dict[str, Any]], folder: Path) -> None:
    """The released means beside the true one, as PNG; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for kernel in KERNELS:
        chosen = [r for r in records if r["kernel"] == kernel.name and r["adjacency"] == "replacement"]
        figure_, axes = pyplot.subplots(1, len(chosen), figsize=(4 * len(chosen), 3), layout="constrained")
        for axis, record in zip(axes, chosen, strict=True):
            axis.plot(TIMES, record["truth"], label="mean of the curves")
            axis.plot(TIMES, record["released"], label="released")
            axis.set(title=f"penalty {record['penalty']:g}, rmse {record['rmse']:.3g}", xlabel="time")
        axes[0].legend()
        figure_.savefig(folder / f"curves-{kernel.name}.png", dpi=120)
        pyplot.close(figure_)


def main() -> None:
    """Print the measurements and, with ``--json``, write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    parser.add_argument("--plots", type=Path, help="write the figures to this folder")
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    records = figure(50, arguments.repeats)
    for r in records:
        print(
            f"{r['kernel']:<9}{r['adjacency']:<12} penalty {r['penalty']:<7g} sensitivity {r['sensitivity']:.4g} "
            f"(search {r['found_by_search'] / r['sensitivity']:.2%})  rmse {r['rmse']:.4g}  bias {r['bias_rmse']:.3g}"
        )
    large = scale(1_000_000)
    print("  ".join(f"{name} {value:,.4g}" for name, value in large.items()))
    if arguments.plots:
        plot(records, arguments.plots)
    if arguments.json:
        machine = {"machine": platform.machine(), "python": sys.version.split()[0], "numpy": np.__version__}
        arguments.json.write_text(json.dumps({**machine, "figure_2": records, "million": large}, indent=2) + "\n")


if __name__ == "__main__":
    main()
