"""A panel of 26 tables: distances of syntheses with defaults, at epsilon 1, beside those of another version.

    python tests/benchmarks/bench_panel.py --json bench/panel.json [--beside bench/earlier.json] [--tables Adult]

Tables and slices of the public data: by state, in halves, and samples of 60,000 to 1,000 records; others than by their
shipped schemas have numbers of many values in 16 groups of equal size. Tables of at most 20,000 records have three
times as many keys. Distances are those of `bench_synthesis`, *ratio* is theirs to the ones of ``--beside`` (the JSON of
this script in another version); each with its standard error. Keys are seeded, **not private**.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from bench_synthesis import Distances, released, spec_of, table_of, without
from harness import DATA, argument_parser, write_rows

from dpdist.families.base.registry import make_plan
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

SMALL = 20_000
Table = tuple[Codes, Schema]
table_of = cache(table_of)


def shipped(name: str, rows: int | slice | None = None, leave: tuple[str, ...] = (), **at: int) -> Table:
    """A table in its shipped coding: all of it, some rows or so many at random, without some attributes, or where an
    attribute has a code.
    """
    codes, _, spec = table_of(name)
    names = spec.table.names
    chosen = np.random.default_rng(3).permutation(len(codes[0]))
    for attribute, code in at.items():
        chosen = chosen[codes[names.index(attribute)][chosen] == code]
    chosen = np.sort(chosen[rows if isinstance(rows, slice) else slice(rows)])
    kept, schema = without(spec.table, (*leave, *at))
    return [codes[i][chosen] for i in kept], schema


def raw(file: str, rows: int | None = None, columns: list[str] | None = None, leave: tuple[str, ...] = ()) -> Table:
    """A file coded by its values, of which a null is one."""
    frame = pd.read_parquet(DATA / file) if file.endswith("parquet") else pd.read_csv(DATA / file)
    frame = frame[columns or [name for name in frame if name not in leave]]
    codes, attributes = [], []
    for name in frame:
        column, ordered = frame[name], pd.api.types.is_numeric_dtype(frame[name]) and frame[name].notna().all()
        if column.nunique() > 120:
            column = pd.qcut(column, 16, labels=False, duplicates="drop")
        codes.append(pd.factorize(column, sort=True, use_na_sentinel=False)[0].astype(np.uint8))
        last = int(codes[-1].max())
        kind = {"kind": "categorical", "values": list(range(last + 1))}
        attributes.append({"name": name} | ({"kind": "integer", "bounds": [0, last]} if ordered else kind))
    chosen = np.random.default_rng(3).permutation(len(frame))[:rows]
    return [code[chosen] for code in codes], Schema.model_validate({"attributes": attributes})


NARROW = ["STATE", "AGEP", "SEX", "RAC1P", "CIT", "MAR", "SCHL", "ESR", "COW", "WKHP", "DIS", "HICOV", "MIL"]
PERSONS, HOUSEHOLDS = "acs2024_persons.parquet", "acs2024_households.parquet"
TABLES: dict[str, Callable[[], Table]] = {
    "Adult": lambda: shipped("adult"),
    "Adult, 14 attributes": lambda: shipped("adult", leave=("fnlwgt",)),
    "Adult, one half": lambda: shipped("adult", slice(None, None, 2)),
    "Adult, other half": lambda: shipped("adult", slice(1, None, 2)),
    "Adult, 5,000": lambda: shipped("adult", 5_000),
    "Adult, 1,000": lambda: shipped("adult", 1_000),
    "ACS 2013": lambda: shipped("acs2013"),
    "ACS 2013, 20,000": lambda: shipped("acs2013", 20_000),
    "ACS 2013, 5,000": lambda: shipped("acs2013", 5_000),
    "ACS 2013, 1,000": lambda: shipped("acs2013", 1_000),
    "ACS 2024": lambda: shipped("acs2024"),
    "ACS 2024, 100,000": lambda: shipped("acs2024", 100_000),
    "ACS 2024, state 10": lambda: shipped("acs2024", state=10),
    "ACS 2024, 5,000": lambda: shipped("acs2024", 5_000),
    "persons × 22, 60,000": lambda: shipped("acs2024-persons", 60_000),
    "persons × 22, 8,000": lambda: shipped("acs2024-persons", 8_000),
    "persons × 22, 1,000": lambda: shipped("acs2024-persons", 1_000),
    "persons × 13, 60,000": lambda: raw(PERSONS, 60_000, NARROW),
    "persons × 13, 5,000": lambda: raw(PERSONS, 5_000, NARROW),
    "households": lambda: raw(HOUSEHOLDS, leave=("household", "PUMA")),
    "households, 5,000": lambda: raw(HOUSEHOLDS, 5_000, leave=("household", "PUMA")),
    "insurance": lambda: raw("insurance.csv"),
    "California housing": lambda: raw("california_housing.csv"),
    "census": lambda: raw("census_1080.csv"),
    "Tarragona": lambda: raw("tarragona.csv"),
    "EIA": lambda: raw("eia.csv", leave=("UTILITYID", "UTILNAME", "YEAR")),
}


def measure(name: str, options: argparse.Namespace, earlier: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Means over the keys, their standard errors, and ratios."""
    codes, schema = TABLES[name]()
    records, rows = len(codes[0]), []
    distances = Distances(codes, schema.cardinalities)
    plan = make_plan(spec_of(SimpleNamespace(table=schema), "synthesis", epsilon=options.epsilon, records=records))
    cpu = time.process_time()
    for seed in range(options.keys * (3 if records <= SMALL else 1)):
        of = distances.of(released(plan, codes, seed, 5))
        rows.append([of[f"tvd_{k}"] for k in (1, 2, 3)])
    found = {"table": name, "records": records, "attributes": len(codes), "keys": len(rows)}
    found["cpu"] = round((time.process_time() - cpu) / len(rows), 1)
    means, errors = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5
    for k, (mean, error) in enumerate(zip(means.tolist(), errors.tolist(), strict=True), 1):
        found |= {f"tvd_{k}": round(mean, 5), f"error_{k}": round(error, 5)}
        if name in earlier:
            before, its = (earlier[name][f"{of}_{k}"] for of in ("tvd", "error"))
            spread = mean / before * float(np.hypot(error / mean, its / before))
            found[f"ratio_{k}"] = f"{mean / before:.3f} ± {spread:.3f}"
    return found


def measured(options: argparse.Namespace, earlier: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row a table, and the geometric means of the ratios."""
    rows = []
    for name in options.tables:
        rows.append(measure(name, options, earlier))
        yield rows[-1]
    ratios = {
        f"ratio_{k}": [float(row[f"ratio_{k}"].split()[0]) for row in rows if f"ratio_{k}" in row] for k in (1, 2, 3)
    }
    yield {"table": "geometric mean"} | {k: f"{np.exp(np.mean(np.log(of))):.3f}" for k, of in ratios.items() if of}


def rows_of(path: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file of this script, by their tables."""
    if path:
        table = json.loads(path.read_text())["tables"]["rows"]
        yield from ((row[0], dict(zip(table["columns"], row, strict=True))) for row in table["rows"])


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--beside", type=Path, help="results of another version")
    options = parser.parse_args()
    write_rows(options, measured(options, dict(rows_of(options.beside))))


if __name__ == "__main__":
    main()
