"""What an audit attacks: the model of each of the two tables, with as many rows of a parent as it may have."""

from __future__ import annotations

from dpdist.families.relational.plan import RelationalPlan
from dpdist.model.claims import model_claim
from dpdist.privacy import accountant
from dpdist.privacy.events import Gaussian
from dpdist.privacy.testing import Claim


def claims(plan: RelationalPlan) -> tuple[Claim, ...]:
    """Both models; each at its part of the budget."""
    layout, last = plan.spec.layout, plan.spec.records_of_a_unit - 1
    tables = ((layout.first, plan.first, 1), (layout.others, plan.others, last))
    found = []
    for schema, choices, copies in tables:
        epsilon = accountant.epsilon(Gaussian(1 / (choices.mu * copies)), delta=plan.delta)
        found.append(model_claim(schema, choices, epsilon=epsilon, delta=plan.delta, copies=copies))
    return tuple(found)
