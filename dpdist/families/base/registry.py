"""The families of releases by the kind of their specs, what they make of a spec, and the epsilon for a stated risk."""

from __future__ import annotations

import math
import re
from collections.abc import MutableMapping, Sequence
from typing import Any

from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.family import Family, FoundPlan, SolveRequest, Stage
from dpdist.families.base.plan import Plan
from dpdist.privacy.accountant import most_right
from dpdist.privacy.formatting import Fact, lines_of, risk_sentence
from dpdist.spec import kinds
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.validation import change

FAMILIES: MutableMapping[str, Family[Any, Any]] = kinds.FAMILIES
"""The families of this process, found by their entry points (`dpdist.spec.kinds`)."""


def register(family: Family[Any, Any]) -> None:
    """Make a family known to this process alone. Raises ValueError: its kind is taken."""
    if family.kind in FAMILIES:
        raise ValueError(f"there is a family of kind {family.kind!r} already")
    FAMILIES[family.kind] = family


def family_of(spec: ReleaseSpec) -> Family[Any, Any]:
    """The family of a spec."""
    return FAMILIES[spec.kind]


def stages_of(plan: Plan) -> Sequence[Stage[Any, Any]]:
    """The stages of a planned release."""
    return family_of(plan.spec).stages(plan)


def make_plan(spec: ReleaseSpec) -> Plan:
    """Plan a release, whatever its family. Raises SpecError: settings contradict each other; AccountingError: no valid
    guarantee at these parameters; GuaranteeRefused: the guarantee would say nothing, and was not asked for by name.
    """
    plan: Plan = family_of(spec).plan(spec)
    plan.guarantees  # noqa: B018  (one that cannot be stated is refused here, and not when the release is published)
    return plan


_RISK = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%?\s*(?:to|-)\s*(\d+(?:\.\d+)?)\s*%\s*")
_LARGEST, _TRIES = 20.0, 12


def solve_risk(spec: ReleaseSpec, request: SolveRequest) -> FoundPlan:
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
    unit = plan.spec.protected.get("unit", "record")
    told = Fact("Found", f"{risk_sentence(reached, guess=guess, unit=unit)}: privacy.epsilon {epsilon:g}.")
    text = "\n".join(lines_of([told, *(fact for fact in plan.facts() if not fact.detail)]))
    return FoundPlan(plan, text, {"epsilon": epsilon, "guess": guess, "right": reached})


def _three_digits(epsilon: float) -> float:
    """An epsilon rounded downwards."""
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return round(math.floor(epsilon / step + 1e-9) * step, 9)
