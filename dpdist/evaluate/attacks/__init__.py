"""Attacks on a release: what can be learned from it about the records it was made from.

All attacks compare the records that went in with records of the same population that did not (the hold-out): what
works on both alike is knowledge about the population, the excess is a leak. `attack_sections` runs them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from dpdist.evaluate.attacks import copies, disclosure, distinguish, inference, linkage, membership
from dpdist.evaluate.attacks.shadow import Generator
from dpdist.evaluate.attacks.sizes import Sizes
from dpdist.evaluate.page.sections import Section
from dpdist.families.base.attempt import Progress, silent
from dpdist.schema.schema import Schema

__all__ = ["Generator", "Sizes", "attack_sections"]

_ATTACKS = (distinguish, copies, membership, linkage, inference, disclosure)


def attack_sections(
    released: Sequence[NDArray[Any]],
    training: Sequence[NDArray[Any]],
    holdout: Sequence[NDArray[Any]] | None,
    schema: Schema,
    *,
    seed: int,
    progress: Progress = silent,
    sizes: Sizes | None = None,
    mechanism: Generator | None = None,
) -> list[Section]:
    """Attack a release and say what was found.

    Parameters
    ----------
    released, training, holdout : sequence of ndarray
        Columns in schema order: codes, or float64 for a `number` without bins. Without a hold-out only the
        distinguishing game can be played.
    schema : Schema
    seed : int
        Of the samples and of the classifiers; the same seed gives the same figures.
    progress : callable
        Called with ("attacks", finished attacks, all attacks).
    sizes : Sizes, optional
    mechanism : callable, optional
        A table and a seed to a release of it, for shadow models that know the mechanism
        (`dpdist.evaluate.attacks.mechanisms.mechanism_of`).

    Returns
    -------
    list of Section
    """
    sizes = sizes or Sizes()
    tables = [list(table) if table is not None else None for table in (released, training, holdout)]
    sections: list[Section] = []
    for attack in _ATTACKS:
        progress("attacks", len(sections), len(_ATTACKS))
        extra: dict[str, Any] = {"mechanism": mechanism} if attack is membership else {}
        sections.append(attack.section(*tables, schema, seed=seed, sizes=sizes, **extra))
    progress("attacks", len(_ATTACKS), len(_ATTACKS))
    return sections
