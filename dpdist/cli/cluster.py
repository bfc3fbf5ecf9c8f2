"""``dpdist cluster``: what a cluster needs before a release runs on it: certificates, and the secrets of the chart.

What exists already comes from the environment (the ledger's URL, the credentials of the object storage, the
key-encryption key if there is one); certificates, and a key-encryption key if none exists, are made.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dpdist.cli.shared import say
from dpdist.errors import OutputUnwritable, SpecError

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
    only: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="tls, kek, ledger or storage; may be repeated.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Beginning of the secrets' names.")] = "dpdist",
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the certificates expire.")] = 365,
) -> None:
    """Print the secrets that the Helm chart names.

    They are for ``kubectl apply --server-side -f -``. The ledger's URL and the object store's credentials are those
    of the environment (DPDIST_LEDGER, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY). Certificates are made, and a key-
    encryption key unless DPDIST_KEK is set.
    """
    import sys

    import yaml

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


KINDS = ("tls", "kek", "ledger", "storage")
"""What can be made, each by itself."""

Manifest = dict[str, Any]


def secret_manifests(
    environment: Mapping[str, str],
    *,
    kinds: Iterable[str] = KINDS,
    namespace: str | None = None,
    prefix: str = "dpdist",
    days: int = 365,
) -> list[Manifest]:
    """Manifests of secrets, of some of `KINDS`, and of their namespace, which admits restricted pods only.

    The environment holds ``DPDIST_LEDGER``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``; for the key-encryption
    key, which is immutable, see `dpdist.ledger.keys`. Certificates are valid for `days`. Raises SpecError: a kind is
    unknown, or the environment does not hold what it needs; KeyUnavailable: its key-encryption key cannot be used.
    """
    from dpdist.cluster.certificates import ROLES, make_certificates

    wanted = tuple(kinds)
    unknown = sorted(set(wanted) - set(KINDS))
    if unknown or not wanted:
        raise SpecError(f"--only: expected some of {', '.join(KINDS)}, not {', '.join(unknown) or 'nothing'}")
    level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    own = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": level}}
    manifests: list[Manifest] = [own] if namespace else []
    if "tls" in wanted:
        files = make_certificates(days=days)
        for role in ROLES:
            content = {"ca.crt": files["ca.pem"], "tls.crt": files[f"{role}.pem"], "tls.key": files[f"{role}-key.pem"]}
            manifests.append(_secret(f"{prefix}-tls-{role}", content, namespace, kind="kubernetes.io/tls"))
    if "kek" in wanted:
        secret = _secret(f"{prefix}-kek", {"kek": base64.b64encode(_kek(environment))}, namespace)
        manifests.append({**secret, "immutable": True})
    if "ledger" in wanted:
        manifests.append(_secret(f"{prefix}-ledger", {"url": _ledger(environment).encode()}, namespace))
    if "storage" in wanted:
        manifests.append(_secret(f"{prefix}-storage", _credentials(environment), namespace))
    return manifests


def chart_settings(environment: Mapping[str, str], kinds: Iterable[str] = KINDS) -> list[str]:
    """Settings of the chart that the environment asks for and no secret holds: the store's address, other ports."""
    settings = []
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    if "storage" in kinds and (found := re.fullmatch(r"(https?)://[A-Za-z0-9.-]+(?::(\d+))?/?", endpoint)):
        settings.append(f"storage.endpointUrl={endpoint}")
        port = found[2] or {"http": "80", "https": "443"}[found[1]]
        if port != "443":
            settings.append(f"networkPolicy.storage.ports={{{port}}}")
    server = environment.get("DPDIST_LEDGER", "").partition("?")[0].rpartition("@")[2]
    if "ledger" in kinds and (found := re.search(r":(\d+)(?=/|$)", server)) and found[1] != "5432":
        settings.append(f"networkPolicy.ledger.ports={{{found[1]}}}")
    return settings


def _secret(name: str, content: Mapping[str, bytes], namespace: str | None, *, kind: str = "Opaque") -> Manifest:
    metadata = {"name": name, "labels": {"app.kubernetes.io/part-of": "dpdist"}}
    if namespace:
        metadata["namespace"] = namespace
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data}


def _kek(environment: Mapping[str, str]) -> bytes:
    from dpdist.ledger.signing import KEY_BYTES, KeyEncryptionKey

    if environment.get("DPDIST_KEK") or environment.get("DPDIST_KEK_FILE"):
        return KeyEncryptionKey.find().secret
    return os.urandom(KEY_BYTES)


def _ledger(environment: Mapping[str, str]) -> str:
    url = environment.get("DPDIST_LEDGER", "")
    if not url.startswith("postgresql"):
        raise SpecError(
            "DPDIST_LEDGER is not the URL of a PostgreSQL database: pods cannot share another. Set it to "
            "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE, or leave the secret out (--only)"
        )
    return url


def _credentials(environment: Mapping[str, str]) -> dict[str, bytes]:
    names = {"access-key-id": "AWS_ACCESS_KEY_ID", "secret-access-key": "AWS_SECRET_ACCESS_KEY"}
    missing = [name for name in names.values() if not environment.get(name)]
    if missing:
        raise SpecError(
            f"{' and '.join(missing)} are not set: give the credentials that pods shall use, or leave the secret out "
            "(--only tls --only kek --only ledger) where pods have an identity"
        )
    return {key: environment[name].encode() for key, name in names.items()}


if __name__ == "__main__":
    cluster_app()
