"""What federation costs: distances of a synthesis over clients beside one curator, and beside noise of each client.

    python tests/benchmarks/bench_federated.py --json bench/federated.json [--tables adult] [--keys 3] [--epsilon 1]

Tables are dealt to clients: at random, sorted by the last attribute, with 60 % at one client, or by state. Each client
computes its masked part of every sum with a key of its own, as in a release (`dpdist.federated.sums`); ledgers and
files are left out. *local* is without masks: each client's noise protects its message by itself. No kind measures the
accuracy of the records, so all have the same budget for the model. Distances are those of `bench_synthesis.py`, delta
is 1e-9. Keys are seeded, **not private**.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from bench_synthesis import Distances, table_of
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from harness import Clock, argument_parser, write

from dpdist.accuracy.tables import Tables
from dpdist.families.base.registry import make_plan
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.families.synthesis.plan import SynthesisPlan, widening_of
from dpdist.families.synthesis.stages import stages
from dpdist.federated.messages import LEAST_SIGMA, Masks, identity_text, public_key
from dpdist.federated.sums import Question, added, part_of, tables_in
from dpdist.model.account import GaussianAccount
from dpdist.model.draw import draw_records
from dpdist.model.learn import Known, learn
from dpdist.model.sums import AskedCounts, Sum
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec

DEALS = {"adult": ("random", "class", "large"), "acs2013": ("random",), "acs2024": ("state",)}


def dealt(codes: Codes, shipped: ReleaseSpec, how: str, clients: int) -> list[Codes]:
    """The records of each client."""
    rows = len(codes[0])
    if how == "state":
        state = codes[shipped.table.names.index("state")]
        places = [np.flatnonzero(state == value) for value in np.unique(state)]
    else:
        order = np.argsort(codes[-1], kind="stable") if how == "class" else np.random.default_rng(0).permutation(rows)
        first = [0.6, *[0.4 / (clients - 1)] * (clients - 1)] if how == "large" else [1 / clients] * clients
        places = np.split(order, (np.cumsum(first)[:-1] * rows).astype(int))
    return [[column[rows] for column in codes] for rows in places]


def spec_of(shipped: ReleaseSpec, *, epsilon: float, records: int, clients: int, trust: str = "") -> ReleaseSpec:
    """A synthesis of the table of a shipped spec; of clients where they are trusted somehow."""
    tree: dict[str, Any] = {
        "kind": "synthesis",
        "name": "bench",
        "dataset": "bench",
        "schema": shipped.table.model_dump(mode="json", exclude_none=True),
        "data": {"path": "unused", "minimum_records": round(0.9 * records)},
        "output": {"path": "unused"},
        "synthesis": {"records": records},
        "privacy": {"epsilon": epsilon, "delta": 1e-9, "accuracy_share": 0},
    }
    if trust:
        del tree["data"]["path"]
        listed = [
            {"name": f"c{k}", "path": f"{k}.csv", "dataset": "bench", "work": f"work-{k}", "identity": "unused"}
            | {"public_key": identity_text(Ed25519PrivateKey.from_private_bytes(k.to_bytes(32, "big")))}
            for k in range(clients)
        ]
        tree["federated"] = {"trust": trust, "clients": listed}
    return load(tree)


def together(plan: SynthesisPlan, parts: Sequence[Codes], seed: int) -> Codes:
    """The records of a federated synthesis."""
    spec, cards, clients = plan.spec, plan.spec.table.cardinalities, len(parts)
    tables = [Tables.counted(part, cards) for part in parts]
    keys = [np.random.default_rng([seed, 4, k]).bytes(32) for k in range(clients)]
    masks = [Masks()] * clients
    if spec.is_masked:
        public = [public_key(key) for key in keys]
        masks = [Masks.agree(key, [p for p in public if p != public_key(key)], context="bench") for key in keys]
    widening, asked = widening_of(spec, clients), 0

    def ask(step: str, sums: Sequence[Sum], sigmas: Floats) -> tuple[list[Counts], Floats]:
        nonlocal asked
        question = Question(asked, step, tuple(sums), tuple((sigmas / widening).tolist()))
        asked += 1
        sent = [
            part_of(own, question, Noise(key), mask, honest=spec.honest)
            for own, key, mask in zip(tables, keys, masks, strict=True)
        ]
        return tables_in(added(sent), sums), sigmas

    drawing, least = Noise(np.random.default_rng([seed, 3]).bytes(32)), LEAST_SIGMA * math.sqrt(spec.honest)
    account = GaussianAccount(plan.choices.mu, drawing, ask=ask, widening=widening, least=least)
    known = Known(spec.table.forbidden, spec.table.level_maps)
    fitted = learn(AskedCounts(cards), account, choices=plan.choices, drawing=drawing, known=known).fitted
    rounds, rules = plan.choices.balance, spec.table.forbidden
    made = [draw_records(fitted, drawing, p, rows, rounds=rounds, rules=rules) for p, rows in enumerate(plan.parts)]
    return [np.concatenate(columns) for columns in zip(*made, strict=True)]


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each kind and deal, averaged over the keys."""
    codes, _, shipped = table_of(name)
    distances, records = Distances(codes, shipped.table.cardinalities), len(codes[0])
    kinds = [("curator", "", "")]
    for how in DEALS[name]:
        kinds += [("federated", how, "correlated"), *([("local", how, "local")] if how == DEALS[name][0] else ())]
    for kind, how, trust in kinds:
        parts = dealt(codes, shipped, how, options.clients) if how else [codes]
        spec = spec_of(shipped, epsilon=options.epsilon, records=records, clients=len(parts), trust=trust)
        plan, rows = make_plan(spec), []
        assert isinstance(plan, SynthesisPlan)
        for seed in range(options.keys):
            clock = Clock()
            if how:
                made = together(plan, parts, seed)
            else:
                key = key_from(Noise(np.random.default_rng([seed, 2]).bytes(32)))
                made = released_codes(rehearse(plan, stages(plan), codes, key=key))
            rows.append({**distances.of(made), "cpu": clock.cpu})
        means = {key: round(float(np.mean([row[key] for row in rows])), 4) for key in rows[0]}
        spread = round(float(np.std([row["tvd_2"] for row in rows])), 5)
        about = {"table": name, "kind": kind, "dealt": how, "clients": len(parts), "epsilon": options.epsilon}
        yield {**about, **means, "tvd_2_deviation": spread, "expected": round(plan.expected.error, 4)}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(DEALS), default=list(DEALS))
    parser.add_argument("--clients", type=int, default=8, help="clients of tables that are not dealt by state")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--keys", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for name in options.tables:
        for row in measure(name, options):
            print(json.dumps(row), flush=True)
            rows.append(row)
    write(options, rows)


if __name__ == "__main__":
    main()
