"""``dpdist synthesize``: a release of a table without a schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from dpdist.cli.shared import DEFAULT_LEDGER, LedgerUrl, Settings, overrides, say, with_quiet
from dpdist.errors import SpecError
from dpdist.privacy.formatting import folded


@with_quiet
def synthesize(
    table: Annotated[str, typer.Argument(help="The private table: Parquet or CSV; a file, a folder or s3://.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon of all of it.")],
    delta: Annotated[float, typer.Option(help="Delta of all of it.")] = 1e-9,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out; repeatable.")] = None,
    public: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=WHAT", help="What is public of a column: age=0..110, sex=F,M or zip=text."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the release; default: that of the table.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data set that is charged; default: frame, with this budget.")
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    schema: Annotated[Path | None, typer.Option(help="Write the schema that was found here.")] = None,
    settings: Settings = None,
    **_: Any,
) -> None:
    """Release a table without a schema.

    Names and types of its columns are taken as public, all else is found with noise, in one charge.
    """
    from dpdist.api.synthesizer import Synthesizer

    made = Synthesizer.from_frame(
        table,
        epsilon=epsilon,
        delta=delta,
        drop=drop or [],
        public=dict(map(_public, public or [])),
        ledger=ledger,
        dataset=dataset,
        name=name or re.sub(r"[^A-Za-z0-9_-]+", "-", Path(table).stem),
        settings={"synthesis.records": None} | overrides(settings),
    )
    say(folded(repr(made)), err=True)
    made.fit(table, progress=True)
    say(folded("\n".join(repr(made).split("\n")[1:])))
    if schema is not None:
        made.release_.schema.save(schema)


def _public(text: str) -> tuple[str, Any]:
    """What an option says of a column."""
    from dpdist.api.framed import KINDS

    name, sign, what = text.partition("=")
    if not sign or not what:
        raise SpecError(f"--public {text}: expected a column and what is public of it, such as age=0..110")
    if bounds := re.fullmatch(r"([-+]?\d+(?:\.\d+)?)\.\.([-+]?\d+(?:\.\d+)?)", what):
        return name, tuple(float(end) if "." in end else int(end) for end in bounds.groups())
    return name, what if what in KINDS else what.split(",")
