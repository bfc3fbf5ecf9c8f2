"""``dpdist runs``: what runs there were, from the ledger and from the confidential folders they worked in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dpdist.privacy.ledger import Attempt, Ledger
    from dpdist.publish.store import Store

runs_app = typer.Typer(help="Runs of releases, finished or not.", no_args_is_help=True, rich_markup_mode=None)

RUN_RECORD = "run-record.json"
LedgerUrl = Annotated[str, typer.Option("--ledger", envvar="DPDIST_LEDGER", help="SQLAlchemy URL of the ledger.")]
Work = Annotated[str, typer.Option("--work", help="The confidential folder of the spec (`work`).")]
Endpoint = Annotated[str | None, typer.Option(help="Endpoint of an S3-compatible store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_LEDGER = "sqlite:///dpdist-ledger.db"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One attempt at a release.

    Attributes
    ----------
    dataset, release, attempt, state, created : str
        From the ledger.
    stored : tuple of str
        The stage results in the work folder: where a resume would begin.
    """

    dataset: str
    release: str
    attempt: str
    state: str
    created: str
    stored: tuple[str, ...]


def list_runs(ledger: Ledger, work: Store) -> list[RunSummary]:
    """All attempts in the ledger, oldest first, with what they left in the work folder.

    Raises
    ------
    LedgerError, DataNotFound, StorageUnavailable
        The ledger or the folder cannot be read.
    """
    stored: dict[str, list[str]] = {}
    for name in work.names():
        attempt, _, rest = name.partition("/")
        stored.setdefault(attempt, []).append(rest)
    return sorted(
        (
            RunSummary(
                dataset=dataset.name,
                release=attempt.release,
                attempt=attempt.id,
                state=attempt.state,
                created=attempt.created,
                stored=tuple(stored.get(attempt.id, ())),
            )
            for dataset in ledger.datasets()
            for attempt in ledger.show(dataset.name).attempts
        ),
        key=lambda run: run.created,
    )


def run_record(work: Store, attempt: Attempt) -> dict[str, Any]:
    """The run record of an attempt: confidential, it holds private counts.

    Raises
    ------
    DataNotFound
        The folder does not hold it: the run is not finished, or worked elsewhere.
    """
    record: dict[str, Any] = json.loads((work / attempt.id).read_bytes(RUN_RECORD))
    return record


@contextmanager
def _opened(ledger: str, work: str, endpoint_url: str | None) -> Iterator[tuple[Ledger, Store]]:
    from dpdist.privacy.ledger import Ledger
    from dpdist.publish.store import Store

    opened = Ledger.open(ledger, create=False)
    try:
        yield opened, Store(work, {"endpoint_url": endpoint_url} if endpoint_url else None)
    finally:
        opened.close()


@runs_app.command("list")
def runs_list(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    work: Work = ".dpdist",
    endpoint_url: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """List all attempts with their state and what they stored."""
    with _opened(ledger, work, endpoint_url) as (opened, folder):
        runs = list_runs(opened, folder)
    if as_json:
        typer.echo(json.dumps([asdict(run) for run in runs], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("data set", "release", "attempt", "state", "since", "stored")
    for run in runs:
        table.add_row(run.dataset, run.release, run.attempt, run.state, run.created, ", ".join(run.stored))
    Console().print(table)


@runs_app.command("show")
def runs_show(
    attempt: Annotated[str, typer.Argument(help="Id of the attempt.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
    work: Work = ".dpdist",
    endpoint_url: Endpoint = None,
) -> None:
    """Print the run record of an attempt. Confidential: it holds private counts."""
    with _opened(ledger, work, endpoint_url) as (opened, folder):
        record = run_record(folder, opened.attempt(attempt))
    typer.echo(json.dumps(record, indent=2))
