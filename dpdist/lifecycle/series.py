"""What is due of a series: its periods that have ended, each released once, as soon as its table is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from typing import TypeVar

from dpdist.data.inputs import table_source
from dpdist.data.source import find_files
from dpdist.errors import DataNotFound, SpecError
from dpdist.ledger.tables import COMMITTED
from dpdist.lifecycle.history import live_attempt
from dpdist.publish.manifest import MANIFEST
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.series import SeriesSpec
from dpdist.storage.store import Store

T = TypeVar("T")


def due_by(spec: ReleaseSpec, day: date) -> tuple[str, ...]:
    """The periods of a spec's series that ended before a day, in order. Raises SpecError: it has none."""
    return tuple(_series_of(spec).ended(day))


def _series_of(spec: ReleaseSpec) -> SeriesSpec:
    found: SeriesSpec | None = getattr(spec, "series", None)
    if found is None:
        raise SpecError("series: the spec has no such section")
    return found


def run_due(
    periods: Iterable[str],
    read: Callable[[str], ReleaseSpec],
    run: Callable[[ReleaseSpec], T],
    announce: Callable[[str], None],
) -> list[T]:
    """Release the periods of a series that are due, in order, and return what was made of each.

    `read` gives the spec of a period. What is published is passed over, and an interrupted attempt goes on. A month
    waits until its files are there, and a longer period until its months are published; nothing else of the table
    decides. What `run` raises ends it: the next call goes on from there.
    """
    made, published = list[T](), set[str]()
    for period in periods:
        spec = read(period)
        if missing := [m for m in _series_of(spec).parts(period) if m != period and m not in published]:
            announce(f"{spec.name} waits for {', '.join(missing)}")
            continue
        charge = live_attempt(spec)
        if charge is None and not _is_there(spec):
            announce(f"{spec.name} waits for its table")
            continue
        done = charge is not None and charge.state == COMMITTED
        if not (done and Store(spec.output.path, spec.output.storage.options).exists(MANIFEST)):
            made.append(run(spec))
        published.add(period)
    return made


def _is_there(spec: ReleaseSpec) -> bool:
    try:
        find_files(table_source(spec))
    except DataNotFound:
        return False
    return True
