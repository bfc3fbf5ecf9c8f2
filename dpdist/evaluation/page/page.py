"""The page: one HTML file that works offline and asks for nothing; and its sections, with a verdict in words.

A section is what one part of an evaluation (the marginals, a model, an attack) hands to the page and to the JSON. All
the page shows is plain text, which Jinja escapes, or SVG that `dpdist.evaluation.page.plots` drew. Its content security
policy forbids every request and every style and script but the two that are written here, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import numpy as np

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_PERCENT = re.compile(r"(?<=[0-9]) ?%")

State: TypeAlias = Literal["good", "fair", "bad", "info"]
"""How a verdict is to be read: as good news, with reserve, as bad news, or as information."""

Cell: TypeAlias = object  # str, bool, int, float, a NumPy scalar, or None where there is nothing to say


@dataclass(frozen=True)
class PageTable:
    """A table of the page. Raises ValueError: a row has another number of cells than there are columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]  # cells, as many in each row as there are columns
    note: str = ""  # a sentence under the table: what was compared, on how many rows, with which seed

    def __post_init__(self) -> None:
        object.__setattr__(self, "note", _spaced(self.note))
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"each row of {self.title!r} needs {len(self.columns)} cells")

    def to_json(self) -> dict[str, Any]:
        """The table as a JSON object."""
        rows = [[plain(cell) for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}


@dataclass(frozen=True)
class Plot:
    """A plot of the page."""

    title: str
    svg: str  # one `<svg>` element, as `dpdist.evaluation.page.plots.svg_of` writes it; empty of one with panels
    alt: str  # what the plot shows, for who cannot see it
    wide: bool = False  # whether its text would be too small on a phone, where it is scrolled instead of shrunk
    note: str = ""  # a sentence under it
    panels: tuple[Plot, ...] = ()  # plots in its place, as many side by side as there is room for

    def __post_init__(self) -> None:
        object.__setattr__(self, "note", _spaced(self.note))


@dataclass(frozen=True)
class PageSection:
    """A part of an evaluation."""

    name: str  # its key in the JSON and its anchor in the page: lower-case letters, digits and hyphens
    title: str
    verdict: str  # one or two sentences that say what was found
    state: State
    tables: tuple[PageTable, ...] = ()
    plots: tuple[Plot, ...] = ()
    figures: Mapping[str, object] = field(default_factory=dict)  # what was measured, for the JSON

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", _spaced(self.verdict))

    def to_json(self) -> dict[str, Any]:
        """The section as a JSON object; plots are left out."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "state": self.state,
            "figures": plain(self.figures),
            "tables": [table.to_json() for table in self.tables],
        }


def visible(text: str) -> str:
    """Text in which control characters and changes of direction, of labels for instance, are seen and do nothing."""
    return _UNSEEN.sub("\ufffd", text)


def _spaced(text: str) -> str:
    """Visible, with percent signs after a space that breaks no line."""
    return _PERCENT.sub("\u00a0%", visible(text))


def does_not_apply(name: str, title: str, why: str) -> PageSection:
    """A section that says why there is nothing to measure."""
    return PageSection(name, title, f"Does not apply: {why}", "info", figures={"applies": False, "why": why})


def plain(value: object) -> Any:
    """A value as JSON knows it; NaN and infinities are None. Raises TypeError: it has no such form."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    raise TypeError(f"a figure cannot be of type {type(value).__name__}")


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
        "plots": [*map(_shown_plot, section.plots)],
        "tables": [_shown_table(table) for table in section.tables],
    }


def _shown_plot(plot: Plot) -> dict[str, object]:
    return {
        **{"title": plot.title, "alt": plot.alt, "wide": plot.wide, "note": plot.note},
        "svg": "" if plot.panels else _trusted(_checked(plot)),
        "panels": [*map(_shown_plot, plot.panels)],
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
        if abs(cell) >= 999.5:
            return f"{cell:,.0f}"
        return f"{cell:#.3g}".rstrip(".") if abs(cell) >= 1e-4 else f"{cell:.3g}"
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
