"""The plan of the published method: what is synthesised, what may be disclosed, and what is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpdist.families.prediction.blocks import BLOCK_ROWS
from dpdist.families.prediction.density import FOLDS, cell_count
from dpdist.families.prediction.lid.hybrid import BLOCK_ROWS as NEIGHBOURS
from dpdist.families.prediction.lid.hybrid import MATCHED_ROWS
from dpdist.families.prediction.lid.method import Disclosure, Method
from dpdist.families.prediction.second_stage import DISTRIBUTED_ROWS, EXACT_ROWS
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.two_stage import TwoStagePlan
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

    def resources(self) -> dict[str, Any]:
        """Memory and tasks, from public sizes only."""
        rows, width, regression = self.spec.data.minimum_records, len(self.method.scales), self.method.regression
        cells = FOLDS * self.method.parties * sum(cell_count(scale) for scale in self.method.scales)
        system = {"exact": EXACT_ROWS, "distributed": regression.group_rows, "nystroem": regression.landmarks}
        return {
            "records_at_least": rows,
            "partitions": self.partitions,
            "held_bytes": 8 * rows * (3 * width + 2),
            "task_bytes": 3 * 8 * min(rows, system[regression.estimator_for(rows)]) ** 2
            + 24 * BLOCK_ROWS * width
            + 2 * 8 * cells,
            "tasks_about": self.partitions + 8 * math.ceil(rows / BLOCK_ROWS),
        }

    def charge_lines(self) -> list[str]:
        """Nothing is charged."""
        return ["Charge      none: no differential privacy, so no budget covers this release"]

    def details(self) -> list[str]:
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
        return [
            f"Original    {', '.join(self.spec.original) or 'none'} (columns released as they are, in another order of "
            "the records)",
            f"Disclosure  looked at in {watched}",
            *self._parties(),
            f"Inputs      {made.first_stage}, mixed with the {matching}",
            f"Alpha       {alpha}",
            f"Regression  {self._regression()}",
            *super().details(),
        ]

    def _parties(self) -> list[str]:
        parties = self.spec.prediction.parties
        if parties is None:
            return []
        if self.method.regression.hook is not None:
            how = "the regression sees an indicator of each"
        elif parties.correlation is None:
            how = "their regressions are correlated as cross-validation finds best"
        else:
            how = f"their regressions have correlation {parties.correlation:g}"
        return [
            f"Parties     the {self.method.parties} values of {parties.column}: inputs are made and disclosure holds "
            f"for each alone; {how}; nothing is published if one has fewer than {parties.minimum_records:,} records"
        ]

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
