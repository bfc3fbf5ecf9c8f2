"""How the help of commands reads: commands in groups, an example each, and kinds of values in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

GROUPS = {
    "Publish": ("synthesize", "schema", "spec", "plan", "release", "examples", "sample"),
    "Use": ("verify", "export", "draw", "tabulate", "infer", "replicates"),
    "Keep": ("ledger", "contract", "account"),
    "Operate": ("evaluate", "audit", "join", "cluster", "runs"),
}
"""The commands of ``dpdist`` by purpose."""

EXAMPLES = {
    "plan": "plan people.yaml --risk '1% to 2%' --write people-2.yaml",
    "release": "release people.yaml --set privacy.epsilon=1",
    "synthesize": "synthesize people.parquet --epsilon 1 --drop customer_id --public age=0..110",
    "examples": "examples demo",
    "evaluate": "evaluate releases/people --spec people.yaml --output evaluation",
    "verify": "verify releases/people --public-key people.pub.pem",
    "draw": "draw releases/people --records 10000 --where 'age >= 65' --out old.parquet",
    "export": "export releases/people --to dta",
    "tabulate": "tabulate releases/people age sex",
    "replicates": "replicates releases/people --out weights.csv",
    "infer": "infer releases/people 'mean age where sex = 1'",
    "sample": "sample census --rows 300000",
    "audit": "audit people.yaml --runs 400",
    "ledger create": "ledger create people --epsilon 4 --delta 1e-8",
    "ledger identity": "ledger identity people > people.pub.pem",
    "ledger total": "ledger total people --to total.json",
    "ledger show": "ledger show people",
    "ledger anchor": "ledger anchor people",
    "ledger verify": "ledger verify people",
    "ledger give-up": "ledger give-up 3f0c12ab",
    "ledger report": "ledger report budget.html",
    "ledger metrics": "ledger metrics --listen 127.0.0.1:9100",
    "contract draft": "contract draft people-schema.yaml --epsilon 4 --delta 1e-8 > contract.yaml",
    "contract check": "contract check contract.yaml",
    "contract show": "contract show people",
    "contract amend": "contract amend people contract.yaml --reason 'a column more'",
    "schema draft": "schema draft codebook.xml > people-schema.yaml",
    "schema discover": "schema discover people.csv found --column zip --dataset people --epsilon 0.1 --delta 1e-9",
    "schema check": "schema check people-schema.yaml --against people.csv",
    "schema json": "schema json spec > spec.schema.json",
    "spec schema": "spec schema > spec.schema.json",
    "spec show": "spec show people.yaml --set privacy.epsilon=1",
    "account plausible-deniability": "account plausible-deniability --k 50 --gamma 4 --epsilon0 1 --passing-mass 1e6 "
    "--records 10000 --delta 1e-9",
    "account mixing": "account mixing --order 8 --class-size 5000 --records 1000 --epsilon 1 --delta 1e-6",
    "account entropy": "account entropy --records 1000",
    "account pml": "account pml --epsilon 1 --alpha 0.01",
    "join": "join together.yaml --client west --accept 3f0c12ab",
    "cluster certs": "cluster certs tls",
    "cluster secrets": "cluster secrets --namespace dpdist | kubectl apply --server-side -f -",
    "runs list": "runs list",
    "runs clean": "runs clean --output releases/people",
    "runs show": "runs show 3f0c12ab",
}
"""An example of each command, below its help."""

_WORDS = {"str": "TEXT", "path": "PATH", "int": "NUMBER", "float": "NUMBER"}


class Command(TyperCommand):
    """A command whose help and errors have no names of types."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left. Raises UsageError: one has no value of its option."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The pieces of the usage line, names of arguments in capitals."""
        return [re.sub(r"[{}]|\.{3}(?=}\.)", "", piece).upper() for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            of = [one for one in self.get_params(ctx) if one.param_type_name == kind]
            records = [record for record in (one.get_help_record(ctx) for one in of) if record is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl([(_plain(left, kind), _ranges(right)) for left, right in records])


class Group(TyperGroup):
    """A group whose help has its commands by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, those of ``dpdist`` below a title each."""
        if self.name != "dpdist":
            return super().format_commands(ctx, formatter)
        width = max(map(len, self.commands)) + 2
        for title, names in GROUPS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(80 - width - 4)) for name in names]
                formatter.write_dl(rows, col_spacing=0)


def _plain(left: str, kind: str) -> str:
    """The name of a parameter and its kind of value, in words."""
    name, _, value = left.partition(" <")
    if kind == "argument":
        return name.upper()
    words = re.sub(r"list\[(.*)\]|>(\.\.\.)?$| range", r"\1", value)
    return f"{name} {_WORDS.get(words, words)}" if value else left


def _ranges(right: str) -> str:
    """What is said of a parameter, its range in words."""
    return re.sub(r"x>=([^];]+)", r"\1 or more", re.sub(r"([^ [;]+)<=x<=([^];]+)", r"\1 to \2", right))


def commands_of(app: typer.Typer, path: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of an app, and of its groups, by name."""
    for info in app.registered_commands:
        name = info.name or getattr(info.callback, "__name__", "").replace("_", "-")
        yield f"{path}{name}", info
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from commands_of(group.typer_instance, f"{group.name} ")


def dress(app: typer.Typer) -> None:
    """Give the commands and groups of an app their help."""
    for name, info in commands_of(app):
        info.cls, info.epilog = Command, f"Example: dpdist {EXAMPLES[name]}"
    app.info.cls = Group
