"""Throughput of the keyed noise, one core: draws a second, and the time to build the thresholds.

Run ``python tests/benchmarks/bench_noise.py --json noise.json``.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpdist.privacy import _thresholds
from dpdist.privacy.noise import Noise


def best_rate(draw: Callable[[int], np.ndarray], count: int, repeats: int = 5) -> float:
    """Return the best draws a second over some repeats, tables already built."""
    draw(1)
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        draw(count)
        seconds.append(time.perf_counter() - begin)
    return count / min(seconds)


def build_seconds(digits: Callable[[Fraction], object], scale: float) -> float:
    """Return the time to build all tables of one scale from nothing."""
    for cached in (
        _thresholds.laplace,
        _thresholds.gaussian,
        _thresholds.rounded_gaussian_table,
        _thresholds.discrete_gaussian_table,
    ):
        cached.cache_clear()
    begin = time.perf_counter()
    digits(Fraction(scale))
    return time.perf_counter() - begin


def measure(count: int) -> list[dict[str, float | str]]:
    """Return one record for each kind of draw and scale."""
    noise = Noise(bytes(32))
    _thresholds.laplace(Fraction(1))  # imports the arithmetic
    records: list[dict[str, float | str]] = [
        {"draw": "words", "per_second": best_rate(lambda n: noise.words("x", n), count)},
        {"draw": "integers", "per_second": best_rate(lambda n: noise.integers("x", n, high=1_330_000), count)},
    ]
    for scale in (0.1, 1.0, 17.3, 1000.0, 1e6, 2.0**33, 2.0**40):
        for draw, digits, function in (
            ("discrete_laplace", _thresholds.laplace, lambda n, s: noise.discrete_laplace("x", n, scale=s)),
            ("gaussian_integers", _thresholds.gaussian, lambda n, s: noise.gaussian_integers("x", n, sigma=s)),
        ):
            built = build_seconds(digits, scale)
            rate = best_rate(lambda n, f=function, s=scale: f(n, s), count)  # type: ignore[misc]
            records.append({"draw": draw, "scale": scale, "per_second": rate, "build_seconds": built})
    return records


def main() -> None:
    """Print the throughput and, with ``--json``, write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    parser.add_argument("--count", type=int, default=1 << 23, help="draws in each measurement")
    arguments = parser.parse_args()
    records = measure(arguments.count)
    for record in records:
        scale = f"scale {record['scale']:.4g}" if "scale" in record else ""
        build = f"tables in {1e3 * float(record['build_seconds']):.0f} ms" if "build_seconds" in record else ""
        print(f"{record['draw']:<18} {scale:<17} {float(record['per_second']) / 1e6:7.1f} million/s   {build}")
    if arguments.json:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "numpy": np.__version__}
        arguments.json.write_text(json.dumps({**machine, "count": arguments.count, "noise": records}, indent=2) + "\n")


if __name__ == "__main__":
    main()
