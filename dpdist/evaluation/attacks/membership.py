"""Membership inference: was this record in the table that the release was made from?

Members are drawn from the training table, non-members from the hold-out. The rest of the hold-out is the adversary's
own sample of the population (the *reference*). Three attacks score every target, higher where it seems a member:

- *closest record*: how near the nearest released record is (Gower); of equally near ones, how far the nearest reference
  record is;
- *density*: how many released records differ from the target in at most two attributes, against how many reference
  records do: the ratio of densities [1]_, which calibrates for popular records;
- *shadow models*: a classifier on those counts, trained on shadow releases of shadow tables whose members the adversary
  knows [2]_ (`dpdist.evaluation.attacks.shadow`).

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

from dataclasses import dataclass

import numpy as np

from dpdist.errors import DpdistError
from dpdist.evaluation.attacks.intervals import (
    AttackTables,
    Estimate,
    OperatingPoint,
    area_under_curve,
    operating_point,
    roc_curve,
)
from dpdist.evaluation.attacks.shadow import Generator, Profile, log_profiles, shadow_classifier
from dpdist.evaluation.page.plots import roc_plot
from dpdist.evaluation.page.sections import PageSection, PageTable, State, does_not_apply
from dpdist.evaluation.records import Agreement, Gower, coarse, drawn, halves, size, stacked, take
from dpdist.privacy.arrays import Codes, Floats
from dpdist.spec.schema import Schema

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
