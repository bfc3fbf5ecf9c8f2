"""From the spec of a two-stage release to its frozen plan: what is made, disclosed or charged, and needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.families.prediction.blocks import BLOCK_ROWS
from dpdist.families.prediction.defaults import EXACT_ROWS
from dpdist.families.prediction.explanation import explain
from dpdist.families.prediction.lid.method import Disclosure, Method, Regression
from dpdist.families.prediction.private.charge import Charge, cells_for, charge
from dpdist.families.prediction.private.mechanisms import PrivateColumn, private_column
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.privacy import accountant
from dpdist.privacy.events import Event
from dpdist.privacy.guarantee import LID, DifferentialPrivacy, Guarantee
from dpdist.publish.parts import PartFormat
from dpdist.schema.schema import Schema


@dataclass(frozen=True, kw_only=True)
class TwoStagePlan:
    """Everything a two-stage release will do, before it reads a record.

    Attributes
    ----------
    spec : TwoStageSpec
    method : Method or None
        The published method; None under guarantee dp.
    charge : Charge or None
        Noise of the private variant; None under guarantee lid.
    columns : tuple of PrivateColumn
        The inputs, then the response, in cells; empty under guarantee lid.
    """

    spec: TwoStageSpec
    method: Method | None = None
    charge: Charge | None = None
    columns: tuple[PrivateColumn, ...] = ()

    refusal = None

    @property
    def kind(self) -> str:
        """Kind of guarantee, as the ledger's policies name it."""
        return self.spec.privacy.guarantee

    @property
    def event(self) -> Event | None:
        """The charge; None where differential privacy composes nothing."""
        return None if self.charge is None else self.charge.event

    @property
    def delta(self) -> float:
        """Delta at which the guarantee is stated; 0 where there is none."""
        return self.spec.privacy.delta or 0.0

    @cached_property
    def epsilon(self) -> float:
        """Epsilon of the charge at `delta`; infinite where there is none."""
        return math.inf if self.event is None else accountant.epsilon(self.event, delta=self.delta)

    @cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises."""
        disclosure = self.spec.privacy.disclosure
        if disclosure is not None:
            names = [scale.name for scale in self.spec.inputs]
            looked_at = tuple(names[i] for i in self.spec.watched)
            kept = tuple(name for name in names if name in self.spec.prediction.keep)
            return (LID(bound=disclosure.lid, eta=disclosure.eta, columns=looked_at, original=kept),)
        return (
            DifferentialPrivacy(
                epsilon=self.epsilon, delta=self.delta, adjacency="add/remove", covers="the whole release"
            ),
        )

    @property
    def released(self) -> Schema:
        """The attributes of the released records: those of the table."""
        return self.spec.table

    @property
    def form(self) -> PartFormat:
        """How the parts of the release are written."""
        return PartFormat(values=self.spec.output.values, bins=self.spec.output.bins)

    @property
    def frequencies(self) -> int:
        """Pairs of random Fourier features of the private variant."""
        return self.spec.prediction.features.frequencies

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        made, names = self.spec.prediction, [scale.name for scale in self.spec.inputs]
        out: dict[str, Any] = {
            "response": made.response,
            "logarithmic": dict(made.log),
            "first_stage": made.first_stage,
        }
        if self.method is not None and self.spec.privacy.disclosure is not None:
            disclosure = self.method.disclosure
            return out | {
                "original_columns": list(made.keep),
                "matching": made.matching,
                "bandwidth": made.bandwidth,
                "disclosure": {
                    "lid": disclosure.lid,
                    "eta": disclosure.eta,
                    "columns": [names[i] for i in disclosure.columns],
                    "not_looked_at": [n for i, n in enumerate(names) if i not in disclosure.columns],
                    "alpha_of_closed_form": self.method.most_alpha,
                },
                "regression": made.regression.model_dump(mode="json"),
                "event": None,
            }
        if self.charge is None:
            raise ValueError("a plan has a method or a charge")
        return out | {
            "original_columns": [],
            "cells": {column.scale.name: column.cells for column in self.columns},
            "features": made.features.model_dump(mode="json"),
            "noise": {
                "marginal": self.charge.marginal,
                "correlation": self.charge.correlation,
                "product": self.charge.product,
                "cross_product": self.charge.cross,
            },
            "event": self.charge.event.to_json(),
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

    def resources(self) -> dict[str, Any]:
        """Memory and tasks, from public sizes only."""
        rows, width = self.spec.data.minimum_records, len(self.spec.inputs)
        partitions = self.spec.cluster.partitions or max(1, round(rows / (1 << 20)))
        if self.method is None:
            made = self.spec.prediction.records or 0
            parts = math.ceil(made / self.spec.output.rows_per_part)
            tables = 8 * self.frequencies * sum(column.total for column in self.columns[:-1])  # phases
            return {
                "records_at_least": rows,
                "partitions": partitions,
                "task_bytes": 8 * (1 << 13) * 6 * (2 * self.frequencies + width) + 40 * width * (1 << 17) + tables,
                "tasks_about": 3 * partitions + 2 * parts,
            }
        blocks, regression = math.ceil(rows / BLOCK_ROWS), self.method.regression
        system = {"exact": EXACT_ROWS, "distributed": regression.group_rows, "nystroem": regression.landmarks}
        return {
            "records_at_least": rows,
            "partitions": partitions,
            "held_bytes": 8 * rows * (3 * width + 2),
            "task_bytes": 3 * 8 * min(rows, system[regression.estimator_for(rows)]) ** 2 + 24 * BLOCK_ROWS * width,
            "tasks_about": partitions + 8 * blocks,
        }

    def explain(self) -> str:
        """The plan for people."""
        return explain(self)


def plan(spec: TwoStageSpec) -> TwoStagePlan:
    """Plan a two-stage release.

    Raises
    ------
    AccountingError
        No valid guarantee at these parameters.
    """
    return _private(spec) if spec.privacy.guarantee == "dp" else _published(spec)


def _published(spec: TwoStageSpec) -> TwoStagePlan:
    made, disclosure = spec.prediction, spec.privacy.disclosure
    if disclosure is None:
        raise ValueError("guarantee lid has a disclosure")
    names = [scale.name for scale in spec.inputs]
    regression = made.regression
    method = Method(
        scales=spec.inputs,
        kept=tuple(names.index(name) for name in names if name in made.keep),
        first_stage=made.first_stage,
        bandwidth=made.bandwidth,
        matching=made.matching,
        alpha=made.alpha,
        disclosure=Disclosure(lid=disclosure.lid, eta=disclosure.eta, columns=spec.watched),
        regression=Regression(
            kernel=regression.kernel,
            width=regression.width,
            penalty=regression.penalty,
            estimator=None if regression.estimator == "auto" else regression.estimator,
            group_rows=regression.group_rows,
            landmarks=regression.landmarks,
            hook=regression.hook,
        ),
    )
    return TwoStagePlan(spec=spec, method=method)


def _private(spec: TwoStageSpec) -> TwoStagePlan:
    privacy, made = spec.privacy, spec.prediction
    if privacy.epsilon is None or privacy.delta is None:
        raise ValueError("guarantee dp has a budget")
    measured = made.features.products == "measured"
    width = 1 + sum(scale.count or 1 if scale.nominal else 1 for scale in spec.inputs) + 2 * made.features.frequencies
    draws = 4096 * (len(spec.inputs) + 1) + len(spec.inputs) ** 2 + width + (width * width if measured else 0)
    noise = charge(
        inputs=len(spec.inputs),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        marginal_share=float(privacy.marginal_share),
        correlation_share=float(privacy.correlation_share),
        product_share=float(privacy.product_share) if measured else 0.0,
        draws=draws,
    )
    cells = made.cells or cells_for(spec.data.minimum_records, noise=noise.marginal)
    columns = tuple(private_column(scale, cells=cells) for scale in (*spec.inputs, spec.response))
    return TwoStagePlan(spec=spec, charge=noise, columns=columns)
