"""How the budget of a release is divided, the noise that fills it, and the order of the mixtures.

More rows in a mixture need less noise, and leave less of the rows' spread. The order `auto` is chosen from public
numbers alone: no record is read and nothing is spent. Orders that are tried on the table are charged: see
`dpdist.families.mixing.selection`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.family import SolveRequest
from dpdist.families.mixing.scaling import Encoding, MomentPlan, declared_encoding, moment_plan
from dpdist.families.mixing.spec import SCALING_SHARE, MixingSpec
from dpdist.privacy import accountant
from dpdist.privacy.calibrate import least_scale
from dpdist.privacy.checks import CountCheck, count_check
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed
from dpdist.privacy.mixtures import ClassMixtures, event_of_units, noise_of_units
from dpdist.privacy.noise import SAMPLER_DELTA
from dpdist.spec.overrides import change

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


ORDERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Orders that are compared unless others are given."""


@dataclass(frozen=True, kw_only=True)
class OrderChoice:
    """What an order means for the noise."""

    order: int  # rows in a mixture, l
    sigma_over_clip: float  # noise in each coordinate, in units of the clipping norm c
    # norm of the noise of one mixture over c, the largest norm of a class mean: ``sigma sqrt(d) / c``
    noise_to_mean: float
    # norm of the noise over ``c / sqrt(l)``, the largest spread of noiseless mixtures around the class mean: ``sigma
    # sqrt(d l) / c``
    noise_to_spread: float

    def to_json(self) -> dict[str, Any]:
        """The choice as a JSON object."""
        return asdict(self)


def compare_orders(
    classes: Mapping[str, tuple[int, int]],
    *,
    width: int,
    epsilon: float,
    delta: float,
    orders: Sequence[int] = ORDERS,
    unit: int = 1,
) -> tuple[OrderChoice, ...]:
    """The noise of each order at the same budget of the mixtures; reads no record and spends nothing.

    `classes` gives for each class the confirmed minimum of its rows, and its mixtures. All classes have the noise of
    the one that needs most; orders as large as a class are left out. `width` is the coordinates of a row, d; `unit` the
    most records of a unit. Raises AccountingError: the budget is not valid, or no class can fill any order.
    """
    fillable = _fillable(classes, orders, unit)
    return tuple(_choice(order, classes, width, epsilon, delta, unit) for order in fillable)


def best_order(
    classes: Mapping[str, tuple[int, int]],
    *,
    width: int,
    epsilon: float,
    delta: float,
    orders: Sequence[int] = ORDERS,
    unit: int = 1,
) -> OrderChoice:
    """The order that leaves most of the rows' spread visible (the least `noise_to_spread`), at no cost.

    Parameters and errors are those of `compare_orders`. The ratio falls and then rises with the order (noise falls fast
    at first, and then hardly), so the search goes down from the largest, which is the quickest to account for.
    """
    best: OrderChoice | None = None
    for order in reversed(_fillable(classes, orders, unit)):
        choice = _choice(order, classes, width, epsilon, delta, unit)
        if best is not None and choice.noise_to_spread > best.noise_to_spread:
            break
        best = choice
    if best is None:
        raise AccountingError("mixing: there is no order to choose from")
    return best


def _fillable(classes: Mapping[str, tuple[int, int]], orders: Sequence[int], unit: int) -> list[int]:
    smallest = min(minimum for minimum, _ in classes.values())
    fillable = sorted({order for order in orders if 1 <= order <= smallest - unit})
    if not fillable:
        raise AccountingError("mixing: the smallest class has no more records than the smallest order; lower it")
    return fillable


def _choice(
    order: int, classes: Mapping[str, tuple[int, int]], width: int, epsilon: float, delta: float, unit: int
) -> OrderChoice:
    sigma = common_noise(classes, order=order, epsilon=epsilon, delta=delta, unit=unit)
    mean = sigma * math.sqrt(width)
    return OrderChoice(order=order, sigma_over_clip=sigma, noise_to_mean=mean, noise_to_spread=mean * math.sqrt(order))


def common_noise(
    classes: Mapping[str, tuple[int, int]],
    *,
    order: int,
    epsilon: float,
    delta: float,
    unit: int = 1,
) -> float:
    """Noise over clip that keeps every class within the budget.

    One noise for all classes: were it larger in small classes, its size alone would tell classes apart in what is
    released, but not in real records.
    """
    mixtures = {
        ClassMixtures(minimum=minimum, order=order, records=records, unit=unit) for minimum, records in classes.values()
    }
    if unit > 1:
        return noise_of_units(tuple(mixtures), epsilon=epsilon, delta=delta)
    dearest, *others = sorted(mixtures, key=lambda one: one.sampling_rate**2 * one.records, reverse=True)
    sigma = dearest.sigma_over_clip(epsilon=epsilon, delta=delta)
    for one in others:
        if not one.epsilon(sigma, delta=delta) <= epsilon:
            sigma = one.sigma_over_clip(epsilon=epsilon, delta=delta)
    return sigma


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The noise of each order at the budget of a spec; for a federated one that of each client by itself."""

    spec: MixingSpec
    choices: tuple[OrderChoice, ...]

    plan = None

    @property
    def best(self) -> OrderChoice:
        """The order that leaves most of the rows' spread visible."""
        return min(self.choices, key=lambda choice: choice.noise_to_spread)

    def to_json(self) -> dict[str, Any]:
        """The comparison as a JSON object."""
        return {
            "name": self.spec.name,
            "epsilon": self.spec.privacy.epsilon,
            "delta": self.spec.privacy.delta,
            "adjacency": "add/remove",
            "orders": [choice.to_json() for choice in self.choices],
            "order": self.best.order,
        }

    def explain(self) -> str:
        """The comparison for people."""
        privacy = self.spec.privacy
        lines = [
            f"Orders of release {self.spec.name} at epsilon {privacy.epsilon:g}, delta {privacy.delta:g} (add/remove "
            "adjacency, the whole release)",
            "",
            "order   sigma/c    noise to class mean   noise to spread of mixtures",
        ]
        lines += [
            f"{choice.order:5d}   {choice.sigma_over_clip:7.4f}   {choice.noise_to_mean:19.3f}   "
            f"{choice.noise_to_spread:27.3f}{'   least' if choice is self.best else ''}"
            for choice in self.choices
        ]
        lines += [
            "",
            "From public numbers alone: no record is read and nothing is spent. `mixing.order: auto` takes the order "
            f"with the least noise for the spread that it leaves, here {self.best.order}. Small orders show single "
            "records best, large ones the class means.",
        ]
        if self.spec.federated is not None:
            lines.append(
                "These are the mixtures of each client by itself. Averages of several clients have less noise for "
                "their spread, by one factor for all orders."
            )
        return "\n".join(lines)


def compare(spec: MixingSpec, *, epsilon: float | None = None, orders: Sequence[int] = ORDERS) -> Comparison:
    """The noise of each order at the budget of the spec, or at another epsilon; reads no record and spends nothing.
    Errors as of `dpdist.families.mixing.plan.plan`.
    """
    if epsilon is not None:
        spec = change(spec, {"privacy.epsilon": epsilon})
    divided = divide_budget(spec)
    width, epsilon, delta = divided.encoding.width, divided.epsilon, divided.delta
    choices = compare_orders(
        divided.sizes, width=width, epsilon=epsilon, delta=delta, orders=orders, unit=spec.records_of_a_unit
    )
    return Comparison(spec=spec, choices=choices)


def solve(spec: MixingSpec, request: SolveRequest) -> Comparison:
    """What ``dpdist plan --solve`` shows; errors as for `compare`. Raises SpecError: options are given that are not of
    mixing.
    """
    other = "plausible deniability; of a mixing spec set mixing.order, or auto"
    request.refuse("accuracy", go_with="kind: synthesis")
    request.refuse("pass_rate", "public_table", "write", go_with=other)
    return compare(spec, epsilon=request.epsilon)
