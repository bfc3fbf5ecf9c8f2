"""What the plans of both variants of two-stage synthesis share, and which variant a spec has."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from dpdist.families.base.plan import Needs, Plan, core_seconds
from dpdist.families.prediction.first_stage import FOLDS, cell_count
from dpdist.families.prediction.lid.inputs import NEIGHBOURS
from dpdist.families.prediction.lid.method import BLOCK_ROWS, MATCHED_ROWS, Disclosure, Method
from dpdist.families.prediction.lid.regression import rehearse_hooks
from dpdist.families.prediction.private.mechanisms import Deviations, PrivateColumn, cells_for, charge, private_column
from dpdist.families.prediction.private.statistics import CHUNK_ROWS
from dpdist.families.prediction.second_stage import DISTRIBUTED_ROWS, EXACT_ROWS, FREQUENCIES, WIDTH
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.federated.messages import LEAST_SIGMA
from dpdist.federated.plan import SummedPlan
from dpdist.privacy.calibrate import ABOVE
from dpdist.privacy.events import Composed
from dpdist.privacy.formatting import Fact
from dpdist.privacy.guarantee import LID, Guarantee
from dpdist.spec.validation import change


def plan(spec: TwoStageSpec) -> TwoStagePlan:
    """Plan a two-stage release. Raises AccountingError: no valid guarantee at these parameters."""
    return plan_private(spec) if spec.privacy.guarantee == "dp" else plan_lid(spec)


@dataclass(frozen=True, kw_only=True)
class TwoStagePlan(Plan):
    """Everything a two-stage release will do, before it reads a record."""

    spec: TwoStageSpec

    @property
    def kind(self) -> str:
        """Kind of guarantee, as the ledger's policies name it."""
        return self.spec.privacy.guarantee

    @cached_property
    def delta(self) -> float:
        """Delta at which the guarantee is stated; 0 where none exists."""
        return self.spec.privacy.delta or 0.0

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest; each variant adds its own."""
        made = self.spec.prediction
        return {
            "response": made.response,
            "logarithmic": dict(made.log),
            "first_stage": made.first_stage,
            "original_columns": list(self.spec.original),
            "event": None if self.event is None else self.event.to_json(),
        }

    def details(self) -> list[Fact]:
        """The response; each variant has more to say before it."""
        return [Fact("Response", self.spec.prediction.response)]


@dataclass(frozen=True, kw_only=True)
class LidPlan(TwoStagePlan):
    """What a release of the published method will do; it is not differentially private."""

    method: Method

    @property
    def event(self) -> None:
        """Nothing: differential privacy does not compose with this release."""

    @cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """The bound on local information disclosure."""
        disclosure, names = self.method.disclosure, self._names
        columns, original = (tuple(names[i] for i in places) for places in (disclosure.columns, self.method.kept))
        return (
            LID(
                bound=disclosure.lid,
                eta=disclosure.eta,
                columns=columns,
                original=original,
                response=disclosure.response,
            ),
        )

    def rehearse_hooks(self) -> None:
        """Call the user's own stages on made-up rows. Raises SpecError: one does not do what it must."""
        rehearse_hooks(self.method)

    @property
    def _names(self) -> list[str]:
        return [scale.name for scale in self.method.scales]

    def public_parameters(self) -> dict[str, Any]:
        """The disclosure, and how inputs and responses are made."""
        made, disclosure, names = self.spec.prediction, self.method.disclosure, self._names
        own = {
            "matching": made.matching,
            "density": made.density.model_dump(mode="json"),
            "disclosure": {
                "lid": disclosure.lid,
                "eta": disclosure.eta,
                "columns": [names[i] for i in disclosure.columns],
                "not_looked_at": [name for i, name in enumerate(names) if i not in disclosure.columns],
                "response": disclosure.response,
                "alpha_of_closed_form": self.method.most_alpha,
            },
            "regression": made.regression.model_dump(mode="json"),
        }
        if made.parties is not None:
            own["parties"] = made.parties.model_dump(mode="json")
        return super().public_parameters() | own

    def needs(self) -> Needs:
        """Memory, tasks and time, from public sizes only."""
        rows, width, regression = self.spec.data.minimum_records, len(self.method.scales), self.method.regression
        cells = FOLDS * self.method.parties * sum(cell_count(scale) for scale in self.method.scales)
        systems = {"exact": EXACT_ROWS, "distributed": regression.group_rows, "nystroem": regression.landmarks}
        system = min(rows, systems[regression.estimator_for(rows)])
        return Needs(
            partitions=self.partitions,
            tasks=self.partitions + 8 * math.ceil(rows / BLOCK_ROWS),
            task_bytes=3 * 8 * system**2 + 24 * BLOCK_ROWS * width + 2 * 8 * cells,
            held_bytes=8 * rows * (3 * width + 2),
            seconds=core_seconds(read=self.values, drawn=self.values),
        )

    def charges(self) -> list[Fact]:
        """Nothing is charged."""
        return [Fact("Charge", "none: no differential privacy, so no budget covers this release")]

    def details(self) -> list[Fact]:
        """What is disclosed, and how inputs and responses are made."""
        made, method = self.spec.prediction, self.method
        watched, most = ", ".join(self._names[i] for i in method.disclosure.columns) or "none", {}
        if method.disclosure.response is not None:
            watched += f"; in the response at most {method.disclosure.response:.6g}"
            most = {"response": method.disclosure.response}
        matching = "synthetic row that stands at the same place, whichever it is"
        if made.matching != "independent":
            kind = "exact" if made.matching == "nearest" else "greedy"
            matching = (
                f"nearest unused synthetic row: {kind} assignment up to {MATCHED_ROWS:,} records, else in "
                f"blocks of at most {NEIGHBOURS} neighbours within {BLOCK_ROWS:,} records"
            )
        alpha = (
            f"at most {method.most_alpha:.4g} (closed form for independent uniform columns); lowered until the "
            "measured disclosure is within the bound, or nothing is published"
            if method.alpha is None
            else f"{method.alpha:g}; nothing is published if the measured disclosure exceeds the bound"
        )
        original = ", ".join(self.spec.original) or "none"
        return [
            Fact("Original", f"{original} (columns released as they are, in another order of the records)"),
            Fact("Disclosure", f"looked at in {watched}", {"lid": method.disclosure.lid, **most}),
            *self._parties(),
            Fact("Inputs", f"{made.first_stage}, mixed with the {matching}"),
            Fact("Alpha", alpha, {"alpha": method.most_alpha if method.alpha is None else method.alpha}),
            Fact("Regression", self._regression()),
            *super().details(),
        ]

    def _parties(self) -> list[Fact]:
        parties = self.spec.prediction.parties
        if parties is None:
            return []
        if self.method.regression.hook is not None:
            how = "the regression sees an indicator of each"
        elif parties.correlation is None:
            how = "their regressions are correlated as cross-validation finds best"
        else:
            how = f"their regressions have correlation {parties.correlation:g}"
        text = (
            f"the {self.method.parties} values of {parties.column}: inputs are made and disclosure holds for each "
            f"alone; {how}; nothing is published if one has fewer than {parties.minimum_records:,} records"
        )
        return [Fact("Parties", text, {"parties": self.method.parties, "minimum_records": parties.minimum_records})]

    def _regression(self) -> str:
        regression = self.method.regression
        if regression.hook is not None:
            return regression.hook
        seen = " on classes" if self.method.classes else ""
        text = f"kernel ridge{seen} ({regression.kernel} kernel), {regression.estimator}"
        if regression.estimator == "auto":
            text += (
                f": exact up to {EXACT_ROWS:,} records, averages of groups of {regression.group_rows:,} up to "
                f"{DISTRIBUTED_ROWS:,}, then Nystroem with {regression.landmarks:,} landmarks"
            )
        return text


def plan_lid(spec: TwoStageSpec) -> LidPlan:
    """Plan a release of the published method."""
    made, disclosure = spec.prediction, spec.privacy.disclosure
    if disclosure is None:
        raise ValueError("guarantee lid has a disclosure")
    method = Method(
        scales=spec.inputs,
        kept=tuple(i for i, scale in enumerate(spec.inputs) if scale.name in spec.original),
        party=None if made.parties is None else spec.input_names.index(made.parties.column),
        correlation=None if made.parties is None else made.parties.correlation,
        first_stage=made.first_stage,
        paper_bandwidths=made.density.bandwidths == "paper",
        matching=made.matching,
        alpha=made.alpha,
        disclosure=Disclosure(
            lid=disclosure.lid, eta=disclosure.eta, columns=spec.watched, response=disclosure.response
        ),
        regression=made.regression,
        classes=(spec.response.count or 0) if spec.response.nominal else 0,
    )
    return LidPlan(spec=spec, method=method)


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

    def noise_over(self, clients: int) -> Deviations:
        """The noise in what is released, where this many clients draw it: here, one curator does."""
        return self.charge

    @property
    def noise(self) -> Deviations:
        """The noise in what is released."""
        return self.noise_over(len(self.spec.clients))

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
                "marginal": self.noise.marginal,
                "correlation": self.noise.correlation,
                "product": self.noise.product,
                "cross_product": self.noise.cross,
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
        deviation = self.noise.marginal
        return [Fact("Error", f"about +-{deviation:.4g} a count of a marginal", {"deviation": deviation})]

    def details(self) -> list[Fact]:
        """The noise of each statistic."""
        noise, made = self.noise, self.spec.prediction
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


@dataclass(frozen=True, kw_only=True)
class FederatedPrivatePlan(SummedPlan, PrivatePlan):
    """A `PrivatePlan` whose statistics are noisy sums over clients."""

    spec: TwoStageSpec

    @property
    def own_charge(self) -> Deviations:
        """The noise of each client: that of the honest ones together is what is charged."""
        return self.noise_over(1)

    def noise_over(self, clients: int) -> Deviations:
        """See `PrivatePlan.noise_over`."""
        own = self.charge.times(ABOVE / math.sqrt(self.spec.honest))
        least = LEAST_SIGMA if self.spec.is_masked else 0.0
        return replace(own, marginal=max(own.marginal, least)).times(math.sqrt(clients))

    @property
    def wider(self) -> float:
        """See `SummedPlan.wider`: clients draw some noise at least."""
        return self.noise.marginal / self.charge.marginal


def plan_private(spec: TwoStageSpec) -> PrivatePlan:
    """Plan a release of the differentially private variant. Raises AccountingError: the budget is not valid, or too
    small.
    """
    privacy, made, inputs = spec.privacy, spec.prediction, len(spec.inputs)
    if privacy.epsilon is None or privacy.delta is None:
        raise ValueError("guarantee dp has a budget")
    measured = made.features.products == "measured"
    width = 1 + sum(scale.count or 1 if scale.nominal else 1 for scale in spec.inputs) + 2 * FREQUENCIES
    draws = 4096 * (inputs + 1) + inputs**2 + width + (width * width if measured else 0)
    noise = charge(
        inputs=inputs,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        measured=measured,
        draws=draws * max(1, len(spec.clients)),  # of each client
        unit=spec.records_of_a_unit,
    )
    kind = PrivatePlan if spec.federated is None else FederatedPrivatePlan
    planned = kind(spec=spec, charge=noise, columns=())
    cells = cells_for(spec.data.minimum_records, noise=planned.noise.marginal)
    return replace(
        planned, columns=tuple(private_column(scale, cells=cells) for scale in (*spec.inputs, spec.response))
    )
