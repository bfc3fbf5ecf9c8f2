"""What earlier releases are worth as evidence: the ACS 2024 dealt to twelve months, with a made-up drift, and by state.

    python tests/benchmarks/bench_series.py --json bench/series.json [--drift 0 0.02 0.2] [--months 12 6 6] [--states 3]

*Months*: the workers in random order, an equal part each month, (1, 1e-9) for each person over all: 70 % of mu^2 for
the month, 15 % each for the quarter and the year. With a drift that part of the records is redrawn every month, for
good, from a population in which half of the attributes are independent of the others. Each month has the months before
as `previous`; the last one is also released *alone*. *Own sample* is as many records drawn from the month itself.
*Roll-ups*: each quarter has its months as a `sum` and the quarters before as `previous`, the year has its months as a
`sum` and its quarters as `larger`. *States*: some of the smallest and largest ones, alone and with the release of the
country as a table that they are a `part` of; and the country, with the share of a quarter or a year together, with its
states as a `sum`. Distances are those of
`bench_synthesis.py`; *cells* are how many of the nominal 95 % intervals of one- and two-way cells above 1 % (and,
*below*, of 0.1 to 1 %) cover. *By question*: levels of the last month, changes from the one before and from the first,
averages and sums of all, of one and two attributes, over all keys and (*keys*) of the worst and the best one; *length*:
of intervals in parts of those of each month's tables alone. *Panel*: the persons of the ACS 2024,
aged by twelve months, of whom 5 % take the employment status of another person in some month, counted by month, age
group, sex and status, with one change at most; errors by cell in deviations of a table that has the whole budget, of
the noisy counts (*linear*), of the values, and of these with the changes that are not counted; *covered*: by nominal
95 % intervals of the values.
Keys are seeded, **not private**.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_coverage import Made, of_cells
from bench_synthesis import Distances, table_of
from harness import DATA, argument_parser, spec_without_places, write

from dpdist.data.arrow import TableInMemory
from dpdist.data.operators import gather_operator
from dpdist.families.base.accuracy import ReleaseAccuracy
from dpdist.families.base.bounding import bounded
from dpdist.families.base.graph import run_pass
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import EXECUTOR, Rehearsal, key_from, rehearse, released_codes
from dpdist.families.histogram.counts import histograms
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.histogram.stages import NoisyStatistics, _statistics
from dpdist.families.synthesis import stages
from dpdist.inference.answers import NORMAL_95, parse_quantity
from dpdist.inference.published import Published
from dpdist.inference.series import Series, _measured
from dpdist.model.account import Measurements, NoisyTable
from dpdist.model.earlier import EarlierReleases
from dpdist.model.evidence import Earlier, Related
from dpdist.model.learn import Learned
from dpdist.model.one_way import combine
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

EPSILON = {"month": 0.8297, "quarter": 0.3717, "year": 0.3717, "whole": 1.0}
EPSILON |= {"20 %": 0.4316, "30 %": 0.5333, "70 %": 0.8297, "80 %": 0.8893}
"""Epsilon at delta 1e-9 of 70, 15, 15, 100 and some other parts of the mu^2 of (1, 1e-9)."""


class Releases:
    """Releases of tables of one schema."""

    def __init__(self, schema: Schema, seed: int, *, distances: bool = False) -> None:
        self.schema, self._seed, self._distances = schema, seed, distances

    def release(self, codes: Codes, share: str, *related: Related, only_learn: bool = False) -> Rehearsal:
        """A release of a table at a share of the budget, with earlier ones as evidence."""
        rows = len(codes[0])
        evidence = {one.kind: [f"earlier/{k}" for k in range(len(one.releases))] for one in related}
        spec = spec_without_places(
            "synthesis",
            self.schema,
            round(0.9 * rows),
            synthesis={"records": rows},
            privacy={"epsilon": EPSILON[share], "delta": 1e-9},
            model={"evidence": evidence} if related else {},
        )
        plan = make_plan(spec)
        self._seed += 1
        key = key_from(Noise(np.random.default_rng([self._seed, 7]).bytes(32)))
        with patch.object(stages, "read_evidence", lambda spec: EarlierReleases(related, {}) if related else None):
            return rehearse(plan, stages_of(plan), codes, key=key, until=Learned if only_learn else ReleaseAccuracy)

    def figures(self, codes: Codes, made: Rehearsal) -> dict[str, float]:
        """Distances of a release, and coverage of its cells."""
        released = released_codes(made)
        distances = Distances(codes, self.schema.cardinalities).of(released)
        if self._distances:
            return {name: round(value, 5) for name, value in distances.items()}
        accuracy, learned = made.result(ReleaseAccuracy).accuracy, made.result(Learned)
        cells = of_cells(codes, Made(self.schema, released, accuracy, learned))
        covered = {f"cells_{k}": round(cells[f"cells {k}"][0], 1) for k in (1, 2)}
        below = {f"below_{k}": round(cells[f"cells {k}"][2], 1) for k in (1, 2)}
        return {name: round(value, 4) for name, value in distances.items()} | covered | below


def earlier(made: Rehearsal) -> Earlier:
    """A release as evidence."""
    learned = made.result(Learned)
    return Earlier(learned.measurements, learned.report["records"])


def drifted(months: Sequence[Codes], drift: float) -> list[Codes]:
    """The months with records redrawn; from month to month more of them."""
    found = []
    for t, codes in enumerate(months):
        rng, rows = np.random.default_rng([t, 11]), len(codes[0])
        shuffled = rng.permutation(rows)
        other = rng.random(rows) < 1 - (1 - drift) ** t
        half = len(codes) // 2
        found.append([np.where(other & (k < half), column[shuffled], column) for k, column in enumerate(codes)])
    return found


def exact(codes: Codes, published: Measurements, cards: tuple[int, ...]) -> list[NoisyTable]:
    """The published tables of a release before they had noise."""
    found = []
    for table in published.tables:
        if table.attributes:
            columns = [
                published.maps[a][codes[published.source[a]]] if table.coded else codes[a] for a in table.attributes
            ]
            cells = np.ravel_multi_index([column.astype(np.int64) for column in columns], table.shape)
            found.append(replace(table, counts=np.bincount(cells, minlength=table.counts.size)))
    return found


def redrawn(made: Earlier, tables: Sequence[NoisyTable], key: int) -> Earlier:
    """A release with other noise in the tables that it chose."""
    noise = Noise(np.random.default_rng([key, 13]).bytes(32))
    noisy = [
        replace(t, counts=t.counts + noise.gaussian_integers(f"{t.step}/{i}", t.counts.size, sigma=t.deviation))
        for i, t in enumerate(tables)
    ]
    steps = [[t for t in noisy if t.step == step] for step in ("one-way", "one-way/again")]
    one_way = combine([[t.counts for t in own] for own in steps], [np.array([t.deviation for t in s]) for s in steps])
    return Earlier(replace(made.measurements, tables=tuple(noisy)), round(one_way.records))


class Drawn(Published):
    """A release as questions over time see it: its schema and its noisy tables."""

    def __init__(self, schema: Schema, made: Earlier) -> None:
        self.__dict__ |= {"manifest": SimpleNamespace(table=schema), "model": SimpleNamespace(**vars(made))}
        self.__dict__ |= {"measurements": made.measurements, "records": made.records}


def questions(schema: Schema, tables: Sequence[Codes]) -> Iterator[tuple[int, str, Floats]]:
    """Conditions on one and two attributes that 1 to 99 % of the records meet, single values and half of all values,
    with the number of records that meet them in each period.
    """
    names, cards = [f"`{a.name}`" for a in schema.attributes], schema.cardinalities
    values = [a.values or range(int(a.bounds[0]), int(a.bounds[1]) + 1) for a in schema.attributes]
    single = [[np.bincount(codes[i], minlength=size) for codes in tables] for i, size in enumerate(cards)]
    of = [(i, np.flatnonzero(np.mean(counts, 0) > 0.01 * len(tables[0][0]))) for i, counts in enumerate(single)]
    for i, large in of:
        for v in large.tolist():
            yield 1, f"{names[i]} = {values[i][v]}", np.array(single[i])[:, v].astype(float)
        if cards[i] > 4:
            half = np.random.default_rng([i, 5]).permutation(cards[i])[: cards[i] // 2]
            listed = ", ".join(str(values[i][v]) for v in half)
            yield 1, f"{names[i]} in ({listed})", np.array(single[i])[:, half].sum(1).astype(float)
    for (i, large), (j, others) in combinations(of, 2):
        pairs = [codes[i].astype(np.int64) * cards[j] + codes[j] for codes in tables]
        counts = np.array([np.bincount(pair, minlength=cards[i] * cards[j]) for pair in pairs], float)
        for v, w in ((v, w) for v in large.tolist() for w in others.tolist()):
            if (found := counts[:, v * cards[j] + w]).mean() > 0.01 * len(pairs[0]):
                yield 2, f"{names[i]} = {values[i][v]} and {names[j]} = {values[j][w]}", found


def over_time(schema: Schema, tables: Sequence[Codes], made: Sequence[Sequence[Earlier]]) -> Iterator[dict[str, Any]]:
    """Coverage of questions over time, over several keys; lengths beside those of each month's tables alone.

    Of two attributes, those that some month has measured; a length is given where all of them have.
    """
    number, records = len(tables), np.array([len(codes[0]) for codes in tables], float)
    listed = list(questions(schema, tables))
    weights = {
        "share": np.eye(number)[-1],
        "change of share": np.eye(number)[-1] - np.eye(number)[-2],
        "change of share since month 1": np.eye(number)[-1] - np.eye(number)[0],
        "average of share": np.full(number, 1 / number),
        "count": np.eye(number)[-1],
        "change of count": np.eye(number)[-1] - np.eye(number)[-2],
        "sum of count": np.ones(number),
    }
    found: dict[tuple[str, int], list[list[bool]]] = {}
    lengths: dict[str, list[float]] = {}
    for key, releases in enumerate(made):
        series = Series(tuple(f"{t + 1:02}" for t in range(number)), tuple(Drawn(schema, one) for one in releases))
        for order, where, counts in listed:
            asked = parse_quantity(f"share where {where}", schema)
            known = [_measured(release, asked) for release in series.releases]
            if not any(known):
                continue
            combined = np.array(list(weights.values()))
            of_shares, of_counts = (
                series._together(quantity, combined, known) for quantity in (asked, replace(asked, kind="count"))
            )
            for k, (question, of) in enumerate(weights.items()):
                is_count = question.endswith("count")
                estimates, deviations, _ = of_counts if is_count else of_shares
                true = of @ (counts if is_count else counts / records)
                rows = found.setdefault((question, order), [[] for _ in made])
                rows[key].append(abs(estimates[k] - true) < NORMAL_95 * deviations[k])
                if all(known) and not is_count:
                    alone = np.sqrt(of**2 @ np.array([one[1] for one in known if one]))
                    lengths.setdefault(question, []).append(deviations[k] / float(alone))
    for kind in weights:
        both = {order: [100 * float(np.mean(own)) for own in found[kind, order]] for order in (1, 2)}
        yield {
            "release": f"{kind}, by question, of {len(made)} keys",
            **{f"cells_{order}": round(float(np.mean(rates)), 1) for order, rates in both.items()},
            **{f"keys_{order}": f"{min(rates):.1f} to {max(rates):.1f}" for order, rates in both.items()},
            "length": round(float(np.median(lengths[kind])), 2) if kind in lengths else "",
        }


def months(options: argparse.Namespace, releases: Releases, codes: Codes) -> Iterator[dict[str, Any]]:
    """The last month alone and with those before, and questions over all of them, for several keys.

    Of the months before, each key but the first has other noise in the tables that the first one chose.
    """
    order = np.random.default_rng(0).permutation(len(codes[0]))
    size = len(order) // 12
    dealt = [[column[order[t * size : (t + 1) * size]] for column in codes] for t in range(12)]
    for drift, number in zip(options.drift, options.months, strict=True):
        tables, before = drifted(dealt[:number], drift), list[Earlier]()
        about: Mapping[str, Any] = {"case": "months", "table": options.table, "drift": drift}
        last, cards = tables[-1], releases.schema.cardinalities
        again = np.random.default_rng(1).integers(0, size, size)
        sample = Distances(last, cards).of([column[again] for column in last])
        yield {**about, "release": "own sample", **{name: round(value, 4) for name, value in sample.items()}}
        for table in tables:
            related = (Related("previous", tuple(before)),) if before else ()
            before.append(earlier(releases.release(table, "month", *related, only_learn=True)))
        known = [exact(table, one.measurements, cards) for table, one in zip(tables, before, strict=True)]
        made = [
            [redrawn(one, own, key * number + t) for t, (one, own) in enumerate(zip(before, known, strict=True))]
            for key in range(options.redrawn)
        ]
        if not options.distances:
            yield from ({**about, **row} for row in over_time(releases.schema, tables, made))
        for key in range(options.keys):
            related = (Related("previous", tuple((made[key] if key else before)[:-1])),)
            for named, given in (("alone", ()), (f"with the {number - 1} before", related)):
                row = releases.figures(last, releases.release(last, "month", *given))
                yield {**about, "release": f"month {number}, {named}", "key": key, **row}


def roll_ups(options: argparse.Namespace, releases: Releases, codes: Codes) -> Iterator[dict[str, Any]]:
    """The last quarter and the year of a series, for several keys."""
    order = np.random.default_rng(0).permutation(len(codes[0]))
    size = len(order) // 12
    tables = [[column[order[t * size : (t + 1) * size]] for column in codes] for t in range(12)]
    before, quarters = list[Earlier](), list[Earlier]()
    for t, table in enumerate(tables):
        related = (Related("previous", tuple(before)),) if before else ()
        before.append(earlier(releases.release(table, "month", *related, only_learn=True)))
        if t % 3 == 2:
            related = (Related("sum", tuple(before[-3:])),)
            related += (Related("previous", tuple(quarters)),) if quarters else ()
            whole = [np.concatenate(columns) for columns in zip(*tables[t - 2 : t + 1], strict=True)]
            for key in range(options.keys if t == 11 else 1):
                made = releases.release(whole, "quarter", *related, only_learn=t < 11)
                if t == 11:
                    named = {"release": "quarter, 15 % of mu^2, with its months and quarters before", "key": key}
                    yield {"case": "roll-ups", **named, **releases.figures(whole, made)}
            quarters.append(earlier(made))
    whole = [np.concatenate(columns) for columns in zip(*tables, strict=True)]
    related = (Related("larger", tuple(quarters)), Related("sum", tuple(before)))
    for key in range(options.keys):
        named = {"release": "year, 15 % of mu^2, with its quarters and months", "key": key}
        yield {"case": "roll-ups", **named, **releases.figures(whole, releases.release(whole, "year", *related))}


def states(options: argparse.Namespace, releases: Releases, codes: Codes) -> Iterator[dict[str, Any]]:
    """States alone, and with the country as evidence."""
    place = [name.lower() for name in releases.schema.names].index("state")
    kept = [k for k in range(len(codes)) if k != place]
    attributes = tuple(releases.schema.attributes[k] for k in kept)
    inside = Releases(Schema(attributes=attributes), options.seed, distances=options.distances)
    whole = [codes[k] for k in kept]
    alone = inside.release(whole, "whole")
    country = Related("part", (earlier(alone),))
    sizes = np.bincount(codes[place])
    ordered = [int(s) for s in np.argsort(sizes, kind="stable") if sizes[s]]
    if options.country:
        yield {"case": "states", "release": "country, all of mu^2", **inside.figures(whole, alone)}
    for share in options.country:
        parts = ([column[codes[place] == s] for column in whole] for s in ordered)
        made = tuple(earlier(inside.release(part, f"{share} %", only_learn=True)) for part in parts)
        together = inside.release(whole, f"{100 - share} %", Related("sum", made))
        name = f"country, {100 - share} % of mu^2, with its states at {share} %"
        yield {"case": "states", "release": name, **inside.figures(whole, together)}
    chosen = [ordered[round(k * (len(ordered) - 1) / max(options.states - 1, 1))] for k in range(options.states)]
    for state in chosen if options.states else ():
        own = [codes[k][codes[place] == state] for k in kept]
        for key in range(options.keys):
            for how, related in (("alone", ()), ("with the country", (country,))):
                figures = inside.figures(own, inside.release(own, "whole", *related))
                yield {"case": "states", "release": f"{len(own[0]):,} records, {how}", "key": key, **figures}


def panel(options: argparse.Namespace, releases: Releases, codes: Codes) -> Iterator[dict[str, Any]]:
    """Levels and changes of a panel, for several keys; errors of independent noise are those of the formula."""
    table = pq.read_table(DATA / "acs2024_persons.parquet", columns=["AGEP", "SEX", "ESR"])
    age, sex, status = (np.nan_to_num(table[name].to_numpy().astype(float)).astype(int) for name in table.column_names)
    rng, persons = np.random.default_rng(2), len(age)
    birthday, moved = (
        rng.integers(0, 12, persons),
        np.where(rng.random(persons) < 0.05, rng.integers(1, 12, persons), 12),
    )
    later = status[rng.integers(0, persons, persons)]
    month, person = np.tile(np.arange(12), persons), np.repeat(np.arange(persons), 12)
    columns = {
        "month": month,
        "age": np.minimum((age[person] + (month >= birthday[person])) // 5, 19),
        "sex": sex[person] - 1,
        "status": np.where(month >= moved[person], later[person], status[person]),
    }
    shape = {"month": 12, "age": 20, "sex": 2, "status": 7}
    attributes = [{"name": name, "kind": "integer", "bounds": [0, size - 1]} for name, size in shape.items()]
    spec = spec_without_places(
        "histogram",
        {"attributes": attributes},
        9 * persons,
        privacy={"epsilon": 1, "delta": 1e-9},
        histograms=[{"columns": list(shape)}],
        unit={"by": "person", "at_most": 12},
        panel={"period": "month", "changes": 1},
    )
    plan = make_plan(spec)
    assert isinstance(plan, HistogramPlan)
    assert plan.panel is not None
    assert plan.measurement is not None
    rows = TableInMemory(pa.table(columns | {"person": person}), "panel")
    found = bounded(
        EXECUTOR,
        rows.open(plan.spec.table, beside="person"),
        at_most=12,
        key=key_from(Noise(bytes(32))),
        following=plan.spec.following,
    )
    kept, report = run_pass(found, gather_operator())
    (capped,), (whole,) = (histograms(c, plan.counts) for c in (kept, list(columns.values())))
    sigma = plan.measurement.scales[0]
    about = {"case": "panel", "sigma": round(sigma, 2), "frozen": round(100 * report.frozen / report.rows, 2)}
    for key in range(options.keys):
        made = rehearse(plan, stages_of(plan), kept, key=key_from(Noise(bytes([key] * 32))), until=NoisyStatistics)
        attempt: Any = SimpleNamespace(spec=plan.spec, plan=plan, public={}, noise=None)
        (table,) = _statistics(attempt, made.result(NoisyStatistics).arrays)
        noisy, values = (counts.reshape(capped.shape) for counts in (table.noisy, table.value))
        near = np.abs(table.value - capped.ravel()) < NORMAL_95 * np.asarray(table.error)
        yield (
            about
            | {"release": "panel, one change at most", "key": key}
            | {
                f"{name}{how}": round(float(np.sqrt(np.mean(of(released - true) ** 2))) / sigma, 2)
                for how, released, true in (
                    (", linear", noisy, capped),
                    ("", values, capped),
                    (", all counted", values, whole),
                )
                for name, of in (("level", lambda away: away), ("change", lambda away: np.diff(away, axis=0)))
            }
            | {"covered": round(100 * float(near.mean()), 1)}
        )
    yield about | {"release": "independent noise", "level": round(12**0.5, 2), "change": round(24**0.5, 2)}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--drift", nargs="*", type=float, default=[0.0, 0.02, 0.2])
    parser.add_argument("--months", nargs="*", type=int, default=[12, 6, 6])
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--redrawn", type=int, default=10)
    parser.add_argument("--table", default="acs2024")
    parser.add_argument("--states", type=int, default=3)
    parser.add_argument("--country", nargs="*", type=int, default=[70], choices=(70, 80), help="shares of the states")
    parser.add_argument("--distances", action="store_true", help="without coverage, which takes most of the time")
    parser.add_argument("--cases", nargs="+", default=["months", "roll_ups", "states", "panel"])
    options = parser.parse_args()
    codes, _, spec = table_of(options.table)
    releases, rows = Releases(spec.table, options.seed, distances=options.distances), list[dict[str, Any]]()
    for case in (months, roll_ups, states, panel):
        for row in case(options, releases, codes) if case.__name__ in options.cases else ():
            print(json.dumps(row), flush=True)
            rows.append(row)
            write(options, rows)


if __name__ == "__main__":
    main()
