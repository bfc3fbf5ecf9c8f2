"""The plan of a family whose whole release is differentially private by one event: the rest follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dpdist.data.records import BATCH_ROWS
from dpdist.families.base.family import Plan
from dpdist.privacy.events import Event
from dpdist.publish.part_format import PartFormat

_VALUE_BYTES = 64  # of a value while it is read and encoded


@dataclass(frozen=True, kw_only=True)
class EventPlan(Plan):
    """The plan of a release that reads its table in passes and is charged one event (add/remove).

    A family begins with it and overrides what it says in more detail.
    """

    event: Event = field()  # the charge
    delta: float = 0.0  # at which the guarantee is stated
    form: PartFormat = field(default_factory=PartFormat)  # how the parts of the release are written

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        return {"minimum_records": self.spec.data.minimum_records, "event": self.event.to_json()}

    def resources(self) -> dict[str, Any]:
        """Memory and tasks, from public sizes only."""
        needs = {
            "records_at_least": self.spec.data.minimum_records,
            "partitions": self.partitions,
            "task_bytes": _VALUE_BYTES * len(self.spec.table.attributes) * BATCH_ROWS,
            "tasks_about": self.partitions + math.ceil(self.partitions / 7) + 2,
        }
        return self.bounding(needs)
