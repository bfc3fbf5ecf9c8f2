"""Structured logs: one JSON object a line, with a stage, an attempt and a duration, never a value.

Only the fields of `FIELDS` and the fixed text of a message are written, so that no value of a table reaches a log.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import IO, Any

FIELDS = ("stage", "task", "attempt", "release", "dataset", "partitions", "files", "seconds", "error")
"""The fields that a message may have in addition to its text."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": str(record.msg),
        }
        entry.update({name: getattr(record, name) for name in FIELDS if hasattr(record, name)})
        if record.exc_info and record.exc_info[0]:
            entry["error"] = record.exc_info[0].__name__
        return json.dumps(entry)


def configure(form: str | None = None, *, stream: IO[str] | None = None) -> None:
    """Log to a stream in the `form` ``json``, or not at all; default: the variable ``DPDIST_LOG``."""
    form = os.environ.get("DPDIST_LOG", "") if form is None else form
    log = logging.getLogger("dpdist")
    for handler in [handler for handler in log.handlers if isinstance(handler.formatter, JsonFormatter)]:
        log.removeHandler(handler)
    if form != "json":
        return
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def task_log(form: str) -> Any:
    """A plugin of Dask workers that logs stage and seconds of annotated tasks; `form`: default of ``DPDIST_LOG``."""
    from dask.utils import key_split
    from distributed import Worker, WorkerPlugin

    ends = {"memory": "task finished", "error": "task failed"}

    class TaskLog(WorkerPlugin):  # type: ignore[misc]
        name = "dpdist-tasklog"
        idempotent = True

        def setup(self, worker: Worker) -> None:
            self._worker = worker
            configure(os.environ.get("DPDIST_LOG") or form)

        def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
            if start not in ("executing", "long-running") or finish not in ends:
                return
            task = self._worker.state.tasks.get(key)
            attempt = ((task.annotations if task else None) or {}).get("attempt")
            if attempt is None:
                return
            seconds = sum(span["stop"] - span["start"] for span in task.startstops if span["action"] == "compute")
            extra = {"task": key_split(key), "attempt": attempt, "seconds": round(seconds, 3)}
            logging.getLogger("dpdist").info(ends[finish], extra=extra)

    return TaskLog()
