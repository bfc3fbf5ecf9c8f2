"""How the budget of a release is divided, the noise that fills it, and the order that public numbers choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.family import SolveRequest
from dpdist.families.mixing.scaling import Encoding, MomentPlan, declared_encoding, moment_plan
from dpdist.families.mixing.spec import SCALING_SHARE, MixingSpec
from dpdist.privacy.checks import CountCheck, count_check
from dpdist.privacy.mixtures import ClassMixtures, noise_of_units
from dpdist.spec.validation import change

ORDERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # orders that are compared unless others are given


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
    unit: int  # records of a unit, at most


def divide_budget(spec: MixingSpec) -> BudgetShares:
    """Divide the budget. Raises SpecError: nothing is left to mix; AccountingError: a class is too small to check."""
    privacy, share, unit = spec.privacy, float(spec.privacy.check_share), spec.records_of_a_unit
    moments, left = None, 1 - share
    encoding = declared_encoding(spec.table, class_attribute=spec.mixing.label)
    checks = tuple(_check(spec, str(value), wanted.minimum) for value, wanted in spec.mixing.classes.items())
    if spec.mixing.scaling != "bounds":
        if not share + SCALING_SHARE < 1:
            raise SpecError("privacy.check_share and the scaling leave nothing for the mixtures; lower it")
        own = {"epsilon": privacy.epsilon * SCALING_SHARE, "delta": privacy.delta * SCALING_SHARE}
        moments = moment_plan(encoding, unit=unit, **own)
        left -= SCALING_SHARE
    sizes = {
        str(value): (check.minimum, wanted.records)
        for (value, wanted), check in zip(spec.mixing.classes.items(), checks, strict=True)
    }
    return BudgetShares(
        encoding=encoding,
        checks=checks,
        moments=moments,
        epsilon=privacy.epsilon * left,
        delta=privacy.delta * left,
        sizes=sizes,
        unit=unit,
    )


def _check(spec: MixingSpec, value: str, minimum: int) -> CountCheck:
    """The noisy count of a class against its declared minimum."""
    privacy, share = spec.privacy, float(spec.privacy.check_share)
    unit = spec.records_of_a_unit
    several = min(unit, len(spec.mixing.classes))  # classes that a unit may be in
    budget: dict[str, Any] = {"epsilon": privacy.epsilon * share, "delta": privacy.delta * share / several}
    try:
        return count_check(records=minimum, unit=unit, **budget)
    except AccountingError:
        raise AccountingError(
            f"mixing.classes: {minimum} records of class {value!r} are too few to be confirmed by a count with epsilon "
            f"= {budget['epsilon']:.3g}: raise privacy.check_share or the budget, declare a larger minimum if it is "
            "publicly known, or leave the class out"
        ) from None


def common_noise(divided: BudgetShares, order: int) -> float:
    """Noise over clip that keeps every class within the budget of the mixtures. Raises AccountingError: none does.

    One for all: were it larger in small classes, it would tell released classes apart, but not real ones.
    """
    unit, budget = divided.unit, {"epsilon": divided.epsilon, "delta": divided.delta}
    mixtures = {
        ClassMixtures(minimum=minimum, order=order, records=records, unit=unit)
        for minimum, records in divided.sizes.values()
    }
    if unit > 1:
        return noise_of_units(tuple(mixtures), **budget)
    dearest, *others = sorted(mixtures, key=lambda one: one.sampling_rate**2 * one.records, reverse=True)
    sigma = dearest.sigma_over_clip(**budget)
    for one in others:
        if not one.epsilon(sigma, delta=divided.delta) <= divided.epsilon:
            sigma = one.sigma_over_clip(**budget)
    return sigma


@dataclass(frozen=True, kw_only=True)
class OrderChoice:
    """What an order means for the noise."""

    order: int  # rows in a mixture, l
    sigma_over_clip: float  # noise in each coordinate, in units of the clipping norm c
    noise_to_mean: float  # norm of the noise over c, the largest norm of a class mean: ``sigma sqrt(d) / c``
    noise_to_spread: float  # over ``c / sqrt(l)``, the largest spread around the class mean: ``sigma sqrt(d l) / c``


def order_choices(divided: BudgetShares, orders: Sequence[int] = ORDERS) -> Iterator[OrderChoice]:
    """The noise of each order, the largest first; those as large as a class are left out.

    Raises AccountingError: no class can fill any order.
    """
    smallest = min(minimum for minimum, _ in divided.sizes.values())
    fillable = sorted({order for order in orders if 1 <= order <= smallest - divided.unit}, reverse=True)
    if not fillable:
        raise AccountingError("mixing: the smallest class has no more records than the smallest order; lower it")
    for order in fillable:
        sigma = common_noise(divided, order)
        mean = sigma * math.sqrt(divided.encoding.width)
        spread = mean * math.sqrt(order)
        yield OrderChoice(order=order, sigma_over_clip=sigma, noise_to_mean=mean, noise_to_spread=spread)


def best_order(divided: BudgetShares, orders: Sequence[int] = ORDERS) -> int:
    """The order that leaves most of the rows' spread visible (the least `noise_to_spread`); errors as `order_choices`.

    The ratio falls and then rises with the order; large orders are the quickest to account for.
    """
    choices = order_choices(divided, orders)
    best = next(choices)
    for choice in choices:
        if choice.noise_to_spread > best.noise_to_spread:
            break
        best = choice
    return best.order


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
            "orders": [asdict(choice) for choice in self.choices],
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
    """The noise of each order at the budget of the spec, or at another epsilon; spends nothing. Errors as of `plan`."""
    if epsilon is not None:
        spec = change(spec, {"privacy.epsilon": epsilon})
    return Comparison(spec=spec, choices=tuple(order_choices(divide_budget(spec), orders))[::-1])


def solve(spec: MixingSpec, request: SolveRequest) -> Comparison:
    """What ``dpdist plan --solve`` shows. Raises SpecError: options are given that are not of mixing; as `compare`."""
    other = "plausible deniability; of a mixing spec set mixing.order, or auto"
    request.refuse("accuracy", go_with="kind: synthesis")
    request.refuse("pass_rate", "public_table", "write", go_with=other)
    return compare(spec, epsilon=request.epsilon)
