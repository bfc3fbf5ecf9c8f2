"""Population totals of the ACS 2024 persons from releases whose records count by their weights, and once each.

    python tests/benchmarks/bench_weights.py --json bench/weights.json [--keys 3] [--epsilon 1]

Cells are states by single years of age and sex (1,200). *Error* is the sum of the cells' absolute errors, in percent of
the population; *median* that of the relative errors of cells above 0.1 %; *states* the largest relative error of a
state. Records that count once are scaled to the public total. Delta is 1e-9.
"""

import json
import resource
import tempfile
from typing import Any

import numpy as np
import pandas as pd
from harness import DATA, ROOT, argument_parser, write

import dpdist
from dpdist.spec.reader import load

TABLE = DATA / "acs2024_persons.parquet"
SPEC = ROOT / "deploy" / "releases" / "acs2024-persons.yaml"
CELL = ["STATE", "AGEP", "SEX"]
TOTAL = 39_859_108
"""Of the weights, which the Census Bureau publishes."""


def settings(kind: str, at_most: int | None, epsilon: float) -> dict[str, Any]:
    """A release of all attributes, or of the totals alone."""
    spec = load(SPEC, {"data.path": str(TABLE)})
    tree = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    tree["privacy"] = {"epsilon": epsilon, "delta": 1e-9}
    if kind == "histogram":
        del tree["synthesis"]
        tree |= {"kind": kind, "histograms": [{"columns": CELL}]}
        kept = [a for a in tree["schema"]["attributes"] if a["name"] in CELL]
        tree["schema"] = {"attributes": kept}
    if at_most is not None:
        tree["weight"] = {"by": "PWGTP", "at_most": at_most, "above": "clip", "total": TOTAL}
    return tree


def cells(release: Any, kind: str) -> pd.Series:
    """What a release counts in each cell."""
    frame = release.to_pandas()
    if kind == "histogram":
        index = frame["cell"].astype(str).str.split(" \\| ", regex=True, expand=True).astype(int)
        return pd.Series(frame["value"].to_numpy(), pd.MultiIndex.from_frame(index.set_axis(CELL, axis=1)))
    return frame.astype({name: int for name in CELL}).groupby(CELL).size()


def errors(found: pd.Series, truth: pd.Series) -> dict[str, float]:
    """How far totals are off."""
    ours, real = found.reindex(truth.index).fillna(0.0).to_numpy(float), truth.to_numpy(float)
    large = real > 1e-3 * real.sum()
    off = (ours - real) / np.maximum(real, 1)
    states = pd.Series(ours, truth.index).groupby("STATE").sum() / truth.groupby("STATE").sum() - 1
    return {
        "error": round(100 * float(np.abs(ours - real).sum() / real.sum()), 2),
        "median": round(100 * float(np.median(np.abs(off[large]))), 2),
        "states": round(100 * float(states.abs().max()), 2),
        "total": round(100 * float(ours.sum() / real.sum() - 1), 2),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    frame = pd.read_parquet(TABLE, columns=[*CELL, "PWGTP"])
    truth = frame.groupby(CELL)["PWGTP"].sum()
    index = pd.MultiIndex.from_product([sorted(set(frame[name])) for name in CELL], names=CELL)
    truth, rows = truth.reindex(index).fillna(0), []
    with tempfile.TemporaryDirectory() as folder:
        ledger = dpdist.Ledger(f"sqlite:///{folder}/ledger.db")
        ledger.create("acs-persons", epsilon=1000, delta=1e-4)
        for kind in ("histogram", "synthesis"):
            for at_most in (None, 200, 400, 800, 2203):
                for key in range(options.keys):
                    tree = settings(kind, at_most, options.epsilon)
                    tree |= {"name": f"{kind}-{at_most}-{key}", "work": f"{folder}/work"}
                    tree["output"] = {"path": f"{folder}/{tree['name']}"}
                    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
                    release = dpdist.release(tree, ledger=ledger)
                    cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
                    found = cells(release, kind)
                    if kind == "synthesis":
                        n = len(release.to_pandas())
                        total = release.manifest.parameters["accuracy"]["records"] if at_most else TOTAL
                        found = found * (total / n)
                    elif at_most is None:
                        found = found * (TOTAL / len(frame))
                    row = {"kind": kind, "at_most": at_most, "key": key, "cpu": round(cpu, 1)} | errors(found, truth)
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    write(options, rows)


if __name__ == "__main__":
    main()
