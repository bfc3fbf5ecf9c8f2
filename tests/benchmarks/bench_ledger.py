"""How long a reservation takes after many charges, on SQLite and on PostgreSQL.

Run ``python tests/benchmarks/bench_ledger.py --charges 3333 --json ledger.json``; with ``--url`` on another database
than a new SQLite file.

The history is written at once, as the ledger would have written it: every charge reserved, drawn and committed, three
entries of the journal each. Then the book is verified, and releases are reserved one after the other; each replays the
journal once. The price of an event is computed before the data set is locked; in the first reservation of a process
that and the imports take most of the time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpdist.ledger import Books, tables
from dpdist.ledger.book import dataset_row, digest
from dpdist.ledger.records import Costs, accountant_price, canonical, canonical_event, portfolio_of
from dpdist.privacy.events import Gaussian

EVENT = Gaussian(noise_multiplier=20_000.0)


def history(connection: sa.Connection, charges: int) -> None:
    """Write charges and their journal for the data set ``acs``."""
    row = dataset_row(connection, "acs")
    portfolio = portfolio_of(row)
    event = canonical_event(EVENT)
    price = accountant_price(event, portfolio)
    fixed = {"guarantee": "dp", "event": event, "epsilon": str(price.epsilon), "spec_hash": "s" * 64}
    fixed |= {"input_fingerprint": "f" * 64, "costs": Costs(price.costs).to_text()}
    length, head, at = row["length"], row["head"], "2026-01-01T00:00:00.000+00:00"
    entries: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for number in range(charges):
        name = f"{number:08d}-0000-4000-8000-000000000000"
        reserved = {"state": "reserved", "at": at, "attempt": name, "release": f"r{number}", **fixed}
        ended = {"at": at, "attempt": name}
        committed = {"state": "committed", "manifest_sha256": "a" * 64, **ended}
        for record in (reserved, {"state": "drawing", **ended}, committed):
            text = canonical(record)
            head = digest(head, length, text)
            entries.append({"dataset_id": row["id"], "sequence": length, "record": text, "digest": head})
            length += 1
        receipt = entries[-3]["digest"]
        state = {"state": "committed", "manifest_sha256": "a" * 64, "receipt": receipt, "created": at, "updated": at}
        rows.append({"dataset_id": row["id"], "attempt": name, "release": f"r{number}", **fixed, **state})
        if len(rows) == 5000 or number == charges - 1:
            connection.execute(sa.insert(tables.journal), entries)
            connection.execute(sa.insert(tables.charge), rows)
            entries.clear()
            rows.clear()
    connection.execute(sa.update(tables.dataset).values(length=length, head=head))


def summary(seconds: list[float], busy: list[float]) -> dict[str, float]:
    """The least, the median and the largest of some times, and the median of what this process computed."""
    times = {"least": min(seconds), "median": statistics.median(seconds), "largest": max(seconds)}
    return {**times, "median_cpu": statistics.median(busy)}


def reservations(ledger: Books, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each of some reservations, by the clock and of this process's CPU."""
    seconds, busy = [], []
    for number in range(count):
        start, begun = time.perf_counter(), time.process_time()
        ledger.reserve(
            dataset="acs",
            release=f"new {number}",
            spec_hash="s",
            input_fingerprint="f",
            event=EVENT,
            guarantee="dp",
        )
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - begun)
    return seconds, busy


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def main() -> None:
    """Measure, print and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--charges", type=int, default=3_333)
    parser.add_argument("--reservations", type=int, default=20)
    parser.add_argument("--url", help="an empty database; default: a new SQLite file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with folder() as place:
        url = options.url or f"sqlite:///{place}/ledger.db"
        ledger = Books.open(url, anchor=str(place / "anchor"))
        ledger.create_dataset("acs", epsilon=4, delta="1e-8")
        fresh = reservations(ledger, 1)[0][0]
        ledger.void(ledger.show("acs").attempts[0])
        ledger = Books.open(url, anchor="")
        with ledger.database.engine.begin() as connection:
            connection.execute(sa.delete(tables.charge))
            connection.execute(sa.delete(tables.journal).where(tables.journal.c.sequence > 0))
            first = connection.execute(sa.select(tables.journal.c.digest)).scalar_one()
            connection.execute(sa.update(tables.dataset).values(length=1, head=first))
            history(connection, options.charges)
        result: dict[str, Any] = {
            "python": platform.python_version(),
            "database": ledger.database.engine.dialect.name,
            "charges": options.charges,
            "fresh_first": fresh,
            "reservations": summary(*reservations(ledger, options.reservations)),
        }
        start = time.perf_counter()
        ledger.verify("acs")
        result["verify"] = time.perf_counter() - start
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
