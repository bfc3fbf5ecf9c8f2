"""The private variant beside the published method and plausible-deniability synthesis of the same budget."""

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from harness import keep, spec_without_places
from prediction_models import FILES, Rows, Synthesis, errors, g, inputs, key, mean_sd, simulated
from prediction_tables import Task

from dpdist.families.base.family import Stage
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse, released_codes
from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.lid.regression import Features
from dpdist.families.prediction.plan import FederatedPrivatePlan, PrivatePlan, plan, plan_lid
from dpdist.families.prediction.private.stages import STAGES, FittedInputs, Statistic, answered, asked
from dpdist.families.prediction.private.statistics import NoisySums
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.federated.messages import identity_text
from dpdist.federated.sums import added
from dpdist.ledger import Books
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.run import run_release
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.reader import load

EPSILONS = (1.0, 3.0, 10.0)


def private(trials: int, names: Sequence[str] = ("simulation", *FILES)) -> dict[str, Any]:
    """Errors of models trained on private releases, beside the published method and plausible deniability."""
    out: dict[str, Any] = {}
    for name in names:
        rows: dict[str, dict[str, list[float]]] = {}
        for trial in range(trials if name != "california" else 1):
            task = SimulatedTask(trial) if name == "simulation" else Task(name, trial)
            test, noise = task.seen(task.test), key(trial)
            for label, train in compared(task, noise).items():
                for model, error in errors(train, test, ("KRR", "RF")).items():
                    rows.setdefault(label, {}).setdefault(model, []).append(error)
        variance = float(test[1].var())
        print(name, file=sys.stderr, flush=True)
        out[name] = {
            "private_records": len(task.private[0]),
            "variance_of_response": variance,
            **{label: {m: float(np.mean(v)) for m, v in row.items()} for label, row in rows.items()},
        }
    return out


class SimulatedTask(Task):
    """The simulated regression with 20,000 private records, as a table."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        attributes = [{"name": f"x{i}", "kind": "number", "bounds": [0, 1]} for i in range(3)]
        attributes.append({"name": "y", "kind": "number", "bounds": [-3, 6]})
        self.name = "simulation"
        privacy = {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.001}}
        self.spec = spec_without_places(
            "two-stage", {"attributes": attributes}, 14_000, privacy=privacy, prediction={"response": "y"}
        )
        self.columns = columns_of(self.spec)
        x, y = simulated(20_000, rng)
        test = inputs(2000, rng)
        self.private = [*x.T, y]
        self.public, self.test = [*x[:200].T, y[:200]], [*test.T, g(test)]
        self.features = Features(self.columns.scales, np.maximum(x.std(axis=0), 1e-9))


def compared(task: Task, noise: KeyRef) -> dict[str, Rows]:
    """Training rows by how they were made."""
    count, made = len(task.private[0]), Synthesis(plan_lid(task.spec), task.private, noise)
    out = {"original": task.seen(task.private), "published (not DP)": task.features.of(made.rows())}
    for epsilon in EPSILONS:
        for products in ("modelled", "measured"):
            planned = plan(private_spec(task, epsilon, products, count))
            released = released_codes(rehearse(planned, stages_of(planned), task.private, key=noise))
            out[f"private, {products} moments, epsilon {epsilon:g}"] = task.seen(released)
        out[f"plausible deniability (omega all), epsilon {epsilon:g}"] = deniable(task, epsilon, count)
    return out


CLIENTS = 8


def clients(trials: int, names: Sequence[str] = ("simulation", "california", "eia")) -> dict[str, Any]:
    """Errors of a random forest trained on private releases of one curator and of `CLIENTS` of equal size."""
    out, rows = {}, []
    for name in names:
        found: dict[tuple[float, str], list[float]] = {}
        for trial in range(trials):
            task = SimulatedTask(trial) if name == "simulation" else Task(name, trial)
            test, count = task.seen(task.test), len(task.private[0])
            dealt = np.random.default_rng(trial).integers(0, CLIENTS, count)
            parts = [[column[dealt == i] for column in task.private] for i in range(CLIENTS)]
            for epsilon in (1.0, 3.0):
                spec = private_spec(task, epsilon, "modelled", count)
                for how, planned in planned_by(spec).items():
                    stages = stages_of(planned) if how == "one curator" else together(planned, parts)
                    released = released_codes(rehearse(planned, stages, task.private, key=key(trial)))
                    error = errors(task.seen(released), test, ("RF",))["RF"] / float(test[1].var())
                    found.setdefault((epsilon, how), []).append(error)
        print(name, file=sys.stderr, flush=True)
        out[name] = {f"{how}, epsilon {epsilon:g}": mean_sd(errors) for (epsilon, how), errors in found.items()}
        for epsilon in (1.0, 3.0):
            cells = [mean_sd(found[epsilon, how]) for how in ("one curator", "masked", "noise of each")]
            rows.append([name, f"{epsilon:g}", *(f"{c['mean']:.3f} ± {c['sd']:.3f}" for c in cells)])
    about = {
        "title": f"Private two-stage releases of {CLIENTS} clients",
        "note": f"Squared error of a forest trained on the release, over the variance of the response; mean and "
        f"deviation of {trials} trials, δ = 10⁻⁶, moments of the model.",
    }
    keep("prediction", "clients", about, ["table", "ε", "one curator", "8 clients, masked", "8 clients, local"], rows)
    return {"trials": trials} | out


def planned_by(spec: TwoStageSpec) -> dict[str, PrivatePlan]:
    """The plan of one curator, and those of clients."""
    plans = {"one curator": plan(spec)}
    for how, trust in (("masked", "correlated"), ("noise of each", "local")):
        names = [f"c{i}" for i in range(CLIENTS)]
        identities = {name: identity_text(Ed25519PrivateKey.generate()) for name in names}
        each = [{"name": n, "path": n, "dataset": n, "work": n} for n in names]
        if trust == "correlated":
            each = [one | {"identity": "none", "public_key": identities[one["name"]]} for one in each]
        tree = spec.model_dump(mode="json", by_alias=True) | {"federated": {"trust": trust, "clients": each}}
        tree["data"].pop("path")
        plans[how] = plan(load(tree))
    return plans


def together(planned: FederatedPrivatePlan, parts: Sequence[Codes]) -> Sequence[Stage[Any, Any]]:
    """The stages of a release whose statistics are sums of what each part says with its own noise."""

    def measure(attempt: Any) -> FittedInputs:
        seed = attempt.noise.words("clients", 1)[0]
        noises = [Noise(hashlib.sha256(f"{seed} {i}".encode()).digest()) for i in range(len(parts))]

        def answer(statistic: Statistic) -> NoisySums:
            kind, work, _ = statistic
            charge = planned.own_charge
            drawn = [kind.draw(work.chunk(p), charge=charge, noise=n) for p, n in zip(parts, noises, strict=True)]
            return attempt.stored(kind, lambda: drawn[0].filled(added([one.flat for one in drawn])))

        return replace(answered(asked(planned, attempt.noise), answer), clients=len(parts))

    return (Stage("measure", measure), *STAGES[1:])


def private_spec(task: Task, epsilon: float, products: str, count: int) -> Any:
    """The private variant's spec for a task."""
    tree = task.spec.model_dump(mode="json", by_alias=True)
    tree["privacy"] = {"guarantee": "dp", "epsilon": epsilon, "delta": 1e-6}
    tree["prediction"] = {
        "response": tree["prediction"]["response"],
        "log": tree["prediction"]["log"],
        "records": count,
        "features": {"products": products},
    }
    tree["data"]["minimum_records"] = round(0.9 * count)
    return load(tree)


def deniable(task: Task, epsilon: float, count: int) -> Rows:
    """Records of a plausible-deniability release (every attribute resampled) at the same budget, 16 bins a number.

    With fewer than 5,000 records a structure cannot be learned within these budgets: independent marginals.
    """
    attributes, learned = [], count >= 5000
    for attribute, scale in zip(task.columns.attributes, task.columns._in_order, strict=True):
        tree = attribute.model_dump(mode="json", exclude_defaults=True)
        if attribute.kind == "number" or (attribute.kind == "integer" and (scale.count or 0) > 16):
            edges = [float(attribute.bounds[0]), *scale.edges(16).tolist()]
            tree["bins"] = {"edges": edges if attribute.kind == "number" else [round(e) for e in edges]}
        attributes.append(tree)
    with tempfile.TemporaryDirectory() as folder:
        columns = []
        for attribute, column in zip(task.columns.attributes, task.private, strict=True):
            if attribute.kind == "integer":
                columns.append(pa.array(column.astype(np.int64) + int(attribute.bounds[0])))
            elif attribute.values is not None:
                columns.append(pa.array([attribute.values[code] for code in column]))
            else:
                columns.append(pa.array(column))
        pq.write_table(pa.table(columns, names=list(task.spec.table.names)), f"{folder}/table.parquet")
        ledger = Books.open(f"sqlite:///{folder}/ledger.db")
        ledger.create_dataset("d", epsilon=100, delta="1e-5", guarantees=("dp",))
        ledger.close()
        spec = load(
            {
                "kind": "plausible-deniability",
                "name": "r",
                "dataset": "d",
                "schema": {"attributes": attributes},
                "data": {"path": f"{folder}/table.parquet", "minimum_records": round(0.8 * count)},
                "output": {"path": f"{folder}/release"},
                "ledger": f"sqlite:///{folder}/ledger.db",
                "work": f"{folder}/work",
                "cluster": {"mode": "threads", "partitions": 1},
                "privacy": {"model": {"epsilon": epsilon, "delta": 1e-6}},
                "split": {"structure": 0.3 if learned else 0, "parameters": 0.7 if learned else 1, "seeds": 0},
                "model": {"structure": "learned" if learned else "independent"},
                "synthesis": {"records": count, "omega": "all"},
            }
        )
        run_release(spec)
        released = pq.read_table(f"{folder}/release/data")
    codes: list[Any] = []
    for attribute in task.columns.attributes:
        column = released[attribute.name].to_pylist()
        if attribute.kind == "integer":
            codes.append(np.clip(np.array(column) - int(attribute.bounds[0]), 0, attribute.cardinality - 1))
        elif attribute.values is not None:
            codes.append(np.array([attribute.values.index(value) for value in column]))
        else:
            codes.append(np.array(column, np.float64))
    return task.seen(codes)
