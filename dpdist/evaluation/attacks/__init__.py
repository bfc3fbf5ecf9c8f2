"""Attacks on a release: what can be learned from it about the records it was made from.

What works on a hold-out of the same population as well is knowledge about the population; the excess is a leak.
"""

from __future__ import annotations

from functools import partial

from dpdist.evaluation.attacks import excess, likeness, membership
from dpdist.evaluation.attacks.intervals import AttackTables, Sizes
from dpdist.evaluation.attacks.membership import Generator
from dpdist.evaluation.page.page import PageSection
from dpdist.families.base.attempt import Progress, silent

__all__ = ["AttackTables", "Generator", "Sizes", "attack_sections"]


def attack_sections(
    tables: AttackTables, *, progress: Progress = silent, mechanism: Generator | None = None
) -> list[PageSection]:
    """Attack a release and say what was found. Without a hold-out only the distinguishing game can be played.

    `mechanism` is a table and a seed to a release of it, for shadow models that know the mechanism (`mechanism_of`).
    `progress` is called with ("attacks", finished attacks, all attacks).
    """
    shadows = partial(membership.section, mechanism=mechanism)
    attacks = (likeness.game, likeness.copies, shadows, excess.linkage, excess.inference, excess.location)
    sections: list[PageSection] = []
    for attack in attacks:
        progress("attacks", len(sections), len(attacks))
        sections.append(attack(tables))
    progress("attacks", len(attacks), len(attacks))
    return sections
