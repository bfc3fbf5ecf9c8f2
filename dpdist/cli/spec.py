"""``dpdist spec``: the JSON schema of specs, and a spec as it will be used."""

from __future__ import annotations

import typer

from dpdist.cli.options import Settings, SpecPath, load
from dpdist.cli.output import say, show_json
from dpdist.cli.schema import json_schema_of

spec_app = typer.Typer(help="Specs: their JSON schema.", no_args_is_help=True, rich_markup_mode=None)


@spec_app.command("schema")
def spec_schema() -> None:
    """Print the JSON schema of a spec file."""
    show_json(json_schema_of("spec"))


@spec_app.command("show")
def spec_show(spec: SpecPath, settings: Settings = None) -> None:
    """Print a spec as it will be used, defaults included."""
    loaded = load(spec, settings)
    say(loaded.model_dump_json(indent=2, by_alias=True))
