"""What a run tells the Prefect server, of public facts only, and what it takes from there, storage blocks.

A run has a name and tags, makes artifacts, and sends events from which automations can start. An event names the data
set and the release, and says what the ledger and the manifest say. Prefect adds the flow run and the deployment.
`deploy/automations.yaml` has an automation for each event.

A block holds endpoint and credentials of the object storage where they are not in the worker's environment. Prefect
keeps it encrypted. A run reads it when it begins, and passes it to this process and to the workers of an embedded
cluster through the variables that every S3 client reads. Workers of a running cluster have their own.
"""

from __future__ import annotations

import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from griffe import Docstring, DocstringSectionKind, Parser, parse
from prefect import get_client, runtime
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.events import emit_event

from dpdist.errors import DpdistError, ResourceError, SpecError
from dpdist.evaluation.ledger_report import left_of
from dpdist.ledger.tables import OPEN as OPEN_STATES
from dpdist.lifecycle.history import live_attempt
from dpdist.privacy.formatting import downwards

if TYPE_CHECKING:
    from dpdist.families.base.plan import Plan
    from dpdist.lifecycle.publication import Outcome
    from dpdist.spec.release import ReleaseSpec

BLOCK = "DPDIST_STORAGE_BLOCK"
"""Environment variable of a worker: a block of prefect-aws, ``aws-credentials/NAME`` or ``minio-credentials/NAME``."""

PAGES = "DPDIST_PAGES"
"""Environment variable of a worker: the place for pages, a folder or a prefix of a confidential bucket (``s3://…``);
default: the working directory.
"""

_INTERVAL = 1.0

Function = TypeVar("Function", bound=Callable[..., Any])


def described(function: Function) -> Function:
    """Say in a docstring of numpydoc, in Google's style too, what each parameter is: Prefect's forms show that."""
    text = inspect.getdoc(function) or ""
    for section in parse(Docstring(text), Parser.numpy):
        if section.kind is DocstringSectionKind.parameters:
            said = (f"    {one.name}: {' '.join(one.description.split())}" for one in section.value)
            function.__doc__ = "\n".join([text, "", "Args:", *said])
    return function


def artifact_key(*parts: str) -> str:
    """A key as Prefect accepts it: lower-case letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")


def inside(path: str, variable: str, refusal: str) -> Path:
    """A path in the folder that an environment variable of the worker names; default: the working directory. Raises
    SpecError: it leaves the folder.
    """
    folder = Path(os.environ.get(variable, ".")).resolve()
    whole = (folder / path).resolve()
    if not whole.is_relative_to(folder):
        raise SpecError(f"{refusal}: give one below it, or set {variable}")
    return whole


def page_address(path: str) -> str:
    """Where a page is written, by its path in the place for pages. Raises SpecError: it leaves that place."""
    refusal = "the path of the page leaves the folder of pages"
    place = os.environ.get(PAGES, ".")
    if not place.startswith("s3://"):
        return str(inside(path, PAGES, refusal))
    parts = path.split("/")
    if "://" in path or any(part in ("", ".", "..") for part in parts):
        raise SpecError(f"{refusal}: give one below it, or set {PAGES}")
    return f"{place.rstrip('/')}/{path}"


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """The facts of a plan as the rows of a table."""
    return [{"item": fact.title.lower(), "value": fact.sentence} for fact in plan.facts()]


def show_plan(plan: Plan) -> None:
    """The plan as a table; no record is read."""
    spec = plan.spec
    key = artifact_key(spec.dataset, spec.name, "plan")
    create_table_artifact(table=plan_rows(plan), key=key, description="Plan")


def show_outcome(outcome: Outcome, *, dataset: str, release: str) -> None:
    """A link to the release, and its guarantee and the budget left in words."""
    create_link_artifact(
        link=outcome.uri, link_text=outcome.uri, key=artifact_key(dataset, release, "link"), description="Release"
    )
    create_markdown_artifact(
        markdown=(
            f"# {release}\n\n`{outcome.uri}`: {outcome.counted}, attempt `{outcome.attempt}`\n\n"
            f"**Guarantee.** {outcome.guarantee}\n\n**Budget.** {outcome.budget}\n"
        ),
        key=artifact_key(dataset, release, "guarantee"),
        description="Guarantee",
    )


class StepProgress:
    """A progress artifact of one step: the stage and its percentage in tens, from which no number can be computed back.

    Stages report from threads that must not wait for a server, so a thread of its own sends the newest state.
    """

    def __init__(self, key: str, step: str) -> None:
        self._step, self._news, self._ended = step, threading.Event(), False
        self._latest = (0.0, step)
        self._artifact: UUID = create_progress_artifact(0.0, key=key, description=step)  # type: ignore[assignment]
        self._thread = threading.Thread(target=self._send, name="progress", daemon=True)

    def __enter__(self) -> StepProgress:
        self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._latest = (100.0, self._step)
        self._ended = True
        self._news.set()
        self._thread.join(timeout=10)

    def report(self, stage: str, done: int, total: int) -> None:
        """Note how far a stage is."""
        self._latest = (10.0 * (10 * done // max(total, 1)), stage)
        self._news.set()

    def _send(self) -> None:
        sent = (0.0, self._step)
        pause = threading.Event()
        while not self._ended:
            self._news.wait()
            self._news.clear()
            if self._latest != sent:
                sent = self._latest
                self._show(sent)
            if not self._ended:
                pause.wait(_INTERVAL)
        if self._latest != sent:
            self._show(self._latest)

    def _show(self, news: tuple[float, str]) -> None:
        with suppress(Exception):  # a release does not depend on its progress being shown
            update_progress_artifact(self._artifact, news[0], description=news[1])


@contextmanager
def storage_of_block() -> Iterator[None]:
    """Use the block that the worker names, if any, for the object storage of this process while the context lasts.
    Raises SpecError: there is no such block, it is of another kind, or it holds no credentials.
    """
    name = os.environ.get(BLOCK)
    if not name:
        yield
        return
    variables = _variables(name)
    before = {variable: os.environ.get(variable) for variable in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _variables(name: str) -> dict[str, str | None]:
    """The contents of a block as environment variables; None for those that must be unset."""
    kind, _, _ = name.partition("/")
    try:
        block = _kinds()[kind].load(name.removeprefix(f"{kind}/"), _sync=True)
        credentials = block.get_boto3_session().get_credentials()
        keys = credentials and credentials.get_frozen_credentials()
    except KeyError:
        raise SpecError(f"{BLOCK}: expected aws-credentials/NAME or minio-credentials/NAME") from None
    except ValueError:
        raise SpecError(f"{BLOCK}: Prefect has no usable block {name!r}: make it, or correct the name") from None
    except Exception as error:  # its text may hold what the block holds
        raise SpecError(f"{BLOCK}: the block {name!r} gives no credentials ({type(error).__name__})") from None
    if keys is None:
        raise SpecError(f"{BLOCK}: the block {name!r} holds no credentials")
    client = block.aws_client_parameters
    bundle = client.verify_cert_path
    found = {
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token,
        "AWS_PROFILE": None,
        "AWS_ENDPOINT_URL": client.endpoint_url,
        "AWS_REGION": block.region_name,
        "AWS_DEFAULT_REGION": block.region_name,
        "AWS_CA_BUNDLE": None if bundle is None else str(bundle),
    }
    return {
        name: value
        for name, value in found.items()
        if value is not None or name in ("AWS_SESSION_TOKEN", "AWS_PROFILE")
    }


def _kinds() -> dict[str, Any]:
    from prefect_aws import AwsCredentials, MinIOCredentials

    return {kind.get_block_type_slug(): kind for kind in (AwsCredentials, MinIOCredentials)}


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


RELEASED: Final = "dpdist.release.published"
REFUSED: Final = "dpdist.release.refused"
LEFT_OPEN: Final = "dpdist.attempt.left-open"
BUDGET_LOW: Final = "dpdist.budget.low"


def name_run(name: str, *tags: str) -> None:
    """Name the flow run that runs now, and add tags to those that it has."""
    run = runtime.flow_run
    with suppress(Exception), get_client(sync_client=True) as client:  # a run does not depend on its name being shown
        client.update_flow_run(UUID(run.id), name=name, tags=sorted({*run.tags, *tags}))


@contextmanager
def told(spec: ReleaseSpec) -> Iterator[None]:
    """Name a run of a release, and send an event if it ends with an error: that the release was refused, and that its
    attempt is left open.
    """
    name_run(f"{spec.dataset}/{spec.name}", f"dataset:{spec.dataset}", f"release:{spec.name}", f"kind:{spec.kind}")
    try:
        yield
    except Exception as error:
        known = isinstance(error, DpdistError) and not isinstance(error, ResourceError)
        if known:
            tell(REFUSED, spec.dataset, spec.name, error=type(error).__name__)
        with suppress(DpdistError):  # the ledger may be what cannot be reached
            attempt = live_attempt(spec)
            if attempt is not None and attempt.state in OPEN_STATES:
                tell(
                    LEFT_OPEN, spec.dataset, spec.name, attempt=attempt.id, error=type(error).__name__ if known else ""
                )
        raise


def tell_state(rows: Sequence[Mapping[str, Any]], *, budget_below: float, open_for: timedelta) -> None:
    """Send the events of what `dpdist.ledger.statement.ledger_rows` found: budgets with less than a share left,
    and attempts that are open for longer than a time.
    """
    now = datetime.now(UTC)
    for row in rows:
        if "error" in row:
            continue
        left = left_of(row)
        if left < budget_below:
            tell(BUDGET_LOW, row["dataset"], left=f"{downwards(round(100 * left, 4))} %" if left > 0 else "none")
        for charge in row["charges"]:
            if charge["state"] in OPEN_STATES and now - datetime.fromisoformat(charge["created"]) > open_for:
                begun = charge["created"]
                tell(LEFT_OPEN, row["dataset"], charge["release"], attempt=charge["attempt"], begun=begun)


def tell(event: str, dataset: str, release: str | None = None, **payload: str) -> None:
    """Send an event about a data set, or about a release of it."""
    names = [dataset] if release is None else [dataset, release]
    kind = "dataset" if release is None else "release"
    resource = {
        "prefect.resource.id": ".".join(["dpdist", kind, *map(artifact_key, names)]),
        "prefect.resource.name": "/".join(names),
        "dpdist.dataset": dataset,
    }
    with suppress(Exception):  # a release does not depend on its events
        emit_event(event, resource, payload={"dataset": dataset, "release": release or "", **payload})
