"""The ledger: what has been spent on each data set, who publishes, and who holds the keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dpdist.errors import KeyUnavailable, LedgerError, ResourceError
from dpdist.ledger import keys, tables, transitions
from dpdist.ledger.book import Book, Row, charge_row
from dpdist.ledger.custodian import Custodian, T
from dpdist.ledger.keys import KeyRef
from dpdist.ledger.records import NO_EVENT, Budget, Charge, Costs, Price, canonical_event, checked_name
from dpdist.privacy.filter import Portfolio
from dpdist.privacy.noise import Noise
from dpdist.storage import local


class _Rehearsed(Exception):
    """Ends a transaction that must leave nothing behind."""


class Books(Custodian):
    """The budget of data sets across releases. Open one with `Books.open`.

    Every method is one transaction (`erase` and what calls it: one and a file). It keeps no connection open, so it
    may be used before and after a fork, and by threads.
    """

    def remaining(
        self, dataset: str, *, event: Any = None, guarantee: str = "dp", months: Iterable[str] = ()
    ) -> Budget:
        """Return the budget of a data set; with `event`, as it would be after that charge (nothing is charged).
        `guarantee`: kind of guarantee of that charge, of `GUARANTEES`: it decides which account is charged. `months`:
        of its input, where each month has the caps for itself.
        """
        book, request = self._book(dataset), {"guarantee": guarantee, "event": canonical_event(event)}
        account, leakage = book.account_of_most(book.spent, months), book.leakage
        portfolio = book.dataset.portfolio
        if event is not None and book.dataset.leaks(request):
            leakage, account = [*leakage, request["event"]], account.charged(None)
        elif event is not None:
            price = self._price(request["event"], portfolio)
            costs = account.costs_of(portfolio, price)
            if costs is None:  # it does not fit: its total
                account, costs = replace(account, alone=None), Costs(price.costs)
            account = account.charged(costs)
        return Budget.of(book.dataset, account, leakage)

    def reserve(
        self,
        *,
        dataset: str,
        release: str,
        spec_hash: str,
        input_fingerprint: str,
        event: Any,
        guarantee: str,
        attempt: str | None = None,
        new_attempt: bool = False,
        rehearse: bool = False,
        contract: str | None = None,
    ) -> Charge:
        """Charge a release to a data set before anything is read, and make the attempt's key.

        The attempt is bound to `spec_hash` and `input_fingerprint`: a resume on anything else is refused. `event` is
        None only for the kind of guarantee that nothing composes (``lid``). `attempt` is a random UUID, made here by
        default; the same call with it gives the same attempt. With `new_attempt` an open attempt of the release becomes
        void if it drew no noise, else abandoned. `contract` is the digest of the contract that it keeps. Raises
        DatasetUnknown, BudgetExceeded, GuaranteeRefused; ContractBroken: the release was not compared with the
        contract, or its input is not known to keep it; ReleaseConflict: the release is committed, has an open attempt,
        or was begun with another spec; KeyUnavailable: there is no key-encryption key.
        """
        identity = str(uuid4()) if attempt is None else _checked_uuid(attempt)
        request = {
            "attempt": identity,
            "release": checked_name(release, setting="the release's name"),
            "guarantee": guarantee,
            "event": canonical_event(event),
            "spec_hash": checked_name(spec_hash, setting="the spec's hash"),
            "input_fingerprint": checked_name(input_fingerprint, setting="the input's fingerprint"),
        }
        portfolio, price = self._priced(dataset, request)  # before anything is locked
        wrapped_key = self._kek(create=True).wrap(keys.new_key(), attempt=identity)

        def charge(book: Book) -> tuple[Charge, list[str]]:
            transitions.reserve(
                book,
                request,
                price=price,
                portfolio=portfolio,
                wrapped_key=wrapped_key,
                new_attempt=new_attempt,
                contract=contract,
            )
            if rehearse:
                raise _Rehearsed
            return book.record(identity), _left_behind(book.charges.values())

        try:
            made, ended = self._write(charge, dataset)
        except IntegrityError:  # an attempt of another data set has this id
            raise transitions.taken(identity) from None
        self._sweep(ended)
        return made

    def _priced(self, dataset: str, request: dict[str, str]) -> tuple[Portfolio, Price | None]:
        """The filters of a data set as they are, unchecked, and what a charge costs under them."""
        found = self.dataset(dataset)
        transitions.refuse_guarantee(found, request)
        free = request["event"] == NO_EVENT or found.leaks(request)
        return found.portfolio, None if free else self._price(request["event"], found.portfolio)

    def rehearse(self, **charge: Any) -> None:
        """Refuse what `reserve` would refuse now, with the same arguments; nothing is written. Raises DatasetUnknown,
        BudgetExceeded, GuaranteeRefused, ReleaseConflict, KeyUnavailable: as `reserve`, which decides again.
        """
        with suppress(_Rehearsed):
            self.reserve(**charge, rehearse=True)

    def attempt(self, attempt: Charge | str) -> Charge:
        """Return the charge of an attempt as its row is now; `verify` and `find` check it. Raises LedgerError: no such
        attempt.
        """
        row = self._charge(_id(attempt))
        return Charge.of(row, row["dataset"])

    def find(self, dataset: str, release: str) -> Charge | None:
        """Return the charge of the open or committed attempt of a release, None when it has none. Raises
        DatasetUnknown; LedgerError: the ledger is damaged.
        """

        def find(book: Book) -> Charge | None:
            charge = book.live(release)
            return None if charge is None else book.record(charge["attempt"])

        return self._read(find, dataset, anchored=False)

    def resume(self, *, dataset: str, release: str, spec_hash: str, input_fingerprint: str) -> Charge:
        """Return the charge of the open attempt of a release, to go on with it at no new one. Raises DatasetUnknown;
        ReleaseConflict: the release is committed, or its spec or input is not the one the attempt began with;
        LedgerError: the release has no open attempt, or the ledger is damaged.
        """

        def resume(book: Book) -> Charge:
            bound = {"spec_hash": spec_hash, "input_fingerprint": input_fingerprint}
            return book.record(transitions.resumed(book, release, **bound)["attempt"])

        return self._read(resume, dataset, anchored=False)

    def mark_drawing(self, attempt: Charge | str) -> Charge:
        """Write down that noise is about to be drawn; `noise` comes only after it. Raises ReleaseConflict: the attempt
        has ended: this run is stale.
        """
        return self._move(_id(attempt), transitions.mark_drawing)

    def commit(self, attempt: Charge | str, *, manifest_sha256: str) -> Charge:
        """Make this attempt the release: the only one under its name, for ever. Then erase its key.

        Repeating it with the same digest is harmless and finishes an interrupted erasure. Raises ReleaseConflict:
        the attempt is stale, or committed with another manifest; LedgerError: the attempt is not drawing;
        KeyUnavailable: the commit holds, but the key file could not be deleted.
        """
        identity = _id(attempt)
        if not re.fullmatch("[0-9a-f]{64}", manifest_sha256):
            raise LedgerError("manifest_sha256 must be 64 lower-case hexadecimal digits")
        made = self._move(identity, partial(transitions.commit, manifest_sha256=manifest_sha256))
        self.erase(identity)
        return made

    def void(self, attempt: Charge | str) -> Charge:
        """Give the charge back and erase the key. Raises LedgerError: noise was drawn (or may have been): the charge
        stays.
        """
        ended = self._move(_id(attempt), transitions.void)
        self.erase(ended)
        return ended

    def give_up(self, attempt: Charge | str) -> Charge:
        """End an open attempt that nobody will resume, and erase its key; idempotent.

        Its charge is given back if no noise was drawn, and stays spent otherwise. A run that still works on it finds
        itself stale, draws nothing more and publishes nothing. Raises ReleaseConflict: the attempt is committed;
        KeyUnavailable: the attempt has ended, but its key file could not be deleted.
        """
        ended = self._move(_id(attempt), transitions.give_up)
        self.erase(ended)
        return ended

    def noise(self, attempt: Charge | str) -> Noise:
        """Return the noise of a drawing attempt, for this process. Raises LedgerError: the attempt is not drawing;
        KeyUnavailable: the key-encryption key is missing or another one.
        """
        identity = _id(attempt)
        charge = self._read(lambda book: book.charges[identity], self._owner(identity), anchored=False)
        if charge["state"] == tables.RESERVED:
            raise LedgerError(f"the key of attempt {charge['attempt']} is handed out only after mark_drawing")
        if charge["state"] != tables.DRAWING:
            raise transitions.stale(charge)
        return Noise(self._kek().unwrap(bytes(charge["wrapped_key"]), attempt=charge["attempt"]))

    def share_key(self, attempt: Charge | str, uri: str) -> KeyRef:
        """Store the wrapped key of an open attempt at an fsspec address, for its workers; idempotent.

        Before `mark_drawing` the key serves the coins of the split only, which are released in no form: a table that
        is refused while it is counted costs nothing. Raises ReleaseConflict: the attempt has ended; KeyUnavailable: the
        address cannot be written.
        """
        identity, kek = _id(attempt), self._kek()

        def place(book: Book, charge: Row) -> tuple[bytes, str | None]:
            if charge["state"] not in tables.OPEN:
                raise transitions.stale(charge)
            _set_uri(book.connection, identity, uri)  # before the file is written: it is always found again
            return bytes(charge["wrapped_key"]), charge["key_uri"]

        wrapped, before = self._with_charge(identity, place)
        if before not in (None, uri):
            keys.erase_key_file(str(before), attempt=identity)
        ref = keys.write_key_file(uri, attempt=identity, wrapped=wrapped, kek_file=kek.path)
        charge = self._charge(identity)
        if charge["state"] not in tables.OPEN:  # it ended meanwhile: leave nothing behind
            keys.erase_key_file(uri, attempt=identity)
            raise transitions.stale(charge)
        return ref

    def erase(self, attempt: Charge | str, *, patient: bool = True) -> None:
        """Destroy the key file of an attempt that has ended, whose row lost the key with its last transition;
        idempotent. A file that is not there is looked for again by `sweep`: it may be on another machine, or about to
        be written. Raises LedgerError: the attempt is open: its key is still needed; KeyUnavailable: the key file
        cannot be deleted.
        """
        identity = _id(attempt)
        charge = self._charge(identity)
        if charge["state"] in tables.OPEN:
            raise LedgerError(f"attempt {identity} is {charge['state']}: commit or void it before its key is erased")
        keys.forget_keys(identity)
        uri = charge["key_uri"]
        if uri is not None and keys.erase_key_file(uri, attempt=identity, patient=patient):
            self.database.write(lambda connection: _set_uri(connection, identity, None))

    def sweep(self) -> None:
        """Erase what interrupted runs left of keys, as far as the storage answers; `reserve` does so as well."""
        query = sa.select(tables.charge).where(tables.charge.c.key_uri.is_not(None))
        rows = self.database.read(lambda connection: list(map(dict, connection.execute(query).mappings())))
        self._sweep(_left_behind(rows))

    def _sweep(self, attempts: Iterable[str]) -> None:
        """Erase the key files of ended attempts, and unfinished key-encryption keys."""
        if self._default_kek is not None:
            # Delete what processes that were killed while they made a key-encryption key left beside it
            for left in self._default_kek.parent.glob(f".{self._default_kek.name}.*"):
                with suppress(OSError):
                    local.sweep(str(left))
        for attempt in attempts:
            with suppress(KeyUnavailable, ResourceError):
                self.erase(attempt, patient=False)

    def ended(self, beginning: str) -> bool:
        """Whether there are attempts whose ids begin so, and all were given up: they will never publish."""
        begins = tables.charge.c.attempt.startswith(beginning, autoescape=True)
        query = sa.select(tables.charge.c.state).where(begins)
        states = set(self.database.read(lambda connection: connection.execute(query).scalars().all()))
        return bool(states) and states <= {tables.VOID, tables.ABANDONED}

    def _charge(self, attempt: str) -> Row:
        return self.database.read(lambda connection: charge_row(connection, attempt))

    def _move(self, attempt: str, transition: Callable[[Book, Row], None]) -> Charge:
        def move(book: Book, charge: Row) -> Charge:
            transition(book, charge)
            return book.record(attempt)

        return self._with_charge(attempt, move)

    def _with_charge(self, attempt: str, work: Callable[[Book, Row], T]) -> T:
        """Change the book of an attempt."""
        return self._write(lambda book: work(book, book.charges[attempt]), self._owner(attempt))

    def _owner(self, attempt: str) -> str:
        """The name of an attempt's data set."""
        return str(self._charge(attempt)["dataset"])


def _left_behind(charges: Iterable[Mapping[str, Any]]) -> list[str]:
    """Attempts that ended with a key file: an interrupted run left it."""
    ended = (row for row in charges if row["key_uri"] is not None and row["state"] not in tables.OPEN)
    return [row["attempt"] for row in ended]


def _set_uri(connection: sa.Connection, attempt: str, uri: str | None) -> None:
    connection.execute(sa.update(tables.charge).where(tables.charge.c.attempt == attempt).values(key_uri=uri))


def _id(attempt: Charge | str) -> str:
    return attempt if isinstance(attempt, str) else attempt.id


def _checked_uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise LedgerError("an attempt's id must be a random UUID") from None
