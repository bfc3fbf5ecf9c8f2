"""``dpdist ledger report`` and ``dpdist ledger metrics``: the ledger for those who watch it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpdist.cli.ledger import open_ledger
from dpdist.cli.shared import DEFAULT_LEDGER, LedgerUrl, say
from dpdist.errors import DpdistError, LedgerError, SpecError
from dpdist.privacy.formatting import number_of

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer


def report(
    page: Annotated[Path, typer.Argument(metavar="PAGE", help="HTML file to write or replace.")],
    dataset: Annotated[str | None, typer.Option(help="One data set only; default: all.")] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Write a page of what each data set has spent.

    It says when, and under which guarantee, and works offline.
    """
    from dpdist.evaluation.ledger_report import ledger_page
    from dpdist.evaluation.page.files import write_private
    from dpdist.ledger.statement import ledger_rows

    with open_ledger(ledger) as opened:
        rows, name = ledger_rows(opened, dataset), opened.database.name
    text = ledger_page(rows, ledger=name, at=datetime.now(UTC).isoformat())
    write_private(page, text.encode(), advice="choose another file")
    say(f"{page}: {number_of(len(rows), 'data set')}")
    damaged = [row["error"] for row in rows if "error" in row]
    if damaged:
        raise LedgerError("\n".join(damaged))


def metrics(
    output: Annotated[
        Path | None, typer.Option(help="Write them to a file, for a collector of text files; default: print them.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve them at /metrics until the program is ended.")
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Print the state of the ledger for Prometheus.

    What is left, open and released; nothing in it depends on a record.
    """
    from dpdist.evaluation.page.files import write_private

    if output is not None and listen is not None:
        raise SpecError("dpdist ledger metrics: give --output or --listen, not both")
    if listen is not None:
        with server(listen, ledger) as serving:
            say(f"metrics of the ledger at http://{listen.rpartition(':')[0]}:{serving.server_port}/metrics", err=True)
            serving.serve_forever()
    elif output is not None:
        write_private(output, read(ledger).encode(), advice="choose another file")
        output.chmod(0o644)  # a collector is another user
    else:
        say(read(ledger), nl=False)


def read(ledger: str) -> str:
    """The metrics of a ledger; where it cannot be read, they say so."""
    from dpdist.ledger.statement import exposition, ledger_rows

    try:
        with open_ledger(ledger) as opened:
            return exposition(ledger_rows(opened))
    except DpdistError as error:
        say(f"dpdist: {error}", err=True)
        return exposition(None)


def server(listen: str, ledger: str) -> ThreadingHTTPServer:
    """A server of the metrics of a ledger, not yet serving. Raises SpecError: this machine cannot listen there."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from dpdist.ledger.statement import CONTENT_TYPE

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.split("?")[0] == "/metrics"
            body = read(ledger).encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet: a collector asks every few seconds."""

    host, _, port = listen.rpartition(":")
    try:
        if not host:
            raise ValueError
        return ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except (OSError, OverflowError, ValueError):
        raise SpecError("--listen: expected a free address of this machine, such as 127.0.0.1:9464") from None
