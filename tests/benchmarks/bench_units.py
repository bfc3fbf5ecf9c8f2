"""A made-up hospital table of visits, released with and without a bound on the visits of each patient.

    python tests/benchmarks/bench_units.py --visits 10e6 --folder hospital [--memory 3GiB] [--kill] [--json FILE]

Ten visits for each patient on average, many for some, anywhere in the files (10 million rows each); 12 attributes and
the patients' ids. Each release runs in worker processes, two of them, as `dpdist release` would. Shown are seconds, CPU
seconds and nanoseconds of CPU a row, and the largest memory of all processes together, every 50 ms. With `--kill` the
release with units runs once more, and a worker is killed while it bounds. The key is fixed, **not private**.
"""

import hashlib
import json
import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from harness import argument_parser, write

from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.spec.reader import load

FILE_ROWS = 10_000_000
GROUP_ROWS = 1 << 20
SIZES = {
    "ward": 24,
    "month": 12,
    "weekday": 7,
    "sex": 2,
    "age": 20,
    "insurance": 5,
    "urgent": 2,
    "diagnosis": 60,
    "procedure": 40,
    "days": 15,
    "outcome": 4,
    "referred": 3,
}


def write_visits(folder: Path, visits: int) -> None:
    """The files of the table; written once."""
    folder.mkdir(parents=True, exist_ok=True)
    patients = max(visits // 10, 1)
    for number, start in enumerate(range(0, visits, FILE_ROWS)):
        path = folder / f"visits-{number:03}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng([visits, number])
        with pq.ParquetWriter(path, _batch(rng, 0, patients).schema) as writer:
            for first in range(start, min(start + FILE_ROWS, visits), GROUP_ROWS):
                writer.write_table(_batch(rng, min(GROUP_ROWS, visits - first, start + FILE_ROWS - first), patients))


def _batch(rng: np.random.Generator, rows: int, patients: int) -> pa.Table:
    ids = (patients * rng.random(rows) ** 1.5).astype(np.int64)
    columns: dict[str, Any] = {"patient_id": ids * 7919 + 10**12}
    for place, (name, size) in enumerate(SIZES.items()):
        own = (ids * (place + 3)) % size  # what a patient's visits have in common
        other = (size * rng.random(rows) ** 2).astype(np.int64)
        columns[name] = np.where(rng.random(rows) < 0.5, own, other).astype(np.int16)
    return pa.table(columns)


def spec_of(kind: str, folder: Path, visits: int, *, unit: bool, name: str, memory: str) -> Any:
    """The spec of a release."""
    privacy = {"epsilon": 1, "delta": 1e-9}
    names = list(SIZES)
    return load(
        {
            "kind": kind,
            "name": name,
            "dataset": "hospital",
            "data": {
                "path": str(folder / "visits-*.parquet"),
                "minimum_records": visits // 2,
                "extra_columns": "ignore",
            },
            "schema": {
                "attributes": [{"name": n, "kind": "integer", "bounds": [0, size - 1]} for n, size in SIZES.items()]
            },
            "privacy": privacy,
            "output": {"path": str(folder / name)},
            "work": str(folder / "work"),
            "ledger": f"sqlite:///{folder}/{name}.db",
            "cluster": {"mode": "embedded", "workers": 2, "memory_limit": memory},
            **({"unit": {"by": "patient_id", "at_most": 10}} if unit else {}),
            **(
                {"histograms": [{"columns": [a, b]} for a, b in zip(names[:6], names[6:], strict=True)]}
                if kind == "histogram"
                else {}
            ),
            **({"synthesis": {"records": 1_000_000}} if kind == "synthesis" else {}),
        }
    )


class Watch(threading.Thread):
    """Looks at all processes of this one: their memory, and kills a worker once a stage has begun."""

    def __init__(self, *, kill: bool) -> None:
        super().__init__(daemon=True)
        self.peak, self.killed, self.cpu = 0, 0, 0.0
        self.kill, self.stage, self.done = kill, "", False
        self._own = psutil.Process()
        self._start = self._cpu([self._own])

    @staticmethod
    def _cpu(processes: list[psutil.Process]) -> float:
        return sum(sum(p.cpu_times()[:2]) for p in processes)

    def run(self) -> None:
        seen: dict[int, float] = {}
        begun = 0.0
        while not self.done:
            try:
                children = self._own.children(recursive=True)
                self.peak = max(self.peak, sum(p.memory_info().rss for p in [self._own, *children]))
                seen |= {p.pid: self._cpu([p]) for p in children}
                if self.stage == "counting" and not begun:
                    begun = time.monotonic()
                if self.kill and not self.killed and begun and time.monotonic() > begun + 5:
                    worker = max(children, key=lambda p: p.memory_info().rss)
                    self.killed = worker.pid
                    worker.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
            time.sleep(0.05)
        self.cpu = self._cpu([self._own]) - self._start + sum(seen.values())


def run(kind: str, folder: Path, visits: int, *, unit: bool, memory: str, kill: bool = False) -> dict[str, Any]:
    """Release once; what it took."""
    name = f"{kind}-{'patients' if unit else 'records'}{'-killed' if kill else ''}-{time.time_ns()}"
    spec = spec_of(kind, folder, visits, unit=unit, name=name, memory=memory)
    with closing(Books.open(spec.ledger)) as ledger:
        ledger.create_dataset("hospital", epsilon=4, delta="1e-6")
    watch = Watch(kill=kill)
    watch.start()
    start = time.monotonic()
    seconds: dict[str, float] = {}

    def progress(stage: str, done: int, total: int) -> None:
        watch.stage = stage
        seconds.setdefault(stage, time.monotonic() - start)

    run_release(spec, fixed_key="00112233445566778899aabbccddeeff" * 2, progress=progress)
    wall = time.monotonic() - start
    watch.done = True
    watch.join()
    parts = sorted(p for p in (folder / name).rglob("*.parquet") if "part" in p.name)
    digest = hashlib.sha256(b"".join(hashlib.sha256(p.read_bytes()).digest() for p in parts)).hexdigest()
    return {
        "kind": kind,
        "visits": visits,
        "unit": unit,
        "killed": bool(watch.killed),
        "seconds": round(wall, 1),
        "cpu_seconds": round(watch.cpu, 1),
        "cpu_ns_a_row": round(watch.cpu / visits * 1e9),
        "peak_gib": round(watch.peak / 2**30, 2),
        "begins": {stage: round(at, 1) for stage, at in seconds.items()},
        "digest": digest[:16],
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--visits", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=["histogram", "synthesis"])
    parser.add_argument("--memory", default="3GiB")
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    write_visits(given.folder, given.visits)
    found = []
    for kind in given.kinds:
        for unit in (False, True):
            found.append(run(kind, given.folder, given.visits, unit=unit, memory=given.memory))
            print(json.dumps(found[-1]), flush=True)
        if given.kill:
            found.append(run(kind, given.folder, given.visits, unit=True, memory=given.memory, kill=True))
            print(json.dumps(found[-1]), flush=True)
    write(given, found)


if __name__ == "__main__":
    main()
