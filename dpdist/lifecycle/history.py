"""The history of runs, from the ledger and from the confidential work folders."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.errors import LedgerError
from dpdist.ledger import Books
from dpdist.publish.manifest import MANIFEST
from dpdist.storage.local import sweep_reports
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.families.base.attempt import Attempt
    from dpdist.ledger import Charge
    from dpdist.spec.release import ReleaseSpec

RUN_RECORD = "run-record.json"
ERROR_FILE = "error.txt"
_SHOWN = 8
CONFIDENTIAL = "confidential: for the operator of this release only; it holds private counts"


@dataclass(frozen=True)
class RunSummary:
    """One attempt at a release."""

    dataset: str  # dataset, release, attempt, state, created: from the ledger
    release: str
    attempt: str
    state: str  # or "refused", where the run ended with an answer about the table: a resume gives it again
    created: str
    stored: tuple[str, ...]  # the stage results in the work folder: where a resume would begin


@contextmanager
def opened(ledger: str, work: str, storage_options: Mapping[str, Any]) -> Iterator[tuple[Books, Store]]:
    """The ledger and the work folder at these addresses; the ledger exists already."""
    with closing(Books.open(ledger, create=False)) as found:
        yield found, Store(work, storage_options)


def list_runs(ledger: Books, work: Store) -> list[RunSummary]:
    """All attempts in the ledger, oldest first, with the results that they stored in the work folder. Raises
    LedgerError, DataNotFound or StorageUnavailable: the ledger or the folder cannot be read.
    """
    stored: dict[str, list[str]] = {}
    for name in work.names():
        attempt, _, rest = name.partition("/")
        stored.setdefault(attempt, []).append(rest)
    runs = []
    for one in _attempts(ledger):
        own = tuple(stored.get(one.id, ()))
        runs.append(RunSummary(one.dataset, one.release, one.id, _state(work, one, own), one.created, own))
    return sorted(runs, key=lambda run: run.created)


def _attempts(ledger: Books) -> list[Charge]:
    return [attempt for dataset in ledger.datasets() for attempt in ledger.show(dataset).attempts]


def _state(work: Store, attempt: Charge, stored: Collection[str]) -> str:
    if attempt.state == "drawing" and RUN_RECORD in stored and run_record(work, attempt).get("refused"):
        return "refused"
    return attempt.state


def find_attempt(ledger: Books, beginning: str) -> Charge:
    """The attempt whose id is this text or begins with it. Raises LedgerError: none exists, or more than one, or the
    beginning is too short.
    """
    if len(beginning) < _SHOWN:
        raise LedgerError(
            f"{beginning!r} is too short for the id of an attempt: give the {_SHOWN} characters that the lists print, "
            "or more"
        )
    found = [attempt for attempt in _attempts(ledger) if attempt.id.startswith(beginning)]
    return found[0] if len(found) == 1 else ledger.attempt(beginning)


def run_record(work: Store, attempt: Charge) -> dict[str, Any]:
    """The run record of an attempt; confidential, because it holds private counts. Raises DataNotFound: the folder does
    not hold it; the run has not finished, or used another work folder.
    """
    record: dict[str, Any] = json.loads((work / attempt.id).read_bytes(RUN_RECORD))
    return record


def write_record(attempt: Attempt[Any, Any], reserved: Charge, *, refused: str | None = None) -> None:
    """Write the operator's run record: confidential, beside the attempt's other files, never in the release; `refused`
    is the kind of error by which the run ended.
    """
    record = {
        "confidential": CONFIDENTIAL,
        "release": attempt.spec.name,
        "dataset": attempt.spec.dataset,
        "attempt": reserved.id,
        "reserved": reserved.created,
        **({} if refused is None else {"refused": refused}),
        **attempt.operator,
    }
    attempt.work.write_bytes(RUN_RECORD, json.dumps(record, indent=2).encode())


def live_attempt(spec: ReleaseSpec) -> Charge | None:
    """The open or committed attempt of the release, which a run continues or finishes."""
    with closing(Books.open(spec.ledger, create=False)) as ledger:
        return ledger.find(spec.dataset, spec.name)


log = logging.getLogger("dpdist")

CLAIM = "claim"
"""File that reserves an output from the charge of an attempt to its manifest."""

_PART = re.compile(r"data/([0-9a-f]{8})/part-[0-9]+\.parquet|_model/([0-9a-f]{8})/[a-z]+\.(?:json|columnar)")


def sweep_store(store: Store) -> list[str]:
    """Delete probes and unfinished files; return what was deleted."""
    return [f"{store.uri}/{name}" for name in store.sweep()]


def sweep_output(ledger: Books, output: Store) -> list[str]:
    """Delete the above, and claims and parts of attempts that this ledger will never let publish; return their names.
    Raises as `Store.sweep`.
    """
    swept = sweep_store(output)
    for name in output.names():
        part = _PART.fullmatch(name)
        if part and ledger.ended(part.group(1) or part.group(2)):
            output.delete(name)
            swept.append(f"{output.uri}/{name}")
    if output.exists(CLAIM) and _is_void(ledger, output):
        output.delete(CLAIM)
        swept.append(f"{output.uri}/{CLAIM}")
    if output.is_local:
        for folder in (*Path(output.uri).glob("data/*"), *Path(output.uri).glob("_model/*")):
            with suppress(OSError):  # it holds files
                folder.rmdir()
    return swept


def _is_void(ledger: Books, output: Store) -> bool:
    """Whether the attempt that claimed an output has published there, or never will."""
    claimed = output.read_bytes(CLAIM).decode(errors="replace")
    try:
        state = ledger.attempt(claimed).state
    except LedgerError:  # of another ledger
        return False
    return state in ("void", "abandoned") or (state == "committed" and output.exists(MANIFEST))


def sweep_before(ledger: Books, output: Store, work: Store) -> None:
    """What the next run sweeps; the log says how much."""
    swept = [*sweep_output(ledger, output), *sweep_store(work), *sweep_reports()]
    if swept:
        log.info("leftovers of killed runs deleted", extra={"files": len(swept)})
