"""Pointwise maximal leakage against differential privacy: Figure 1 of Saeidian et al. (2025), and several histograms.

    python tests/benchmarks/bench_leakage.py --json bench/leakage.json

*Figure 1*: 1,000 uniform records over k classes, Laplace noise at the same epsilon, counts cut at 0 and rounded, mean
total variation distance of 10,000 repetitions. Panel (a): against epsilon, alpha a share of 1/k. Panel (b): alpha 0.05,
against k. *composed*: the noise by composition of k - 1 counts, of which each leaks ``(1 - a)/b + a^2/(2 b^2)`` at most
(under differential privacy ``1/b``). The values of k, alpha and epsilon of the paper's figure are not in its text.
*several*: scale of the noise of m histograms in one release against m releases with a share of epsilon each, and
against differential privacy. *levels*: the counts of a binary tree in one release.
"""

import math
from typing import Any

import numpy as np
from harness import argument_parser, keep, write

from dpdist.privacy.leakage import common_scale, leakage, noiseless_leakage, scale_for

RECORDS = 1000
WAYS = ("pml", "dp", "pml, composed", "dp, composed")
EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def composed_scale(epsilon: float, alpha: float, bins: int) -> float:
    """Scale by (k - 1)-fold composition of the paper's bound for one count."""
    # (k - 1) ((1 - a) x + a^2 x^2 / 2) = epsilon with x = 1 / b
    a, b, c = alpha**2 / 2, 1 - alpha, -epsilon / (bins - 1)
    return 2 * a / (math.sqrt(b * b - 4 * a * c) - b)


def distance(counts: np.ndarray, scale: float, repeats: int, rng: np.random.Generator) -> dict[str, float]:
    """Mean total variation of noisy counts, cut at 0 and rounded, and its deviation over repetitions."""
    noisy = np.rint(np.maximum(counts + rng.laplace(0, scale, (repeats, len(counts))), 0))
    apart = np.abs(noisy - counts).sum(axis=1) / (2 * counts.sum())
    return {"mean": float(apart.mean()), "sd": float(apart.std())}


def point(bins: int, alpha: float, epsilon: float, repeats: int) -> dict[str, Any]:
    """One point of the figure."""
    rng = np.random.default_rng([bins, round(1e6 * alpha), round(1e6 * epsilon)])
    counts = np.bincount(rng.integers(0, bins, RECORDS), minlength=bins)
    scales = {
        "pml": scale_for(epsilon=epsilon, alpha=alpha),
        "dp": 2 / epsilon,
        "pml, composed": composed_scale(epsilon, alpha, bins),
        "dp, composed": (bins - 1) / epsilon,
    }
    found = {how: distance(counts, scale, repeats, rng) | {"scale": scale} for how, scale in scales.items()}
    return {"bins": bins, "alpha": alpha, "epsilon": epsilon} | found


def figure(repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Both panels, where noise is needed at all."""

    def points(pairs: list[tuple[int, float]]) -> list[dict[str, Any]]:
        return [
            point(bins, alpha, epsilon, repeats)
            for bins, alpha in pairs
            for epsilon in EPSILONS
            if epsilon < noiseless_leakage(alpha)
        ]

    return {
        "a": points([(bins, share / bins) for bins in (5, 10, 20) for share in (1.0, 0.5, 0.1)]),
        "b": points([(bins, 0.05) for bins in (2, 5, 10, 15, 20)]),
    }


def several() -> list[dict[str, float]]:
    """Scales of m histograms that leak at most epsilon together."""
    return [
        {
            "histograms": count,
            "alpha": alpha,
            "epsilon": epsilon,
            "one release": common_scale(epsilon=epsilon, alphas=[(alpha,)] * count),
            "shares of epsilon": scale_for(epsilon=epsilon / count, alpha=alpha),
            "differential privacy": 2 * count / epsilon,
        }
        for count in (1, 2, 5)
        for alpha in (0.05, 0.2, 0.5)
        for epsilon in (0.1, 0.5, 1.0)
        if count > 1 or epsilon < noiseless_leakage(alpha)
    ]


def levels() -> list[dict[str, float]]:
    """Counts of a binary tree over k equal bins: scale of the common noise, deviation of the sum of half the bins."""
    found = []
    for bins in (8, 64, 1024):
        tree = [tuple(2**level / bins for level in range(round(math.log2(bins))))]
        for epsilon in (0.1, 0.5, 1.0):
            chain = common_scale(epsilon=epsilon, alphas=tree)
            apart = common_scale(epsilon=epsilon, alphas=[(alpha,) for alpha in tree[0]])
            flat = scale_for(epsilon=epsilon, alpha=1 / bins)
            row = {"bins": bins, "epsilon": epsilon, "chain": chain, "apart": apart, "dp": 2 * len(tree[0]) / epsilon}
            half = {"half by the tree": math.sqrt(2) * chain, "half by bins": math.sqrt(bins) * flat}
            found.append(row | half)
    return found


def bounds() -> list[list[str]]:
    """The leakage of one count beside the paper's weaker bound (2), a simpler one by Jensen's inequality, and DP."""
    rows = []
    for alpha in (0.01, 0.05, 0.2):
        for scale in (20.0, 4.0, 2.0, 1.0):
            x = 2 / scale
            found = (leakage(scale=scale, alpha=alpha), (1 - alpha) * x, (1 - alpha) * x + (alpha * x) ** 2 / 2, x)
            rows.append([f"{alpha:g}", f"{scale:g}", *(f"{value:.4f}" for value in found)])
    return rows


def main() -> None:
    """Print and, with ``--json``, write the figures."""
    parser = argument_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=10_000)
    options = parser.parse_args()
    report = {"figure": figure(options.repeats), "several": several(), "levels": levels()}
    for panel, points in report["figure"].items():
        for one in points:
            text = " ".join(f"{how} {one[how]['mean']:.4f}±{one[how]['sd']:.4f}" for how in WAYS)
            print(panel, one["bins"], f"{one['alpha']:.3g}", one["epsilon"], text)
    for row in report["several"] + report["levels"]:
        print({name: round(value, 4) for name, value in row.items()})
    about = {
        "title": "Leakage of one count: exact, and bounds",
        "note": "In nats, Laplace noise of scale b. (2): the paper's weaker bound; the one before it is Jensen's.",
    }
    heads = ["α", "b", "exact", "2(1 − α)/b", "2(1 − α)/b + 2α²/b² (2)", "DP, 2/b"]
    keep("histogram", "pml_bounds", about, heads, bounds())
    write(options, report)


if __name__ == "__main__":
    main()
