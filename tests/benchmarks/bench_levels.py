"""Wide code lists: occupation by area by sex of the ACS 2024 persons, with a public hierarchy of codes and without.

    python tests/benchmarks/bench_levels.py --json bench/levels.json [--keys 3]

531 occupations (26 groups by ranges of their codes), 303 areas (in 6 states), sex, and six other attributes, by the
default synthesis. *Distances* are total variation to the table. *Coarse codes* releases groups and states instead, and
gives each value of a group the same share. *60,000 codes* is a made-up table with a list of 60,000 codes beside one of
500, whose pair table does not fit a worker. Epsilon is 1, delta 1e-9.
"""

import json
import resource
import tempfile
from typing import Any

import numpy as np
import pandas as pd
from harness import DATA, argument_parser, write

import dpdist

TABLE = DATA / "acs2024_persons.parquet"
CELL = ["OCCP", "AREA", "SEX"]
OTHERS = ["AGEP", "RAC1P", "MAR", "ESR", "COW", "DIS"]
GROUPS = [0, 10, 500, 800, 1005, 1305, 1600, 2001, 2100, 2205, 2600, 3000, 3601, 3700, 4000, 4200, 4330, 4700, 5000]
GROUPS += [6005, 6200, 6800, 7000, 7700, 9005, 9800, 9920]
"""Where the groups of the Census Bureau's occupation codes start; 0 is no occupation."""


def table() -> pd.DataFrame:
    """The persons, with areas that are unique among states."""
    frame = pd.read_parquet(TABLE, columns=["STATE", "PUMA", "OCCP", "SEX", *OTHERS])
    frame["AREA"] = frame.pop("STATE") * 100_000 + frame.pop("PUMA")
    return frame.fillna(0).astype(np.int64)


def attribute(name: str, values: np.ndarray, **more: Any) -> dict[str, Any]:
    """An attribute with all values of a column, which are public codes."""
    return {"name": name, "kind": "categorical", "values": sorted(set(values.tolist())), **more}


def schema(frame: pd.DataFrame, *, levels: bool) -> dict[str, Any]:
    """Of the table."""
    states = [int(state) * 100_000 for state in sorted(set(frame["AREA"] // 100_000))]
    of = {"OCCP": {"levels": [{"edges": GROUPS}]}, "AREA": {"levels": [{"edges": states}]}} if levels else {}
    return {"attributes": [attribute(name, frame[name].to_numpy(), **of.get(name, {})) for name in frame]}


def coarsened(frame: pd.DataFrame) -> pd.DataFrame:
    """Groups of occupations and states in the places of codes and areas."""
    groups = np.array(GROUPS)[np.searchsorted(GROUPS, frame["OCCP"], side="right") - 1]
    return frame.assign(OCCP=groups, AREA=frame["AREA"] // 100_000)


def distance(found: pd.Series, truth: pd.Series) -> float:
    """Total variation of two tables of shares."""
    return round(float(found.sub(truth, fill_value=0).abs().sum() / 2), 4)


def shares(frame: pd.DataFrame, names: list[str]) -> pd.Series:
    """Of each cell."""
    return frame.astype(np.int64).groupby(names).size() / len(frame)


def spread(frame: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """A value of its group for each record, each as likely."""
    rng = np.random.default_rng(0)
    found = frame.astype(np.int64)
    for name, of in (("OCCP", coarsened(like)["OCCP"]), ("AREA", like["AREA"] // 100_000)):
        values = like.groupby(of)[name].unique()
        found[name] = [rng.choice(values[group]) for group in found[name]]
    return found


def release(frame: pd.DataFrame, of: dict[str, Any], name: str, ledger: Any, folder: str) -> tuple[pd.DataFrame, float]:
    """The released records, and CPU seconds."""
    spec = {"kind": "synthesis", "name": name, "dataset": "acs", "schema": of, "work": f"{folder}/work"}
    spec |= {"data": {"minimum_records": int(0.95 * len(frame))}, "output": {"path": f"{folder}/{name}"}}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    made = dpdist.release({**spec, "privacy": {"epsilon": 1, "delta": 1e-9}}, data=frame, ledger=ledger)
    return made.to_pandas(), round(resource.getrusage(resource.RUSAGE_SELF).ru_utime - before, 1)


def made_up(records: int = 200_000) -> tuple[pd.DataFrame, dict[str, Any]]:
    """60,000 codes with Zipf shares beside 500 that depend on them, and three small attributes."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, 60_001)
    a = rng.choice(60_000, records, p=weights / weights.sum())
    b = (a * 7 + rng.integers(0, 20, records)) % 500
    frame = pd.DataFrame({"a": a, "b": b, "c": rng.integers(0, 3, records), "d": (b % 2) ^ (rng.random(records) < 0.1)})
    frame = frame.assign(e=rng.integers(0, 100, records)).astype(np.int64)
    tops = {"a": 59_999, "b": 499, "c": 2, "d": 1, "e": 99}
    return frame, {"attributes": [{"name": n, "kind": "integer", "bounds": [0, top]} for n, top in tops.items()]}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--keys", type=int, default=3)
    options = parser.parse_args()
    frame, rows = table(), []
    sets = [["OCCP"], ["AREA"], ["OCCP", "SEX"], ["OCCP", "AREA"], CELL, ["OCCP", "COW"], ["AREA", "RAC1P"]]
    wide, wide_schema = made_up()
    with tempfile.TemporaryDirectory() as folder:
        ledger = dpdist.Ledger(f"sqlite:///{folder}/ledger.db")
        ledger.create("acs", epsilon=1000, delta=1e-4)
        for key in range(options.keys):
            for kind in ("values", "levels", "coarse codes"):
                given = coarsened(frame) if kind == "coarse codes" else frame
                made, cpu = release(given, schema(given, levels=kind == "levels"), f"{kind[:6]}-{key}", ledger, folder)
                made = spread(made, frame) if kind == "coarse codes" else made
                found = {" x ".join(names): distance(shares(made, names), shares(frame, names)) for names in sets}
                groups = shares(coarsened(made.astype(np.int64)), CELL)
                row = {"codes": kind, "key": key, "cpu": cpu, **found}
                row["groups"] = distance(groups, shares(coarsened(frame), CELL))
                row["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                rows.append(row)
                print(json.dumps(row), flush=True)
        made, cpu = release(wide, wide_schema, "wide", ledger, folder)
        top = wide["a"] < 200
        row = {"codes": "60,000 codes", "cpu": cpu, "b": distance(shares(made, ["b"]), shares(wide, ["b"]))}
        row["200 commonest a x b"] = distance(
            made[made["a"].astype(int) < 200].astype(np.int64).groupby(["a", "b"]).size() / len(made),
            wide[top].groupby(["a", "b"]).size() / len(wide),
        )
        rows.append(row)
        print(json.dumps(row), flush=True)
    write(options, rows)


if __name__ == "__main__":
    main()
