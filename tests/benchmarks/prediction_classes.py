"""Adult with its income class as response: what classifiers learn from records of two stages."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import numpy as np
from prediction_models import DATA, ROOT, Rows, Synthesis, key, mean_sd
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.plan import plan_lid
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.privacy.arrays import Codes
from dpdist.spec.reader import load

ROWS = 5_000
ALPHAS = (0.0, 0.5, 1.0)
NUMBERS = {"age": [17, 96], "capital-gain": [0, 99_999], "capital-loss": [0, 4_999], "hours-per-week": [1, 99]}
SECOND = {
    "kernel ridge on classes": {},
    "logistic regression": {"hook": "sklearn.linear_model:LogisticRegression"},
    "boosted trees": {"hook": "sklearn.ensemble:HistGradientBoostingClassifier"},
}
USERS = {
    "logistic": lambda: LogisticRegression(max_iter=500),
    "forest": lambda: RandomForestClassifier(100, min_samples_leaf=3, random_state=0, n_jobs=1),
    "boosted": lambda: HistGradientBoostingClassifier(random_state=0),
}


def spec(keep: bool) -> TwoStageSpec:
    """Adult with numbers as they are; without fnlwgt, and without the education that education-num says."""
    mixing = load(ROOT / "deploy" / "releases" / "adult.yaml", {"data.path": str(DATA / "adult.data")})
    schema = mixing.table.model_dump(mode="json", exclude_none=True)["attributes"]
    attributes: list[dict[str, Any]] = []
    for one in schema:
        if one["name"] in NUMBERS:
            kind = "number" if one["name"].startswith("capital") else "integer"
            one = {"name": one["name"], "kind": kind, "bounds": NUMBERS[one["name"]], "out_of_domain": "clip"}
        if one["name"] not in ("fnlwgt", "education"):
            attributes.append(one)
    kept = [one["name"] for one in attributes[:-1] if one["kind"] == "categorical"] if keep else []
    tree = mixing.model_dump(mode="json", by_alias=True)
    return TwoStageSpec.model_validate(
        {
            "kind": "two-stage",
            "name": "adult",
            "dataset": "adult",
            "schema": {"attributes": attributes},
            "data": tree["data"] | {"extra_columns": "ignore", "minimum_records": 100},
            "output": {"path": "none"},
            "privacy": {"guarantee": "lid", "disclosure": {"lid": 1.0, "eta": 0.001, "columns": ["age"]}},
            "prediction": {
                "response": attributes[-1]["name"],
                "keep": kept,
                "alpha": 0.5,
                "log": {"capital-gain": 1000, "capital-loss": 1000},
            },
        }
    )


def read(made: TwoStageSpec, name: str) -> Codes:
    """Codes of one of the two files."""
    source = table_source(made.model_copy(update={"data": made.data.model_copy(update={"path": str(DATA / name)})}))
    codes, _ = run_pass(open_table(source, made.table, partitions=1), gather_operator())
    return list(codes)


def scores(train: Rows, test: Rows) -> dict[str, tuple[float, float]]:
    """Accuracy and balanced accuracy of each model on the test rows, in per cent; rows hold features and codes."""
    out = {}
    for name, model in USERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = (
                model().fit(*train).predict(test[0]) if len(set(train[1])) > 1 else np.full(len(test[1]), train[1][0])
            )
        out[name] = (
            100 * float(np.mean(found == test[1])),
            100 * float(balanced_accuracy_score(test[1], found)),
        )
    return out


def classes(trials: int) -> dict[str, Any]:
    """Accuracies on the real test file of models trained on 5,000 real or synthetic records, by second stage."""
    whole = {name: read(spec(False), name) for name in ("adult.data", "adult.test")}
    rows: dict[str, dict[str, list[float]]] = {}
    for trial in range(trials):
        chosen = np.random.default_rng(trial).permutation(len(whole["adult.data"][0]))[:ROWS]
        private = [column[chosen] for column in whole["adult.data"]]
        for keep in (False, True):
            base, columns = spec(keep), columns_of(spec(keep))
            for second, regression in SECOND.items():
                tree = base.model_dump(mode="json", by_alias=True)
                tree["prediction"]["regression"] = regression
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    made = Synthesis(plan_lid(TwoStageSpec.model_validate(tree)), private, key(trial))
                spent = time.process_time() - start
                seen = made.synthetic.features
                original = columns.units(private)
                test = columns.units(whole["adult.test"])
                tested = seen(test[0]), seen.codes(test[1])
                tables = {f"alpha {a:g}": made.rows(alpha=a) for a in ALPHAS}
                if not keep and not regression:
                    tables["real"] = original
                for label, (inputs, responses) in tables.items():
                    name = label if label == "real" else f"{second}, {'kept' if keep else 'all made'}, {label}"
                    row = rows.setdefault(name, {})
                    codes = seen.codes(responses)
                    row.setdefault("second class", []).append(100 * float(np.mean(codes == 1)))
                    for user, (plain, balanced) in scores((seen(inputs), codes), tested).items():
                        row.setdefault(user, []).append(plain)
                        row.setdefault(f"{user}, balanced", []).append(balanced)
                    if label == "alpha 0.5":
                        row.setdefault("lid", []).append(100 * made.lid)
                        row.setdefault("seconds", []).append(spent)
                print(trial, keep, second, file=sys.stderr, flush=True)
    return {name: {what: mean_sd(values) for what, values in row.items()} for name, row in rows.items()}
