"""Commands for readers of a release: draw, tabulate, infer."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpdist.cli.options import AsJson, Endpoint, PublicKey, storage_options
from dpdist.cli.output import say, show_json
from dpdist.errors import OutputExists

if TYPE_CHECKING:
    import pyarrow as pa

    from dpdist.families.base.plan import Plan
    from dpdist.inference.published import Published

Release = Annotated[str, typer.Argument(metavar="RELEASE", help="Folder or s3:// prefix of a release.")]
Where = Annotated[
    str | None, typer.Option(metavar="CONDITION", help='Which records, such as "state = 8 and age >= 65".')
]
Out = Annotated[Path | None, typer.Option(help="Parquet file to write; default: the first rows are printed.")]
_SHOWN = 20
_MOST_MADE_UP = 100_000  # records of a made-up table


def _open(release: str, public_key: Path | None, endpoint_url: str | None) -> Published:
    from dpdist.inference.published import Published
    from dpdist.ledger.signing import load_public_key

    key = load_public_key(public_key) if public_key else None
    return Published.open(release, key, storage_options=storage_options(endpoint_url))


def draw(
    release: Release,
    records: Annotated[int, typer.Option(min=1, max=100_000_000, help="Number of records.")] = 1000,
    where: Where = None,
    out: Out = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other records.")] = 0,
    public_key: PublicKey = None,
    endpoint_url: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Draw new records from the model of a release, as many as wanted and given a condition; it costs nothing."""
    from dpdist.inference.draw import draw_table

    drawn = draw_table(_open(release, public_key, endpoint_url), records, where=where, seed=seed)
    if drawn.note:
        say(drawn.note, err=True)
    _write(drawn.table, out, as_json)


def tabulate(
    release: Release,
    attributes: Annotated[list[str], typer.Argument(metavar="ATTRIBUTE...", help="Attributes of the table.")],
    out: Out = None,
    public_key: PublicKey = None,
    endpoint_url: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """The model's counts of all cells of some attributes, with standard errors and 95 % intervals."""
    from dpdist.inference.answers import tabulate as table_of

    _write(table_of(_open(release, public_key, endpoint_url), attributes), out, as_json)


def infer(
    release: Release,
    questions: Annotated[
        list[str],
        typer.Argument(
            metavar="QUESTION...",
            help='"count where state = 8", "mean age", "quantile 0.9 age", "share where ... minus share where ...", '
            '"regression income on age, sex = 1".',
        ),
    ],
    public_key: PublicKey = None,
    endpoint_url: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions about the private table, with 95 % intervals."""
    from dpdist.inference.comparisons import answer

    opened = _open(release, public_key, endpoint_url)
    answers = [item for question in questions for item in answer(opened, question)]
    if as_json:
        show_json([item.to_json() for item in answers])
        return
    for item in answers:
        estimate, low, high = (f"{v:,.6g}" if isinstance(v, float) else v for v in (item.estimate, item.low, item.high))
        ends = "no interval" if low is None else f"95 % interval {low} to {high}"
        say(f"{item.question}: {estimate} ({ends}{'; ' + item.note if item.note else ''})")


def replicates(
    release: Release,
    out: Annotated[Path, typer.Option(help="File to write: .csv, or else Parquet.")],
    number: Annotated[int, typer.Option(min=20, max=1_000, help="Number of replicates.")] = 80,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other replicates.")] = 0,
    public_key: PublicKey = None,
    endpoint_url: Endpoint = None,
) -> None:
    """The released records with replicate weights, for R's survey package, Stata or samplics; it costs nothing."""
    from dpdist.inference.replicates import make_replicates

    made = make_replicates(_open(release, public_key, endpoint_url), number, seed=seed)
    _write(made.to_arrow(), out, False)
    say(f"Fay's coefficient {made.fay!r}, mse about the full sample")


def audit_coverage(plan: Plan, runs: int, as_json: bool) -> None:
    """How often intervals cover, by releases of made-up tables whose law is known."""
    from dpdist.inference.coverage import against_law

    records = min(max(plan.spec.data.minimum_records, 1_000), _MOST_MADE_UP)
    found = against_law(plan, records=records, runs=runs)
    if as_json:
        show_json({of: [asdict(one) for one in covered] for of, covered in found.items()})
        return
    say(f"{'nominal 95 % intervals':<24}{'of':<8}{'number':>8}{'covered':>9}{'naive':>8}{'length':>8}")
    for of, covered in found.items():
        for one in covered:
            line = f"{one.number:>8,}{one.coverage:>9.1%}{one.naive:>8.1%}{one.width:>8.2f}"
            say(f"{one.of:<24}{of:<8}{line}")


def _write(table: pa.Table, out: Path | None, as_json: bool) -> None:
    if out is not None:
        import pyarrow.parquet as pq
        from pyarrow import csv

        from dpdist.inference.replicates import plain

        if out.exists():
            raise OutputExists(f"{out} exists: choose another --out")
        if out.suffix == ".csv":
            csv.write_csv(plain(table), out)
        else:
            pq.write_table(table, out)
        say(f"{out}: {table.num_rows:,} rows")
    elif as_json:
        show_json(table.to_pylist())
    else:
        say("\t".join(map(_cell, table.column_names)))
        for row in table.slice(0, _SHOWN).to_pylist():
            say("\t".join(map(_cell, row.values())))
        if table.num_rows > _SHOWN:
            say(f"... {table.num_rows - _SHOWN:,} more; --out FILE writes them all")


def _cell(value: object) -> str:
    """A value in a line of its row."""
    return f"{value:.6g}" if isinstance(value, float) else re.sub(r"[\t\n]", " ", str(value))
