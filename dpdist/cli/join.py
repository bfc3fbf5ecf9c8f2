"""``dpdist join``: a client of a federated release answers the coordinator by files, and opens no port."""

from __future__ import annotations

from typing import Annotated

import typer

from dpdist.cli.shared import Settings, SpecPath, loaded, say
from dpdist.errors import RoundFailed, SpecError
from dpdist.privacy.formatting import folded


def join(
    spec: SpecPath,
    client: Annotated[str, typer.Option(help="Name of the client, as the spec has it.")],
    settings: Settings = None,
    accept: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Answer what was shown for this spec; without it, show it.")
    ] = None,
    patience: Annotated[float, typer.Option(min=1, help="Seconds to wait for the next call.")] = 3600,
) -> None:
    """Take part in a federated release by its mailbox: show what is asked, and with --accept answer it.

    Reads this client's records alone, charges its own ledger, and runs no code of others.
    """
    from dpdist.families.base.registry import family_of, make_plan
    from dpdist.federated.mailbox import MailboxClient
    from dpdist.federated.spec import FederatedRelease

    read = loaded(spec, settings)
    session = family_of(read).session
    if not isinstance(read, FederatedRelease) or session is None:
        raise SpecError("join: expected a synthesis or histograms with `federated.mailbox`")
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
