"""``dpdist runs``: what runs there were, finished or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpdist.cli.options import DEFAULT_LEDGER, AsJson, Endpoint, LedgerUrl, moment, storage_options
from dpdist.cli.output import show_json
from dpdist.privacy.formatting import number_of
from dpdist.release.history import find_attempt, list_runs, run_record

if TYPE_CHECKING:
    from dpdist.ledger import Ledger
    from dpdist.storage.store import Store

runs_app = typer.Typer(help="Runs of releases, finished or not.", no_args_is_help=True, rich_markup_mode=None)

Work = Annotated[str, typer.Option("--work", help="The confidential folder of the spec (`work`).")]


@contextmanager
def _opened(ledger: str, work: str, endpoint_url: str | None) -> Iterator[tuple[Ledger, Store]]:
    from dpdist.ledger import Ledger
    from dpdist.storage.store import Store

    opened = Ledger.open(ledger, create=False)
    try:
        yield opened, Store(work, storage_options(endpoint_url))
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
        show_json([asdict(run) for run in runs])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("data set", "release", "attempt", "state", "since", "stored")
    for run in runs:
        table.add_row(run.dataset, run.release, run.attempt[:8], run.state, moment(run.created), ", ".join(run.stored))
    Console().print(table)


@runs_app.command("clean")
def runs_clean(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    work: Work = ".dpdist",
    output: Annotated[
        list[str] | None, typer.Option("--output", help="Folder or s3:// prefix of a release; may be repeated.")
    ] = None,
    endpoint_url: Endpoint = None,
) -> None:
    """Delete what killed runs left: probes, unfinished files, claims, parts and keys of attempts that were given up."""
    from dpdist.release.leftovers import sweep_errors, sweep_output, sweep_store
    from dpdist.storage.store import Store

    with _opened(ledger, work, endpoint_url) as (opened, folder):
        swept = sweep_store(folder)
        for place in output or ():
            swept += sweep_output(opened, Store(place, storage_options(endpoint_url)))
        opened.sweep()
    swept += sweep_errors(older=0)
    for name in swept:
        typer.echo(name)
    typer.echo(f"{number_of(len(swept), 'file')} deleted")


@runs_app.command("show")
def runs_show(
    attempt: Annotated[str, typer.Argument(help="Id of the attempt, or its beginning.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
    work: Work = ".dpdist",
    endpoint_url: Endpoint = None,
) -> None:
    """Print the run record of an attempt. Confidential: it holds private counts."""
    with _opened(ledger, work, endpoint_url) as (opened, folder):
        record = run_record(folder, find_attempt(opened, attempt))
    show_json(record)
