"""``dpdist runs``: what runs there were, finished or not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from dpdist.cli.shared import (
    DEFAULT_LEDGER,
    AsJson,
    Endpoint,
    LedgerUrl,
    Settings,
    SpecPath,
    loaded,
    say,
    show_json,
    storage_options,
)
from dpdist.errors import RoundFailed, SpecError
from dpdist.privacy.formatting import folded, number_of

runs_app = typer.Typer(help="Runs of releases, finished or not.", no_args_is_help=True, rich_markup_mode=None)

Work = Annotated[str, typer.Option("--work", help="The confidential folder of the spec (`work`).")]


@runs_app.command("list")
def runs_list(
    ledger: LedgerUrl = DEFAULT_LEDGER, work: Work = ".dpdist", endpoint_url: Endpoint = None, as_json: AsJson = False
) -> None:
    """List all attempts with their state and what they stored."""
    from dpdist.lifecycle.history import list_runs, opened

    with opened(ledger, work, storage_options(endpoint_url)) as (found, folder):
        runs = list_runs(found, folder)
    if as_json:
        show_json([asdict(run) for run in runs])
        return
    from rich.console import Console
    from rich.table import Column, Table

    names = ("data set", "release", "attempt", "state", "since", "stored")
    table = Table(*(Column(name, overflow="fold") for name in names))
    for run in runs:
        table.add_row(run.dataset, run.release, run.attempt[:8], run.state, run.created[:10], "\n".join(run.stored))
    Console().print(table)


@runs_app.command("clean")
def runs_clean(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    work: Work = ".dpdist",
    output: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="RELEASE", help="Folder or s3:// prefix of a release; may be repeated."),
    ] = None,
    endpoint_url: Endpoint = None,
) -> None:
    """Delete what killed runs left.

    Probes, unfinished files, claims, parts and keys of attempts that were given up.
    """
    from dpdist.lifecycle.history import opened, sweep_output, sweep_store
    from dpdist.storage.local import sweep_reports
    from dpdist.storage.store import Store

    with opened(ledger, work, storage_options(endpoint_url)) as (found, folder):
        swept = sweep_store(folder)
        for place in output or ():
            swept += sweep_output(found, Store(place, storage_options(endpoint_url)))
        found.sweep()
    swept += sweep_reports(older=0)
    for name in swept:
        say(name)
    say(f"{number_of(len(swept), 'file')} deleted")


@runs_app.command("show")
def runs_show(
    attempt: Annotated[str, typer.Argument(help="Id of the attempt, or its beginning.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
    work: Work = ".dpdist",
    endpoint_url: Endpoint = None,
) -> None:
    """Print the run record of an attempt. Confidential: it holds private counts."""
    from dpdist.lifecycle.history import find_attempt, opened, run_record

    with opened(ledger, work, storage_options(endpoint_url)) as (found, folder):
        record = run_record(folder, find_attempt(found, attempt))
    show_json(record)


def join(
    spec: SpecPath,
    client: Annotated[str, typer.Option(help="Name of the client, as the spec has it.")],
    settings: Settings = None,
    accept: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Answer what was shown for this spec; without it, show it.")
    ] = None,
    patience: Annotated[float, typer.Option(min=1, help="Seconds to wait for the next call.")] = 3600,
) -> None:
    """Take part in a federated release by its mailbox.

    Shows what is asked, and with --accept answers it. Reads this client's records alone, charges its own ledger, and
    runs no code of others.
    """
    from dpdist.families.base.registry import family_of, make_plan
    from dpdist.federated.mailbox import MailboxClient
    from dpdist.federated.spec import FederatedRelease

    read = loaded(spec, settings)
    session = family_of(read).session
    if not isinstance(read, FederatedRelease) or session is None:
        raise SpecError("join: expected a spec with `federated.mailbox`")
    member = MailboxClient(read, client, session)
    if accept is None:
        say(f"{folded(make_plan(read).explain())}\nTo join     --accept {read.fingerprint}")
        return
    if accept != read.fingerprint:
        raise SpecError("--accept: the spec is not the one that was shown; look at it again without --accept")
    if not member.attend(patience=patience, told=say):
        raise RoundFailed(
            "the round ended without this client: the coordinator gave it up, or went on once it was lost. Sums "
            "with what it answered before may be published: its charge stays"
        )
    say("committed")
