"""Records from seeds, with a network or a synthesis for a model: distances of marginals to the table.

    python tests/benchmarks/bench_seeds.py --json bench/seeds.json [--keys 2]

ACS 2024 by `deploy/releases/acs2024-whole.yaml`, and with a network in place of the synthesis (the same epsilon of the
model). A million records show the error of the model; they cost more than the spec's limit. Keys are seeded, **not
private**.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from bench_synthesis import Distances, released, table_of
from harness import ROOT, argument_parser, write_rows

from dpdist.families.base.registry import make_plan
from dpdist.spec.reader import load

MODELS: dict[str, dict[str, Any]] = {
    "network": {"model.structure": "learned", "split": {"structure": "2/25", "parameters": "18/25", "seeds": "1/5"}},
    "synthesis": {},
}


def measure(keys: int) -> Iterator[dict[str, Any]]:
    """One row per number of records and model, averaged over the keys."""
    codes, _, shipped = table_of("acs2024")
    distances = Distances(codes, shipped.table.cardinalities)
    for records in (10_000, 1_000_000):
        rows = np.random.default_rng(0).integers(0, len(codes[0]), records)
        yield {"records": records, "model": "sample", **distances.of([column[rows] for column in codes])}
        for model, settings in MODELS.items():
            limit = {"privacy.limit": None} if records > 10_000 else {}
            changes = {"data.path": "unused", "synthesis.records": records, **limit, **settings}
            plan = make_plan(load(ROOT / "deploy/releases/acs2024-whole.yaml", changes))
            found = []
            for seed in range(keys):
                cpu = time.process_time()
                made = released(plan, codes, seed, 2)
                found.append({**distances.of(made), "cpu": time.process_time() - cpu})
            means = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
            yield {"records": records, "model": model, "epsilon": plan.epsilon, **means}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--keys", type=int, default=2)
    options = parser.parse_args()
    write_rows(options, measure(options.keys))


if __name__ == "__main__":
    main()
