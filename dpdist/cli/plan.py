"""``dpdist plan``: what a release would guarantee, cost and need; ``dpdist account``: what it costs, without a spec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdist.cli.shared import (
    REQUIRED,
    AsJson,
    Settings,
    SpecPath,
    loaded,
    option,
    overrides,
    say,
    show,
    show_json,
    with_options,
)
from dpdist.errors import SpecError
from dpdist.privacy.formatting import folded, lines_of

if TYPE_CHECKING:
    from dpdist.families.base.family import Solution
    from dpdist.spec.release import ReleaseSpec

Solve = Annotated[
    bool,
    typer.Option(
        "--solve",
        help="Plausible deniability: find k, gamma, epsilon0, omega and the split of epsilon. "
        "Mixing: compare the noise of all orders. Clients of a synthesis: whose noise, and how many must answer.",
    ),
]
Epsilon = Annotated[float | None, typer.Option(help="With --solve: whole-release epsilon to reach.")]
PassRate = Annotated[float | None, typer.Option(help="With --solve: lowest pass rate that is acceptable.")]
PublicTable = Annotated[
    Path | None, typer.Option(help="With --solve: a PUBLIC table of the same schema, such as last year's.")
]
Accuracy = Annotated[
    float | None,
    typer.Option(help="Synthesis: find the epsilon at which two-way tables are expected to be so close (0.01: 1 %)."),
]
Risk = Annotated[
    str | None,
    typer.Option(
        metavar="P% to Q%",
        help='Find the epsilon at which a guess with a chance of P is right with Q at most: "1% to 2%".',
    ),
]
Write = Annotated[Path | None, typer.Option(help="With --solve, --accuracy or --risk: write the completed spec here.")]
Details = Annotated[bool, typer.Option("--details", help="Say how it is done, too: noise, shares, choices, tasks.")]
ForCluster = Annotated[
    bool, typer.Option("--cluster", help="Propose workers, memory and partitions for the declared number of records.")
]


@with_options(
    option("epsilon", Epsilon),
    option("pass_rate", PassRate),
    option("public_table", PublicTable),
    option("accuracy", Accuracy),
    option("risk", Risk),
    option("write", Write),
)
def plan(
    spec: SpecPath,
    settings: Settings = None,
    as_json: AsJson = False,
    solve: Solve = False,
    cluster: ForCluster = False,
    details: Details = False,
    **options: Any,
) -> None:
    """Say what a release would guarantee, cost and need. Reads no record of its table."""
    from dpdist.api.calls import plan as call
    from dpdist.ledger.statement import account_facts

    found = _solution(
        spec, settings or [], options, asked=solve or options["accuracy"] is not None or options["risk"] is not None
    )
    if found is not None:
        show(found, as_json=as_json)
        if found.plan is not None and not as_json:
            say(folded("\n".join(lines_of(account_facts(found.plan)))))
        return
    made = call(spec, settings=overrides(settings))
    if cluster:
        from dpdist.families.base.cluster_size import size_cluster

        show(size_cluster(made.plan), as_json=as_json)
    elif as_json:
        show_json(made.to_json())
    else:
        say(folded("\n".join([*lines_of(made.facts(details=details)), *_notes(spec)])))


def _notes(spec: Path) -> list[str]:
    """What is left to decide in the schema file of a spec."""
    from dpdist.spec.draft import notes_on
    from dpdist.spec.strict_yaml import load_yaml

    schema = load_yaml(spec).get("schema")
    return notes_on(spec.parent / schema) if isinstance(schema, str) else []


def _solution(path: Path, settings: list[str], options: dict[str, Any], *, asked: bool) -> Solution | None:
    """What --solve finds; None where it is not asked for. Its options are refused then."""
    from dpdist.families.base.family import SolveRequest
    from dpdist.families.base.registry import family_of

    request = SolveRequest(source=path, settings=settings, **options)
    if not asked:
        request.refuse(*options, go_with="--solve")
        return None
    spec: ReleaseSpec = loaded(path, settings)
    if request.risk is not None:
        from dpdist.families.base.registry import solve_risk

        request.refuse("accuracy", "epsilon", "pass_rate", "public_table", go_with="--solve and --accuracy")
        return solve_risk(spec, request)
    solve = family_of(spec).solve
    if solve is None:
        option = "--solve" if request.accuracy is None else "--accuracy"
        raise SpecError(f"{option}: nothing is solved for specs of kind {spec.kind}")
    return solve(spec, request)


account_app = typer.Typer(
    help="Say what a mechanism costs, without a spec.", no_args_is_help=True, rich_markup_mode=None
)


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
