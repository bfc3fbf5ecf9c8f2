"""How long a graph of tasks takes on a Dask cluster: a small discrete simulation.

What is modelled is what was seen to matter:

- workers run one task at a time; on one machine they share the cores with the driver;
- the scheduler is one process: every task takes it `Costs.task` seconds, whoever computes it;
- a pass ends in a tree of sums: its tasks wait for those below, fetch all summaries but one, and add them;
- some work is the driver's alone.

What is not: storage that is slower for many readers, a network that is shared, workers that die.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

_DRIVER = 0.5  # of a core: what the driver, with its scheduler, takes of a machine that it shares with the workers

LIMITS = ("workers", "scheduler", "sums", "driver", "start")
"""What a run can be limited by."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Measured costs, in seconds on one core; `tests/benchmarks/bench_sizing.py` measures them."""

    start: float  # of a run: process, plan, ledger, charge
    worker: float  # of a worker process that the run starts and ends
    stage: float  # of a stage, however small: graph, client, progress
    task: float  # of a task, in the scheduler and the client
    byte: float  # of a byte that goes from one worker to another, and of adding it
    read: float  # of reading, checking, encoding and splitting a value
    increment: float  # of adding a record to the table of one block of attributes
    table: float  # of counting a record in the table of one attribute
    cell: float  # of a cell of these tables, in the driver: noise and estimation
    key: float  # of the key of a seed: made and sorted
    candidate: float  # of a value of a candidate: made and tested
    write: float  # of a value of a released record

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Costs:
        """Costs from a JSON object with all of them; ValueError where one is missing or is not a positive number."""
        names = {field.name for field in fields(cls)}
        if set(tree) != names:
            raise ValueError(f"expected {', '.join(sorted(names))}")
        if not all(isinstance(value, int | float) and 0 <= value < math.inf for value in tree.values()):
            raise ValueError("expected seconds, 0 or more")
        return cls(**tree)

    def to_json(self) -> dict[str, float]:
        """The costs as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Load:
    """A stage: equal tasks, a tree over their summaries if there are any, and work of the driver."""

    name: str
    tasks: int
    seconds: float  # of each task, on one core
    summary: int = 0  # bytes of a task's summary; 0 for no tree
    fan_in: int = 8  # summaries that are added at a time
    driver: float = 0.0  # seconds in the driver, after the tasks
    spread: int = 0  # bytes that every worker must have before it begins, passed on from worker to worker


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run takes."""

    workers: int
    seconds: float
    stages: dict[str, float]  # seconds of each stage
    limit: str  # what would have to be quicker, of `LIMITS`


def simulate(loads: Sequence[Load], costs: Costs, *, workers: int, cores: int | None = None) -> Prediction:
    """Run the stages one after another on so many worker processes. `cores` are shared by them, for one machine that
    also starts them; None where each has its own and runs already.
    """
    starting = costs.start + (costs.worker * slowdown(workers, cores) if cores else 0.0)
    spent = dict.fromkeys(LIMITS, 0.0)
    spent["start"] = starting
    stages: dict[str, float] = {}
    for load in loads:
        spread = load.spread * costs.byte * math.ceil(math.log2(workers + 1)) if load.spread else 0.0
        slower = slowdown(min(workers, max(load.tasks, 1)), cores) if cores else 1.0
        mapped, done = _map(load, costs, workers, slower)
        summed = _tree(load, costs, done, workers, slower) if load.summary else mapped
        scheduled = load.tasks * costs.task
        spent["scheduler"] += min(scheduled, mapped)
        spent["workers"] += max(0.0, mapped - scheduled)
        spent["sums"] += spread + summed - mapped
        driven = load.driver + (costs.stage if load.tasks else 0.0)
        spent["driver"] += driven
        stages[load.name] = stages.get(load.name, 0.0) + spread + summed + driven
    return Prediction(
        workers=workers,
        seconds=starting + sum(stages.values()),
        stages=stages,
        limit=max(spent, key=spent.__getitem__),
    )


def slowdown(workers: int, cores: int) -> float:
    """How much longer a task takes where the workers and the driver share the cores of one machine."""
    return max(1.0, (workers + _DRIVER) / cores)


def _map(load: Load, costs: Costs, workers: int, slower: float) -> tuple[float, list[float]]:
    """When the tasks of a stage end; each begins once the scheduler has seen it and a worker is free."""
    free = [0.0] * min(workers, load.tasks)
    done = []
    for number in range(load.tasks):
        begin = max(heapq.heappop(free), (number + 1) * costs.task)
        end = begin + load.seconds * slower
        heapq.heappush(free, end)
        done.append(end)
    return max(done, default=0.0), done


def _tree(load: Load, costs: Costs, done: list[float], workers: int, slower: float) -> float:
    """When the last sum is there. Sums begin as soon as what they add is there, on whatever worker is free."""
    free = [0.0] * workers
    while len(done) > 1:
        groups = [done[i : i + load.fan_in] for i in range(0, len(done), load.fan_in)]
        done = []
        for group in groups:
            begin = max(max(group), heapq.heappop(free)) + costs.task
            end = begin + (len(group) - 1) * load.summary * costs.byte * slower
            heapq.heappush(free, end)
            done.append(end)
    return done[0]
