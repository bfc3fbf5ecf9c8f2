"""Statistics within parents: what the members of a household have in common, and how they differ.

All are shares of parents or of members, or differences in parts of the width of a domain, so that all are on one scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.evaluation.binning import code_labels
from dpdist.evaluation.linked.parents import ParentRecords
from dpdist.evaluation.page.sections import PageSection, PageTable, State
from dpdist.evaluation.utility.similarity import FAIR, GOOD
from dpdist.privacy.arrays import Floats
from dpdist.spec.schema import Attribute

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
        lows = np.asarray(attribute.bin_edges, np.float64)
        end = attribute.bounds[1] + attribute.is_whole
        numbers = (lows + np.append(lows[1:], end)) / 2
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
