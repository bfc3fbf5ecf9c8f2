"""Plots of the attacks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpdist.evaluation.page.plots import BAD, FAINT, INK, OTHER, REAL, RELEASED, legend, new_figure, svg_of
from dpdist.evaluation.page.sections import Plot
from dpdist.privacy.arrays import Floats

_COLOURS, _LINES = (RELEASED, REAL, BAD, OTHER), ("solid", "dashed", "dashdot", (0, (1, 1)))
_LEAST = 1e-4


def roc_plot(title: str, curves: Mapping[str, tuple[Floats, Floats]], *, allowed: float) -> tuple[Plot, ...]:
    """ROC curves (rates of accused non-members and found members, by name; four at most) on logarithmic axes, so that
    few, certain accusations can be seen. The rate `allowed` is marked.
    """
    figure, axes = new_figure(5.6, 4.2)
    axes.plot([_LEAST, 1], [_LEAST, 1], linestyle="dotted", linewidth=1, color=INK, label="guessing")
    axes.axvline(allowed, linewidth=1, color=FAINT)
    for (name, (accused, found)), colour, line in zip(curves.items(), _COLOURS, _LINES, strict=False):
        axes.step(
            np.maximum(accused, _LEAST),
            np.maximum(found, _LEAST),
            where="post",
            color=colour,
            linestyle=line,
            label=name,
        )
    axes.set(xscale="log", yscale="log", xlim=(_LEAST, 1), ylim=(_LEAST, 1.2))
    axes.set(xlabel="non-members accused", ylabel="members found")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        axis.set_minor_formatter(lambda value, _: "")
    legend(axes, loc="lower right")
    names = ", ".join(curves)
    alt = f"ROC curves of the attacks ({names}) on logarithmic axes, with the diagonal of guessing."
    return (Plot(title, svg_of(figure, title), alt),)
