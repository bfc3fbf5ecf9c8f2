"""What the domain of an attribute cannot be. Each function raises ValueError, without the attribute's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpdist.spec.groups import LARGEST_INTEGER, Category, Count, Edges, Every

if TYPE_CHECKING:
    from dpdist.spec.attribute import Attribute


def check_bounds(attribute: Attribute) -> None:
    """Refuse what an integer or a number cannot be."""
    if attribute.values is not None:
        raise ValueError(f"of kind {attribute.kind}, it takes `bounds`, not `values`")
    if attribute.bounds is None:
        raise ValueError("declare its `bounds`, such as [0, 100]")
    lo, hi = attribute.bounds
    if attribute.is_whole:
        if lo > hi:
            raise ValueError("the lower bound exceeds the upper bound")
        if lo < -LARGEST_INTEGER or hi > LARGEST_INTEGER:
            raise ValueError("bounds lie within -2^62 and 2^62")
        if isinstance(attribute.bins, Edges) and (attribute.bins.edges[0] != lo or attribute.bins.edges[-1] > hi):
            first, last = map(attribute.shown, (lo, hi))
            raise ValueError(f"bin edges are lower ends: the first is {first}, the last at most {last}")
        if isinstance(attribute.bins, Count) and attribute.bins.count > hi - lo + 1:
            raise ValueError("more bins than integers in the bounds")
        return
    if lo >= hi:
        raise ValueError("the lower bound of a number must be below the upper bound")
    if not np.isfinite(hi - lo):
        raise ValueError("the bounds are too far apart for floats")
    if attribute.is_continuous:
        if attribute.buckets is not None or attribute.labels is not None or attribute.levels:
            raise ValueError("buckets, levels and labels of a number need `bins`")
        if isinstance(attribute.missing, Category) or isinstance(attribute.out_of_domain, Category):
            raise ValueError("a category among numbers needs `bins`")
        return
    edges = attribute.bin_edges
    if (np.diff(edges) <= 0).any():
        raise ValueError("more bins than floats in the bounds")
    if edges[0] != lo or edges[-1] >= hi:
        raise ValueError(
            "the bins do not cover the domain: their edges are lower ends, the first is the lower bound "
            f"{lo:.15g}, and the last must lie below the upper bound {hi:.15g}, which is no edge"
        )


def check_heaps(attribute: Attribute) -> None:
    """Refuse heaps and a step that do not go with the bins."""
    if isinstance(attribute.step, Every):
        if attribute.bins != attribute.step or attribute.heaps or not attribute.begins:
            raise ValueError("`step` {every: …} goes with the same `bins`, no heaps, and bounds that begin with one")
        return
    if (attribute.heaps and attribute.bins is None) or (
        attribute.step is not None and (attribute.kind != "number" or attribute.bins is None)
    ):
        raise ValueError("`heaps` go with `bins`, and `step` with those of a number")
    lo, hi = attribute.bounds or (0, 0)
    if not all(lo <= heap < hi + attribute.is_whole for heap in attribute.heaps):
        raise ValueError(
            f"`heaps` lie within the bounds, from {attribute.shown(lo)} on and below the end of the last bin"
        )
    if attribute.step is not None and not hi - lo >= attribute.step >= (hi - lo) * 2.0**-52:
        raise ValueError("`step` is at most the width of the bounds, and within the precision of floats")


def check_values(attribute: Attribute) -> None:
    """Refuse values that are no domain."""
    if attribute.bounds is not None or attribute.bins is not None or attribute.heaps or attribute.step is not None:
        raise ValueError(f"a {attribute.kind} attribute takes `values` only")
    if not attribute.values:
        raise ValueError("declare its `values`, such as [north, south]")
    if len(set(map(str, attribute.values))) != len(attribute.values):
        raise ValueError("a value is declared twice")
    if len({isinstance(v, int) for v in attribute.values}) > 1:
        raise ValueError("values are all integers or all texts (quote them)")
    if any(isinstance(v, int) and abs(v) > LARGEST_INTEGER for v in attribute.values):
        raise ValueError("values lie within -2^62 and 2^62")


def check_texts(attribute: Attribute) -> None:
    """Refuse aliases, labels and policies that do not go with the values."""
    names = set(map(str, attribute.values or ()))
    if set(map(str, attribute.aliases.values())) - names:
        raise ValueError("an alias points to a value that is not declared")
    missing = {attribute.missing.category} if isinstance(attribute.missing, Category) else set()
    if missing & names:
        raise ValueError("the missing category is also a declared value")
    if attribute.labels is not None and len(attribute.labels) != attribute.declared:
        raise ValueError(f"expected {attribute.declared} labels, one per value")
    if attribute.out_of_domain == "clip" and attribute.kind == "categorical":
        raise ValueError("`clip` needs an ordered attribute")
    if isinstance(attribute.out_of_domain, Category) and attribute.out_of_domain.category not in names | missing:
        raise ValueError("the out-of-domain category must be a value or the missing category")
