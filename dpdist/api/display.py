"""How answers of the API look: text on a terminal, a small table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_STYLE = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


class Text(str):
    """Lines of a label and what it is; a string that notebooks show as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self.splitlines())


def html_table(lines: Iterable[str], *, title: str = "") -> str:
    """An HTML table of lines whose label ends at two blanks; all text is escaped."""
    rows = []
    for line in lines:
        label, blanks, rest = line.partition("  ")
        if not blanks:
            label, rest = "", line
        rows.append(
            f'<tr><th style="{_STYLE}">{escape(label.strip())}</th>'
            f'<td style="{_STYLE};white-space:pre-wrap">{escape(rest.strip())}</td></tr>'
        )
    caption = f'<caption style="text-align:left;font-weight:bold">{escape(title)}</caption>' if title else ""
    return f"<table>{caption}{''.join(rows)}</table>"
