"""Quality of whole-table synthesis: distances of one-, two- and three-way marginals to the input, and of rare values.

    python tests/benchmarks/bench_synthesis.py --json bench/synthesis.json [--tables adult] [--epsilon 0.1 1] [--keys 5]

For each table of `deploy/releases` and each epsilon: a synthesis with its defaults (`kind: synthesis`), and a release
of the Bayesian network with every attribute resampled (`kind: plausible-deniability`), delta 1e-9 for the whole
release, as many records as the input has. Of Adult four fifths go in, in random order, as in `make compare`. Distances
are averages of total variation over all attributes, all pairs and 300 triples drawn at random. *rare* is the median
relative error of the counts of values with 20 records to half a percent of the table. *boosting*, of Adult, is the
accuracy on the held-out fifth of gradient boosting trained on the release. Keys are seeded, **not private**.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from harness import DATA, ROOT, argument_parser, spec_without_places, write_rows

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema

FILES = {
    "acs2013": ["acs2013_sgf_100k.csv"],
    "acs2024": ["acs2024_workers.parquet"],
    "acs2024-persons": ["acs2024_persons.parquet"],
    "adult": ["adult.data", "adult.test"],
}
TRIPLES = 300
RARE = (20, 0.005)
"""A rare value has this many records at least, and less than this share of the table."""


def table_of(name: str) -> tuple[Codes, Codes, ReleaseSpec]:
    """The codes of a public table, those of rows held out, and its shipped spec."""
    spec = load(ROOT / f"deploy/releases/{name}.yaml", {"data.path": [str(DATA / file) for file in FILES[name]]})
    codes, _ = run_pass(open_table(table_source(spec), spec.table), gather_operator())
    kept = len(codes[0]) * 4 // 5 if name == "adult" else len(codes[0])
    order = np.random.default_rng(0).permutation(len(codes[0])) if name == "adult" else np.arange(kept)
    return [column[order[:kept]] for column in codes], [column[order[kept:]] for column in codes], spec


def boosting(codes: Codes, held_out: Codes) -> dict[str, float]:
    """Accuracy on held-out rows of gradient boosting that was trained on some records; the target comes last."""
    if not len(held_out[0]):
        return {}
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(random_state=0).fit(np.stack(codes[:-1], axis=1), codes[-1])
    return {"boosting": float((model.predict(np.stack(held_out[:-1], axis=1)) == held_out[-1]).mean())}


class Distances:
    """Distances of releases to one table."""

    def __init__(self, codes: Codes, sizes: tuple[int, ...]) -> None:
        self.sizes, self.rows = sizes, len(codes[0])
        rng, m = np.random.default_rng(0), range(len(sizes))
        triples = list(combinations(m, 3))
        chosen = [triples[i] for i in rng.permutation(len(triples))[:TRIPLES]]
        self.ways = {1: [(i,) for i in m], 2: list(combinations(m, 2)), 3: chosen}
        self.truth = {s: self.shares(codes, s) for sets in self.ways.values() for s in sets}

    def shares(self, codes: Codes, attributes: tuple[int, ...]) -> Floats:
        """The marginal of some attributes, flat."""
        index = np.zeros(len(codes[0]), np.int64)
        for i in attributes:
            index = index * self.sizes[i] + codes[i]
        return np.asarray(np.bincount(index, minlength=prod(self.sizes[i] for i in attributes)) / len(codes[0]))

    def of(self, codes: Codes) -> dict[str, float]:
        """Distances, and the relative error of rare values."""
        found = {
            f"tvd_{k}": float(np.mean([np.abs(self.shares(codes, s) - self.truth[s]).sum() / 2 for s in sets]))
            for k, sets in self.ways.items()
        }
        errors: list[float] = []
        for s in self.ways[1]:
            truth, ours = self.truth[s] * self.rows, self.shares(codes, s) * self.rows
            rare = (truth >= RARE[0] - 0.5) & (truth < RARE[1] * self.rows)
            errors += (np.abs(ours - truth)[rare] / truth[rare]).tolist()
        return found | {"rare": float(np.median(errors)) if errors else 0.0}


def without(table: Schema, names: Sequence[str]) -> tuple[list[int], Schema]:
    """The places of a table's attributes but those of some names, and the schema of these."""
    kept = [i for i, name in enumerate(table.names) if name not in names]
    tree = table.model_dump(mode="json", exclude_none=True)
    return kept, Schema.model_validate(tree | {"attributes": [tree["attributes"][i] for i in kept]})


def spec_of(spec: ReleaseSpec, kind: str, *, epsilon: float, records: int, target: str | None = None) -> ReleaseSpec:
    """A release of this kind with the table, the declared records and the parts of a shipped spec."""
    budget, sections = {"epsilon": epsilon, "delta": 1e-9}, {"synthesis": {"records": records}}
    if kind == "synthesis":
        sections |= {"privacy": budget, "model": {"target": target} if target in spec.table.names else {}}
    else:
        split = {"structure": "3/20", "parameters": "17/20", "seeds": 0}
        sections |= {"privacy": {"model": budget}, "split": split}
    return spec_without_places(kind, spec.table, round(0.9 * records), **sections)


def released(plan: Plan, codes: Codes, *seed: int) -> Codes:
    """The records that a release of a table publishes under a seeded key."""
    key = key_from(Noise(np.random.default_rng(seed).bytes(32)))
    return released_codes(rehearse(plan, stages_of(plan), codes, key=key))


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per kind and epsilon, averaged over the keys."""
    codes, held_out, spec = table_of(name)
    kept, table = without(spec.table, options.leave)
    codes, held_out = ([columns[i] for i in kept] for columns in (codes, held_out))
    distances, records, shipped = Distances(codes, table.cardinalities), len(codes[0]), SimpleNamespace(table=table)
    again = np.random.default_rng(1).integers(0, records, records)
    sample = [column[again] for column in codes]
    yield {"table": name, "kind": "sample", **distances.of(sample), **boosting(sample, held_out)}
    for epsilon in options.epsilon:
        for kind in options.kinds:
            plan = make_plan(spec_of(shipped, kind, epsilon=epsilon, records=records, target=options.target))
            rows = []
            for seed in range(options.keys):
                wall, cpu = time.perf_counter(), time.process_time()
                made = released(plan, codes, seed, 2)
                seconds = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
                rows.append({**distances.of(made), **boosting(made, held_out), **seconds})
            means = {key: round(float(np.mean([row[key] for row in rows])), 4) for key in rows[0]}
            deviations = {key: round(float(np.std([row[key] for row in rows])), 4) for key in rows[0]}
            found = {"expected": round(plan.expected.error, 4)} if isinstance(plan, SynthesisPlan) else {}
            yield {"table": name, "kind": kind, "epsilon": epsilon, **means, "deviations": deviations, **found}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(FILES), default=list(FILES))
    parser.add_argument("--kinds", nargs="*", default=["synthesis", "plausible-deniability"])
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.1, 1, 3, 8])
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--leave", nargs="*", default=[], help="attributes to leave out")
    parser.add_argument("--target", help="attribute to name as the target of the synthesis, where the table has it")
    options = parser.parse_args()
    write_rows(options, (row for name in options.tables for row in measure(name, options)))


if __name__ == "__main__":
    main()
