"""Conditional draws beside rejection: `dpdist draw --where` on five conditions.

    python tests/benchmarks/bench_draw.py --json bench/draw.json [--table adult] [--draws 10000000]

The table of a shipped spec is synthesised once (epsilon 1, delta 1e-9, a seeded key, **not private**). For each
condition 100,000 records are drawn given it, and `--draws` without it, kept where it holds. *share* is that of
the model, *kept* the rejection's; *p* the least p-value of two-sample chi-squared tests of all one-way and pair
tables, times their number: below 0.01 the two differ. *p_mixed* is the same after a tenth of the drawn records got the
attributes that the condition does not name from records drawn without it: the test has power where it is below 0.01.
*seconds* are CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import combinations
from pathlib import Path

import numpy as np
from bench_synthesis import FILES, spec_of, table_of
from scipy.stats import chi2

from dpdist.data.count import pair_counts
from dpdist.errors import SpecError
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse
from dpdist.inference.law import Law
from dpdist.model.files import PublishedModel
from dpdist.model.learn import Learned
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.conditions import parse_condition

CONDITIONS = {
    "adult": [
        "sex = 'Female'",
        "age >= 61 and income = '>50K'",
        "`marital-status` in ('Divorced', 'Separated') and `hours-per-week` >= 50",
        "education = 'Bachelors' and not (race = 'White' or sex = 'Male')",
        "occupation = 'Armed-Forces' or (workclass = 'Never-worked' and age < 25)",
    ],
    "acs2024": [
        "sex = 2",
        "state = 8 and incc = 2",
        "ms in (2, 3) and hpw >= 50",
        "edu >= 21 and not (race = 5 or sex = 1)",
        "state = 56 and occ = 17",
    ],
}
IMPOSSIBLE = {"adult": "sex = 'Male' and sex = 'Female'", "acs2024": "sex = 1 and sex = 2"}
DRAWN = 100_000
BATCH = 500_000


def p_value(first: Codes, second: Codes, cards: tuple[int, ...], skip: set[int]) -> float:
    """The least p-value of all tables, times their number."""
    tables = [pair_counts(codes, cards) for codes in (first, second)]
    found = []
    places = [i for i in range(len(cards)) if i not in skip]
    for s in [*((i,) for i in places), *combinations(places, 2)]:
        a, b = ((t.single(*s) if len(s) == 1 else t.pair(*s)).ravel().astype(float) for t in tables)
        common = np.minimum(a, b) + np.maximum(a, b) >= 20
        a, b = (np.append(x[common], x[~common].sum()) for x in (a, b))
        both = a + b
        kept = both > 0
        n, m = a.sum(), b.sum()
        statistic = ((a * np.sqrt(m / n) - b * np.sqrt(n / m))[kept] ** 2 / both[kept]).sum()
        found.append(float(chi2.sf(statistic, max(int(kept.sum()) - 1, 1))))
    return min(1.0, min(found) * len(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--table", choices=[name for name in FILES if name in CONDITIONS], default="adult")
    parser.add_argument("--draws", type=int, default=10_000_000)
    options = parser.parse_args()
    codes, _, shipped = table_of(options.table)
    plan = make_plan(spec_of(shipped, "synthesis", epsilon=1, records=len(codes[0])))
    key = key_from(Noise(bytes(32)))
    learned = rehearse(plan, stages_of(plan)[:1], codes, key=key, until=None).result(Learned)
    law = Law(PublishedModel(learned.fitted, learned.measurements, "07" * 32, plan.choices.balance))
    schema, cards = shipped.table, shipped.table.cardinalities
    conditions = [parse_condition(text, schema) for text in CONDITIONS[options.table]]
    kept: list[list[Codes]] = [[] for _ in conditions]
    started = time.process_time()
    for batch in range(-(-options.draws // BATCH)):
        drawn, _ = law.draw(None, BATCH, Noise(np.random.default_rng([batch, 1]).bytes(32)))
        for condition, found in zip(conditions, kept, strict=True):
            inside = condition.holds(drawn)
            found.append([column[inside] for column in drawn])
    rejection = time.process_time() - started
    rows = []
    for condition, parts in zip(conditions, kept, strict=True):
        by_rejection = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        started = time.process_time()
        drawn, _ = law.draw(condition, DRAWN, Noise(bytes(31) + b"\1"))
        seconds = time.process_time() - started
        assert condition.holds(drawn).all()
        mixed = [column.copy() for column in drawn]
        others, _ = law.draw(None, DRAWN // 10, Noise(bytes(31) + b"\2"))
        for i in set(range(len(cards))) - set(condition.attributes):
            mixed[i][: DRAWN // 10] = others[i]
        row = {
            "condition": condition.text,
            "share": law.probability(condition),
            "kept": len(by_rejection[0]) / (BATCH * -(-options.draws // BATCH)),
            "p": p_value(drawn, by_rejection, cards, set()),
            "p_mixed": p_value(mixed, by_rejection, cards, set()),
            "seconds": round(seconds, 2),
            "rejection_seconds": round(rejection, 1),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    started = time.process_time()
    try:
        law.draw(parse_condition(IMPOSSIBLE[options.table], schema), 10, Noise(bytes(32)))
    except SpecError as error:
        seconds = round(time.process_time() - started, 4)
        rows.append({"condition": IMPOSSIBLE[options.table], "refused": str(error), "seconds": seconds})
        print(json.dumps(rows[-1]))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
