"""What killed runs leave behind: probes, unfinished files, claims, parts of attempts that were given up.

The next run sweeps its output and its work folder, and ``dpdist runs clean`` does it at any time. Only files with names
that dpdist gives are touched, and none that a running process still writes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpdist.errors import LedgerError
from dpdist.ledger import Books
from dpdist.publish.manifest import MANIFEST
from dpdist.storage.local import sweep_reports
from dpdist.storage.store import Store

log = logging.getLogger("dpdist")

CLAIM = "claim"
"""File that reserves an output from the charge of an attempt to its manifest."""

_PART = re.compile(r"data/([0-9a-f]{8})/part-[0-9]+\.parquet|_model/([0-9a-f]{8})/[a-z]+\.(?:json|parquet|pq)")


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


def sweep_address(ledger: Books, address: str, storage_options: Mapping[str, Any]) -> list[str]:
    """Sweep the output at an address."""
    return sweep_output(ledger, Store(address, storage_options))


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
