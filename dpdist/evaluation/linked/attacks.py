"""Membership inference with whole parents as targets: was this household, with all its persons, in the table?

The adversary knows the whole record of a target: the parent's attributes, and those of all members in their order. All
parents are attacked, and those of rare composition, with more members than nearly all others.

- *closest parent*: how near the nearest released parent is; of equally near ones, how far the nearest of the reference;
- *density*: how dense released parents are near the target, over how dense the reference is;
- *pairs*: how much more often the release has each pair of values of the target (of parent, first member, previous
  member and each member) than the reference. Pairs are what a synthesis measures.

One half of the hold-out is the reference for targets of the other half, and the other way round. The density attack on
a *copy* of the table shows what could be found at most. The *control* is that of `attacks.membership`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts, pair_counts
from dpdist.evaluation.attacks.intervals import Estimate, Sizes, proportion
from dpdist.evaluation.attacks.membership import ALLOWED, Attack, judged
from dpdist.evaluation.linked.parents import ParentRecords
from dpdist.evaluation.page.page import PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.page.plots import roc_plot
from dpdist.evaluation.records import view_of
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.spec.schema import Schema

NAME, TITLE = "parents-membership", "Membership of parents"

RARE = 0.02  # largest share of the parents that have this many members as those of rare composition
SIZES = Sizes(targets=10_000, searched=2_000, compared=100_000)

ATTACKS = ("closest parent", "density", "pairs")

COPY, CONTROL = "copy", "control"

_CONTROL = 0.999
_TIE = 2.0**-20


@dataclass(frozen=True)
class AttackResult:
    """What one attack found."""

    attack: Attack
    guess: Estimate  # share of right guesses of an adversary who knows how many targets are members

    @classmethod
    def of(cls, name: str, members: Floats, others: Floats, *, confidence: float, seed: int) -> AttackResult:
        """By the scores of both; equal ones in random order."""
        scores = np.concatenate([members, others])
        ties = np.random.default_rng([seed, 21]).random(len(scores))
        taken = np.lexsort((ties, scores))[len(others) :]
        right = 2 * int(np.count_nonzero(taken < len(members))) + len(others) - len(members)
        attack = judged(name, scores, len(members), confidence=confidence)
        return cls(attack, proportion(right, len(scores), confidence=confidence))

    def to_json(self) -> dict[str, object]:
        """The figures of the attack."""
        return self.attack.to_json() | {"guess": self.guess}


def attacked(
    released: ParentRecords,
    training: ParentRecords,
    holdout: ParentRecords,
    *,
    at_least: int = 1,
    seed: int,
    sizes: Sizes = SIZES,
    confidence: float | None = None,
) -> dict[str, AttackResult] | None:
    """All attacks on the parents with this many members or more; None where there are too few. By default the intervals
    of the attacks hold together with the confidence of the sizes.
    """
    rng = np.random.default_rng([seed, 20])
    members, parts = _large(training, at_least, rng), [_large(half, at_least, rng) for half in holdout.halves(rng)]
    count = min(len(members) // 2, *map(len, parts), sizes.targets // 2)
    if 2 * count < sizes.least:
        return None
    near = [_large(t, at_least, rng) for t in (released, training)]
    if min(map(len, near)) < sizes.least:
        return None
    scores: dict[str, tuple[list[Floats], list[Floats]]] = {}
    for k, reference in enumerate(parts[::-1]):
        inside = members.take(np.arange(k * count, (k + 1) * count))
        for found, targets in ((0, inside), (1, parts[k].take(np.arange(count)))):
            for name, own in _scores(targets, near[0], near[1], reference, sizes).items():
                scores.setdefault(name, ([], []))[found].append(own)
    each = 1 - (1 - sizes.confidence) / len(ATTACKS) if confidence is None else confidence
    confidences = {CONTROL: _CONTROL}
    return {
        name: AttackResult.of(name, *map(np.concatenate, own), confidence=confidences.get(name, each), seed=seed)
        for name, own in scores.items()
    }


def _large(parents: ParentRecords, at_least: int, rng: np.random.Generator) -> ParentRecords:
    """The parents with this many members or more, in random order."""
    return parents.take(rng.permutation(np.flatnonzero(parents.sizes >= at_least)))


def _scores(
    targets: ParentRecords, released: ParentRecords, copy: ParentRecords, reference: ParentRecords, sizes: Sizes
) -> dict[str, Floats]:
    """The scores of each attack for targets that are not of the reference; tables are in random order."""
    few = targets.take(np.arange(min(len(targets), sizes.searched // 2)))
    cut = [one.take(np.arange(min(len(one), sizes.compared))) for one in (released, copy, reference)]
    middle = len(cut[2]) // 2
    aside, kept = (cut[2].take(np.arange(*ends)) for ends in ((0, middle), (middle, len(cut[2]))))
    found, copied, *both = (Near.of(few, one) for one in (*cut[:2], aside, kept))
    usual = both[0] | both[1]
    return {
        "closest parent": usual.least * _TIE - found.least,
        "density": np.log(found.density / usual.density),
        "pairs": pair_ratio(targets, released, reference),
        COPY: np.log(copied.density / usual.density),
        CONTROL: np.log(both[0].density / both[1].density),
    }


def section(
    released: ParentRecords, training: ParentRecords, holdout: ParentRecords | None, *, seed: int, sizes: Sizes = SIZES
) -> PageSection:
    """The attacks on all parents and on those of rare composition."""
    name = training.linked.unit.name
    why = (
        f"it needs {sizes.least} released {name}s, as many that the release was made from, and twice as many held out."
    )
    if holdout is None or min(len(released), len(training), len(holdout) // 2) < sizes.least:
        return does_not_apply(NAME, TITLE, why)
    groups = {"all": attacked(released, training, holdout, seed=seed, sizes=sizes)}
    # The least number of members that at most a share `RARE` of the parents reaches
    counts = np.bincount(training.sizes, minlength=training.linked.unit.at_most + 2)
    above = np.cumsum(counts[::-1])[::-1] / max(len(training), 1)
    large = int(np.flatnonzero(above <= RARE)[0])
    if 1 < large <= training.linked.unit.at_most:
        groups[f"{large} members and more"] = attacked(
            released, training, holdout, at_least=large, seed=seed, sizes=sizes
        )
    attacks = {group: found for group, found in groups.items() if found is not None}
    if not attacks:
        return does_not_apply(NAME, TITLE, why)
    columns = ("targets", "attack", "AUC", "low", "high", "right guesses", "low ", "high ", "members", "others")
    rows = tuple(
        (group, kind, *one.attack.area.cells, *one.guess.cells, one.attack.members, one.attack.others)
        for group, found in attacks.items()
        for kind, one in found.items()
    )
    note = (
        f"Intervals of the attacks on a group hold together with {sizes.confidence:.0%} confidence. Guessing: 0.5. "
        f"The adversary knows all that the table has of a {name} and its members. {COPY.capitalize()}: the density "
        "attack on the real table as if it were the release. Control: on other records of the hold-out."
    )
    table = PageTable(f"Each {name} told from others", columns, rows, note)
    curves = {kind: one.attack.curve for kind, one in list(attacks.values())[-1].items() if kind in ATTACKS}
    plot = roc_plot(f"Attacks on {list(attacks)[-1]}", curves, allowed=ALLOWED)
    figures = {group: {kind: one.to_json() for kind, one in found.items()} for group, found in attacks.items()}
    verdict, state = _judged(attacks, name)
    return PageSection(NAME, TITLE, verdict, state, (table,), plot, figures)


def _judged(groups: Mapping[str, Mapping[str, AttackResult]], name: str) -> tuple[str, State]:
    controls = [found[CONTROL].attack.area for found in groups.values()]
    if not all(control.covers(0.5) for control in controls):
        text = f"The hold-out is not like the real table, so the attacks say nothing: hold out {name}s at random."
        return text, "info"
    found = [(group, kind, of[kind].attack.area) for group, of in groups.items() for kind in ATTACKS]
    group, kind, area = max(found, key=lambda one: one[2].low)
    if area.low <= 0.5:
        group, kind, area = max(found, key=lambda one: one[2].value)
        told = f"No attack tells which {name}s the release was made from: the best"
    else:
        told = f"It can be told which {name}s the release was made from: the best attack"
    least = min(of[COPY].attack.area.value for of in groups.values())
    text = (
        f"{told} ({kind}, on {group}) has an AUC of {area.value:.3f} ({area.low:.3f} to {area.high:.3f}; guessing: "
        f"0.5). On a copy of the table the density attack has {least:.3f} or more."
    )
    return text, "good" if area.low <= 0.5 else "bad" if area.low > 0.55 else "fair"


BLOCK_CELLS = 1 << 20  # pairs of parents that are compared at a time


def wide(parents: ParentRecords) -> NDArray[np.unsignedinteger]:
    """A row for each parent: its attributes, and those of its members in their order, 0 where none exists."""
    linked = parents.linked
    schema, owner, places = linked.schema, parents.owner, parents.places
    columns = [parents.codes[linked.place(i)][parents.ends[:-1]].astype(np.uint32) for i in linked.parent]
    for i in map(linked.place, linked.members):
        padded = np.zeros((len(parents), linked.unit.at_most), np.uint32)
        padded[owner, places] = parents.codes[i].astype(np.uint32) + 1
        columns += list(padded.T)
    found = np.stack(columns)
    return found.astype(np.min_scalar_type(max(a.cardinality for a in schema.attributes)))


@dataclass(frozen=True, eq=False)
class Near:
    """The parents of a table that are near to each target."""

    least: Floats  # float64: attributes, of the parent and of all its members, in which the nearest one differs
    density: Floats  # float64: mean of 16**-d over all, d the attributes in which each one differs
    others: int  # parents of the table

    def __or__(self, more: Near) -> Near:
        """Those of two tables together."""
        count = self.others + more.others
        density = (self.density * self.others + more.density * more.others) / count
        return Near(np.minimum(self.least, more.least), density, count)

    @classmethod
    def of(cls, targets: ParentRecords, others: ParentRecords) -> Near:
        """Every target against every other parent."""
        ours, theirs = wide(targets), wide(others)
        weights = np.exp2(-4.0 * np.arange(len(ours) + 1))
        least, density = np.empty(len(targets)), np.empty(len(targets))
        step = max(1, BLOCK_CELLS // max(len(others), 1))
        for start in range(0, len(targets), step):
            rows = slice(start, start + step)
            differing = np.zeros((len(ours[0, rows]), len(others)), np.min_scalar_type(len(ours)))
            for a, b in zip(ours, theirs, strict=True):
                differing += a[rows, None] != b
            least[rows] = differing.min(axis=1)
            density[rows] = weights[differing].mean(axis=1)
        return cls(least, density, len(others))


def pair_ratio(targets: ParentRecords, released: ParentRecords, reference: ParentRecords) -> Floats:
    """For each target the sum over its pairs of values of the log of the released over the reference's share: pairs of
    parents with their first members, and of members with those before them.
    """
    (top, _), (rest, _), owner = _rows(targets)
    counts = ([pair_counts(codes, sizes) for codes, sizes in _rows(of)[:2]] for of in (released, reference))
    of_parents, of_members = zip(*counts, strict=True)
    return _row_scores(top, *of_parents) + np.bincount(owner, _row_scores(rest, *of_members), len(targets))


def _row_scores(rows: Codes, released: PairCounts, reference: PairCounts) -> Floats:
    score = np.zeros(len(rows[0]))
    for i in range(len(rows)):
        for j in range(i):
            ours, theirs = ((of.pair(j, i) + 0.5) / (of.total + 1) for of in (released, reference))
            score += np.log(ours / theirs)[rows[j], rows[i]]
    return score


def _rows(parents: ParentRecords) -> tuple[tuple[Codes, tuple[int, ...]], tuple[Codes, tuple[int, ...]], Counts]:
    """Rows of parents with the first member, rows of later members, and the parent of each of these."""
    linked = parents.linked
    top, schema = parents.top(), linked.parents_schema
    view = view_of(Schema(attributes=linked.schema.attributes))
    codes = view.codes(parents.codes)
    own = [linked.place(i) for i in linked.members]
    above = [linked.place(i) for i in linked.parent]
    firsts, owner = parents.ends[:-1], parents.owner
    later = np.flatnonzero(parents.places > 0)
    sizes = [view.sizes[i] for i in own]
    composition = top[len(above) :]
    first = [*(codes[i][firsts] for i in above), *composition, *(codes[i][firsts] for i in own)]
    first_sizes = [*(view.sizes[i] for i in above), *schema.cardinalities[len(above) :], *sizes]
    rows = [*(codes[i][later] for i in above), (parents.places[later] - 1).astype(np.uint8)]
    rows += [codes[i][at] for at in (firsts[owner[later]], later - 1, later) for i in own]
    other_sizes = [*(view.sizes[i] for i in above), linked.unit.at_most - 1, *sizes * 3]
    return (first, tuple(first_sizes)), (rows, tuple(other_sizes)), owner[later]
