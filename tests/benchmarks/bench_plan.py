"""How long `dpdist plan` takes for each shipped spec, and `dpdist --help`: whole processes, by the clock and in CPU.

    python tests/benchmarks/bench_plan.py --json bench/plan.json [--repeats 5]

The commands run in turns, so that a slow minute of the machine meets all of them. No table is read; no ledger exists.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPECS = sorted((ROOT / "deploy" / "releases").glob("*.yaml"))


def timed(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of one command of dpdist."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}  # modules are compiled once
    before, start = spent(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "dpdist", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    return time.perf_counter() - start, spent() - before


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    commands = {"--help": ["--help"]} | {spec.stem: ["plan", str(spec)] for spec in SPECS}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for repeat in range(options.repeats + 1):
        for name, arguments in commands.items():
            measured = timed(arguments)
            if repeat:  # the first fills the caches of the file system
                found[name].append(measured)
    rows = {}
    for name, runs in found.items():
        seconds, cpu = ([run[i] for run in runs] for i in (0, 1))
        rows[name] = {
            "seconds": round(statistics.median(seconds), 3),
            "least": round(min(seconds), 3),
            "most": round(max(seconds), 3),
            "cpu_seconds": round(statistics.median(cpu), 3),
        }
        print(f"{name:22} {rows[name]}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
