"""What the solver found: the completed spec, its plan, the alternatives and the reason for the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpdist.families.deniability.plan import PlausibleDeniabilityPlan
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One set of parameters and what is expected of it."""

    kept: tuple[str, ...]  # attributes that candidates keep of their seeds
    epsilon: float  # of the whole release
    minimum_pass_rate: float  # minimum_pass_rate, expected_pass_rate: declared, and expected of the reference
    expected_pass_rate: float
    expected_error: float  # see `dpdist.families.deniability.expectations.expected_error`
    settings: Mapping[str, Any]  # settings of the spec by dotted path; empty for the baseline without seeds

    def to_json(self) -> dict[str, Any]:
        """The alternative as a JSON object."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "settings"} | {
            "kept": list(self.kept),
            "k": self.settings.get("privacy.deniability.k"),
            "epsilon0": self.settings.get("privacy.deniability.epsilon0"),
        }


@dataclass(frozen=True, kw_only=True)
class SeedSolution:
    """The completed spec, its plan, and what else there was."""

    plan: PlausibleDeniabilityPlan
    picked: Alternative
    alternatives: tuple[Alternative, ...]  # `picked` among them; the first is the baseline without seeds
    reference: str  # what the expectations rest on
    comparison: str = ""  # what stages on all records, or on splits, are expected to give; empty where nobody asked

    @property
    def spec(self) -> PlausibleDeniabilitySpec:
        """The completed spec."""
        return self.plan.spec

    @property
    def reason(self) -> str:
        """Why this one, in a sentence."""
        seeds = self.plan.seeds
        checked = seeds is not None and seeds.passes is not None
        sure = "a check confirms its pass rate" if checked else "its pass rate holds for every table, without a check"
        return (
            f"Picked: keep {len(self.picked.kept)} ({', '.join(self.picked.kept)}), because it keeps the most of all "
            f"that stay within epsilon {self.spec.privacy.limit:g} and have the least expected two-way error or a "
            f"tenth more, and {sure}."
        )

    def to_json(self) -> dict[str, Any]:
        """The solution as a JSON object."""
        return {
            "reference": self.reference,
            "reason": self.reason,
            "comparison": self.comparison,
            "picked": self.picked.to_json(),
            "alternatives": [one.to_json() for one in self.alternatives],
            "settings": dict(self.picked.settings),
            "plan": self.plan.to_json(),
        }

    @property
    def title(self) -> str:
        """What stands above the completed spec."""
        return f"Found by `dpdist plan --solve`; expectations from {self.reference}.\n{self.reason}"

    def explain(self) -> str:
        """The solution for people."""
        lines = [
            f"Expectations from {self.reference}; delta {self.plan.delta:g}",
            "",
            "     keep      k  epsilon0  epsilon  pass rate: declared  expected  two-way error",
        ]
        for one in self.alternatives:
            mark = "->" if one is self.picked else "  "
            lines.append(
                f"{mark} {len(one.kept):>6}  {one.settings['privacy.deniability.k']:>5,}"
                f"  {one.settings['privacy.deniability.epsilon0']:>8.3g}  {one.epsilon:>7.4g}"
                f"  {one.minimum_pass_rate:>19.3f}  {one.expected_pass_rate:>8.3f}  {one.expected_error:>13.4f}"
                if one.settings
                else f"{mark} {'none':>6}  {'-':>5}  {'-':>8}  {one.epsilon:>7.4g}  {'-':>19}  {'-':>8}"
                f"  {one.expected_error:>13.4f}"
            )
        return "\n".join([*lines, "", f"{self.reason} {self.comparison}".rstrip(), "", self.plan.explain()])
