"""The ledger: what has been spent on each data set, and who may publish."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dpdist.errors import LedgerError
from dpdist.ledger import amendment, custody, rows, tables, transitions
from dpdist.ledger.account import Charged, portfolio_of
from dpdist.ledger.anchor import Mark
from dpdist.ledger.budget import Price, budget_of, charge_of
from dpdist.ledger.custodian import Custodian
from dpdist.ledger.keys import KeyRef
from dpdist.ledger.records import Attempt, Budget, canonical_event, checked_name
from dpdist.privacy.noise import Noise


class _Rehearsed(Exception):
    """Ends a transaction that must leave nothing behind."""


class Ledger(Custodian):
    """The budget of data sets across releases. Open one with `Ledger.open`.

    Every method is one transaction (`erase` and what calls it: one and a file). It keeps no connection open, so it
    may be used before and after a fork, and by threads.
    """

    def remaining(self, dataset: str, *, event: Any = None, guarantee: str = "dp") -> Budget:
        """Return the budget of a data set; with `event`, as it would be after that charge (nothing is charged).

        Parameters
        ----------
        dataset : str
        event : privacy event or JSON, optional
        guarantee : str
            Kind of guarantee of that charge, of `GUARANTEES`: it decides which account is charged.

        Raises DatasetUnknown; LedgerError: the ledger is damaged; AccountingError: no epsilon bounds the event at the
        data set's delta cap, or the charges compose to no finite leakage.
        """
        row, account, leakage = self._read(dataset, history=True)
        terms = rows.dataset_record(row)
        if event is not None and rows.is_leakage(row, guarantee):
            leakage, account = [*leakage, canonical_event(event)], account.charged(None)
        elif event is not None:
            price = self._price(canonical_event(event), terms.portfolio)
            charge = charge_of(terms, account, price)
            account = (
                replace(account, alone=None).charged(Charged(price.costs))
                if charge is None
                else account.charged(charge)
            )
        return budget_of(terms, account, leakage)

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
    ) -> Attempt:
        """Charge a release to a data set before anything is read, and make the attempt's key.

        The attempt is bound to `spec_hash` and `input_fingerprint`: a resume on anything else is refused. `event` is
        None only for the kind of guarantee that nothing composes (``lid``). `attempt` is a random UUID, made here by
        default; the same call with it gives the same attempt. With `new_attempt` an open attempt of the release becomes
        void if it drew no noise, else abandoned. `contract` is the digest of the contract that it keeps.

        Raises DatasetUnknown, BudgetExceeded, GuaranteeRefused; ContractBroken: the release was not compared with the
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
        filters, price = self._priced(dataset, request)
        wrapped_key = custody.new_wrapped_key(self.database, identity)

        def charge(connection: sa.Connection, mark: Mark | None) -> tuple[Attempt, list[str]]:
            transitions.reserve(
                connection,
                request=request,
                dataset=dataset,
                price=price,
                filters=filters,
                wrapped_key=wrapped_key,
                new_attempt=new_attempt,
                mark=mark,
                admits=partial(amendment.refuse_unadmitted, request=request, contract=contract),
            )
            if rehearse:
                raise _Rehearsed
            return rows.read_attempt(connection, identity), custody.left_behind(connection, dataset)

        try:
            made, ended = self._write(charge, dataset)
        except IntegrityError:  # another data set, whose lock this is not, got an attempt of this id meanwhile
            raise transitions.taken(identity) from None
        custody.sweep(self.database, ended)
        return made

    def rehearse(self, **charge: Any) -> None:
        """Refuse what `reserve` would refuse now, with the same arguments; nothing is written.

        Raises DatasetUnknown, BudgetExceeded, GuaranteeRefused, ReleaseConflict, KeyUnavailable: as `reserve`, which
        decides again.
        """
        with suppress(_Rehearsed):
            self.reserve(**charge, rehearse=True)

    def attempt(self, attempt: Attempt | str) -> Attempt:
        """Return an attempt as it is now.

        Raises LedgerError: no such attempt.
        """
        identity = _id(attempt)
        return self.database.read(lambda connection: rows.read_attempt(connection, identity))

    def find(self, dataset: str, release: str) -> Attempt | None:
        """Return the open or committed attempt of a release, None when it has none.

        Raises DatasetUnknown.
        """
        charge = self.database.read(lambda connection: transitions.live(connection, dataset, release))
        return None if charge is None else rows.attempt_record(charge, dataset)

    def resume(self, *, dataset: str, release: str, spec_hash: str, input_fingerprint: str) -> Attempt:
        """Return the open attempt of a release, to go on with it at no new charge.

        Raises DatasetUnknown; ReleaseConflict: the release is committed, or its spec or input is not the one the
        attempt began with; LedgerError: the release has no open attempt.
        """
        return self.database.read(
            lambda connection: transitions.resume(connection, dataset, release, spec_hash, input_fingerprint)
        )

    def mark_drawing(self, attempt: Attempt | str) -> Attempt:
        """Write down that noise is about to be drawn; `noise` comes only after it.

        Raises ReleaseConflict: the attempt has ended: this run is stale.
        """
        return self._move(_id(attempt), transitions.mark_drawing)

    def commit(self, attempt: Attempt | str, *, manifest_sha256: str) -> Attempt:
        """Make this attempt the release: the only one under its name, for ever. Then erase its key.

        Repeating it with the same digest is harmless and finishes an interrupted erasure.

        Raises ReleaseConflict: the attempt is stale, or committed with another manifest; LedgerError: the attempt is
        not drawing; KeyUnavailable: the commit holds, but the key file could not be deleted.
        """
        identity = _id(attempt)
        if not re.fullmatch("[0-9a-f]{64}", manifest_sha256):
            raise LedgerError("manifest_sha256 must be 64 lower-case hexadecimal digits")
        made = self._move(identity, partial(transitions.commit, manifest_sha256=manifest_sha256))
        self.erase(identity)
        return made

    def void(self, attempt: Attempt | str) -> Attempt:
        """Give the charge back and erase the key.

        Raises LedgerError: noise was drawn (or may have been): the charge stays.
        """
        ended = self._move(_id(attempt), transitions.void)
        self.erase(ended)
        return ended

    def give_up(self, attempt: Attempt | str) -> Attempt:
        """End an open attempt that nobody will resume, and erase its key; idempotent.

        Its charge is given back if no noise was drawn, and stays spent otherwise. A run that still works on it finds
        itself stale, draws nothing more and publishes nothing.

        Raises ReleaseConflict: the attempt is committed; KeyUnavailable: the attempt has ended, but its key file
        could not be deleted.
        """
        ended = self._move(_id(attempt), transitions.give_up)
        self.erase(ended)
        return ended

    def noise(self, attempt: Attempt | str) -> Noise:
        """Return the noise of a drawing attempt, for this process.

        Raises LedgerError: the attempt is not drawing; KeyUnavailable: the key-encryption key is missing or another
        one.
        """
        return custody.noise(self.database, _id(attempt))

    def share_key(self, attempt: Attempt | str, uri: str) -> KeyRef:
        """Store the wrapped key of an open attempt at an fsspec address, for its workers; idempotent.

        Before `mark_drawing` the key serves the coins of the split only, which are released in no form: a table that is
        refused while it is counted costs nothing.

        Raises ReleaseConflict: the attempt has ended; KeyUnavailable: the address cannot be written.
        """
        return custody.share(self.database, _id(attempt), uri)

    def erase(self, attempt: Attempt | str) -> None:
        """Destroy the key of an attempt that has ended, its file included; idempotent.

        Raises LedgerError: the attempt is open: its key is still needed; KeyUnavailable: the key file cannot be
        deleted.
        """
        custody.erase(self.database, _id(attempt))

    def sweep(self) -> None:
        """Erase what interrupted runs left of keys, as far as the storage answers; `reserve` does so as well."""
        for dataset in self.datasets():
            left = partial(custody.left_behind, dataset=dataset)
            custody.sweep(self.database, self.database.read(left))

    def ended(self, beginning: str) -> bool:
        """Whether there are attempts whose ids begin so, and all were given up: they will never publish."""
        states = self.database.read(lambda connection: rows.states_of(connection, beginning))
        return bool(states) and set(states) <= {tables.VOID, tables.ABANDONED}

    def _priced(self, dataset: str, request: Mapping[str, str]) -> tuple[str, Price | None]:
        """The filters of a data set, and what a charge costs under them; before anything is locked."""
        row, _, _ = self._read(dataset)
        transitions.refuse_guarantee(row, request)
        if request["event"] == rows.NO_EVENT or rows.is_leakage(row, request["guarantee"]):
            return row["filters"], None
        return row["filters"], self._price(request["event"], portfolio_of(row))

    def _move(self, attempt: str, transition: Callable[..., None]) -> Attempt:
        dataset = "" if self._anchor is None else self.attempt(attempt).dataset

        def move(connection: sa.Connection, mark: Mark | None) -> Attempt:
            transition(connection, attempt, mark=mark)
            return rows.read_attempt(connection, attempt)

        return self._write(move, dataset)


def _id(attempt: Attempt | str) -> str:
    return attempt if isinstance(attempt, str) else attempt.id


def _checked_uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise LedgerError("an attempt's id must be a random UUID") from None
