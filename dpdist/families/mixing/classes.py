"""Gather the records of each class and confirm that there are as many as declared.

The curator of a central release and every client of a federated one run the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dpdist.data.operators import Split
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.passes import Passes
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.results import Classes, Confirmed
from dpdist.families.mixing.spec import MixingSpec
from dpdist.families.mixing.statistics import class_operator, class_statistics
from dpdist.privacy.noise import Noise

MixingPlanT = TypeVar("MixingPlanT", bound=MixingPlan)


def gather(attempt: Attempt[MixingSpec, MixingPlanT]) -> Classes:
    """The records of each class; where orders are tried, those that are mixed and those that are held out. Raises
    DataError: the table breaks its declared policies.
    """
    spec, plan, executor = attempt.spec, attempt.plan, attempt.executor
    apart = spec.mixed_share < 1
    split = Split(attempt.key, (spec.mixed_share, 1 - spec.mixed_share)) if apart else None
    passes = Passes(attempt, split=split, repeated=apart)
    label, bounded = spec.table.names.index(spec.mixing.label), spec.unit is not None
    operator = class_operator(label, spec.class_codes, by_value=bounded)  # no order of bounded records is their own
    codes = passes.held(operator, stage="gathering classes", label=0 if apart else None)
    held_out = passes.held(operator, stage="gathering held-out records", label=1) if apart else None
    summed = None if plan.moments is None else plan.encoding
    statistics = executor.compute([executor.tasks("classes")("count", class_statistics, codes, summed)])[0]
    attempt.operator["class_sizes"] = dict(zip((part.value for part in plan.classes), statistics.sizes, strict=True))
    return Classes(codes, held_out, statistics)


def confirm(attempt: Attempt[MixingSpec, MixingPlanT], sizes: Sequence[int]) -> Confirmed:
    """Whether each class has its declared minimum: noisy counts that are drawn once and stored."""
    return attempt.stored(Confirmed, lambda: confirmed_classes(attempt.noise, attempt.plan, sizes))


def confirmed_classes(noise: Noise, plan: MixingPlan, sizes: Sequence[int]) -> Confirmed:
    """The outcomes of the noisy counts; a class that cannot fill a mixture never passes."""
    outcomes = []
    for part, size in zip(plan.classes, sizes, strict=True):
        noisy = size + int(noise.discrete_laplace(f"checks/class/{part.code}", 1, scale=part.check.scale)[0])
        outcomes.append(part.check.passes(noisy) and size >= plan.order)
    return Confirmed(tuple(outcomes))


def note_left_out(attempt: Attempt[MixingSpec, MixingPlanT], confirmed: Sequence[bool]) -> None:
    """Publish which classes are left out, and tell who watches the release."""
    left_out = [part.value for part, kept in zip(attempt.plan.classes, confirmed, strict=True) if not kept]
    attempt.public["classes_left_out"] = left_out
    if left_out:
        names = ", ".join(map(repr, left_out))
        attempt.progress(f"left out, its minimum not confirmed: {attempt.spec.mixing.label} {names}", 1, 1)
