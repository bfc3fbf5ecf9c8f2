"""Means of numbers that are released in bins: drawn uniformly in them, and as the counts of their neighbours say.

    python tests/benchmarks/bench_bins.py --json bench/bins.json [--tables adult] [--epsilon 1] [--keys 5]

Each table is synthesised with the defaults (delta 1e-9) and as many records as it has. Shown is by how much the mean
of a number in the release differs from that in the table, in percent of it: of the codes alone (as if the mean of each
bin were known), with numbers drawn uniformly in their bins, and with the release's own tilts; means over the keys.
Households have a made-up spec with the bins of a questionnaire. Keys are seeded, **not private**.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from bench_synthesis import FILES, spec_of
from harness import DATA, ROOT, argument_parser, write_rows

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.publish.parts import decode
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema

ROWS = 60_000
HOUSEHOLDS = {
    "HINCP": [-60_000, 0, 1, 10_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 5_000_000],
    "VALP": [0, 50_000, 100_000, 200_000, 300_000, 500_000, 1_000_000, 10_000_000],
    "RNTP": [0, 500, 1_000, 1_500, 2_000, 3_000, 10_000],
}
"""Ends of bins."""


def table_of(name: str) -> tuple[Codes, pd.DataFrame, ReleaseSpec]:
    """Codes and numbers of a table, and a spec with its schema."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        if name == "adult":
            spec = load(ROOT / "deploy/releases/adult.yaml", {"data.path": [str(DATA / file) for file in FILES[name]]})
            about: dict[str, Any] = {"names": spec.table.names, "skipinitialspace": True, "comment": "|"}
            frame = pd.concat([pd.read_csv(DATA / file, **about) for file in FILES[name]], ignore_index=True)
        else:
            frame = pd.read_parquet(DATA / f"acs2024_{name}.parquet").sample(ROWS, random_state=0)
            frame.to_parquet(path, index=False)
            spec = load(ROOT / "deploy/releases/acs2024-persons.yaml", {"data.path": str(path)})
        if name == "households":
            none = {"missing": {"category": "none"}}
            attributes: list[dict[str, Any]] = [
                {"name": column, "kind": "integer", "bounds": [ends[0], ends[-1]], "bins": {"edges": ends[:-1]}} | none
                for column, ends in HOUSEHOLDS.items()
            ]
            for column in ("STATE", "NP", "TEN", "BLD"):
                values = sorted(map(int, frame[column].dropna().unique()))
                attributes.append({"name": column, "kind": "categorical", "values": values} | none)
            spec = spec.model_copy(update={"table": Schema.model_validate({"attributes": attributes})})
        codes: Codes = run_pass(open_table(table_source(spec), spec.table), gather_operator())[0]
        return codes, frame, spec


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each number with bins."""
    codes, frame, shipped = table_of(name)
    schema = shipped.table
    binned = [k for k, a in enumerate(schema.attributes) if a.is_binned]
    for epsilon in options.epsilon:
        plan = make_plan(spec_of(shipped, "synthesis", epsilon=epsilon, records=len(codes[0])))
        errors: dict[int, list[list[float]]] = {k: [] for k in binned}
        for seed in range(options.keys):
            noise = Noise(np.random.default_rng([seed, 8]).bytes(32))
            made = rehearse(plan, stages_of(plan), codes, key=key_from(noise))
            released = released_codes(made)
            sides = [decode(schema, released, form=form, noise=noise) for form in (plan.form, made.form)]
            for k in binned:
                attribute = schema.attributes[k]
                true = np.clip(frame[attribute.name].to_numpy(np.float64), *(attribute.bounds or (0, 0)))
                ours = [np.nanmean(table[attribute.name].to_pandas().to_numpy(np.float64)) for table in sides]
                with_missing = np.where(np.isnan(true), 0, true)
                number, inside = (
                    np.bincount(codes[k], of, minlength=attribute.cardinality) for of in (None, with_missing)
                )
                means = inside / np.maximum(number, 1)
                counted = released[k] < len(attribute.bin_edges)
                ours.insert(0, means[released[k][counted]].mean())
                errors[k].append([100 * (mean / np.nanmean(true) - 1) for mean in ours])
        for k, found in errors.items():
            codes_alone, uniform, tilted = np.mean(found, axis=0).round(2).tolist()
            about = {"table": name, "rows": len(codes[0]), "epsilon": epsilon, "number": schema.names[k]}
            yield about | {"codes": codes_alone, "uniform": uniform, "tilted": tilted}


def main() -> None:
    parser, every = argument_parser(__doc__), ["adult", "persons", "households"]
    parser.add_argument("--tables", nargs="*", choices=every, default=every)
    parser.add_argument("--epsilon", nargs="*", type=float, default=[1])
    parser.add_argument("--keys", type=int, default=5)
    options = parser.parse_args()
    write_rows(options, (row for name in options.tables for row in measure(name, options)))


if __name__ == "__main__":
    main()
