"""Whole releases by the command line, Parquet to Parquet: seconds, CPU seconds and memory of each process.

    python tests/benchmarks/bench_release.py --json bench/release.json [--repeats 5] [--copies 8 75 754] [--executors]

1. A million records released from ACS 2024 (1.33 million real rows), process start included: by the default synthesis
   (`acs2024.yaml`), and with seeds (`acs2024-paper.yaml`: omega uniform in {9, 10, 11}, k = 50, gamma = 4).
2. The default synthesis learnt from the same file copied many times (754 copies are a billion rows), a million
   records out. Shared memory of the processes is counted in each.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from harness import DATA, ROOT, argument_parser, write

TABLE = DATA / "acs2024_workers.parquet"
TABLE_ROWS = 1_326_858
DPDIST = (sys.executable, "-m", "dpdist")
MODES = {"default": "acs2024.yaml", "seeds": "acs2024-paper.yaml"}


class Watch(threading.Thread):
    """CPU seconds and largest resident memory of a process and of each one below it."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root, self._ended = psutil.Process(pid), threading.Event()
        self.peaks: dict[int, int] = {}
        self.cpu: dict[int, float] = {}

    def run(self) -> None:
        while not self._ended.wait(0.05):
            try:
                for process in [self._root, *self._root.children(recursive=True)]:
                    self.peaks[process.pid] = max(self.peaks.get(process.pid, 0), process.memory_info().rss)
                    self.cpu[process.pid] = sum(process.cpu_times()[:2])
            except psutil.Error:
                pass

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self.join()


def timed(arguments: list[str], folder: Path, program: Sequence[str] = DPDIST) -> dict[str, Any]:
    """Run a program, by default dpdist, in a folder; seconds, CPU seconds, peak memory of driver and largest worker."""
    start = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*program, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    watch.start()
    out, _ = process.communicate()
    seconds = time.perf_counter() - start
    watch.end()
    if process.returncode:
        raise SystemExit(f"dpdist {' '.join(arguments)} failed with code {process.returncode}")
    driver = watch.peaks.pop(process.pid)
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(sum(watch.cpu.values()), 2),
        "driver_mb": round(driver / 1e6),
        "worker_mb": round(max(watch.peaks.values(), default=0) / 1e6),
        "output": out,
    }


def release(mode: str, table: Path, rows: int, cluster: Mapping[str, object] = MappingProxyType({})) -> dict[str, Any]:
    """A million records from a table in a mode, in a folder and a ledger of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {
            "data.path": table,
            "data.minimum_records": rows * 9 // 10,
            "synthesis.records": 1_000_000,
            "output.path": folder / "released",
            "work": folder / "work",
            "ledger": f"sqlite:///{folder}/ledger.db",
            **{f"cluster.{name}": value for name, value in cluster.items()},
        }
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        budget = (
            "--epsilon",
            "9",
            "--delta",
            "1e-8",
            *(part for kind in ("dp", "pd-per-record") for part in ("--allow", kind)),
        )
        timed(["ledger", "create", "acs", *budget, "--ledger", str(settings["ledger"])], folder)
        result = timed(["release", str(ROOT / "deploy/releases" / MODES[mode]), "--json", *sets], folder)
        record = json.loads(Path(json.loads(result.pop("output"))["run_record"]).read_text())
        return {"mode": mode, "rows": rows} | result | {"stages": record["seconds"]}


EXECUTORS: dict[str, dict[str, object]] = {
    "threads": {"mode": "threads"},
    "one process": {"mode": "embedded", "workers": 1},
    "two processes": {"mode": "embedded", "workers": 2},
}


def grown(copies: int, executor: str = "") -> dict[str, Any]:
    """The default synthesis of the table copied this many times."""
    with tempfile.TemporaryDirectory() as name:
        for copy in range(copies):
            shutil.copy(TABLE, Path(name) / f"part-{copy:05}.parquet")
        result = {"executor": executor or "auto"}
        result |= release("default", Path(name), copies * TABLE_ROWS, EXECUTORS.get(executor, {}))
    return result | {"nanoseconds_per_row": round(1e9 * result["seconds"] / result["rows"], 1)}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each mode")
    parser.add_argument("--copies", type=int, nargs="*", default=[], help="copies of the table")
    parser.add_argument("--executors", action="store_true", help="also compare executors")
    options = parser.parse_args()
    report: dict[str, Any] = {"million": [], "grown": []}
    for _ in range(options.repeats):
        for mode in MODES:
            report["million"].append(release(mode, TABLE, TABLE_ROWS))
            print(json.dumps(report["million"][-1]), flush=True)
    for mode in MODES if options.repeats else ():
        runs = [run for run in report["million"] if run["mode"] == mode]
        report[mode] = {
            f"median_{name}": statistics.median(run[name] for run in runs) for name in ("seconds", "cpu_seconds")
        }
        print(mode, json.dumps(report[mode]))
    runs = [(copies, "") for copies in options.copies]
    for copies, executor in runs + [(75, name) for name in EXECUTORS if options.executors]:
        report["grown"].append(grown(copies, executor))
        print(json.dumps(report["grown"][-1]), flush=True)
    write(options, report)


if __name__ == "__main__":
    main()
