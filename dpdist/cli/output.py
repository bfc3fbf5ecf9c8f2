"""What commands print: JSON, or text in 80 columns with the guarantee first."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import typer

from dpdist.api.display import cut, folded
from dpdist.errors import printable

LONGEST_ERROR = 300
"""Characters of a line of an error; of a longer one the first sentence comes first, and the rest below it."""

_SENTENCE = re.compile(r".{30,}?(?:\. (?=[A-Z])|; )|.{30,}?: ")


class Answer(Protocol):
    """What a command found."""

    def to_json(self) -> Any:
        """The answer as JSON values."""

    def explain(self) -> str:
        """The answer for people."""


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text: all that commands print goes this way, because names and values may be a stranger's."""
    typer.echo(printable(text), err=err, nl=nl)


def show(answer: Answer, *, as_json: bool) -> None:
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
    from dpdist.errors import AccountingError
    from dpdist.privacy.formatting import Fact, lines_of
    from dpdist.privacy.guarantee import explained, from_json

    try:
        return lines_of(explained([from_json(item) for item in guarantees]))
    except AccountingError:
        return lines_of(Fact("Guarantee", item["sentence"]) for item in guarantees)
