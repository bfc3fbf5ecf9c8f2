"""Membership inference: was this record in the table that the release was made from?

Members are drawn from the training table, non-members from the hold-out. The rest of the hold-out is the adversary's
own sample of the population (the *reference*). Three attacks score every target, higher where it seems a member:

- *closest record*: how near the nearest released record is (Gower); of equally near ones, how far the nearest reference
  record is;
- *density*: how many released records differ from the target in at most two attributes, against how many reference
  records do: the ratio of densities [1]_, which calibrates for popular records;
- *shadow models*: a classifier on those counts, trained on shadow releases of shadow tables whose members the adversary
  knows [2]_. The adversary may know the mechanism (`Generator`), or use a stand-in that copies records in part.

A *control* runs the density attack on other reference records instead of the release. Its area differs from one half
only if the hold-out is not a random part of the same population; then the others mean nothing. The rate of members
found while 0.1 % of the non-members are accused is what an adversary with few, certain victims cares for [3]_.

References
----------
.. [1] van Breugel, Sun, Qian, van der Schaar, *Membership Inference Attacks against Synthetic Data through
   Overfitting Detection* (DOMIAS), 2023.
.. [2] Shokri, Stronati, Song, Shmatikov, *Membership Inference Attacks against Machine Learning Models*, 2017;
   Stadler, Oprisanu, Troncoso, *Synthetic Data: Anonymisation Groundhog Day*, 2022.
.. [3] Carlini et al., *Membership Inference Attacks From First Principles*, 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import DpdistError, SpecError
from dpdist.evaluation.attacks.intervals import (
    AttackTables,
    Estimate,
    OperatingPoint,
    area_under_curve,
    operating_point,
    roc_curve,
)
from dpdist.evaluation.page.page import PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.page.plots import roc_plot
from dpdist.evaluation.records import Agreement, Gower, coarse, drawn, halves, size, stacked, take
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import family_of, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import Manifest
from dpdist.spec.reader import load_public
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema

Generator: TypeAlias = Callable[[Codes, int], Codes]  # a table and a seed to a release of it, in the same schema
_MOST = 10_000  # records of a shadow table
_LARGEST_RATIO = 10.0


def partial_copies(table: Codes, seed: int, *, ratio: float = 1.0) -> Codes:
    """Records that copy a random number of values of a record of the table each, `ratio` times its number."""
    rng = np.random.default_rng([seed, 5])
    count, m = max(1, round(ratio * size(table))), len(table)
    seeds = rng.integers(0, size(table), count)
    order = rng.random((m, count)).argsort(axis=0)
    kept = order < rng.integers(0, m + 1, count)
    fresh = [column[rng.integers(0, size(table), count)] for column in table]
    return [np.where(k, column[seeds], other) for k, column, other in zip(kept, table, fresh, strict=True)]


@dataclass(frozen=True, eq=False)
class Profile:
    """How many records of a table are near each target."""

    counts: Floats  # ndarray of float64, shape (3, targets): those that differ in no, one and two attributes
    singles: Counts  # shape (attributes, targets): those that agree on all attributes but, perhaps, one
    records: int  # records of the table

    @classmethod
    def of(cls, targets: Codes, table: Codes, agreement: Agreement) -> Profile:
        """Count the records of a table (coarse codes)."""
        return cls(*agreement.profiles(targets, table), size(table))

    def __add__(self, other: Profile) -> Profile:
        return Profile(self.counts + other.counts, self.singles + other.singles, self.records + other.records)

    def log_share(self, counts: NDArray[Any]) -> Floats:
        """Logarithms of shares of the table, half a record added to each count."""
        return np.asarray(np.log((counts + 0.5) / (self.records + 1)))


def log_profiles(released: Profile, reference: Profile) -> Floats:
    """What the classifier sees of each target, float64[targets, 10]: log densities and their differences."""
    ours, theirs = (near.log_share(near.counts) for near in (released, reference))
    single = released.log_share(released.singles) - reference.log_share(reference.singles)
    return np.vstack([ours, theirs, ours - theirs, single.max(axis=0)]).T


def shadow_classifier(
    tables: AttackTables, population: Codes, agreement: Agreement, mechanism: Generator | None
) -> Any:
    """A classifier that is trained on shadow releases of parts of the adversary's records (`population`)."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    schema, sizes, ratio = tables.schema, tables.sizes, size(tables.released) / size(tables.training)
    make = mechanism or partial(partial_copies, ratio=min(ratio, _LARGEST_RATIO))
    profiles, labels = [], []
    for number in range(sizes.shadows):
        rng = np.random.default_rng([tables.seed, 6, number])
        some = drawn(population, 3 * _MOST, rng)
        third = size(some) // 3
        table, others, reference = (take(some, np.arange(i * third, (i + 1) * third)) for i in range(3))
        release = coarse(make(table, int(rng.integers(1 << 31))), schema)
        targets = stacked(*(drawn(coarse(side, schema), sizes.targets, rng) for side in (table, others)))
        near = (Profile.of(targets, side, agreement) for side in (release, coarse(reference, schema)))
        profiles.append(log_profiles(*near))
        labels.append(np.repeat([1, 0], size(targets) // 2))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    return classifier.fit(np.concatenate(profiles), np.concatenate(labels))


def mechanism_of(spec: ReleaseSpec, *, training: int) -> Generator | None:
    """The mechanism of a spec for shadow tables: a table and a seed to its release, or `DpdistError` if it is too
    small.

    `training` is the number of records of the real table. None where the family plans no releases of shadow tables.
    """
    shadow, make_plan = family_of(spec).shadow, family_of(spec).plan
    if shadow is None:
        return None

    @cache
    def whole() -> Plan:
        plan: Plan = make_plan(spec)
        return plan

    @lru_cache(maxsize=4)
    def planned(records: int) -> Plan:
        plan: Plan = shadow(whole(), records, records / training)
        return plan

    def make(table: Codes, seed: int) -> Codes:
        noise = Noise(np.random.default_rng([seed, 0x5AD0]).bytes(32))
        plan = planned(len(table[0]))
        return released_codes(rehearse(plan, stages_of(plan), table, key=key_from(noise)))

    return make


def mechanism_of_release(manifest: Manifest, *, training: int, written: Callable[[Codes], Codes]) -> Generator | None:
    """The mechanism of a public manifest, as `mechanism_of`; None also where this version cannot read the settings or
    they name functions of the publisher. `written` takes codes to codes as far as a release tells them apart.
    """
    try:
        spec = load_public(manifest.spec, manifest.table)
        make = None if spec.plugins else mechanism_of(spec, training=training)
    except SpecError:  # of another version
        return None
    return None if make is None else lambda table, seed: written(make(table, seed))


NAME, TITLE = "membership", "Membership inference"
ALLOWED = 0.001
_WEIGHTS = np.array([1.0, 1 / 16, 1 / 256])  # of records that differ in no, one and two attributes
_CONTROL = 0.999  # confidence of the control: it silences the attacks, so it must not fail by chance
_TIE = 2.0**-20  # below differences of distances that matter


@dataclass(frozen=True)
class Attack:
    """What one attack found."""

    name: str
    members: int  # members, others: targets
    others: int
    area: Estimate  # under the ROC curve; 0.5 is guessing
    point: OperatingPoint  # members found while 0.1 % of the non-members are accused
    curve: tuple[Floats, Floats]  # the ROC curve

    def to_json(self) -> dict[str, object]:
        """The figures of the attack, without its curve."""
        return {"auc": self.area, "tpr_at_fpr": self.point, "members": self.members, "non_members": self.others}


def judged(name: str, scores: Floats, members: int, *, confidence: float) -> Attack:
    """Judge an attack by its scores: those of `members` members first, then those of the others."""
    positive, negative = scores[:members], scores[members:]
    return Attack(
        name,
        members,
        len(negative),
        area_under_curve(positive, negative, confidence=confidence),
        operating_point(positive, negative, allowed=ALLOWED, confidence=confidence),
        roc_curve(positive, negative),
    )


def closest_record(targets: Codes, released: Codes, reference: Codes, schema: Schema) -> Floats:
    """How near the nearest released record is and, among equally near ones, how far the nearest reference record."""
    gower = Gower(schema)
    near, usual = (gower.nearest(targets, others)[0].astype(np.float64) for others in (released, reference))
    return np.asarray(usual * _TIE - near)


def density_ratio(released: Profile, reference: Profile) -> Floats:
    """Logarithm of the density of released over that of reference records near each target."""
    ours, theirs = ((_WEIGHTS @ near.counts + 0.5) / (near.records + 1) for near in (released, reference))
    return np.asarray(np.log(ours / theirs))


def section(tables: AttackTables, *, mechanism: Generator | None = None) -> PageSection:
    """All attacks with their curves; without a `mechanism` for shadow releases, a stand-in copies records in part."""
    sizes, released, holdout = tables.sizes, tables.released, tables.holdout
    if holdout is None or min(size(released), size(tables.training), size(holdout) // 2) < sizes.least:
        why = f"it needs {sizes.least} released and training records and twice as many held out."
        return does_not_apply(NAME, TITLE, why)
    rng = tables.rng(4)
    others, reference = halves(holdout, rng)
    attacks, control, known = _attacked(tables, others, reference, rng, mechanism)
    table = PageTable(
        "Members told from non-members",
        ("attack", "AUC", "low", "high", "found at 0.1 %", "low ", "high ", "members", "non-members"),
        tuple((a.name, *a.area.cells, *a.point.found.cells, a.members, a.others) for a in [*attacks, control]),
        "Found: members above the score that at most 0.1 % of the non-members exceed. The three attacks' intervals "
        f"hold together with {sizes.confidence:.0%} confidence. Counting attacks go through {size(released):,} "
        f"released records, the closest record through {min(size(released), sizes.compared):,}; reference: "
        f"{size(reference):,} records held out. {sizes.shadows} shadow releases "
        f"{'by the same mechanism' if known else 'by a stand-in that copies in part'}.",
    )
    curves = {attack.name: attack.curve for attack in attacks}
    plot = roc_plot("Members found against non-members accused", curves, allowed=ALLOWED)
    figures = {
        attack.name: attack.to_json() | {"roc": {"fpr": attack.curve[0].tolist(), "tpr": attack.curve[1].tolist()}}
        for attack in [*attacks, control]
    }
    return PageSection(NAME, TITLE, _verdict(attacks, control), _state(attacks, control), (table,), plot, figures)


def _attacked(
    tables: AttackTables, others: Codes, reference: Codes, rng: np.random.Generator, mechanism: Generator | None
) -> tuple[list[Attack], Attack, bool]:
    """The three attacks, the control, and whether the shadow releases are of the mechanism."""
    sizes, schema, released = tables.sizes, tables.schema, tables.released
    count = min(size(tables.training), size(others), sizes.targets)
    targets = stacked(drawn(tables.training, count, rng), drawn(others, count, rng))
    agreement = Agreement(len(schema.attributes), seed=tables.seed)
    confidence = 1 - (1 - sizes.confidence) / 3
    cut = [coarse(table, schema) for table in (targets, *halves(reference, rng), released)]
    aside, kept, whole = (Profile.of(cut[0], near, agreement) for near in cut[1:])
    known = aside + kept
    searched = min(count, sizes.searched)
    few = take(targets, np.r_[:searched, count : count + searched])
    near = [drawn(table, sizes.compared, rng) for table in (released, reference)]
    try:
        shadow = shadow_classifier(tables, reference, agreement, mechanism)
    except DpdistError:  # a shadow table is too small for the mechanism
        mechanism, shadow = None, shadow_classifier(tables, reference, agreement, None)
    attacks = [
        judged("closest record", closest_record(few, near[0], near[1], schema), searched, confidence=confidence),
        judged("density", density_ratio(whole, known), count, confidence=confidence),
        judged("shadow models", shadow.decision_function(log_profiles(whole, known)), count, confidence=confidence),
    ]
    control = judged("control", density_ratio(aside, kept), count, confidence=_CONTROL)
    return attacks, control, mechanism is not None


def _tail(attack: Attack) -> bool:
    """Whether surely more members than non-members are found at the low rate."""
    return attack.point.found.low > max(attack.point.accused.high, ALLOWED)


def _verdict(attacks: list[Attack], control: Attack) -> str:
    if not control.area.covers(0.5):
        return (
            f"The hold-out is not like the training table (control: {control.area.value:.3f}): the attacks cannot tell "
            "memory from that difference. Hold out a random part of the same table."
        )
    best = max(attacks, key=lambda attack: attack.area.low)
    area = best.area
    if area.low <= 0.5 and not any(map(_tail, attacks)):
        best = max(attacks, key=lambda attack: attack.area.value)
        area = best.area
        return (
            f"No attack tells members from non-members: the best ({best.name}) has an AUC of {area.value:.3f} "
            f"({area.low:.3f} to {area.high:.3f}; guessing: 0.5)."
        )
    sharp = max(attacks, key=lambda attack: attack.point.found.low)
    found = sharp.point.found
    return (
        f"Members can be told from non-members: AUC {area.value:.3f} ({area.low:.3f} to {area.high:.3f}) by "
        f"{best.name}; {found.value:.2%} of the members are found while 0.1 % of the others are accused ({sharp.name})."
    )


def _state(attacks: list[Attack], control: Attack) -> State:
    if not control.area.covers(0.5):
        return "info"
    worst = max(attack.area.low for attack in attacks)
    if worst <= 0.5 and not any(map(_tail, attacks)):
        return "good"
    severe = any(attack.point.found.low > 0.01 for attack in attacks)
    return "bad" if worst > 0.55 or severe else "fair"
