"""What commands share: their options, and how they print, as JSON or as text in 80 columns."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from dpdist.api.display import hush
from dpdist.errors import AccountingError, printable
from dpdist.privacy.formatting import Fact, cut, folded, lines_of

if TYPE_CHECKING:
    from dpdist.spec.release import ReleaseSpec

Command = TypeVar("Command", bound=Callable[..., None])

DEFAULT_LEDGER = "sqlite:///dpdist-ledger.db"

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="Spec file (YAML).")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Override a setting of the spec, such as synthesis.records=1000; may be repeated.",
    ),
]


LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="DPDIST_LEDGER",
        help="SQLAlchemy URL of the ledger, or the path of an SQLite one; one with a password: by DPDIST_LEDGER.",
    ),
]
PublicKey = Annotated[
    Path | None, typer.Option(help="PEM file of the Ed25519 public key; the signature is then required.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", callback=hush, help="Show no progress.")]
Endpoint = Annotated[str | None, typer.Option(help="Endpoint of an S3-compatible store.")]


REQUIRED = inspect.Parameter.empty
"""In place of the default of an option that must be given."""


def option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """An option of a command, for `with_options`."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_options(*added: inspect.Parameter) -> Callable[[Command], Command]:
    """Give a command further options, which it takes together as its ``**`` mapping."""

    def extend(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        named = [one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*named, *added])  # type: ignore[attr-defined]
        return command

    return extend


with_quiet = with_options(option("quiet", Quiet, False))
"""Give a command that shows progress ``--quiet``."""


def storage_options(endpoint_url: str | None) -> dict[str, Any]:
    """The options of object storage that a command line gives."""
    return {"endpoint_url": endpoint_url} if endpoint_url else {}


def moment(text: str) -> str:
    """A time of the ledger for a table on a terminal: to the second, in UTC."""
    return f"{text[:19].replace('T', ' ')} UTC"


def overrides(settings: list[str] | None) -> dict[str, Any]:
    """What --set says, by dotted path."""
    from dpdist.spec.validation import parse_overrides

    return parse_overrides(settings or [])


def loaded(path: Path, settings: list[str] | None) -> ReleaseSpec:
    """The spec of a command line: the file, its overrides, and the ledger of the environment."""
    from dpdist.api.given import specified

    return specified(path, overrides(settings))


LONGEST_ERROR = 300
"""Characters of a line of an error; of a longer one the first sentence comes first, and the rest below it."""

_SENTENCE = re.compile(r".{30,}?(?:\. (?=[A-Z])|; )|.{30,}?: ")


class Printable(Protocol):
    """What a command found."""

    def to_json(self) -> Any:
        """The answer as JSON values."""

    def explain(self) -> str:
        """The answer for people."""


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text: all that commands print goes this way, because names and values may be a stranger's."""
    typer.echo(printable(text), err=err, nl=nl)


def show(answer: Printable, *, as_json: bool) -> None:
    """Print an answer, as JSON or for people."""
    if as_json:
        show_json(answer.to_json())
    else:
        say(folded(answer.explain()))


def show_json(value: object) -> None:
    """Print JSON."""
    say(json.dumps(value, indent=2))


def error_text(text: str, *, terminal: bool = False) -> str:
    """An error: a long line is its first sentence, and the details folded below it; on a terminal `WIDTH` columns."""
    told = "\n".join(map(_told, text.split("\n")))
    if not terminal:
        return told
    return "\n".join(cut(line, "  ") for line in told.split("\n"))


def _told(line: str) -> str:
    first = _SENTENCE.match(line) if len(line) > LONGEST_ERROR else None
    if first is None:
        return line
    fold = textwrap.TextWrapper(100, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
    fold.break_on_hyphens = False
    return "\n".join([first[0].rstrip("; "), *fold.wrap(line[first.end() :])])


def guarantee_lines(guarantees: Sequence[Mapping[str, Any]]) -> list[str]:
    """The guarantees of a manifest for a terminal; of kinds that this version does not know, their sentences."""
    from dpdist.privacy.guarantee import explained, from_json

    try:
        return lines_of(explained([from_json(item) for item in guarantees]))
    except AccountingError:
        return lines_of(Fact("Guarantee", item["sentence"]) for item in guarantees)
