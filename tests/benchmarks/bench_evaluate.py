"""An evaluation of a million released records against 1.33 million real ones: seconds, CPU and memory, by stage.

    python tests/benchmarks/bench_evaluate.py --json bench/evaluate.json [--records 1000000] [--rows 10000000]

The command line as a user runs it, process start included, with a tenth of the table held out and all attacks. With
--rows also the counting of a made-up table of that size against a release of it, which grows with the rows; models and
attacks look at samples of a stated size and do not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from bench_release import DPDIST, Watch, timed
from harness import DATA, ROOT, argument_parser, write


def staged(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run an evaluation; seconds until each stage was done, CPU seconds and peak memory of the largest process."""
    start = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*DPDIST, "evaluate", *arguments, "--json"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watch = Watch(process.pid)
    watch.start()
    stages: dict[str, float] = {}
    last = start
    for line in process.stderr or ():
        if found := re.fullmatch(r"(.*): done\s*", line):
            stages[found[1]] = round(time.perf_counter() - last, 2)
            last = time.perf_counter()
        else:
            print(line, end="", file=sys.stderr)
    out = (process.stdout.read() if process.stdout else "") or "{}"
    if process.wait():
        raise SystemExit(f"dpdist evaluate {' '.join(arguments)} failed with code {process.returncode}")
    verdicts = {item["name"]: item["verdict"] for item in json.loads(out)["verdicts"]}
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(sum(watch.cpu.values()), 2),
        "largest_process_mb": round(max(watch.peaks.values()) / 1e6),
        "stages": stages,
        "verdicts": verdicts,
    }


def split(folder: Path) -> tuple[Path, Path]:
    """ACS 2024 in two files: nine tenths, and a random tenth that is held out."""
    import numpy as np

    table = pq.read_table(DATA / "acs2024_workers.parquet")
    order = np.random.default_rng(0).permutation(table.num_rows)
    cut = table.num_rows // 10
    paths = folder / "training.parquet", folder / "holdout.parquet"
    for path, rows in zip(paths, (order[cut:], order[:cut]), strict=True):
        pq.write_table(table.take(np.sort(rows)), path)
    return paths


def million(folder: Path, records: int) -> dict[str, Any]:
    """A release of ACS 2024 without a tenth of it, evaluated with that tenth as the hold-out."""
    training, holdout = split(folder)
    settings = [f"data.path={training}", f"synthesis.records={records}", "data.minimum_records=1100000"]
    sets = [part for setting in settings for part in ("--set", setting)]
    timed(["ledger", "create", "acs", "--epsilon", "9", "--delta", "1e-8"], folder)
    timed(["release", str(ROOT / "deploy/releases/acs2024-paper.yaml"), *sets], folder)
    whole = staged(
        ["releases/acs2024-paper", "--against", str(DATA / "acs2024_workers.parquet"), "--no-attacks"], folder
    )
    held = staged(["releases/acs2024-paper", "--against", str(training), "--holdout", str(holdout)], folder)
    return {"records": records, "all real rows, no attacks": whole, "a tenth held out, with attacks": held}


def counting(folder: Path, rows: int) -> dict[str, Any]:
    """Seconds of counting a made-up table of `rows` rows."""
    timed(["sample", "table", "--rows", str(rows)], folder)
    timed(["ledger", "create", "demo", "--epsilon", "9", "--delta", "1e-8"], folder)
    settings = ["data.path=table", f"data.minimum_records={rows * 9 // 10}", "synthesis.omega=all", "output.path=out"]
    settings += ["synthesis.records=100000", "ledger=sqlite:///dpdist-ledger.db", "work=work"]
    sets = [part for setting in settings for part in ("--set", setting)]
    timed(["release", str(ROOT / "deploy/releases/demo.yaml"), *sets], folder)
    return {"rows": rows, **staged(["out", "--against", "table", "--no-attacks", "--train", "2000"], folder)}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, nargs="*", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report: dict[str, Any] = million(Path(folder), options.records)
    report["counting"] = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            report["counting"].append(counting(Path(folder), rows))
    print(json.dumps(report, indent=2))
    write(options, report)


if __name__ == "__main__":
    main()
