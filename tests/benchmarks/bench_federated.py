"""What federation costs: distances of a synthesis over clients beside one curator, and beside noise of each client.

    python tests/benchmarks/bench_federated.py [--part clients] [--tables adult] [--clients 2 8] [--keys 3]

Tables are dealt to clients: at random, sorted by the last attribute, with 60 % at one client, or by state. Each client
computes its masked part of every sum with a key of its own, as in a release (`dpdist.federated.sums`); ledgers and
files are left out. *local* is without masks: each client's noise protects its message by itself. No kind measures the
accuracy of the records, so all have the same budget for the model. Distances are those of `bench_synthesis.py`, delta
is 1e-9. Keys are seeded, **not private**. Writes `results/federated.json`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Any

import numpy as np
from bench_synthesis import Distances, released, table_of
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from harness import argument_parser, keep, spec_without_places

from dpdist.accuracy import sketched
from dpdist.accuracy.intervals import SMALL, CellErrors
from dpdist.accuracy.measured import Accuracy, measure_accuracy
from dpdist.accuracy.sketched import Sketch
from dpdist.accuracy.tables import Tables, triples_of
from dpdist.families.base.registry import make_plan
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.federated.messages import LEAST_SIGMA, Masks, identity_text, public_key
from dpdist.federated.sums import Question, added, part_of, tables_in
from dpdist.model.account import GaussianAccount
from dpdist.model.draw import draw_records
from dpdist.model.learn import Known, learn
from dpdist.model.sums import AskedCounts, Sum
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.release import ReleaseSpec

DEALS = {"adult": ("random", "class", "large"), "acs2013": ("random",), "acs2024": ("state",)}
WAYS = {"curator": "one curator", "federated": "federated", "local": "local noise", "alone": "each alone"}
MOST_ALONE = 2  # clients whose own releases are looked at


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
    declared = round(0.9 * records)
    sections: dict[str, Any] = {
        "synthesis": {"records": records},
        "privacy": {"epsilon": epsilon, "delta": 1e-9, "accuracy_share": 0},
    }
    if trust:
        listed = [
            {"name": f"c{k}", "path": f"{k}.csv", "dataset": "bench", "work": f"work-{k}", "identity": "unused"}
            | {"public_key": identity_text(Ed25519PrivateKey.from_private_bytes(k.to_bytes(32, "big")))}
            for k in range(clients)
        ]
        sections |= {"data": {"minimum_records": declared}, "federated": {"trust": trust, "clients": listed}}
    return spec_without_places("synthesis", shipped.table, declared, **sections)


def together(plan: SynthesisPlan, parts: Sequence[Codes], seed: int) -> Codes:
    """The records of a federated synthesis."""
    spec, cards, clients = plan.spec, plan.spec.table.cardinalities, len(parts)
    tables = [Tables.counted(part, cards) for part in parts]
    keys = [np.random.default_rng([seed, 4, k]).bytes(32) for k in range(clients)]
    masks = [Masks()] * clients
    if spec.is_masked:
        public = [public_key(key) for key in keys]
        masks = [Masks.agree(key, [p for p in public if p != public_key(key)], context="bench") for key in keys]
    widening, asked = spec.widening(clients), 0

    def ask(step: str, sums: Sequence[Sum], sigmas: Floats) -> tuple[list[Counts], Floats]:
        nonlocal asked
        question = Question(asked, step, tuple(sums), tuple((sigmas / widening).tolist()))
        asked += 1
        sent = [
            part_of([one.of(own) for one in sums], question, Noise(key), mask, honest=spec.honest)
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


@dataclass
class Case:
    """A table, how it is dealt to clients, and the distances of what each way releases, one with each key."""

    table: str
    dealt: str
    clients: int
    epsilon: float
    found: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {name: [] for name in WAYS})

    def release(self, seed: int) -> None:
        """Release with one more key."""
        codes, _, shipped = table_of(self.table)
        cards, parts = shipped.table.cardinalities, dealt(codes, shipped, self.dealt, self.clients)
        of_all, rows, self.clients = Distances(codes, cards), len(codes[0]), len(parts)
        spec = partial(spec_of, shipped, epsilon=self.epsilon)
        first = self.dealt == DEALS[self.table][0]  # how records are dealt says little of the other ways
        for name, trust in (("federated", "correlated"), *([("local", "local")] if first else [])):
            plan = make_plan(spec(records=rows, clients=len(parts), trust=trust))
            assert isinstance(plan, SynthesisPlan)
            self.found[name].append(of_all.of(together(plan, parts, seed)))
        self.found["curator"].append(curated(self.table, self.epsilon, seed))
        for part in parts[:: max(1, len(parts) // MOST_ALONE)][:MOST_ALONE] if first else []:
            alone = released(make_plan(spec(records=len(part[0]), clients=1)), part, seed, 2)
            self.found["alone"].append(Distances(part, cards).of(alone))

    @property
    def row(self) -> dict[str, str]:
        """The mean distances of what each way releases."""
        row = {"table": self.table, "dealt": self.dealt, "clients": str(self.clients)}
        row["keys"] = str(len(self.found["federated"]))
        for order in (2, 3):
            for name, way in WAYS.items():
                each = [one[f"tvd_{order}"] for one in self.found[name]]
                row[f"{way}{'' if order == 2 else ', three-way'}"] = f"{np.mean(each):.4f}" if each else ""
        return row


@lru_cache
def curated(table: str, epsilon: float, seed: int) -> dict[str, float]:
    """The distances of one curator's release."""
    codes, _, shipped = table_of(table)
    spec = spec_of(shipped, epsilon=epsilon, records=len(codes[0]), clients=1)
    return Distances(codes, shipped.table.cardinalities).of(released(make_plan(spec), codes, seed, 2))


def coverage(table: str, clients: int, epsilon: float, keys: int) -> list[dict[str, str]]:
    """How often 95 % intervals cover the cells of the table, and how long they are, by what measured the accuracy."""
    codes, _, shipped = table_of(table)
    cards, parts = shipped.table.cardinalities, dealt(codes, shipped, DEALS[table][0], clients)
    spec = spec_of(shipped, epsilon=epsilon, records=len(codes[0]), clients=len(parts), trust="correlated")
    plan = make_plan(spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"accuracy_share": 0.03})}))  # type: ignore[attr-defined]
    assert isinstance(plan, SynthesisPlan)
    exact, found = Tables.counted(codes, cards), dict[tuple[str, int], list[Floats]]()
    own = [Tables.counted(part, cards) for part in parts]
    for seed in range(keys):
        released = Tables.counted(together(plan, parts, seed), cards)
        for name, accuracy in measured(plan, exact, own, released, seed).items():
            errors = CellErrors(accuracy)
            for order, sets in ((2, combinations(range(len(cards)), 2)), (3, triples_of(cards))):
                for which, true, counts in zip(sets, exact.of(order), released.of(order), strict=True):
                    interval = errors.interval(which, counts)
                    covered = (interval.low <= true) & (true <= interval.high)
                    large = counts > SMALL * released.pairs.total
                    cells = np.stack([covered, interval.high - interval.low, large]).reshape(3, -1)
                    found.setdefault((name, order), []).append(cells)
    rows = []
    for name in dict.fromkeys(name for name, _ in found):
        row = {"table": table, "clients": str(len(parts)), "keys": str(keys), "accuracy by": name}
        for order in (2, 3):
            covered, lengths, large = np.concatenate(found[name, order], axis=1)
            row |= {
                f"{order}-way cells": f"{100 * covered.mean():.1f} %",
                f"above 1 %, {order}-way": f"{100 * covered[large > 0].mean():.1f} %",
                f"length, {order}-way": f"{lengths[large > 0].mean():,.0f}",
            }
        rows.append(row)
    return rows


def measured(
    plan: SynthesisPlan, exact: Tables, own: Sequence[Tables], released: Tables, seed: int
) -> dict[str, Accuracy]:
    """The accuracy of records: by signed sums over clients, and as one curator measures it."""
    cards, mu, records = plan.spec.table.cardinalities, plan.accuracy_mu, exact.pairs.total
    keys = [np.random.default_rng([seed, 5, k]).bytes(32) for k in range(len(own) + 1)]

    def ask(asked: Sequence[Sketch], weights: Sequence[float]) -> tuple[list[Counts], Floats]:
        sums = [replace(AskedCounts(cards).of(*one.attributes), groups=one.groups) for one in asked]
        sigmas = GaussianAccount(mu, Noise(bytes(32))).deviations(1.0, weights)
        question = Question(0, "accuracy", tuple(sums), tuple(sigmas.tolist()))
        sent = [
            part_of([one.of(held) for one in sums], question, Noise(key), Masks(), honest=len(own))
            for held, key in zip(own, keys[1:], strict=True)
        ]
        return tables_in(added(sent), sums), sigmas

    return {
        "signed sums": sketched.measure(released, Noise(keys[0]), records=records, ask=ask),
        "one curator": measure_accuracy(exact, released, records=records, mu=mu, noise=Noise(keys[0])),
    }


NOTE = (
    "Total variation distances of two- and three-way tables to those of all records; *each alone*: of what a client "
    "releases by itself to its own records, the mean of two clients. δ = 10⁻⁹, the mean of so many seeded keys."
)


LENGTHS = "Intervals of 95 %, in records, from the measured accuracy alone, with 3 % of the budget; seeded keys."
TITLES = {
    "deals": "Records that no one sees together",
    "clients": "Records that no one sees together, by number of clients",
    "coverage": "Records that no one sees together: intervals",
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--part", choices=["deals", "clients", "coverage"], default="deals")
    parser.add_argument("--tables", nargs="*", choices=list(DEALS), default=list(DEALS))
    parser.add_argument("--clients", nargs="*", type=int, default=[8], help="of tables that are not dealt by state")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--keys", type=int, default=3)
    options = parser.parse_args()
    title, note = TITLES[options.part], LENGTHS if options.part == "coverage" else NOTE
    cases = [
        Case(table, how, clients, options.epsilon)
        for table in options.tables
        for how in (DEALS[table] if options.part == "deals" else DEALS[table][:1])
        for clients in options.clients
    ]
    rows: list[dict[str, str]] = []
    for seed, case in product(range(1 if options.part == "coverage" else options.keys), cases):
        if options.part == "coverage":
            rows += coverage(case.table, case.clients, case.epsilon, options.keys)
        else:
            case.release(seed)
            rows = [one.row for one in cases if one.found["federated"]]
            print(case.row, flush=True)
        values = [list(row.values()) for row in rows]
        keep("federated", options.part, {"title": title, "note": note}, list(rows[0]), values)


if __name__ == "__main__":
    main()
