"""Many partitions on a real scheduler: seconds of driver and scheduler, memory, and the number of tasks by stage.

    python tests/benchmarks/bench_partitions.py --json bench/partitions.json [--files 10000] [--rows 1000] [--workers 2]

Writes a made-up table as so many Parquet files of so many rows, and releases it with one partition a file: a synthesis,
and records that keep parts of true ones. Scheduler and workers are processes of their own (`dask scheduler`,
`dask worker`); this process is the driver.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml
from distributed import Client, Scheduler

import dpdist
from dpdist.spec.reader import load

ROOT = Path(__file__).parents[2]
SPECS = {"synthesis": "demo", "with seeds": "demo-seeds"}


def write_table(folder: Path, *, files: int, rows: int) -> None:
    """A made-up table in so many files."""
    made = folder / "made"
    command = [sys.executable, "-m", "dpdist", "sample", str(made), "--rows", str(files * rows)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (folder / "table").mkdir()
    whole = pq.read_table(made)
    for number in range(files):
        pq.write_table(whole.slice(number * rows, rows), folder / "table" / f"{number:05d}.parquet")


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[tuple[Client, dict[str, psutil.Process]]]:
    """A scheduler and workers, each a process; a client of theirs."""
    address = folder / "scheduler.json"
    start = [sys.executable, "-m", "dask"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    own = ["--scheduler-file", str(address)]
    running = [subprocess.Popen([*start, "scheduler", *own, "--port", "0", "--no-dashboard"], **quiet)]
    options = ["--nthreads", "1", "--memory-limit", "3GiB", "--no-dashboard", "--local-directory", str(folder)]
    running += [subprocess.Popen([*start, "worker", *own, *options], **quiet) for _ in range(workers)]
    try:
        while not address.exists():
            time.sleep(0.2)
        with Client(scheduler_file=str(address), timeout=60) as client:
            client.wait_for_workers(workers, timeout=120)
            yield client, {"driver": psutil.Process(), "scheduler": psutil.Process(running[0].pid)}
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(30)


def cpu(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def tasks(dask_scheduler: Scheduler) -> dict[str, int]:
    """The number of tasks that ended so far, by the name that the driver gave them."""
    return {name: prefix.state_counts["memory"] for name, prefix in dask_scheduler.task_prefixes.items()}


def measure(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One release: seconds, memory, tasks."""
    settings = {
        "name": kind.replace(" ", "-"),
        "data.path": str(folder / "table"),
        "output.path": str(folder / kind.replace(" ", "-")),
        "work": str(folder / "work"),
        "ledger": f"sqlite:///{folder / 'ledger.db'}",
        "cluster": {"partitions": options.files},
    }
    spec = load(ROOT / f"deploy/releases/{SPECS[kind]}.yaml", settings)
    with cluster(folder, options.workers) as (client, processes):
        before = {name: cpu(process) for name, process in processes.items()}
        wall = time.perf_counter()
        dpdist.release(spec, client=client)
        wall = time.perf_counter() - wall
        spent = {name: cpu(process) - before[name] for name, process in processes.items()}
        counted = {name: number for name, number in client.run_on_scheduler(tasks).items() if number}
        total = sum(counted.values())
        return {
            "kind": kind,
            "partitions": options.files,
            "tasks": total,
            "seconds": round(wall, 1),
            **{f"{name} s": round(seconds, 1) for name, seconds in spent.items()},
            **{f"{name} s per 1,000 tasks": round(1000 * s / total, 2) for name, s in spent.items()},
            **{f"{name} MB": round(process.memory_info().rss / 1e6) for name, process in processes.items()},
            "tasks by stage": dict(sorted(counted.items(), key=lambda item: -item[1])),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", choices=list(SPECS), default=list(SPECS))
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_table(folder, files=options.files, rows=options.rows)
        dataset = yaml.safe_load((ROOT / "deploy/releases/demo.yaml").read_text())["dataset"]
        ledger = dpdist.Ledger(f"sqlite:///{folder / 'ledger.db'}")
        ledger.create(dataset, epsilon=100, delta=1e-5)
        for kind in options.kinds:
            found.append(measure(kind, folder, options))
            print(json.dumps(found[-1]), flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
