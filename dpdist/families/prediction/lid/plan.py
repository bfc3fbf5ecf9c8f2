"""The plan of the published method: what is synthesised, what may be disclosed, and what is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.families.base.plan import Needs, core_seconds
from dpdist.families.prediction.first_stage import FOLDS, cell_count
from dpdist.families.prediction.lid.inputs import NEIGHBOURS
from dpdist.families.prediction.lid.method import BLOCK_ROWS, MATCHED_ROWS, Disclosure, Method
from dpdist.families.prediction.second_stage import DISTRIBUTED_ROWS, EXACT_ROWS
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.two_stage import TwoStagePlan
from dpdist.privacy.formatting import Fact
from dpdist.privacy.guarantee import LID, Guarantee


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
        return (
            LID(
                bound=disclosure.lid,
                eta=disclosure.eta,
                columns=tuple(names[i] for i in disclosure.columns),
                original=tuple(names[i] for i in self.method.kept),
            ),
        )

    @property
    def _names(self) -> list[str]:
        return [scale.name for scale in self.method.scales]

    def public_parameters(self) -> dict[str, Any]:
        """The disclosure, and how inputs and responses are made."""
        made, disclosure, names = self.spec.prediction, self.method.disclosure, self._names
        own = {
            "matching": made.matching,
            "disclosure": {
                "lid": disclosure.lid,
                "eta": disclosure.eta,
                "columns": [names[i] for i in disclosure.columns],
                "not_looked_at": [name for i, name in enumerate(names) if i not in disclosure.columns],
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
        watched = ", ".join(self._names[i] for i in method.disclosure.columns) or "none"
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
            Fact("Disclosure", f"looked at in {watched}", {"lid": method.disclosure.lid}),
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
        matching=made.matching,
        alpha=made.alpha,
        disclosure=Disclosure(lid=disclosure.lid, eta=disclosure.eta, columns=spec.watched),
        regression=made.regression,
        classes=(spec.response.count or 0) if spec.response.nominal else 0,
    )
    return LidPlan(spec=spec, method=method)
