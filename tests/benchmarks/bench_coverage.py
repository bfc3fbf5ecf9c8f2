"""How often intervals of the cells of a synthesis cover the cells of the table, beside naive ones.

    python tests/benchmarks/bench_coverage.py --json bench/coverage.json [--tables adult] [--epsilon 1] [--keys 5]

For each table and epsilon (delta 1e-9) the table of the shipped spec is synthesised with the defaults, with the
measurement of the accuracy, as many records as the input has. Nominal 95 % intervals of all one-way and two-way cells
and of 150 triples (drawn at random, apart from those that are measured) that hold more than 1 % of the released
records: *accuracy* from the measured accuracy alone, *coverage* with the published noisy tables too, *naive* from the
binomial variance of the released share, as if the records were a sample. *below* is the coverage of cells of 0.1 to 1
%. Widths are medians of half lengths, in percent of the table. *sentence*: how many cells are within the points that
the manifest states. Keys are seeded, **not private**.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from bench_synthesis import FILES, spec_of, table_of

from dpdist.accuracy.intervals import CellErrors
from dpdist.data.count import pair_counts, table_counts
from dpdist.families.base.accuracy import ReleaseAccuracy
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.families.synthesis.learn import Learned
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise

TRIPLES = 150
COLUMNS = ("coverage", "accuracy", "naive", "below", "sentence", "half_width", "naive_half_width")


def flat_tables(codes: Codes, cards: tuple[int, ...], sets: list[tuple[int, ...]]) -> list[np.ndarray]:
    ends = np.cumsum([prod(cards[i] for i in s) for s in sets])
    return np.split(table_counts(codes, cards, sets), ends[:-1])


def coverage(codes: Codes, cards: tuple[int, ...], plan: Any, seed: int) -> dict[int, list[float]]:
    """The columns of each order, for one key."""
    key = key_from(Noise(np.random.default_rng([seed, 6]).bytes(32)))
    made = rehearse(
        plan, [s for s in stages_of(plan) if s.name in ("model", "records", "accuracy")], codes, key=key, until=None
    )
    records, rows = released_codes(made), len(codes[0])
    measured = made.result(Learned).measurements
    found, m = made.result(ReleaseAccuracy).accuracy, range(len(cards))
    released = pair_counts(records, cards)
    pairs = {pair: released.pair(*pair).ravel() for pair in combinations(m, 2)}
    errors = CellErrors(found, pairs, len(cards))
    triples = list(combinations(m, 3))
    drawn = [triples[i] for i in np.random.default_rng(99).permutation(len(triples))[:TRIPLES]]
    rows_of = {}
    for order, sets in ((1, [(i,) for i in m]), (2, list(pairs)), (3, drawn)):
        cells = []
        for s, truth, ours in zip(
            sets, flat_tables(codes, cards, sets), flat_tables(records, cards, sets), strict=True
        ):
            share = ours / found.released
            known = measured.combined(s, tuple(cards[i] for i in s))
            best, alone = errors.interval(s, ours, measured=known), errors.interval(s, ours)
            naive = 1.96 * np.sqrt(rows * share * (1 - share))
            off = np.abs(truth - share * rows)
            covered = [(i.low <= truth) & (truth <= i.high) for i in (best, alone)]
            stated = off <= errors.within(order) * rows
            cells.append(np.stack([share, *covered, off <= naive, stated, (best.high - best.low) / 2, naive]))
        share, best, alone, simple, stated, half, naive = np.concatenate(cells, axis=1)
        large, small = share > 0.01, (share > 0.001) & (share <= 0.01)
        shares = [best[large], alone[large], simple[large], best[small], stated[large]]
        widths = [np.median(half[large]) / rows, np.median(naive[large]) / rows]
        rows_of[order] = [100 * float(x) for x in (*(np.mean(column) for column in shares), *widths)]
    return rows_of


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each epsilon and order, averaged over the keys."""
    codes, _, shipped = table_of(name)
    cards, rows = shipped.table.cardinalities, len(codes[0])
    for epsilon in options.epsilon:
        plan = make_plan(spec_of(shipped, "synthesis", epsilon=epsilon, records=rows))
        runs = [coverage(codes, cards, plan, seed) for seed in range(options.keys)]
        for order in (1, 2, 3):
            table = np.array([run[order] for run in runs])
            means = dict(zip(COLUMNS, np.round(table.mean(0), 3).tolist(), strict=True))
            ends = {"least": round(float(table[:, 0].min()), 1), "most": round(float(table[:, 0].max()), 1)}
            yield {"table": name, "epsilon": epsilon, "order": order, "keys": options.keys, **means, **ends}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--tables", nargs="*", choices=list(FILES), default=list(FILES))
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.25, 1, 4])
    parser.add_argument("--keys", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for name in options.tables:
        for row in measure(name, options):
            print(json.dumps(row), flush=True)
            rows.append(row)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
