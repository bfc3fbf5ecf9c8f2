"""Specs at random: what a plan accepts runs to its end, with any options, sizes and budgets, on any records.

A spec that fails after its charge costs its owner a budget, and its failure may depend on a record. So each small spec
is refused by its plan, or its stages end; only a declared bound that is not confirmed ends them earlier. Thousands of
specs run by themselves::

    PYTHONPATH=tests python tests/contract/test_random_specs.py --number 20000
"""

import argparse
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dpdist.errors import AccountingError, CheckFailed, DpdistError
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.attribute import Attribute
from dpdist.spec.reader import load

Tree = dict[str, Any]
ROWS = (0, 1, 2, 7, 60, 400)
MINIMA = (1, 2, 30, 1_000, 10**6, 10**9)
EPSILONS = (1e-6, 1e-3, 0.1, 1, 8, 20)
DELTAS = (1e-15, 1e-10, 1e-7, 1e-3, 0.09)


def some(rng: random.Random, *values: Any) -> Any:
    return rng.choice(values)


def maybe(rng: random.Random, tree: Tree, name: str, *values: Any, chance: float = 0.4) -> None:
    """Set an option, or leave its default."""
    if rng.random() < chance:
        tree[name] = rng.choice(values)


# --- attributes and records -------------------------------------------------------------------------------------------


def attribute(rng: random.Random, name: str, *, continuous: bool = False) -> Tree:
    size = some(rng, 1, 1, 2, 2, 3, 5, 12, 30)
    kind = some(rng, "categorical", "ordinal", "integer", "number")
    tree: Tree = {"name": name, "kind": kind}
    if kind in ("categorical", "ordinal"):
        tree["values"] = [f"v{k}" for k in range(size)] if rng.random() < 0.5 else list(range(size))
    elif kind == "integer":
        tree["bounds"] = [-2, size - 3]
        maybe(rng, tree, "bins", {"count": 1}, {"count": size}, chance=0.3)
    else:
        tree |= {"bounds": [-1.5, 4.0]} | ({} if continuous and rng.random() < 0.7 else {"bins": {"count": size}})
    if "bins" in tree:
        maybe(rng, tree, "heaps", [0], [-1, 1], [tree["bounds"][0]], chance=0.3)
        if kind == "number":
            maybe(rng, tree, "step", 0.01, 0.3, 1, 5.5, chance=0.3)
    if tree.get("values", [0])[0] == "v0" and size == 2:
        maybe(rng, tree, "values", ["true", "false"], ["2024-02-29", "1969-12-31"])
    if kind != "number" or "bins" in tree:
        maybe(rng, tree, "buckets", {"width": 1}, {"width": 2}, {"width": 100}, chance=0.3)
        maybe(rng, tree, "missing", {"category": "none"}, chance=0.25)
    return tree


def schema(rng: random.Random, *, least: int = 1, continuous: bool = False) -> Tree:
    names = ["a", "b", "c"][: max(some(rng, 1, 1, 2, 3), least)]
    tree: Tree = {"attributes": [attribute(rng, name, continuous=continuous) for name in names]}
    first, last = tree["attributes"][0], tree["attributes"][-1]
    if len(names) > 1 and first.get("values") and last.get("values") and rng.random() < 0.15:
        tree["rules"] = [{"impossible": f"a = {first['values'][0]!r} and {names[-1]} = {last['values'][-1]!r}"}]
    return tree


def column(attribute: Attribute, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Codes of one value, of few or of all; numbers are within their bounds."""
    if attribute.is_continuous:
        low, high = attribute.bounds or (0.0, 1.0)
        return np.clip(rng.choice([low, high, rng.uniform(low, high)]) + 0.1 * rng.normal(size=rows), low, high)
    used = rng.integers(0, attribute.cardinality, int(rng.integers(1, 1 + min(attribute.cardinality, 9))))
    return rng.choice(used, rows).astype(attribute.dtype)


# --- specs by kind ----------------------------------------------------------------------------------------------------


def synthesis(rng: random.Random) -> Tree:
    tree: Tree = {"schema": schema(rng), "privacy": {"epsilon": some(rng, *EPSILONS), "delta": some(rng, *DELTAS)}}
    names = [a["name"] for a in tree["schema"]["attributes"]]
    maybe(rng, tree["privacy"], "accuracy_share", 0, 1e-6, 0.5)
    model: Tree = {}
    maybe(rng, model, "rounds", 0, 1, 3)
    maybe(rng, model, "balance", 0, 1, 7)
    maybe(rng, model, "target", *names)
    if len(names) > 1:
        maybe(rng, model, "priorities", [{"attributes": names[:2], "weight": some(rng, 1e-9, 100)}], chance=0.2)
    tree |= {"model": model, "synthesis": {}}
    tree["synthesis"]["records"] = some(rng, 1, 2, 333, 2_100)
    numbers = [a for a in tree["schema"]["attributes"] if a["kind"] in ("integer", "number")]
    if len(numbers) > 1 and rng.random() < 0.7:
        name, other = numbers[0]["name"], numbers[1]["name"]
        tree["regressions"] = [f"regression {name} on {other}", f"logistic regression {name} >= -1.5 on {other}"][
            : some(rng, 1, 2)
        ]
        maybe(rng, tree["privacy"], "regression_share", 1e-9, 0.4)
    return tree


def deniability(rng: random.Random) -> Tree:
    tree: Tree = {"schema": schema(rng)}
    m = len(tree["schema"]["attributes"])
    budget = {"epsilon": some(rng, *EPSILONS), "delta": some(rng, 1e-10, 1e-7, 1e-3)}
    test: Tree = {"k": some(rng, 1, 2, 50), "gamma": some(rng, 1.0001, 4), "epsilon0": some(rng, 0.02, 1, 100)}
    maybe(rng, test, "test", "deterministic", chance=0.2)
    tree["privacy"] = {"model": budget, "deniability": test, "checked_candidates": some(rng, 1, 100, 3_000)}
    maybe(rng, tree["privacy"], "seed_check_epsilon", 1e-6, 10)
    maybe(rng, tree["privacy"], "accept_per_record", True, chance=0.7)
    model: Tree = {"structure": some(rng, "learned", "learned", "independent", "synthesis")}
    maybe(rng, model, "score", "cfs")
    maybe(rng, model, "order", "learned")
    tree["model"] = model
    tree["synthesis"] = {"records": some(rng, 1, 40), "minimum_pass_rate": some(rng, 1e-3, 0.1, 1)}
    maybe(rng, tree["synthesis"], "omega", "all", 1, m, list(range(1, m + 1)), chance=0.8)
    maybe(rng, tree, "split", {"records": "all"}, {"structure": 0, "parameters": "1/2", "seeds": "1/2"}, chance=0.3)
    return tree


def histogram(rng: random.Random) -> Tree:
    tree: Tree = {"schema": schema(rng)}
    names = [a["name"] for a in tree["schema"]["attributes"]]
    queries = [{"columns": rng.sample(names, rng.randint(1, len(names)))} for _ in range(some(rng, 1, 1, 2, 3))]
    for query in queries:
        maybe(rng, query, "buckets", True, chance=0.2)
        if len(queries) == 2 and rng.random() < 0.3:
            query["share"] = some(rng, "1/2", "1/1000000000000000", "999999999999999/1000000000000000")
        if rng.random() < 0.2:
            query["adaptive"] = {query["columns"][0]: some(rng, 2, 3)}
    privacy: Tree = {"epsilon": some(rng, *EPSILONS), "delta": some(rng, 0, *DELTAS)}
    maybe(rng, privacy, "mechanism", "laplace", "gaussian")
    maybe(rng, privacy, "adjacency", "replacement", chance=0.3)
    if rng.random() < 0.15:
        privacy |= {"mechanism": "pml", "adjacency": "replacement", "alpha": some(rng, 1e-6, 0.1, 0.5, 1), "delta": 0}
        maybe(rng, privacy, "accept_no_noise", True)
    tree |= {"privacy": privacy, "histograms": queries, "counts": {}}
    maybe(rng, tree, "histograms", "each column", chance=0.2)
    maybe(rng, tree, "shares", "equal")
    maybe(rng, tree["counts"], "non_negative", False)
    maybe(rng, tree["counts"], "total", "common", 0, 1, 10**9)
    maybe(rng, tree["counts"], "entropies", [1.0], [0.5, 1e-6, 1e6], chance=0.3)
    if rng.random() < 0.3:
        tree["entropies"] = {"orders": some(rng, [1.0], [0.5], [2.0, 10.0], [1e6])}
        maybe(rng, tree["entropies"], "share", "1/1000000", "99/100")
        maybe(rng, tree["entropies"], "mechanism", "laplace", "gaussian")
    return tree


def curves(rng: random.Random) -> Tree:
    names = ["a", "b", "c"][: some(rng, 2, 3)]
    attributes = [{"name": name, "kind": "number", "bounds": [-1.5, 4.0]} for name in names]
    found: Tree = {"columns": names, "penalty": some(rng, 1e-9, 0.01, 1e9), "clip": some(rng, 1e-6, 1, 1e6)}
    maybe(rng, found, "kernel", *({"name": name, "length": 1e-3} for name in ("wiener", "gaussian", "matern")))
    maybe(rng, found, "terms", 1, 2, 50)
    privacy: Tree = {"epsilon": some(rng, *EPSILONS), "delta": some(rng, *DELTAS)}
    maybe(rng, privacy, "adjacency", "replacement")
    return {"kind": "histogram", "schema": {"attributes": attributes}, "curves": found, "privacy": privacy}


def mixing(rng: random.Random) -> Tree:
    tree: Tree = {"schema": schema(rng, least=2, continuous=True)}
    label = tree["schema"]["attributes"][0]
    label.pop("missing", None)
    label |= {"kind": "categorical", "values": ["v0", "v1", "v2"][: some(rng, 1, 2, 3)]}
    for name in ("bounds", "bins", "buckets"):
        label.pop(name, None)
    tree["schema"].pop("rules", None)
    privacy: Tree = {"epsilon": some(rng, 0.1, 1, 8, 20), "delta": some(rng, *DELTAS[1:])}
    classes = {
        value: {"minimum": some(rng, 300, 1_000, 20_000), "records": some(rng, 1, 50)} for value in label["values"]
    }
    made: Tree = {"class": label["name"], "classes": classes}
    maybe(rng, made, "order", 1, 2, 64)
    maybe(rng, made, "scaling", "centred", "standardised")
    maybe(rng, made, "clip", 1e-6, 1, 1e6)
    maybe(rng, made, "noise_on_labels", "paper")
    maybe(rng, made, "release", "vectors")
    maybe(rng, made, "spread", "mixtures")
    return tree | {"privacy": privacy, "mixing": made}


def two_stage(rng: random.Random) -> Tree:
    tree: Tree = {"schema": schema(rng, least=2, continuous=True)}
    tree["schema"].pop("rules", None)
    response = {"name": "a", "kind": "number", "bounds": [-1.5, 4.0]}
    tree["schema"]["attributes"][0] = response
    privacy: Tree = {"guarantee": "dp", "epsilon": some(rng, *EPSILONS), "delta": some(rng, 1e-10, 1e-7, 1e-3)}
    made: Tree = {"response": "a", "records": some(rng, 1, 50)}
    maybe(rng, made, "first_stage", "gaussian-copula")
    maybe(rng, made, "matching", "greedy", "independent")
    maybe(rng, made, "log", {"a": 1e-6}, {"a": 1e6}, chance=0.2)
    return tree | {"privacy": privacy, "prediction": made}


KINDS: dict[str, tuple[float, Callable[[random.Random], Tree]]] = {
    "synthesis": (0.75, synthesis),
    "plausible-deniability": (0.03, deniability),
    "histogram": (0.13, histogram),
    "curves": (0.05, curves),
    "mixing": (0.01, mixing),
    "two-stage": (0.03, two_stage),
}


def spec_of(seed: int, kind: str | None = None) -> Tree:
    """The spec of a seed."""
    rng = random.Random(seed)
    chosen = kind or rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    return {
        "kind": chosen if chosen != "curves" else "histogram",
        "name": "random",
        "dataset": "people",
        "data": {"path": "table.parquet", "minimum_records": some(rng, *MINIMA)},
        "output": {"path": "release", "rows_per_part": some(rng, 1_000, 2_000)},
        "cluster": {"mode": "in-process"},
    } | KINDS[chosen][1](rng)


def outcome(seed: int, kind: str | None = None) -> str:
    """How the spec of a seed ends: refused, run, or not confirmed; any other error is raised."""
    try:
        plan = make_plan(load(spec_of(seed, kind)))
    except DpdistError:
        return "refused"
    rng = np.random.default_rng(seed)
    rows = int(rng.choice(ROWS))
    codes: Codes = [column(attribute, rows, rng) for attribute in plan.spec.table.attributes]
    try:
        rehearsed(plan, codes, key_from(Noise(seed.to_bytes(32, "big"))), partitions=int(rng.integers(1, 4)))
    except CheckFailed:
        return "not confirmed"
    return "run"


def rehearsed(plan: Plan, codes: Codes, key: KeyRef, *, partitions: int) -> None:
    plan.explain()
    plan.to_json()
    rehearse(plan, stages_of(plan), codes, key=key, until=None, partitions=partitions)


SAMPLE: dict[str, tuple[int, ...]] = {
    "synthesis": tuple(range(40)),
    "histogram": tuple(range(20)),
    "curves": tuple(range(10)),
    "two-stage": (3, 4, 5, 6),
    "plausible-deniability": (0, 2, 3, 6, 9),
    "mixing": (2, 7, 9),
}
"""Seeds whose specs take a few seconds together."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_plan_accepts_runs_to_its_end(kind: str) -> None:
    found = Counter(outcome(seed, kind) for seed in SAMPLE[kind])
    assert found["run"] + found["not confirmed"] > 0, found


def test_a_guarantee_that_cannot_be_stated_is_refused_by_the_plan() -> None:
    """Not when the release is published, which is after its charge."""
    tree = spec_of(0, "plausible-deniability") | {
        "schema": {"attributes": [{"name": n, "kind": "categorical", "values": ["x", "y", "z"]} for n in "ab"]},
        "data": {"path": "table.parquet", "minimum_records": 10**6},
        "model": {"structure": "independent"},
        "synthesis": {"records": 40, "omega": 1},
        "split": {},
    }
    for k, fits in ((20, True), (2, False)):
        test = {"k": k, "gamma": 4, "epsilon0": 1}
        tree["privacy"] = {"model": {"epsilon": 1, "delta": 1e-3}, "deniability": test, "accept_per_record": True}
        with nullcontext() if fits else pytest.raises(AccountingError, match="raise k to at least 8"):
            make_plan(load(tree))


def _stop(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--seconds", type=int, default=60, help="of one spec at most")
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    ends: Counter[tuple[str, str]] = Counter()
    for seed in range(given.first, given.first + given.number):
        kind = str(spec_of(seed, given.kind)["kind"])
        signal.alarm(given.seconds)
        try:
            ends[kind, outcome(seed, given.kind)] += 1
        except TimeoutError:
            ends[kind, "slow"] += 1
            print(f"seed {seed}: slow", flush=True)
        except Exception:
            ends[kind, "FAILED"] += 1
            print(f"seed {seed}: {spec_of(seed, given.kind)}\n{traceback.format_exc()}", flush=True)
    for (kind, end), number in sorted(ends.items()):
        print(f"{kind}: {end} {number:,}")
    sys.exit(any(end == "FAILED" for _, end in ends))


if __name__ == "__main__":
    os.environ["DPDIST_TEST_KEYS"] = "1"
    main()
