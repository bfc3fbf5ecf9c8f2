"""The plan of a family whose whole release is differentially private by one event: the rest follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpdist.data.read import BATCH_ROWS
from dpdist.privacy import accountant
from dpdist.privacy.events import Event
from dpdist.privacy.formatting import number_of, upwards
from dpdist.privacy.guarantee import DifferentialPrivacy, Guarantee
from dpdist.publish.parts import PartFormat
from dpdist.schema.schema import Schema
from dpdist.schema.spec import ReleaseSpec

_VALUE_BYTES = 64  # of a value while it is read and encoded


@dataclass(frozen=True, kw_only=True)
class EventPlan:
    """The plan of a release that reads its table in passes and is charged one event (add/remove).

    A family begins with it and overrides what it says in more detail.

    Parameters
    ----------
    spec : ReleaseSpec
    event : Event
        The charge.
    delta : float
        Delta at which the guarantee is stated.
    form : PartFormat
        How the parts of the release are written.
    """

    spec: ReleaseSpec
    event: Event
    delta: float = 0.0
    form: PartFormat = field(default_factory=PartFormat)

    @property
    def kind(self) -> str:
        """Differential privacy."""
        return "dp"

    @cached_property
    def epsilon(self) -> float:
        """Epsilon of the charge at `delta`."""
        return accountant.epsilon(self.event, delta=self.delta)

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises."""
        epsilon, delta = self.epsilon, self.delta
        return (DifferentialPrivacy(epsilon=epsilon, delta=delta, adjacency="add/remove", covers="the whole release"),)

    @property
    def refusal(self) -> str | None:
        """Nothing stands against the spec."""
        return None

    @property
    def released(self) -> Schema:
        """The schema of the table."""
        return self.spec.table

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        return {"minimum_records": self.spec.data.minimum_records, "event": self.event.to_json()}

    def resources(self) -> dict[str, Any]:
        """Memory and tasks, from public sizes only."""
        rows = self.spec.data.minimum_records
        partitions = self.spec.cluster.partitions or max(1, round(rows / (1 << 20)))
        return {
            "records_at_least": rows,
            "partitions": partitions,
            "task_bytes": _VALUE_BYTES * len(self.spec.table.attributes) * BATCH_ROWS,
            "tasks_about": partitions + math.ceil(partitions / 7) + 2,
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "guarantees": [guarantee.to_json() for guarantee in self.guarantees],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "covers": "the whole release",
            "parameters": self.public_parameters(),
            "resources": self.resources(),
            "spec_sha256": self.spec.fingerprint,
        }

    def explain(self) -> str:
        """The plan for people."""
        resources = self.resources()
        lines = [
            f"Release {self.spec.name} ({self.spec.kind}) of data set {self.spec.dataset}",
            "",
            *(guarantee.sentence() for guarantee in self.guarantees),
            "",
            f"Charge      epsilon {upwards(self.epsilon)} at delta {upwards(self.delta)} (add/remove adjacency)",
            f"Resources   about {number_of(resources['partitions'], 'partition')}; "
            f"{resources['task_bytes'] / 2**20:,.0f} MiB per running task",
        ]
        return "\n".join(lines)
