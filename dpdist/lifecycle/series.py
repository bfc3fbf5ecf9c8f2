"""What is due of a series: its periods that have ended, each released once, as soon as its table is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from typing import TypeVar

from dpdist.data.inputs import table_source
from dpdist.data.source import find_files
from dpdist.errors import DataNotFound, SpecError
from dpdist.ledger.tables import OPEN
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
    """Release the periods of a series that are due, and return what was made of each.

    `read` gives the spec of a period. What was interrupted goes on first, with the evidence that it began with; then
    all others follow in order. What is published is passed over. A month waits until its files are there, and a longer
    period until its months are published; nothing else of the table decides. What `run` raises ends it: the next call
    goes on from there.
    """
    specs = {period: read(period) for period in periods}
    charges = {period: live_attempt(spec) for period, spec in specs.items()}
    made = [run(specs[period]) for period, charge in charges.items() if charge is not None and charge.state in OPEN]
    published = {period for period, charge in charges.items() if charge is not None}
    for period, spec in specs.items():
        if period in published:
            if not Store(spec.output.path, spec.output.storage.options).exists(MANIFEST):
                made.append(run(spec))  # it ended between the commit and the manifest
        elif missing := [m for m in _series_of(spec).parts(period) if m != period and m not in published]:
            announce(f"{spec.name} waits for {', '.join(missing)}")
        elif not _is_there(spec):
            announce(f"{spec.name} waits for its table")
        else:
            made.append(run(spec))
            published.add(period)
    return made


def _is_there(spec: ReleaseSpec) -> bool:
    try:
        find_files(table_source(spec))
    except DataNotFound:
        return False
    return True
