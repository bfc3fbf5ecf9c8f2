"""The default synthesis on a varied panel of tables, beside independent attributes at the same budget.

    python tests/benchmarks/bench_panel.py --json bench/panel.json [--tables insurance d8-2k] [--epsilon 0.1 1 3]

Public tables (Adult, ACS 2013 and 2024, and small numeric ones in 10 to 20 bins of their range, which are not private
and only for this) and made-up ones: random Bayesian networks with strong, weak and no dependence, binary attributes,
long-tailed ones with 300 values, blocks, a star, functions of others. A name such as `d8-2k` says attributes and
records. *independent* spends the model's budget on one-way tables, *sample* draws the table's rows with replacement.
Distances are means of total variation over attributes, 250 pairs and 100 triples at most; *rare* is as in
`bench_synthesis.py`; *cover* is the percentage of the nominal 95 % intervals that hold the table's count, of cells
above 1 % of the records. No default may be set on one of these tables. Keys are seeded, **not private**.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from bench_coverage import Made, flat_tables
from bench_synthesis import DATA, RARE, table_of
from wide_tables import schema_of_codes

from dpdist.families.base.accuracy import ReleaseAccuracy
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.model.learn import Learned
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema

PAIRS, TRIPLES, TRIPLE_CELLS = 250, 100, 300_000
Law = Callable[[np.random.Generator], tuple[list[int], list[list[int]], dict[str, Any]]]


def network(rng: np.random.Generator, rows: int, of: Law) -> tuple[list[np.ndarray], list[int]]:
    """Records of a random Bayesian network; `functions` are functions of their parents."""
    cards, parents, how = of(rng)
    strength, skew, columns = how.get("strength", 1.0), how.get("skew"), []
    for i, size in enumerate(cards):
        base = np.arange(1, size + 1.0) ** -skew if skew else rng.dirichlet(np.full(size, 2.0))
        base, given = base / base.sum(), np.zeros(rows, np.int64)
        for parent in parents[i]:
            given = given * cards[parent] + columns[parent]
        number = prod(cards[p] for p in parents[i])
        if i in how.get("functions", ()):
            columns.append(rng.integers(0, size, number)[given])
            continue
        own = rng.dirichlet(np.maximum(size * base / 2, 0.02), number)
        table = ((1 - strength) * base + strength * own if parents[i] else base[None]).cumsum(1)
        drawn = rng.random(rows)
        columns.append(sum((drawn > table[given, k]).astype(np.int64) for k in range(size - 1)))
    return columns, cards


def law(attributes: int, least: int = 2, most: int = 12, *, shape: str = "any", **how: Any) -> Law:
    """A law of so many attributes: `any` earlier parents, `none`, a `star`, or `blocks` of six."""

    def drawn(rng: np.random.Generator) -> tuple[list[int], list[list[int]], dict[str, Any]]:
        sizes, parents = how.get("cards") or rng.integers(least, most + 1, attributes).tolist(), []
        for i in range(attributes):
            earlier = {"none": 0, "star": min(i, 1), "blocks": i % 6}.get(shape, i)
            first = i - earlier if shape == "blocks" else 0
            chosen = rng.choice(earlier, min(earlier, int(rng.integers(1, 3))), replace=False) if earlier else []
            parents.append(sorted(first + int(place) for place in chosen))
        return sizes, parents, how

    return drawn


TAILS = [300, 4, 2, 10, 6, 24, 3, 40]
MADE_UP: dict[str, tuple[int, Law]] = {
    "d3-300-binary": (300, law(3, 2, 2)),
    "d8-300": (300, law(8, 2, 6)),
    "d8-2k": (2_000, law(8)),
    "d8-2k-none": (2_000, law(8, shape="none")),
    "d20-2k": (2_000, law(20)),
    "d60-2k-binary": (2_000, law(60, 2, 2)),
    "d3-30k": (30_000, law(3)),
    "d8-30k": (30_000, law(8)),
    "d8-30k-none": (30_000, law(8, 2, 20, shape="none")),
    "d8-30k-tails": (30_000, law(8, cards=TAILS, skew=1.3)),
    "d8-30k-functions": (30_000, law(8, functions=(1, 3, 4, 5))),
    "d20-30k": (30_000, law(20)),
    "d20-30k-weak": (30_000, law(20, strength=0.15)),
    "d20-30k-none": (30_000, law(20, shape="none")),
    "d20-30k-star": (30_000, law(20, 2, 8, shape="star", strength=0.6)),
    "d60-30k-blocks": (30_000, law(60, 2, 6, shape="blocks")),
    "d20-1m": (1_000_000, law(20)),
    "d8-1m-tails": (1_000_000, law(8, cards=TAILS, skew=1.3)),
}
FILES = {"insurance": 12, "census_1080": 10, "tarragona": 10, "eia": 16, "california_housing": 20}
SHIPPED = ("adult", "acs2013", "acs2024")


def of_file(name: str) -> tuple[list[np.ndarray], list[int]]:
    """A small numeric table: amounts in equal bins, of the logarithm where they are long-tailed, other codes as is."""
    import pandas as pd

    columns, cards = [], []
    for _, column in pd.read_csv(DATA / f"{name}.csv").items():
        is_text = pd.api.types.is_string_dtype(column)
        if column.nunique() > 200 and is_text:
            continue  # a name
        if column.nunique() <= FILES[name] or is_text:
            codes = pd.factorize(column, sort=True, use_na_sentinel=False)[0]
        else:
            values = column.to_numpy(float)
            if np.ptp(values[~np.isnan(values)]) > 10 * float(np.nanmedian(np.abs(values))):
                values = np.sign(values) * np.log1p(np.abs(values))
            low, high = np.nanmin(values), np.nanmax(values)
            codes = np.minimum((values - low) / (high - low) * FILES[name], FILES[name] - 1)
            codes = np.where(np.isnan(codes), FILES[name], codes).astype(np.int64)
        columns.append(np.unique(codes, return_inverse=True)[1])
        cards.append(max(int(columns[-1].max()) + 1, 2))
    return columns, cards


def loaded(name: str) -> tuple[list[np.ndarray], list[int]]:
    """The codes of a table, and the numbers of values."""
    if name in MADE_UP:
        rows, drawn = MADE_UP[name]
        return network(np.random.default_rng(zlib.crc32(name.encode())), rows, drawn)
    if name in FILES:
        return of_file(name)
    codes, _, spec = table_of(name)
    return list(codes), list(spec.table.cardinalities)


class Distances:
    """Distances of releases to one table."""

    def __init__(self, codes: Codes, cards: tuple[int, ...]) -> None:
        self.cards, rng, m = cards, np.random.default_rng(0), range(len(cards))
        pairs, triples = list(combinations(m, 2)), list(combinations(m, 3))
        triples = [t for t in triples if prod(cards[i] for i in t) <= TRIPLE_CELLS]
        pairs, triples = (
            [of[i] for i in rng.permutation(len(of))[:n]] for of, n in ((pairs, PAIRS), (triples, TRIPLES))
        )
        self.sets = {1: [(i,) for i in m], 2: pairs, 3: triples}
        self.truth = {k: flat_tables(codes, cards, sets) for k, sets in self.sets.items() if sets}
        self.rows = len(codes[0])

    def of(self, codes: Codes, made: Made | None = None) -> dict[str, float]:
        """Distances, errors of rare values, and with the release's own accuracy the coverage of its intervals."""
        found, rows = {}, len(codes[0])
        for k, truth in self.truth.items():
            ours = flat_tables(codes, self.cards, self.sets[k])
            off = [np.abs(a / self.rows - b / rows).sum() / 2 for a, b in zip(truth, ours, strict=True)]
            found[f"tvd_{k}"] = float(np.mean(off))
            if k == 1:
                a, b = np.concatenate(truth), np.concatenate(ours) * (self.rows / rows)
                rare = (a >= RARE[0]) & (a < RARE[1] * self.rows)
                found["rare"] = float(np.median((np.abs(a - b) / np.maximum(a, 1))[rare])) if rare.any() else 0.0
            if made is not None:
                found[f"cover_{k}"] = self._coverage(made, k, truth, ours, rows)
        return found

    def _coverage(self, made: Made, k: int, truth: list[Any], ours: list[Any], rows: int) -> float:
        hit = []
        for s, real, released in zip(self.sets[k], truth, ours, strict=True):
            known = made.measurements.combined(s, tuple(self.cards[i] for i in s)) if k < 3 else None
            interval = made.errors.interval(s, released, measured=known)
            hit.append(((interval.low <= real) & (real <= interval.high))[released > 0.01 * rows])
        return 100 * float(np.concatenate(hit).mean())


def plan_of(cards: tuple[int, ...], rows: int, epsilon: float, *, independent: bool = False) -> Any:
    """The plan of a release with defaults."""
    tree: dict[str, Any] = {
        "kind": "synthesis",
        "name": "panel",
        "dataset": "panel",
        "schema": schema_of_codes(cards),
        "data": {"path": "unused", "minimum_records": round(0.9 * rows)},
        "output": {"path": "unused"},
        "synthesis": {"records": rows},
        "privacy": {"epsilon": epsilon, "delta": 1e-9},
    }
    plan = make_plan(load(tree))
    shares = {"one_way": 0.3, "one_way_again": 0.7, "tree": 0.0, "pairs": 0.0, "picks": 0.0, "rake": 0.0, "misfit": 0.0}
    none = {"triples": 0.0, "triple_picks": 0.0, "triple_tables": 0, "rounds": 0, "balance": 0}
    return replace(plan, choices=replace(plan.choices, **shares, **none)) if independent else plan


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for a sample, and one for each epsilon and kind, averaged over the keys."""
    columns, cards = loaded(name)
    schema = Schema.model_validate(schema_of_codes(tuple(cards)))
    codes = [column.astype(a.dtype) for column, a in zip(columns, schema.attributes, strict=True)]
    rows, sizes = len(codes[0]), tuple(cards)
    distances, drawn = Distances(codes, sizes), np.random.default_rng(1).integers(0, rows, rows)
    yield {"table": name, "kind": "sample", **distances.of([column[drawn] for column in codes])}
    for epsilon in options.epsilon:
        for kind in ("default", "independent"):
            plan, runs = plan_of(sizes, rows, epsilon, independent=kind == "independent"), []
            stages = [s for s in stages_of(plan) if s.name in ("model", "records", "accuracy")]
            for seed in range(options.keys):
                key, cpu = key_from(Noise(np.random.default_rng([seed, 2]).bytes(32))), time.process_time()
                done = rehearse(plan, stages, codes, key=key, until=None)
                ours, cpu = released_codes(done), time.process_time() - cpu
                accuracy, measured = done.result(ReleaseAccuracy).accuracy, done.result(Learned).measurements
                made = Made(schema, ours, accuracy, measured) if kind == "default" else None
                runs.append({**distances.of(ours, made), "cpu": cpu})
            means = {key: round(float(np.mean([run[key] for run in runs])), 4) for key in runs[0]}
            yield {"table": name, "kind": kind, "epsilon": epsilon, **means}


def main() -> None:
    names = [*FILES, *SHIPPED, *MADE_UP]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--tables", nargs="*", choices=names, default=names)
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.1, 1, 3])
    parser.add_argument("--keys", type=int, default=2)
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
