"""The epsilon for a stated risk: ``dpdist plan --risk "1% to 2%"``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.family import SolveRequest
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import make_plan
from dpdist.privacy.formatting import Fact, lines_of, risk_sentence
from dpdist.privacy.risk import most_right
from dpdist.spec.overrides import change
from dpdist.spec.release import ReleaseSpec

_RISK = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%?\s*(?:to|-)\s*(\d+(?:\.\d+)?)\s*%\s*")
_LARGEST, _TRIES = 20.0, 12


@dataclass(frozen=True)
class RiskSolution:
    """The largest epsilon for a stated risk."""

    plan: Plan  # with the epsilon that was found
    epsilon: float  # of the spec
    guess: float
    right: float  # at most, by the curve of the plan

    def to_json(self) -> dict[str, Any]:
        """The solution as a JSON object."""
        found = {"epsilon": self.epsilon, "guess": self.guess, "right": self.right}
        return {**found, "plan": self.plan.to_json()}

    def explain(self) -> str:
        """The solution for people."""
        unit = self.plan.spec.protected.get("unit", "record")
        told = f"{risk_sentence(self.right, guess=self.guess, unit=unit)}: privacy.epsilon {self.epsilon:g}."
        return "\n".join(lines_of([Fact("Found", told), *(f for f in self.plan.facts() if not f.detail)]))


def solve_risk(spec: ReleaseSpec, request: SolveRequest) -> RiskSolution:
    """The largest epsilon, to three digits, at which a guess of the first probability is right with at most the second.
    Raises SpecError: the risk cannot be read, or the release has no epsilon that reaches it.
    """
    found = _RISK.fullmatch(request.risk or "")
    guess, right = (float(number) / 100 for number in found.groups()) if found else (0.0, 0.0)
    if not 0 < guess < right < 1:
        raise SpecError(f'plan --risk {request.risk}: expected "1% to 2%", from a smaller to a larger probability')

    def at(epsilon: float) -> tuple[Plan, float]:
        plan = make_plan(change(spec, {"privacy.epsilon": epsilon}))
        if plan.event is None:
            raise SpecError(f"plan --risk: a release of kind {spec.kind} as this one bounds no guess")
        return plan, most_right(plan.event, guess=guess)

    if not hasattr(spec.privacy, "epsilon"):
        raise SpecError(f"plan --risk: specs of kind {spec.kind} have no privacy.epsilon")
    most = min(spec.privacy.limit or _LARGEST, _LARGEST)
    epsilon, plan, reached = min(2 * math.log(right / guess), most), None, 1.0
    for _ in range(_TRIES):  # what a guess gains grows about as epsilon does
        epsilon = _three_digits(epsilon)
        try:
            plan, reached = at(epsilon)
        except AccountingError:  # so little cannot be spent
            break
        if 0.995 * right <= reached <= right or (reached <= right and epsilon >= _three_digits(most)):
            break
        epsilon = min(epsilon * min(max(0.998 * (right - guess) / (reached - guess), 0.1), 10.0), most)
    if plan is None or reached > right:
        raise SpecError(f"plan --risk {request.risk}: no epsilon up to {most:g} was found that has so small a risk")
    epsilon = float(plan.spec.privacy.model_dump()["epsilon"])
    request.completed(plan.spec, {"privacy.epsilon": epsilon}, title=f"Found by `dpdist plan --risk {request.risk}`.")
    return RiskSolution(plan, epsilon, guess, reached)


def _three_digits(epsilon: float) -> float:
    """An epsilon rounded downwards."""
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return round(math.floor(epsilon / step + 1e-9) * step, 9)
