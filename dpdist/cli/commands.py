"""The command line: thin; every command calls one function of the package and prints its answer."""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import sys
import threading
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdist.api.display import bars, stop_bars
from dpdist.cli.cluster import cluster_app
from dpdist.cli.contract import contract_app
from dpdist.cli.evaluate import evaluate
from dpdist.cli.help import dress
from dpdist.cli.ledger import ledger_app
from dpdist.cli.ledger_views import metrics, report
from dpdist.cli.plan import account_app, plan
from dpdist.cli.readers import audit_coverage, draw, export, infer, replicates, tabulate, verify
from dpdist.cli.runs import join, runs_app
from dpdist.cli.schema import examples, schema_app, spec_app, synthesize
from dpdist.cli.shared import (
    AsJson,
    Settings,
    SpecPath,
    error_text,
    guarantee_lines,
    loaded,
    overrides,
    say,
    show_json,
    with_quiet,
)
from dpdist.errors import AccountingError, DpdistError, SpecError
from dpdist.privacy.formatting import folded

if TYPE_CHECKING:
    from dpdist.lifecycle.publication import Outcome
    from dpdist.lifecycle.run import AttemptMode


class _App(typer.Typer):
    """Builds the parser of the command or group that is asked for alone: those of all take 50 ms."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        one, asked = copy(self), sys.argv[1:2]
        one.registered_commands = [c for c in self.registered_commands if c.callback and [c.callback.__name__] == asked]
        one.registered_groups = [group for group in self.registered_groups if [group.name] == asked]
        called = one if one.registered_commands or one.registered_groups else self
        return super(_App, called).__call__(*args, **kwargs)


app = _App(
    name="dpdist",
    help="Release data about people with a privacy guarantee you can state in one sentence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (plan, examples, synthesize, evaluate, verify, draw, export, tabulate, replicates, infer, join):
    app.command()(_command)
for _view in (report, metrics):
    ledger_app.command()(_view)
_groups = {"ledger": ledger_app, "contract": contract_app, "schema": schema_app, "spec": spec_app}
for _name, _group in (_groups | {"account": account_app, "cluster": cluster_app, "runs": runs_app}).items():
    app.add_typer(_group, name=_name)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"dpdist {version('dpdist')}")
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
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in workers: tasks share the cores, waking others costs more
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # they would see what is private, and are looked for
    gc.set_threshold(200_000, 50, 50)  # looking for cycles among what was imported takes a tenth of a second
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the files that dpdist reads are UTF-8, so what it prints is
            stream.reconfigure(encoding="utf-8")
    try:
        if os.environ.get("DPDIST_LOG") == "json":
            from dpdist.cluster.logs import configure

            configure()
        signal.signal(signal.SIGTERM, _terminated)  # the first process of a container dies of no signal it leaves alone
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _terminated)
        app(standalone_mode=True)
    except Exception as error:
        sys.exit(_told(error))
    finally:
        gc.freeze()  # what is left goes with the process: looking through it once more takes a fifth of a second


def _told(error: Exception) -> int:
    """Say what ended the command; return its exit code."""
    if _signals:  # it was said; what fails on the way out is no other end
        return 128 + _signals[0]
    if isinstance(error, DpdistError):
        say(error_text(f"dpdist: {error}", terminal=sys.stderr.isatty()), err=True)
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return 1
    say(f"dpdist: internal error ({type(error).__name__}){_of_the_charge()}. {_details_of(error)}", err=True)
    return 70


_signals: list[int] = []
"""What ends this process."""


def _terminated(number: int, frame: object) -> None:
    """End with clusters closed and the attempt open; a second interrupt ends at once."""
    try:
        getattr(sys.stderr, "rich_proxied_file", sys.stderr).flush()
    except RuntimeError:  # it came amid a write of this thread, and none is made inside another: once more after it
        threading.Timer(0.02, os.kill, (os.getpid(), number)).start()
        return
    except (AttributeError, OSError, ValueError):
        pass  # no standard error, or a closed one
    _signals.append(number)
    signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)
    logging.getLogger("sqlalchemy").setLevel(logging.CRITICAL)  # its pool would log this exit with a traceback
    stop_bars()
    say(f"dpdist: terminated{_of_the_charge()}", err=True)
    sys.exit(128 + number)


def _of_the_charge() -> str:
    """What becomes of a charge, where the command makes one."""
    given, asked = sys.argv[1:2], {"evaluate": "--publish", "schema": "discover"}
    charges = given in (["release"], ["synthesize"]) or any(
        given == [name] and any(o in a for a in sys.argv) for name, o in asked.items()
    )
    return "; what was charged stays charged and the run can be resumed (--resume)" if charges else ""


_READERS = {"verify", "draw", "export", "tabulate", "infer", "replicates"}
"""Commands that read what is published, so that their errors quote no private value."""


def _details_of(error: Exception) -> str:
    """Where the details of an internal error are: below it for a reader, else in a file that only the operator reads,
    because its text may quote a value.
    """
    import traceback

    from dpdist.storage.local import write_report

    details = "".join(traceback.format_exception(error))
    if _READERS.intersection(sys.argv[1:2]):
        return f"Please report it with its details:\n{details}"
    path = getattr(error, "report", None) or write_report(details)
    return f"The details are in {path}: they may hold private values"


@app.command()
@with_quiet
def release(
    spec: SpecPath,
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the attempt that was interrupted; costs nothing more.")
    ] = False,
    new_attempt: Annotated[
        bool, typer.Option("--new-attempt", help="Give up an interrupted attempt; its charge stays, a new one is made.")
    ] = False,
    once: Annotated[
        bool,
        typer.Option("--once", help="For jobs: begin, or continue what was interrupted, or end if it is published."),
    ] = False,
    test_key: Annotated[
        str | None, typer.Option("--test-key", hidden=True, help="A fixed key, 64 hexadecimal digits: NOT PRIVATE.")
    ] = None,
    as_json: AsJson = False,
    **_: Any,
) -> None:
    """Run a release: charge, compute, publish. Of a series: all periods that are due."""
    from dpdist.api.calls import release as call
    from dpdist.api.given import specified
    from dpdist.lifecycle.series import run_due
    from dpdist.spec.series import day_of, is_whole
    from dpdist.spec.strict_yaml import load_yaml

    modes: tuple[AttemptMode, ...] = ("resume", "replace", "once")
    asked = [mode for mode, flag in zip(modes, (resume, new_attempt, once), strict=True) if flag]
    if len(asked) > 1:
        raise SpecError("give one of --resume, --new-attempt, --once")
    given = overrides(settings)
    if whole := is_whole(load_yaml(spec), given):
        if asked not in ([], ["once"]):
            raise SpecError("of a series, every period is released once: choose one with --set series.period=2026-03")
        made = run_due(
            day_of(given.get("date")),
            lambda more: specified(spec, {**given, **more}),
            lambda one: call(one, attempt="once", test_key=test_key, progress=True),
            lambda text: say(text, err=True),
        )
    else:
        made = [call(spec, settings=given, attempt=asked[0] if asked else "new", test_key=test_key, progress=True)]
    outcomes = [one.outcome for one in made if one.outcome is not None]
    if as_json:
        show_json([one.to_json() for one in outcomes] if whole else outcomes[0].to_json())
    else:
        say("\n".join(map(_summary, outcomes)) or "Nothing is due: all periods that have ended are published, or wait")


def _summary(outcome: Outcome) -> str:
    lines = [f"Nothing to do: it was published already, by attempt {outcome.attempt}"] if outcome.already else []
    lines += [
        *guarantee_lines(outcome.guarantees),
        f"Release     {outcome.uri}",
        "Read it     its _README.md says how pandas, Polars, DuckDB and R open it",
        f"Records     {outcome.records:,}" if outcome.cells is None else f"Cells       {outcome.cells:,}",
        *(f"WARNING     {caution}" for caution in outcome.cautions),
        f"Budget      {outcome.budget}",
    ]
    return folded("\n".join(lines))


@app.command()
@with_quiet
def sample(
    folder: Annotated[Path, typer.Argument(help="Folder to make; with --schema a .csv or .parquet file.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Another seed, other rows.")] = 0,
    schema: Annotated[
        Path | None, typer.Option(help="Schema file (YAML): write a table of it, all values equally likely.")
    ] = None,
    **_: Any,
) -> None:
    """Write a made-up table to try things out.

    By default census-like, of the schema deploy/releases/schemas/acs2013.yaml.
    """
    from dpdist.cli.sample_table import write, write_uniform

    if schema is not None:
        write_uniform(folder, schema, rows, seed=seed)
    else:
        with bars() as progress:
            write(folder, rows, seed=seed, progress=lambda done, total: progress("writing rows", done, total))
    say(f"{folder}: {rows:,} invented rows")


@app.command()
@with_quiet
def audit(
    spec: SpecPath,
    settings: Settings = None,
    runs: Annotated[int, typer.Option(min=200, help="Runs of each mechanism on each of two tables.")] = 4000,
    confidence: Annotated[float, typer.Option(min=0.5, max=1 - 1e-9, help="Confidence of each lower bound.")] = 0.999,
    one_run: Annotated[
        bool, typer.Option("--one-run", help="Also audit histograms by many canaries at once, which is tighter.")
    ] = False,
    coverage: Annotated[
        int,
        typer.Option(
            min=0, help="Instead, measure how often intervals cover, by this many releases of made-up tables."
        ),
    ] = 0,
    as_json: AsJson = False,
    **_: Any,
) -> None:
    """Attack the mechanisms of a spec on made-up tables.

    Prints the stated epsilon beside a measured lower bound.

    Each mechanism is run many times on two small tables, which takes minutes; begin with --runs 400.
    """
    from dpdist.families.base.registry import family_of, make_plan
    from dpdist.privacy.testing import audit as attack
    from dpdist.privacy.testing import audit_in_one_run, table_of

    plan = make_plan(loaded(spec, settings))
    if coverage:
        audit_coverage(plan, coverage, as_json)
        return
    family = family_of(plan.spec)
    tests = [(one.name, partial(attack, one, runs=runs, confidence=confidence)) for one in family.claims(plan)]
    for canaries in family.canaries(plan) if one_run else ():
        tests.append((canaries.name, partial(audit_in_one_run, canaries, runs=10, confidence=confidence)))
    findings = []
    with bars() as progress:
        for name, test in tests:
            progress(name, 0, 1)
            findings.append(test())
            progress(name, 1, 1)
    if as_json:
        show_json([finding.to_json() for finding in findings])
    else:
        say(table_of(findings))
    if any(finding.rejected for finding in findings):
        raise AccountingError("a mechanism leaks more than it states; do not publish with it")


dress(app)

if __name__ == "__main__":
    main()
