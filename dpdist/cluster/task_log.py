"""Structured logs of Dask workers: a line for each task of an attempt, with its stage and seconds, never a value."""

from __future__ import annotations

import logging
import os
from typing import Any

from dask.utils import key_split
from distributed import Worker, WorkerPlugin

from dpdist.cluster.logs import configure

log = logging.getLogger("dpdist")

_ENDS = {"memory": "task finished", "error": "task failed"}


class TaskLog(WorkerPlugin):  # type: ignore[misc]
    """Logs the tasks that carry the annotation ``attempt``; the task's name, error text and result are left out. `form`
    holds if the worker's own ``DPDIST_LOG`` is not set.
    """

    name = "dpdist-tasklog"
    idempotent = True

    def __init__(self, form: str) -> None:
        self._form = form

    def setup(self, worker: Worker) -> None:
        """Called by Dask in each worker, including those that join later."""
        self._worker = worker
        configure(os.environ.get("DPDIST_LOG") or self._form)

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Called by Dask as a task goes from one state to the next."""
        if start not in ("executing", "long-running") or finish not in _ENDS:
            return
        task = self._worker.state.tasks.get(key)
        attempt = ((task.annotations if task else None) or {}).get("attempt")
        if attempt is None:
            return
        seconds = sum(span["stop"] - span["start"] for span in task.startstops if span["action"] == "compute")
        log.info(_ENDS[finish], extra={"task": key_split(key), "attempt": attempt, "seconds": round(seconds, 3)})
