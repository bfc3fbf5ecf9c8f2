"""A small picture of each attribute, real beside released: bars of a few values, a line of many.

Bins of unequal width are drawn as wide as they are, by their density, unless some would be too narrow to be seen; the
note says which. Missing values have no place on a line: the note has their shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.evaluation.page.page import Plot
from dpdist.evaluation.page.plots import BARS, REAL, RELEASED, new_figure, svg_of, wrapped
from dpdist.evaluation.records import Axis
from dpdist.privacy.arrays import Floats
from dpdist.spec.groups import DAY

_EQUAL = 1.25  # widest over narrowest bin, at most, where bins are drawn as equally wide: months are
_NARROWEST = 200  # bins of a part of the range smaller than this one cannot be seen
_SERIES = (("real", REAL, "solid"), ("released", RELEASED, "dashed"))


@dataclass(frozen=True, eq=False)
class BothShares:
    """The shares of the values of an attribute, real and released."""

    axis: Axis
    real: Floats
    released: Floats

    @property
    def series(self) -> tuple[Floats, Floats]:
        """Both."""
        return self.real, self.released

    @property
    def has_line(self) -> bool:
        """Whether they are drawn as a line: values in an order, and too many for bars."""
        return self.axis.ordered and self.axis.size - (self.axis.missing is not None) > BARS

    def without_missing(self) -> tuple[BothShares, str]:
        """The same without missing values, and a sentence on these."""
        code = self.axis.missing
        if code is None or code != self.axis.size - 1:
            return self, ""
        kept = Axis(self.axis.name, self.axis.labels[:code], True, ends=self.axis.ends, dated=self.axis.dated)
        shares = f"real {self.real[code]:.1%}, released {self.released[code]:.1%}"
        return BothShares(kept, self.real[:code], self.released[:code]), f"{self.axis.labels[code]}: {shares}"

    def largest(self) -> tuple[Sequence[str], tuple[Floats, ...]]:
        """The values for bars: of many the most frequent ones, and the others together."""
        labels = self.axis.labels
        if len(labels) <= BARS or self.axis.ordered:
            return labels, self.series
        order = np.argsort(-self.real, kind="stable")
        first, rest = order[: BARS - 1], order[BARS - 1 :]
        shown = [*(labels[place] for place in first), f"{len(rest)} others"]
        return shown, tuple(np.append(part[first], part[rest].sum()) for part in self.series)


def profile_plot(title: str, panels: Sequence[BothShares]) -> Plot:
    """The shares of the values of attributes, a panel for each."""
    drawn = tuple(_line(f"{title} {i}", one) if one.has_line else _bars(f"{title} {i}", one)
                  for i, one in enumerate(panels))  # fmt: skip
    alt = f"Shares of the values of {', '.join(one.axis.name for one in panels)}, real beside released."
    return Plot(title, "", alt, panels=drawn)


def _bars(key: str, shares: BothShares) -> Plot:
    labels, series = shares.largest()
    figure, axis = new_figure(4.2, 0.5 + 0.22 * len(labels))
    place = np.arange(len(labels))
    for (_, colour, _), values, shift in zip(_SERIES, series, (-0.2, 0.2), strict=True):
        axis.barh(place + shift, values, 0.38, color=colour)
    axis.set_yticks(place, [wrapped(label, 26) for label in labels])
    axis.invert_yaxis()
    _percent(axis, axis.xaxis)
    return _plot(key, figure, shares, "")


def _line(key: str, whole: BothShares) -> Plot:
    shares, *said = whole.without_missing()
    ends, widths, unit, per = _scale(shares.axis)
    figure, axis = new_figure(4.2, 2.3)
    for (_, colour, line), values in zip(_SERIES, shares.series, strict=True):
        axis.stairs(values / widths * unit, ends, color=colour, linestyle=line, linewidth=1.4)
    axis.set_ylim(bottom=0)
    if shares.axis.ends is None or shares.axis.dated or per == _AS_WIDE:
        places = [0, len(widths) // 2, len(widths) - 1]
        middle = (ends[:-1] + ends[1:]) / 2
        axis.set_xticks([middle[i] for i in places], [wrapped(shares.axis.labels[i], 16) for i in places])
    else:
        axis.locator_params(axis="x", nbins=5)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    _percent(axis, axis.yaxis)
    return _plot(key, figure, shares, "; ".join(filter(None, [*said, per])))


_AS_WIDE = "bins of unequal width, drawn equally wide"


def _scale(axis: Axis) -> tuple[Floats, Floats, float, str]:
    """Where bins begin and the last one ends; what shares are divided by, and multiplied by; and a note."""
    places = np.arange(axis.size + 1, dtype=np.float64)
    if axis.ends is None:
        return places, np.ones(axis.size), 1.0, ""
    widths, span = np.diff(axis.ends), float(axis.ends[-1] - axis.ends[0])
    if widths.max() <= _EQUAL * widths.min():
        return axis.ends, np.ones(axis.size), 1.0, ""
    if widths.min() < span / _NARROWEST:
        return places, np.ones(axis.size), 1.0, _AS_WIDE
    if axis.dated:
        return axis.ends, widths, float(DAY if axis.dated == "datetime" else 1), "bins of unequal width: share per day"
    unit = 10.0 ** np.floor(np.log10(span / axis.size))
    return axis.ends, widths, float(unit), f"bins of unequal width: share per {unit:,.6g}"


def _percent(axis: Any, which: Any) -> None:
    which.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    axis.tick_params(labelsize=8.5)
    axis.grid(axis=which.axis_name)


def _plot(key: str, figure: Any, shares: BothShares, note: str) -> Plot:
    alt = f"Shares of the values of {shares.axis.name}, real beside released. {note}".strip()
    return Plot(shares.axis.name, svg_of(figure, key), alt, note=note)
