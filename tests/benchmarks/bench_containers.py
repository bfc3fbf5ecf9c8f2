"""One release of ACS 2024 from a table in each container: the same released bytes, seconds, and peak memory.

    python tests/benchmarks/bench_containers.py --json bench/containers.json

Each container runs in a process of its own: it opens the table, then calls `dpdist.release` with a fixed key. The
memory is that of the process at most, above what it had before and after the container was made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
TABLE = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")) / "acs2024_workers.parquet"
KEY = "0b" * 32


def _pandas() -> Any:
    import pandas

    return pandas.read_parquet(TABLE)


def _arrow() -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(TABLE)


def _dataset() -> Any:
    import pyarrow.dataset

    return pyarrow.dataset.dataset(TABLE)


def _polars() -> Any:
    import polars

    return polars.read_parquet(TABLE)


def _dask() -> Any:
    import dask.dataframe

    return dask.dataframe.read_parquet(TABLE, split_row_groups=True)


def _duckdb() -> Any:
    import duckdb

    return duckdb.sql(f"select * from '{TABLE}'")


CONTAINERS: dict[str, Callable[[], Any]] = {
    "path": lambda: TABLE,
    "pandas": _pandas,
    "arrow": _arrow,
    "dataset": _dataset,
    "polars": _polars,
    "dask": _dask,
    "duckdb": _duckdb,
}


def released(container: str) -> dict[str, Any]:
    """Release the table from a container, in the current folder."""
    import dpdist

    process = psutil.Process()
    empty = process.memory_info().rss
    frame = CONTAINERS[container]()
    held = process.memory_info().rss
    ledger = dpdist.Ledger("sqlite:///ledger.db")
    ledger.create("acs", epsilon=4, delta=1e-8)
    spec = ROOT / "deploy" / "releases" / "acs2024.yaml"
    settings = {"output.path": "release", "work": "work"}
    dpdist.plan(spec, data=frame, ledger=ledger, settings=settings)
    start, cpu = time.perf_counter(), time.process_time()
    release = dpdist.release(spec, data=frame, ledger=ledger, settings=settings, test_key=KEY)
    bytes_ = hashlib.sha256("".join(part.sha256 for part in release.manifest.parts).encode()).hexdigest()
    return {
        "container": container,
        "sha256_of_parts": bytes_,
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "container_mb": round((held - empty) / 1e6),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6),
        "above_container_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - held) / 1e6),
        "records": len(release),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=CONTAINERS, nargs="*", default=list(CONTAINERS))
    parser.add_argument("--one", choices=CONTAINERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(released(options.one)))
        return
    found = []
    for container in options.only:
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, str(Path(__file__).resolve()), "--one", container]
            done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(found[-1]), flush=True)
    digests = {entry["sha256_of_parts"] for entry in found}
    print("the same bytes" if len(digests) == 1 else f"{len(digests)} DIFFERENT RELEASES")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2))
    sys.exit(len(digests) != 1)


if __name__ == "__main__":
    main()
