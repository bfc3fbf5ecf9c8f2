"""What a public table as a prior is worth: distances of releases with one and without.

    python tests/benchmarks/bench_prior.py --json bench/prior.json [--epsilon 0.1 1] [--keys 2]

*years*: the ACS 2024 with the nine attributes that the ACS 2013 has too, and that as the prior, 100,000 workers each.
*states*: 100,000 workers of the ACS 2024 of half of the states, and as many of the others as the prior; *persons*: so
27,000 persons with 21 attributes, *few* 8,000 of them. *Prior* is the public table itself, as if it were the release.
Delta 1e-9; keys are seeded, **not private**.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_synthesis import Distances, released, table_of
from harness import argument_parser, spec_without_places, write_rows
from wide_tables import schema_of_codes, write_codes

from dpdist.families.base.registry import make_plan
from dpdist.privacy.arrays import Codes

ROWS = 100_000


def sample(codes: Codes, rows: np.ndarray, seed: int, number: int = ROWS) -> Codes:
    """This many of some rows, at random."""
    chosen = np.random.default_rng(seed).permutation(rows)[:number]
    return [column[chosen] for column in codes]


def cases() -> Iterator[tuple[str, Codes, Codes, tuple[int, ...]]]:
    """Name, table, public table and numbers of values."""
    old, _, old_spec = table_of("acs2013")
    new, _, new_spec = table_of("acs2024")
    both = [name for name in old_spec.table.names if name in new_spec.table.names]
    pairs = [(old_spec.table.names.index(name), new_spec.table.names.index(name)) for name in both]
    sizes = tuple(new_spec.table.cardinalities[j] for _, j in pairs)
    if sizes != tuple(old_spec.table.cardinalities[i] for i, _ in pairs):
        raise SystemExit(f"the two years are coded differently: {both}")
    everybody = np.arange(len(new[0]))
    table = sample([new[j] for _, j in pairs], everybody, 0)
    yield "years", table, [old[i] for i, _ in pairs], sizes
    table, public, sizes = halves(new, new_spec, "state")
    yield "states", *(sample(codes, np.arange(len(codes[0])), 1) for codes in (table, public)), sizes
    table, public, sizes = halves(*table_of("acs2024-persons")[::2], "STATE")
    for name, number in (("persons", 27_000), ("few", 8_000)):
        yield name, *(sample(codes, np.arange(len(codes[0])), 1, number) for codes in (table, public)), sizes


def halves(codes: Codes, spec: Any, state: str) -> tuple[Codes, Codes, tuple[int, ...]]:
    """The records of half of the states, those of the others, and the sizes of the other attributes."""
    place = [name.lower() for name in spec.table.names].index(state.lower())
    others = [i for i in range(len(codes)) if i != place]
    table, public = ([codes[i][codes[place] % 2 == half] for i in others] for half in (0, 1))
    return table, public, tuple(spec.table.cardinalities[i] for i in others)


def measure(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """One row a case, epsilon and kind."""
    for name, codes, public, sizes in cases():
        if name not in options.cases:
            continue
        distances, path = Distances(codes, sizes), folder / f"{name}.parquet"
        write_codes(public, path)
        yield {"case": name, "kind": "prior", **rounded(distances.of(public))}
        for epsilon in options.epsilon:
            for prior in (False, True):
                public_table = {"public": "Published by the office of statistics, on its site", "path": str(path)}
                spec = spec_without_places(
                    "synthesis",
                    schema_of_codes(sizes),
                    9 * len(codes[0]) // 10,
                    privacy={"epsilon": epsilon, "delta": 1e-9},
                    synthesis={"records": len(codes[0])},
                    model={"prior": public_table} if prior else {},
                )
                plan, rows = make_plan(spec), []
                for seed in range(options.keys):
                    rows.append(distances.of(released(plan, codes, seed, 3)))
                means = {figure: float(np.mean([row[figure] for row in rows])) for figure in rows[0]}
                kind = "with the prior" if prior else "without"
                yield {"case": name, "kind": kind, "epsilon": epsilon, **rounded(means)}


def rounded(figures: dict[str, float]) -> dict[str, float]:
    """Four decimals."""
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.1, 1])
    parser.add_argument("--cases", nargs="*", default=["years", "states", "persons", "few"])
    parser.add_argument("--keys", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"a0": [0]}), Path(folder) / "own.parquet")
        write_rows(options, measure(options, Path(folder)))


if __name__ == "__main__":
    main()
