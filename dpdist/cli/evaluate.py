"""The command that evaluates a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpdist.api.progress import bars
from dpdist.cli.options import DEFAULT_LEDGER, AsJson, Endpoint, LedgerUrl, PublicKey, Settings, load, storage_options
from dpdist.cli.output import show

Against = Annotated[
    list[str] | None,
    typer.Option(metavar="DATA", help="The real table: files, a folder or a glob, local or s3://; may be repeated."),
]
Holdout = Annotated[
    list[str] | None,
    typer.Option(metavar="DATA", help="Records like its own that the release was NOT made from; may be repeated."),
]
Parents = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DATA", help="Of linked tables: that of the parents, where --against has none; default: --spec's."
    ),
]
HoldoutParents = Annotated[
    list[str] | None, typer.Option(metavar="DATA", help="The same of the hold-out; default: --parents.")
]
Spec = Annotated[
    Path | None,
    typer.Option(help="Spec of the release: how its table is read (CSV, storage), and where, without --against."),
]
Output = Annotated[
    str | None,
    typer.Option(help="Folder of the page and the figures, or s3://… with --confidential; default: evaluation-NAME."),
]
Confidential = Annotated[
    bool,
    typer.Option("--confidential", help="Only those may read the bucket of --output who may read the real table."),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="Attribute that models predict; default: the model.target or mixing.class of the release, else the last "
        "one with two values."
    ),
]
Train = Annotated[int, typer.Option(min=50, help="Records of each table to train models on, at most.")]
Test = Annotated[int, typer.Option(min=50, help="Real records to test models on, at most.")]
Seed = Annotated[int, typer.Option(min=0, help="Of every sample and model.")]
Attacks = Annotated[bool, typer.Option("--attacks/--no-attacks", help="Run the attacks as well.")]
Cluster = Annotated[str, typer.Option(help="auto, threads, embedded or a scheduler's address: who reads and counts.")]
Publish = Annotated[
    float | None,
    typer.Option(metavar="EPSILON", help="Also write noisy scores that may be published, charged to the ledger."),
]


def evaluate(
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="Folder or s3:// prefix of a release.")],
    against: Against = None,
    holdout: Holdout = None,
    parents: Parents = None,
    holdout_parents: HoldoutParents = None,
    spec: Spec = None,
    settings: Settings = None,
    output: Output = None,
    confidential: Confidential = False,
    target: Target = None,
    train: Train = 30_000,
    test: Test = 15_000,
    seed: Seed = 0,
    attacks: Attacks = True,
    cluster: Cluster = "auto",
    public_key: PublicKey = None,
    endpoint_url: Endpoint = None,
    publish: Publish = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Compare a release with the real table: one CONFIDENTIAL page with plots, and the figures as JSON."""
    from dpdist.evaluation.report import Options
    from dpdist.evaluation.run import Request, run_evaluation
    from dpdist.ledger.signing import load_public_key

    request = Request(
        release=release,
        against=tuple(against or ()),
        holdout=tuple(holdout or ()),
        parents=tuple(parents or ()),
        holdout_parents=tuple(holdout_parents or ()),
        spec=load(spec, settings) if spec is not None else None,
        output=output,
        confidential=confidential,
        options=Options(target=target, train=train, test=test, seed=seed, attacks=attacks),
        cluster=cluster,
        public_key=load_public_key(public_key) if public_key else None,
        storage_options=storage_options(endpoint_url),
        publish=publish,
        ledger=ledger,
    )
    with bars() as progress:
        done = run_evaluation(request, progress=progress)
    show(done, as_json=as_json)
