"""Wide tables: what records of 22 to 200 attributes cost, whole processes, and how close its pairs are.

    python tests/benchmarks/bench_wide.py --json bench/wide.json [--attributes 24 60 200] [--kind plausible-deniability]

Made-up tables are random Bayesian networks (`wide_tables.made_up`), 100,000 rows; *persons* is the ACS 2024 file with
22 attributes, nulls and lists of 226 areas, 266 industries and 531 occupations. Defaults at (1, 1e-9), a synthesis or
a network. Distances are means of total variation over all pairs, and over the pairs that are edges of the network.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from harness import DATA, argument_parser, write_rows
from wide_tables import PERSONS, made_up, schema_of_codes, schema_of_persons, write_codes

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.privacy.arrays import Codes
from dpdist.spec.reader import load

NETWORK: dict[str, Any] = {
    "kind": "plausible-deniability",
    "split": {"structure": "3/20", "parameters": "17/20", "seeds": 0},
}


def spec_of(schema: dict[str, Any], path: Path, records: int, options: argparse.Namespace) -> dict[str, Any]:
    """A release with defaults; of a network with every attribute resampled where it is asked for."""
    budget = {"epsilon": options.epsilon, "delta": 1e-9}
    network = options.kind == NETWORK["kind"]
    return {
        "kind": "synthesis",
        "name": "wide",
        "dataset": "wide",
        "schema": schema,
        "data": {"path": str(path), "minimum_records": round(0.9 * records), "extra_columns": "ignore"},
        "output": {"path": "release", "values": "codes", "bins": "label"},
        "privacy": {"model": budget} if network else budget,
        "synthesis": {"records": records},
    } | (NETWORK if network else {})


def released(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds, CPU seconds and largest process of a release, and its codes."""
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    dpdist = [sys.executable, "-m", "dpdist"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # modules are compiled once
    create = [*dpdist, "ledger", "create", "wide", "--epsilon", "30", "--delta", "1e-6"]
    subprocess.run(create, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    release = [*dpdist, "release", "spec.yaml", "--json"]
    subprocess.run(release, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "cpu": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_mb": round(after.ru_maxrss / 1024),
    }


def codes_of(spec: Path) -> tuple[Codes, tuple[int, ...]]:
    """The codes of the table of a spec."""
    loaded = load(spec)
    codes, _ = run_pass(open_table(table_source(loaded), loaded.table), gather_operator())
    return codes, loaded.table.cardinalities


def distances(truth: Codes, made: Codes, sizes: tuple[int, ...], edges: list[tuple[int, int]]) -> dict[str, float]:
    """Mean distances of attributes, of all pairs (1,500 at most), and of the edges' pairs."""

    def distance(attributes: tuple[int, ...]) -> float:
        shares = []
        for codes in (truth, made):
            index = np.zeros(len(codes[0]), np.int64)
            for i in attributes:
                index = index * sizes[i] + codes[i]
            shares.append(np.bincount(index, minlength=int(np.prod([sizes[i] for i in attributes]))) / len(index))
        return float(np.abs(shares[0] - shares[1]).sum() / 2)

    pairs = list(combinations(range(len(sizes)), 2))
    chosen = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[:1500]]
    found = {"tvd_1": np.mean([distance((i,)) for i in range(len(sizes))]), "tvd_2": np.mean([*map(distance, chosen)])}
    if edges:
        found["tvd_edges"] = np.mean([*map(distance, edges)])
    return {name: round(float(value), 4) for name, value in found.items()}


def measure(attributes: int | None, options: argparse.Namespace) -> dict[str, Any]:
    """One table; the persons where `attributes` is None."""
    from dpdist.publish.verify import read_release

    with tempfile.TemporaryDirectory() as name:
        folder, edges = Path(name), []
        if attributes is None:
            schema, path, rows = schema_of_persons(DATA / PERSONS), DATA / PERSONS, 398_556
        else:
            codes, sizes, edges = made_up(attributes, options.rows)
            schema, path, rows = schema_of_codes(sizes), folder / "table.parquet", options.rows
            write_codes(codes, path)
        result = released(spec_of(schema, path, rows, options), folder)
        truth, sizes = codes_of(folder / "spec.yaml")
        table = read_release(str(folder / "release"))
        made = [table[entry["name"]].to_numpy() for entry in schema["attributes"]]
        of = {"table": "persons" if attributes is None else f"{attributes} attributes", "epsilon": options.epsilon}
        return of | result | distances(truth, made, sizes, edges)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--attributes", nargs="*", type=int, default=[24, 60, 200])
    parser.add_argument("--persons", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kind", choices=["synthesis", NETWORK["kind"]], default="synthesis")
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    wanted = [*([None] if options.persons else []), *options.attributes]
    write_rows(options, (measure(attributes, options) for attributes in wanted))


if __name__ == "__main__":
    main()
