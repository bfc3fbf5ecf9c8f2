"""``dpdist cluster``: what a Dask cluster needs before a release runs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

cluster_app = typer.Typer(help="What a Dask cluster needs for a release.", no_args_is_help=True, rich_markup_mode=None)


@cluster_app.callback()
def _cluster() -> None:
    """Keep the name of the command: a group of one."""


@cluster_app.command("certs")
def cluster_certs(
    folder: Annotated[Path, typer.Argument(help="Folder to write the certificates and their keys to.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until they expire.")] = 365,
) -> None:
    """Make certificates for TLS between scheduler, workers and client."""
    from dpdist.certificates import write_certificates

    write_certificates(folder, days=days)
    typer.echo(f"{folder}: certificates for {days} days; the keys are secret (mode 0600)")
    for role, rest in (("scheduler", "--protocol tls --port 8786"), ("worker", "tls://SCHEDULER:8786 --nthreads 1")):
        typer.echo(
            f"dask {role} {rest} --host 127.0.0.1 --dashboard-address 127.0.0.1:0 \\\n"
            f"  --tls-ca-file {folder}/ca.pem --tls-cert {folder}/{role}.pem --tls-key {folder}/{role}-key.pem"
        )
    typer.echo(
        "in the spec:\n  cluster: {mode: address, address: tls://SCHEDULER:8786, security: "
        f"{{ca: {folder}/ca.pem, cert: {folder}/client.pem, key: {folder}/client-key.pem}}}}"
    )


if __name__ == "__main__":
    cluster_app()
