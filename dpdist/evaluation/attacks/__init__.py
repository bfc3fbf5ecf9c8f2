"""Attacks on a release: what can be learned from it about the records it was made from.

All attacks compare the records that went in with records of the same population that did not (the hold-out): what
works on both alike is knowledge about the population, the excess is a leak. `attack_sections` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpdist.evaluation.attacks import copies, disclosure, distinguish, inference, linkage, membership
from dpdist.evaluation.attacks.shadow import Generator
from dpdist.evaluation.attacks.tables import AttackTables, Sizes
from dpdist.evaluation.page.sections import PageSection
from dpdist.families.base.attempt import Progress, silent
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema

__all__ = ["AttackTables", "Generator", "Sizes", "attack_sections"]

_ATTACKS = (distinguish, copies, linkage, inference, disclosure)


def attack_sections(
    released: Codes,
    training: Codes,
    holdout: Codes | None,
    schema: Schema,
    *,
    seed: int,
    progress: Progress = silent,
    sizes: Sizes | None = None,
    mechanism: Generator | None = None,
) -> list[PageSection]:
    """Attack a release and say what was found, from codes in schema order (float64 for a `number` without bins).

    Without a hold-out only the distinguishing game can be played. The same seed gives the same figures. `mechanism` is
    a table and a seed to a release of it, for shadow models that know the mechanism (`mechanism_of`). `progress` is
    called with ("attacks", finished attacks, all attacks).
    """
    tables = AttackTables(
        released=released, training=training, holdout=holdout, schema=schema, seed=seed, sizes=sizes or Sizes()
    )
    attacks: list[Callable[[AttackTables], PageSection]] = [attack.section for attack in _ATTACKS]
    attacks.insert(2, partial(membership.section, mechanism=mechanism))
    sections: list[PageSection] = []
    for attack in attacks:
        progress("attacks", len(sections), len(attacks))
        sections.append(attack(tables))
    progress("attacks", len(attacks), len(attacks))
    return sections
