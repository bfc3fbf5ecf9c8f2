"""How answers of the API look: text on a terminal, a small table in a notebook."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from html import escape

from dpdist.privacy.formatting import Fact

WIDTH = 80
"""Columns of text; words are never cut, so paths may be longer."""

_LABEL = re.compile(r"\S+(?: \S+)*? {2,}|\s*")
_TABLE = re.compile(r"\S {2,}\S.* {2,}\S")
_STYLE = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


class Text(str):
    """Lines of text; a string that notebooks show as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(Fact("", line) for line in self.splitlines())


def html_table(facts: Iterable[Fact], *, title: str = "") -> str:
    """An HTML table of facts; all text is escaped."""
    rows = [
        f'<tr><th style="{_STYLE}">{escape(fact.title)}</th>'
        f'<td style="{_STYLE};white-space:pre-wrap">{escape(fact.sentence)}</td></tr>'
        for fact in facts
    ]
    caption = f'<caption style="text-align:left;font-weight:bold">{escape(title)}</caption>' if title else ""
    return f"<table>{caption}{''.join(rows)}</table>"


def folded(text: str) -> str:
    """Lines cut at spaces to `WIDTH` columns, what follows a label below its beginning; tables and options stay."""
    return "\n".join(map(_folded, text.split("\n")))


def _folded(line: str) -> str:
    if len(line) <= WIDTH or line.startswith("--") or _TABLE.search(line):
        return line
    label = _LABEL.match(line)
    return cut(line, " " * (label.end() if label else 0))


def cut(line: str, indent: str) -> str:
    """A line in `WIDTH` columns, cut at spaces."""
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
