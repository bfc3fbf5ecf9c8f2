"""``dpdist account``: what would it cost, without a spec."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpdist.cli.shared import REQUIRED, option, show_json, with_options
from dpdist.errors import SpecError

account_app = typer.Typer(
    help="Say what a mechanism costs, without a spec.", no_args_is_help=True, rich_markup_mode=None
)


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
    """Cost of the seeds of a release, as JSON."""
    from dpdist.privacy.accountant import plausible_deniability

    try:
        answer = plausible_deniability(
            k=k, gamma=gamma, epsilon0=epsilon0, passing_mass=passing_mass, records=records, delta=delta
        )
    except ValueError as error:
        raise SpecError(str(error)) from None
    show_json(answer)


@account_app.command("mixing")
@with_options(
    option("order", Annotated[int, typer.Option(min=1, help="Records in a mixture, l.")], REQUIRED),
    option("delta", Annotated[float, typer.Option(help="Delta of the mixtures.")], REQUIRED),
    option("class_size", Annotated[int | None, typer.Option(min=1, help="Records of the class, a lower bound.")]),
    option("records", Annotated[int | None, typer.Option(min=1, help="Mixtures of the class.")]),
    option(
        "sigma_over_clip",
        Annotated[
            float | None, typer.Option(help="Noise in each coordinate, in units of the clipping norm: gives epsilon.")
        ],
    ),
    option("epsilon", Annotated[float | None, typer.Option(help="In place of the noise: gives the noise it needs.")]),
    option(
        "paper",
        Annotated[
            bool, typer.Option("--paper", help="DP-CDA's published formula, which is no bound; for comparison only.")
        ],
        False,
    ),
    option("table_size", Annotated[int | None, typer.Option(min=1, help="With --paper: records of the whole table.")]),
    option("table_records", Annotated[int | None, typer.Option(min=1, help="With --paper: mixtures of all classes.")]),
)
def account_mixing(**asked: Any) -> None:
    """Cost or noise of mixtures, as JSON.

    They are those of a class, under add/remove adjacency.
    """
    from dpdist.privacy.mixtures import account_mixing as account

    show_json(account(**asked))


@account_app.command("entropy")
def account_entropy(
    records: Annotated[int, typer.Option(min=1, help="Lower bound of the records of the larger of two neighbours.")],
    order: Annotated[float, typer.Option(help="Order of the Renyi entropy; 1 is Shannon's.")] = 1.0,
    adjacency: Annotated[str, typer.Option(help="add/remove or replacement.")] = "add/remove",
) -> None:
    """Sensitivity of an entropy in bits, as JSON.

    The exact one, and the papers' bound.
    """
    from dpdist.privacy.sensitivity import account

    show_json(account(records=records, order=order, adjacency=adjacency))  # type: ignore[arg-type]


@account_app.command("pml")
def account_pml(
    epsilon: Annotated[float, typer.Option(help="Pointwise maximal leakage, in nats.")],
    alpha: Annotated[float, typer.Option(help="Assumed least probability of every bin, for every record.")],
) -> None:
    """Noise for a bound on leakage, as JSON.

    That of a histogram, with its equal differential privacy.
    """
    from dpdist.privacy.leakage import account

    show_json(account(epsilon=epsilon, alpha=alpha))
