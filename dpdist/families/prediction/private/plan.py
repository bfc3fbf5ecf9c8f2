"""The plan of the differentially private variant: the noise of each statistic, and what is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpdist.families.base.plan import Needs, core_seconds
from dpdist.families.prediction.private.mechanisms import (
    CORRELATION_SHARE,
    MARGINAL_SHARE,
    PRODUCT_SHARE,
    Deviations,
    PrivateColumn,
    cells_for,
    charge,
    private_column,
)
from dpdist.families.prediction.private.statistics import CHUNK_ROWS
from dpdist.families.prediction.second_stage import FREQUENCIES, WIDTH
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.two_stage import TwoStagePlan
from dpdist.privacy.events import Composed
from dpdist.privacy.formatting import Fact
from dpdist.spec.overrides import change


@dataclass(frozen=True, kw_only=True)
class PrivatePlan(TwoStagePlan):
    """What a release of the differentially private variant will do."""

    noise_name: ClassVar[str] = "Deviation of a count of a marginal"

    charge: Deviations
    columns: tuple[PrivateColumn, ...]  # the inputs, then the response, in cells

    @property
    def event(self) -> Composed:
        """The charge."""
        return self.charge.event

    def noise_at(self, at_most: int) -> float:
        """The deviation of a count of a marginal."""
        return plan_private(change(self.spec, {"unit.at_most": at_most})).charge.marginal

    @property
    def measured(self) -> bool:
        """Whether the second moments of the features are measured with noise."""
        return self.charge.product > 0

    def public_parameters(self) -> dict[str, Any]:
        """Cells, features and noise."""
        made = self.spec.prediction.features
        return super().public_parameters() | {
            "cells": {column.scale.name: column.cells for column in self.columns},
            "features": {"frequencies": FREQUENCIES, "width": WIDTH, "products": made.products},
            "noise": {
                "marginal": self.charge.marginal,
                "correlation": self.charge.correlation,
                "product": self.charge.product,
                "cross_product": self.charge.cross,
            },
        }

    def needs(self) -> Needs:
        """Memory, tasks and time, from public sizes only."""
        width = len(self.spec.inputs)
        records = self.spec.prediction.records or 0
        phases = 8 * FREQUENCIES * sum(column.total for column in self.columns[:-1])
        return self.bounding(
            Needs(
                partitions=self.partitions,
                tasks=3 * self.partitions + 2 * math.ceil(records / self.spec.output.rows_per_part),
                task_bytes=8 * CHUNK_ROWS * 6 * (2 * FREQUENCIES + width) + 40 * width * (1 << 17) + phases,
                seconds=core_seconds(read=3 * self.values, drawn=records * (width + FREQUENCIES)),
            )
        )

    def errors(self) -> list[Fact]:
        """How far off the marginals are."""
        text = f"about +-{self.charge.marginal:.4g} a count of a marginal"
        return [Fact("Error", text, {"deviation": self.charge.marginal})]

    def details(self) -> list[Fact]:
        """The noise of each statistic."""
        noise, made = self.charge, self.spec.prediction
        cells = ", ".join(f"{column.scale.name} ({column.cells})" for column in self.columns)
        ranks = f"noise {noise.correlation:.4g} on the sum of products of each pair of columns"
        regression = (
            f"ridge on {2 * FREQUENCIES} random Fourier features; noise {noise.cross:.4g} on each cross "
            f"product; second moments: {'measured' if self.measured else 'those of the released model'}"
        )
        return [
            Fact("Original", "nothing: alpha is 0 and every column is synthesised"),
            Fact("Marginals", f"{cells}: noise {noise.marginal:.4g} per cell", {"deviation": noise.marginal}),
            Fact("Ranks", ranks, {"deviation": noise.correlation}),
            Fact("Regression", regression, {"deviation": noise.cross}),
            Fact("Records", f"{made.records:,}", {"records": made.records}),
            *super().details(),
        ]


def plan_private(spec: TwoStageSpec) -> PrivatePlan:
    """Plan a release of the differentially private variant. Raises AccountingError: the budget is not valid, or too
    small.
    """
    privacy, made, inputs = spec.privacy, spec.prediction, len(spec.inputs)
    if privacy.epsilon is None or privacy.delta is None:
        raise ValueError("guarantee dp has a budget")
    measured = made.features.products == "measured"
    width = 1 + sum(scale.count or 1 if scale.nominal else 1 for scale in spec.inputs) + 2 * FREQUENCIES
    noise = charge(
        inputs=inputs,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        marginal_share=MARGINAL_SHARE,
        correlation_share=CORRELATION_SHARE,
        product_share=PRODUCT_SHARE if measured else 0.0,
        draws=4096 * (inputs + 1) + inputs**2 + width + (width * width if measured else 0),
        unit=spec.records_of_a_unit,
    )
    cells = cells_for(spec.data.minimum_records, noise=noise.marginal)
    columns = tuple(private_column(scale, cells=cells) for scale in (*spec.inputs, spec.response))
    return PrivatePlan(spec=spec, charge=noise, columns=columns)
