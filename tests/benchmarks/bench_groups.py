"""Means within groups of a synthesis: by the size of the group, with and without a declared workload.

    python tests/benchmarks/bench_groups.py --json bench/groups.json [--epsilon 0.5 1 4] [--keys 2] [--rows 390000]

60,000 persons (`--rows`) of the ACS 2024 with 14 attributes, PUMA (226 areas) among them. For each PUMA, race and
citizenship the means of age, schooling and hours in the release are compared with the table's: the root of the mean
square of the differences, in deviations of the number (*years*: of ages alone, in years), for groups by their size;
missing values are left out. *Sampling* is the error of a simple random sample of the group's size, *spread* that of the
mean of all records instead. The workload says
that everything by PUMA matters twice as much (`model.priorities`). Keys are seeded, **not private**.
"""

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from bench_coverage import PERSONS
from bench_synthesis import released, spec_of
from harness import DATA, argument_parser, write

from dpdist.families.base.registry import make_plan
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema
from dpdist.spec.validation import change

ROWS = 60_000
GROUPS, NUMBERS = {"PUMA": ("PUMA",), "others": ("RAC1P", "CIT")}, ("AGEP", "SCHL", "WKHP")
SIZES = (100, 300, 1_000, 5_000, ROWS)
WORKLOAD = [{"attributes": ["PUMA"], "weight": 2}]


def table(rows: int) -> tuple[Codes, Schema, list[np.ndarray]]:
    """Codes, schema, and the number of each code (NaN where it is missing)."""
    names = ["PUMA", *PERSONS]
    drawn = pd.read_parquet(DATA / "acs2024_persons.parquet", columns=names).sample(rows, random_state=2)
    codes, attributes, numbers = [], [], []
    for name in names:
        values = sorted(map(int, drawn[name].dropna().unique()))
        missing = {"missing": {"category": "missing"}} if drawn[name].isna().any() else {}
        codes.append(np.searchsorted(values, drawn[name].fillna(2**31)).astype(np.uint8))
        attributes.append({"name": name, "kind": "categorical", "values": values} | missing)
        numbers.append(np.array([*values, *[np.nan] * len(missing)], np.float64))
    return codes, Schema.model_validate({"attributes": attributes}), numbers


def errors(
    codes: Codes, released: Codes, schema: Schema, numbers: list[np.ndarray], groups: tuple[str, ...]
) -> list[tuple[int, float, float, float, float]]:
    """For each group and number: its size, the error of its mean, that of a sample, that of the mean of all, and the
    first in the number's unit where that is years.
    """
    found, place = [], schema.names.index
    for group in map(place, groups):
        for number in map(place, NUMBERS):
            sums = []
            for of in (codes, released):
                values = numbers[number][of[number]]
                known = ~np.isnan(values)
                size = len(schema.attributes[group].values or ())
                counts = np.bincount(of[group][known], minlength=size)
                sums.append((counts, np.bincount(of[group][known], weights=values[known], minlength=size)))
            (n, total), (ours, sum_of_ours) = sums
            deviation = float(np.nanstd(numbers[number][codes[number]]))
            overall = float(sum_of_ours.sum() / ours.sum())
            mean = np.divide(sum_of_ours, ours, out=np.full(len(ours), overall), where=ours > 0)
            for k in np.flatnonzero(n >= SIZES[0]):
                error, away = mean[k] - total[k] / n[k], total.sum() / n.sum() - total[k] / n[k]
                years = error if schema.names[number] == "AGEP" else np.nan
                found.append((int(n[k]), error / deviation, 1 / np.sqrt(n[k]), away / deviation, years))
    return found


def main() -> None:
    options = argument_parser(__doc__)
    options.add_argument("--epsilon", nargs="*", type=float, default=[0.5, 1, 4])
    options.add_argument("--keys", type=int, default=2)
    options.add_argument("--rows", type=int, default=ROWS)
    asked = options.parse_args()
    codes, schema, numbers = table(asked.rows)
    rows: list[dict[str, Any]] = []
    for epsilon in asked.epsilon:
        spec = spec_of(SimpleNamespace(table=schema), "synthesis", epsilon=epsilon, records=asked.rows)
        for name, priorities in (("default", []), ("workload", WORKLOAD)):
            plan = make_plan(change(spec, {"model.priorities": priorities}))
            made = [released(plan, codes, seed, 9) for seed in range(asked.keys)]
            for by, groups in GROUPS.items():
                found = np.array([one for of in made for one in errors(codes, of, schema, numbers, groups)])
                for low, high in pairwise(SIZES):
                    some = found[(found[:, 0] >= low) & (found[:, 0] < high)]
                    if len(some):
                        error, sampling, spread, years = np.sqrt(np.nanmean(some[:, 1:] ** 2, axis=0))
                        row = {"epsilon": epsilon, "of": name, "groups": by, "least": low, "most": high}
                        rows.append(row | {"error": error, "sampling": sampling, "spread": spread, "years": years})
                        print(json.dumps(rows[-1]), flush=True)
    write(asked, rows)


if __name__ == "__main__":
    main()
