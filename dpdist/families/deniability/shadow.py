"""Releases of smaller tables with the noise of a release: what an adversary who knows the mechanism runs."""

from __future__ import annotations

from dataclasses import replace

from dpdist.families.deniability.plan import PlausibleDeniabilityPlan
from dpdist.families.deniability.spec import CHECK_SHARE, PlausibleDeniabilitySpec
from dpdist.families.deniability.splits import ModelPlan, SeedPlan
from dpdist.families.deniability.structure import structure_plan
from dpdist.spec.overrides import change

_DECLARED = 0.9  # of the records of a shadow table
_ALWAYS = -(1 << 62)  # a threshold that every count reaches


def shadow(plan: PlausibleDeniabilityPlan, records: int, share: float) -> PlausibleDeniabilityPlan:
    """The plan of a release of a shadow table of so many `records`, a `share` of the whole one, with the noise of each
    stage as in the whole release.

    Released records and k keep their ratio to the records of the table, and the budget of each stage is that of the
    release. Checks of declared numbers are left out: the adversary knows its own table.
    """
    spec, seeds = plan.spec, plan.seeds
    settings = {
        "data.minimum_records": max(1, int(_DECLARED * records)),
        "synthesis.records": max(1, round(share * spec.synthesis.records)),
        "privacy.deniability.k": max(1, round(share * spec.privacy.deniability.k)),
        "privacy.accept_per_record": True,
        "privacy.limit": None,
    }
    small = change(spec, settings)
    if seeds is not None:
        most = max(1, round(4 * share * seeds.candidates))
        seeds = SeedPlan(minimum=1, whole_release=False, candidates=most)
    return replace(plan, spec=small, model=_shadow_model(plan.model, small), seeds=seeds)


def _shadow_model(model: ModelPlan, spec: PlausibleDeniabilitySpec) -> ModelPlan:
    """The model's plan: statistics whose sensitivity is that of so few records, at the stage's budget."""
    if model.check is None or model.structure is None:
        return replace(model, spec=spec)
    spent = CHECK_SHARE
    least = max(2, int(spec.data.minimum_records * spec.split.shares.structure))
    structure = structure_plan(
        spec.table,
        minimum_records=least,
        epsilon=(1 - spent) / (model.check.scale * spent),
        delta=model.check.delta * (1 - spent) / spent,
        score=spec.model.score,
    )
    return replace(model, spec=spec, check=replace(model.check, minimum=least, threshold=_ALWAYS), structure=structure)
