"""A release from S3 to S3 against the same on local files, in turns: seconds and CPU seconds of all its processes.

    python tests/benchmarks/bench_s3.py --json bench/s3.json [--records 100000] [--repeats 3]

Starts a throwaway Ceph gateway on 127.0.0.1 (`tests/servers/ceph.sh`; needs its Debian packages), which shares the
machine with the release.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fsspec

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")) / "acs2024_workers.parquet"
CEPH = ROOT / "tests" / "servers" / "ceph.sh"
SPEC = ROOT / "deploy" / "releases" / "acs2024-paper.yaml"


def release(
    folder: Path, environment: dict[str, str], number: int, places: dict[str, str], records: int
) -> tuple[float, float]:
    """Seconds and CPU seconds of one release by the command line, its workers included."""
    settings = {"name": f"bench-{number}", "synthesis.records": records, "output.path": places["output"] + str(number)}
    settings |= {"data.path": places["data"]}
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    start = time.perf_counter()
    command = [sys.executable, "-m", "dpdist", "release", str(SPEC), *sets]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit((folder / "log").read_text())
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def main() -> None:
    """Run both in turns and report medians and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = subprocess.run([CEPH, "start"], check=True, capture_output=True, text=True).stdout
        server = dict(part.split("=", 1) for part in started.split())
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "AWS_ENDPOINT_URL": server["endpoint"],
            "AWS_ACCESS_KEY_ID": server["key"],
            "AWS_SECRET_ACCESS_KEY": server["secret"],
        }
        try:
            s3 = fsspec.filesystem("s3", endpoint_url=server["endpoint"], key=server["key"], secret=server["secret"])
            s3.mkdir("bench")
            s3.put_file(str(DATA), "bench/acs2024.parquet")
            create = ["ledger", "create", "acs", "--epsilon", "99", "--delta", "1e-8"]
            subprocess.run([sys.executable, "-m", "dpdist", *create], cwd=folder, env=environment, check=True)
            places = {
                "local": {"data": str(DATA), "output": str(folder / "out")},
                "s3": {"data": "s3://bench/acs2024.parquet", "output": "s3://bench/out"},
            }
            seconds: dict[str, list[float]] = {"local": [], "s3": []}
            cpu: dict[str, list[float]] = {"local": [], "s3": []}
            for turn in range(options.repeats):
                for offset, place in enumerate(places):
                    number = 2 * turn + offset
                    wall, busy = release(folder, environment, number, places[place], options.records)
                    seconds[place].append(round(wall, 2))
                    cpu[place].append(round(busy, 2))
        finally:
            subprocess.run([CEPH, "stop", *([server["dir"]] if "dir" in server else [])], check=False)
    medians = {place: round(statistics.median(values), 2) for place, values in seconds.items()}
    report: dict[str, Any] = {
        "seconds": seconds,
        "median": medians,
        "ratio": round(medians["s3"] / medians["local"], 3),
        "cpu_seconds": cpu,
        "cpu_ratio": round(statistics.median(cpu["s3"]) / statistics.median(cpu["local"]), 3),
    }
    print(json.dumps(report))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
