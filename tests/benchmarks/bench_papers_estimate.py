"""Plausible deniability with parameters drawn from their posterior, as published, and with the posterior's mean.

Run ``python tests/benchmarks/bench_papers_estimate.py``. It measures releases of ACS 2013 with omega 10 and 11 at
epsilon 1 and 0.1: the total variation distance of pairs to other real records, and the accuracy of a random forest.
"""

from itertools import combinations
from typing import Any

import numpy as np
from bench_papers_acs import TARGET, Tables, people, release_spec
from harness import argument_parser, keep, write

from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse, released_codes
from dpdist.families.deniability.plan import plan
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Codes


def pair_distance(a: Codes, b: Codes, sizes: tuple[int, ...]) -> float:
    """Mean total variation distance of the pairs of attributes."""
    apart = []
    for i, j in combinations(range(len(sizes)), 2):
        tables = [np.bincount(t[i].astype(np.int64) * sizes[j] + t[j], minlength=sizes[i] * sizes[j]) for t in (a, b)]
        p, q = (table / table.sum() for table in tables)
        apart.append(np.abs(p - q).sum() / 2)
    return float(np.mean(apart))


def main() -> None:
    """Print the table and write it to ``results/papers_acs.json``."""
    parser = argument_parser(__doc__)
    parser.add_argument("--records", type=int, default=40_000, help="released records")
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    found: dict[tuple[str, int, str], dict[str, list[float]]] = {}
    for seed in range(options.splits):
        train, test, schema = people(None, seed)
        tables = Tables(train, test, schema, options.records, seed)
        for epsilon in ("1", "0.1"):
            for omega in (11, 10):
                for estimate in ("sample", "mean"):
                    settings: dict[str, Any] = {
                        "synthesis.omega": [omega],
                        "model.estimate": estimate,
                        "privacy.model.epsilon": float(epsilon),
                    }
                    made = plan(release_spec(len(train[0]), options.records, **settings))
                    key = KeyRef.fixed(np.random.default_rng([seed, 7]).bytes(32).hex())
                    records = released_codes(rehearse(made, stages_of(made), train, key=key))
                    row = found.setdefault((epsilon, omega, estimate), {"tv": [], "accuracy": []})
                    row["tv"].append(100 * pair_distance(records, test, schema.cardinalities))
                    row["accuracy"].append(100 * tables.classifiers(records)["random forest"]["accuracy"]["value"])
                    print(epsilon, omega, estimate, row, flush=True)
    rows = []
    for epsilon, omega in dict.fromkeys((e, o) for e, o, _ in found):
        pair = [found[epsilon, omega, estimate] for estimate in ("sample", "mean")]
        cells = [f"{np.mean(one[n]):.2f} ± {np.std(one[n]):.2f}" for n in ("tv", "accuracy") for one in pair]
        rows.append([epsilon, str(omega), *cells])
    about = {
        "title": "Parameters drawn from their posterior, or its mean",
        "note": f"ACS 2013, `model.estimate`, {options.records:,} records, {options.splits} splits; per cent. The "
        f"paper draws. Pairs: mean total variation distance to real records; forest: accuracy of {TARGET}.",
    }
    heads = ["ε", "ω", "pairs: sample", "pairs: mean", "forest: sample", "forest: mean"]
    keep("papers_acs", "estimate", about, heads, rows)
    write(options, [dict(zip(heads, row, strict=True)) for row in rows])


if __name__ == "__main__":
    main()
