"""How the budget of a release is divided, what each class is charged, and the noise that fills the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpdist.errors import AccountingError, SpecError
from dpdist.families.mixing.moments import MomentPlan, moment_plan
from dpdist.families.mixing.scaling import Encoding, declared_encoding
from dpdist.families.mixing.spec import SCALING_SHARE, MixingSpec
from dpdist.privacy import accountant
from dpdist.privacy.calibrate import least_scale
from dpdist.privacy.checks import CountCheck, count_check
from dpdist.privacy.events import ApproximateDP, Composed, Event
from dpdist.privacy.mixtures import ClassMixtures, event_of_units
from dpdist.privacy.noise import SAMPLER_DELTA

MARGIN = 5e-4
"""Of epsilon, left unspent: the pair of several classes is found on a lattice."""


@dataclass(frozen=True, kw_only=True)
class ClassPlan:
    """What is done to one class."""

    value: str
    code: int  # in the schema
    check: CountCheck
    mixtures: ClassMixtures  # its minimum is the one that passing confirms


@dataclass(frozen=True, kw_only=True)
class BudgetShares:
    """How the budget of a release is divided, by basic composition."""

    encoding: Encoding  # by the declared domains
    checks: tuple[CountCheck, ...]  # of each class
    moments: MomentPlan | None  # None where scaling is by bounds
    epsilon: float  # epsilon, delta: what is left to the mixtures
    delta: float
    sizes: Mapping[str, tuple[int, int]]  # of each class the minimum that its check confirms, and its mixtures


def divide_budget(spec: MixingSpec) -> BudgetShares:
    """Divide the budget of a spec. Raises SpecError: nothing is left to the mixtures; AccountingError: a class is too
    small for its check.
    """
    privacy, share = spec.privacy, float(spec.privacy.check_share)
    moments, left = None, 1 - share
    encoding = declared_encoding(spec.table, class_attribute=spec.mixing.label)
    checks = tuple(_check(spec, str(value), wanted.minimum) for value, wanted in spec.mixing.classes.items())
    if spec.mixing.scaling != "bounds":
        spent = SCALING_SHARE
        if not share + spent < 1:
            raise SpecError("privacy.check_share and the scaling leave nothing for the mixtures; lower it")
        own = {"epsilon": privacy.epsilon * spent, "delta": privacy.delta * spent}
        moments = moment_plan(encoding, unit=spec.records_of_a_unit, **own)
        left -= spent
    return BudgetShares(
        encoding=encoding,
        checks=checks,
        moments=moments,
        epsilon=privacy.epsilon * left,
        delta=privacy.delta * left,
        sizes={
            str(value): (check.minimum, wanted.records)
            for (value, wanted), check in zip(spec.mixing.classes.items(), checks, strict=True)
        },
    )


def _check(spec: MixingSpec, value: str, minimum: int) -> CountCheck:
    """The noisy count of a class against its declared minimum."""
    privacy, share = spec.privacy, float(spec.privacy.check_share)
    unit = spec.records_of_a_unit
    several = min(unit, len(spec.mixing.classes))  # classes that a unit may be in
    budget: dict[str, Any] = {"epsilon": privacy.epsilon * share, "delta": privacy.delta * share / several}
    try:
        return count_check(records=minimum, share=float(spec.mixed_share), unit=unit, **budget)
    except AccountingError:
        raise AccountingError(
            f"mixing.classes: {minimum} records of class {value!r} are too few to be confirmed by a count with epsilon "
            f"= {budget['epsilon']:.3g}: raise privacy.check_share or the budget, declare a larger minimum if it is "
            "publicly known, or leave the class out"
        ) from None


def class_events(
    classes: Sequence[ClassPlan], moments: MomentPlan | None, width: int, sigma_over_clip: float, noises: int = 1
) -> tuple[Event, ...]:
    """What is done to the records of each class; classes that cost the same are there once. For units of several
    records, what is done to all classes. `noises` counts the draws of noise that hide each coordinate: one, or those of
    all clients.
    """
    table = () if moments is None else (moments.event,)
    unit = classes[0].mixtures.unit
    if unit > 1:
        of_units = event_of_units([part.mixtures for part in classes], sigma_over_clip)
        failing = math.fsum(sorted(part.check.delta for part in classes)[-unit:])
        samplers = math.fsum(sampler_loss(part, moments, width, noises) for part in classes)
        checks = ApproximateDP(unit / min(part.check.scale for part in classes), failing, label="checks of the classes")
        lost = ApproximateDP(0.0, min(samplers, 1.0), label="samplers")
        return (Composed((checks, *of_units, *table, lost), label="all classes"),)
    events = []
    for part in classes:
        lost = ApproximateDP(0.0, min(sampler_loss(part, moments, width, noises), 1.0), label="samplers")
        events.append(Composed((part.check.event, part.mixtures.event(sigma_over_clip), *table, lost), label="a class"))
    return tuple(dict.fromkeys(events))


def sampler_loss(part: ClassPlan, moments: MomentPlan | None, width: int, noises: int = 1) -> float:
    """What the samplers of a class lose of delta; parameters as of `class_events`."""
    draws = part.mixtures.records * (2 * part.mixtures.order + noises * width + 2)  # rows drawn, some again
    return (draws + (0 if moments is None else 2 * width + 1)) * SAMPLER_DELTA


def filled_noise(
    sigma: float,
    classes: Sequence[ClassPlan],
    moments: MomentPlan | None,
    width: int,
    *,
    epsilon: float,
    delta: float,
    noises: int = 1,
) -> float:
    """The noise that fills the budget: stages cost less together than one by one."""

    def cost(scale: float) -> float:
        events = class_events(classes, moments, width, scale, noises)
        return max(accountant.epsilon(event, delta=delta) for event in events)

    return least_scale(cost, epsilon=epsilon * (1 - MARGIN), delta=delta, start=sigma)
