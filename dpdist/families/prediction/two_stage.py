"""What the plans of both variants of two-stage synthesis share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.privacy import accountant
from dpdist.privacy.events import Event
from dpdist.privacy.formatting import number_of
from dpdist.privacy.guarantee import Guarantee, explained
from dpdist.publish.parts import PartFormat
from dpdist.schema.schema import Schema


@dataclass(frozen=True, kw_only=True)
class TwoStagePlan(ABC):
    """Everything a two-stage release will do, before it reads a record."""

    spec: TwoStageSpec

    refusal: ClassVar[str | None] = None

    @property
    @abstractmethod
    def event(self) -> Event | None:
        """The charge; None where the release is not differentially private."""

    @property
    @abstractmethod
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises."""

    @abstractmethod
    def resources(self) -> dict[str, Any]:
        """Memory and tasks, from public sizes only."""

    @abstractmethod
    def own_parameters(self) -> dict[str, Any]:
        """The public parameters that only this variant has."""

    @abstractmethod
    def own_lines(self) -> list[str]:
        """The lines of `explain` that only this variant has."""

    @property
    def kind(self) -> str:
        """Kind of guarantee, as the ledger's policies name it."""
        return self.spec.privacy.guarantee

    @property
    def delta(self) -> float:
        """Delta at which the guarantee is stated; 0 where there is none."""
        return self.spec.privacy.delta or 0.0

    @cached_property
    def epsilon(self) -> float:
        """Epsilon of the charge at `delta`; infinite where there is none."""
        return math.inf if self.event is None else accountant.epsilon(self.event, delta=self.delta)

    @property
    def released(self) -> Schema:
        """The attributes of the released records: those of the table."""
        return self.spec.table

    @property
    def form(self) -> PartFormat:
        """How the parts of the release are written."""
        return PartFormat(values=self.spec.output.values, bins=self.spec.output.bins)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        made = self.spec.prediction
        return {
            "response": made.response,
            "logarithmic": dict(made.log),
            "first_stage": made.first_stage,
            "original_columns": list(made.keep),
            "event": None if self.event is None else self.event.to_json(),
            **self.own_parameters(),
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "guarantees": [guarantee.to_json() for guarantee in self.guarantees],
            "epsilon": None if self.event is None else self.epsilon,
            "delta": self.delta,
            "covers": "the whole release",
            "parameters": self.public_parameters(),
            "resources": self.resources(),
            "spec_sha256": self.spec.fingerprint,
        }

    def explain(self) -> str:
        """The plan for people: the guarantee, the stages, and what is needed."""
        spec, resources = self.spec, self.resources()
        kind = spec.kind if self.event is not None else f"{spec.kind}, NOT differentially private"
        held = f"{resources['held_bytes'] / 2**20:,.0f} MiB held by the workers, " if "held_bytes" in resources else ""
        return "\n".join(
            [
                f"Release {spec.name} ({kind}) of data set {spec.dataset}",
                "",
                *explained(self.guarantees),
                "",
                *self.own_lines(),
                f"Response    {spec.prediction.response}",
                f"Resources   about {number_of(resources['partitions'], 'partition')}, {resources['tasks_about']} "
                f"tasks; {held}{resources['task_bytes'] / 2**20:,.0f} MiB per running task",
            ]
        )

    @property
    def partitions(self) -> int:
        """Partitions of the table, about."""
        return self.spec.cluster.partitions or max(1, round(self.spec.data.minimum_records / (1 << 20)))
