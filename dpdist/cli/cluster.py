"""``dpdist cluster``: what a Dask cluster needs before a release runs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.output import say

cluster_app = typer.Typer(help="What a Dask cluster needs for a release.", no_args_is_help=True, rich_markup_mode=None)


@cluster_app.command("certs")
def cluster_certs(
    folder: Annotated[Path, typer.Argument(help="Folder to write the certificates and their keys to.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until they expire.")] = 365,
) -> None:
    """Make certificates for TLS between scheduler, workers and client."""
    from dpdist.cluster.certificates import write_certificates

    write_certificates(folder, days=days)
    say(f"{folder}: certificates for {days} days; the keys are secret (mode 0600)")
    for role, rest in (("scheduler", "--protocol tls --port 8786"), ("worker", "tls://SCHEDULER:8786 --nthreads 1")):
        say(
            f"dask {role} {rest} --host 127.0.0.1 --dashboard-address 127.0.0.1:0 \\\n"
            f"  --tls-ca-file {folder}/ca.pem --tls-cert {folder}/{role}.pem --tls-key {folder}/{role}-key.pem"
        )
    say(
        "in the spec:\n  cluster: {mode: address, address: tls://SCHEDULER:8786, security: "
        f"{{ca: {folder}/ca.pem, cert: {folder}/client.pem, key: {folder}/client-key.pem}}}}"
    )


@cluster_app.command("secrets")
def cluster_secrets(
    namespace: Annotated[str | None, typer.Option(help="Namespace of the release; made with them.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="tls, kek, ledger or storage; may be repeated.")] = None,
    prefix: Annotated[str, typer.Option(help="Beginning of the secrets' names.")] = "dpdist",
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the certificates expire.")] = 365,
) -> None:
    """Print the secrets that the Helm chart names, for ``kubectl apply --server-side -f -``.

    The ledger's URL and the object store's credentials are those of the environment (DPDIST_LEDGER,
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY). Certificates are made, and a key-encryption key unless DPDIST_KEK is set.
    """
    import os
    import sys

    import yaml

    from dpdist.cli.kubernetes_secrets import KINDS, chart_settings, secret_manifests
    from dpdist.errors import OutputUnwritable

    if sys.stdout.isatty():
        raise OutputUnwritable(
            "secrets are not shown on a terminal: dpdist cluster secrets | kubectl apply --server-side -f -"
        )
    kinds = only or KINDS
    made = secret_manifests(os.environ, kinds=kinds, namespace=namespace, prefix=prefix, days=days)
    say(yaml.safe_dump_all(made, sort_keys=False), nl=False)
    names = ", ".join(manifest["metadata"]["name"] for manifest in made if manifest["kind"] == "Secret")
    say(f"secrets {names}", err=True)
    if "kek" in kinds and not (os.environ.get("DPDIST_KEK") or os.environ.get("DPDIST_KEK_FILE")):
        where = f"--namespace {namespace} " if namespace else ""
        say(
            "a new key-encryption key was made; the cluster holds the only copy. To sign releases, and to keep it:\n"
            f"  export DPDIST_KEK=$(kubectl get secret {where}{prefix}-kek -o jsonpath='{{.data.kek}}' | base64 -d)",
            err=True,
        )
    for setting in chart_settings(os.environ, kinds=kinds):
        say(f"the chart needs --set '{setting}'", err=True)


if __name__ == "__main__":
    cluster_app()
