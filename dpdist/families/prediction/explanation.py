"""The plan of a two-stage release for people: what it promises first, then what is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdist.families.prediction.blocks import BLOCK_ROWS
from dpdist.families.prediction.defaults import DISTRIBUTED_ROWS, EXACT_ROWS
from dpdist.families.prediction.lid.hybrid import BLOCK_ROWS as NEIGHBOURS
from dpdist.families.prediction.lid.hybrid import MATCHED_ROWS
from dpdist.families.prediction.lid.method import Method
from dpdist.families.prediction.private.charge import Charge
from dpdist.families.prediction.spec import PredictionSpec
from dpdist.formatting import number_of, upwards

if TYPE_CHECKING:
    from dpdist.families.prediction.plan import TwoStagePlan


def explain(plan: TwoStagePlan) -> str:
    """The lines of a plan: the guarantee, the stages, and what is needed."""
    spec, made, resources = plan.spec, plan.spec.prediction, plan.resources()
    kind = spec.kind if plan.event is not None else f"{spec.kind}, NOT differentially private"
    lines = [f"Release {spec.name} ({kind}) of data set {spec.dataset}", ""]
    lines += [guarantee.sentence() for guarantee in plan.guarantees] + [""]
    if plan.method is not None:
        lines += _published(made, plan.method)
    if plan.charge is not None:
        lines += _private(plan, plan.charge)
    held = f"{resources['held_bytes'] / 2**20:,.0f} MiB held by the workers, " if "held_bytes" in resources else ""
    lines.append(f"Response    {made.response}")
    lines.append(
        f"Resources   about {number_of(resources['partitions'], 'partition')}, {resources['tasks_about']} tasks; {held}"
        f"{resources['task_bytes'] / 2**20:,.0f} MiB per running task"
    )
    return "\n".join(lines)


def _published(made: PredictionSpec, method: Method) -> list[str]:
    names = [scale.name for scale in method.scales]
    watched = ", ".join(names[i] for i in method.disclosure.columns) or "none"
    kept = ", ".join(made.keep) or "none"
    match made.matching:
        case "nearest":
            matching = (
                f"nearest unused synthetic row: exact assignment up to {MATCHED_ROWS:,} records, else in "
                f"blocks of at most {NEIGHBOURS} neighbours within {BLOCK_ROWS:,} records"
            )
        case _:
            matching = "synthetic row that stands at the same place, whichever it is"
    alpha = (
        f"at most {method.most_alpha:.4g} (closed form for independent uniform columns); lowered until the "
        "measured disclosure is within the bound, or nothing is published"
        if method.alpha is None
        else f"{method.alpha:g}; nothing is published if the measured disclosure exceeds the bound"
    )
    return [
        "Charge      none: no differential privacy, so no budget covers this release",
        f"Original    {kept} (columns released as they are, in another order of the records)",
        f"Disclosure  looked at in {watched}",
        f"Inputs      {made.first_stage}, mixed with the {matching}",
        f"Alpha       {alpha}",
        f"Regression  {_regression(made, method)}",
    ]


def _regression(made: PredictionSpec, method: Method) -> str:
    regression = method.regression
    if regression.hook is not None:
        return regression.hook
    text = f"kernel ridge ({regression.kernel} kernel), {made.regression.estimator}"
    if regression.estimator is None:
        text += (
            f": exact up to {EXACT_ROWS:,} records, averages of groups of {regression.group_rows:,} up to "
            f"{DISTRIBUTED_ROWS:,}, then Nystroem with {regression.landmarks:,} landmarks"
        )
    return text


def _private(plan: TwoStagePlan, noise: Charge) -> list[str]:
    products = "measured" if noise.product else "those of the released model"
    return [
        f"Charge      epsilon {upwards(plan.epsilon)} at delta {upwards(plan.delta)} (add/remove adjacency)",
        "Original    nothing: alpha is 0 and every column is synthesised",
        f"Marginals   {', '.join(f'{c.scale.name} ({c.cells})' for c in plan.columns)}: noise {noise.marginal:.4g} "
        "per cell",
        f"Ranks       noise {noise.correlation:.4g} on the sum of products of each pair of columns",
        f"Regression  ridge on {2 * plan.frequencies} random Fourier features; noise {noise.cross:.4g} on each "
        f"cross product; second moments: {products}",
        f"Records     {plan.spec.prediction.records:,}",
    ]
