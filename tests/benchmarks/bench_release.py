"""Whole releases, Parquet to Parquet: seconds, CPU and memory of each worker process, at three sizes.

    python tests/benchmarks/bench_release.py --json bench/release.json [--rows 10000000 100000000]

1. A million records released from ACS 2024 (1.33 million real rows), omega uniform in {9, 10, 11}, k = 50, gamma = 4,
   epsilon0 = 1: the command line as a user runs it, process start included.
2. Learning from made-up tables of growing size: seconds a row and memory a worker.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data"))
DPDIST = [sys.executable, "-m", "dpdist"]


class Watch(threading.Thread):
    """Largest resident memory of each process below the one that runs a release."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root, self.peaks, self.cpu = psutil.Process(pid), {}, {}

    def run(self) -> None:
        while self._root.is_running():
            try:
                for process in [self._root, *self._root.children(recursive=True)]:
                    self.peaks[process.pid] = max(self.peaks.get(process.pid, 0), process.memory_info().rss)
                    self.cpu[process.pid] = sum(process.cpu_times()[:2])
            except psutil.Error:
                pass
            time.sleep(0.05)


def timed(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run a command of dpdist in a folder; seconds, CPU seconds and peak memory of its largest process."""
    start = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*DPDIST, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    watch.start()
    out, _ = process.communicate()
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"dpdist {' '.join(arguments)} failed with code {process.returncode}")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(sum(watch.cpu.values()), 2),
        "largest_process_mb": round(max(watch.peaks.values()) / 1e6),
        "output": out,
    }


def stages(result: dict[str, Any]) -> dict[str, float]:
    """Seconds of each stage, from the operator's run record."""
    outcome = json.loads(result.pop("output"))
    seconds: dict[str, float] = json.loads(Path(outcome["run_record"]).read_text())["seconds"]
    return seconds


def million(folder: Path) -> dict[str, Any]:
    """A million records from ACS 2024."""
    settings = [f"data.path={DATA / 'acs2024_workers.parquet'}", "synthesis.records=1000000"]
    sets = [part for setting in settings for part in ("--set", setting)]
    timed(["ledger", "create", "acs", "--epsilon", "9", "--delta", "1e-8"], folder)
    result = timed(["release", str(ROOT / "deploy/releases/acs2024-paper.yaml"), "--json", *sets], folder)
    return result | {"stages": stages(result)}


def learning(folder: Path, rows: int) -> dict[str, Any]:
    """Learning from a made-up table of `rows` rows; every attribute resampled, few records released."""
    timed(["sample", "table", "--rows", str(rows)], folder)
    timed(["ledger", "create", "demo", "--epsilon", "9", "--delta", "1e-8"], folder)
    settings = ["data.path=table", f"data.minimum_records={rows * 9 // 10}", "synthesis.omega=all", "output.path=out"]
    settings += ["synthesis.records=10000", "ledger=sqlite:///dpdist-ledger.db", "work=work"]
    sets = [part for setting in settings for part in ("--set", setting)]
    result = timed(["release", str(ROOT / "deploy/releases/demo.yaml"), "--json", *sets], folder)
    seconds = stages(result)
    spent = sum(seconds.get(name, 0.0) for name in ("reading", "counting", "learning parameters"))
    return result | {"rows": rows, "stages": seconds, "nanoseconds_per_row": round(1e9 * spent / rows, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000_000, 100_000_000])
    options = parser.parse_args()
    report: dict[str, Any] = {"learning": []}
    with tempfile.TemporaryDirectory() as folder:
        report["million"] = million(Path(folder))
        print(json.dumps(report["million"]))
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            report["learning"].append(learning(Path(folder), rows))
            print(json.dumps(report["learning"][-1]))
    per_row = [entry["nanoseconds_per_row"] for entry in report["learning"]]
    if len(per_row) > 1:
        report["time_per_row_ratio"] = round(per_row[-1] / per_row[0], 3)
        print("time per row, largest against smallest:", report["time_per_row_ratio"])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
