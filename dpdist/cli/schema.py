"""``dpdist schema`` and ``dpdist spec``: schemas drafted and checked, specs shown, JSON schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpdist.cli.shared import (
    DEFAULT_LEDGER,
    LedgerUrl,
    Settings,
    SpecPath,
    loaded,
    overrides,
    say,
    show_json,
    with_quiet,
)
from dpdist.errors import ColumnMismatch, OutOfDomain, OutputExists, SpecError, meant
from dpdist.privacy.formatting import folded

if TYPE_CHECKING:
    from dpdist.spec.schema import Schema


SITE = "https://dpdist.example/docs"
"""Where the documents are."""

schema_app = typer.Typer(help="Schemas: draft and check them.", no_args_is_help=True, rich_markup_mode=None)
spec_app = typer.Typer(help="Specs: their JSON schema.", no_args_is_help=True, rich_markup_mode=None)


@schema_app.command("draft")
def schema_draft(
    source: Annotated[
        str, typer.Argument(help="Codebook, data dictionary, table schema, Parquet file, or published discovery.")
    ],
    columns: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME", help="A column that is wanted; repeatable.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--leave-out", metavar="NAME", help="A column to leave out; repeatable.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="One of the tables that the source describes.")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="The table is PUBLIC: take values and ranges from its records.")
    ] = False,
) -> None:
    """Print a schema drafted from a description of a table.

    What is left to decide is marked TODO. Reads Frictionless Table Schema, CSVW, DDI-Codebook, data dictionaries of
    NIST and the Census Bureau (JSON, CSV), names files of the UCI repository, the types of Parquet files, and
    releases of kind: discovery. Reads no record, unless --public is given.
    """
    from dpdist.api.schemas import draft_of

    wanted: dict[str, Any] = {"columns": tuple(columns or ()), "without": tuple(without or ()), "table": table}
    say(draft_of(source, public=public, **wanted), nl=False)


@schema_app.command("discover")
@with_quiet
def schema_discover(
    source: Annotated[Path, typer.Argument(help="The private table: Parquet or CSV.")],
    folder: Annotated[str, typer.Argument(help="Folder to publish the discovery into; its name is the release's.")],
    columns: Annotated[
        list[str],
        typer.Option(
            "--column",
            metavar="NAME[=KIND]",
            help="A column, whose frequent values are found; repeatable. NAME=integer or NAME=number asks for bounds, "
            "and NAME=0..99 declares public ones.",
        ),
    ],
    dataset: Annotated[str, typer.Option(help="Data set whose budget is charged.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon of the discovery.")],
    delta: Annotated[float, typer.Option(help="Delta of the discovery.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
    **_: Any,
) -> None:
    """Discover the values of columns, at a charge.

    Publishes the discovery, and prints a schema drafted from it.

    Repeated, it ends what was interrupted, and costs nothing more.
    """
    from dpdist.api.schemas import discovered

    text = discovered(source, folder, columns, dataset=dataset, budget=(epsilon, delta), ledger=ledger)
    say(text, nl=False)


@schema_app.command("check")
def schema_check(
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="Schema file (YAML).")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Files, folders or globs of a table: whether the names and types of its columns fit."
        ),
    ] = None,
    spec: Annotated[
        Path | None, typer.Option(help="With --against: a spec, whose `data` says how the files are read.")
    ] = None,
    custodian: Annotated[
        bool,
        typer.Option(
            "--custodian",
            help="With --against: you keep the table. Also read its records; what they say is private, for your eyes.",
        ),
    ] = False,
) -> None:
    """Say what a schema declares, lacks or leaves open.

    With --against, also whether a table fits it, which costs nothing. Reads no record, unless --custodian is given.
    """
    from dpdist.privacy.formatting import number_of
    from dpdist.spec.draft import BINS, left_to_decide
    from dpdist.spec.groups import Count
    from dpdist.spec.schema import Schema

    left = left_to_decide(schema.read_text(encoding="utf-8-sig", errors="replace")) if schema.is_file() else []
    if left:
        say(folded("\n".join(["left to decide; delete each comment when it is done:", *(f"  {x}" for x in left)])))
    read = Schema.from_yaml(schema)
    equal = [a.name for a in read.attributes if isinstance(a.bins, Count) and a.bins.count == BINS]
    if equal:
        say(folded(f"  {BINS} bins of equal width, as drafts have: {', '.join(equal)}; see docs/how-to/schema.md"))
    say(f"{schema}: a valid schema of {number_of(len(read.attributes), 'attribute')}")
    for attribute in read.attributes:
        domain = "continuous" if attribute.is_continuous else number_of(attribute.cardinality, "code")
        missing = attribute.missing if isinstance(attribute.missing, str) else f"as {attribute.missing.category!r}"
        outside = attribute.out_of_domain
        beyond = outside if isinstance(outside, str) else f"as {outside.category!r}"
        what = f"{attribute.kind}, {domain}; missing: {missing}; outside: {beyond}"
        say(folded(f"  {attribute.name:<15} {what}"))
    for rule in read.rules:
        say(f"  {rule.text}; broken: {rule.broken}")
    if against:
        _against(read, against, spec, custodian=custodian)
    elif spec is not None or custodian:
        raise SpecError("--spec and --custodian: only with --against, which names the table")


def _against(schema: Schema, paths: list[str], spec: Path | None, *, custodian: bool) -> None:
    """Print whether a table fits a schema. Raises ColumnMismatch, OutOfDomain: it does not."""
    layout = {} if spec is None else loaded(spec, None).data.model_dump(include={"format", "csv", "storage"})
    found = schema.check(paths, custodian=custodian, **layout)
    if found.problems:
        raise ColumnMismatch("the table does not fit the schema:\n" + "\n".join(found.problems))
    say(folded(repr(found)))
    if found.of_records:
        raise OutOfDomain("the records of the table break the schema (confidential, as printed above)")


@schema_app.command("json")
def schema_json(
    of: Annotated[
        Literal["schema", "spec", "contract"], typer.Argument(help="Which kind of file.", show_default=True)
    ] = "schema",
) -> None:
    """Print the JSON schema of a kind of file, for editors."""
    show_json(json_schema_of(of))


@spec_app.command("schema")
def spec_schema() -> None:
    """Print the JSON schema of a spec file."""
    show_json(json_schema_of("spec"))


@spec_app.command("show")
def spec_show(spec: SpecPath, settings: Settings = None) -> None:
    """Print a spec as it will be used, defaults included."""
    say(loaded(spec, settings).model_dump_json(indent=2, by_alias=True))


def json_schema_of(kind: str) -> dict[str, Any]:
    """The JSON schema of spec, schema or contract files, with the address at which the site has it."""
    if kind == "spec":
        from dpdist.spec.reader import json_schema

        tree = json_schema()
    else:
        from dpdist.spec.contract import Contract
        from dpdist.spec.schema import Schema

        tree = (Schema if kind == "schema" else Contract).model_json_schema(by_alias=True)
        if kind == "contract":
            of = tree["properties"]["schema"]
            tree["properties"]["schema"] = {"anyOf": [{"type": "string"}, of], "description": of["description"]}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{SITE}/schemas/{kind}.json"}
    return {**head, **tree, "title": f"dpdist {kind}"}


def _examples() -> Path:
    """The folder of the examples: in the wheel, or in the clone."""
    package = Path(__file__).parents[1]
    return next(place for place in (package / "examples", package.parent / "deploy/releases") if place.is_dir())


def examples(
    name: Annotated[str | None, typer.Argument(help="An example to copy; default: list them.")] = None,
    to: Annotated[Path, typer.Option(help="Folder to copy it to.")] = Path(),
) -> None:
    """List example specs, or copy one with its schema."""
    found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_examples().glob("*.yaml"))}
    if name is None:
        width = max(map(len, found))
        for one, text in found.items():
            about = " ".join(line.strip("# ") for line in text.splitlines()[1:4] if line.startswith("#"))
            say(folded(f"{one:<{width}}  {about.partition('. ')[0].rstrip('.')}"))
        return
    if name not in found:
        raise SpecError(f"there is no example {name!r}{meant(name, found)}")
    schema = re.search(r"^schema: (\S+)$", found[name], re.MULTILINE)
    for file in (f"{name}.yaml", *([schema[1]] if schema else [])):
        target = to / file
        if target.exists():
            raise OutputExists(f"{target} exists: choose another --to")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (_examples() / file).read_text(encoding="utf-8")
        target.write_text(text.replace("../../", ""), encoding="utf-8")  # paths of the project: here, of the copy
        say(str(target))


@with_quiet
def synthesize(
    table: Annotated[str, typer.Argument(help="The private table: Parquet or CSV; a file, a folder or s3://.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon of all of it.")],
    delta: Annotated[float, typer.Option(help="Delta of all of it.")] = 1e-9,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out; repeatable.")] = None,
    public: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=WHAT", help="Public: age=0..110, born=1950-01-01..2004-12-31, sex=F,M or zip=text."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the release; default: that of the table.")] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Data set that is charged; default: frame, with this budget. Others: dpdist ledger create."),
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
    from dpdist.api.public import KINDS
    from dpdist.spec.undeclared import bounds_in

    name, sign, what = text.partition("=")
    if not sign or not what:
        raise SpecError(f"--public {text}: expected a column and what is public of it, such as age=0..110")
    if bounds := bounds_in(what):
        return name, bounds
    return name, what if what in KINDS else what.split(",")
