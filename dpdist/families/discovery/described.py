"""What a published discovery says about the columns of its table, for a schema that is drafted from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa

from dpdist.families.discovery.spec import DiscoverySpec
from dpdist.publish.manifest import Manifest
from dpdist.spec.described import NAMES_RECORDS, Described
from dpdist.spec.reader import load_public
from dpdist.spec.undeclared import MISSING

_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_OTHER = "values that are not named"


def described(manifest: Manifest, table: pa.Table) -> list[Described]:
    """What a discovery says about each column. It costs nothing."""
    spec = cast(DiscoverySpec, load_public(manifest.spec, manifest.table))
    return [_column(name, table, spec, manifest.parameters) for name in spec.table.names]


def _column(name: str, table: pa.Table, spec: DiscoverySpec, parameters: Mapping[str, Any]) -> Described:
    cells = [
        (row["statistic"], row["cell"], row["value"])
        for row in table.select(["statistic", "of", "cell", "value"]).to_pylist()
        if row["of"] == name
    ]
    seen, deviation = float(parameters["seen_from"]), float(parameters["deviation"])
    lacking = next(value for statistic, _, value in cells if statistic == MISSING)
    said = f"about {lacking:,.0f} missing" if lacking >= seen else "few missing or none"
    counts = f"counts are noisy, +-{deviation:.3g}"
    # a few missing values would not be seen: a draft that refused them could cost its release
    few = _OTHER if name in spec.texts else ""
    common: dict[str, Any] = {"name": name, "nullable": True, "nothing": MISSING if lacking >= seen else few}
    if name in spec.texts:
        found = [cell for statistic, cell, _ in cells if statistic == "value"]
        values = dict.fromkeys(sorted(found, key=int) if all(map(_INTEGER.fullmatch, found)) else found, "")
        note = f"values with a noisy count from {parameters['named_from']:,}; {said}; {counts}"
        if not values:
            note = f"no value has a noisy count of {parameters['named_from']:,} or more. {NAMES_RECORDS}, if so"
        return Described(**common, note=note, items=values, texts=True, others=_OTHER)
    kind, integers = spec.columns[name], spec.table.attributes[spec.table.names.index(name)].kind == "integer"
    if not isinstance(kind, str):
        low, high = kind
        note = f"bounds as the spec declares them; {said}, or outside; {counts}"
    else:
        low, high = _bounds(name, [value >= seen for statistic, _, value in cells if statistic == "bin"], spec)
        note = f"bounds are powers of two that hold all but few values; {said}; {counts}"
        strange = next(value for statistic, _, value in cells if statistic == "bin")  # of another type, or huge
        if strange >= seen:
            note = f"about {strange:,.0f} are no such numbers: discover it as text; {said}; {counts}"
    return Described(**common, note=note, low=_text(low), high=_text(high), integers=integers, others="clip")


def _bounds(name: str, seen: list[bool], spec: DiscoverySpec) -> tuple[Any, Any]:
    """The ends of the bins that have records; empty texts where none seems to."""
    attribute = spec.table.attributes[spec.table.names.index(name)]
    places = [place for place, has in enumerate(seen) if has and place]
    if not places or attribute.bounds is None:
        return "", ""
    edges = [*attribute.bin_edges.tolist(), attribute.bounds[1] + (attribute.kind == "integer")]
    low, high = edges[places[0]], edges[places[-1] + 1] - (attribute.kind == "integer")
    return (type(low)(0) if 0 < low * low <= high else low), high  # a range that begins far below its end has a 0


def _text(end: Any) -> str:
    return end if isinstance(end, str) else repr(end)
