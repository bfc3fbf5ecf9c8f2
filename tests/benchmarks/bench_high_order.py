"""Tables of high order: parities of three and four attributes, and attributes that all depend on each other.

    python tests/benchmarks/bench_high_order.py --json bench/high_order.json [--tables parity] [--epsilon 1 4]

30,000 made-up records. *parity*: 14 attributes of two and three values; a parity of three, one of four, and a sum
modulo three of three ternary attributes hold in nine of ten records, and no smaller set of these depends on each other.
*classes*: 14 attributes of two to six values given one of six latent classes. *copula*: 12 attributes in four to eight
bins of correlated normal numbers. Defaults at delta 1e-9. Distances are means of total variation over all sets of one
to four attributes (300 at most); *kept*, of each parity, is the part of its bias that the release has. *sample* is
drawn from the table with replacement, *independent* has each attribute by itself. Keys are seeded, **not private**.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
from bench_synthesis import Distances, released, spec_of
from harness import argument_parser, write_rows
from wide_tables import made_up, schema_of_codes

from dpdist.families.base.registry import make_plan
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

ROWS = 30_000
PARITIES = {"three": (2, (0, 1, 2)), "four": (2, (3, 4, 5, 6)), "modulo": (3, (7, 8, 9))}
"""The number of values of each attribute of a parity, and the attributes."""


def parity(rng: np.random.Generator) -> tuple[Codes, tuple[int, ...]]:
    """Records whose attributes in a parity sum to 0 in nine of ten of them, and four attributes of a network."""
    columns: list[np.ndarray] = []
    for values, places in PARITIES.values():
        free = [rng.integers(0, values, ROWS) for _ in places[1:]]
        moved = np.where(rng.random(ROWS) < 0.9, 0, rng.integers(1, values, ROWS))
        columns += [*free, (moved - sum(free)) % values]
    others, sizes, _ = made_up(4, ROWS, seed=5)
    cards = tuple(values for values, places in PARITIES.values() for _ in places)
    return [column.astype(np.uint8) for column in (*columns, *others)], (*cards, *sizes)


def classes(rng: np.random.Generator) -> tuple[Codes, tuple[int, ...]]:
    """Records of a mixture: attributes are independent given one of six classes."""
    kind, sizes = rng.choice(6, ROWS, p=rng.dirichlet(np.full(6, 5.0))), tuple(2 + k % 5 for k in range(14))
    edges = [rng.dirichlet(np.full(size, 0.5), 6).cumsum(1)[kind] for size in sizes]
    return [(rng.random(ROWS)[:, None] > edge[:, :-1]).sum(1).astype(np.uint8) for edge in edges], sizes


def copula(rng: np.random.Generator) -> tuple[Codes, tuple[int, ...]]:
    """Records of correlated normal numbers, in bins of unequal mass."""
    sizes = tuple(4 + k % 5 for k in range(12))
    numbers = rng.normal(size=(ROWS, 3)) @ rng.normal(size=(3, 12)) + 0.6 * rng.normal(size=(ROWS, 12))
    columns = []
    for of, size in zip(numbers.T, sizes, strict=True):
        edges = np.quantile(of, rng.dirichlet(np.full(size, 3.0)).cumsum()[:-1])
        columns.append(np.searchsorted(edges, of).astype(np.uint8))
    return columns, sizes


TABLES = {"parity": parity, "classes": classes, "copula": copula}


def found_in(name: str, distances: Distances, codes: Codes, truth: Codes) -> dict[str, float]:
    """Distances of a release, and what it keeps of the parities."""

    def bias(of: Codes, values: int, places: tuple[int, ...]) -> float:
        return float((sum(of[k].astype(int) for k in places) % values == 0).mean()) - 1 / values

    kept = PARITIES if name == "parity" else {}
    found = {f"kept_{key}": bias(codes, *which) / bias(truth, *which) for key, which in kept.items()}
    return {key: value for key, value in distances.of(codes).items() if key != "rare"} | found


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for a sample, for independent attributes, and for each epsilon the means over the keys."""
    truth, sizes = TABLES[name](np.random.default_rng(3))
    distances, rng = Distances(truth, sizes), np.random.default_rng(1)
    sets = list(combinations(range(len(sizes)), 4))
    distances.ways[4] = [sets[i] for i in np.random.default_rng(0).permutation(len(sets))[:300]]
    distances.ways[4] += [PARITIES["four"][1]] * (name == "parity" and PARITIES["four"][1] not in distances.ways[4])
    distances.truth |= {s: distances.shares(truth, s) for s in distances.ways[4]}
    again = rng.integers(0, ROWS, ROWS)
    bases = {"sample": [c[again] for c in truth], "independent": [rng.permutation(c) for c in truth]}
    for of, codes in bases.items():
        yield {"table": name, "of": of} | _rounded([found_in(name, distances, codes, truth)])
    table = SimpleNamespace(table=Schema.model_validate(schema_of_codes(sizes)))
    for epsilon in options.epsilon:
        plan, rows = make_plan(spec_of(table, "synthesis", epsilon=epsilon, records=ROWS)), []
        for seed in range(options.keys):
            cpu = time.process_time()
            made = released(plan, truth, seed, 2)
            rows.append(found_in(name, distances, made, truth) | {"cpu": time.process_time() - cpu})
        yield {"table": name, "of": "synthesis", "epsilon": epsilon} | _rounded(rows)


def _rounded(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(float(np.mean([row[key] for row in rows])), 4) for key in rows[0]}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--epsilon", nargs="*", type=float, default=[1, 4])
    parser.add_argument("--keys", type=int, default=3)
    options = parser.parse_args()
    write_rows(options, (row for name in options.tables for row in measure(name, options)))


if __name__ == "__main__":
    main()
