"""The command line: thin; every command calls one function of the package and prints its answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdist.cluster_cli import cluster_app
from dpdist.errors import AccountingError, DpdistError, SpecError
from dpdist.runs import runs_app

if TYPE_CHECKING:
    from dpdist.privacy.ledger import Ledger
    from dpdist.run import Outcome
    from dpdist.spec import ReleaseSpec

app = typer.Typer(
    name="dpdist",
    help="Release data about people with a privacy guarantee you can state in one sentence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
ledger_app = typer.Typer(help="The budget of each data set.", no_args_is_help=True, rich_markup_mode=None)
spec_app = typer.Typer(help="Specs: their JSON schema.", no_args_is_help=True, rich_markup_mode=None)
account_app = typer.Typer(help="What would it cost, without a spec.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(ledger_app, name="ledger")
app.add_typer(spec_app, name="spec")
app.add_typer(account_app, name="account")
app.add_typer(cluster_app, name="cluster")
app.add_typer(runs_app, name="runs")

DEFAULT_LEDGER = "sqlite:///dpdist-ledger.db"

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="Spec file (YAML).")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a setting of the spec; may be repeated."),
]
LedgerUrl = Annotated[str, typer.Option("--ledger", envvar="DPDIST_LEDGER", help="SQLAlchemy URL of the ledger.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command line; errors of dpdist end with one message and their own exit code."""
    try:
        if os.environ.get("DPDIST_LOG") == "json":
            from dpdist.logs import configure

            configure("json")
        app(standalone_mode=True)
    except DpdistError as error:
        typer.echo(f"dpdist: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:  # its text may quote a value: it goes to a file only the operator reads
        typer.echo(
            f"dpdist: internal error ({type(error).__name__}); what was charged stays charged and the run can be "
            f"resumed. The details are in {_confidential_traceback()}: they may hold private values",
            err=True,
        )
        sys.exit(70)


def _confidential_traceback() -> str:
    """Write the traceback of the current exception to a file of mode 0600."""
    import tempfile
    import traceback

    handle, path = tempfile.mkstemp(prefix="dpdist-error-", suffix=".txt")
    with os.fdopen(handle, "w") as file:
        file.write(traceback.format_exc())
    return path


def _load(path: Path, settings: list[str] | None) -> ReleaseSpec:
    from dpdist.spec import load_spec, parse_overrides

    overrides = parse_overrides(settings or [])
    if "ledger" not in overrides and os.environ.get("DPDIST_LEDGER"):
        overrides["ledger"] = os.environ["DPDIST_LEDGER"]
    return load_spec(path, overrides)


def stage_bars(console: Any) -> Any:
    """The progress display of a release: a bar per stage."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
    )


@contextmanager
def bars() -> Iterator[Any]:
    """One progress bar per stage on a terminal; one plain line per finished stage elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        finished: set[str] = set()

        def plain(stage: str, done: int, total: int) -> None:
            if total and done >= total and stage not in finished:
                finished.add(stage)
                typer.echo(f"{stage}: done", err=True)

        yield plain
        return
    with stage_bars(console) as progress:
        tasks: dict[str, Any] = {}

        def draw(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=max(total, 1))
            progress.update(tasks[stage], completed=done if total else 1, total=max(total, 1))

        yield draw


@app.command()
def plan(
    spec: SpecPath,
    settings: Settings = None,
    as_json: AsJson = False,
    solve: Annotated[
        bool, typer.Option("--solve", help="Find k, gamma, epsilon0, omega and the split of epsilon.")
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="With --solve: whole-release epsilon to reach.")] = None,
    pass_rate: Annotated[float | None, typer.Option(help="With --solve: lowest pass rate that is acceptable.")] = None,
    public_table: Annotated[
        Path | None, typer.Option(help="With --solve: a PUBLIC table of the same schema, such as last year's.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="With --solve: write the completed spec here.")] = None,
) -> None:
    """Say what a release would guarantee, cost and need. Touches no record."""
    from dpdist.plan import make_plan
    from dpdist.run import budget_after

    loaded = _load(spec, settings)
    if solve:
        from dpdist.synthesis.reference import Reference
        from dpdist.synthesis.solve import solve_plan

        public = Reference.table(public_table, loaded.table) if public_table else None
        solution = solve_plan(loaded, epsilon=epsilon, pass_rate=pass_rate, reference=public)
        if write:
            solution.write(write, source=spec, settings=settings or [])
        typer.echo(json.dumps(solution.to_json(), indent=2) if as_json else solution.explain())
        return
    made = make_plan(loaded)
    if as_json:
        typer.echo(json.dumps(made.to_json(), indent=2))
        return
    typer.echo(made.explain())
    typer.echo(f"Budget      {budget_after(made)}")


@app.command()
def release(
    spec: SpecPath,
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the attempt that was interrupted; costs nothing more.")
    ] = False,
    new_attempt: Annotated[
        bool,
        typer.Option("--new-attempt", help="Give up an interrupted attempt; its charge stays, a new one is made."),
    ] = False,
    test_key: Annotated[
        str | None,
        typer.Option("--test-key", hidden=True, help="A fixed key, 64 hexadecimal digits: NOT PRIVATE."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a release: charge, compute, publish."""
    from dpdist.run import run_release

    loaded = _load(spec, settings)
    with bars() as progress:
        outcome = run_release(
            loaded,
            resume=resume,
            new_attempt=new_attempt,
            fixed_key=test_key,
            progress=progress,
            announce=lambda text: typer.echo(text, err=True),
        )
    typer.echo(json.dumps(outcome.to_json(), indent=2) if as_json else _summary(outcome))


def _summary(outcome: Outcome) -> str:
    lines = [
        f"Release    {outcome.uri}",
        f"Records    {outcome.records:,}",
        *(f"Guarantee  {sentence}" for sentence in outcome.guarantees),
        f"Budget     {outcome.budget}",
    ]
    return "\n".join(lines)


@app.command()
def verify(
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="Folder or s3:// prefix of a release.")],
    public_key: Annotated[
        Path | None, typer.Option(help="PEM file of the Ed25519 public key; the signature is then required.")
    ] = None,
    endpoint_url: Annotated[str | None, typer.Option(help="Endpoint of an S3-compatible store.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check every file of a release against its manifest, and the signature."""
    from dpdist.publish.signature import load_public_key
    from dpdist.publish.verify import verify as verify_release

    key = load_public_key(public_key) if public_key else None
    options = {"endpoint_url": endpoint_url} if endpoint_url else None
    report = verify_release(release, key, storage_options=options)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
        return
    typer.echo(f"{release}: verified, {report.records:,} records in {report.parts} parts")
    if not report.private:
        typer.echo("NOT PRIVATE: made with a fixed test key")
    typer.echo(f"Guarantee  {report.guarantee}")
    typer.echo(f"Signature  {report.signature}")


@app.command()
def sample(
    folder: Annotated[Path, typer.Argument(help="Folder to make.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Another seed, other rows.")] = 0,
) -> None:
    """Write a made-up census-like table (schema of deploy/releases/schemas/acs2013.yaml) to try things out."""
    from dpdist.sample import write

    with bars() as progress:
        write(folder, rows, seed=seed, progress=lambda done, total: progress("writing rows", done, total))
    typer.echo(f"{folder}: {rows:,} invented rows")


@app.command()
def audit(
    spec: SpecPath,
    settings: Settings = None,
    runs: Annotated[int, typer.Option(min=200, help="Runs of each mechanism on each of two tables.")] = 4000,
    confidence: Annotated[float, typer.Option(help="Confidence of each lower bound.")] = 0.999,
    as_json: AsJson = False,
) -> None:
    """Attack the mechanisms of a spec on made-up tables: stated epsilon against a measured lower bound."""
    from dpdist.evaluate.audit import audit as attack
    from dpdist.evaluate.audit import table_of
    from dpdist.evaluate.claims import claims_of
    from dpdist.plan import make_plan

    claims = claims_of(make_plan(_load(spec, settings)))  # type: ignore[arg-type]
    findings = []
    with bars() as progress:
        for claim in claims:
            progress(claim.name, 0, 1)
            findings.append(attack(claim, runs=runs, confidence=confidence))
            progress(claim.name, 1, 1)
    typer.echo(json.dumps([f.to_json() for f in findings], indent=2) if as_json else table_of(findings))
    if any(finding.rejected for finding in findings):
        raise AccountingError("a mechanism leaks more than it states; do not publish with it")


@ledger_app.command("create")
def ledger_create(
    dataset: Annotated[str, typer.Argument(help="Name of the data set.")],
    epsilon: Annotated[str, typer.Option(help="Cap on epsilon over all releases.")],
    delta: Annotated[str, typer.Option(help="Cap on delta over all releases.")],
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Kinds of guarantee to allow: dp, pd-per-record, pml, lid. Default: dp, pd-per-record."),
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Enter a data set with its budget."""
    with _ledger(ledger, create=True) as opened:
        opened.create_dataset(dataset, epsilon=epsilon, delta=delta, guarantees=tuple(allow or ("dp", "pd-per-record")))
    typer.echo(f"data set {dataset}: epsilon at most {epsilon}, delta at most {delta}, add/remove adjacency")


@ledger_app.command("show")
def ledger_show(
    dataset: Annotated[str | None, typer.Argument(help="Name of a data set; default: all.")] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Show data sets, their releases and what is left."""
    from dpdist.run import ledger_rows

    with _ledger(ledger) as opened:
        rows = ledger_rows(opened, dataset)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for row in rows:
        console.print(
            f"[bold]{row['dataset']}[/bold]  epsilon {row['spent_epsilon']:.6g} of {row['epsilon']:g} spent at "
            f"delta {row['delta']:g} (add/remove adjacency); allows {', '.join(row['guarantees'])}"
        )
        table = Table("release", "attempt", "state", "epsilon alone", "since")
        for charge in row["charges"]:
            table.add_row(
                charge["release"],
                charge["attempt"][:8],
                charge["state"],
                f"{charge['epsilon']:.6g}",
                charge["created"],
            )
        console.print(table)


@ledger_app.command("verify")
def ledger_verify(
    dataset: Annotated[str | None, typer.Argument(help="Name of a data set; default: all.")] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Check that no row of the ledger was changed and that no cap is exceeded."""
    with _ledger(ledger) as opened:
        names = [dataset] if dataset else [d.name for d in opened.datasets()]
        for name in names:
            opened.verify(name)
            typer.echo(f"{name}: consistent")


@contextmanager
def _ledger(url: str, *, create: bool = False) -> Iterator[Ledger]:
    from dpdist.privacy.ledger import Ledger

    opened = Ledger.open(url, create=create)
    try:
        yield opened
    finally:
        opened.close()


@spec_app.command("schema")
def spec_schema() -> None:
    """Print the JSON schema of a spec file."""
    from dpdist.spec import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@spec_app.command("show")
def spec_show(spec: SpecPath, settings: Settings = None) -> None:
    """Print a spec as it will be used, defaults included."""
    loaded = _load(spec, settings)
    typer.echo(loaded.model_dump_json(indent=2, by_alias=True))


@account_app.command("plausible-deniability")
def account_plausible_deniability(
    k: Annotated[int, typer.Option(min=1, help="Plausible seeds a released record needs.")],
    gamma: Annotated[float, typer.Option(min=1, help="Largest ratio of probabilities; 1 for a fixed omega.")],
    epsilon0: Annotated[float, typer.Option(help="Parameter of the threshold noise.")],
    passing_mass: Annotated[float, typer.Option(help="Z: seeds times pass rate, a lower bound.")],
    records: Annotated[int, typer.Option(min=1, help="Released records, R.")],
    delta: Annotated[float, typer.Option(help="Delta of the whole release.")],
) -> None:
    """Cost of the seeds of a plausible-deniability release, as JSON."""
    from dpdist.privacy.accountant import plausible_deniability

    try:
        answer = plausible_deniability(
            k=k, gamma=gamma, epsilon0=epsilon0, passing_mass=passing_mass, records=records, delta=delta
        )
    except ValueError as error:
        raise SpecError(str(error)) from None
    typer.echo(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
