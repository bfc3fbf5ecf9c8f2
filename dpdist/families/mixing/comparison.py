"""The noise of all orders at the budget of a spec, side by side: what ``dpdist plan --solve`` shows. Spends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpdist.families.mixing.order import ORDERS, OrderChoice, compare_orders
from dpdist.families.mixing.scaling import declared_encoding
from dpdist.families.mixing.spec import MixingSpec
from dpdist.families.mixing.stages import stages
from dpdist.spec import change


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The noise of each order.

    Attributes
    ----------
    name : str
        Of the release.
    epsilon, delta : float
        Its whole budget.
    choices : tuple of OrderChoice
    federated : bool
        Whether the noise is that of each client by itself.
    """

    name: str
    epsilon: float
    delta: float
    choices: tuple[OrderChoice, ...]
    federated: bool = False

    @property
    def best(self) -> OrderChoice:
        """The order that leaves most of the rows' spread visible."""
        return min(self.choices, key=lambda choice: choice.noise_to_spread)

    def to_json(self) -> dict[str, Any]:
        """The comparison as a JSON object."""
        return {
            "name": self.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": "add/remove",
            "orders": [choice.to_json() for choice in self.choices],
            "order": self.best.order,
        }

    def explain(self) -> str:
        """The comparison for people."""
        lines = [
            f"Orders of release {self.name} at epsilon {self.epsilon:g}, delta {self.delta:g} (add/remove adjacency, "
            "the whole release)",
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
        if self.federated:
            lines.append(
                "These are the mixtures of each client by itself. Averages of several clients have less noise for "
                "their spread, by one factor for all orders."
            )
        return "\n".join(lines)


def compare(spec: MixingSpec, *, epsilon: float | None = None, orders: Sequence[int] = ORDERS) -> Comparison:
    """The noise of each order at the budget of the spec; reads no record and spends nothing.

    Parameters
    ----------
    spec : MixingSpec
    epsilon : float, optional
        In place of the spec's.
    orders : sequence of int

    Raises
    ------
    SpecError, AccountingError
        As `dpdist.families.mixing.plan.plan`.
    """
    if epsilon is not None:
        spec = change(spec, {"privacy.epsilon": epsilon})
    encoding = declared_encoding(spec.table, class_attribute=spec.mixing.label)
    checks, _, left, delta = stages(spec, encoding)
    sizes = {
        str(value): (check.minimum, wanted.records)
        for (value, wanted), check in zip(spec.mixing.classes.items(), checks, strict=True)
    }
    choices = compare_orders(sizes, width=encoding.width, epsilon=left, delta=delta, orders=orders)
    return Comparison(
        name=spec.name,
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        choices=choices,
        federated=spec.federated is not None,
    )
