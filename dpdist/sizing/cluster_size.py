"""How large a cluster a release needs, and how long it takes: from the plan, without a record.

A family says what work its releases have to do (`dpdist.families.base.Family.workload`). What a unit of it costs is
measured (`MEASURED`, or a file of `tests/benchmarks/bench_sizing.py`), and `dpdist.sizing.simulation` lets it run.
Releases of families that do not say are sized by their memory and by one pass over the table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpdist.errors import SpecError
from dpdist.families.base.family import Plan
from dpdist.families.base.registry import family_of
from dpdist.families.base.workload import GIB, Layout, Unit, Work, one_pass
from dpdist.sizing.simulation import Costs, Load, Prediction, simulate

MEASURED = Costs(
    start=2.4,
    worker=0.8,
    stage=0.09,
    task=1.8e-3,
    byte=1.5e-9,
    read=3.9e-9,
    increment=2.8e-9,
    table=4.8e-9,
    cell=6.7e-7,
    key=1.5e-8,
    candidate=2.0e-8,
    write=1.7e-8,
)
"""One core of an AMD EPYC; see docs/benchmarks.md."""

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MEMORY = (1, 2, 4, 8, 16, 32, 64)
"""Sizes that are tried, in workers and in GiB of each."""

WORTH = 0.3
"""Twice as many workers are worth it if they save this share of the time."""

DRIVER = 2
"""GiB of the driver, if it needs no more: the chart's default."""

_WORTH_MEMORY = 0.2  # and twice the memory, if it saves this share: a large index of seeds then takes fewer passes
_REASONABLE = 16  # GiB of a worker that are proposed for speed alone
_FILL = 0.6  # share of a worker's memory that may be filled; Dask spills and pauses above
_PROCESS = 400 << 20  # a worker with its libraries, and its nanny
_NANNY = 128 << 20  # of a pod's memory that the chart keeps from the worker in it
_CODES = 0.25  # share of the workers' memory that codes may take (dpdist.families.base.passes)
_FEWEST_ROWS = 1 << 16
_PARTITION_ROWS = (1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22)


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """What is proposed, and what other sizes would take."""

    rows: int  # declared records
    proposed: Layout
    layouts: tuple[Layout, ...]  # the best of each number of workers
    predictions: tuple[Prediction, ...]  # of these
    whole: bool  # whether all stages are predicted, or one pass over the table only
    # giB that a proposed worker must have; more than `Layout.memory` where no size that is tried suffices
    needed: float
    driver: int  # giB of the process that drives the release
    clients: int  # of a federated release, each with a cluster's worker of its own that holds its records; 0 for others

    @property
    def fits(self) -> bool:
        """Whether the proposed workers have the memory they need."""
        return self.needed <= self.proposed.memory

    @property
    def seconds(self) -> float:
        """Predicted for what is proposed."""
        return next(p.seconds for p in self.predictions if p.workers == self.proposed.workers)

    @property
    def ends(self) -> Prediction | None:
        """The first size at which twice as many workers save less than a tenth; None if none was tried."""
        pairs = zip(self.predictions, self.predictions[1:], strict=False)
        return next((now for now, twice in pairs if twice.seconds > 0.9 * now.seconds), None)

    @property
    def helm(self) -> str:
        """The matching setting of the chart."""
        layout = self.proposed
        driver = f",driver.memory={self.driver}Gi" if self.driver > DRIVER else ""
        workers = 0 if self.clients else layout.workers  # those of clients are groups, with the memory of these
        return (
            f"--set dask.workers.replicas={workers},dask.workers.memory={layout.memory}Gi,"
            f"release.settings.cluster.partitions={layout.partitions}{driver}"
        )

    def to_json(self) -> dict[str, Any]:
        """The sizing as a JSON object."""
        sizes = zip(self.layouts, self.predictions, strict=True)
        return {
            "rows": self.rows,
            "workers": self.proposed.workers,
            "memory_gib": self.proposed.memory,
            "partitions": self.proposed.partitions,
            "clients": self.clients,
            "driver_gib": self.driver,
            "needed_gib": round(self.needed, 1),
            "fits": self.fits,
            "seconds": round(self.seconds, 1),
            "all_stages": self.whole,
            "ends_at": self.ends.workers if self.ends else None,
            "helm": self.helm,
            "sizes": [
                {
                    "workers": layout.workers,
                    "memory_gib": layout.memory,
                    "partitions": layout.partitions,
                    "seconds": round(predicted.seconds, 1),
                    "limit": predicted.limit,
                    "stages": {name: round(seconds, 2) for name, seconds in predicted.stages.items()},
                }
                for layout, predicted in sizes
            ],
        }

    def explain(self) -> str:
        """The sizing for people."""
        layout, least = self.proposed, min(p.seconds * p.workers for p in self.predictions)
        what = "" if self.whole else " for one pass over the table (the rest is not predicted for this kind)"
        workers, partitions = layout.parts
        one = f"{self.clients} clients with a worker" if self.clients else workers
        each = " of each" if self.clients else ""
        lines = [
            f"Cluster     {one} of {layout.memory} GiB, {partitions}{each} of about "
            f"{self.rows / layout.partitions:,.0f} of {self.rows:,} records: about {_duration(self.seconds)}{what}",
            "",
            "    workers     GiB  partitions        time  efficiency  limited by",
        ]
        for size, predicted in zip(self.layouts, self.predictions, strict=True):
            efficiency = least / predicted.seconds / predicted.workers
            mark = "->" if size == layout else "  "
            lines.append(
                f"{mark} {size.workers:>8,} {size.memory:>7} {size.partitions:>11,} {_duration(predicted.seconds):>11} "
                f"{efficiency:>11.0%}  {predicted.limit}"
            )
        if self.ends is not None:
            lines.append(
                f"\nBeyond {self.ends.workers} worker{'s' * (self.ends.workers > 1)} it stops scaling: "
                f"twice as many save less than a tenth. Limited by: {self.ends.limit}"
            )
        if not self.fits:
            lines.append(
                f"\nTOO LARGE   each worker needs about {self.needed:,.0f} GiB, and {MEMORY[-1]} is the most that is "
                "tried: the release would run out of memory. Release fewer records at a time, or give larger workers "
                "yourself"
            )
        lines += [
            "Workers are taken to run already; storage and network to be as quick for many of them as for one.",
            "",
            "Helm",
            self.helm,
        ]
        return "\n".join(lines)


def size_cluster(plan: Plan, *, costs: Costs = MEASURED) -> Sizing:
    """Propose workers, memory and partitions for the declared size of a table; `costs` is what a unit of work takes on
    your machines.
    """
    rows = plan.spec.data.minimum_records
    clients = len(plan.spec.worker_resources)  # a client's records are read and held by one worker
    tried = [_best(plan, costs, workers) for workers in (WORKERS[:1] if clients else WORKERS)]
    predictions = tuple(predicted for _, predicted in tried)
    chosen = 0
    while chosen + 1 < len(tried) and predictions[chosen + 1].seconds < (1 - WORTH) * predictions[chosen].seconds:
        chosen += 1
    return Sizing(
        rows=rows,
        proposed=tried[chosen][0],
        layouts=tuple(layout for layout, _ in tried),
        predictions=predictions,
        whole=family_of(plan.spec).workload is not None,
        needed=_needed(plan, tried[chosen][0].partitions) / GIB,
        driver=_gib(_PROCESS + plan.resources().get("publisher_bytes", 0) / _FILL, least=DRIVER),
        clients=clients,
    )


def _best(plan: Plan, costs: Costs, workers: int) -> tuple[Layout, Prediction]:
    """The quickest partitions, with the least memory that holds what should be held, and more where it is worth it."""
    rows = plan.spec.data.minimum_records
    fixed = plan.spec.cluster.partitions
    numbers = {fixed} if fixed else {max(1, math.ceil(rows / size)) for size in _PARTITION_ROWS}
    if not fixed:  # whole waves of tasks, so that no worker waits for the last
        numbers |= {math.ceil(number / workers) * workers for number in numbers}
        numbers = {number for number in numbers if rows / number >= _FEWEST_ROWS} or {1}
    made = []
    for partitions in sorted(numbers):
        layout = Layout(workers=workers, memory=worker_memory(plan, workers, partitions), partitions=partitions)
        made.append((layout, predict(plan, layout, costs=costs)))
    layout, predicted = min(made, key=lambda pair: (round(pair[1].seconds, 2), pair[0].memory, pair[0].partitions))
    while 2 * layout.memory <= _REASONABLE:
        twice = replace(layout, memory=2 * layout.memory)
        quicker = predict(plan, twice, costs=costs)
        if quicker.seconds > (1 - _WORTH_MEMORY) * predicted.seconds:
            break
        layout, predicted = twice, quicker
    return layout, predicted


def worker_memory(plan: Plan, workers: int, partitions: int) -> int:
    """GiB of each worker: what a task takes, and the codes if they fit a reasonable worker."""
    least = min(_gib(_needed(plan, partitions)), MEMORY[-1])
    held = _spread(plan)
    holding = (
        size for size in MEMORY if least <= size <= _REASONABLE and held <= _CODES * workers * (size * GIB - _NANNY)
    )
    return next(holding, least)


def _spread(plan: Plan) -> int:
    """Bytes that all workers hold together."""
    needs = plan.resources()
    return int(needs.get("encoded_bytes", needs.get("held_bytes", 0)))


def _needed(plan: Plan, partitions: int) -> float:
    """Bytes of a worker's memory: what a task takes, and what every worker holds whole, gathered with a copy."""
    needs = plan.resources()
    task = needs["task_bytes"] + 2 * _spread(plan) / partitions + 2 * needs.get("codes_bytes", 0)
    return float((_PROCESS + task) / _FILL)


def _gib(size: float, *, least: int = MEMORY[0]) -> int:
    """The first power of two of GiB that holds so many bytes."""
    return max(least, 1 << max(0, math.ceil(math.log2(size / GIB))))


def read_costs(path: Path | None) -> Costs:
    """The costs in a file of `tests/benchmarks/bench_sizing.py`; without one those measured here. Raises SpecError: the
    file cannot be read or holds no costs.
    """
    if path is None:
        return MEASURED
    try:
        tree = json.loads(path.read_text())
        return Costs.from_json(tree["costs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"--costs {path}: expected the file that bench_sizing.py --json writes ({type(error).__name__}: {error})"
        ) from None


def predict(plan: Plan, layout: Layout, *, costs: Costs = MEASURED, cores: int | None = None) -> Prediction:
    """What a release would take on a cluster; `cores` if all its workers share those of one machine."""
    workload = family_of(plan.spec).workload or one_pass
    loads = [_load(work, costs) for work in workload(plan, layout)]
    return simulate(loads, costs, workers=layout.workers, cores=cores)


def _load(work: Work, costs: Costs) -> Load:
    """The seconds that a stage takes at some costs."""
    seconds = _seconds(work.units, costs) / max(work.tasks, 1)
    driver = _seconds(work.driver or {}, costs)
    return Load(
        name=work.name,
        tasks=work.tasks,
        seconds=seconds,
        summary=work.summary,
        fan_in=work.fan_in,
        driver=driver,
        spread=work.spread,
    )


def _seconds(units: Mapping[Unit, float], costs: Costs) -> float:
    of = costs.to_json()
    return math.fsum(number * of[unit] for unit, number in units.items())


def _duration(seconds: float) -> str:
    """A time in words, to two figures or so."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
