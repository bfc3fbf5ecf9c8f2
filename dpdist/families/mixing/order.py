"""The order of the mixtures, from public numbers alone: more rows need less noise, and leave less of the rows' spread.

No record is read and nothing is spent. Orders that are tried on the table are charged: see
`dpdist.families.mixing.selection`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpdist.errors import AccountingError
from dpdist.families.base.family import SolveRequest
from dpdist.families.mixing.budget import divide_budget
from dpdist.families.mixing.spec import MixingSpec
from dpdist.privacy.mixtures import ClassMixtures, noise_of_units
from dpdist.spec.overrides import change

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
