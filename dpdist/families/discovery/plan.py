"""The plan of a discovery: its noise, and the threshold above which values are named. Touches no record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpdist.data.records import MOST_TEXT_BYTES
from dpdist.families.base.calibration import BY_CHANCE, Mechanism, deviation, least_above, tail
from dpdist.families.base.plan import EventPlan, Needs
from dpdist.families.discovery.spec import MOST_VALUES, DiscoverySpec
from dpdist.privacy.accountant import choose_noise
from dpdist.privacy.events import ApproximateDP, Composed
from dpdist.privacy.formatting import Fact, number_of, upwards
from dpdist.privacy.noise import SAMPLER_DELTA
from dpdist.publish.part_format import PartFormat


@dataclass(frozen=True, kw_only=True)
class DiscoveryPlan(EventPlan):
    """Everything a discovery will do and cost, before it reads a record."""

    spec: DiscoverySpec
    mechanism: Mechanism  # mechanism, scale: the noise of each count
    scale: float
    named_from: int  # a value is named if its noisy count is at least this
    # bins with noisy counts of at least this are taken to have records: no guarantee depends on it, but what is drafted
    seen_from: int

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the noise of a count."""
        return deviation(self.mechanism, self.scale)

    @cached_property
    def form(self) -> PartFormat:
        """A table of statistics."""
        return PartFormat(layout="statistics", non_negative=True)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        names = ("mechanism", "scale", "deviation", "named_from", "seen_from")
        own = {name: getattr(self, name) for name in names}
        return super().public_parameters() | own | {"columns": len(self.spec.columns)}

    def needs(self) -> Needs:
        """Memory and tasks: the values of a partition at their longest, were they all different."""
        found = super().needs()
        rows = max(self.spec.data.minimum_records // found.partitions, 1)
        values = rows * (MOST_TEXT_BYTES + 40) * max(len(self.spec.texts), 1)
        return replace(found, task_bytes=found.task_bytes + values, tasks=2 * found.tasks + 2 * found.partitions)

    def errors(self) -> list[Fact]:
        """How exact counts are."""
        text = f"about +-{self.deviation:.3g} a count ({self.mechanism} noise)"
        return [Fact("Error", text, {"deviation": self.deviation})]

    def details(self) -> list[Fact]:
        """What is named."""
        spec, facts = self.spec, []
        if spec.texts:
            text = (
                f"of {number_of(len(spec.texts), 'column')}: those with a noisy count of "
                f"{self.named_from:,} or more, {MOST_VALUES:,} of a column at most. A value of one record is "
                f"named with probability {upwards(spec.privacy.delta / 2)} at most"
            )
            facts.append(Fact("Values", text, {"named_from": self.named_from, "at_most": MOST_VALUES}))
        if spec.binned:
            text = f"of {number_of(len(spec.binned), 'column')}: from bins that end at powers of two"
            facts.append(Fact("Bounds", text))
        return facts


def plan(spec: DiscoverySpec) -> DiscoveryPlan:
    """Plan a discovery. Raises AccountingError: no amount of noise meets the budget."""
    count, privacy = len(spec.columns), spec.privacy
    named = privacy.delta / 2 if spec.texts else 0.0
    lost = ApproximateDP(0.0, named + count * SAMPLER_DELTA, label="values named, and draws")
    noise = choose_noise(
        count=count, epsilon=privacy.epsilon, delta=privacy.delta - lost.delta, label="counts of all columns"
    )

    def above(count: int) -> float:
        return tail(noise.kind, noise.scale, count)

    threshold = least_above(above, named / len(spec.texts)) + 1 if spec.texts else 1
    return DiscoveryPlan(
        spec=spec,
        event=Composed((noise.event, lost)),
        delta=privacy.delta,
        mechanism=noise.kind,
        scale=noise.scale,
        named_from=threshold,
        seen_from=least_above(above, BY_CHANCE),
    )
