"""What is due of a series: its periods that have ended, each released once, as soon as its table is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import PurePosixPath
from typing import Any, TypeVar

from dpdist.data.inputs import table_source
from dpdist.data.source import find_files
from dpdist.errors import DataNotFound, DpdistError
from dpdist.ledger.tables import OPEN
from dpdist.lifecycle.history import live_attempt
from dpdist.publish.manifest import MANIFEST
from dpdist.publish.verify import read_manifest
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.series import SeriesSpec
from dpdist.storage.store import Store

T = TypeVar("T")


def later_than(spec: ReleaseSpec, months: Sequence[str]) -> list[str]:
    """The published months that a published quarter or year was not made of, by the names in its manifest."""
    if not months:
        return []
    learned = read_manifest(spec.output.path, storage_options=spec.output.storage.options).learned
    used = {PurePosixPath(one["path"]).name for one in learned["evidence"]["sum"]}
    return [name for name in (PurePosixPath(month).name for month in months) if name not in used]


def run_due(
    day: date,
    read: Callable[[Mapping[str, Any]], ReleaseSpec],
    run: Callable[[ReleaseSpec], T],
    announce: Callable[[str], None],
) -> list[T]:
    """Release the periods of a series that ended before a day, and return what was made of each.

    `read` gives the spec with some settings more. What was interrupted goes on first, with the evidence that it began
    with; then all others follow in order. What is published is passed over. A month waits until its files are there,
    and a longer period until its months are published; nothing else of the table decides. What `run` raises ends it:
    the next call goes on from there.
    """
    whole: Any = read({})
    series: SeriesSpec = whole.series
    specs = {period: read({"series.period": period}) for period in series.ended(day)}
    charges = {period: charge for period, spec in specs.items() if (charge := live_attempt(spec)) is not None}
    made = [run(specs[period]) for period, charge in charges.items() if charge.state in OPEN]
    published = set(charges)
    for period, spec in specs.items():
        if period in published:
            if not Store(spec.output.path, spec.output.storage.options).exists(MANIFEST):
                made.append(run(spec))  # it ended between the commit and the manifest
            months = [specs[m].output.path for m in series.parts(period) if m != period and m in published]
            try:
                later = later_than(spec, months)
            except (DpdistError, KeyError):  # what is only announced stops no release
                announce(f"{spec.name}: which months it was made of could not be read from its manifest")
                continue
            if later:
                announce(f"{spec.name} was made without {', '.join(later)}: a version in series.versions has them")
        elif missing := [month for month in series.parts(period) if month != period and month not in published]:
            announce(f"{spec.name} waits for {', '.join(missing)}")
        else:
            try:
                find_files(table_source(spec))
            except DataNotFound:
                announce(f"{spec.name} waits for its table")
                continue
            made.append(run(spec))
            published.add(period)
    return made
