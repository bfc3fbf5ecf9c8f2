"""What the plans of both variants of two-stage synthesis share, and which variant a spec has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.families.base.plan import Plan
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.privacy.formatting import Fact


@dataclass(frozen=True, kw_only=True)
class TwoStagePlan(Plan):
    """Everything a two-stage release will do, before it reads a record."""

    spec: TwoStageSpec

    @property
    def kind(self) -> str:
        """Kind of guarantee, as the ledger's policies name it."""
        return self.spec.privacy.guarantee

    @cached_property
    def delta(self) -> float:
        """Delta at which the guarantee is stated; 0 where there is none."""
        return self.spec.privacy.delta or 0.0

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest; each variant adds its own."""
        made = self.spec.prediction
        return {
            "response": made.response,
            "logarithmic": dict(made.log),
            "first_stage": made.first_stage,
            "original_columns": list(self.spec.original),
            "event": None if self.event is None else self.event.to_json(),
        }

    def details(self) -> list[Fact]:
        """The response; each variant has more to say before it."""
        return [Fact("Response", self.spec.prediction.response)]


def plan(spec: TwoStageSpec) -> TwoStagePlan:
    """Plan a release of either variant. Raises AccountingError: no valid guarantee at these parameters."""
    if spec.privacy.guarantee == "dp":
        from dpdist.families.prediction.private.plan import plan_private

        return plan_private(spec)
    from dpdist.families.prediction.lid.plan import plan_lid

    return plan_lid(spec)
