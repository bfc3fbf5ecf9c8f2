"""``dpdist account``: what would it cost, without a spec."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dpdist.errors import SpecError

account_app = typer.Typer(help="What would it cost, without a spec.", no_args_is_help=True, rich_markup_mode=None)


@account_app.callback()
def _account() -> None:
    """Keep the names of the commands, even of a single one."""


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
