"""``dpdist contract``: what a data set is and may be asked, declared by its custodian."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpdist.cli.ledger import open_ledger
from dpdist.cli.shared import DEFAULT_LEDGER, LedgerUrl, loaded, say
from dpdist.errors import SpecError
from dpdist.privacy.formatting import folded, upwards

if TYPE_CHECKING:
    from dpdist.spec.contract import Contract

contract_app = typer.Typer(
    help="The contract of a data set, declared by its custodian.", no_args_is_help=True, rich_markup_mode=None
)

ContractPath = Annotated[Path, typer.Argument(metavar="CONTRACT", help="Contract file (YAML).")]
DatasetName = Annotated[str, typer.Argument(help="Name of the data set.")]


@contract_app.command("draft")
def contract_draft(
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="Schema file (YAML).")],
    epsilon: Annotated[str, typer.Option(help="Cap on epsilon over all releases, such as 4.")],
    delta: Annotated[str, typer.Option(help="Cap on delta over all releases, such as 1e-8.")],
    data: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Files, folders or globs of the table; may be repeated.")
    ] = None,
    minimum: Annotated[int | None, typer.Option(min=1, help="Public lower bound on the number of records.")] = None,
    spec: Annotated[
        Path | None,
        typer.Option(help="A spec: its `data` says how the files are read and, unless given, which and how many."),
    ] = None,
) -> None:
    """Print a contract made from a schema.

    Write it to a file, and read it before you create the data set.
    """
    from dpdist.spec.contract import drafted
    from dpdist.spec.draft import notes_on
    from dpdist.spec.schema import Schema
    from dpdist.spec.strict_yaml import write_yaml

    reads = None if spec is None else loaded(spec, None).data
    if reads is None and (not data or minimum is None):
        raise SpecError("dpdist contract draft: give --data and --minimum, or --spec")
    minimum = minimum or (1 if reads is None else reads.minimum_records)
    tree = drafted(
        Schema.from_yaml(schema), path=tuple(data or ()), minimum=minimum, caps=(epsilon, delta), reads=reads
    )
    for note in notes_on(schema):
        say(folded(note), err=True)
    say(write_yaml(tree).rstrip())


@contract_app.command("check")
def contract_check(
    contract: Annotated[
        Path | None, typer.Argument(metavar="[CONTRACT]", help="Contract file (YAML): nothing is stored.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A data set of the ledger: its contract; an input that keeps it is admitted.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Files that data.later admits, instead of the contract's own."),
    ] = None,
    also_charged_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A data set that charged the same input before; its releases come on top of the caps."
        ),
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Read the table once: does it keep the contract?

    Costs nothing: for the custodian's eyes only. What is printed holds private counts.
    """
    from dpdist.lifecycle.conformity import admit, check_input
    from dpdist.spec.contract import Contract

    if (contract is None) == (dataset is None):
        raise SpecError("dpdist contract check: give a contract file, or --dataset")
    if contract is not None:
        checked = Contract.from_yaml(contract)
    else:
        with open_ledger(ledger) as opened:
            checked = _contract_of(opened.dataset(str(dataset)).contract, str(dataset))
    found = check_input(checked, data or ())
    say("\n".join(found.lines()))
    found.refuse()
    if dataset is not None:
        with open_ledger(ledger) as opened:
            admit(opened, dataset, checked, found, also_charged_to or ())
    say("the contract is kept" + (f"; data set {dataset} may be released from this input" if dataset else ""))


@contract_app.command("show")
def contract_show(dataset: DatasetName, ledger: LedgerUrl = DEFAULT_LEDGER) -> None:
    """Print the contract of a data set."""
    from dpdist.spec.strict_yaml import write_yaml

    with open_ledger(ledger) as opened:
        found = _contract_of(opened.dataset(dataset).contract, dataset)
    tree = found.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    say(write_yaml(tree).rstrip())


@contract_app.command("amend")
def contract_amend(
    dataset: DatasetName,
    contract: ContractPath,
    reason: Annotated[str, typer.Option(help="Why; it stands in the journal of the data set.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Give a data set another contract or cap.

    An act of the custodian, in the journal. Inputs are checked again. A higher cap is then the guarantee of
    everything that was released before, too.
    """
    from dpdist.spec.contract import Contract

    read = Contract.from_yaml(contract)
    with open_ledger(ledger) as opened:
        opened.amend(dataset, read, reason=reason)
    say(f"data set {dataset}: amended; epsilon at most {upwards(read.epsilon)}, delta at most {upwards(read.delta)}")


def _contract_of(text: str | None, dataset: str) -> Contract:
    from dpdist.spec.contract import Contract

    if text is None:
        raise SpecError(f"data set {dataset!r} has no contract: give it one with dpdist contract amend")
    return Contract.from_text(text)
