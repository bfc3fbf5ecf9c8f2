"""Opening a ledger, and what the custodian of a data set does: enters it, amends it, admits its inputs, verifies it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy.exc import IntegrityError

from dpdist.errors import AccountingError, DatasetExists, LedgerError
from dpdist.ledger import book as books
from dpdist.ledger import tables, terms
from dpdist.ledger.anchor import VARIABLE, Anchor, Mark
from dpdist.ledger.book import Book
from dpdist.ledger.database import Database, create_file
from dpdist.ledger.keys import WITH_TEST_KEY
from dpdist.ledger.records import Budget, Charge, Dataset, PriceOf, Rational, accountant_price, damaged
from dpdist.ledger.signing import Identity, KeyEncryptionKey
from dpdist.ledger.terms import Period
from dpdist.privacy.event import from_json, takes_size_for_public
from dpdist.privacy.formatting import Displayed, Fact, downwards, number_of, upwards
from dpdist.spec.contract import Contract, adjacency_of

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Statement(Displayed):
    """A data set with its budget and the charges of all its attempts, oldest first.

    ``head`` is the digest of the newest journal entry: noted elsewhere, it proves later that nothing before it
    was altered (`Books.verify`). ``also_charged_to`` are other data sets that charge the same inputs; ``period`` is the
    present one, where the contract limits what one may spend.
    """

    dataset: Dataset
    budget: Budget
    attempts: tuple[Charge, ...]
    head: str
    also_charged_to: tuple[str, ...] = ()
    period: Period | None = None

    @property
    def sentence(self) -> str:
        """What no budget covers of the releases, if anything, and then what it has left."""
        budget = self.budget
        words = self.uncovered
        words.append(
            f"epsilon {downwards(budget.epsilon_remaining)} of {downwards(budget.epsilon_cap)} left for data set "
            f"{self.dataset.name} at delta {upwards(budget.delta_cap)} ({adjacency_of(self.dataset.contract)})"
        )
        if self.period is not None:
            words.append(self.period.sentence())
        if budget.pml_cap is not None:
            left = max(budget.pml_cap - budget.pml_spent, budget.pml_spent * 0)
            words.append(f"leakage of {downwards(left)} of {downwards(budget.pml_cap)} nats left (replacement)")
        events = [one.event for one in self._live if one.event is not None]
        if public := sum(takes_size_for_public(from_json(event)) for event in events):
            words.append(f"{number_of(public, 'release')} under replacement took the number of records for public")
        return "; ".join(words)

    @property
    def uncovered(self) -> list[str]:
        """What the budget does not cover, in words; empty where there is nothing."""
        kinds = Counter(one.guarantee for one in self._live)
        seeds, no_dp = kinds["pd-per-record"], kinds["lid"]
        found = [f"the seeds of {number_of(seeds, 'per-record release')}"] * bool(seeds)
        found += [f"{number_of(no_dp, 'release')} without differential privacy"] * bool(no_dp)
        exposed = sum(WITH_TEST_KEY in one.spec_hash for one in self._live)
        found += [f"the noise of {number_of(exposed, 'release')} with a test key"] * bool(exposed)
        words = [f"no budget covers {' and '.join(found)}"] if found else []
        if kinds["dp-declared"]:
            words.append(f"{number_of(kinds['dp-declared'], 'release')} with a model that is believed as declared")
        if self.also_charged_to:
            words.append(f"other releases of the same input are charged to {', '.join(self.also_charged_to)}")
        return words

    @property
    def _live(self) -> list[Charge]:
        """The attempts that are not void."""
        return [one for one in self.attempts if one.state != "void"]

    @property
    def _heading(self) -> str:
        return f"Data set {self.dataset.name}"

    def _facts(self) -> list[Fact]:
        try:
            budget = self.sentence
        except AccountingError as error:  # an event of another version: what is shown never fails
            budget = f"unknown; {error}"
        facts = [Fact("Budget", budget), Fact("Allows", ", ".join(sorted(self.dataset.guarantees)))]
        for charge in self.attempts:
            alone = "not differentially private" if charge.event is None else f"epsilon {upwards(charge.epsilon)} alone"
            told = f"{charge.release}, {charge.state}, {alone}, {charge.created[:10]}, attempt {charge.id[:8]}"
            facts.append(Fact("Releases", told))
        return facts


class Custodian:
    """A ledger's database, its anchor and its data sets."""

    def __init__(self, database: Database, price: PriceOf, anchor: Anchor | None = None) -> None:
        self.database = database
        self._price = price
        self._anchor = anchor

    def __repr__(self) -> str:
        return f"Books({self.database.name!r})"

    @classmethod
    def open(
        cls, url: str, *, create: bool = True, price: PriceOf = accountant_price, anchor: str | None = None
    ) -> Self:
        """Open a ledger.

        Parameters
        ----------
        url : str
            ``sqlite:///path`` (one machine, local disk) or ``postgresql+psycopg://user@host/database``.
        create : bool
            Make the ledger, or its tables, when needed.
        price : callable
            ``price(event, portfolio)``: what the JSON of a privacy event costs; by the accountant by default.
        anchor : str, optional
            A local folder or ``s3://bucket/prefix`` outside of the database, where the heads of the journals are
            kept; by default what ``DPDIST_LEDGER_ANCHOR`` says. A database that is older is refused.
        """
        database = Database(url)
        if database.file and not database.file.exists():
            if not create:
                raise LedgerError(
                    f"no ledger at {database.name}, which is {database.file.absolute()}: a ledger is looked for from "
                    "the folder in which dpdist runs. If the data set has one, name it (DPDIST_LEDGER, or `ledger` in "
                    "the spec), as a new one knows nothing of what was spent. Else make one with dpdist ledger create"
                )
            create_file(database.file)
        if create:
            database.create()
        elif (revision := database.revision()) is None:
            raise LedgerError(f"there is no ledger in {database.name} yet: make one with dpdist ledger create")
        else:
            database.require(revision)
        return cls(database, price, Anchor.find(anchor))

    def close(self) -> None:
        """Release what the driver holds; the ledger may still be used."""
        self.database.engine.dispose()

    def create_dataset(
        self,
        name: str,
        *,
        epsilon: Rational,
        delta: Rational,
        guarantees: Iterable[str] = ("dp",),
        pml: Rational | None = None,
    ) -> Dataset:
        """Enter a data set with its caps and policy, and a signing identity for its releases.

        Only an act of its custodian changes the terms (`amend`). Without a key-encryption key, which protects the
        private key, there is no identity (`new_identity`).

        Parameters
        ----------
        epsilon, delta : number or text
            The caps, kept exactly: ``4``, ``"1/3"``, ``1e-8`` (a float stands for the decimal it prints as).
        guarantees : iterable of str
            The kinds of guarantee a release may have, of `GUARANTEES`.
        pml : number or text, optional
            The cap of an account of pointwise maximal leakage, in nats. With it, releases with the guarantee
            ``pml`` are charged there; without, they are charged their equal differential privacy.
        """
        return self._enter(terms.terms_of(name, epsilon, delta, guarantees, pml, None))

    def create_from_contract(self, name: str, contract: Contract) -> Dataset:
        """Enter a data set with its contract, which has its caps and policy. Raises DatasetExists, LedgerError: as
        `create_dataset`.
        """
        return self._enter(terms.terms_of_contract(name, contract.located()))

    def _enter(self, columns: dict[str, str | None]) -> Dataset:
        name = str(columns["name"])
        protected = any(os.environ.get(variable) for variable in ("DPDIST_KEK", "DPDIST_KEK_FILE"))
        identity = Identity.new(self._kek(create=True)) if protected or self.database.file else None

        def enter(connection: sa.Connection) -> Dataset:
            row = books.create(connection, columns, None if identity is None else identity.public)
            if identity is not None:
                _store(connection, row, identity, str(columns["created"]))
            if self._anchor is not None:  # before anybody sees the data set
                self._anchor.begin(name, Mark(row["length"], row["head"]))
            return Dataset.of(row)

        try:
            return self.database.write(enter)
        except IntegrityError:
            raise DatasetExists(f"data set {name!r} is in the ledger already; its caps are final") from None

    def amend(self, dataset: str, contract: Contract, *, reason: str) -> Dataset:
        """Give a data set another contract, with its caps: an act of its custodian, in the journal with its reason.
        Raises DatasetUnknown; LedgerError, BudgetExceeded: see `dpdist.ledger.terms.amend`.
        """
        self._write(lambda book: terms.amend(book, contract.located(), reason=reason), dataset)
        return self.dataset(dataset)

    def admit_input(self, dataset: str, **admitted: Any) -> None:
        """Write down that an input keeps the contract with this digest: an act of the custodian, who checked it;
        arguments of `dpdist.ledger.terms.admit_input`. Raises DatasetUnknown; ContractBroken: as there.
        """
        self._write(partial(terms.admit_input, **admitted), dataset)

    def inputs(self, dataset: str) -> set[tuple[str, str]]:
        """Return the fingerprints of the admitted inputs, each with the digest of the contract that it keeps."""
        return self._read(lambda book: set(book.inputs), dataset)

    def verify(self, dataset: str, *, receipts: Iterable[str] = ()) -> Statement:
        """Check that the records of a data set are whole.

        Parameters
        ----------
        receipts : iterable of str
            Digests noted elsewhere (`Charge.receipt`, `Statement.head`) that must be in the journal.
        """
        book, also_charged_to = self._read(_with_others, dataset)
        missing = [f"receipt {one[:12]} is not in the journal" for one in receipts if one not in book.receipts]
        if missing:
            raise damaged(dataset, missing)
        return _statement(book, also_charged_to)

    def anchor(self, dataset: str) -> Mark:
        """Set the anchor of a data set to the newest entry of its journal, once all of it is verified. Raises
        DatasetUnknown; LedgerError: the ledger has no anchor, is damaged, or is older than its anchor.
        """
        if self._anchor is None:
            raise LedgerError(f"the ledger has no anchor: set {VARIABLE} to a folder or an S3 prefix outside of it")
        # an old backup agrees with itself
        mark = self._read(lambda book: book.mark, dataset, anchored=self._anchor.is_set(dataset))
        self._anchor.write(dataset, mark)
        return mark

    def new_identity(self, dataset: str) -> Ed25519PublicKey:
        """Make a key pair with which the releases of a data set are signed from now on; return the public key. Raises
        DatasetUnknown; KeyUnavailable: there is no key-encryption key that could protect the private key.
        """
        identity = Identity.new(self._kek(create=True))

        def enter(book: Book) -> None:
            book.append(books.IDENTITY, {"public_key": identity.public})
            _store(book.connection, book.row, identity, book.at)

        self._write(enter, dataset)
        return identity.public_key

    def public_keys(self, dataset: str) -> tuple[Ed25519PublicKey, ...]:
        """Return the public keys of a data set, that of the present identity first; none where it has none. Raises
        DatasetUnknown; LedgerError: the ledger is damaged.
        """
        return tuple(identity.public_key for identity in self._identities(dataset))

    def signing_key(self, dataset: str) -> Ed25519PrivateKey | None:
        """Return the private key of the present identity of a data set, None where it has none. Raises DatasetUnknown;
        KeyUnavailable: the key-encryption key is missing or another one; LedgerError: the ledger is damaged.
        """
        found = self._identities(dataset)
        return found[0].private_key(self._kek(), dataset) if found else None

    def _identities(self, dataset: str) -> list[Identity]:
        """The identities of a data set, the newest first."""
        rows = self._read(lambda book: book.identities, dataset, anchored=False)
        return [Identity(row["public_key"], bytes(row["wrapped_key"])) for row in reversed(rows)]

    def period(self, dataset: str, months: Iterable[str] = ()) -> Period | None:
        """Return the present period of a data set; None where its contract does not limit what one may spend; `months`
        as of `Books.remaining`. Raises DatasetUnknown; LedgerError: the ledger is damaged.
        """
        return self._read(lambda book: Period.of(book, months), dataset)

    def dataset(self, name: str) -> Dataset:
        """Return a data set. Raises DatasetUnknown."""
        return self.database.read(lambda connection: Dataset.of(books.dataset_row(connection, name)))

    def datasets(self) -> tuple[str, ...]:
        """Return the names of all data sets, in order."""
        query = sa.select(tables.dataset.c.name).order_by(tables.dataset.c.name)
        return self.database.read(lambda connection: tuple(connection.execute(query).scalars()))

    def show(self, dataset: str) -> Statement:
        """Return a data set with its budget and charges. Raises DatasetUnknown; LedgerError: the ledger is damaged."""
        return _statement(*self._read(_with_others, dataset))

    def _book(self, dataset: str) -> Book:
        """A book as it is now, for what takes long: its transaction has ended."""
        return self._read(lambda book: book, dataset)

    def _read(self, work: Callable[[Book], T], dataset: str, *, anchored: bool = True) -> T:
        """Read a book; what the anchor has seen must be in it."""
        mark = None if self._anchor is None or not anchored else self._anchor.read(dataset)
        return self.database.read(lambda connection: work(Book.open(connection, dataset, mark=mark)))

    def _write(self, work: Callable[[Book], T], dataset: str) -> T:
        """Change a book; what the anchor has seen must be in it, and the anchor sees the outcome."""
        mark = None if self._anchor is None else self._anchor.read(dataset)

        def write(connection: sa.Connection) -> tuple[T, Mark]:
            book = Book.open(connection, dataset, mark=mark, lock=True)
            return work(book), book.mark

        made, head = self.database.write(write)
        while self._anchor is not None and head != mark:
            self._anchor.advance(dataset, head)
            mark, head = head, self._head(dataset)  # another process may have set the anchor meanwhile, to less
        return made

    def _head(self, dataset: str) -> Mark:
        row = self.database.read(lambda connection: books.dataset_row(connection, dataset))
        return Mark(row["length"], row["head"])

    @property
    def _default_kek(self) -> Path | None:
        """The file of the embedded key-encryption key, ``<SQLite file>.kek``."""
        file = self.database.file
        return file.with_name(file.name + ".kek") if file else None

    def _kek(self, *, create: bool = False) -> KeyEncryptionKey:
        return KeyEncryptionKey.find(self._default_kek, create=create)


def _store(connection: sa.Connection, row: books.Row, identity: Identity, at: str) -> None:
    """Store a key pair whose public key is in the journal."""
    values = {"dataset_id": row["id"], "public_key": identity.public, "created": at}
    connection.execute(sa.insert(tables.identity).values(**values, wrapped_key=identity.wrapped))


def _with_others(book: Book) -> tuple[Book, tuple[str, ...]]:
    """A book, and the other data sets that charge the inputs which it admits."""
    return book, tuple(terms.others_of(book, {fingerprint for fingerprint, _ in book.inputs}))


def _statement(book: Book, also_charged_to: tuple[str, ...]) -> Statement:
    dataset = book.dataset
    return Statement(
        dataset=dataset,
        budget=Budget.of(dataset, book.account, book.leakage),
        attempts=tuple(Charge.of(charge, book.name) for charge in book.charges.values()),
        head=book.row["head"],
        also_charged_to=also_charged_to,
        period=Period.of(book),
    )
