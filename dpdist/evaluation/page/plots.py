"""Plots as SVG that belongs to the page: its colours, its font, no style sheet, nothing outside it.

Matplotlib draws with a few stand-in colours. In the SVG they become the page's CSS variables (and `currentColor`), and
style attributes become presentation attributes, as the page's content security policy admits no inline style.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from dpdist.evaluation.page.page import Plot, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from dpdist.privacy.arrays import Floats

INK, FAINT, PAPER = "#010203", "#040506", "#070809"
REAL, RELEASED, OTHER, BAD = "#0a0b0c", "#0d0e0f", "#101112", "#131415"
"""Stand-ins: text and axes, grid lines, background; the real table, the release, a baseline, what is wrong."""

_VARIABLES = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    PAPER: "var(--paper)",
    REAL: "var(--real)",
    RELEASED: "var(--released)",
    OTHER: "var(--other)",
    BAD: "var(--bad)",
}
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "font.size": 10.0,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "legend.edgecolor": FAINT,
    "legend.facecolor": PAPER,
    "legend.framealpha": 0.8,
    "legend.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_NAMED = 60  # rows of a heat map, at most, whose names can be read
BARS = 12  # values of an attribute, at most, that are drawn as bars
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DROPPED = {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"}
_FONT = re.compile(r"(?:(?:normal|italic|bold|\d{3})\s+)*([\d.]+)px\b")


def new_figure(
    width: float = 7.2, height: float = 3.6, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """A figure in inches with its axes, drawn in the stand-in colours; not registered with pyplot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **options)


def svg_of(figure: Figure, name: str) -> str:
    """One `<svg>` element of a figure, always the same; `name` sets its ids apart from those of other plots."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that the layout cannot measure: text is drawn by the browser
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight", pad_inches=0.06
        )
    return _belonging(buffer.getvalue(), name)


def _belonging(content: bytes, name: str) -> str:
    """The SVG with presentation attributes in the page's colours, and ids of its own."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    root = ElementTree.fromstring(visible(content.decode()).encode())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in _DROPPED:
                parent.remove(child)
    prefix = re.sub("[^a-z0-9]+", "-", name.lower())
    for element in root.iter():
        for declaration in element.attrib.pop("style", "").split(";"):
            key, _, value = (part.strip() for part in declaration.partition(":"))
            if key == "font":
                match = _FONT.search(value)
                element.set("font-size", match[1] if match else "10")
            elif key and key != "font-family":
                element.set(key, value)
        for key, value in list(element.attrib.items()):
            if key == "id":
                element.set(key, f"{prefix}-{value}")
            elif key == f"{{{_LINK}}}href":
                element.set("href", value.replace("#", f"#{prefix}-", 1))
                del element.attrib[key]
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{prefix}-"))
            else:
                element.set(key, _VARIABLES.get(value.lower(), value))
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    return ElementTree.tostring(root, encoding="unicode")


def legend(axes: Any, **options: Any) -> None:
    """A legend without a frame that hides nothing."""
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, **options)


def box_plot(title: str, groups: Mapping[str, Sequence[tuple[str, NDArray[Any], str]]], *, label: str) -> Plot:
    """Box plots side by side: for each group its boxes (name, values, colour); `label` is that of the axis."""
    figure, axes = new_figure(5.4, 3.0)
    seen: set[str] = set()
    ticks = []
    for place, (_group, boxes) in enumerate(groups.items()):
        for number, (name, values, colour) in enumerate(boxes):
            at = place + (number - (len(boxes) - 1) / 2) * 0.26
            axes.boxplot(
                values,
                positions=[at],
                widths=0.2,
                manage_ticks=False,
                patch_artist=True,
                boxprops={"facecolor": colour, "alpha": 0.35, "edgecolor": colour},
                medianprops={"color": colour, "linewidth": 2},
                whiskerprops={"color": colour},
                capprops={"color": colour},
                showfliers=len(values) <= 5_000,
                flierprops={"marker": ".", "markersize": 3, "markerfacecolor": colour, "markeredgecolor": colour},
            )
            if name not in seen:
                seen.add(name)
                axes.plot([], [], color=colour, linewidth=6, alpha=0.6, label=name)
        ticks.append(place)
    axes.set_xticks(ticks, list(groups))
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    legend(axes, loc="upper left", ncols=3)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.15)
    medians = "; ".join(
        f"{group}: " + ", ".join(f"{name} median {np.median(values):.3g}" for name, values, _ in boxes)
        for group, boxes in groups.items()
    )
    return Plot(title, svg_of(figure, title), f"Box plots of {label}. {medians}.")


def bar_plot(
    title: str, names: Sequence[str], series: Sequence[tuple[str, Sequence[float], str]], *, label: str
) -> Plot:
    """Horizontal bars of several series for each name, the first name on top."""
    figure, axes = new_figure(5.4, 0.8 + max(1.6, 0.17 * len(names) * (len(series) + 0.6)))
    place = np.arange(len(names))
    height = 0.8 / len(series)
    for number, (name, values, colour) in enumerate(series):
        axes.barh(place + (number - (len(series) - 1) / 2) * height, values, height * 0.92, color=colour, label=name)
    axes.set_yticks(place, [wrapped(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(axis="x")
    figure.legend(loc="outside upper left", ncols=len(series), frameon=False, fontsize=9, labelcolor=INK)
    return Plot(title, svg_of(figure, title), f"Bars of {label} for {len(names)} rows; the table beside it has them.")


def heat_maps(title: str, names: Sequence[str], maps: Sequence[tuple[str, NDArray[Any]]], *, alt: str) -> Plot:
    """Square matrices, each above its scale, which ends where it does: blue above zero, orange below."""
    if len(maps) == 1:
        return Plot(title, _heat_map(title, names, maps[0][1]), alt, wide=True)
    drawn = [(name, _heat_map(f"{title} {i}", names, matrix)) for i, (name, matrix) in enumerate(maps)]
    return Plot(title, "", alt, panels=tuple(Plot(name, svg, f"{name}: {alt}", wide=True) for name, svg in drawn))


def _heat_map(key: str, names: Sequence[str], matrix: NDArray[Any]) -> str:
    side = max(2.4, min(0.26 * len(names), 5.0))
    figure, (axis, scale) = new_figure(max(side + 1.2, 5.4), side + 1.9, 2, gridspec_kw={"height_ratios": [12, 0.5]})
    labels = [wrapped(text) for text in names] if len(names) <= _NAMED else []
    values = np.clip(np.nan_to_num(matrix), -1, 1)
    limit = float(np.abs(values).max(initial=0)) or 1.0
    places = np.arange(len(names) + 1) - 0.5
    _levels(axis, np.round(values / limit * 25).T / 25, (places, places), REAL)
    axis.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
    axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    steps = np.arange(-25 if (values < 0).any() else 0, 26)
    _levels(scale, steps[:, None] / 25, (np.arange(len(steps) + 1) - 0.5, places), REAL)
    ends = [0, len(steps) - 1] if steps[0] == 0 else [0, 25, len(steps) - 1]
    scale.set_xticks(ends, [f"{limit * steps[place] / 25:.3g}" for place in ends], fontsize=8)
    scale.set(yticks=[], xlim=(-0.5, len(steps) - 0.5), ylim=(0.5, -0.5))
    return svg_of(figure, key)


_CORNERS = ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))


def _levels(axis: Any, strength: NDArray[Any], ends: Sequence[NDArray[Any]], above: str) -> None:
    """Squares of a matrix from -1 to 1, between the ends of its rows (along x) and columns, one path for each level."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    for level in np.unique(strength[strength != 0]).tolist():
        x, y = np.nonzero(strength == level)
        corners = np.array([(ends[0][x + right], ends[1][y + up]) for right, up in _CORNERS])
        codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(x))
        squares = Path(corners.transpose(2, 0, 1).reshape(-1, 2), codes)
        axis.add_patch(PathPatch(squares, facecolor=above if level > 0 else OTHER, alpha=abs(level), linewidth=0))


def density_plot(
    title: str, clouds: Sequence[tuple[str, NDArray[np.float64], str]], *, labels: tuple[str, str], alt: str
) -> Plot:
    """Clouds of points in the plane side by side, as squares that are darker where there are more."""
    every = np.concatenate([points for _, points, _ in clouds])
    low, high = np.quantile(every, 0.0005, axis=0), np.quantile(every, 0.9995, axis=0)
    high = np.where(high > low, high, low + 1)
    low, high = low - (high - low) / 30, high + (high - low) / 30
    bins = [np.linspace(low[i], high[i], 37) for i in (0, 1)]
    figure, axes = new_figure(5.4, 2.9, 1, len(clouds))
    counts = [np.histogram2d(points[:, 0], points[:, 1], bins=bins)[0] / max(len(points), 1) for _, points, _ in clouds]
    top = max(float(count.max()) for count in counts) or 1.0
    for axis, (name, _, colour), count in zip(np.atleast_1d(axes), clouds, counts, strict=True):
        _levels(axis, np.ceil(np.sqrt(count / top) * 8) / 8, bins, colour)  # a few strengths
        axis.set_title(name, fontsize=10)
        axis.set_xlim(bins[0][0], bins[0][-1])
        axis.set_ylim(bins[1][0], bins[1][-1])
        axis.set_xlabel(labels[0])
        axis.grid(True)
    np.atleast_1d(axes)[0].set_ylabel(labels[1])
    return Plot(title, svg_of(figure, title), alt)


def wrapped(text: str, width: int = 30) -> str:
    """A label in lines."""
    return textwrap.fill(text, width) or " "


_COLOURS, _LINES = (RELEASED, REAL, BAD, OTHER), ("solid", "dashed", "dashdot", (0, (1, 1)))
_LEAST = 1e-4


def roc_plot(title: str, curves: Mapping[str, tuple[Floats, Floats]], *, allowed: float) -> tuple[Plot, ...]:
    """ROC curves on logarithmic axes, by name, four at most; the rate `allowed` is marked."""
    figure, axes = new_figure(5.6, 4.2)
    axes.plot([_LEAST, 1], [_LEAST, 1], linestyle="dotted", linewidth=1, color=INK, label="guessing")
    axes.axvline(allowed, linewidth=1, color=FAINT)
    for (name, (accused, found)), colour, line in zip(curves.items(), _COLOURS, _LINES, strict=False):
        points = np.maximum(accused, _LEAST), np.maximum(found, _LEAST)
        axes.step(*points, where="post", color=colour, linestyle=line, label=name)
    axes.set(xscale="log", yscale="log", xlim=(_LEAST, 1), ylim=(_LEAST, 1.2))
    axes.set(xlabel="non-members accused", ylabel="members found")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        axis.set_minor_formatter(lambda value, _: "")
    legend(axes, loc="lower right")
    names = ", ".join(curves)
    alt = f"ROC curves of the attacks ({names}) on logarithmic axes, with the diagonal of guessing."
    return (Plot(title, svg_of(figure, title), alt),)
