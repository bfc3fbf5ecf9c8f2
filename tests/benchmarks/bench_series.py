"""What earlier releases are worth as evidence: the ACS 2024 dealt to twelve months, with a made-up drift, and by state.

    python tests/benchmarks/bench_series.py --json bench/series.json [--drift 0 0.02 0.2] [--months 12 6 6] [--states 3]

*Months*: the workers in random order, an equal part each month, (1, 1e-9) for each person over all: 70 % of mu^2 for
the month, 15 % each for the quarter and the year. With a drift that part of the records is redrawn every month, for
good, from a population in which half of the attributes are independent of the others. Each month has the months before
as `previous`; the last one is also released *alone*. *Own sample* is as many records drawn from the month itself.
*Roll-ups*: each quarter has its months as a `sum` and the quarters before as `previous`, the year has its months as a
`sum` and its quarters as `larger`. *States*: some of the smallest and largest ones, alone and with the release of the
country as a table that they are a `part` of; and the country with its states as a `sum`. Distances are those of
`bench_synthesis.py`; *cells* are how many of the nominal 95 % intervals of one- and two-way cells above 1 % (and,
*below*, of 0.1 to 1 %) cover. *By question*: levels of the last month, changes from the one before and sums of all,
with the *length* of intervals in parts of those of each month's tables alone. *Panel*: the persons of the ACS 2024,
aged by twelve months, of whom 5 % take the employment status of another person in some month, counted by month, age
group, sex and status, with one change at most; errors by cell in deviations of a table that has the whole budget, from
noise, and with the changes that are not counted.
Keys are seeded, **not private**.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
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
from dpdist.families.histogram.stages import NoisyStatistics
from dpdist.families.synthesis import stages
from dpdist.inference.series import joint_levels
from dpdist.model.earlier import EarlierReleases
from dpdist.model.evidence import Earlier, Evidence, Related
from dpdist.model.learn import Learned
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

EPSILON = {"month": 0.8297, "quarter": 0.3717, "year": 0.3717, "state": 0.8893, "country": 0.4316, "whole": 1.0}
"""Epsilon at delta 1e-9 of 70, 15, 15, 80, 20 and 100 % of the mu^2 of (1, 1e-9)."""


class Releases:
    """Releases of tables of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema, self._seed = schema, 0

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
        """Distances and coverage of a release."""
        released = released_codes(made)
        distances = Distances(codes, self.schema.cardinalities).of(released)
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


def over_time(tables: Sequence[Codes], before: Sequence[Earlier], cards: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Coverage of questions over time about values of more than 1 %, and how long intervals are to those of two months.

    The steps are those of `dpdist.inference.series`.
    """
    evidence = Evidence((Related("previous", tuple(before[:-1])),), cards)
    evidence.repeated(before[-1].measurements)
    number, records = len(before), before[-1].records
    asked = {"levels": np.eye(number)[-1], "changes": np.eye(number)[-1] - np.eye(number)[-2], "sums": np.ones(number)}
    found: dict[str, list[tuple[bool, float]]] = {name: [] for name in asked}
    for i, size in enumerate(cards):
        measured = [one.measurements.combined((i,), (size,)) for one in before]
        noisy = np.array([one[0] / e.records for one, e in zip(measured, before, strict=True) if one is not None])
        variances = np.array([(one[1] / e.records) ** 2 for one, e in zip(measured, before, strict=True) if one])
        true = np.array([np.bincount(table[i], minlength=size) / len(table[i]) for table in tables])
        for value in np.flatnonzero(true.mean(0) > 0.01).tolist():
            mean = float(np.average(noisy[:, value], weights=1 / variances[:, value]))
            persons, step = evidence.drifts[0].at_most(mean * records)
            rest = max(1 - mean, 1 / records) / records**2
            levels, covariance = joint_levels(
                noisy[:, value], variances[:, value], persons=persons * rest, step=step * rest
            )
            for name, weights in asked.items():
                deviation = float(np.sqrt(weights @ covariance @ weights))
                away = abs(float(weights @ (levels - true[:, value])))
                alone = float(np.sqrt(weights**2 @ variances[:, value]))
                found[name].append((away < 1.96 * deviation, deviation / alone))
    for name, answers in found.items():
        covered, length = np.array(answers, np.float64).T
        yield {
            "release": f"{name} by question",
            "cells_1": round(100 * covered.mean(), 1),
            "length": round(float(np.median(length)), 2),
        }


def months(options: argparse.Namespace, releases: Releases, codes: Codes) -> Iterator[dict[str, Any]]:
    """One row for each release that is looked at."""
    order = np.random.default_rng(0).permutation(len(codes[0]))
    size = len(order) // 12
    dealt = [[column[order[t * size : (t + 1) * size]] for column in codes] for t in range(12)]
    for drift, number in zip(options.drift, options.months, strict=True):
        tables, before = drifted(dealt[:number], drift), list[Earlier]()
        about: Mapping[str, Any] = {"case": "months", "drift": drift}
        last = tables[-1]
        again = np.random.default_rng(1).integers(0, size, size)
        sample = Distances(last, releases.schema.cardinalities).of([column[again] for column in last])
        yield {**about, "release": "own sample", **{name: round(value, 4) for name, value in sample.items()}}
        yield {**about, "release": f"month {number}, alone", **releases.figures(last, releases.release(last, "month"))}
        for t, table in enumerate(tables):
            related = (Related("previous", tuple(before)),) if before else ()
            made = releases.release(table, "month", *related, only_learn=t + 1 not in (1, 2, 6, number))
            before.append(earlier(made))
            if t + 1 in (1, 2, 6, number):
                named = f"month {t + 1}, with the {t} before" if t else "month 1"
                yield {**about, "release": named, **releases.figures(table, made)}
        yield from ({**about, **row} for row in over_time(tables, before, releases.schema.cardinalities))


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
    inside = Releases(Schema(attributes=attributes))
    whole = [codes[k] for k in kept]
    alone = inside.release(whole, "whole")
    country = Related("part", (earlier(alone),))
    sizes = np.bincount(codes[place])
    ordered = [int(s) for s in np.argsort(sizes, kind="stable") if sizes[s]]
    if options.country:
        parts = [[column[codes[place] == s] for column in whole] for s in ordered]
        made = tuple(earlier(inside.release(part, "state", only_learn=True)) for part in parts)
        together = inside.release(whole, "country", Related("sum", made))
        for how, one in (("all of mu^2", alone), ("20 % of mu^2, with its states at 80 %", together)):
            yield {"case": "states", "release": f"country, {how}", **inside.figures(whole, one)}
    chosen = [ordered[round(k * (len(ordered) - 1) / max(options.states - 1, 1))] for k in range(options.states)]
    for state in chosen if options.states else ():
        own = [codes[k][codes[place] == state] for k in kept]
        for how, related in (("alone", ()), ("with the country", (country,))):
            figures = inside.figures(own, inside.release(own, "whole", *related))
            yield {"case": "states", "release": f"{len(own[0]):,} records, {how}", **figures}


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
        released = plan.panel.solved(made.result(NoisyStatistics).arrays["table_0"])
        yield (
            about
            | {"release": "panel, one change at most", "key": key}
            | {
                f"{name}{how}": round(float(np.sqrt(np.mean(of(released - true) ** 2))) / sigma, 2)
                for how, true in (("", capped), (", all counted", whole))
                for name, of in (("level", lambda away: away), ("change", lambda away: np.diff(away, axis=0)))
            }
        )
    yield about | {"release": "independent noise", "level": round(12**0.5, 2), "change": round(24**0.5, 2)}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--drift", nargs="*", type=float, default=[0.0, 0.02, 0.2])
    parser.add_argument("--months", nargs="*", type=int, default=[12, 6, 6])
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--states", type=int, default=3)
    parser.add_argument("--country", action="store_true")
    parser.add_argument("--cases", nargs="+", default=["months", "roll_ups", "states", "panel"])
    options = parser.parse_args()
    codes, _, spec = table_of("acs2024")
    releases, rows = Releases(spec.table), list[dict[str, Any]]()
    for case in (months, roll_ups, states, panel):
        for row in case(options, releases, codes) if case.__name__ in options.cases else ():
            print(json.dumps(row), flush=True)
            rows.append(row)
            write(options, rows)


if __name__ == "__main__":
    main()
