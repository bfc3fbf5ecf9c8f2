"""From the spec of a mixing release to its frozen plan: noise, guarantee, charge, checks, memory. Touches no record.

The charge: a noisy count of each class against its declared minimum, and the mixtures of each class, one class per
record (in parallel); noisy means and deviations of the table if it is scaled by them; what the samplers lose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.errors import SpecError
from dpdist.mixing.accounting import ClassMixtures
from dpdist.mixing.calibration import least_scale
from dpdist.mixing.order import ORDERS, OrderChoice, best_order, common_noise, compare_orders
from dpdist.mixing.scaling import Encoding, MomentPlan, declared_encoding, moment_plan
from dpdist.mixing.spec import MixingSpec
from dpdist.privacy import accountant
from dpdist.privacy.checks import CountCheck, count_check
from dpdist.privacy.events import ApproximateDP, Composed, Event, Parallel
from dpdist.privacy.guarantee import DifferentialPrivacy, Guarantee
from dpdist.privacy.noise import SAMPLER_DELTA

BLOCK = 1 << 13
"""Mixtures of a task. What is released does not depend on the cluster, so it is fixed."""

_TOLERANCE = 1e-3
_MARGIN = 5e-4  # of epsilon: the pair of several classes is found on a lattice


@dataclass(frozen=True, kw_only=True)
class ClassPlan:
    """What is done to one class.

    Attributes
    ----------
    value : str
    code : int
        In the schema.
    check : CountCheck
    mixtures : ClassMixtures
        Its minimum is the one that passing confirms.
    """

    value: str
    code: int
    check: CountCheck
    mixtures: ClassMixtures


@dataclass(frozen=True, kw_only=True)
class MixingPlan:
    """Everything a mixing release will do and cost, before it reads a record.

    Attributes
    ----------
    spec : MixingSpec
    encoding : Encoding
        By the declared domains.
    moments : MomentPlan or None
        Noise of the means and deviations; None where scaling is by bounds.
    classes : tuple of ClassPlan
    order : int
    sigma_over_clip : float
        Noise in each coordinate of every mixture, in units of the clipping norm.
    """

    spec: MixingSpec
    encoding: Encoding
    moments: MomentPlan | None
    classes: tuple[ClassPlan, ...]
    order: int
    sigma_over_clip: float

    kind = "dp"

    @cached_property
    def event(self) -> Event:
        """The charge."""
        events = _class_events(self.classes, self.moments, self.encoding.width, self.sigma_over_clip)
        return Parallel(events, label="classes") if len(events) > 1 else events[0]

    @property
    def delta(self) -> float:
        """Delta at which the guarantee is stated."""
        return self.spec.privacy.delta

    @cached_property
    def epsilon(self) -> float:
        """Epsilon of the charge at `delta`."""
        return accountant.epsilon(self.event, delta=self.delta)

    @cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises."""
        return (
            DifferentialPrivacy(
                epsilon=self.epsilon, delta=self.delta, adjacency="add/remove", covers="the whole release"
            ),
        )

    @property
    def clip(self) -> float | None:
        """Clipping norm; None where it follows from the noisy moments."""
        if self.spec.mixing.clip is not None:
            return self.spec.mixing.clip
        return self.encoding.largest_norm if self.moments is None else None

    @property
    def label_sigma(self) -> float:
        """Deviation of the published noise on labels, whose mean a record moves by at most ``sqrt(2) / l``; else 0."""
        return self.sigma_over_clip / math.sqrt(2) if self.spec.mixing.noise_on_labels == "paper" else 0.0

    @property
    def records(self) -> int:
        """Mixtures of all classes."""
        return sum(part.mixtures.records for part in self.classes)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        mixing = self.spec.mixing
        return {
            "class": mixing.label,
            "classes": [
                {
                    "value": part.value,
                    "declared_minimum": mixing_class.minimum,
                    "confirmed_minimum": part.check.minimum,
                    "check_scale": part.check.scale,
                    "check_threshold": part.check.threshold,
                    "records": part.mixtures.records,
                    "sampling_rate": part.mixtures.sampling_rate,
                }
                for part, mixing_class in zip(self.classes, mixing.classes.values(), strict=True)
            ],
            "order": self.order,
            "sigma_over_clip": self.sigma_over_clip,
            "noise_multiplier": self.sigma_over_clip * self.order / 2,
            "clip": self.clip,
            "clip_norm": "L2",
            "coordinates": self.encoding.width,
            "scaling": mixing.scaling,
            "scaling_sigma": None if self.moments is None else self.moments.sigma,
            "label_sigma": self.label_sigma,
            "release": mixing.release,
            "spread": mixing.spread,
            "event": self.event.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "guarantees": [guarantee.to_json() for guarantee in self.guarantees],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "covers": "the whole release",
            "parameters": self.public_parameters(),
            "resources": self.resources(),
            "spec_sha256": self.spec.fingerprint,
        }

    def resources(self) -> dict[str, Any]:
        """Memory and tasks, from public sizes only."""
        rows = self.spec.data.minimum_records
        partitions = self.spec.cluster.partitions or max(1, round(rows / (1 << 20)))
        row_bytes = sum(attribute.dtype.itemsize for attribute in self.spec.table.attributes)
        blocks = sum(math.ceil(part.mixtures.records / BLOCK) for part in self.classes)
        return {
            "records_at_least": rows,
            "partitions": partitions,
            "codes_bytes": rows * row_bytes,
            "rows_bytes": 4 * self.encoding.width * max(part.mixtures.minimum for part in self.classes),
            "task_bytes": 8 * BLOCK * (self.order + 2 * self.encoding.width),
            "tasks_about": partitions + 4 * blocks,
        }

    def explain(self) -> str:
        """The plan for people."""
        spec, mixing, resources = self.spec, self.spec.mixing, self.resources()
        lines = [f"Release {spec.name} ({spec.kind}) of data set {spec.dataset}", ""]
        lines += [guarantee.sentence() for guarantee in self.guarantees]
        lines += ["", f"Charge      epsilon {self.epsilon:.6g} at delta {self.delta:g} (add/remove adjacency)"]
        lines += [
            f"Class       {mixing.label} = {part.value}: {part.mixtures.records:,} mixtures, sampling rate "
            f"{part.mixtures.sampling_rate:.3g}; at least {part.mixtures.minimum:,} records are confirmed by a count "
            f"with noise of scale {part.check.scale:.3g}, or the class is left out"
            for part in self.classes
        ]
        clip = "the noisy root mean square norm" if self.clip is None else f"norm {self.clip:.4g}"
        lines.append(
            f"Mixtures    of {self.order} records in {self.encoding.width} coordinates, clipped to {clip}; noise of "
            f"{self.sigma_over_clip:.4g} times that in each coordinate"
        )
        if self.moments is not None:
            lines.append(f"Scaling     noisy means and deviations, noise {self.moments.sigma:.4g} on each sum")
        if self.label_sigma:
            lines.append(f"Labels      published noise of deviation {self.label_sigma:.3g}; it protects nothing")
        lines.append(
            f"Resources   about {resources['partitions']} partitions, {resources['tasks_about']} tasks; "
            f"{resources['codes_bytes'] / 2**20:,.0f} MiB of codes on one worker, "
            f"{resources['task_bytes'] / 2**20:,.0f} MiB per running task"
        )
        return "\n".join(lines)


def plan(spec: MixingSpec) -> MixingPlan:
    """Plan a mixing release.

    Raises
    ------
    SpecError
        A class cannot fill a mixture, or the settings contradict each other.
    AccountingError
        No valid guarantee, or too few declared records for the checks.
    """
    privacy, mixing = spec.privacy, spec.mixing
    encoding = declared_encoding(spec.table, class_attribute=mixing.label)
    checks, moments, epsilon, delta = _stages(spec, encoding)
    sizes = {
        str(value): (check.minimum, wanted.records)
        for (value, wanted), check in zip(mixing.classes.items(), checks, strict=True)
    }
    order = mixing.order
    if order == "auto":
        order = best_order(sizes, width=encoding.width, epsilon=epsilon, delta=delta).order
    # One record fewer than confirmed must still fill a mixture, or the class's presence alone would tell.
    small = [value for value, (minimum, _) in sizes.items() if minimum <= order]
    if small:
        raise SpecError(
            f"mixing.order: {order} records are more than are confirmed of class {', '.join(map(repr, small))}; lower "
            "the order, or leave the class out of mixing.classes"
        )
    classes = tuple(
        ClassPlan(
            value=value,
            code=code,
            check=check,
            mixtures=ClassMixtures(minimum=minimum, order=order, records=records),
        )
        for (value, (minimum, records)), code, check in zip(sizes.items(), spec.class_codes, checks, strict=True)
    )
    sigma = common_noise(sizes, order=order, epsilon=epsilon, delta=delta, tolerance=_TOLERANCE)
    sigma = _filled(sigma, classes, moments, encoding.width, epsilon=privacy.epsilon, delta=privacy.delta)
    return MixingPlan(
        spec=spec, encoding=encoding, moments=moments, classes=classes, order=order, sigma_over_clip=sigma
    )


def compare(spec: MixingSpec, *, orders: Sequence[int] = ORDERS) -> tuple[OrderChoice, ...]:
    """The noise of each order at the budget of the spec; reads no record and spends nothing."""
    encoding = declared_encoding(spec.table, class_attribute=spec.mixing.label)
    checks, _, epsilon, delta = _stages(spec, encoding)
    sizes = {
        str(value): (check.minimum, wanted.records)
        for (value, wanted), check in zip(spec.mixing.classes.items(), checks, strict=True)
    }
    return compare_orders(sizes, width=encoding.width, epsilon=epsilon, delta=delta, orders=orders)


def _stages(spec: MixingSpec, encoding: Encoding) -> tuple[list[CountCheck], MomentPlan | None, float, float]:
    """Checks, moments, and the budget they leave to the mixtures by basic composition."""
    privacy = spec.privacy
    share = float(privacy.check_share)
    checks = [
        count_check(records=wanted.minimum, epsilon=privacy.epsilon * share, delta=privacy.delta * share)
        for wanted in spec.mixing.classes.values()
    ]
    if spec.mixing.scaling == "bounds":
        return checks, None, privacy.epsilon * (1 - share), privacy.delta * (1 - share)
    spent = float(privacy.scaling_share)
    if share + spent >= 1:
        raise SpecError("privacy.check_share and privacy.scaling_share leave nothing for the mixtures; lower them")
    moments = moment_plan(encoding, epsilon=privacy.epsilon * spent, delta=privacy.delta * spent)
    return checks, moments, privacy.epsilon * (1 - share - spent), privacy.delta * (1 - share - spent)


def _class_events(
    classes: tuple[ClassPlan, ...], moments: MomentPlan | None, width: int, sigma_over_clip: float
) -> tuple[Event, ...]:
    """What is done to the records of each class; classes that cost the same are there once."""
    table = () if moments is None else (moments.event,)
    events = []
    for part in classes:
        draws = part.mixtures.records * (2 * part.mixtures.order + width + 2)  # rows drawn, some again, and noise
        lost = ApproximateDP(0.0, draws * SAMPLER_DELTA, label="samplers")
        events.append(Composed((part.check.event, part.mixtures.event(sigma_over_clip), *table, lost), label="a class"))
    return tuple(dict.fromkeys(events))


def _filled(
    sigma: float,
    classes: tuple[ClassPlan, ...],
    moments: MomentPlan | None,
    width: int,
    *,
    epsilon: float,
    delta: float,
) -> float:
    """The noise that fills the budget: stages cost less together than one by one."""

    def cost(scale: float) -> float:
        return max(accountant.epsilon(event, delta=delta) for event in _class_events(classes, moments, width, scale))

    return least_scale(cost, epsilon=epsilon * (1 - _MARGIN), delta=delta, start=sigma, tolerance=_TOLERANCE)
