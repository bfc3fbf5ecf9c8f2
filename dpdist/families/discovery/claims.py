"""What an audit attacks: the counts of a discovery, with one record more in every column."""

from __future__ import annotations

from functools import partial

from dpdist.families.base.values import canary_counts
from dpdist.families.discovery.plan import DiscoveryPlan
from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim


def claims(plan: DiscoveryPlan) -> tuple[Claim, ...]:
    """The counts of the first columns, by the functions that a release calls."""
    name = f"counts of {len(plan.spec.columns)} columns ({plan.mechanism}, values from {plan.named_from:,})"
    return (Claim.of(name, partial(_released, plan), (0, 1), epsilon=plan.epsilon, delta=plan.delta),)


def _released(plan: DiscoveryPlan, record: int, noise: Noise) -> Floats:
    how = plan.mechanism, plan.scale, plan.named_from
    return canary_counts(
        len(plan.spec.texts),
        len(plan.spec.binned),
        record,
        named_as=how,
        counted_as=how[:2],
        noise=noise,
    )
