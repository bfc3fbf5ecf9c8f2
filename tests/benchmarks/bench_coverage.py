"""How often intervals of a synthesis cover what the table says of cells, means and regressions, beside naive ones.

    python tests/benchmarks/bench_coverage.py --json bench/coverage.json [--tables adult] [--epsilon 1] [--keys 20]
        [--declared] [--quick] [--cells]

For each table and epsilon (delta 1e-9) the table of the shipped spec is synthesised with the defaults, with the
measurement of the accuracy, as many records as the input has. Nominal 95 % intervals of

- *cells 1*, *2*, *3*: all one-way and two-way cells and those of 150 triples (drawn at random, apart from those that
  are measured) that hold more than 1 % of the released records, with the published noisy tables;
- *means*: of three attributes with numbers, over all records and where each term that is a condition holds;
- *linear*, *logistic*: ten coefficients of one regression (`REGRESSIONS`), by 80 replicates.

With ``--declared`` the spec declares both regressions, and *linear declared*, *logistic declared* are the intervals
that are then measured, of the same coefficients. *distance* has, in the place of a half width, the mean total variation
of all two-way tables from the input's: what the share costs. ``--quick`` computes these rows alone.

``--cells`` counts instead the cells with more than 0.1 % of the *table*, many of them with few released records: on
average over the keys and, in brackets, for the worst one. *persons* and *wide* are tables that nothing was set on.

*naive* intervals take the records for a simple random sample: binomial, of a mean, and of a regression with robust
standard errors. Widths are medians of half lengths of ours, and of naive ones in the table itself: those of a simple
random sample of its size. *below* is the coverage of cells of 0.1 to 1 %, *sentence* how many cells are within the
points that the manifest states. Keys are seeded, **not private**.
"""

import argparse
from collections.abc import Iterator
from functools import cached_property
from itertools import combinations
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from bench_synthesis import FILES, spec_of, table_of
from harness import DATA, argument_parser, write_rows

from dpdist.accuracy.intervals import CellErrors
from dpdist.accuracy.measured import Accuracy, linear, logistic
from dpdist.data.count import pair_counts, table_counts
from dpdist.families.base.accuracy import ReleaseAccuracy
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.inference.answers import Answer
from dpdist.inference.comparisons import answer, by_replicates
from dpdist.inference.published import Published
from dpdist.inference.replicates import Replicates, make_replicates
from dpdist.model.files import PublishedModel
from dpdist.model.learn import Learned
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.publish.part_format import PartFormat
from dpdist.spec.conditions import ends_of
from dpdist.spec.regression import listed_in, parse_term
from dpdist.spec.schema import Schema
from dpdist.spec.validation import change

TRIPLES = 150
MEANS = 3
PERSONS = ["STATE", "AGEP", "SEX", "RAC1P", "CIT", "MAR", "SCHL", "ESR", "COW", "WKHP", "DIS", "HICOV", "MIL"]
REGRESSIONS = {
    "adult": (
        "income = '>50K'",
        "age, `hours-per-week`, `education-num`, sex = 'Male', `marital-status` = 'Married-civ-spouse', "
        "race = 'White', "
        "workclass = 'Private', `native-country` = 'United-States', "
        "occupation in ('Exec-managerial', 'Prof-specialty'), relationship = 'Not-in-family'",
    ),
    "acs2013": ("incc = 2", "age, hpw, edu, sex = 1, ms = 1, race = 5, wc = 1, waob = 1, rel = 1, occ in (16, 6)"),
    "acs2024": (
        "incc = 2",
        "age, hpw, edu, sex = 1, ms = 1, race = 5, wc = 1, nat = 1, state in (36, 12), occ in (16, 6)",
    ),
}
"""Outcome and ten terms of each table; the terms that are conditions are those of the means."""


class Made(Published):
    """A release that was rehearsed and not written."""

    def __init__(self, schema: Schema, codes: Codes, accuracy: Accuracy, model: Any, public: Any = None) -> None:
        about = {"table": schema, "attempt": "rehearsal", "parameters": public or {}, "format": PartFormat()}
        learned = about["parameters"].get("learned", {})
        self.__dict__["manifest"] = SimpleNamespace(records=len(codes[0]), learned=learned, **about)
        self.__dict__ |= {"codes": codes, "records": accuracy.records, "measurements": model.measurements}
        self.__dict__ |= {"accuracy": accuracy, "model": model}

    @cached_property
    def errors(self) -> CellErrors:
        cards = self.schema.cardinalities
        counts, m = pair_counts(self.codes, cards), range(len(cards))
        pairs = {pair: counts.pair(*pair).ravel() for pair in combinations(m, 2)}
        return CellErrors(self.__dict__["accuracy"], pairs)


def flat_tables(codes: Codes, cards: tuple[int, ...], sets: list[tuple[int, ...]]) -> list[np.ndarray]:
    ends = np.cumsum([prod(cards[i] for i in s) for s in sets])
    return np.split(table_counts(codes, cards, sets), ends[:-1])


def of_cells(codes: Codes, made: Made) -> dict[str, list[float]]:
    """The columns of the cells of each order, for one key."""
    cards, rows, released = made.schema.cardinalities, len(codes[0]), len(made.codes[0])
    m, found = range(len(cards)), {}
    triples = list(combinations(m, 3))
    drawn = [triples[i] for i in np.random.default_rng(99).permutation(len(triples))[:TRIPLES]]
    for order, sets in ((1, [(i,) for i in m]), (2, list(combinations(m, 2))), (3, drawn)):
        cells = []
        pairs = zip(sets, flat_tables(codes, cards, sets), flat_tables(made.codes, cards, sets), strict=True)
        for s, truth, ours in pairs:
            share, real = ours / released, truth / rows
            known = made.measurements.combined(s, tuple(cards[i] for i in s)) if order < 3 else None
            best = made.errors.interval(s, ours, measured=known)
            off = np.abs(truth - share * rows)
            naive = off <= 1.96 * np.sqrt(rows * share * (1 - share))
            stated = off <= made.errors.within(order) * rows
            covered, half = (best.low <= truth) & (truth <= best.high), (best.high - best.low) / 2
            cells.append(
                np.stack([share, covered, naive, stated, half / rows, 1.96 * np.sqrt(real * (1 - real) / rows)])
            )
        share, covered, naive, stated, half, sample = np.concatenate(cells, axis=1)
        large, small = share > 0.01, (share > 0.001) & (share <= 0.01)
        means = [np.mean(column) for column in (covered[large], naive[large], covered[small], stated[large])]
        found[f"cells {order}"] = [100 * float(x) for x in (*means, np.median(half[large]), np.median(sample[large]))]
    return found


def of_estimates(codes: Codes, made: Made, name: str) -> dict[str, list[float]]:
    """The columns of means and regressions, for one key."""
    replicates = make_replicates(made)
    real = Replicates(Made(made.schema, codes, made.__dict__["accuracy"], made.model), codes, 1.0, _ones(codes), 1.0)
    found = {}
    for kind, fit, prefix in (("linear", linear, ""), ("logistic", logistic, "logistic ")):
        answers = by_replicates(replicates, question_of(name, prefix))
        sides = [_fitted(of, name, fit, bool(prefix)) for of in (real, replicates)]
        found[kind] = _of_coefficients(answers, *sides)
    listed = REGRESSIONS[name][1]
    found["means"] = _of_means(replicates, real, [text for text in listed_in(listed) if not _is_name(made, text)])
    return found


def question_of(name: str, prefix: str) -> str:
    """The regression of a table."""
    outcome, listed = REGRESSIONS[name]
    return f"{prefix}regression {outcome} on {listed}"


def of_declared(codes: Codes, made: Made, name: str, truths: dict[str, Any]) -> dict[str, list[float]]:
    """The columns of declared regressions, and the mean distance of two-way tables, for one key.

    What is found of the table itself is kept in `truths`.
    """
    cards, pairs = made.schema.cardinalities, list(combinations(range(len(codes)), 2))
    both = [flat_tables(of, cards, pairs) for of in (codes, made.codes)]
    away = [float(np.abs(a / len(codes[0]) - b / len(made.codes[0])).sum() / 2) for a, b in zip(*both, strict=True)]
    found = {"distance": [0.0, 0.0, 0.0, 0.0, float(np.mean(away)), 0.0]}
    if made.regressions:
        real, released = (Replicates(made, of, 1.0, _ones(of), 1.0) for of in (codes, made.codes))
        for kind, fit, prefix in (("linear", linear, ""), ("logistic", logistic, "logistic ")):
            if kind not in truths:
                truths[kind] = _fitted(real, name, fit, bool(prefix))
            fitted = truths[kind], _fitted(released, name, fit, bool(prefix))
            found[f"{kind} declared"] = _of_coefficients(answer(made, question_of(name, prefix)), *fitted)
    return found


def _fitted(of: Replicates, name: str, fit: Any, is_logistic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of some records, and their standard errors in a simple random sample."""
    outcome, listed = REGRESSIONS[name]
    columns = [_term(of, text) for text in (outcome, *listed_in(listed))]
    grouped, weights = of.grouped(np.arange(len(of.ratios)), columns)
    terms = np.concatenate([np.ones((len(grouped), 1)), grouped[:, 1:]], axis=1)
    weights = weights[:, :1] / of.weight
    return _robust(terms, grouped[:, 0], weights[:, 0], fit(terms, grouped[:, 0], weights)[:, 0], is_logistic)


def _of_coefficients(answers: list[Answer], real: Any, released: Any) -> list[float]:
    (truth, sample), (ours, naive) = real, released
    # an answer without an interval says why, and does not count
    low, high = (np.array([getattr(a, end) for a in answers[1:]], np.float64) for end in ("low", "high"))
    given = ~np.isnan(low)
    covered = ((low <= truth[1:]) & (truth[1:] <= high))[given]
    plain = np.abs(ours - truth)[1:] <= 1.96 * naive[1:]
    widths = ((high - low) / 2)[given], 1.96 * sample[1:]
    return [100 * covered.mean(), 100 * plain.mean(), 0.0, 0.0, *(float(np.median(w)) for w in widths)]


def _of_means(replicates: Replicates, real: Replicates, conditions: list[str]) -> list[float]:
    schema, rows = real.release.schema, []
    named = [a.name for a in schema.attributes if not a.is_continuous and a.cardinality > 2 and ends_of(a) is not None]
    for name in named[:MEANS]:
        for where in ("", *(f" where {text}" for text in conditions if not text.startswith(name))):
            (one,) = by_replicates(replicates, f"mean `{name}`{where}")
            sides = []
            for of in (real, replicates):
                inside = _term(of, where[7:]) > 0 if where else np.ones(len(of.codes[0]), bool)
                values = _term(of, name)[inside]
                sides.append((values.mean(), 1.96 * values.std() / np.sqrt(len(values))))
            (truth, sample), (ours, naive) = sides
            assert one.low is not None
            assert one.high is not None
            half = (one.high - one.low) / 2
            rows.append([one.low <= truth <= one.high, abs(ours - truth) <= naive, half / sample])
    table = np.array(rows, np.float64)
    return [100 * table[:, 0].mean(), 100 * table[:, 1].mean(), 0.0, 0.0, float(np.median(table[:, 2])), 1.0]


def _term(of: Replicates, text: str) -> np.ndarray:
    term = parse_term(text, of.release.schema)
    return np.asarray(term.values[of.codes[term.attribute]])


def _is_name(made: Made, text: str) -> bool:
    return text.strip("`") in made.schema.names


def _ones(codes: Codes) -> np.ndarray:
    return np.ones((len(codes[0]), 1), np.float32)


def _robust(
    terms: np.ndarray, outcome: np.ndarray, weights: np.ndarray, found: np.ndarray, is_logistic: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients, and their standard errors in a simple random sample."""
    p = terms @ found
    slope = np.ones(len(p))
    if is_logistic:
        p = 1 / (1 + np.exp(-p))
        slope = p * (1 - p)
    inverse = np.linalg.inv((terms * (weights * slope)[:, None]).T @ terms)
    middle = (terms * (weights * (outcome - p) ** 2)[:, None]).T @ terms
    return found, np.sqrt(np.diag(inverse @ middle @ inverse))


COLUMNS = ("coverage", "naive", "below", "sentence", "half_width", "sample_half_width")


def release_of(codes: Codes, plan: Any, seed: int) -> Made:
    """One release by a seeded key, which differs between tables and between epsilons: their noise is independent."""
    seeds = [seed, 6, len(codes[0]), round(1_000 * plan.spec.privacy.epsilon)]
    key = key_from(Noise(np.random.default_rng(seeds).bytes(32)))
    stages = [s for s in stages_of(plan) if s.name in ("model", "records", "accuracy", "regressions")]
    made = rehearse(plan, stages, codes, key=key, until=None)
    accuracy, learned = made.result(ReleaseAccuracy).accuracy, made.result(Learned)
    model = PublishedModel(learned.fitted, learned.measurements, made.drawing_key.public_hex, plan.choices.balance)
    return Made(plan.spec.table, released_codes(made), accuracy, model, made.public)


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each epsilon and kind of estimate, averaged over the keys."""
    codes, _, shipped = table_of(name)
    truths: dict[str, Any] = {}
    for epsilon in options.epsilon:
        spec = spec_of(shipped, "synthesis", epsilon=epsilon, records=len(codes[0]))
        if options.declared:
            spec = change(spec, {"regressions": [question_of(name, prefix) for prefix in ("", "logistic ")]})
        plan, runs = make_plan(spec), []
        for seed in range(options.keys):
            made = release_of(codes, plan, seed)
            runs.append(of_declared(codes, made, name, truths))
            if not options.quick:
                runs[-1] |= of_cells(codes, made) | of_estimates(codes, made, name)
        for kind in runs[0]:
            table = np.array([run[kind] for run in runs])
            means = dict(zip(COLUMNS, np.round(table.mean(0), 5).tolist(), strict=True))
            ends = {"least": round(float(table[:, 0].min()), 1), "most": round(float(table[:, 0].max()), 1)}
            yield {"table": name, "epsilon": epsilon, "of": kind, "keys": options.keys, **means, **ends}


def persons(rows: int, *, wide: bool) -> tuple[Codes, Schema]:
    """Persons of ACS 2024, nulls as a value: tables that nothing was set on. A wide one has all columns but the weight,
    those of more than 120 values in twelfths.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(DATA / "acs2024_persons.parquet", columns=None if wide else PERSONS).to_pandas()
    drawn = table.sample(rows, random_state=int(wide)).index
    attributes, codes = [], []
    for name in (name for name in table if name != "PWGTP"):
        column = table[name]
        if column.nunique() > 120:
            cuts = np.unique(np.quantile(column.dropna(), np.linspace(0, 1, 13))[1:-1])
            column = column.where(column.isna(), np.searchsorted(cuts, column.fillna(0)))
        values = sorted(int(value) for value in column.dropna().unique())
        found = np.searchsorted(values, column[drawn].fillna(2**31))  # a missing value comes last
        codes.append(found.astype(np.uint8))
        missing = {"missing": {"category": "missing"}} if column.isna().any() else {}
        attributes.append({"name": name, "kind": "categorical", "values": values} | missing)
    return codes, Schema.model_validate({"attributes": attributes})


def measure_cells(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each epsilon: how often cells above 0.1 % of the *table* are covered, on average and at least."""
    shipped = None
    if name in FILES:
        codes, _, shipped = table_of(name)
        schema = shipped.table
    else:
        codes, schema = persons(8_000, wide=True) if name == "wide" else persons(60_000, wide=False)
    cards, m = schema.cardinalities, range(len(codes))
    triples = list(combinations(m, 3))
    drawn = [triples[i] for i in np.random.default_rng(99).permutation(len(triples))[:TRIPLES]]
    sets: dict[int, list[tuple[int, ...]]] = {1: [(i,) for i in m], 2: list(combinations(m, 2)), 3: drawn}
    truths = {order: flat_tables(codes, cards, of_order) for order, of_order in sets.items()}
    for epsilon in options.epsilon:
        base = shipped or SimpleNamespace(table=schema)
        plan = make_plan(spec_of(base, "synthesis", epsilon=epsilon, records=len(codes[0])))
        found: dict[int, list[float]] = {order: [] for order in sets}
        for seed in range(options.keys):
            made = release_of(codes, plan, seed)
            for order, of_order in sets.items():
                covered = []
                ours_of = flat_tables(made.codes, cards, of_order)
                for s, truth, ours in zip(of_order, truths[order], ours_of, strict=True):
                    known = made.measurements.combined(s, tuple(cards[i] for i in s)) if order < 3 else None
                    one = made.errors.interval(s, ours, measured=known)
                    covered.append(((one.low <= truth) & (truth <= one.high))[truth > 0.001 * len(codes[0])])
                found[order].append(100 * float(np.concatenate(covered).mean()))
        shown = {f"{order}": f"{np.mean(of):.1f} ({min(of):.1f})" for order, of in found.items()}
        yield {"table": name, "epsilon": epsilon, "keys": options.keys, **shown}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=[*FILES, "persons", "wide"], default=list(FILES))
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.25, 1, 4])
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--cells", action="store_true", help="instead, cells above 0.1 %% of the table alone")
    parser.add_argument("--declared", action="store_true", help="declare the regressions, so that they are measured")
    parser.add_argument("--quick", action="store_true", help="declared regressions and distances alone")
    options = parser.parse_args()
    of = measure_cells if options.cells else measure
    write_rows(options, (row for name in options.tables for row in of(name, options)))


if __name__ == "__main__":
    main()
