"""The time and memory of a million records without privacy: what a release is measured against.

    python tests/benchmarks/baseline.py --json bench/baseline.json [--copies 1 8] [--repeats 3]

The baseline reads ACS 2024 (1.33 million rows for each copy), codes it, counts all 55 pairs, draws a million rows
from the columns and writes them as Parquet, on one thread. Each run is a process of its own, and `dpdist release` of
the same table follows it, so the ratios hold on a machine with other work.
"""

import shutil
import statistics
import sys
import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_release import TABLE, TABLE_ROWS, release, timed
from harness import argument_parser, command, machine, write_tables

RECORDS = 1_000_000


def baseline(source: Path) -> None:
    """Read, code, count, draw and write."""
    table = pq.read_table(source, use_threads=False)
    columns = []
    for name in table.schema.names:
        values, codes = np.unique(table[name].to_numpy(), return_inverse=True)
        columns.append((codes.astype(np.uint8 if len(values) < 256 else np.uint16), len(values)))
    for (a, values_a), (b, values_b) in combinations(columns, 2):
        cells = np.uint16 if values_a * values_b < 65_536 else np.int32
        np.bincount(a.astype(cells) * cells(values_b) + b, minlength=values_a * values_b)
    rng = np.random.default_rng(0)
    drawn = {
        name: codes[rng.integers(0, len(codes), RECORDS)]
        for name, (codes, _) in zip(table.schema.names, columns, strict=True)
    }
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pq.write_table(pa.table(drawn), file.name)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", type=Path, help="run the baseline on a folder and end")
    parser.add_argument("--copies", type=int, nargs="*", default=[1], help="copies of the table")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.only:
        return baseline(options.only)
    rows = []
    for copies in options.copies:
        with tempfile.TemporaryDirectory() as name:
            for copy in range(copies):
                shutil.copy(TABLE, Path(name) / f"part-{copy:05}.parquet")
            runs = [
                (
                    timed([__file__, "--only", name], Path(name), program=(sys.executable,)),
                    release("default", Path(name), copies * TABLE_ROWS),
                )
                for _ in range(options.repeats)
            ]
        plain, private = (
            {key: statistics.median(run[i][key] for run in runs) for key in ("seconds", "cpu_seconds", "driver_mb")}
            for i in (0, 1)
        )
        rows += [
            [f"{copies * TABLE_ROWS:,}", what, *(f"{run[key]:.4g}" for key in ("seconds", "cpu_seconds", "driver_mb"))]
            for what, run in (("without privacy", plain), ("dpdist", private))
        ]
    columns = ["rows", "what", "seconds", "CPU seconds", "MB"]
    for row in (columns, *rows):
        print(" | ".join(row))
    title = "A million records, without privacy and by dpdist"
    note = f"Medians of {options.repeats} runs, one of each after the other; MB of the largest process."
    about = {"title": title, "command": command(), "machine": machine(), "note": note, "columns": columns, "rows": rows}
    if options.json:
        write_tables(options.json, {"million": about})
    return None


if __name__ == "__main__":
    main()
