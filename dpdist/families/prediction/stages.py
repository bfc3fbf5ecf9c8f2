"""The stages of a two-stage release: each variant has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdist.families.base.family import Stage
from dpdist.families.prediction.lid import stages as lid
from dpdist.families.prediction.private import stages as private
from dpdist.families.prediction.private.plan import PrivatePlan
from dpdist.families.prediction.two_stage import TwoStagePlan


def stages(plan: TwoStagePlan) -> Sequence[Stage[Any, Any]]:
    """The stages of a release, in order."""
    return private.STAGES if isinstance(plan, PrivatePlan) else lid.STAGES
