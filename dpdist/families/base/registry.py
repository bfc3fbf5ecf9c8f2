"""The families of releases by the kind of their specs, and what they make of a spec."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from dpdist.families.base.family import Family, Stage
from dpdist.families.base.plan import Plan
from dpdist.spec import kinds
from dpdist.spec.release import ReleaseSpec

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
