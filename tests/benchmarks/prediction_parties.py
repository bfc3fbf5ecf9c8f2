"""Several parties in one table: what each has of a synthesis of its own, of one of all records, and of correlated ones.

*apart*: a release of each party's records by themselves. *pooled*: one release without the column that names the party.
*indicator*: one release in which that column is an ordinary category that is kept. *correlated*: `prediction.parties`.
All at alpha 0.2 with the Latin hypercube. *second stage* is the error of the regression that writes the responses, and
*user* that of a kernel ridge regression that a user trains on the released records of the party (of all, if pooled);
both on new inputs of the party. *inputs* is the mean Kolmogorov-Smirnov distance of the party's synthetic inputs
(alpha 0) from its real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prediction_models import DATA, FILES, ROOT, Synthesis, errors, key, mean_sd
from prediction_simulated import RANGE, g
from scipy.stats import ks_2samp

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.evaluation.utility.learning import mse
from dpdist.families.base.graph import run_pass
from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.lid.regression import Features
from dpdist.families.prediction.plan import plan_lid
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.stages import SyntheticInputs
from dpdist.privacy.arrays import Codes, Floats
from dpdist.spec.reader import load

METHODS = ("apart", "pooled", "indicator", "correlated")
ALPHA = 0.2
Found = dict[str, dict[str, list[float]]]
"""By measure and method, and party: a value of each trial."""


@dataclass(frozen=True)
class Divided:
    """Records of several parties, and rows to test on."""

    tree: Mapping[str, Any]  # of a spec without parties
    column: str
    parties: tuple[str, ...]
    codes: Codes
    test: Codes  # with responses without noise where these are known

    def spec(self, method: str, **settings: Any) -> TwoStageSpec:
        """The spec of a method; of `pooled` without the column."""
        tree = {**self.tree, "prediction": {**self.tree["prediction"], "alpha": ALPHA, **settings}}
        if method == "correlated":
            tree["prediction"]["parties"] = {"column": self.column, "minimum_records": 10}
        elif method != "pooled":
            tree["prediction"]["keep"] = [*tree["prediction"].get("keep", ()), self.column]
        else:
            attributes = [one for one in tree["schema"]["attributes"] if one["name"] != self.column]
            tree["schema"] = {"attributes": attributes}
        return TwoStageSpec.model_validate(tree)

    @property
    def place(self) -> int:
        """Place of the column in the schema."""
        return [one["name"] for one in self.tree["schema"]["attributes"]].index(self.column)

    def of(self, codes: Codes, method: str, rows: NDArray[np.bool_] | None = None) -> Codes:
        """Columns as a method sees them, of some rows."""
        seen = [column for i, column in enumerate(codes) if method != "pooled" or i != self.place]
        return [column if rows is None else column[rows] for column in seen]


def synthesised(work: Divided, method: str, seed: int, until: type | None = None, **settings: Any) -> list[Synthesis]:
    """The releases of a method: one, or one of each party."""
    plan, more = plan_lid(work.spec(method, **settings)), {} if until is None else {"until": until}
    owner = work.codes[work.place]
    each = [owner == party for party in range(len(work.parties))] if method == "apart" else [None]
    return [Synthesis(plan, work.of(work.codes, method, rows), key(seed), **more) for rows in each]


def compare(work: Divided, seed: int, found: Found) -> None:
    """One trial: add the figures of each method and party."""
    owner, asked = (codes[work.place] for codes in (work.codes, work.test))
    user, real = seen_by_users(work)
    for method in METHODS:
        made, columns = synthesised(work, method, seed), columns_of(work.spec(method))
        bare = [
            [synthesised(work, method, seed, SyntheticInputs, matching=m, alpha=0)[i] for i in range(len(made))]
            for m in ("independent", "nearest")
        ]
        if method == "correlated":
            found.setdefault("correlation", {}).setdefault("chosen", []).append(made[0].model.kernel.correlation)
        for number, party in enumerate(work.parties):
            one = made[number if method == "apart" else 0]
            mine = np.ones((owner == number).sum(), bool) if method == "apart" else owner == number
            inputs, truth = columns.units(work.of(work.test, method, asked == number))
            values = {"second stage": mse(truth, one.model.predict(one.synthetic.features(inputs)))}
            rows = one.rows()
            train = rows if method == "pooled" else (rows[0][mine], rows[1][mine])
            test = user(inputs, method), truth
            values["user"] = errors((user(train[0], method), train[1]), test, ("KRR",))["KRR"]
            for label, others in zip(("independent", "nearest"), bare, strict=True):
                drawn = others[number if method == "apart" else 0].rows(model=_Zero())[0][mine]
                values[f"inputs, {label}"] = far(real(drawn, method), real(inputs, method))
            for measure, value in values.items():
                found.setdefault(f"{measure}, {method}", {}).setdefault(party, []).append(value)


class _Zero:
    """No second stage."""

    def predict(self, inputs: Floats) -> Floats:
        return np.zeros(len(inputs))


def far(drawn: Floats, real: Floats) -> float:
    """Mean over the columns of the Kolmogorov-Smirnov distance."""
    return float(np.mean([ks_2samp(a, b).statistic for a, b in zip(drawn.T, real.T, strict=True)]))


def seen_by_users(work: Divided) -> tuple[Any, Any]:
    """Functions of rows of a method: to what a user's regression sees, and to the columns that are synthesised."""
    spec = work.spec("pooled")
    inputs, _ = columns_of(spec).units(work.of(work.codes, "pooled"))
    features = Features(spec.inputs, np.maximum(inputs.std(axis=0), 1e-9))
    place = work.spec("indicator").input_names.index(work.column)
    made = [i for i, scale in enumerate(spec.inputs) if scale.name not in spec.original and not scale.nominal]

    def without(rows: Floats, method: str) -> Floats:
        return rows if method == "pooled" else np.delete(rows, place, axis=1)

    return (lambda rows, method: features(without(rows, method))), (lambda rows, method: without(rows, method)[:, made])


def summary(found: Found) -> dict[str, Any]:
    """Means and deviations of trials; how often correlated parties have the smaller error of the second stage."""
    out: dict[str, Any] = {
        name: {party: mean_sd(values) for party, values in row.items()} for name, row in found.items()
    }
    mine = found["second stage, correlated"]
    for method in METHODS[:-1]:
        other = found[f"second stage, {method}"]
        out[f"smaller than {method}"] = {
            party: float(np.mean(np.array(values) < np.array(other[party]))) for party, values in mine.items()
        }
    return out


# --- simulated parties ------------------------------------------------------------------------------------------------

SIZES = (240, 120, 60, 30)
TEST = 400
SETTINGS = ((0.0, 0.0), (0.15, 0.0), (0.15, 0.25), (0.15, 0.5), (0.15, 1.0), (0.15, 2.0))
"""How far apart the means of the first and the last party's inputs are on each axis, and the deviation of what is a
party's own in its regression, in units of that of the common part."""


def waves(rng: np.random.Generator) -> Any:
    """A random smooth function of deviation one: the mean of ten cosines."""
    frequency, phase = rng.normal(0, 5, (10, 3)), rng.uniform(0, 2 * np.pi, 10)
    return lambda x: np.cos(x @ frequency.T + phase).sum(axis=1) * np.sqrt(2 / 10)


def simulated_parties(shift: float, differ: float, seed: int) -> Divided:
    """Four parties: Gaussian inputs around their own means, y = g(x) + a wave of their own + noise of variance 0.2."""
    rng = np.random.default_rng(seed)
    own = [waves(rng) for _ in SIZES]
    cov = 0.15**2 * (0.5 + 0.5 * np.eye(3))

    def rows(number: int, count: int, noise: float) -> Codes:
        mean = 0.4 + shift * (number / (len(SIZES) - 1) - 0.5)
        x = np.clip(rng.multivariate_normal([mean] * 3, cov, count), 0, 1)
        y = g(x) + differ * 0.356 * own[number](x) + rng.normal(0, noise, count)
        return [*x.T, np.full(count, number, np.uint8), y]

    parts = [rows(number, count, np.sqrt(0.2)) for number, count in enumerate(SIZES)]
    tests = [rows(number, TEST, 0.0) for number in range(len(SIZES))]
    order = rng.permutation(sum(SIZES))
    numbers = [{"name": f"x{i}", "kind": "number", "bounds": [0, 1]} for i in range(3)]
    names = tuple(f"{size} records" for size in SIZES)
    tree = {
        "kind": "two-stage",
        "name": "parties",
        "dataset": "parties",
        "schema": {
            "attributes": [
                *numbers,
                {"name": "party", "kind": "categorical", "values": list(names)},
                {"name": "y", "kind": "number", "bounds": list(RANGE)},
            ]
        },
        "data": {"path": "none", "minimum_records": 10},
        "output": {"path": "none"},
        "privacy": {"guarantee": "lid", "disclosure": {"lid": 1.0}},
        "prediction": {"response": "y"},
    }
    joined = [np.concatenate(columns)[order] for columns in zip(*parts, strict=True)]
    return Divided(tree, "party", names, joined, [np.concatenate(columns) for columns in zip(*tests, strict=True)])


# --- real tables ------------------------------------------------------------------------------------------------------

REAL = {
    "california": ("ocean_proximity", ("<1H OCEAN", "INLAND", "NEAR BAY", "NEAR OCEAN"), 800, 4_000),
    "insurance": ("region", ("northeast", "northwest", "southeast", "southwest"), 400, 900),
}
"""The column that names the party, the parties (without the island of five records), records and rows to test on."""


@cache
def whole(name: str) -> tuple[dict[str, Any], Codes]:
    """The tree of a spec and all records of a public table."""
    column, parties, *_ = REAL[name]
    path = ROOT / "deploy" / "releases" / f"{name}.yaml"
    spec = load(path, {"data.path": str(DATA / FILES[name]), "data.minimum_records": 10})
    tree = spec.model_dump(mode="json", by_alias=True)
    for one in tree["schema"]["attributes"]:
        if one["name"] == column:
            one |= {"values": list(parties), "out_of_domain": "drop"}
    tree["privacy"]["disclosure"]["lid"] = 1.0
    tree["prediction"]["keep"] = [kept for kept in tree["prediction"]["keep"] if kept != column]
    made = TwoStageSpec.model_validate(tree)
    codes, _ = run_pass(open_table(table_source(made), made.table, partitions=1), gather_operator())
    return tree, list(codes)


def real_parties(name: str, seed: int) -> Divided:
    """A random part of a table, and other rows of it to test on."""
    column, parties, rows, test = REAL[name]
    tree, codes = whole(name)
    order = np.random.default_rng(seed).permutation(len(codes[0]))
    mine, theirs = ([one[part] for one in codes] for part in (order[:rows], order[rows : rows + test]))
    return Divided(tree, column, parties, mine, theirs)


def parties(trials: int, names: Sequence[str] = ("simulation", *REAL)) -> dict[str, Any]:
    """Errors by party of the four methods: simulated parties at several degrees, and tables divided by a column."""
    out: dict[str, Any] = {"trials": trials}
    runs: dict[str, Any] = {}
    if "simulation" in names:
        runs |= {f"inputs {a:g}, regressions {b:g}": (simulated_parties, a, b) for a, b in SETTINGS}
    runs |= {name: (real_parties, name) for name in REAL if name in names}
    for label, (make, *which) in runs.items():
        found: Found = {}
        for trial in range(trials):
            compare(make(*which, trial), trial, found)
        out[label] = summary(found)
        print(label, file=sys.stderr, flush=True)
    return out
