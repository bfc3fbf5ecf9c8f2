"""What a unit of work costs, from releases that were timed on few workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpdist.families.base.family import Plan
from dpdist.families.base.workload import Layout
from dpdist.sizing.cluster_size import MEASURED, predict
from dpdist.sizing.simulation import Costs, slowdown

STAGES = {
    "reading": "read",
    "counting": "increment",
    "learning parameters": "table",
    "estimating": "cell",
    "indexing seeds": "key",
    "synthesising": "candidate",
    "writing": "write",
    "fitting": "cell",
}
"""The cost that each stage measures."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run that was timed."""

    layout: Layout
    cores: int  # that the workers shared
    seconds: float  # of the whole run
    stages: Mapping[str, float]  # seconds of each stage, from the run record


def calibrate(plan: Plan, runs: Sequence[Measured], *, worker: float, stage: float, task: float, byte: float) -> Costs:
    """The costs that explain timed runs of a plan. `worker`, `stage`, `task` and `byte` are measured by themselves (see
    `Costs`). Raises ValueError: there is no run.
    """
    if not runs:
        raise ValueError("expected at least one run")
    costs = replace(MEASURED, worker=worker, stage=stage, task=task, byte=byte)
    for part, name in STAGES.items():
        timed = [run for run in runs if part in run.stages]
        answers = [_unit_cost(plan, run, costs, part, name) for run in timed]
        if answers:
            costs = replace(costs, **{name: math.fsum(answers) / len(answers)})
    rest = math.fsum(
        run.seconds
        - math.fsum(seconds for part, seconds in run.stages.items() if part in STAGES)
        - worker * slowdown(run.layout.workers, run.cores)
        for run in runs
    )
    return replace(costs, start=max(0.0, rest / len(runs)))


def _unit_cost(plan: Plan, run: Measured, costs: Costs, part: str, name: str) -> float:
    """The unit cost at which a stage takes what it took; 0 if it took less than its tasks alone."""

    def excess(value: float) -> float:
        tried = replace(costs, **{name: value})
        return predict(plan, run.layout, costs=tried, cores=run.cores).stages.get(part, 0.0) - run.stages[part]

    if excess(0.0) >= 0 or excess(1.0) <= 0:  # it has no part in this stage, or takes no time
        return 0.0
    low, high = 0.0, 1.0
    while high - low > 1e-4 * high:
        middle = math.sqrt(max(low, 1e-15) * high)
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        if high < 1e-14:
            return 0.0
    return high
