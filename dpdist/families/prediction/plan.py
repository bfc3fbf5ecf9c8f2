"""From the spec of a two-stage release to the plan of its variant."""

from __future__ import annotations

from dpdist.families.prediction.lid.plan import plan_lid
from dpdist.families.prediction.private.plan import plan_private
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.two_stage import TwoStagePlan


def plan(spec: TwoStageSpec) -> TwoStagePlan:
    """Plan a two-stage release. Raises AccountingError: no valid guarantee at these parameters."""
    return plan_private(spec) if spec.privacy.guarantee == "dp" else plan_lid(spec)
