"""Persons of the ACS 2024 with twelve rules and without: records that break one, distances, and CPU seconds.

    python tests/benchmarks/bench_rules.py --json bench/rules.json [--keys 4] [--records 1000000]

The spec is `deploy/releases/acs2024-persons.yaml`; *without* leaves the rules out of its schema. Distances are means of
total variation over attributes and over all pairs, to the table. Keys are seeded, **not private**.
"""

import json
import time
from itertools import combinations, product
from typing import Any

import numpy as np
from harness import DATA, ROOT, argument_parser, write_rows

from dpdist.data.count import PairCounts, pair_counts
from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.model.learn import Learned
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.rules import broken_by
from dpdist.spec.schema import Schema

SPEC = ROOT / "deploy" / "releases" / "acs2024-persons.yaml"


def distances(ours: PairCounts, theirs: PairCounts) -> dict[str, float]:
    """Mean distances of attributes and of pairs."""
    attributes = range(len(ours.cardinalities))
    one = [np.abs(ours.single(i) / ours.total - theirs.single(i) / theirs.total).sum() / 2 for i in attributes]
    two = [
        np.abs(ours.pair(i, j) / ours.total - theirs.pair(i, j) / theirs.total).sum() / 2
        for i, j in combinations(attributes, 2)
    ]
    return {"tvd_1": round(float(np.mean(one)), 4), "tvd_2": round(float(np.mean(two)), 4)}


def measure(spec: ReleaseSpec, table: Codes, truth: PairCounts, rules: Schema, key: int) -> dict[str, Any]:
    """One release."""
    plan, start = make_plan(spec), time.process_time()
    made = rehearse(plan, stages_of(plan), table, key=key_from(Noise(np.random.default_rng(key).bytes(32))))
    released = released_codes(made)
    return {
        "rules": len(spec.table.rules),
        "key": key,
        "cpu": round(time.process_time() - start, 1),
        "in the model": len(made.result(Learned).report.get("rules", ())),
        "break a rule": int(broken_by(rules.forbidden, released).sum()),
        "most of one rule": max(int(rule.broken_by(released).sum()) for rule in rules.forbidden),
    } | distances(pair_counts(released, truth.cardinalities), truth)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--keys", type=int, default=4)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    data = str(DATA / "acs2024_persons.parquet")
    spec = load(SPEC, {"data.path": data, "synthesis.records": options.records})
    bare = {"attributes": [attribute.model_dump() for attribute in spec.table.attributes]}
    without = load(SPEC, {"data.path": data, "synthesis.records": options.records, "schema": bare})
    table, report = run_pass(open_table(table_source(spec), spec.table), gather_operator())
    print(json.dumps({"records of the table that break a rule": int(report.broken.sum())}), flush=True)
    truth, cases = pair_counts(table, spec.table.cardinalities), product(range(options.keys), (without, spec))
    write_rows(options, (measure(one, table, truth, spec.table, key) for key, one in cases))


if __name__ == "__main__":
    main()
