"""Rows a second through the distributed table on ACS 2024: reading, encoding, the coin, counting, whole passes.

Run ``python tests/benchmarks/bench_counting.py --data ../shared/data --json counting.json``. The table is written
again and again into one Parquet and one CSV file until they have the rows asked for. Rates are of one core: wall
clock, and CPU time where other work shares the machine. ``--cluster N`` adds a pass on N worker processes, with the
peak memory of a worker. ``--peers`` adds DuckDB and Polars: the counts of all pairs of columns of the Parquet file, on
one thread, each in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from harness import argument_parser, write

from dpdist.cluster.cluster import Cluster
from dpdist.data.count import pair_counts
from dpdist.data.encode import TableEncoder
from dpdist.data.operators import Operator, Split, pair_counts_operator, split_labels
from dpdist.data.records import BATCH_ROWS
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.families.base.graph import encoded, run_pass, table_pass
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.spec.schema import Schema

SCHEMA = Path(__file__).parents[2] / "deploy" / "releases" / "schemas" / "acs2024.yaml"
DASK = Cluster()
SPLIT = Split(KeyRef.fixed("00" * 32), (Fraction(1, 10), Fraction(2, 5), Fraction(1, 2)))


PEERS = {
    "DuckDB": """
import duckdb, itertools, sys
duckdb.sql("set threads = 1")
pairs = ", ".join(f'("{a}", "{b}")' for a, b in itertools.combinations(sys.argv[2:], 2))
duckdb.sql(f"select count(*) as n from '{sys.argv[1]}' group by grouping sets ({pairs})").fetchall()
""",
    "Polars": """
import itertools, polars, sys
table = polars.scan_parquet(sys.argv[1])
polars.collect_all([table.group_by(pair).len() for pair in itertools.combinations(sys.argv[2:], 2)])
""",
    "dpdist": """
import sys
from dpdist.data.operators import pair_counts_operator
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.spec.schema import Schema
schema = Schema.from_yaml(sys.argv[2])
run_pass(open_table(TableSource((sys.argv[1],)), schema), pair_counts_operator(schema.cardinalities))
""",
}
"""Programs that count all pairs of columns of a file."""


def nothing(codes: list[np.ndarray]) -> int:
    """A summary that costs nothing."""
    return 0


def add(a: int, b: int) -> int:
    """Sum of two summaries."""
    return a + b


READ_ONLY = Operator(name="nothing", chunk=nothing, combine=add)


def rate(rows: int, action: Callable[[], object], repeats: int = 3) -> dict[str, float]:
    """Best rows a second over some repeats, by wall clock and by CPU time."""
    wall, cpu = [], []
    for _ in range(repeats):
        begin = time.perf_counter(), time.process_time()
        action()
        wall.append(time.perf_counter() - begin[0])
        cpu.append(time.process_time() - begin[1])
    return {"rows_per_second": rows / min(wall), "rows_per_cpu_second": rows / min(cpu)}


def measure_kernels(schema: Schema, table: pa.Table) -> dict[str, Any]:
    """The pure functions on batches in memory."""
    batches = table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
    rows = table.num_rows
    encoder = TableEncoder(schema)
    codes = encoder.encode(table.combine_chunks().to_batches()[0]).codes
    noise = load_noise(SPLIT.key)

    def pairs_one_by_one() -> None:
        for start in range(0, rows, BATCH_ROWS):
            batch = [column[start : start + BATCH_ROWS] for column in codes]
            for i, j in combinations(range(len(batch)), 2):
                index = batch[i].astype(np.int64) * schema.cardinalities[j] + batch[j]
                np.bincount(index, minlength=schema.cardinalities[i] * schema.cardinalities[j])

    return {
        "encode": rate(rows, lambda: [encoder.encode(batch) for batch in batches]),
        "coin": rate(rows, lambda: split_labels(noise, file=0, row_start=0, count=rows, shares=SPLIT.shares)),
        "pair counts": rate(rows, lambda: pair_counts(codes, schema.cardinalities)),
        "pair counts, a bincount per pair": rate(rows, pairs_one_by_one),
    }


def measure_passes(schema: Schema, path: Path) -> dict[str, Any]:
    """Passes over a file in this process."""
    table = open_table(TableSource((str(path),)), schema)
    rows = table.rows
    pairs = pair_counts_operator(schema.cardinalities)
    kind = path.suffix[1:]
    result = {
        f"{kind}: read and encode": rate(rows, lambda: run_pass(table, READ_ONLY)),
        f"{kind}: read, encode, split, select a tenth": rate(
            rows, lambda: run_pass(table, READ_ONLY, split=SPLIT, label=0)
        ),
        f"{kind}: whole pass, pairs of a tenth": rate(rows, lambda: run_pass(table, pairs, split=SPLIT, label=0)),
        f"{kind}: whole pass, pairs of all": rate(rows, lambda: run_pass(table, pairs)),
    }
    if kind == "csv":
        result[f"{kind}: locate rows"] = rate(rows, lambda: open_table(TableSource((str(path),)), schema))
    return result


def measure_cluster(schema: Schema, path: Path, workers: int) -> dict[str, Any]:
    """Passes over a file on worker processes."""
    from distributed import Client, LocalCluster

    table = open_table(TableSource((str(path),)), schema)
    rows = table.rows
    pairs = pair_counts_operator(schema.cardinalities)
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):

        def run(graph: Any) -> None:
            client.compute(graph).result()

        name = f"parquet, {workers} processes"
        result = {
            f"{name}: whole pass, pairs of a tenth": rate(
                rows, lambda: run(table_pass(DASK, table, pairs, name="pass", split=SPLIT, label=0)), 2
            )
        }
        resident = max(client.run(_peak_memory).values())
        begin = time.perf_counter()
        codes = encoded(DASK, table, name="cache", split=SPLIT)
        codes = replace(codes, partitions=client.persist(codes.partitions))
        client.gather(client.compute([table_pass(DASK, codes, READ_ONLY, name="wait")]))
        result[f"{name}: encode into memory"] = {"rows_per_second": rows / (time.perf_counter() - begin)}
        result[f"{name}: pass over encoded partitions"] = rate(
            rows, lambda: run(table_pass(DASK, codes, pairs, name="later", split=SPLIT, label=0)), 2
        )
        for record in result.values():
            record.pop("rows_per_cpu_second", None)
        return result | {"peak_worker_bytes": resident, "partitions": len(table.partitions)}


def measure_peers(schema: Schema, path: Path, rows: int) -> dict[str, Any]:
    """All pairs of columns counted by each program in a process of its own, on one thread, process start included."""
    names = [attribute.name for attribute in schema.attributes]
    environment = os.environ | {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCHEMA.parents[3])}
    result = {}
    for name, program in PEERS.items():
        arguments = [str(SCHEMA)] if name == "dpdist" else names
        command = [sys.executable, "-c", program, str(path), *arguments]
        begin, before = time.perf_counter(), os.times()
        subprocess.run(command, check=True, env=environment)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        wall = time.perf_counter() - begin
        result[f"all pairs by {name}"] = {"rows_per_second": rows / wall, "rows_per_cpu_second": rows / cpu}
    return result


def _peak_memory() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print the rates and, with ``--json``, write them."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of acs2024_workers.parquet")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the Parquet file (CSV: a fifth)")
    parser.add_argument("--cluster", type=int, default=0, help="also measure on this many worker processes")
    parser.add_argument("--peers", action="store_true", help="also count by DuckDB and by Polars")
    arguments = parser.parse_args()
    schema = Schema.from_yaml(SCHEMA)
    once = pq.read_table(arguments.data / "acs2024_workers.parquet")
    results = measure_kernels(schema, once)
    with tempfile.TemporaryDirectory() as folder:
        parquet, text = Path(folder) / "acs.parquet", Path(folder) / "acs.csv"
        with pq.ParquetWriter(parquet, once.schema) as writer:
            for start in range(0, arguments.rows, once.num_rows):
                writer.write_table(once.slice(0, arguments.rows - start))
        pa.csv.write_csv(once.slice(0, arguments.rows // 5), text)
        results |= measure_passes(schema, parquet) | measure_passes(schema, text)
        if arguments.peers:
            results |= measure_peers(schema, parquet, arguments.rows)
        if arguments.cluster:
            results |= measure_cluster(schema, parquet, arguments.cluster)
    for name, record in results.items():
        if isinstance(record, dict):
            shown = ", ".join(f"{value / 1e6:7.1f} M {unit.replace('_', ' ')}" for unit, value in record.items())
            print(f"{name:<58} {shown}")
        else:
            print(f"{name:<58} {record}")
    write(arguments, results)


if __name__ == "__main__":
    main()
