"""The page: one HTML file that works offline and asks for nothing.

Everything it shows is text that Jinja escapes, or SVG that `dpdist.evaluation.page.plots` drew. Its content security
policy forbids every request and every style and script but the two that are written here, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from dpdist.evaluation.page.sections import Cell, PageSection, PageTable, Plot, plain, visible

CONFIDENTIAL = "CONFIDENTIAL: computed from private records without noise. For the holder of the data only."

WORDS = {"good": "good", "fair": "with reserve", "bad": "poor", "info": "for information"}
QUESTIONS = {
    "publishable": "Which figures may leave this page?",
    "holdout": "Are the held-out records ones that the release has never seen?",
    "marginals": "Counted by one, two or three attributes at a time, do released records look like the real ones?",
    "correlations": "Do attributes depend on each other as they do in the real table?",
    "wide": "Counted by four or five attributes at a time, do released records look like the real ones?",
    "coverage": "Do the 95 % intervals that the release gives hold what the real table says?",
    "components": "Do released records lie where real ones lie, if all attributes are looked at together?",
    "models": "Does a model that learns from released records do as well on real people as one that learns from real "
    "records?",
    "attributes": "How well can each attribute be predicted from the others, having learned from released records?",
    "regression": "Can a number be predicted as well from released records as from real ones?",
    "distinguishing": "Can a computer tell released records from real ones? This measures likeness, not privacy: "
    "copies of the real records could not be distinguished at all.",
    "copies": "Does the release repeat the people it was made from more often than people it has never seen?",
    "membership": "Given a person's record, can an attacker tell from the release whether the person was in the table?",
    "linkage": "Given two halves of a person's record, can an attacker tell by the release that they belong together?",
    "inference": "Knowing all of a person's record but one value, does an attacker guess that value better because "
    "the person was in the table?",
    "location": "Do released numbers lie nearer to those of the people the release was made from than chance explains?",
    "counts": "How far are released counts from the true ones?",
    "entropies": "How far are released entropies, which say how evenly values are spread, from the true ones?",
    "means": "How far is the released mean curve from the true one?",
}
"""What each section asks, for who has not met its name; by the name of the section."""

_NAME = re.compile("[a-z][a-z0-9-]*")
_FORBIDDEN = re.compile(r"<\s*(script|style|foreignobject|image|iframe|a)\b|\bon[a-z]+\s*=|javascript:|https?://", re.I)
_NAMESPACES = re.compile(r'\sxmlns(:xlink)?="http://www\.w3\.org/[^"]*"')


@dataclass(frozen=True, kw_only=True)
class PageAbout:
    """What was evaluated, or another subject of a page."""

    name: str  # name of the release
    heading: str = "Evaluation of"  # what stands before the name
    summary: str = (  # how the verdicts are to be read
        "Each verdict is a rule of thumb; its section has the figures. An attack that finds nothing proves nothing: "
        "what protects people is the guarantee above."
    )
    facts: tuple[tuple[str, str], ...]  # what was released, from what, how much of it, with which seed
    guarantees: tuple[str, ...]  # a sentence each, with adjacency, delta and what it covers
    accuracy: str | None = None  # how accurate the records were measured to be, within the guarantee
    not_private: str | None = None  # why the guarantee does not hold, for a release made with a fixed key
    banner: str = CONFIDENTIAL
    confidential: bool = True  # the banner is a warning
    footer: str = ""


def render(about: PageAbout, sections: Sequence[PageSection]) -> str:
    """The whole HTML document. Raises ValueError: a name is no anchor or stands twice, or a plot is no plain SVG."""
    from jinja2 import Environment, StrictUndefined

    names = [section.name for section in sections]
    if len(set(names)) != len(names) or not all(_NAME.fullmatch(name) for name in names):
        raise ValueError(f"the names of sections differ and are of letters, digits and hyphens, not {names}")
    style, script = (_resource(name) for name in ("page.css", "page.js"))
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    return environment.from_string(_resource("page.html")).render(
        about=about,
        sections=[_shown(section) for section in sections],
        words=WORDS,
        style=_trusted(style),
        script=_trusted(script),
        style_hash=_trusted(_hash(style)),
        script_hash=_trusted(_hash(script)),
    )


def _shown(section: PageSection) -> dict[str, object]:
    return {
        "name": section.name,
        "title": section.title,
        "question": QUESTIONS.get(section.name, ""),
        "verdict": section.verdict,
        "state": section.state,
        "plots": [
            {"title": plot.title, "alt": plot.alt, "svg": _trusted(_checked(plot)), "wide": plot.wide}
            for plot in section.plots
        ],
        "tables": [_shown_table(table) for table in section.tables],
    }


def _shown_table(table: PageTable) -> dict[str, object]:
    rows = [[{"text": text_of(cell), "number": _number(cell)} for cell in row] for row in table.rows]
    columns = [
        {"text": name, "number": any(row[i]["number"] is not None for row in rows)}
        for i, name in enumerate(table.columns)
    ]
    return {"title": table.title, "columns": columns, "rows": rows, "note": table.note}


def text_of(cell: Cell) -> str:
    """A cell for people: numbers to three digits, None as a dash."""
    cell = plain(cell)
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        if 0 < abs(cell) < 1e-4 and abs(cell) >= 1e-7:
            return np.format_float_positional(float(f"{cell:.2g}"), trim="-")
        return f"{cell:,.0f}" if abs(cell) >= 1_000 else f"{cell:.3g}"
    return str(cell)


def _number(cell: Cell) -> str | None:
    """What a cell is sorted by, if it is a number."""
    if isinstance(cell, (bool, np.bool_)) or not isinstance(cell, (numbers.Real, np.number)):
        return None
    value = plain(cell)
    return None if value is None else repr(value)


def _checked(plot: Plot) -> str:
    """The SVG of a plot, refused where it could do more than show."""
    svg = _NAMESPACES.sub("", plot.svg.strip())
    outside = re.sub(r">[^<]*<", "><", svg)  # text between tags is escaped and does nothing
    if not svg.startswith("<svg") or not svg.endswith("</svg>") or _FORBIDDEN.search(outside):
        raise ValueError(f"the plot {plot.title!r} is not one <svg> element of shapes and text: make it with svg_of")
    return svg


def _trusted(text: str) -> object:
    from markupsafe import Markup

    return Markup(text)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _resource(name: str) -> str:
    return files("dpdist.evaluation.page").joinpath(name).read_text(encoding="utf-8")
