"""``dpdist ledger``: the budget of each data set."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from dpdist.cli.shared import DEFAULT_LEDGER, AsJson, LedgerUrl, moment, say, show_json
from dpdist.errors import DatasetUnknown, LedgerError, LedgerUnavailable, SpecError
from dpdist.privacy.formatting import folded, upwards

if TYPE_CHECKING:
    from dpdist.ledger import Books

ledger_app = typer.Typer(help="The budget of each data set.", no_args_is_help=True, rich_markup_mode=None)


@ledger_app.command("create")
def ledger_create(
    dataset: Annotated[str, typer.Argument(help="Name of the data set.")],
    epsilon: Annotated[
        str | None, typer.Option(help="Cap on epsilon over all releases, such as 4 or 1/2 (without --contract).")
    ] = None,
    delta: Annotated[
        str | None, typer.Option(help="Cap on delta over all releases, such as 1e-8 (without --contract).")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Kind of guarantee to allow: dp, dp-declared (with models that users declare to be private), "
            "pd-per-record, pml or lid (not private); may be repeated. "
            "Default: dp, so that the cap bounds all that is released.",
        ),
    ] = None,
    pml: Annotated[
        str | None,
        typer.Option(help="With --allow pml: cap on pointwise maximal leakage, in nats; charged instead of epsilon."),
    ] = None,
    contract: Annotated[
        Path | None, typer.Option(help="Contract file (YAML), which has the caps as well: see `dpdist contract draft`.")
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Enter a data set with its budget or contract."""
    from dpdist.ledger import Books
    from dpdist.spec.contract import Contract
    from dpdist.spec.unit import adjacency_words

    if contract is not None:
        if epsilon or delta or allow or pml:
            raise SpecError("--contract: the contract says the caps and the guarantees; leave the other options out")
        read = Contract.from_yaml(contract)
        create = partial(Books.create_from_contract, name=dataset, contract=read)
        terms = (
            f"epsilon at most {upwards(read.epsilon)}, delta at most {upwards(read.delta)}, "
            f"{adjacency_words(read.protected)}; its contract admits an input once it is checked: "
            f"dpdist contract check --dataset {dataset}"
        )
    elif epsilon is None or delta is None:
        raise SpecError("give --epsilon and --delta, or --contract")
    else:
        kinds = tuple(allow or ("dp",))
        create = partial(Books.create_dataset, name=dataset, epsilon=epsilon, delta=delta, guarantees=kinds, pml=pml)
        leakage = f"; pointwise maximal leakage at most {pml} nats" if pml else ""
        terms = f"epsilon at most {epsilon}, delta at most {delta}, add/remove adjacency{leakage}"
    with open_ledger(ledger, create=True) as opened:
        create(opened)
        signed = _identity_lines(opened, dataset)
    say(folded("\n".join([f"data set {dataset}: {terms}", *signed])))


@ledger_app.command("identity")
def ledger_identity(
    dataset: Annotated[str, typer.Argument(help="Name of the data set.")],
    new: Annotated[
        bool, typer.Option("--new", help="Make a new one; releases are signed with it from now on.")
    ] = False,
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Print the public key of a data set.

    Its releases are signed with the private half; readers keep the public one.
    """
    from dpdist.ledger.signing import public_pem

    with open_ledger(ledger) as opened:
        if new:
            opened.new_identity(dataset)
        opened.verify(dataset)  # readers will trust this key
        keys = opened.public_keys(dataset)
        lines = _identity_lines(opened, dataset) if new else []
    if not keys:
        raise LedgerError(f"data set {dataset!r} has no signing identity: {_NO_IDENTITY.format(dataset=dataset)}")
    for line in lines:
        say(line, err=True)
    say(public_pem(keys[0]), nl=False)


_NO_IDENTITY = "make one with `dpdist ledger identity {dataset} --new`; until then its releases are not signed"


def _identity_lines(opened: Books, dataset: str) -> list[str]:
    """What is said of the identity of a data set; beside a SQLite ledger its public key is stored."""
    from dpdist.ledger.signing import key_fingerprint, public_pem

    keys = opened.public_keys(dataset)
    if not keys:
        return [
            f"not signed: there is no key-encryption key; set DPDIST_KEK, then {_NO_IDENTITY.format(dataset=dataset)}"
        ]
    lines = [f"its releases are signed by {key_fingerprint(keys[0])}"]
    if opened.database.file is not None:
        path = opened.database.file.with_name(f"{opened.database.file.name}.{quote(dataset, safe=' ')}.pub.pem")
        try:
            path.write_text(public_pem(keys[0]))
        except OSError as error:
            raise LedgerError(f"the public key cannot be written to {path} ({error.strerror})") from None
        lines.append(f"public key for readers: {path}")
    return lines


@ledger_app.command("show")
def ledger_show(
    dataset: Annotated[str | None, typer.Argument(help="Name of a data set; default: all.")] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Show data sets, their releases and what is left."""
    from dpdist.ledger.statement import ledger_rows

    with open_ledger(ledger) as opened:
        rows = ledger_rows(opened, dataset)
    damaged = [row["error"] for row in rows if "error" in row]
    if as_json:
        show_json(rows)
    else:
        _show_rows([row for row in rows if "error" not in row])
    if damaged:
        raise LedgerError("\n".join(damaged))


def _show_rows(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    for row in rows:
        uncovered = "".join(f"{text}; " for text in row["uncovered"])
        spent = "more than the cap" if row["spent_epsilon"] is None else upwards(row["spent_epsilon"])
        console.print(
            f"[bold]{row['dataset']}[/bold]  {uncovered}epsilon {spent} of {row['epsilon']:g} spent at "
            f"delta {upwards(row['delta'])} ({row['adjacency_of']}); allows {', '.join(row['guarantees'])}"
            + (f"; leakage {upwards(row['spent_pml'])} of {row['pml']:g} nats spent" if row["pml"] is not None else "")
        )
        if row["period"] is not None:
            console.print(f"  {row['period']['sentence']}", highlight=False)
        for line in _filters(row["filters"]):
            console.print(f"  {line}", highlight=False)
        key, advice = row["signing_key"], _NO_IDENTITY.format(dataset=row["dataset"])
        console.print(f"  releases are signed by {key}" if key else f"  releases are not signed: {advice}")
        nats = "" if row["pml"] is None else " nats"
        whole = (Column(name, no_wrap=True) for name in ("attempt", "state", "since (UTC)"))
        table = Table(Column("release", overflow="fold"), "epsilon alone", *whole)
        for charge in row["charges"]:
            alone = charge["epsilon"]
            table.add_row(
                charge["release"],
                "not DP" if alone is None else f"{upwards(alone)}{nats if charge['guarantee'] == 'pml' else ''}",
                charge["attempt"][:8],
                charge["state"],
                moment(charge["created"]).removesuffix(" UTC"),
            )
        console.print(table)


def _filters(filters: list[dict[str, Any]]) -> list[str]:
    """What is left of each filter, in two lines."""
    if not any(one["holds"] for one in filters):
        return ["no filter holds: no further release is admitted"]
    left = ["none" if not one["holds"] else f"{math.floor(1e4 * (1 - one['used'])) / 100:g} %" for one in filters]
    names = [one["filter"] for one in filters]
    widths = [max(8, *map(len, pair)) for pair in zip(names, left, strict=True)]
    rows = (("filter", names), ("left", left))
    return [f"{label:<8}" + "  ".join(map(str.rjust, texts, widths)) for label, texts in rows]


@ledger_app.command("anchor")
def ledger_anchor(
    dataset: Annotated[str, typer.Argument(help="Name of the data set.")], ledger: LedgerUrl = DEFAULT_LEDGER
) -> None:
    """Set the anchor of a data set to the ledger as it is.

    All of the ledger is verified first; DPDIST_LEDGER_ANCHOR says where the anchor lies. From then on a database
    that is older than its anchor is refused.
    """
    with open_ledger(ledger) as opened:
        mark = opened.anchor(dataset)
    say(f"{dataset}: anchored at entry {mark.length - 1}, {mark.head}")


@ledger_app.command("verify")
def ledger_verify(
    dataset: Annotated[str | None, typer.Argument(help="Name of a data set; default: all.")] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    receipt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEAD",
            help="A `head` that `ledger show --json` once gave and that was kept elsewhere; may be repeated.",
        ),
    ] = None,
) -> None:
    """Check that the ledger is as dpdist left it.

    No row was changed, and no cap is exceeded.
    """
    if receipt and dataset is None:
        raise SpecError("--receipt: a receipt is of one data set, name it")
    damaged = []
    with open_ledger(ledger) as opened:
        for name in [dataset] if dataset else opened.datasets():
            try:
                opened.verify(name, receipts=receipt or ())
                say(f"{name}: consistent")
            except (DatasetUnknown, LedgerUnavailable):
                raise
            except LedgerError as error:
                damaged.append(str(error))
    if damaged:
        raise LedgerError("\n".join(damaged))


@ledger_app.command("total")
def ledger_total(
    dataset: Annotated[str, typer.Argument(help="Name of the data set.")],
    to: Annotated[Path, typer.Option(help="File for readers (JSON), such as total.json; it is replaced.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Write what all releases of a data set tell together.

    The file is signed, and readers see it by `dpdist verify RELEASE --public-key KEY.pem --total total.json`.
    """
    from dpdist.publish.account import Total

    with open_ledger(ledger) as opened:
        found = Total.of(opened, dataset)
        content = found.signed(opened)
    try:
        to.write_bytes(content)
    except OSError as error:
        raise SpecError(f"--to: {to} cannot be written ({error.strerror})") from None
    say(folded(f"{to}: {found.sentence}"))


@ledger_app.command("give-up")
def ledger_give_up(
    attempt: Annotated[str, typer.Argument(help="Id of an open attempt, or its beginning.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """End an open attempt that nobody will resume.

    Its key is destroyed. Its charge is given back if no record was read, and stays spent otherwise.
    """
    from dpdist.lifecycle.history import find_attempt

    with open_ledger(ledger) as opened:
        meant = find_attempt(opened, attempt)
        if not yes:
            outcome = "is given back" if meant.state == "reserved" else "stays spent"
            question = (
                f"attempt {meant.id} of release {meant.release} is {meant.state}: its charge {outcome}. Give it up?"
            )
            typer.confirm(question, abort=True)
        ended = opened.give_up(meant)
        outcome = "its charge is given back" if ended.state == "void" else "its charge stays spent"
    say(f"attempt {ended.id} of release {ended.release} is {ended.state}: {outcome}")


def known_to_default(release: str, options: dict[str, Any]) -> str | None:
    """The URL of the default ledger, if its file is in this folder and it has the attempt of a release. One inside the
    release came with it, and is not used.
    """
    from dpdist.publish.verify import read_manifest

    inside = Path.cwd().is_relative_to(Path(release).resolve())
    if inside or not Path(DEFAULT_LEDGER.removeprefix("sqlite:///")).is_file():
        return None
    attempt = read_manifest(release, storage_options=options).attempt
    try:
        with open_ledger(DEFAULT_LEDGER) as opened:
            opened.attempt(attempt)
    except LedgerError:
        return None
    return DEFAULT_LEDGER


def open_ledger(url: str, *, create: bool = False) -> AbstractContextManager[Books]:
    """A ledger, closed at the end."""
    from dpdist.api.ledger import Ledger

    return Ledger(url).opened(create=create)
