"""A release as a Prefect flow: one task per step, a plain Dask client inside, nothing private in Prefect.

- Parameters hold a spec by path or inline, never a key or a credential. Each process finds those in its environment, or
  in the block that the environment names (`flows.server`).
- Prefect stores and caches no result (`NO_CACHE`, ``persist_result=False``). The ledger protects the budget: a retry, a
  run after a crash and a second click all continue the open attempt, at no charge.
- Prefect sees the messages of `dpdist.errors`. Of any other exception it sees only the type and place, since the text
  may quote a record.
- Cancellation ends the run like any other exception: the Dask client is closed and the scheduler drops its tasks.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from prefect import flow, get_client, get_run_logger, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

from dpdist.api.calls import opened_run, plan
from dpdist.cluster.logs import configure
from dpdist.errors import DpdistError, ResourceError, SpecError, StorageUnavailable
from dpdist.lifecycle.history import live_attempt
from dpdist.lifecycle.publication import Outcome
from dpdist.lifecycle.series import run_due
from dpdist.spec.reader import load
from dpdist.spec.series import day_of, is_whole
from dpdist.spec.strict_yaml import load_yaml

from .server import (
    RELEASED,
    StepProgress,
    artifact_key,
    described,
    inside,
    show_outcome,
    show_plan,
    storage_of_block,
    tell,
    told,
)

if TYPE_CHECKING:
    from dpdist.lifecycle.run import AttemptMode
    from dpdist.spec.release import ReleaseSpec

DELAYS = (20, 60)
"""Seconds to wait before a run that lost its cluster, its ledger or its storage is continued."""

TASK_DELAY = 10
"""Seconds to wait before a step whose storage did not answer is repeated."""

FOLDER = "DPDIST_SPECS"
"""Environment variable of a worker: the folder that holds the specs; default: the working directory."""

PINNED = "DPDIST_PINNED"
"""Environment variable of a worker: settings that no spec and no run can change, as a JSON object by dotted path."""


Answer = TypeVar("Answer")


@flow(
    name="release",
    description="Release data with a privacy guarantee: charge, compute, publish.",
    persist_result=False,
    validate_parameters=True,
)
@described
def release(
    spec: str | dict[str, Any],
    settings: dict[str, Any] | None = None,
    attempt: Literal["once", "replace"] = "once",
    plan_only: bool = False,
) -> str:
    """Run a release, or continue the one that was interrupted; of a series, all periods that are due.

    Parameters
    ----------
    spec : str or dict
        Path of a spec file in the folder of specs, or a whole spec with its schema.
    settings : dict, optional
        Values that replace those of the spec, by dotted path: ``{"synthesis.records": 1000}``.
    attempt : {"once", "replace"}
        Begin, continue what was interrupted, or end if it is published; or give an interrupted attempt up, whose charge
        stays, and charge a new one.
    plan_only : bool
        Show what the release would guarantee, cost and need; charge nothing and read no record.

    Returns
    -------
    str
        Address of the release, or of all that were due, or what it would guarantee.
    """

    @storage_of_block()
    def run() -> str:
        if not plan_only and is_whole(spec if isinstance(spec, dict) else load_yaml(_path_of(spec)), settings or {}):
            return ", ".join(release_series(spec, settings or {}, attempt))
        loaded = read_spec(spec, settings or {})
        if plan_only:
            planned = plan(loaded)
            show_plan(planned.plan)
            return planned.guarantee
        with told(loaded), one_at_a_time(loaded.dataset):
            return run_with_retries(loaded, attempt).uri

    return without_private_text(run)


def release_series(spec: str | Mapping[str, Any], settings: Mapping[str, Any], attempt: str) -> list[str]:
    """Release the periods of a series that are due when the run was to start; return the addresses of new ones."""
    if attempt != "once":
        raise SpecError("attempt: of a series, choose the period with the setting series.period")

    def run(one: ReleaseSpec) -> str:
        with told(one), one_at_a_time(one.dataset):
            return run_with_retries(one, "once").uri

    day = day_of(settings.get("date"), _day())
    return run_due(day, lambda more: read_spec(spec, {**settings, **more}), run, get_run_logger().info)


def _day() -> date | None:
    """The day for which a run was scheduled, though it may start late."""
    scheduled = runtime.flow_run.scheduled_start_time
    return scheduled.astimezone(UTC).date() if scheduled else None


def _path_of(spec: str) -> Path:
    return inside(spec, FOLDER, "the path of the spec leaves the folder of specs")


def run_with_retries(spec: ReleaseSpec, attempt: AttemptMode) -> Outcome:
    """Run a release, and continue it after a pause when cluster, ledger or storage was lost; repeat nothing else.

    Prefect's own retries would repeat a refusal as well.
    """
    replaces = attempt == "replace" and runtime.flow_run.run_count in (None, 0, 1)

    def live() -> str | None:
        found = live_attempt(spec)
        return None if found is None else found.id

    given_up = cache(live)  # the attempt when the ledger first answered: a new attempt replaces only this one

    def run() -> Outcome:
        return run_steps(spec, "replace" if replaces and live() == given_up() else "once")

    for delay in DELAYS:
        try:
            return run()
        except ResourceError as error:
            get_run_logger().warning("%s. Continued in %s s", error, delay)
        time.sleep(delay)
    return run()


def run_steps(spec: ReleaseSpec, attempt: AttemptMode) -> Outcome:
    """Run the steps of a release, each as a task."""
    logger = get_run_logger()
    reporter: list[StepProgress] = []

    def progress(stage: str, done: int, total: int) -> None:
        if reporter:
            reporter[-1].report(stage, done, total)

    with opened_run(spec, attempt=attempt, progress=progress, announce=logger.info) as run:
        logger.info("release %s of data set %s: %s", spec.name, spec.dataset, "resumed" if run.resumed else "begun")
        show_plan(run.plan)
        before: State | None = None
        for name, step in run.steps.items():
            run_step = as_task(name, step, key=artifact_key(spec.dataset, spec.name, name), reporter=reporter)
            before = run_step(before)
        if run.outcome is None:
            raise SpecError(f"release {spec.name!r} ended without an outcome: run it again, it will be resumed")
        show_outcome(run.outcome, dataset=spec.dataset, release=spec.name)
        words = {"guarantee": run.outcome.guarantee, "budget": run.outcome.budget}
        tell(RELEASED, spec.dataset, spec.name, attempt=run.outcome.attempt, uri=run.outcome.uri, **words)
        return run.outcome


def as_task(
    name: str, step: Callable[[], None], *, key: str, reporter: list[StepProgress]
) -> Callable[[State | None], State]:
    """A step as a task without parameters and without a result. It is called with the state of the step before, which
    Prefect draws as an edge, and gives its own.

    Prefect retries the task only where the storage did not answer. Other errors that can be resumed, such as a lost
    cluster, need a new client (`run_with_retries`).
    """

    @task(
        name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=2,
        retry_delay_seconds=TASK_DELAY,
        retry_condition_fn=_storage_was_away,
    )
    def run_step() -> None:
        without_private_text(report_step)

    def report_step() -> None:
        with StepProgress(key, name) as progress:
            reporter.append(progress)
            try:
                step()
            finally:
                reporter.remove(progress)

    def after(before: State | None) -> State:
        state: State = run_step(return_state=True, wait_for=None if before is None else [before])
        state.result()  # raises what the step raised
        return state

    return after


def _storage_was_away(_task: Any, _run: Any, state: Any) -> bool:
    try:
        state.result()
    except StorageUnavailable:
        return True
    except BaseException:
        return False
    return False


def read_spec(spec: str | Mapping[str, Any], settings: Mapping[str, Any]) -> ReleaseSpec:
    """The spec of a run. Raises SpecError: it is not valid, its path leaves the folder of specs, the worker pins one of
    the settings (`pinned`), or a parameter holds a password or names code to run.
    """
    settings, fixed, day = dict(settings), pinned(), _day()
    for given in (settings, {} if isinstance(spec, str) else spec):
        if has_password(given.get("ledger")):
            raise SpecError(
                "`ledger` holds a password, and Prefect keeps parameters: withdraw it, give the new one to the worker "
                "as DPDIST_LEDGER, and leave it out here"
            )
    for name in settings:
        if any(f"{name}.".startswith(f"{pin}.") or f"{pin}.".startswith(f"{name}.") for pin in fixed):
            raise SpecError(f"`{name}` cannot be set for a run: the worker pins it ({PINNED} or DPDIST_LEDGER)")
    if isinstance(spec, str):
        path = _path_of(spec)
        loaded = load(path, settings | fixed, day=day)
        trusted = load(path, fixed).plugins if loaded.plugins and settings else loaded.plugins
    else:
        loaded, trusted = load(spec, settings | fixed, day=day), frozenset()
    if not loaded.plugins <= trusted:
        raise SpecError(
            "a parameter names code to run (module:function), which would run with the rights of the worker: name it "
            f"in a spec file below {FOLDER}"
        )
    return loaded


def pinned() -> dict[str, Any]:
    """Settings of this worker, which override those of every spec and run. Raises SpecError: the variable holds no JSON
    object.

    Whoever starts a run cannot choose what it is charged to, which cluster it trusts or where the work folder is.
    """
    try:
        fixed = json.loads(os.environ.get(PINNED) or "{}")
    except ValueError:
        fixed = None
    if not isinstance(fixed, dict):
        raise SpecError(f'{PINNED}: expected a JSON object from dotted paths to values, such as {{"work": "s3://…"}}')
    if ledger := os.environ.get("DPDIST_LEDGER"):
        fixed["ledger"] = ledger
    return fixed


def has_password(url: object) -> bool:
    """Whether the URL of a ledger holds a password."""
    try:
        parts = urlsplit(str(url))
    except ValueError:
        return False  # not a URL: opening the ledger says so
    return ":" in parts.netloc.rpartition("@")[0] or "password" in parts.query


@contextmanager
def one_at_a_time(dataset: str) -> Iterator[None]:
    """Let one run of a data set work at a time, over all deployments; the others wait."""
    name = f"dpdist-{artifact_key(dataset)}"
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):  # or another first run has just made it
        client.upsert_global_concurrency_limit_by_name(name, 1)
    with concurrency(name, occupy=1, strict=True, lease_duration=60):
        yield


def without_private_text(work: Callable[[], Answer]) -> Answer:
    """Do some work, and raise its errors without their text, unless the text is known to hold no value.

    Prefect stores the exception of a failed flow with the exceptions that caused it, so these are removed.
    """
    configure()
    try:
        return work()
    except DpdistError as error:
        known = error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames) if "dpdist" in f.filename), "")
        known = DpdistError(f"an unforeseen {type(error).__name__} at {place or 'a library'}; the run can be resumed")
    known.__cause__ = known.__context__ = None
    raise known.with_traceback(None)
