"""The tables of plausible deniability's paper (Bindschaedler, Shokri, Gunter 2017) on the ACS 2013 sample, or the 2024.

    python tests/benchmarks/bench_papers_acs.py --json bench/papers_acs.json [--rows 20000 --records 5000] [--paper
    FILE] [--table acs2024]

Its Table 3 (classifiers of income: accuracy, and agreement with a classifier trained on real records), Table 5 (the
distinguishing game) and the share of candidates that
pass the privacy test for k and omega. Models at (epsilon, delta) = (1, 1e-9), k = 50, gamma = 4, epsilon0 = 1.

Four fifths of the records (100,000 of 2013, 1,334,000 of 2024) make the releases, one fifth tests. The paper had
560,000 to learn from. With omega below 11 a release of this size has no whole-release guarantee on so few seeds: those
are releases per record. Pass rates are for the operator alone where data are private; the ACS sample is public. Keys
and splits are seeded, **not private**.

Figures of the paper are read from a JSON file of the same shape as the one written (`--paper`); without it they are
left out.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from harness import DATA, ROOT, Clock, argument_parser, write

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator, split_labels
from dpdist.data.table import open_table
from dpdist.evaluation.attacks import likeness
from dpdist.evaluation.attacks.intervals import proportion
from dpdist.evaluation.records import view_of
from dpdist.evaluation.utility.models import CLASSIFIERS, Encoder, ModelPredictions, fit, labels_of
from dpdist.families.base.graph import run_pass
from dpdist.families.base.network import Network
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse, released_codes
from dpdist.families.deniability.deniability import SeedSynthesizer, plausible_seeds, seed_ranks
from dpdist.families.deniability.plan import plan
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.privacy.deniability import pass_probability
from dpdist.privacy.noise import Noise
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema

FILES = {"acs2013": "acs2013_sgf_100k.csv", "acs2024": "acs2024_workers.parquet"}
OMEGAS: dict[str, list[int]] = {
    "omega = 11": [11],
    "omega = 10": [10],
    "omega = 9": [9],
    "omega in 9-11": [9, 10, 11],
    "omega in 5-11": [5, 6, 7, 8, 9, 10, 11],
}
ROWS = ("reals", "marginals", *OMEGAS)
TARGET = "incc"
TABLE3 = ("tree", "random forest", "AdaBoost")
PASSING = {**{f"omega = {w}": [w] for w in range(10, 4, -1)}, **{n: w for n, w in OMEGAS.items() if len(w) > 1}}
KS = (10, 25, 50, 100, 250, 500, 1000, 2000)


def release_spec(rows: int, records: int, table: str = "acs2013", **settings: Any) -> PlausibleDeniabilitySpec:
    """The paper's spec for a table of this many rows."""
    changes = {
        "data.path": str(DATA / FILES[table]),
        "data.minimum_records": int(0.95 * rows),
        "synthesis.records": records,
        "synthesis.minimum_pass_rate": 0.01,
        "privacy.deniability.k": min(50, max(2, rows * 50 // 80_000)),  # the paper's k, less for a quick look
    }
    spec = load(ROOT / f"deploy/releases/{table}-paper.yaml", changes | settings)
    assert isinstance(spec, PlausibleDeniabilitySpec)
    return spec


def people(rows: int | None, seed: int, table: str = "acs2013") -> tuple[Codes, Codes, Schema]:
    """Records to release from, and records to test with."""
    spec = release_spec(1000, 10, table)
    codes, _ = run_pass(open_table(table_source(spec), spec.table), gather_operator())
    order = np.random.default_rng([seed, 0]).permutation(len(codes[0]))[:rows]
    cut = len(order) * 4 // 5
    train, test = ([column[part] for column in codes] for part in (order[:cut], order[cut:]))
    return train, test, spec.table


def releases(train: Codes, records: int, seed: int, table: str = "acs2013") -> Iterator[tuple[str, Codes]]:
    """The releases that the tables compare, by name; reals are a half of the real records."""
    rows = len(train[0])
    yield "reals", [column[rows // 2 :][:records] for column in train]
    kinds: dict[str, dict[str, Any]] = {
        "marginals": {"model.structure": "independent", "synthesis.omega": "all"},
        **{name: {"synthesis.omega": omegas} for name, omegas in OMEGAS.items()},
    }
    for number, (name, settings) in enumerate(kinds.items()):
        made = plan(release_spec(rows, records, table, **settings))
        key = KeyRef.fixed(np.random.default_rng([seed, 1, number]).bytes(32).hex())
        yield name, released_codes(rehearse(made, stages_of(made), train, key=key))


class Tables:
    """Tables 3 and 5, a row for each release."""

    def __init__(self, train: Codes, test: Codes, schema: Schema, records: int, seed: int) -> None:
        self._seed, view = seed, view_of(schema)
        self._target = schema.names.index(TARGET)
        self._real = [column[: len(column) // 2][:records] for column in train]
        self._test, self._view = test, view
        places = [i for i in range(len(schema.names)) if i != self._target]
        self._encoder = Encoder.of(view, places, train)
        self._truth = labels_of(test, view, self._target)
        self._reference = {name: self._fitted(name, self._real) for name in CLASSIFIERS}

    def _fitted(self, name: str, records: Codes) -> ModelPredictions:
        kind = CLASSIFIERS[name]
        matrix, test = (self._encoder.matrix(table, kind.sees) for table in (records, self._test))
        return fit(kind.make, self._seed, matrix, labels_of(records, self._view, self._target), test)

    def classifiers(self, records: Codes) -> dict[str, Any]:
        """Accuracy and agreement of each classifier trained on a release (Table 3)."""
        found = {}
        for name in TABLE3:
            model = self._fitted(name, records)
            right = int((model.predicted == self._truth).sum())
            found[name] = {
                "accuracy": asdict(proportion(right, len(self._truth))),
                "agreement": model.agreement(self._reference[name]),
            }
        return found

    def game(self, records: Codes) -> dict[str, Any]:
        """How often records of a release are told from real ones (Table 5)."""
        found = {}
        for name, classifier in likeness.CLASSIFIERS.items():
            accuracy, _ = likeness.play(self._real, records, classifier=classifier, seed=self._seed)
            found[name] = asdict(accuracy)
        return found


def pass_rates(train: Codes, candidates: int, seed: int, table: str = "acs2013") -> dict[str, Any]:
    """Share of candidates that pass, for each omega and k, by the order of the attributes."""
    result: dict[str, Any] = {"candidates": candidates, "k": list(KS)}
    for order in ("small-first", "learned"):
        spec = release_spec(len(train[0]), 1, table, **{"synthesis.omega": [11], "model.order": order})
        key = KeyRef.fixed(np.random.default_rng([seed, 3]).bytes(32).hex())
        network, noise = (
            rehearse(plan(spec), stages_of(plan(spec)), train, key=key, until=Network).result(Network),
            load_noise(key),
        )
        labels = split_labels(noise, file=0, row_start=0, count=len(train[0]), shares=spec.split.shares)
        seeds = [column[labels == 2] for column in train]
        result["seeds"] = len(seeds[0])
        result[order] = {
            name: passing(SeedSynthesizer(network, tuple(omegas)), seeds, noise, candidates)
            for name, omegas in PASSING.items()
        }
        result[order]["attributes"] = [spec.table.names[i] for i in network.order]
    return result


def passing(
    synthesizer: SeedSynthesizer,
    seeds: Codes,
    noise: Noise,
    candidates: int,
    *,
    gamma: float = 4.0,
    ks: Sequence[int] = KS,
) -> list[float]:
    """Expected share that passes for each k, over the threshold noise."""
    index = SeedIndex(synthesizer.prefix_code, seed_keys(synthesizer.prefix_code, seeds))
    prefix = index.prefixes(seed_ranks(noise, 0, candidates, seeds=index.size))
    made = synthesizer.propose(noise, prefix, 0, candidates)
    plausible = plausible_seeds(synthesizer, made, index.counts(made.codes), gamma=gamma)
    return [round(float(pass_probability(plausible, k=k, epsilon0=1.0).mean()), 4) for k in ks]


def markdown(report: dict[str, Any], paper: dict[str, Any]) -> str:
    """The tables for the documentation in per cent, the paper's figure in brackets after each of ours."""

    def both(value: float, *path: str) -> str:
        node: Any = paper
        for name in path:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, (int, float)):
            return f"{100 * value:.1f} ({100 * node:.1f})"
        return f"{100 * value:.1f}" if path[0] == "pass_rates" else f"{100 * value:.1f} (—)"  # a plot in the paper

    def table(head: list[str], rows: list[list[str]]) -> list[str]:
        return ["", *(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))]

    kinds = [(name, what) for what in ("accuracy", "agreement") for name in TABLE3]
    rows = []
    for name in ROWS:
        row = {kind: report["table3"][name][kind] for kind in TABLE3}
        values = [row[k]["accuracy"]["value"] if what == "accuracy" else row[k]["agreement"] for k, what in kinds]
        cells = [both(value, "table3", name, k, what) for value, (k, what) in zip(values, kinds, strict=True)]
        rows.append([name, *cells])
    lines = table(["trained on", *(f"{name}, {what}" for name, what in kinds)], rows)
    games = list(likeness.CLASSIFIERS)
    rows = [[name, *(both(report["table5"][name][g]["value"], "table5", name, g) for g in games)] for name in ROWS]
    lines += table(["real records against", *games], rows)
    rates = report["pass_rates"]
    for order in ("small-first", "learned"):
        rows = [
            [name, *(both(x, "pass_rates", order, name, str(k)) for x, k in zip(rates[order][name], KS, strict=True))]
            for name in PASSING
        ]
        lines += table([f"order {order}", *(f"k = {k}" for k in KS)], rows)
    return "\n".join(lines[1:])


def split(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """All tables, and the pass rates of the first split."""
    start = Clock()
    train, test, schema = people(options.rows, seed, options.table)
    tables = Tables(train, test, schema, options.records, seed)
    report: dict[str, Any] = {"rows": len(train[0]), "table3": {}, "table5": {}}
    for name, records in releases(train, options.records, seed, options.table):
        report["table3"][name] = tables.classifiers(records)
        report["table5"][name] = tables.game(records)
        print(f"{start.seconds:7.1f} s  {name}", flush=True)
    if seed == options.seed:
        report["pass_rates"] = pass_rates(train, options.candidates, seed, options.table)
    return report


def averaged(reports: list[Any]) -> Any:
    """Reports of several splits as one: means of numbers, and what the first says of all else."""
    first = reports[0]
    if isinstance(first, dict):
        return {name: averaged([r[name] for r in reports if name in r]) for name in first}
    return float(np.mean(reports)) if isinstance(first, float) else first


def main() -> None:
    """Make the releases and the tables; print Markdown, write JSON."""
    parser = argument_parser(__doc__)
    parser.add_argument("--table", choices=list(FILES), default="acs2013")
    parser.add_argument("--rows", type=int, help="records of the table, for a quick look")
    parser.add_argument("--records", type=int, default=40_000, help="released records")
    parser.add_argument("--candidates", type=int, default=100_000, help="of the pass rates")
    parser.add_argument("--seed", type=int, default=0, help="of the first split")
    parser.add_argument("--splits", type=int, default=5, help="of the records, over which tables are averaged")
    parser.add_argument("--paper", type=Path, help="JSON of the paper's figures, to print beside ours")
    options = parser.parse_args()
    reports = []
    for seed in range(options.seed, options.seed + options.splits):
        reports.append(split(options, seed))
        report = averaged(reports) | {"splits": len(reports), "records": options.records, "each": reports}
        paper = json.loads(options.paper.read_text()) if options.paper else {}
        write(options, report | {"paper": paper or None})  # after every split, because a split takes minutes
    print(markdown(report, paper))


if __name__ == "__main__":
    main()
