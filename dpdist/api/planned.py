"""A plan as an object: what a release would guarantee, cost and need, shown as text or as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpdist.api.display import folded, html_table

if TYPE_CHECKING:
    from dpdist.families.base.family import Plan


class PlannedRelease:
    """What `dpdist.plan` returns.

    Attributes
    ----------
    plan : Plan
        Of the family.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def guarantee(self) -> str:
        """What the release would guarantee, in sentences."""
        return " ".join(guarantee.sentence() for guarantee in self.plan.guarantees)

    @property
    def epsilon(self) -> float:
        """Epsilon of the charge."""
        return self.plan.epsilon

    @property
    def delta(self) -> float:
        """Delta at which the guarantee is stated."""
        return self.plan.delta

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return self.plan.to_json()

    def explain(self) -> str:
        """The plan, the budget before and after it, and whether the contract is kept, in words."""
        from dpdist.ledger.statement import budget_lines, contract_sentence

        lines = [self.plan.explain(), *budget_lines(self.plan), f"Contract    {contract_sentence(self.plan)}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return folded(self.explain())

    def _repr_html_(self) -> str:
        return html_table(self.explain().splitlines(), title=f"Plan of {self.plan.spec.name}")
