"""What a run tells the Prefect server of itself: its name and tags, and events from which automations can start.

An event names the data set and the release, and says what the ledger and the manifest say. Prefect adds the flow run
and the deployment. `deploy/automations.yaml` has an automation for each event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from prefect import get_client, runtime
from prefect.events import emit_event

from dpdist.errors import DpdistError, ResourceError
from dpdist.evaluation.ledger_report import left_of
from dpdist.ledger.tables import OPEN as OPEN_STATES
from dpdist.lifecycle.history import live_attempt
from dpdist.privacy.formatting import downwards

from .server import artifact_key

if TYPE_CHECKING:
    from dpdist.spec.release import ReleaseSpec

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
