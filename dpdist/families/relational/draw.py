"""Drawing parents and then their members, one place after another, so that composition and members agree.

The kinds of members that are still to come decide which values a member may have: as many of each kind are left as
members, at the end none. A member that breaks a rule is drawn again. Where that does not help, the whole parent becomes
a copy of another one of the part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.families.relational.exchange import Targets, beyond_chance, exchanged
from dpdist.families.relational.layout import Layout
from dpdist.model.coding import admitted
from dpdist.model.conditional import Conditional, KnownRows
from dpdist.model.draw import MOST_REDRAWS, WeightedPool, draw_records, weighted_pool
from dpdist.model.fitted import Fitted
from dpdist.model.junction import Set
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.portable import exp2, log2
from dpdist.spec.rules import Forbidden, Rule, a_record, broken_by

MOST_RULE_CELLS = 1 << 16  # of a rule that enters the members' law; others are kept by drawing again alone
SPARE = 1  # this many times the released parents are drawn in addition, for exchanges
TILTS = 10  # times that members are drawn to tilt their law
_TRIED = (4_000, 16_000)  # parents whose members are drawn each time, at least and at most
_SMOOTHED = 10.0  # members that are added to each count
# Steps of tables by place and of two columns, as powers of the ratio of what is wanted to what is drawn. About eight
# tables of an attribute say much the same of it: together they go at most twice as far as one, and less where they go
# too far.
_STEPS = (0.5, 1 / 4)
_WORSE = 1.25  # a draw that misses this many times the least so far halves the steps
_AT_FIRST = 4  # times that a member that breaks a rule is drawn again at once, and then as often as there is room for


@dataclass(frozen=True, eq=False)
class LinkedLaw:
    """What linked tables are drawn from."""

    layout: Layout
    models: tuple[Fitted, Fitted]
    targets: Targets


@dataclass(frozen=True, eq=False)
class Prepared:
    """What all parts have in common, drawn once."""

    pool: WeightedPool | None  # of the parents, where their model has one
    # logarithms of factors of the members' law: of each of their attributes by place, and of each table that they are
    # told to have
    tilts: list[Floats]


def prepare(law: LinkedLaw, noise: Noise, parts: int, rows: int) -> Prepared:
    """The pool and the tilts of a release of this many parts and parents. The parents of the tilts are drawn as those
    of one part more.
    """
    parents, rules = law.models[0], law.layout.first_rules
    pool = None if parents.adjustment is None else weighted_pool(parents, noise, rules)
    first = _parents(law, pool, noise, parts, tilted_by(rows))
    return Prepared(pool, _tilts(law, first, noise, "members/tilts"))


def tilted_by(parents: int) -> int:
    """Parents whose members a tilt draws, in a release of this many."""
    return min(max(-(-parents // TILTS), _TRIED[0]), _TRIED[1])


def draw_linked(
    law: LinkedLaw, prepared: Prepared, noise: Noise, part: int, rows: int
) -> tuple[list[Counts], tuple[Counts, Counts], Codes]:
    """The parents of one part and their members: the rows of the first table of the layout, exchanged towards the
    targets; for each member the number of its parent in the part, ascending, and its place from 0; and the codes of
    each attribute of the joined schema but the order.
    """
    layout = law.layout
    first = _parents(law, prepared.pool, noise, part, rows * (1 + SPARE))
    members, bad = _members(law, prepared.tilts, first, noise, f"members/{part}")
    first, members = _replaced(layout, first, members, bad, noise, f"members/{part}/copied")
    kept = exchanged(layout, law.targets, first, members, rows, noise, f"members/{part}/exchanged")
    first, members = ([column[kept] for column in table] for table in (first, members))
    parent, place, columns = _joined(layout, first, members)
    typed = [column.astype(a.dtype) for column, a in zip(columns, layout.schema.attributes, strict=True)]
    return first, (parent, place), [column for k, column in enumerate(typed) if k != layout.order]


def _joined(layout: Layout, first: list[Counts], members: list[Counts]) -> tuple[Counts, Counts, list[Counts]]:
    """The number of the parent of each member, its place, and the columns of the joined table."""
    sizes = first[len(layout.parent)] + 1
    parent = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(parent)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    columns = [place] * len(layout.schema.attributes)
    for k, i in enumerate(layout.parent):
        columns[i] = first[k][parent]
    for k, i in enumerate(layout.members):
        columns[i] = members[k][parent, place]
    return parent, place, columns


def _parents(law: LinkedLaw, pool: WeightedPool | None, noise: Noise, part: int, rows: int) -> list[Counts]:
    """Rows of the first table of the layout."""
    rules = law.layout.first_rules
    columns = draw_records(law.models[0], noise, part, rows, rounds=0, rules=rules, pool=pool)
    return [column.astype(np.int64) for column in columns]


def _tilts(law: LinkedLaw, parents: list[Counts], noise: Noise, name: str) -> list[Floats]:
    """Logarithms of factors with which the members' law has the targets' tables, by steps of iterative scaling. The
    parents that are drawn have all dependence of what is given, the model only that of pairs that were measured: what
    two columns tell alike would count twice.
    """
    layout, model = law.layout, law.models[1]
    codes = [model.coded(len(layout.given) + k)[0] for k in range(len(layout.members))]
    places: list[Floats] = [
        np.stack([np.bincount(own, weights=row) for row in table]).astype(np.float64)
        for own, table in zip(codes, law.targets.places, strict=True)
    ]
    shapes = [*(table.shape for table in places), *(told.shares.shape for told in law.targets.told)]
    tilts = [np.zeros(shape) for shape in shapes]
    kept, logs, least, step = tilts, tilts, np.inf, 1.0
    for again in range(TILTS):
        members, _ = _members(law, tilts, parents, noise, f"{name}/{again}")
        _, place, columns = _joined(layout, parents, members)
        rows = layout.flattened(columns, np.arange(len(place)), place)[1]
        missed, found = zip(*_missed(law, codes, places, rows), strict=True)
        if sum(missed) > _WORSE * least:
            step /= 2
        else:
            kept, logs, least = tilts, list(found), min(least, sum(missed))
        tilts = [tilt + step * log for tilt, log in zip(kept, logs, strict=True)]
    return kept


def _missed(law: LinkedLaw, codes: list[Counts], places: list[Floats], rows: Codes) -> Iterator[tuple[float, Floats]]:
    """For each table that the targets tell: how many of some rows of the members' table are in wrong cells, and the
    step of the logarithms of its factors.
    """
    layout = law.layout
    start, place = len(layout.given), rows[len(layout.parent)].astype(np.int64)
    for k, (own, shares) in enumerate(zip(codes, places, strict=True)):
        cells = np.bincount(place * shares.shape[1] + own[rows[start + k]], minlength=shares.size)
        drawn = cells.reshape(shares.shape).astype(np.float64)
        wanted = drawn.sum(1, keepdims=True) * shares
        yield float(np.abs(wanted - drawn).sum()), _STEPS[0] * _step(beyond_chance(wanted, drawn, 0.0), drawn)
    for told in law.targets.told:
        drawn = told.drawn(rows)
        noisy, wanted = told.wanted(drawn)
        yield float(np.abs(noisy - drawn).sum()), _STEPS[1] * _step(wanted, drawn)


def _step(wanted: Floats, drawn: Floats) -> Floats:
    """The logarithm of the factors by which a table would be what is wanted."""
    return log2((wanted + _SMOOTHED) / (drawn + _SMOOTHED))


def _members(
    law: LinkedLaw, tilts: list[Floats], first: list[Counts], noise: Noise, name: str
) -> tuple[list[Counts], NDArray[np.bool_]]:
    """Attributes of all members, each of shape (parents, places), and the parents with members that break a rule."""
    layout, model, told = law.layout, law.models[1], law.targets.told
    parents, c = len(first[0]), layout.at_most
    sizes = first[len(layout.parent)] + 1
    start = len(layout.parent) + 1
    members = [np.zeros((parents, c), np.int64) for _ in layout.members]
    for column, values in zip(members, first[start + layout.counts :], strict=False):
        column[:, 0] = values
    counts = first[start : start + layout.counts]  # of each kind; of none in the last column
    left = np.stack([*counts, sizes - np.sum(counts, axis=0) if counts else sizes], axis=1)
    given, rules = len(layout.given), list(_rules(layout, model, first))
    factors = [(places, table) for _, places, table in rules]
    by_place, of_pairs = tilts[: len(members)], tilts[len(members) :]
    factors += [((given + k,), exp2(tilt)) for k, tilt in enumerate(by_place)]
    drawing = Conditional(model, given, factors, {t.pair: exp2(tilt) for t, tilt in zip(told, of_pairs, strict=True)})
    bad = np.zeros(parents, bool)
    for place in range(1, c):
        rows = np.flatnonzero(sizes > place)
        if not len(rows):
            break
        previous = [column[rows, place - 1] for column in members]
        left[rows, layout.kinds_of(previous)] -= 1
        of_parent, kinds = [column[rows] for column in first], left[rows]
        context = layout.context_of(of_parent, np.full(len(rows), place), list(kinds.T[: layout.counts]), previous)
        masks = {}
        if layout.kinds is not None:
            at = given + layout.members.index(layout.kinds.attribute)
            masks[at] = (kinds > 0).astype(np.float64) @ layout.kinds.masks > 0
        groups = [*(group[rows] for group, _, _ in rules), *[np.full(len(rows), place - 1)] * len(members)]
        found, broken = _redrawn(
            layout, drawing, of_parent, KnownRows(context, masks, groups), noise, f"{name}/{place}"
        )
        for column, values in zip(members, found, strict=True):
            column[rows, place] = values
        bad[rows[broken]] = True
    return members, bad


def _rules(layout: Layout, model: Fitted, first: list[Counts]) -> Iterator[tuple[Counts, Set, Floats]]:
    """The rules that say what a member may be, as factors of its law: the group of each parent, by its attributes; the
    places of the member's attributes; and for each group which of their codes it admits.
    """
    start = len(layout.given)
    maps = [np.arange(a.cardinality) for a in layout.schema.attributes]
    for k, i in enumerate(layout.members):
        maps[i] = model.coded(start + k)[0]
    for rule in layout.schema.forbidden:
        share = admitted(rule, maps)
        above, own = ([i for i in rule.attributes if i in side] for side in (layout.parent, layout.members))
        if share is None or not own or share.size > MOST_RULE_CELLS or layout.order in rule.attributes:
            continue
        sizes = [layout.schema.cardinalities[i] for i in above]
        table = share.transpose([rule.attributes.index(i) for i in (*above, *own)])
        group = np.zeros(len(first[0]), np.int64)
        for i, size in zip(above, sizes, strict=True):
            group = group * size + first[layout.parent.index(i)]
        yield group, tuple(start + layout.members.index(i) for i in own), table.reshape(-1, *table.shape[len(above) :])


def _redrawn(
    layout: Layout, law: Conditional, first: list[Counts], known: KnownRows, noise: Noise, name: str
) -> tuple[list[Counts], Counts]:
    """The members at one place of some parents, drawn again where they break a rule, and which of them still do. The
    first that fits is taken; at once there are as many as parents.
    """
    found = law.draw(known, noise, name)
    broken = _broken(layout, first, found)
    most, again, left = len(found[0]), 0, MOST_REDRAWS
    while len(broken) and left:
        copies = min(left if again else _AT_FIRST, max(most // len(broken), 1))
        rows = np.repeat(broken, copies)
        drawn = law.draw(known[rows], noise, f"{name}/again/{again}")
        kept = np.ones((len(broken), copies), bool)
        kept.flat[_broken(layout, [column[rows] for column in first], drawn)] = False
        taken = np.arange(len(broken)) * copies + kept.argmax(1)
        for column, values in zip(found, drawn, strict=True):
            column[broken] = values[taken]
        broken, left, again = broken[~kept.any(1)], left - copies, again + 1
    return found, broken


def _broken(layout: Layout, first: list[Counts], members: list[Counts]) -> Counts:
    """Members that break a rule of the schema."""
    if not layout.schema.forbidden:
        return np.zeros(0, np.int64)
    columns = [np.zeros(len(members[0]), np.int64)] * len(layout.schema.attributes)
    for k, i in enumerate(layout.parent):
        columns[i] = first[k]
    for k, i in enumerate(layout.members):
        columns[i] = members[k]
    return np.flatnonzero(broken_by(layout.schema.forbidden, columns))


def _replaced(
    layout: Layout, first: list[Counts], members: list[Counts], bad: NDArray[np.bool_], noise: Noise, name: str
) -> tuple[list[Counts], list[Counts]]:
    """With copies of other parents instead of bad ones; of a public one with a single member where all are bad."""
    if not bad.any():
        return first, members
    good, rows = np.flatnonzero(~bad), np.flatnonzero(bad)
    if len(good):
        source = good[noise.integers(name, len(rows), high=len(good))]
        for column in (*first, *members):
            column[rows] = column[source]
        return first, members
    size = len(layout.parent)
    alone = Forbidden(
        Rule(impossible="more than one member"), (size,), (layout.at_most,), ({size: np.arange(layout.at_most) > 0},)
    )
    record = a_record((*layout.first_rules, alone), len(first))
    for column, value in zip(first, record, strict=True):
        column[:] = value
    for column, value in zip(members, record[size + 1 + layout.counts :], strict=False):
        column[:, 0] = value
    return first, members
