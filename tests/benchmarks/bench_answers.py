"""How often intervals of quantiles, means, differences and regressions cover, in all records and in groups.

    python tests/benchmarks/bench_answers.py --json bench/answers.json [--tables wide] [--epsilon 1] [--keys 20]
        [--all | --noise 1000]

For each table of `QUESTIONS` and epsilon (delta 1e-9) the table is synthesised with the defaults. The questions are
quantiles .1, .5 and .9 and means of its numbers, over all records and in each group; differences of means between a
group and the one before; and regressions over all records and in the first groups. Missing values are left out:
*missing* are the questions about attributes that have some. ``--all`` asks over all records alone; ``--noise`` asks
for means by the noisy one-way tables alone, of so many keys. Groups are *large* from 5 % of the table on, *rare* below
0.5 %. Shown is, in percent, how many nominal 95 % intervals hold the private table's answer, where one is given: on
average over the keys, and for the worst one; of all sizes together and of each; and the median half width (of
quantiles: in points of the distribution function of the private table). Keys are seeded, **not private**.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
from bench_coverage import Made, persons, release_of
from bench_synthesis import spec_of, table_of
from harness import argument_parser, write_rows

from dpdist.data.count import pair_counts
from dpdist.errors import SpecError
from dpdist.families.base.registry import make_plan
from dpdist.inference.answers import Answer, infer, parse_quantity
from dpdist.inference.comparisons import by_replicates, mean, noisy_mean
from dpdist.inference.replicates import Replicates, make_replicates
from dpdist.model.account import GaussianAccount, measurements_of
from dpdist.model.coding import coding_of
from dpdist.model.one_way import measure_one_way
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.conditions import parse_condition
from dpdist.spec.schema import Schema

SIZES = {"large": 0.05, "small": 0.005, "rare": 0.0}
LEAST = 30
LEVELS = (0.1, 0.5, 0.9)
QUESTIONS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "wide": (
        ["AGEP", "SCHL", "WKHP", "PINCP"],
        ["SEX", "HICOV", "RAC1P", "MAR", "CIT", "ESR", "COW", "SEX, RAC1P"],
        ["PINCP on AGEP, SEX = 1, DIS = 1", "WKHP on AGEP, SCHL, MAR = 1", "HICOV = 2 on AGEP, CIT = 5, DIS = 1"],
    ),
    "persons": (
        ["AGEP", "SCHL", "WKHP"],
        ["SEX", "HICOV", "RAC1P", "MAR", "CIT", "ESR", "COW", "SEX, RAC1P"],
        ["WKHP on AGEP, SCHL, MAR = 1", "AGEP on SCHL, SEX = 1, DIS = 1", "HICOV = 2 on AGEP, CIT = 5, DIS = 1"],
    ),
    "adult": (
        ["age", "education-num", "hours-per-week", "capital-gain"],
        ["sex", "income", "race", "workclass", "relationship", "native-country", "sex, race"],
        ["`hours-per-week` on age, sex = 'Male', `education-num`", "age on `education-num`, race = 'White'",
         "income = '>50K' on age, `hours-per-week`, `marital-status` = 'Married-civ-spouse'"],
    ),
    "acs2013": (
        ["age", "edu", "hpw"],
        ["sex", "ms", "race", "wc", "occ", "waob", "sex, race"],
        ["hpw on age, sex = 1, edu", "age on edu, race = 5, sex = 1", "incc = 2 on age, hpw, ms = 1"],
    ),
}  # fmt: skip
"""Numbers, attributes whose values (with at least `LEAST` records) are groups, and regressions."""


Truths = Callable[[str], list[Answer]]


def truths_of(codes: Codes, made: Made) -> Truths:
    """The answers of the private table, each computed once."""
    real = Replicates(made, codes, 1.0, np.ones((len(codes[0]), 0), np.float32), 1.0)
    return cache(partial(by_replicates, real))


def answers_of(
    codes: Codes, made: Made, name: str, real: Truths, *, grouped: bool = True
) -> Iterator[tuple[str, bool, float]]:
    """For each question: its kind, whether its interval covers, and its width."""
    numbers, grouping, regressions = QUESTIONS[name]
    replicates = make_replicates(made)
    made.law.__dict__["marginal"] = cache(made.law.marginal)
    groups = {"": "all"} | dict(_groups(codes, made.schema, grouping if grouped else []))
    with_missing = [a.name for a in made.schema.attributes if a.missing_code is not None]
    for text in numbers:
        before, number, added = "", f"`{text}`", ", missing" * (text in with_missing)
        for where, of in groups.items():
            for level in LEVELS:
                with suppress(SpecError):  # no record of the release is in the group, here and below
                    yield f"quantiles, {of}{added}", *_quantile(codes, made, f"quantile {level} {number}{where}")
            for one in _replicated(real, replicates, f"mean {number}{where}"):
                yield f"means, {of}{added}", *one
            if before:
                for one in _replicated(real, replicates, f"mean {number}{where} minus mean {number}{before}"):
                    yield f"differences, {of}{added}", *one
            before = where
    for text in regressions:
        added = ", missing" * any(attribute in text for attribute in with_missing)
        for where, of in [*groups.items()][:12]:
            for one in _replicated(real, replicates, f"regression {text}{where}")[1:]:
                yield f"regressions, {of}{added}", *one


def _groups(codes: Codes, schema: Schema, grouping: list[str]) -> Iterator[tuple[str, str]]:
    """A condition for each group of the real table, and how large it is."""
    for names in (listed.split(", ") for listed in grouping):
        attributes = [schema.attributes[schema.names.index(name)] for name in names]
        for values in product(*(a.values or () for a in attributes)):
            text = " and ".join(f"`{name}` = {value!r}" for name, value in zip(names, values, strict=True))
            number = int(parse_condition(text, schema).holds(codes).sum())
            if number >= LEAST:
                yield f" where {text}", next(of for of, least in SIZES.items() if number >= least * len(codes[0]))


def _replicated(real: Truths, replicates: Replicates, question: str) -> list[tuple[bool, float]]:
    """Of each answer with an interval; none where the question is refused, as no record is in the group."""
    found = []
    is_mean = question.startswith("mean ") and " minus " not in question
    with suppress(SpecError):
        answers = [mean(replicates, question)] if is_mean else by_replicates(replicates, question)
        for truth, ours in zip(real(question), answers, strict=True):
            if isinstance(ours.low, float) and isinstance(ours.high, float):
                found.append((ours.low <= truth.estimate <= ours.high, (ours.high - ours.low) / 2))
    return found


def _quantile(codes: Codes, made: Made, question: str) -> tuple[bool, float]:
    asked, ours = parse_quantity(question, made.schema), infer(made, question)
    counted = asked.condition.holds(codes) & asked.values.counted[codes[asked.values.place]]
    values = np.sort(asked.values.middles[codes[asked.values.place][counted]])
    if not len(values):
        raise SpecError("no record of the group has a value")
    truth = values[int(np.ceil(asked.level * len(values))) - 1]
    ends = np.searchsorted(values, ours.low, "left"), np.searchsorted(values, ours.high, "right")
    return ours.low <= truth <= ours.high, 100 * (ends[1] - ends[0]) / len(values) / 2


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each epsilon and kind of question."""
    codes, schema = table(name)
    truths = None
    for epsilon in options.epsilon:
        plan = make_plan(spec_of(SimpleNamespace(table=schema), "synthesis", epsilon=epsilon, records=len(codes[0])))
        runs = []
        for seed in range(options.keys):
            made = release_of(codes, plan, seed)
            truths = truths or truths_of(codes, made)
            runs.append(list(answers_of(codes, made, name, truths, grouped=not options.all)))
        for kind in dict.fromkeys(kind for of, *_ in runs[0] for kind in _kinds(of)):
            covered = [found for run in runs if (found := [inside for of, inside, _ in run if kind in _kinds(of)])]
            shares = [100 * float(np.mean(of_key)) for of_key in covered]
            width = np.nanmedian([width for run in runs for of, _, width in run if kind in _kinds(of)])
            found = {"coverage": round(np.mean(shares), 1), "least": round(min(shares), 1), "half_width": float(width)}
            yield {
                "table": name,
                "epsilon": epsilon,
                "of": kind,
                "number": len(covered[0]),
                "keys": options.keys,
            } | found


def by_noise(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each epsilon: means over all records by the noisy one-way tables, without a release."""
    codes, schema = table(name)
    sizes, asked_for = schema.cardinalities, {}
    counts = pair_counts(codes, sizes)
    for text in QUESTIONS[name][0]:
        asked = parse_quantity(f"mean `{text}`", schema)
        exact = np.where(asked.values.counted, counts.single(asked.values.place), 0)
        asked_for[text] = asked, float(exact @ asked.values.middles) / exact.sum()
    for epsilon in options.epsilon:
        plan = make_plan(spec_of(SimpleNamespace(table=schema), "synthesis", epsilon=epsilon, records=len(codes[0])))
        choices, covered = plan.choices, dict[str, list[bool]]()
        for seed in range(options.noise):
            account = GaussianAccount(choices.mu, Noise(np.random.default_rng([seed, round(100 * epsilon)]).bytes(32)))
            one_way = measure_one_way(counts, account, first=choices.one_way, again=choices.one_way_again)
            tables = measurements_of(account, coding_of(one_way, merge_below=1.5, coarse=()), (), {})
            measured: Any = SimpleNamespace(
                schema=schema, measured=lambda of, tables=tables: tables.combined(of, tuple(sizes[i] for i in of))
            )
            for text, (asked, truth) in asked_for.items():
                if (ours := noisy_mean(measured, asked)) is not None:
                    estimate, _, below, above = ours
                    covered.setdefault(text, []).append(estimate - below <= truth <= estimate + above)
        # numbers that most keys find too noisy are answered by replicates
        often = [inside for inside in covered.values() if len(inside) >= options.noise / 10]
        shares = [100 * float(np.mean(inside)) for inside in often]
        rates = {"coverage": round(np.mean(shares), 1), "least": round(min(shares), 1)}
        yield {"table": name, "epsilon": epsilon, "numbers": len(shares), "keys": options.noise} | rates


def _kinds(of: str) -> tuple[str, ...]:
    """The rows that a question counts in: of its kind, and of that and each thing said of it."""
    kind, *said = of.split(", ")
    return kind, *(f"{kind}, {word}" for word in said)


def table(name: str) -> tuple[Codes, Schema]:
    """The codes of a table, and its schema."""
    if name in ("wide", "persons"):
        return persons(8_000, wide=True) if name == "wide" else persons(60_000, wide=False)
    codes, _, shipped = table_of(name)
    return codes, shipped.table


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.25, 1, 4])
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--all", action="store_true", help="questions over all records alone, without groups")
    parser.add_argument("--noise", type=int, default=0, help="keys of the one-way tables alone, without releases")
    options = parser.parse_args()
    rows = by_noise if options.noise else measure
    write_rows(options, (row for name in options.tables for row in rows(name, options)))


if __name__ == "__main__":
    main()
