"""Histograms of a wide table: 40 one-way and 100 two-way tables in one pass, on codes and from Parquet to noisy counts.

Run ``python tests/benchmarks/bench_histogram.py --json histogram.json``; ``--rows 100000000`` for the large table, and
``--pipeline-dp PYTHON`` to run the same job in PipelineDP with an interpreter that has it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.cluster.cluster import Cluster
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.families.base.calibration import add_noise
from dpdist.families.base.graph import table_pass
from dpdist.families.histogram.counts import CountPlan, Query, block_counts, histogram_operator, histograms
from dpdist.families.histogram.measurement import plan_measurement
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Attribute, Schema

COLUMNS, PAIRS = 40, 100
SIZES = [2, 5, 8, 10, 12, 16, 24, 50] * 5
FILE_ROWS, GROUP_ROWS = 5_000_000, 1_000_000

PIPELINE_DP = """
import json, sys, time
import numpy as np, pipeline_dp
sizes = json.loads(sys.argv[2])
table = np.load(sys.argv[1])
rows = len(table)
data = [(person, (c, value)) for person, row in enumerate(table.tolist()) for c, value in enumerate(row)]
begin = time.perf_counter()
accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1, total_delta=1e-9)
engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
params = pipeline_dp.AggregateParams(
    noise_kind=pipeline_dp.NoiseKind.GAUSSIAN, metrics=[pipeline_dp.Metrics.COUNT],
    max_partitions_contributed=len(sizes), max_contributions_per_partition=1)
extract = pipeline_dp.DataExtractors(lambda r: r[0], lambda r: r[1], lambda r: 0)
cells = [(c, v) for c, size in enumerate(sizes) for v in range(size)]
result = engine.aggregate(data, params, extract, public_partitions=cells)
accountant.compute_budgets()
assert len(list(result)) == len(cells)
print(json.dumps({"rows": rows, "seconds": time.perf_counter() - begin}))
"""


def rows_of(rng: np.random.Generator, rows: int) -> list[np.ndarray]:
    """Codes of a made-up table: a common factor makes the columns dependent."""
    shared = rng.random(rows, np.float32)
    codes = []
    for size in SIZES:
        own = rng.random(rows, np.float32)
        codes.append(((0.3 * shared + 0.7 * own) * size).astype(np.uint8))
    return codes


def write_table(folder: Path, rows: int) -> None:
    """The table as Parquet files of `FILE_ROWS` rows; files after the first are links to it."""
    rng = np.random.default_rng(0)
    first = folder / "part-000.parquet"
    with pq.ParquetWriter(first, parquet_schema(), compression="zstd") as writer:
        for start in range(0, min(rows, FILE_ROWS), GROUP_ROWS):
            codes = rows_of(rng, min(GROUP_ROWS, rows - start))
            writer.write_table(pa.table(codes, schema=parquet_schema()))
    for part in range(1, rows // FILE_ROWS):
        os.link(first, folder / f"part-{part:03}.parquet")


def parquet_schema() -> pa.Schema:
    """One uint8 column per attribute."""
    return pa.schema([pa.field(f"c{i}", pa.uint8(), nullable=False) for i in range(COLUMNS)])


def queries() -> tuple[Query, ...]:
    """All one-way histograms, then 100 pairs."""
    pairs = list(combinations(range(COLUMNS), 2))
    chosen = np.random.default_rng(1).choice(len(pairs), PAIRS, replace=False)
    return tuple(Query((i,)) for i in range(COLUMNS)) + tuple(Query(pairs[i]) for i in sorted(chosen))


def best(function: Callable[[], object], repeats: int = 3) -> float:
    """Least CPU seconds of some repeats: other work may share the machine."""
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        function()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def kernels(rows: int) -> list[dict[str, object]]:
    """Rows a second of one core, codes in memory."""
    codes = rows_of(np.random.default_rng(2), rows)
    records = []
    for name, chosen in (("40 one-way", queries()[:COLUMNS]), ("40 one-way + 100 two-way", queries())):
        plan = CountPlan(chosen, tuple(SIZES))
        seconds = best(lambda plan=plan: block_counts(codes, plan))  # type: ignore[misc]
        records.append(
            {"what": name, "blocks": len(plan.blocks), "cells": plan.cells, "rows_per_second": rows / seconds}
        )
    plain = best(lambda: [np.bincount(c, minlength=s) for c, s in zip(codes, SIZES, strict=True)])
    records.append({"what": "40 one-way, np.bincount", "rows_per_second": rows / plain})
    return records


def whole(folder: Path, rows: int, *, one_way: bool) -> dict[str, object]:
    """Parquet to noisy counts in the threads of this process."""
    names = [f"c{i}" for i in range(COLUMNS)]
    attributes = tuple(
        Attribute(name=name, kind="integer", bounds=(0, size - 1)) for name, size in zip(names, SIZES, strict=True)
    )
    schema = Schema(attributes=attributes)
    chosen = queries()[:COLUMNS] if one_way else queries()
    begin = time.perf_counter()
    rows -= rows % FILE_ROWS if rows > FILE_ROWS else 0
    plan = CountPlan(chosen, schema.cardinalities)
    measurement = plan_measurement(
        plan.table_cells, mechanism="auto", epsilon=1, delta=1e-9, adjacency="add/remove", shares="optimal"
    )
    planned = time.perf_counter() - begin
    table = open_table(TableSource(paths=(str(folder),)), schema)
    cpu = time.process_time()
    [(tables, report)] = Cluster().compute([table_pass(table, histogram_operator(plan), name="count")])
    cpu = time.process_time() - cpu
    counted = time.perf_counter() - begin - planned
    noise = Noise(bytes(32))
    for number, (counts, scale) in enumerate(zip(tables, measurement.scales, strict=True)):
        add_noise(counts, mechanism=measurement.mechanism, scale=scale, noise=noise, name=f"histogram/table/{number}")
    if report.kept != rows or any(int(counts.sum()) != rows for counts in tables):
        raise RuntimeError("the counts do not add up to the number of rows")
    return {
        "what": "Parquet to noisy counts" + (", 40 one-way" if one_way else ", 40 one-way + 100 two-way"),
        "rows": rows,
        "cells": sum(plan.table_cells),
        "mechanism": measurement.mechanism,
        "plan_seconds": planned,
        "count_seconds": counted,
        "total_seconds": time.perf_counter() - begin,
        "rows_per_second": rows / counted,
        "rows_per_cpu_second": rows / cpu,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def peer(python: str, folder: Path, rows: int, columns: int) -> dict[str, object]:
    """The one-way job in PipelineDP's local backend, and here on the same rows. The peer takes 600 bytes a value."""
    codes, sizes = rows_of(np.random.default_rng(3), rows)[:columns], SIZES[:columns]
    np.save(folder / "peer.npy", np.stack(codes, axis=1))
    command = [python, "-c", PIPELINE_DP, str(folder / "peer.npy"), json.dumps(sizes)]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    plan = CountPlan(queries()[:columns], tuple(sizes))
    noise = Noise(bytes(32))

    def ours() -> None:
        scales = plan_measurement(plan.table_cells, mechanism="gaussian", epsilon=1, delta=1e-9, adjacency="add/remove")
        for number, (counts, scale) in enumerate(zip(histograms(codes, plan), scales.scales, strict=True)):
            add_noise(counts, mechanism="gaussian", scale=scale, noise=noise, name=f"{number}")

    seconds = best(ours)
    return {
        "what": f"{columns} one-way, beside PipelineDP (local), rows in memory",
        "rows": rows,
        "pipeline_dp_seconds": measured["seconds"],
        "dpdist_seconds": seconds,
        "ratio": measured["seconds"] / seconds,
    }


def main() -> None:
    """Print the measurements and, with ``--json``, write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the table on disk")
    parser.add_argument("--folder", type=Path, help="keep the table here, or use the one that is there")
    parser.add_argument("--pipeline-dp", metavar="PYTHON", help="interpreter that has pipeline_dp")
    parser.add_argument("--pipeline-rows", type=int, default=1_000_000)
    parser.add_argument("--pipeline-columns", type=int, default=8)
    arguments = parser.parse_args()
    records = kernels(2_000_000)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.glob("*.parquet")):
            write_table(folder, arguments.rows)
        records.append(whole(folder, arguments.rows, one_way=True))
        records.append(whole(folder, arguments.rows, one_way=False))
        if arguments.pipeline_dp:
            records.append(
                peer(arguments.pipeline_dp, Path(temporary), arguments.pipeline_rows, arguments.pipeline_columns)
            )
    for record in records:
        print(
            "  ".join(
                f"{name} {value:,.6g}"
                if isinstance(value, float)
                else f"{value}"
                if name == "what"
                else f"{name} {value}"
                for name, value in record.items()
            )
        )
    if arguments.json:
        machine = {"machine": platform.machine(), "python": sys.version.split()[0], "numpy": np.__version__}
        arguments.json.write_text(json.dumps({**machine, "histogram": records}, indent=2) + "\n")


if __name__ == "__main__":
    main()
