"""The ledger: what has been spent on each data set, and who may publish."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy.exc import IntegrityError

from dpdist.errors import DatasetExists, LedgerError
from dpdist.ledger import amendment, catalogue, custody, journal, rows, signing, tables, transitions
from dpdist.ledger.account import Account, Charged, portfolio_of
from dpdist.ledger.anchor import VARIABLE, Anchor, Mark
from dpdist.ledger.budget import Price, PriceOf, accountant_price, budget_of, charge_of
from dpdist.ledger.contract import Contract
from dpdist.ledger.database import Database, create_file
from dpdist.ledger.keys import KeyRef
from dpdist.ledger.records import Attempt, Budget, Dataset, Rational, Statement, canonical_event, checked_name
from dpdist.privacy.noise import Noise

T = TypeVar("T")


class _Rehearsed(Exception):
    """Ends a transaction that must leave nothing behind."""


class Ledger:
    """The budget of data sets across releases. Open one with `Ledger.open`.

    Every method is one transaction (`erase` and what calls it: one and a file). It keeps no connection open, so it
    may be used before and after a fork, and by threads.
    """

    def __init__(self, database: Database, price: PriceOf, anchor: Anchor | None = None) -> None:
        self.database = database
        self._price = price
        self._anchor = anchor

    def __repr__(self) -> str:
        return f"Ledger({self.database.name!r})"

    @classmethod
    def open(
        cls, url: str, *, create: bool = True, price: PriceOf = accountant_price, anchor: str | None = None
    ) -> Ledger:
        """Open a ledger.

        Parameters
        ----------
        url : str
            ``sqlite:///path`` (one machine, local disk) or ``postgresql+psycopg://user@host/database``.
        create : bool
            Make the ledger, or bring its tables to this version, when needed.
        price : callable
            ``price(event, portfolio)``: what the JSON of a privacy event costs; by the accountant by default.
        anchor : str, optional
            A local folder or ``s3://bucket/prefix`` outside of the database, where the heads of the journals are kept;
            by default what ``DPDIST_LEDGER_ANCHOR`` says. A database that is older is refused.

        Raises
        ------
        LedgerError
            There is no usable ledger at `url`. The message never shows credentials.
        """
        database = Database(url)
        if database.file and not database.file.exists():
            if not create:
                raise LedgerError(f"no ledger at {database.name}: make one with dpdist ledger create")
            create_file(database.file)
        if create:
            database.migrate()
        elif (revision := database.revision()) != tables.REVISION:
            raise LedgerError(
                f"the ledger at {database.name} has tables of version {revision}, this dpdist needs "
                f"{tables.REVISION}: run dpdist ledger create once to bring them up to date"
            )
        return cls(database, price, Anchor.find(anchor))

    def close(self) -> None:
        """Release what the driver holds; the ledger may still be used."""
        self.database.engine.dispose()

    # Data sets

    def create_dataset(
        self,
        name: str,
        *,
        epsilon: Rational,
        delta: Rational,
        guarantees: Iterable[str] = ("dp",),
        pml: Rational | None = None,
        contract: str | None = None,
    ) -> Dataset:
        """Enter a data set with its caps and policy, and a signing identity for its releases.

        Only an act of its custodian changes the terms (`amend`). Without a key-encryption key, which protects the
        private key, there is no identity (`new_identity`).

        Parameters
        ----------
        name : str
        epsilon, delta : number or text
            The caps, kept exactly: ``4``, ``"1/3"``, ``1e-8`` (a float stands for the decimal it prints as).
        guarantees : iterable of str
            The kinds of guarantee a release may have, of `GUARANTEES`.
        pml : number or text, optional
            The cap of an account of pointwise maximal leakage, in nats. With it, releases with the guarantee ``pml``
            are charged there; without, they are charged their equal differential privacy.
        contract : str, optional
            The contract as JSON (`create_from_contract`).

        Raises
        ------
        DatasetExists
            The name is taken.
        LedgerError
            A cap is out of range, or a kind is unknown.
        """
        terms = catalogue.terms_of(name, epsilon, delta, guarantees, pml, contract)
        keys = signing.make_if_protected(self.database)

        def create(connection: sa.Connection) -> Dataset:
            created = catalogue.create(connection, terms, keys)
            if self._anchor is not None:  # before anybody sees the data set
                self._anchor.write(name, catalogue.head(connection, name))
            return created

        try:
            return self.database.write(create)
        except IntegrityError:
            raise DatasetExists(f"data set {name!r} is in the ledger already; its caps are final") from None

    def create_from_contract(self, name: str, contract: Contract) -> Dataset:
        """Enter a data set with its contract, which has its caps and policy.

        Raises
        ------
        DatasetExists, LedgerError
            As `create_dataset`.
        """
        return self.create_dataset(
            name,
            epsilon=contract.epsilon,
            delta=contract.delta,
            guarantees=contract.guarantees,
            pml=contract.pml,
            contract=contract.text,
        )

    def amend(self, dataset: str, contract: Contract, *, reason: str) -> Dataset:
        """Give a data set another contract, with its caps: an act of its custodian, in the journal with its reason.

        Raises
        ------
        DatasetUnknown
        LedgerError, BudgetExceeded
            See `dpdist.ledger.amendment.amend`.
        """

        def work(connection: sa.Connection, mark: Mark | None) -> None:
            amendment.amend(connection, dataset, contract=contract, reason=reason, mark=mark)

        self._write(work, dataset)
        return self.dataset(dataset)

    def admit_input(self, dataset: str, *, fingerprint: str, contract: str) -> None:
        """Write down that an input keeps the contract with this digest: an act of the custodian, who checked it.

        Raises
        ------
        DatasetUnknown
        ContractBroken
            The data set has another contract by now, or none.
        """

        def work(connection: sa.Connection, mark: Mark | None) -> None:
            amendment.admit_input(connection, dataset, fingerprint=fingerprint, contract=contract, mark=mark)

        self._write(work, dataset)

    def dataset(self, name: str) -> Dataset:
        """Return a data set.

        Raises
        ------
        DatasetUnknown
        """
        row = self.database.read(lambda connection: rows.lock_dataset(connection, name, lock=False))
        return rows.dataset_record(row)

    def datasets(self) -> tuple[str, ...]:
        """Return the names of all data sets, in order."""
        return self.database.read(catalogue.datasets)

    def show(self, dataset: str) -> Statement:
        """Return a data set with its budget and its attempts.

        Raises
        ------
        DatasetUnknown
        LedgerError
            The ledger is damaged.
        """
        row, account, leakage = self._read(dataset, history=True)
        terms = rows.dataset_record(row)
        charges = self.database.read(lambda connection: rows.charges_of(connection, row))
        attempts = tuple(rows.attempt_record(charge, dataset) for charge in charges)
        return Statement(terms, budget_of(terms, account, leakage), attempts, row["head"])

    def remaining(self, dataset: str, *, event: Any = None, guarantee: str = "dp") -> Budget:
        """Return the budget of a data set; with `event`, as it would be after that charge (nothing is charged).

        Parameters
        ----------
        dataset : str
        event : privacy event or JSON, optional
        guarantee : str
            Kind of guarantee of that charge, of `GUARANTEES`: it decides which account is charged.

        Raises
        ------
        DatasetUnknown
        LedgerError
            The ledger is damaged.
        AccountingError
            No epsilon bounds the event at the data set's delta cap, or the charges compose to no finite leakage.
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

    def verify(self, dataset: str, *, receipts: Iterable[str] = ()) -> Statement:
        """Check that the records of a data set are whole, and its spend within the caps.

        Parameters
        ----------
        dataset : str
        receipts : iterable of str
            Digests noted elsewhere (`Attempt.receipt`, `Statement.head`) that must be in the journal.

        Raises
        ------
        DatasetUnknown
        LedgerError
            A row was edited, added or deleted outside of dpdist, or more is spent than the caps admit.
        """
        noted = tuple(receipts)
        problems = self.database.read(lambda connection: catalogue.problems_of(connection, dataset, noted))
        if problems:
            raise journal.damaged(dataset, problems)
        return self.show(dataset)

    def anchor(self, dataset: str) -> Mark:
        """Set the anchor of a data set to the newest entry of its journal, once all of it is verified.

        Raises
        ------
        DatasetUnknown
        LedgerError
            The ledger has no anchor, or is damaged.
        """
        if self._anchor is None:
            raise LedgerError(f"the ledger has no anchor: set {VARIABLE} to a folder or an S3 prefix outside of it")
        problems = self.database.read(lambda connection: catalogue.problems_of(connection, dataset, ()))
        if problems:
            raise journal.damaged(dataset, problems)
        mark = self._head(dataset)
        self._anchor.write(dataset, mark)
        return mark

    # Signing identities

    def new_identity(self, dataset: str) -> Ed25519PublicKey:
        """Make a key pair with which the releases of a data set are signed from now on; return the public key.

        Raises
        ------
        DatasetUnknown
        KeyUnavailable
            There is no key-encryption key that could protect the private key.
        """
        made = signing.make(self.database)
        self._write(lambda connection, mark: signing.enter(connection, dataset, made, mark=mark), dataset)
        return self.public_keys(dataset)[0]

    def public_keys(self, dataset: str) -> tuple[Ed25519PublicKey, ...]:
        """Return the public keys of a data set, that of the present identity first; none where it has none.

        Raises
        ------
        DatasetUnknown
        """
        return signing.public_keys(self.database, dataset)

    def signing_key(self, dataset: str) -> Ed25519PrivateKey | None:
        """Return the private key of the present identity of a data set, None where it has none.

        Raises
        ------
        DatasetUnknown
        KeyUnavailable
            The key-encryption key is missing or another one.
        """
        return signing.signing_key(self.database, dataset)

    # Attempts

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

        Parameters
        ----------
        dataset, release : str
        spec_hash, input_fingerprint : str
            What the attempt is bound to; a resume on anything else is refused.
        event : privacy event, JSON or None
            The charge. None only for the kind of guarantee that nothing composes (``lid``).
        guarantee : str
            Kind of guarantee, of `GUARANTEES`.
        attempt : str, optional
            The attempt's id, a random UUID; made here by default. The same call again with the same id gives the
            same attempt.
        new_attempt : bool
            Replace an open attempt of the release: it becomes void when it has drawn no noise; otherwise it is
            abandoned and stays spent.
        rehearse : bool
            See `rehearse`.
        contract : str, optional
            Digest of the data set's contract, which the release keeps (`dpdist.ledger.contract.kept_contract`).

        Raises
        ------
        DatasetUnknown
        BudgetExceeded
            All charges and this one compose to more than the caps.
        GuaranteeRefused
            The data set's policy does not allow this kind of guarantee.
        ContractBroken
            The release was not compared with the data set's contract, or its input is not known to keep it.
        ReleaseConflict
            The release is committed, has an open attempt, or was begun with another spec.
        KeyUnavailable
            There is no key-encryption key.
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

        Raises
        ------
        DatasetUnknown, BudgetExceeded, GuaranteeRefused, ReleaseConflict, KeyUnavailable
            As `reserve`, which decides again.
        """
        with suppress(_Rehearsed):
            self.reserve(**charge, rehearse=True)

    def attempt(self, attempt: Attempt | str) -> Attempt:
        """Return an attempt as it is now.

        Raises
        ------
        LedgerError
            No such attempt.
        """
        identity = _id(attempt)
        return self.database.read(lambda connection: rows.read_attempt(connection, identity))

    def find(self, dataset: str, release: str) -> Attempt | None:
        """Return the open or committed attempt of a release, None when it has none.

        Raises
        ------
        DatasetUnknown
        """
        charge = self.database.read(lambda connection: transitions.live(connection, dataset, release))
        return None if charge is None else rows.attempt_record(charge, dataset)

    def resume(self, *, dataset: str, release: str, spec_hash: str, input_fingerprint: str) -> Attempt:
        """Return the open attempt of a release, to go on with it at no new charge.

        Raises
        ------
        DatasetUnknown
        ReleaseConflict
            The release is committed, or its spec or input is not the one the attempt began with.
        LedgerError
            The release has no open attempt.
        """
        return self.database.read(
            lambda connection: transitions.resume(connection, dataset, release, spec_hash, input_fingerprint)
        )

    def mark_drawing(self, attempt: Attempt | str) -> Attempt:
        """Write down that noise is about to be drawn; `noise` comes only after it.

        Raises
        ------
        ReleaseConflict
            The attempt has ended: this run is stale.
        """
        return self._move(_id(attempt), transitions.mark_drawing)

    def commit(self, attempt: Attempt | str, *, manifest_sha256: str) -> Attempt:
        """Make this attempt the release: the only one under its name, for ever. Then erase its key.

        Repeating it with the same digest is harmless and finishes an interrupted erasure.

        Raises
        ------
        ReleaseConflict
            The attempt is stale, or committed with another manifest.
        LedgerError
            The attempt is not drawing.
        KeyUnavailable
            The commit holds, but the key file could not be deleted.
        """
        identity = _id(attempt)
        if not re.fullmatch("[0-9a-f]{64}", manifest_sha256):
            raise LedgerError("manifest_sha256 must be 64 lower-case hexadecimal digits")
        made = self._move(identity, partial(transitions.commit, manifest_sha256=manifest_sha256))
        self.erase(identity)
        return made

    def void(self, attempt: Attempt | str) -> Attempt:
        """Give the charge back and erase the key.

        Raises
        ------
        LedgerError
            Noise was drawn (or may have been): the charge stays.
        """
        ended = self._move(_id(attempt), transitions.void)
        self.erase(ended)
        return ended

    def give_up(self, attempt: Attempt | str) -> Attempt:
        """End an open attempt that nobody will resume, and erase its key; idempotent.

        Its charge is given back if no noise was drawn, and stays spent otherwise. A run that still works on it finds
        itself stale, draws nothing more and publishes nothing.

        Raises
        ------
        ReleaseConflict
            The attempt is committed.
        KeyUnavailable
            The attempt has ended, but its key file could not be deleted.
        """
        ended = self._move(_id(attempt), transitions.give_up)
        self.erase(ended)
        return ended

    # Keys

    def noise(self, attempt: Attempt | str) -> Noise:
        """Return the noise of a drawing attempt, for this process.

        Raises
        ------
        LedgerError
            The attempt is not drawing.
        KeyUnavailable
            The key-encryption key is missing or another one.
        """
        return custody.noise(self.database, _id(attempt))

    def share_key(self, attempt: Attempt | str, uri: str) -> KeyRef:
        """Store the wrapped key of an open attempt at an fsspec address, for its workers; idempotent.

        Before `mark_drawing` the key serves the coins of the split only, which are released in no form: a table that is
        refused while it is counted costs nothing.

        Raises
        ------
        ReleaseConflict
            The attempt has ended.
        KeyUnavailable
            The address cannot be written.
        """
        return custody.share(self.database, _id(attempt), uri)

    def erase(self, attempt: Attempt | str) -> None:
        """Destroy the key of an attempt that has ended, its file included; idempotent.

        Raises
        ------
        LedgerError
            The attempt is open: its key is still needed.
        KeyUnavailable
            The key file cannot be deleted.
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

    def _read(self, dataset: str, *, history: bool = False) -> tuple[rows.Row, Account, list[str]]:
        mark = None if self._anchor is None else self._anchor.read(dataset)
        return self.database.read(lambda connection: catalogue.read(connection, dataset, mark, history=history))

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

    def _write(self, work: Callable[[sa.Connection, Mark | None], T], dataset: str) -> T:
        """Run a transition; what its anchor has seen must be in the database, and it sees the outcome."""
        if self._anchor is None:
            return self.database.write(lambda connection: work(connection, None))
        mark = self._anchor.read(dataset)
        made, head = self.database.write(
            lambda connection: (work(connection, mark), catalogue.head(connection, dataset))
        )
        while head != mark:  # again where another process wrote meanwhile: it may have set the anchor first
            self._anchor.advance(dataset, head)
            mark, head = head, self._head(dataset)
        return made

    def _head(self, dataset: str) -> Mark:
        return self.database.read(lambda connection: catalogue.head(connection, dataset))


def _id(attempt: Attempt | str) -> str:
    return attempt if isinstance(attempt, str) else attempt.id


def _checked_uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise LedgerError("an attempt's id must be a random UUID") from None
