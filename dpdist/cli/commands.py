"""The command line: thin; every command calls one function of the package and prints its answer."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdist.cli.account import account_app
from dpdist.cli.cluster import cluster_app
from dpdist.cli.evaluate import evaluate
from dpdist.cli.ledger import ledger_app
from dpdist.cli.options import AsJson, Settings, SpecPath, load
from dpdist.cli.progress import bars
from dpdist.cli.runs import runs_app
from dpdist.cli.spec import spec_app
from dpdist.errors import AccountingError, DpdistError, SpecError

if TYPE_CHECKING:
    from dpdist.release.outcome import Outcome

app = typer.Typer(
    name="dpdist",
    help="Release data about people with a privacy guarantee you can state in one sentence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.command("evaluate")(evaluate)
app.add_typer(ledger_app, name="ledger")
app.add_typer(spec_app, name="spec")
app.add_typer(account_app, name="account")
app.add_typer(cluster_app, name="cluster")
app.add_typer(runs_app, name="runs")


def _version(asked: bool) -> None:
    if asked:
        from dpdist import __version__

        typer.echo(f"dpdist {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors of dpdist end with one message and their own exit code."""
    try:
        if os.environ.get("DPDIST_LOG") == "json":
            from dpdist.cluster.logs import configure

            configure()
        signal.signal(signal.SIGTERM, _terminated)  # the first process of a container dies of no signal it leaves alone
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _terminated)
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


def _terminated(number: int, frame: object) -> None:
    """End with clusters closed and the attempt open; a second interrupt ends at once."""
    signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)
    logging.getLogger("sqlalchemy").setLevel(logging.CRITICAL)  # its pool would log this exit with a traceback
    typer.echo("dpdist: terminated; what was charged stays charged and the run can be resumed", err=True)
    sys.exit(128 + number)


def _confidential_traceback() -> str:
    """Write the traceback of the current exception to a file of mode 0600."""
    import tempfile
    import traceback

    handle, path = tempfile.mkstemp(prefix="dpdist-error-", suffix=".txt")
    with os.fdopen(handle, "w") as file:
        file.write(traceback.format_exc())
    return path


def _refuse_given(options: dict[str, Any], *, go_with: str, unless: bool = False) -> None:
    """Refuse options that would be passed over."""
    given = [] if unless else [name for name, value in options.items() if value is not None]
    if given:
        raise SpecError(f"{', '.join(given)}: only with {go_with}")


@app.command()
def plan(
    spec: SpecPath,
    settings: Settings = None,
    as_json: AsJson = False,
    solve: Annotated[
        bool,
        typer.Option(
            "--solve",
            help="Plausible deniability: find k, gamma, epsilon0, omega and the split of epsilon. "
            "Mixing: compare the noise of all orders.",
        ),
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="With --solve: whole-release epsilon to reach.")] = None,
    pass_rate: Annotated[float | None, typer.Option(help="With --solve: lowest pass rate that is acceptable.")] = None,
    public_table: Annotated[
        Path | None, typer.Option(help="With --solve: a PUBLIC table of the same schema, such as last year's.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="With --solve: write the completed spec here.")] = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Propose workers, memory and partitions for the declared number of records."),
    ] = False,
    costs: Annotated[
        Path | None, typer.Option(help="With --cluster: costs measured on your machines (bench_sizing.py --json).")
    ] = None,
) -> None:
    """Say what a release would guarantee, cost and need. Touches no record."""
    from dpdist.families.registry import make_plan
    from dpdist.ledger.statement import budget_after

    only_solving = {"--pass-rate": pass_rate, "--public-table": public_table, "--write": write}
    _refuse_given({"--epsilon": epsilon, **only_solving}, unless=solve, go_with="--solve")
    _refuse_given({"--costs": costs}, unless=cluster, go_with="--cluster")
    loaded = load(spec, settings)
    if solve:
        from dpdist.families.deniability.reference import Reference
        from dpdist.families.deniability.solve import solve_plan
        from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
        from dpdist.families.mixing.comparison import compare
        from dpdist.families.mixing.spec import MixingSpec

        if isinstance(loaded, MixingSpec):
            _refuse_given(only_solving, go_with="plausible deniability; of a mixing spec set mixing.order, or auto")
            compared = compare(loaded, epsilon=epsilon)
            typer.echo(json.dumps(compared.to_json(), indent=2) if as_json else compared.explain())
            return
        if not isinstance(loaded, PlausibleDeniabilitySpec):
            raise SpecError(f"--solve: nothing is solved for specs of kind {loaded.kind}")
        public = Reference.table(public_table, loaded.table) if public_table else None
        solution = solve_plan(loaded, epsilon=epsilon, pass_rate=pass_rate, reference=public)
        if write:
            solution.write(write, source=spec, settings=settings or [])
        typer.echo(json.dumps(solution.to_json(), indent=2) if as_json else solution.explain())
        return
    made = make_plan(loaded)
    if cluster:
        from dpdist.sizing.cluster_size import read_costs, size_cluster

        sizing = size_cluster(made, costs=read_costs(costs))
        typer.echo(json.dumps(sizing.to_json(), indent=2) if as_json else sizing.explain())
        return
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
    once: Annotated[
        bool,
        typer.Option("--once", help="For jobs: begin, or continue what was interrupted, or end if it is published."),
    ] = False,
    test_key: Annotated[
        str | None,
        typer.Option("--test-key", hidden=True, help="A fixed key, 64 hexadecimal digits: NOT PRIVATE."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a release: charge, compute, publish."""
    from dpdist.release.run import run_release

    loaded = load(spec, settings)
    with bars() as progress:
        outcome = run_release(
            loaded,
            resume=resume,
            new_attempt=new_attempt,
            once=once,
            fixed_key=test_key,
            progress=progress,
            announce=lambda text: typer.echo(text, err=True),
        )
    typer.echo(json.dumps(outcome.to_json(), indent=2) if as_json else _summary(outcome))


def _summary(outcome: Outcome) -> str:
    lines = [f"Nothing to do: it was published already, by attempt {outcome.attempt}"] if outcome.already else []
    lines += [
        *(f"Guarantee  {sentence}" for sentence in outcome.guarantees),
        f"Release    {outcome.uri}",
        f"Records    {outcome.records:,}" if outcome.cells is None else f"Cells      {outcome.cells:,}",
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
    typer.echo(f"{release}: verified, {report.counted} in {report.parts} {'part' if report.parts == 1 else 'parts'}")
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
    from dpdist.cli.sample_table import write

    with bars() as progress:
        write(folder, rows, seed=seed, progress=lambda done, total: progress("writing rows", done, total))
    typer.echo(f"{folder}: {rows:,} invented rows")


@app.command()
def audit(
    spec: SpecPath,
    settings: Settings = None,
    runs: Annotated[int, typer.Option(min=200, help="Runs of each mechanism on each of two tables.")] = 4000,
    confidence: Annotated[float, typer.Option(min=0.5, max=1 - 1e-9, help="Confidence of each lower bound.")] = 0.999,
    one_run: Annotated[
        bool, typer.Option("--one-run", help="Also audit histograms by many canaries at once, which is tighter.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Attack the mechanisms of a spec on made-up tables: stated epsilon against a measured lower bound."""
    from dpdist.families.registry import family_of, make_plan
    from dpdist.privacy.testing import audit as attack
    from dpdist.privacy.testing import audit_in_one_run, table_of

    plan = make_plan(load(spec, settings))
    family = family_of(plan.spec)
    claims = family.claims(plan)
    findings = []
    with bars() as progress:
        for claim in claims:
            progress(claim.name, 0, 1)
            findings.append(attack(claim, runs=runs, confidence=confidence))
            progress(claim.name, 1, 1)
        for canaries in family.canaries(plan) if one_run else ():
            progress(canaries.name, 0, 1)
            findings.append(audit_in_one_run(canaries, runs=10, confidence=confidence))
            progress(canaries.name, 1, 1)
    typer.echo(json.dumps([f.to_json() for f in findings], indent=2) if as_json else table_of(findings))
    if any(finding.rejected for finding in findings):
        raise AccountingError("a mechanism leaks more than it states; do not publish with it")


if __name__ == "__main__":
    main()
