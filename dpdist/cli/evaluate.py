"""The command that evaluates a release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.options import DEFAULT_LEDGER, AsJson, Endpoint, LedgerUrl, Settings, load
from dpdist.cli.progress import bars

MARKS = {"good": "good", "fair": "with reserve", "bad": "poor", "info": "-"}


def evaluate(
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="Folder or s3:// prefix of a release.")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA", help="The real table: files, a folder or a glob, local or s3://; may be repeated."
        ),
    ] = None,
    holdout: Annotated[
        list[str] | None,
        typer.Option(metavar="DATA", help="Records like its own that the release was NOT made from; may be repeated."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(help="Spec of the release: how its table is read (CSV, storage), and where, without --against."),
    ] = None,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the page and the figures; default: evaluation-NAME.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Attribute that models predict; default: the last one with two values.")
    ] = None,
    demand: Annotated[
        str | None, typer.Option(metavar="Q:P[:BRAND]", help="Also compare elasticities: quantity, price, brand.")
    ] = None,
    train: Annotated[int, typer.Option(min=50, help="Records of each table to train models on, at most.")] = 30_000,
    test: Annotated[int, typer.Option(min=50, help="Real records to test models on, at most.")] = 15_000,
    seed: Annotated[int, typer.Option(min=0, help="Of every sample and model.")] = 0,
    attacks: Annotated[bool, typer.Option("--attacks/--no-attacks", help="Run the attacks as well.")] = True,
    cluster: Annotated[
        str, typer.Option(help="auto, threads, embedded or a scheduler's address: who reads and counts.")
    ] = "auto",
    public_key: Annotated[
        Path | None, typer.Option(help="PEM file of the Ed25519 public key; the signature is then required.")
    ] = None,
    endpoint_url: Endpoint = None,
    publish: Annotated[
        float | None,
        typer.Option(metavar="EPSILON", help="Also write noisy scores that may be published, charged to the ledger."),
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Compare a release with the real table: one CONFIDENTIAL page with plots, and the figures as JSON."""
    from dpdist.evaluate.evaluation import Options
    from dpdist.evaluate.run import Request, run_evaluation
    from dpdist.publish.signature import load_public_key

    request = Request(
        release=release,
        against=tuple(against or ()),
        holdout=tuple(holdout or ()),
        spec=load(spec, settings) if spec is not None else None,
        output=output,
        options=Options(target=target, train=train, test=test, seed=seed, attacks=attacks, demand=demand),
        cluster=cluster,
        public_key=load_public_key(public_key) if public_key else None,
        storage_options={"endpoint_url": endpoint_url} if endpoint_url else {},
        publish=publish,
        ledger=ledger,
    )
    with bars() as progress:
        done = run_evaluation(request, progress=progress)
    if as_json:
        typer.echo(json.dumps(done.to_json(), indent=2))
        return
    for section in done.verdicts:
        typer.echo(f"{MARKS[section['state']]:<13}{section['verdict']}")
    typer.echo(f"Page       {done.page}")
    typer.echo(f"Figures    {done.figures}")
    typer.echo("CONFIDENTIAL: computed from private records without noise. Do not publish.")
