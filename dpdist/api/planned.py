"""A plan as an object: what a release would guarantee, cost and need, shown as text or as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpdist.privacy.formatting import Displayed, Fact, lines_of

if TYPE_CHECKING:
    from dpdist.families.base.plan import Plan


class PlannedRelease(Displayed):
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

    def facts(self, *, details: bool = True) -> list[Fact]:
        """What the plan says, the budget before and after it, and whether the contract is kept; without `details`,
        what people ask first.
        """
        from dpdist.ledger.statement import account_facts

        facts = sorted((*self.plan.facts(), *account_facts(self.plan)), key=lambda fact: fact.detail)
        return [fact for fact in facts if details or not fact.detail]

    def explain(self) -> str:
        """All facts as text, a line for each."""
        return "\n".join(lines_of(self.facts()))

    def _facts(self) -> list[Fact]:
        return self.facts(details=False)

    @property
    def _heading(self) -> str:
        return f"Plan of {self.plan.spec.name}"
