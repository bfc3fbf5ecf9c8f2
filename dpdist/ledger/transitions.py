"""What may happen to a charge, each inside one transaction that holds the book of its data set.

::

    reserve ──► reserved ── mark_drawing ──► drawing ── commit ──► committed
                   │                            │
                   └─► void (not spent)         └─► abandoned (spent), given up or by a new attempt at the release

`void` is possible only before the first noise is drawn. Every transition may be repeated: the second time it finds
its work done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import sqlalchemy as sa

from dpdist.errors import BudgetExceeded, GuaranteeRefused, LedgerError, ReleaseConflict
from dpdist.ledger import records, tables
from dpdist.ledger.book import Book, Row
from dpdist.ledger.terms import refuse_beyond_period, refuse_unadmitted
from dpdist.privacy.event import covers
from dpdist.privacy.filter import Portfolio
from dpdist.privacy.formatting import downwards, number_of, upwards

_ENDS: Final = {tables.RESERVED: tables.VOID, tables.DRAWING: tables.ABANDONED}


def reserve(
    book: Book,
    request: Mapping[str, str],
    *,
    price: records.Price | None,
    portfolio: Portfolio,
    wrapped_key: bytes,
    new_attempt: bool,
    contract: str | None,
) -> None:
    """Reserve a charge.

    `request` holds the attempt, release, guarantee, event, spec hash and input fingerprint; `price` what the event
    costs under the filters of `portfolio`; `contract` is the digest of the contract that the release keeps.
    """
    if _is_repeated(book, request):
        return
    refuse_guarantee(book.dataset, request)
    refuse_unadmitted(book, request["input_fingerprint"], contract)
    replaced = _replaceable(book, request, new_attempt=new_attempt)
    if replaced is not None:
        _move(book, replaced, _ENDS[replaced["state"]])
    if book.dataset.portfolio != portfolio:
        raise LedgerError(f"data set {book.name!r} got other filters while this release was priced: run it again")
    epsilon, costs = _admitted(book, request, price)
    refuse_beyond_period(book, request, price)
    fields = {**request, "epsilon": str(epsilon), "costs": None if costs is None else costs.to_text()}
    receipt = book.append(tables.RESERVED, fields)
    times = {"created": book.at, "updated": book.at}
    row = {"dataset_id": book.row["id"], "state": tables.RESERVED, "receipt": receipt, **times, **fields}
    insert = sa.insert(tables.charge).values(**row, wrapped_key=wrapped_key).returning(tables.charge)
    book.charges[request["attempt"]] = dict(book.connection.execute(insert).mappings().one())


def _is_repeated(book: Book, request: Mapping[str, str]) -> bool:
    """Whether this attempt is reserved already; refuse another request of its id."""
    charge = book.charges.get(request["attempt"])
    if charge is None:
        return False
    same = all(charge[name] == value for name, value in request.items() if name != "event")
    if not same or not covers(records.event_json(charge["event"]), records.event_json(request["event"])):
        raise taken(request["attempt"])
    return True


def taken(attempt: str) -> ReleaseConflict:
    """Return the error for an attempt id that something else has."""
    return ReleaseConflict(f"attempt {attempt} is reserved with another data set, spec, input or charge")


def _admitted(
    book: Book, request: Mapping[str, str], price: records.Price | None
) -> tuple[Fraction, records.Costs | None]:
    """What is charged, by itself and from each filter."""
    release = request["release"]
    if request["event"] == records.NO_EVENT:
        return Fraction(0), None
    if book.dataset.leaks(request):
        return _leakage(book.dataset, book.leakage, request["event"], release=release), None
    if price is None:
        raise LedgerError(f"release {release!r} has a charge without a price")
    months = book.months.get(request["input_fingerprint"], ())
    accounts = [book.account_of(part) for part in book.parts(book.spent, months)]
    # each admits it, or none does; what it costs is the same for all
    costs = [_costs(book.dataset, account, price, release=release) for account in accounts]
    return price.epsilon or Fraction(0), costs[0]


def _costs(dataset: records.Dataset, account: records.Account, price: records.Price, *, release: str) -> records.Costs:
    """Return what a release is charged. Raises BudgetExceeded: no filter would hold after it. The message names public
    numbers only.
    """
    portfolio = dataset.portfolio
    costs = account.costs_of(portfolio, price)
    if costs is not None:
        return costs
    remaining = records.left_of(dataset.epsilon, account.epsilon(portfolio))
    if account.alone is not None:
        why = "its first release took all of the cap"
    else:
        after = portfolio.epsilon_of(account.charged(records.Costs(price.costs)).taken)
        why = f"with {number_of(account.charges, 'charge')} before it that comes to {_epsilon(after)}"
    raise BudgetExceeded(
        f"data set {dataset.name!r}: release {release!r} asks for {_epsilon(price.epsilon)} at delta "
        f"{upwards(dataset.delta)}; {why}, the cap is epsilon {upwards(dataset.epsilon)}, remaining "
        f"{downwards(remaining)}. Ask for less epsilon or delta in the spec's privacy section"
    )


def _leakage(dataset: records.Dataset, events: Sequence[str], event: str, *, release: str) -> Fraction:
    """Return the leakage of `event` by itself if all events and it compose to at most the cap of the account. Raises
    BudgetExceeded: they do not.
    """
    cap = dataset.pml or Fraction(0)
    alone, total = records.composed_leakage([event]), records.composed_leakage([*events, event])
    if alone is not None and total is not None and total <= cap:
        return alone
    asked, together = (
        "infinite leakage" if value is None else f"leakage of {upwards(value)} nats" for value in (alone, total)
    )
    raise BudgetExceeded(
        f"data set {dataset.name!r}: release {release!r} asks for {asked}; with {number_of(len(events), 'charge')} "
        f"before it that composes to {together}, the cap of the account is {upwards(cap)} nats. Ask for less epsilon "
        "in the spec's privacy section"
    )


def _epsilon(value: Fraction | None) -> str:
    return "an infinite epsilon" if value is None else f"epsilon {upwards(value)}"


def _move(book: Book, charge: Row, state: str, **fields: str) -> None:
    """Write a transition. The key is erased with the last state."""
    book.append(state, {"attempt": charge["attempt"], **fields})
    values: dict[str, Any] = {"state": state, "updated": book.at, **fields}
    if state not in tables.OPEN:
        values["wrapped_key"] = None
    book.connection.execute(sa.update(tables.charge).where(tables.charge.c.id == charge["id"]).values(values))
    charge |= values


def mark_drawing(book: Book, charge: Row) -> None:
    """Write down that noise is about to be drawn."""
    if charge["state"] == tables.RESERVED:
        _move(book, charge, tables.DRAWING)
    elif charge["state"] != tables.DRAWING:
        raise stale(charge)


def commit(book: Book, charge: Row, manifest_sha256: str) -> None:
    """Commit an attempt to the manifest with this digest."""
    if charge["state"] == tables.DRAWING:
        _move(book, charge, tables.COMMITTED, manifest_sha256=manifest_sha256)
    elif charge["state"] == tables.RESERVED:
        raise LedgerError(
            f"attempt {charge['attempt']} cannot be committed: mark_drawing comes first, before any noise"
        )
    elif charge["state"] != tables.COMMITTED:
        raise stale(charge)
    elif charge["manifest_sha256"] != manifest_sha256:
        raise ReleaseConflict(
            f"release {charge['release']!r} of data set {book.name!r} is committed with another manifest: "
            "choose another release name"
        )


def void(book: Book, charge: Row) -> None:
    """Give a charge back; only before noise was drawn."""
    if charge["state"] == tables.RESERVED:
        _move(book, charge, tables.VOID)
    elif charge["state"] != tables.VOID:
        raise LedgerError(
            f"attempt {charge['attempt']} is {charge['state']}: noise was drawn, so its charge stays; resume the "
            "release or let it be"
        )


def give_up(book: Book, charge: Row) -> None:
    """End an open attempt: its charge is given back, or stays spent where noise may have been drawn."""
    if charge["state"] == tables.COMMITTED:
        raise ReleaseConflict(f"attempt {charge['attempt']} is committed: it is the release, and its charge stays")
    if charge["state"] in tables.OPEN:
        _move(book, charge, _ENDS[charge["state"]])


def resumed(book: Book, release: str, *, spec_hash: str, input_fingerprint: str) -> Row:
    """Return the open charge of a release if spec and input are the same."""
    charge = book.live(release)
    if charge is None:
        raise LedgerError(f"release {release!r} of data set {book.name!r} has no open attempt: run it without resuming")
    if charge["state"] == tables.COMMITTED:
        raise _committed(charge)
    if charge["spec_hash"] != spec_hash:
        raise _other_spec(charge)
    if charge["input_fingerprint"] != input_fingerprint:
        raise ReleaseConflict(
            f"release {release!r}: the input changed since attempt {charge['attempt']} began, and the same noise on "
            "changed data would show the change; restore the input, or ask for a new attempt (new key, new charge)"
        )
    return charge


def refuse_guarantee(dataset: records.Dataset, request: Mapping[str, str]) -> None:
    """Refuse a kind of guarantee that the policy of the data set does not allow, or that lacks its event."""
    kind, allowed = request["guarantee"], dataset.guarantees
    if kind not in allowed:
        raise GuaranteeRefused(
            f"data set {dataset.name!r} allows the guarantees {', '.join(allowed)}, not {kind!r}: choose another "
            f"kind of release, or a data set made with `dpdist ledger create --allow {kind}`"
        )
    if kind in records.BUDGETED and request["event"] == records.NO_EVENT:
        raise GuaranteeRefused(f"a release with the guarantee {kind!r} needs a privacy event to charge")
    event = json.loads(request["event"])
    exact = isinstance(event, dict) and event.get("scale", 1) is None
    if kind == "pml" and exact and not dataset.leaks(request):
        raise GuaranteeRefused(
            f"data set {dataset.name!r} has no account of leakage, so a release is charged its differential "
            "privacy, and exact counts have none: add noise (a smaller privacy.epsilon), or use a data set that was "
            "created with --pml"
        )


def _replaceable(book: Book, request: Mapping[str, str], *, new_attempt: bool) -> Row | None:
    """Return the open charge that the request replaces, None if none exists; refuse a taken release name."""
    live = book.live(request["release"])
    if live is not None and live["state"] == tables.COMMITTED:
        raise _committed(live)
    if live is not None and not new_attempt:
        if live["spec_hash"] != request["spec_hash"]:
            raise _other_spec(live)
        raise ReleaseConflict(
            f"release {request['release']!r} has the open attempt {live['attempt']}: wait for its run, or "
            "resume it (--resume, in Python attempt='resume': no new charge), or ask for a new attempt (--new-attempt, "
            "in Python attempt='replace': new key, new charge)"
        )
    for row in book.charges.values():
        drawn = row["release"] == request["release"] and row["state"] in (tables.DRAWING, tables.ABANDONED)
        if drawn and row["spec_hash"] != request["spec_hash"]:
            raise _other_spec(row)
    return live


def stale(charge: Mapping[str, Any]) -> ReleaseConflict:
    """Return the error for a transition of an attempt that has ended."""
    return ReleaseConflict(
        f"attempt {charge['attempt']} of release {charge['release']!r} is {charge['state']}: this run is stale and "
        "must stop; nothing it computed may be published"
    )


def _committed(charge: Row) -> ReleaseConflict:
    return ReleaseConflict(f"release {charge['release']!r} is committed already: choose another release name")


def _other_spec(charge: Row) -> ReleaseConflict:
    return ReleaseConflict(
        f"release {charge['release']!r} was begun with another spec, another public table under its model.prior, or "
        f"another data.storage (attempt {charge['attempt']}): run it with that one, or choose another release name"
    )
