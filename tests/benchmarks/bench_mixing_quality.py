"""What models learn from mixtures, with correct accounting: Adult (decision tree) and MNIST (logistic regression).

Run ``python tests/benchmarks/bench_mixing_quality.py adult --json adult.json`` with scikit-learn installed and the
public data in ``../shared/data`` or in the folder that DPDIST_DATA names.

*adult-equal* is Adult with as many mixtures of either class, as DP-CDA publishes it: also at epsilon infinity (no
noise), and instead of vectors as *decoded*, mixtures whose one-hot blocks are decoded by the largest coordinate and
coded again. *adult-labels* is the same with the published noise on labels. *orders* tells the order that dpdist chooses
beside the best one of the stored tables, without a run.

Everything is charged: the checks of the class sizes, the means and deviations of the scaling, and the mixtures, at
their rate in the class. Models are trained on what is released and tested on real records that were not used.
*vectors* are the mixtures, as published; *records* have their spread restored and are decoded into the schema.
"""

import gzip
import json
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from harness import DATA, Clock, argument_parser, keep, write
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from dpdist.errors import SpecError
from dpdist.families.mixing.federated.messages import average, correlated_noise, local_noise, noisy_steps
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import Mixer, clip_rows
from dpdist.families.mixing.plan import plan
from dpdist.families.mixing.restore import mixture_sums, restoration
from dpdist.families.mixing.scaling import Encoding, moment_sums, noisy_moments
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated.messages import Masks, Message, public_key
from dpdist.privacy.noise import Noise

ROOT = Path(__file__).resolve().parents[2]
DELTA = 1e-5
NO_NOISE = 1e-9
CLIENTS = 8
ORDERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PUBLISHED_BEST = {10: 0.7821, 20: 0.7866}
"""Test accuracies of DP-CDA, Table 4, with its own accounting."""

Codes = list[np.ndarray]
Split = tuple[Codes, np.ndarray]
Scores = dict[str, dict[str, float]]


class Task:
    """A table, its training and test parts, and the model that is trained on releases."""

    label_noise = False  # whether labels get the published noise, sigma / sqrt(2) on each coordinate of their indicator
    decoded = False  # whether vectors are released as the paper's experiment has them: decoded and coded again

    def __init__(self, tree: dict[str, Any], train: Split, test: Split, model: Callable[[int], Any]) -> None:
        self.tree, self.train, self.test, self.model = tree, train, test, model

    def plan(self, epsilon: float, order: int | str) -> MixingPlan:
        """The plan of a release; at epsilon infinity one whose noise is lost in rounding."""
        if epsilon == math.inf:
            made = self.plan(20, order)
            moments = None if made.moments is None else replace(made.moments, sigma=NO_NOISE)
            return replace(made, sigma_over_clip=NO_NOISE, moments=moments)
        tree = self.tree | {"privacy": self.tree["privacy"] | {"epsilon": epsilon, "delta": DELTA}}
        tree["mixing"] = self.tree["mixing"] | {"order": order}
        return plan(MixingSpec.model_validate(tree))

    def release(self, made: MixingPlan, key: bytes) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """For each form of the release its features and labels, and the features of the test records."""
        noise = Noise(key)
        codes, labels = self.train
        encoding, clip = made.encoding, made.clip
        if made.moments is not None:
            sums = [moment_sums(encoding, place, column) for place, column in enumerate(codes)]
            moments = noisy_moments(noise, encoding, len(labels), sums, made.moments, minimum=1)
            divide = made.spec.mixing.scaling == "standardised"
            encoding, clip = moments.scaled(encoding, divide=divide), clip or moments.norm(divide=divide)
        clip = clip or 1.0
        rows = clip_rows(encoding.encode(codes), clip=clip)
        mixtures = {}
        for part in made.classes:
            mixer = Mixer(order=made.order, clip=clip, sigma=made.sigma_over_clip * clip, name=f"mixing/{part.code}")
            mixtures[part.code] = mixer.mixtures(noise, rows[labels == part.code], 0, part.mixtures.records)
        yield from self.forms(made, mixtures, encoding, noise, order=made.order, sigma=made.sigma_over_clip * clip)

    def forms(
        self,
        made: MixingPlan,
        mixtures: dict[int, np.ndarray],
        encoding: Encoding,
        noise: Noise,
        *,
        order: int,
        sigma: float,
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """The mixtures of all classes as vectors, and as records."""
        label = np.concatenate([np.full(len(part), code) for code, part in mixtures.items()])
        if self.label_noise:
            drawn = noise.grid_gaussian(
                "labels", 2 * len(label), sigma=made.sigma_over_clip / math.sqrt(2), grid=2**-12, start=0
            )
            label = (np.eye(2)[label] + drawn.reshape(-1, 2)).argmax(axis=1)
        vectors = np.concatenate(list(mixtures.values()))
        if not self.decoded:
            yield "vectors", vectors, label, encoding.encode(self.test[0])
        else:
            published = made.encoding.encode(encoding.decode(vectors))
            yield "decoded", published, label, made.encoding.encode(self.test[0])
        restored = [
            restoration(mixture_sums(part), encoding, order=order, sigma=sigma).apply(part, noise, name=f"fill/{code}")
            for code, part in mixtures.items()
        ]
        decoded = encoding.decode(np.concatenate(restored))
        yield "records", made.encoding.encode(decoded), label, made.encoding.encode(self.test[0])

    def scores(self, made: MixingPlan, run: int) -> Scores:
        """Scores on the test records of models trained on one release."""
        return self.scores_of(self.release(made, run.to_bytes(32, "big")), run)

    def scores_of(self, forms: Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]], run: int) -> Scores:
        """Scores of models trained on each form."""
        return {form: self.score(features, labels, test, run) for form, features, labels, test in forms}

    def score(self, features: np.ndarray, labels: np.ndarray, test: np.ndarray, run: int) -> dict[str, float]:
        """Scores of one model."""
        model = self.model(run).fit(features, labels)
        shares, truth = model.predict_proba(test), self.test[1]
        predicted = model.classes_[shares.argmax(axis=1)]
        scores = {
            "accuracy": accuracy_score(truth, predicted),
            "balanced_accuracy": balanced_accuracy_score(truth, predicted),
        }
        if shares.shape[1] == 2:
            scores["auc"] = roc_auc_score(truth, shares[:, 1])
        return scores

    def real(self) -> dict[str, float]:
        """Scores of a model trained on the real records."""
        encoding = self.plan(20, 64).encoding
        return self.score(encoding.encode(self.train[0]), self.train[1], encoding.encode(self.test[0]), 0)


def adult() -> Task:
    """UCI Adult: its own training and test parts, a class by income, a release as large as the table."""
    schema = yaml.safe_load((ROOT / "deploy" / "releases" / "schemas" / "adult.yaml").read_text())
    parts = []
    for name in ("adult.data", "adult.test"):
        lines = [line.strip().rstrip(".") for line in (DATA / name).read_text().splitlines()]
        fields = [[text.strip() for text in line.split(",")] for line in lines if line and not line.startswith("|")]
        parts.append(list(zip(*fields, strict=True)))
    classes = {"<=50K": {"minimum": 24_000, "records": 24_720}, ">50K": {"minimum": 7_600, "records": 7_841}}
    tree = settings("income", classes, schema, scaling="standardised")
    spec = MixingSpec.model_validate(tree | {"privacy": {"epsilon": 1, "delta": DELTA}})
    train, test = (encoded(spec, part) for part in parts)
    return Task(tree, train, test, lambda seed: DecisionTreeClassifier(min_samples_leaf=20, random_state=seed))


def adult_equal() -> Task:
    """Adult with 16,280 mixtures of either class."""
    made = adult()
    mixing = made.tree["mixing"]
    classes = {value: {"minimum": one["minimum"]} for value, one in mixing["classes"].items()}
    made.tree["mixing"] = mixing | {"classes": classes, "records": 32_560}
    made.decoded = True
    return made


def adult_labels() -> Task:
    """The same with the published noise on labels."""
    made = adult_equal()
    made.label_noise = True
    return made


ORDERED = (  # stored table, its name in the table of orders, task, columns of accuracy
    ("adult", "Adult, proportional", adult, ("vectors: accuracy", "records: accuracy")),
    ("balanced", "Adult, balanced, decoded", adult_equal, ("decoded: accuracy", "records: accuracy")),
    ("mnist", "MNIST", lambda: mnist(), ("vectors: accuracy", "records: accuracy")),
)


def orders() -> None:
    """Write the table of orders again from the stored tables."""
    stored, rows = json.loads((ROOT / "tests/benchmarks/results/mixing.json").read_text())["tables"], []
    for key, name, make, forms in ORDERED:
        columns, made = stored[key]["columns"], make()
        for epsilon in ("1", "10", "20"):
            cells = [row for row in stored[key]["rows"] if row[0] == epsilon and not row[2].startswith("refused")]
            if not cells:
                continue
            rule, row = made.plan(float(epsilon), "auto").order, []
            for form in forms:
                means = {int(cell[1]): float(cell[columns.index(form)].split()[0]) for cell in cells}
                best = max(means.values())
                which = " and ".join(str(order) for order, mean in means.items() if mean == best)
                row.append(f"{which} ({best:.1f}; {means[rule]:.1f})")
            rows.append([name, epsilon, str(rule), *row])
    about = {
        "title": "The order: rule and measured optima",
        "note": "`mixing.order: auto` beside the order with the best accuracy of the tables of this file.",
    }
    columns = ["releases", "ε", "rule", "best for mixtures (its accuracy; the rule's)"]
    keep("mixing", "order", about, [*columns, "best for restored records (its accuracy; the rule's)"], rows)


def encoded(spec: MixingSpec, columns: list[tuple[str, ...]]) -> Split:
    """Codes of the texts of all columns but the class, and of the class."""
    codes: Codes = []
    for attribute, texts in zip(spec.table.attributes, columns, strict=True):
        if attribute.bounds is not None:
            values = np.clip(np.array(texts, np.int64), *attribute.bounds)
            codes.append((np.searchsorted(attribute.bin_edges, values, side="right") - 1).astype(attribute.dtype))
        else:
            known = {str(value): code for code, value in enumerate(attribute.values or ())}
            known |= {text: attribute.missing_code for text in attribute.missing_values}  # type: ignore[dict-item]
            codes.append(np.array([known[text] for text in texts], attribute.dtype))
    label = codes.pop(spec.table.names.index(spec.mixing.label))
    return codes, label.astype(np.int64)


def mnist() -> Task:
    """The 10,000 MNIST images at hand: 8,000 to mix, 2,000 to test; a release of 6,000 images."""
    images = np.frombuffer(gzip.decompress((DATA / "mnist_t10k_images.idx3.gz").read_bytes()), np.uint8, offset=16)
    digits = np.frombuffer(gzip.decompress((DATA / "mnist_t10k_labels.idx1.gz").read_bytes()), np.uint8, offset=8)
    pixels = images.reshape(-1, 784)
    order = np.random.default_rng(0).permutation(len(digits))
    train, test = order[:8000], order[8000:]
    attributes = [{"name": f"pixel{i}", "kind": "integer", "bounds": [0, 255]} for i in range(784)]
    attributes.append({"name": "digit", "kind": "ordinal", "values": list(range(10))})
    classes = {digit: {"minimum": 650, "records": 600} for digit in range(10)}
    tree = settings("digit", classes, {"attributes": attributes}, scaling="centred")
    tree["privacy"] = {"check_share": "1/10"}  # classes are small

    def part(rows: np.ndarray) -> Split:
        return list(np.ascontiguousarray(pixels[rows].T)), digits[rows].astype(np.int64)

    return Task(tree, part(train), part(test), lambda seed: LogisticRegression(max_iter=300, C=0.01, tol=1e-3))


def mnist_cnn() -> Task:
    """The same images with the paper's convolutional network, for which PyTorch is needed."""
    from mnist_cnn import Network

    made = mnist()
    made.model = Network
    return made


def settings(label: str, classes: dict[Any, Any], schema: dict[str, Any], *, scaling: str) -> dict[str, Any]:
    """A spec without its budget and order."""
    return {
        "kind": "mixing",
        "name": "bench",
        "dataset": "bench",
        "data": {"path": "unused.csv", "minimum_records": 1000},
        "schema": schema,
        "output": {"path": "unused"},
        "privacy": {},
        "mixing": {"class": label, "classes": classes, "scaling": scaling},
    }


def federated(runs: int, *, epsilon: float = 10.0, order: int = 8) -> list[dict[str, Any]]:
    """Adult, dealt to 8 clients: one curator, correlated noise (none or two of them colluding) and local noise.

    The curator's mixtures have 8 times the order, so that all averages are over as many records. Scaling by bounds; the
    model is a logistic regression, which varies less from run to run than a tree.
    """
    base = adult()
    base.model = lambda seed: LogisticRegression(max_iter=300, C=0.1)
    base.tree["mixing"] |= {"scaling": "bounds"}
    central = base.plan(epsilon, order * CLIENTS)
    base.tree["mixing"] |= {
        "classes": {
            value: limits | {"minimum": minimum}
            for (value, limits), minimum in zip(base.tree["mixing"]["classes"].items(), (3085, 975), strict=True)
        }
    }
    own = base.plan(epsilon, order)
    clip, encoding = own.clip or 1.0, own.encoding
    tau = own.sigma_over_clip * clip
    settings = {
        "curator": None,
        "correlated": correlated_noise(tau, clients=CLIENTS),
        "correlated, 2 of 8 colluding": correlated_noise(tau, clients=CLIENTS, colluding=2),
        "local": local_noise(tau, clients=CLIENTS),
    }
    codes, labels = base.train
    rows = clip_rows(encoding.encode(codes), clip=clip)
    names = [f"client-{i}" for i in range(CLIENTS)]
    keys = [os.urandom(32) for _ in names]
    results = []
    for name, shared in settings.items():
        scores = []
        for run in range(runs):
            if shared is None:
                scores.append(base.scores(central, run))
                continue
            dealt = deal(labels, run)
            mixtures = {}
            for part in own.classes:
                mixer = Mixer(order=order, clip=clip, sigma=tau, name=f"mixing/{part.code}")
                context = f"{name}/{run}/{part.code}"
                public = [public_key(key) for key in keys]
                messages = []
                for i in range(CLIENTS):
                    noise, taken = Noise((1000 * run + i).to_bytes(32, "big")), (labels == part.code) & (dealt == i)
                    peers = [p for p in public if p != public[i]]
                    masks = Masks.agree(keys[i], peers, context=context) if shared.mask_sigma else Masks()
                    sums = mixer.sums(noise, rows[taken], 0, part.mixtures.records)
                    messages.append(Message(names[i], context, noisy_steps(noise, masks, sums, mixer, shared, 0)))
                mixtures[part.code] = average(messages, mixer)
            forms = base.forms(own, mixtures, encoding, Noise(bytes(32)), order=order * CLIENTS, sigma=shared.average)
            scores.append(base.scores_of(forms, run))
        deviation = central.sigma_over_clip * clip if shared is None else shared.average
        results.append(
            {"noise": name, "epsilon": epsilon, "order": order * CLIENTS, "deviation": deviation} | summary(scores)
        )
    return results


def deal(labels: np.ndarray, run: int) -> np.ndarray:
    """A client for each record; every class in equal shares."""
    rng = np.random.default_rng(run)
    dealt = np.empty(len(labels), np.int64)
    for code in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == code))
        dealt[rows] = np.arange(len(rows)) % CLIENTS
    return dealt


TASKS = {
    "adult": adult,
    "adult-equal": adult_equal,
    "adult-labels": adult_labels,
    "mnist": mnist,
    "mnist-cnn": mnist_cnn,
}
task: Task  # set before the processes fork


def cell(arguments: tuple[float, int, int]) -> dict[str, Any]:
    """Mean and deviation of the scores over some releases at one (epsilon, order)."""
    epsilon, order, runs = arguments
    begin = Clock()
    try:
        made = task.plan(epsilon, order)
    except SpecError as error:
        return {"epsilon": epsilon, "order": order, "refused": str(error)}
    charged = math.inf if epsilon == math.inf else made.epsilon
    results = [task.scores(made, run) for run in range(runs)]
    out = {"epsilon": epsilon, "order": order, "sigma_over_clip": made.sigma_over_clip, "charged": charged}
    return out | summary(results) | {"seconds": begin.seconds}


def summary(results: list[Scores]) -> dict[str, Any]:
    """Mean and deviation of each score of each form."""
    out: dict[str, Any] = {}
    for form in results[0]:
        values = {name: np.array([result[form][name] for result in results]) for name in results[0][form]}
        out[form] = {name: {"mean": v.mean(), "sd": v.std(ddof=1) if len(v) > 1 else 0.0} for name, v in values.items()}
    return out


def show(result: dict[str, Any]) -> str:
    """One line per cell."""
    text = f"epsilon {result['epsilon']:<4g} order {result['order']:<4d} "
    if "refused" in result:
        return text + result["refused"]
    if "noise" in result:
        text += f"{result['noise']:<28} deviation {result['deviation']:.4f}"
    else:
        text += f"sigma/c {result['sigma_over_clip']:.4f}"
    for form in (form for form in ("vectors", "decoded", "records") if form in result):
        scores = [f"{100 * s['mean']:.2f} ± {100 * s['sd']:.2f}" for s in result[form].values()]
        text += f"   {form}: {', '.join(scores)}"
    return text


def main() -> None:
    """Print the tables and, with ``--json``, write them."""
    global task
    parser = argument_parser(__doc__)
    known = ", ".join([*TASKS, "federated", "orders"])
    parser.add_argument("tasks", nargs="*", default=["adult", "adult-equal", "mnist", "federated"], help=known)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=(1.0, 10.0, 20.0))
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    tables: dict[str, Any] = {}
    for name in arguments.tasks:
        if name == "orders":
            orders()
            continue
        if name == "federated":
            tables[name] = federated(arguments.runs)
            print(*map(show, tables[name]), sep="\n", flush=True)
            continue
        task = TASKS[name]()
        real, truth = task.real(), task.test[1]
        majority = float(np.bincount(truth).max() / len(truth))
        print(f"{name}: majority {100 * majority:.2f}; real records", {k: round(100 * v, 2) for k, v in real.items()})
        cells = [(e, o, arguments.runs) for e, o in product(arguments.epsilons, arguments.orders)]
        rows = []
        with ProcessPoolExecutor(arguments.processes, mp_context=get_context("fork")) as pool:
            for result in pool.map(cell, cells):
                rows.append(result)
                print(show(result), flush=True)
        tables[name] = {"real": real, "majority": majority, "published_best": PUBLISHED_BEST, "cells": rows}
    write(arguments, tables)


if __name__ == "__main__":
    main()
