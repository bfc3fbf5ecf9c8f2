"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dpdist.spec.release import ReleaseSpec

DEFAULT_LEDGER = "sqlite:///dpdist-ledger.db"

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="Spec file (YAML).")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Override a setting of the spec, such as synthesis.records=1000; may be repeated.",
    ),
]


LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="DPDIST_LEDGER",
        help="SQLAlchemy URL of the ledger, or the path of an SQLite one; one with a password: by DPDIST_LEDGER.",
    ),
]
PublicKey = Annotated[
    Path | None, typer.Option(help="PEM file of the Ed25519 public key; the signature is then required.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Endpoint = Annotated[str | None, typer.Option(help="Endpoint of an S3-compatible store.")]


def storage_options(endpoint_url: str | None) -> dict[str, Any]:
    """The options of object storage that a command line gives."""
    return {"endpoint_url": endpoint_url} if endpoint_url else {}


def moment(text: str) -> str:
    """A time of the ledger for a table on a terminal: to the second, in UTC."""
    return f"{text[:19].replace('T', ' ')} UTC"


def load(path: Path, settings: list[str] | None) -> ReleaseSpec:
    """The spec of a command line: the file, its overrides, and the ledger of the environment."""
    from dpdist.api.specs import specified
    from dpdist.spec.overrides import parse_overrides

    return specified(path, parse_overrides(settings or []))
