"""From a frame in three lines, beside a schema written by hand, at the same epsilon and delta.

    python tests/benchmarks/bench_frame.py --json bench/frame.json [--tables adult] [--ways hand found] [--keys 3]

Tables: Adult; *small*, 1,000 of its records; a made-up one like the Titanic's (891 records); a made-up one of many
types (20,000 records); *persons*, 2,000 of the American Community Survey; *insurance*, 1,338 charges.
Ways: *hand*, the schema written by hand; *found*, `Synthesizer.from_frame` with names and types alone; *bounds*, with
the bounds of numbers and days public, as in the documents; *values*, the values of texts public as well.
As many records are drawn as the table has. Two-way distances are means over all pairs of total variation, after both
tables were coded alike: *hand's bins* are those of the schema by hand, in which its numbers are released; *neutral
bins* are twenty between quantiles of the table. Texts that are not named are a value of their own. Keys are drawn anew
in each run. *Beside hand*: the ratio of means in neutral bins, with its standard error. CPU seconds include the plan,
the ledger and the sample. Other packages are *sdv* (a Gaussian copula, without privacy), *opendp-AIM* and *opendp-MST*:
`--ways sdv --python PATH`, an interpreter of an environment as `peers/frames.py` says.
"""

import csv
import json
import math
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from harness import DATA, ROOT, argument_parser, write

import dpdist
from dpdist.spec.schema import Schema

NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


@dataclass(frozen=True)
class Case:
    """A table, and what is said of it."""

    frame: pd.DataFrame
    schema: Schema  # by hand
    bounds: Mapping[str, Any]  # public, for from_frame
    drop: tuple[str, ...] = ()


def adult() -> Case:
    """UCI Adult, and the schema that is shipped."""
    schema = Schema.from_yaml(ROOT / "deploy/releases/schemas/adult.yaml")
    rows = []
    for name in ("adult.data", "adult.test"):
        with (DATA / name).open() as lines:
            rows += [row for row in csv.reader(lines, skipinitialspace=True) if len(row) == 15]
    frame = pd.DataFrame(rows, columns=list(schema.names))
    frame["income"] = frame["income"].str.rstrip(".")
    frame = frame.astype(dict.fromkeys(NUMBERS, int)).replace({"?": None})
    return Case(frame, schema, {name: schema.attributes[schema.names.index(name)].bounds for name in NUMBERS})


def titanic() -> Case:
    """A made-up table like the Titanic's."""
    rng, n = np.random.default_rng(1912), 891
    pclass = rng.choice([1, 2, 3], n, p=[0.24, 0.21, 0.55])
    female = rng.random(n) < np.select([pclass == 1, pclass == 2], [0.43, 0.41], 0.29)
    chance = np.select([female & (pclass < 3), female, pclass == 1, pclass == 2], [0.95, 0.5, 0.37, 0.16], 0.14)
    age = np.clip(np.round(rng.normal(np.array([38, 30, 25])[pclass - 1], 13)), 0.5, 80)
    fare = np.round(rng.lognormal(np.array([4.1, 2.8, 2.4])[pclass - 1], 0.6), 2)
    frame = pd.DataFrame(
        {
            "survived": (rng.random(n) < chance).astype(int),
            "pclass": pclass,
            "sex": np.where(female, "female", "male"),
            "age": np.where(rng.random(n) < 0.2, np.nan, age),
            "sibsp": np.minimum(rng.geometric(0.62, n) - 1, 8),
            "parch": np.minimum(rng.geometric(0.72, n) - 1, 6),
            "fare": np.minimum(fare, 512.0),
            "embarked": rng.choice(["S", "C", "Q"], n, p=[0.72, 0.19, 0.09]),
        }
    )
    texts = {"sex": ["female", "male"], "embarked": ["S", "C", "Q"]}
    integers = {"survived": (0, 1), "pclass": (1, 3), "sibsp": (0, 8), "parch": (0, 6)}
    return Case(
        frame,
        Schema.model_validate(
            {
                "attributes": [
                    {"name": "survived", "kind": "integer", "bounds": [0, 1]},
                    {"name": "pclass", "kind": "integer", "bounds": [1, 3]},
                    {"name": "sex", "kind": "categorical", "values": texts["sex"]},
                    {"name": "age", "kind": "number", "bounds": [0, 100], "bins": {"count": 10}, "step": 0.5,
                        "missing": {"category": "missing"}},
                    {"name": "sibsp", "kind": "integer", "bounds": [0, 8]},
                    {"name": "parch", "kind": "integer", "bounds": [0, 6]},
                    {"name": "fare", "kind": "number", "bounds": [0, 600], "step": 0.01,
                        "bins": {"edges": [0, 8, 10, 15, 20, 30, 50, 80, 120, 250]}},
                    {"name": "embarked", "kind": "categorical", "values": texts["embarked"]},
                ]
            }
        ),
        {**integers, "age": (0, 100), "fare": (0, 600)},
    )  # fmt: skip


def mixed() -> Case:
    """A made-up table of many types, whose columns depend on each other."""
    rng, n = np.random.default_rng(45), 20_000
    stage = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    born = np.datetime64("1950-01-01") + (20_000 * rng.beta(2, 2 + stage, n)).astype(int)
    drugs = np.array([f"d{k:04d}" for k in range(3_000)])
    frame = pd.DataFrame(
        {
            "patient_id": np.arange(n),
            "at": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900 * 86_400, n), unit="s"),
            "born": pd.Series(born).dt.date,
            "smokes": rng.random(n) < 0.2 + 0.2 * stage,
            "dose": np.where(rng.random(n) < 0.2, np.nan, np.round(rng.normal(5 + stage, 1, n), 2)),
            "drug": drugs[np.minimum(rng.geometric(0.1, n) + 5 * stage, 3_000) - 1],
            "children": pd.array(np.where(rng.random(n) < 0.2, None, rng.poisson(1 + stage / 2, n)), dtype="Int64"),
            "stage": pd.Categorical.from_codes(stage, ["I", "II", "III"], ordered=True),
            "notes": [f"free text {k}" for k in range(n)],
        }
    )
    gaps = {"missing": {"category": "missing"}}
    at = {"kind": "datetime", "bounds": ["2020-01-01", "2022-12-31"], "bins": {"every": "month"}}
    schema = Schema.model_validate(
        {
            "attributes": [
                {"name": "at", **at},
                {"name": "born", "kind": "date", "bounds": ["1950-01-01", "2004-12-31"], "bins": {"count": 20}},
                {"name": "smokes", "kind": "categorical", "values": ["false", "true"]},
                {"name": "dose", "kind": "number", "bounds": [0, 12], "bins": {"count": 24}, "step": 0.01, **gaps},
                {"name": "drug", "kind": "categorical", "values": [*drugs[:100].tolist(), "other values"],
                    "out_of_domain": {"category": "other values"}},
                {"name": "children", "kind": "integer", "bounds": [0, 10], "out_of_domain": "clip", **gaps},
                {"name": "stage", "kind": "ordinal", "values": ["I", "II", "III"]},
            ]
        }
    )  # fmt: skip
    bounds = {"at": at, "born": ("1950-01-01", "2004-12-31"), "dose": (0, 12), "children": (0, 10)}
    return Case(frame, schema, bounds, ("patient_id", "notes"))


def small() -> Case:
    """A sample of Adult."""
    whole = adult()
    return replace(whole, frame=whole.frame.sample(1_000, random_state=7).reset_index(drop=True))


def _shipped(name: str, frame: pd.DataFrame) -> Case:
    """A table of a shipped schema, with 20 bins of continuous numbers; its codes of categories are texts."""
    shipped = Schema.from_yaml(ROOT / f"deploy/releases/schemas/{name}.yaml")
    bins = {"bins": {"count": 20}}
    tree = [
        a.model_dump(exclude_defaults=True) | (bins if a.name in shipped.continuous else {}) for a in shipped.attributes
    ]
    schema = Schema.model_validate({"attributes": tree})
    frame = frame[list(schema.names)].reset_index(drop=True)
    for attribute in schema.attributes:
        if attribute.values is not None and frame[attribute.name].dtype.kind in "if":
            whole = frame[attribute.name].astype("Int64").astype(object)
            frame[attribute.name] = whole.where(whole.notna(), None).map(str, na_action="ignore")
    return Case(frame, schema, {a.name: a.bounds for a in schema.attributes if a.bounds is not None})


def persons() -> Case:
    """A sample of persons of the American Community Survey, with 15 columns of codes."""
    return _shipped("acs2024-persons", pd.read_parquet(DATA / "acs2024_persons.parquet").sample(2_000, random_state=7))


def insurance() -> Case:
    """Medical insurance charges."""
    return _shipped("insurance", pd.read_csv(DATA / "insurance.csv"))


CASES: dict[str, Callable[[], Case]] = {
    "adult": adult,
    "titanic": titanic,
    "mixed": mixed,
    "small": small,
    "persons": persons,
    "insurance": insurance,
}


def by_hand(case: Case, epsilon: float, folder: Path) -> dpdist.Synthesizer:
    """A synthesizer of the schema by hand."""
    ledger = dpdist.Ledger(f"sqlite:///{folder}/hand.db")
    ledger.create("hand", epsilon=epsilon, delta=DELTA)
    own = {"data.minimum_records": int(0.95 * len(case.frame)), "data.extra_columns": "ignore"}
    given = {"ledger": ledger, "dataset": "hand", "settings": own | {"output.path": f"{folder}/hand"}}
    return dpdist.Synthesizer(case.schema, epsilon=epsilon, delta=DELTA, **given)


def three_lines(case: Case, epsilon: float, folder: Path, public: Mapping[str, Any]) -> dpdist.Synthesizer:
    """A synthesizer from the frame."""
    given: dict[str, Any] = {"drop": case.drop, "public": public, "settings": {"output.path": f"{folder}/found"}}
    ledger = dpdist.Ledger(f"sqlite:///{folder}/found.db")
    return dpdist.Synthesizer.from_frame(case.frame, epsilon=epsilon, delta=DELTA, ledger=ledger, **given)


def ways(case: Case) -> dict[str, Callable[[float, Path], dpdist.Synthesizer]]:
    """How a release is asked for."""
    open_ = {a.name: list(a.values) for a in case.schema.attributes if a.values and a.name not in case.bounds}
    kept = {name: v for name, v in open_.items() if case.frame[name].dtype != bool}
    return {
        "hand": lambda epsilon, folder: by_hand(case, epsilon, folder),
        "found": lambda epsilon, folder: three_lines(case, epsilon, folder, {}),
        "bounds": lambda epsilon, folder: three_lines(case, epsilon, folder, case.bounds),
        "values": lambda epsilon, folder: three_lines(case, epsilon, folder, {**case.bounds, **kept}),
    }


def number_of(column: pd.Series) -> np.ndarray:
    """A column as numbers; days since 1970 for dates and times."""
    if column.dtype == object or pd.api.types.is_string_dtype(column):
        column = pd.to_datetime(column)
    if pd.api.types.is_datetime64_any_dtype(column):
        return (column.astype("datetime64[s]").astype("int64") / 86_400).where(column.notna()).to_numpy(float)
    return column.to_numpy(float, na_value=np.nan)


def texts_of(column: pd.Series) -> pd.Series:
    """A column as texts; missing values as one of them."""
    texts = column.astype(object).where(column.notna(), "missing").astype(str)
    return texts.replace({"unknown": "missing", "none": "missing", "True": "true", "False": "false"})


class Coding:
    """Codes both tables alike."""

    def __init__(self, case: Case, *, neutral: bool) -> None:
        self._texts: dict[str, list[str]] = {}
        self._edges: dict[str, np.ndarray] = {}
        for attribute in case.schema.attributes:
            name = attribute.name
            if attribute.values is not None:
                self._texts[name] = texts_of(case.frame[name]).unique().tolist()
            elif neutral:
                held = number_of(case.frame[name])
                self._edges[name] = np.unique(np.nanquantile(held, np.arange(1, 20) / 20))
            else:
                self._edges[name] = np.array(attribute.bin_ends()[0], float)[1:]
                if attribute.kind == "datetime":
                    self._edges[name] /= 86_400

    def codes(self, frame: pd.DataFrame) -> tuple[np.ndarray, list[int]]:
        """The codes of a frame, and how many each column has."""
        columns, sizes = [], []
        for name, values in self._texts.items():
            columns.append(pd.Index(values).get_indexer(texts_of(frame[name])) % (len(values) + 1))
            sizes.append(len(values) + 1)
        for name, edges in self._edges.items():
            held = number_of(frame[name])
            codes = np.searchsorted(edges, held, side="right")
            columns.append(np.where(np.isnan(held), len(edges) + 1, codes))
            sizes.append(len(edges) + 2)
        return np.stack(columns, axis=1).astype(np.int64), sizes


def two_way(real: np.ndarray, made: np.ndarray, sizes: list[int]) -> float:
    """Mean total variation distance of all two-way tables."""
    found = []
    for i, j in combinations(range(len(sizes)), 2):
        tables = [
            np.bincount(codes[:, i] * sizes[j] + codes[:, j], minlength=sizes[i] * sizes[j]) / len(codes)
            for codes in (real, made)
        ]
        found.append(np.abs(tables[0] - tables[1]).sum() / 2)
    return float(np.mean(found))


def drawn_by_us(make: Callable[[float, Path], dpdist.Synthesizer], case: Case, key: int, options: Any) -> pd.DataFrame:
    """As many records as the table has."""
    with tempfile.TemporaryDirectory() as folder:
        return make(options.epsilon, Path(folder)).fit(case.frame).sample(len(case.frame), seed=key)


def drawn_by_peer(way: str, case: Case, options: Any) -> pd.DataFrame:
    """The same by another package, in its own environment. Raises CalledProcessError: it fails, or takes too long."""
    cuts, frame = dict[str, list[float]](), case.frame.drop(columns=list(case.drop))
    for attribute in case.schema.attributes:
        name = attribute.name
        if attribute.values is None:  # each cut is the last value of a bin, the first one ends a bin without values
            whole = attribute.kind in ("integer", "date")
            per_day = 86_400 if attribute.kind == "datetime" else 1
            lows, highs = (ends / per_day for ends in attribute.bin_ends())
            cuts[name] = [int(low) - 1 for low in lows] + [int(highs[-1])] if whole else [*lows, float(highs[-1])]
        if way.startswith("opendp"):  # it cuts numbers alone, and has no categories
            if attribute.kind in ("date", "datetime"):
                frame[name] = number_of(frame[name]).astype(int if whole else float)
            elif frame[name].dtype.name in ("bool", "category"):
                frame[name] = texts_of(frame[name])
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "in.parquet", Path(folder) / "out.parquet"
        frame.to_parquet(given)
        asked = {"epsilon": options.epsilon, "delta": DELTA, "records": len(case.frame), "cuts": json.dumps(cuts)}
        command = [options.python, str(Path(__file__).parent / "peers" / "frames.py"), way, str(given), str(made)]
        command += [text for name, value in asked.items() for text in (f"--{name}", str(value))]
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (options.seconds, options.seconds + 1)),
        )
        return pd.read_parquet(made)


def measured(name: str, options: Any) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    case = CASES[name]()
    codings = {"hand's bins": Coding(case, neutral=False), "neutral bins": Coding(case, neutral=True)}
    real = {title: coding.codes(case.frame) for title, coding in codings.items()}
    ours = ways(case)
    hand: list[float] = []
    for way in options.ways:
        distances: dict[str, list[float]] = {title: [] for title in codings}
        seconds, failed = [], ""
        for key in range(options.keys if way in ours else 1):
            start = cpu_seconds()
            try:
                drawn = drawn_by_us(ours[way], case, key, options) if way in ours else drawn_by_peer(way, case, options)
            except subprocess.CalledProcessError as error:
                late = error.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
                failed = f"not done after {options.seconds} CPU seconds" if late else last_line(error)
                break
            seconds.append(cpu_seconds() - start)
            for title, coding in codings.items():
                codes, sizes = real[title]
                distances[title].append(two_way(codes, coding.codes(drawn)[0], sizes))
        row: dict[str, Any] = {"table": name, "records": len(case.frame), "way": way, "keys": len(seconds)}
        for title, found in distances.items():
            row |= {title: f"{np.mean(found):.4f} ± {np.std(found):.4f}" if found else ""}
        found = distances["neutral bins"]
        hand = found if way == "hand" else hand
        row |= {"beside hand": ratio(found, hand) if found and hand and way != "hand" else ""}
        row |= {"CPU seconds": f"{np.median(seconds):.1f}" if seconds else failed}
        print(row, flush=True)
        yield row


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def last_line(error: subprocess.CalledProcessError) -> str:
    """What a failed process said last."""
    return error.stderr.decode().strip().splitlines()[-1]


def ratio(over: list[float], under: list[float]) -> str:
    """The ratio of two means, with its standard error if both have several keys."""
    found = float(np.mean(over) / np.mean(under))
    if min(len(over), len(under)) == 1:
        return f"{found:.2f}"
    parts = [np.std(own, ddof=1) / np.mean(own) / math.sqrt(len(own)) for own in (over, under)]
    return f"{found:.2f} ± {found * math.hypot(*parts):.2f}"


DELTA = 1e-9


def main() -> None:
    """Measure and write."""
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ways", nargs="+", default=["hand", "found", "bounds", "values"])
    parser.add_argument("--python", help="interpreter of an environment with sdv and opendp")
    parser.add_argument("--seconds", type=int, default=600, help="of CPU that another package may take")
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    rows = []
    for name in options.tables:
        for row in measured(name, options):
            rows.append(row)
            write(options, rows)  # each time: a run that is stopped keeps what it has


if __name__ == "__main__":
    os.environ.pop("DPDIST_LEDGER", None)
    main()
