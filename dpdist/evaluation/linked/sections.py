"""The sections on a release of two linked tables: margins of each, what is within a parent, rules, attacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Executor
from dpdist.data.operators import through
from dpdist.data.records import RecordsInMemory
from dpdist.data.released import ReleasedTable
from dpdist.data.report import RowReport, check
from dpdist.errors import DataError
from dpdist.evaluation.inputs import EvaluatedTables, require_records
from dpdist.evaluation.linked import attacks
from dpdist.evaluation.linked.attacks import wide
from dpdist.evaluation.linked.parents import ParentRecords, real_parents, released_parents
from dpdist.evaluation.page.page import PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.records import View, code_labels, view_of
from dpdist.evaluation.request import Request
from dpdist.evaluation.utility import similarity
from dpdist.evaluation.utility.checks import holdout_section, rules_section
from dpdist.evaluation.utility.marginals import Marginals, chosen_triples, marginals_operator
from dpdist.evaluation.utility.similarity import FAIR, GOOD
from dpdist.families.base.attempt import Progress
from dpdist.families.base.family import LinkedRows
from dpdist.families.base.graph import run_pass
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema

NAME, TITLE = "within-parents", "Within parents"

LARGEST = 12  # values of each attribute whose shares of parents are compared
LEAST = 0.005  # share of the parents below which a subgroup of them is not compared
_WORST = 25

Statistics = dict[tuple[str, str], float]
"""By group and name. Of statistics that a table says nothing about there is no entry."""


_Pairs = tuple[str, NDArray[np.integer], NDArray[np.integer]]  # of members of one parent: a name, row numbers of both


def statistics(parents: ParentRecords) -> Statistics:
    """What parents are like inside."""
    sizes, most = parents.sizes, parents.linked.unit.at_most
    found: Statistics = {("members", f"{n}"): float(np.mean(sizes == n)) for n in range(1, most + 1)}
    for group, name, value in (*_shares(parents), *_alike(parents), *_apart(parents), *_of_subgroups(parents)):
        if np.isfinite(value):
            found[group, name] = float(value)
    return found


def _shares(parents: ParentRecords) -> Iterator[tuple[str, str, float]]:
    """Shares of parents with any member of a kind, and with a value of an attribute; and with all of one value."""
    owner, linked = parents.owner, parents.linked
    kinds = zip((name for name, _, _ in linked.kinds), linked.of_kinds(parents.codes), strict=True)
    for name, mask in kinds:
        count = np.bincount(owner[mask], minlength=len(parents))
        yield "any member", f"of {name}", _mean(count > 0)
        yield "two members and more", f"of {name}", _mean(count > 1)
    for place, attribute in _members(parents):
        if attribute.is_continuous or attribute.cardinality > LARGEST:
            continue
        for code, label in enumerate(code_labels(attribute)):
            count = np.bincount(owner[parents.codes[place] == code], minlength=len(parents))
            yield "any member", f"{attribute.name} is {label}", _mean(count > 0)
            alike = (count == parents.sizes)[_several(parents)]
            yield "all members, of several", f"{attribute.name} is {label}", _mean(alike)


def _alike(parents: ParentRecords) -> Iterator[tuple[str, str, float]]:
    """Shares of pairs of members that agree."""
    for name, first, second in _pairs(parents):
        for place, attribute in _members(parents):
            if not attribute.is_continuous:
                column = parents.codes[place]
                yield f"{name} agree", attribute.name, _mean(column[first] == column[second])


def _apart(parents: ParentRecords) -> Iterator[tuple[str, str, float]]:
    """Mean differences of ordered attributes, in parts of the width of the domain."""
    for place, attribute in _members(parents):
        if attribute.kind == "categorical":
            continue
        numbers = _scaled(attribute, parents.codes[place])
        for name, first, second in _pairs(parents):
            gaps = numbers[first] - numbers[second]
            gaps = gaps[np.isfinite(gaps)]
            yield f"{name}, mean distance", attribute.name, _mean(np.abs(gaps))
            yield f"{name}, mean difference", attribute.name, _mean(gaps)


def _of_subgroups(parents: ParentRecords) -> Iterator[tuple[str, str, float]]:
    """First and second member of the parents with each value of an attribute of theirs, and number of members."""
    first, second = parents.ends[:-1], parents.ends[:-1] + 1
    for place in map(parents.linked.place, parents.linked.parent):
        own = parents.linked.schema.attributes[place]
        if own.is_continuous or own.cardinality > LARGEST:
            continue
        for code, label in enumerate(code_labels(own)):
            chosen = parents.codes[place][first] == code
            if np.mean(chosen) < LEAST:
                continue
            yield f"single members where {own.name} is {label}", "share", _mean((parents.sizes == 1)[chosen])
            several = chosen & _several(parents)
            for at, attribute in _members(parents):
                if not attribute.is_continuous and np.mean(several) >= LEAST:
                    a, b = (parents.codes[at][rows[several]] for rows in (first, second))
                    yield f"first and second agree where {own.name} is {label}", attribute.name, _mean(a == b)


def _pairs(parents: ParentRecords) -> tuple[_Pairs, _Pairs, _Pairs]:
    """First and second members, first and later ones, and later ones with those before them."""
    starts, places = parents.ends[:-1], parents.places
    pairs, later = starts[_several(parents)], np.flatnonzero(places > 1)
    return (
        ("first and second member", pairs, pairs + 1),
        ("first and later members", starts[parents.owner[later]], later),
        ("later members and those before", later - 1, later),
    )


def _members(parents: ParentRecords) -> list[tuple[int, Attribute]]:
    """The members' attributes, with their places."""
    places = map(parents.linked.place, parents.linked.members)
    return [(place, parents.linked.schema.attributes[place]) for place in places]


def _several(parents: ParentRecords) -> NDArray[np.bool_]:
    return np.asarray(parents.sizes > 1)


def _mean(values: NDArray[np.generic]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _scaled(attribute: Attribute, column: NDArray[Any]) -> Floats:
    """Numbers from 0 to 1 for codes (bins: their middles); missing ones are NaN."""
    if attribute.is_continuous:
        low, high = attribute.bounds or (0.0, 1.0)
        return np.asarray((column - low) / (high - low), np.float64)
    if attribute.bounds is None:
        numbers = np.arange(attribute.cardinality - (attribute.missing_code is not None), dtype=np.float64)
    else:
        lows, highs = attribute.bin_ends()
        numbers = (lows.astype(np.float64) + highs) / 2
    width = max(float(numbers[-1] - numbers[0]), 2.0**-40)
    numbers = (numbers - numbers[0]) / width
    if attribute.missing_code is not None:
        numbers = np.append(numbers, np.nan)
    return np.asarray(numbers[column], np.float64)


def within_section(released: ParentRecords, real: ParentRecords, *, seed: int) -> PageSection:
    """Statistics of released and real parents, of two real halves, and of real members put together at random."""
    rng = np.random.default_rng([seed, 30])
    name, halves = real.linked.unit.name, real.halves(rng)
    tables = [statistics(one) for one in (real, *halves, released, real.loose(rng))]
    shared = [key for key in tables[0] if all(key in one for one in tables)]
    # real, one half, released, at random; and how far the released, the halves and those at random are apart
    values, far = {}, {}
    for key in shared:
        whole, first, second, made, loose = (one[key] for one in tables)
        values[key] = (whole, first, made, loose)
        far[key] = (abs(made - whole), abs(first - second), abs(loose - whole))
    groups = list(dict.fromkeys(group.split(" where ")[0] for group, _ in shared))
    by_group = {
        group: [far[key] for key in shared if key[0] == group or key[0].startswith(f"{group} where ")]
        for group in groups
    }
    means = np.mean(list(far.values()), axis=0)
    worst = sorted(shared, key=lambda key: -far[key][0])[:_WORST]
    plain = [key for key in shared if " where " not in key[0]]
    columns = ("statistic", "of", "real", "a half", "released", "members at random")
    tables_of = (
        PageTable(
            "Mean differences to the real table",
            ("statistics", "number", "released", "two real halves", "members at random"),
            tuple((group, len(own), *np.mean(own, axis=0).tolist()) for group, own in by_group.items()),
            f"Differences are in parts of the width of a domain. Members at random: real {name}s, each with members "
            "drawn from all.",
        ),
        PageTable("Statistics that differ most", columns, tuple((*key, *values[key]) for key in worst)),
        PageTable("All statistics but of subgroups", columns, tuple((*key, *values[key]) for key in plain)),
    )
    figures = {
        "number": len(shared),
        "mean_difference": dict(zip(("released", "halves", "random"), means.tolist(), strict=True)),
        "statistics": {
            ": ".join(key): dict(zip(("real", "half", "released", "random"), own, strict=True))
            for key, own in values.items()
        },
    }
    state, verdict = _judged(means, len(shared), name)
    return PageSection(NAME, TITLE, verdict, state, tables_of, (), figures)


def _judged(means: Floats, number: int, name: str) -> tuple[State, str]:
    released, near, far = means.tolist()
    text = (
        f"{number} statistics of what is within a {name} differ by {released:.4f} on average; those of two real halves "
        f"by {near:.4f}, and with members put together at random by {far:.4f}."
    )
    if far <= near:
        return "info", text + f" The members of a {name} are hardly more alike than others."
    way = (released - near) / (far - near)
    return ("good" if way <= GOOD else "fair" if way <= FAIR else "bad"), text


@dataclass(frozen=True, eq=False, repr=False)
class LinkedInputs:
    """Released parents and the real ones; confidential."""

    released: ParentRecords
    real: ParentRecords
    holdout: ParentRecords | None
    broken: Counts  # int64: released records that break each rule
    rows: int  # released records
    reports: dict[str, RowReport]  # what the policies met in ``real`` and ``holdout``


def open_linked(
    released: ReleasedTable,
    linked: LinkedRows,
    tables: EvaluatedTables,
    *,
    executor: Executor,
    seed: int,
    progress: Progress,
) -> LinkedInputs:
    """Read both tables. Raises DataError: one does not fit or changed; SpecError: the hold-out is the table."""
    against, holdout = tables.against, tables.holdout
    tables.check_holdout()
    inputs = {"real": against} | ({} if holdout is None else {"holdout": holdout})
    opened = [one.open(linked.read, beside=linked.unit.by) for one in inputs.values()]
    progress("reading parents", 0, 1)
    located = [one.on(executor) for one in opened]
    graphs = [released_parents(executor, released, linked)]
    graphs += [real_parents(executor, table, linked, released, seed=seed) for table in located]
    ((made, broken), _), *found = executor.compute(
        graphs, progress=lambda done, total: progress("reading parents", done, total)
    )
    if against.fingerprint != located[0].fingerprint:
        raise DataError("the real table changed while it was read: leave its files alone and run it again")
    reports, parents = {}, {}
    for name, (codes, sizes, report) in zip(inputs, found, strict=True):
        check(report, linked.read, rules=False)  # they are counted
        require_records(report)
        reports[name], parents[name] = report, ParentRecords.of(linked, codes, sizes)
    starts = np.flatnonzero(np.diff(made[0], prepend=-1.0))  # released rows have the number of their parent first
    of_release = ParentRecords.of(linked, made[linked.ids :], np.diff(starts, append=len(made[0])))
    return LinkedInputs(of_release, parents["real"], parents.get("holdout"), broken, released.rows, reports)


def linked_sections(inputs: LinkedInputs, request: Request) -> list[PageSection]:
    """All sections."""
    released, real, seed = inputs.released, inputs.real, request.seed
    linked, name = real.linked, real.linked.unit.name
    halves = real.halves(np.random.default_rng([seed, 31]))
    tables = {"released": released, "first half": halves[0], "second half": halves[1]}
    view = view_of(linked.schema)
    counts = _marginals({of: one.codes for of, one in tables.items()}, linked.schema, view, seed)
    members = similarity.marginal_section(counts, view, seed=seed)
    above = view_of(linked.parents_schema)
    tops = _marginals({of: one.top() for of, one in tables.items()}, linked.parents_schema, above, seed)
    parents = similarity.marginal_section(tops, above, seed=seed)
    of_parents = f"A row for each {name}. {parents.verdict}"
    sections = [
        replace(members, title="Marginals of members", verdict=f"Members, with their {name}. {members.verdict}"),
        replace(parents, name="parents-marginals", title="Marginals of parents", verdict=of_parents),
        within_section(released, real, seed=seed),
        similarity.correlation_section(counts, view),
    ]
    rules = linked.schema.forbidden
    if rules:
        report = inputs.reports["real"]
        sections.append(rules_section(rules, inputs.broken, report.broken, rows=(inputs.rows, report.rows)))
    why = (
        f"models would be tested on members of the same {name}s that they were trained on. Marginals, what is within a "
        f"{name} and attacks on {name}s are above and below."
    )
    sections.append(does_not_apply("models", "Models", why))
    return sections + (_attacks(inputs, request) if request.attacks else [])


def _attacks(inputs: LinkedInputs, request: Request) -> list[PageSection]:
    """The attacks, and what is wrong with the hold-out."""
    holdout, found = inputs.holdout, []
    if holdout is not None:
        bad = holdout_section(list(wide(inputs.real)), list(wide(holdout)), seed=request.seed)
        if bad is not None:
            holdout, found = None, [bad]
    return [*found, attacks.section(inputs.released, inputs.real, holdout, seed=request.seed)]


def _marginals(tables: dict[str, Codes], schema: Schema, view: View, seed: int) -> dict[str, Marginals]:
    """Counts as `similarity.marginal_section` takes them."""
    operator = through(view.codes, marginals_operator(view.sizes, chosen_triples(view.sizes, seed=seed)))
    found = {name: run_pass(RecordsInMemory.of(schema, codes), operator)[0] for name, codes in tables.items()}
    return found | {"real": found["first half"] + found["second half"]}
