"""What an evaluation says: sections of tables, plots and figures, with a verdict in words.

A section is what one part of an evaluation (the marginals, a model, an attack) hands to the page and to the JSON. Text
is plain text: the page escapes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
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
    svg: str  # one `<svg>` element, as `dpdist.evaluation.page.plots.svg_of` writes it
    alt: str  # what the plot shows, for who cannot see it
    wide: bool = False  # whether its text would be too small on a phone, where it is scrolled instead of shrunk


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
