"""What the custodian of a data set does: enters it, amends it, admits its inputs, verifies it, gives it an identity."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy.exc import IntegrityError

from dpdist.errors import DatasetExists, LedgerError
from dpdist.ledger import amendment, catalogue, journal, rows, signing, transitions
from dpdist.ledger.access import Access
from dpdist.ledger.anchor import VARIABLE, Mark
from dpdist.ledger.budget import budget_of
from dpdist.ledger.contract import Contract
from dpdist.ledger.period import Period, period_of
from dpdist.ledger.records import Dataset, Rational, Statement


class Custodian(Access):
    """The data sets of a ledger."""

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

        Raises DatasetExists: the name is taken; LedgerError: a cap is out of range, a kind is unknown, or the anchor
        knows a data set of this name that was used.
        """
        terms = catalogue.terms_of(name, epsilon, delta, guarantees, pml, contract)
        keys = signing.make_if_protected(self.database)

        def create(connection: sa.Connection) -> Dataset:
            created = catalogue.create(connection, terms, keys)
            if self._anchor is not None:  # before anybody sees the data set
                self._anchor.begin(name, catalogue.head(connection, name))
            return created

        try:
            return self.database.write(create)
        except IntegrityError:
            raise DatasetExists(f"data set {name!r} is in the ledger already; its caps are final") from None

    def create_from_contract(self, name: str, contract: Contract) -> Dataset:
        """Enter a data set with its contract, which has its caps and policy.

        Raises DatasetExists, LedgerError: as `create_dataset`.
        """
        contract = contract.located()
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

        Raises DatasetUnknown; LedgerError, BudgetExceeded: see `dpdist.ledger.amendment.amend`.
        """

        def work(connection: sa.Connection, mark: Mark | None) -> None:
            amendment.amend(connection, dataset, contract=contract.located(), reason=reason, mark=mark)

        self._write(work, dataset)
        return self.dataset(dataset)

    def admit_input(self, dataset: str, *, fingerprint: str, contract: str, besides: Collection[str] = ()) -> None:
        """Write down that an input keeps the contract with this digest: an act of the custodian, who checked it.

        Raises DatasetUnknown; ContractBroken: see `dpdist.ledger.amendment.admit_input`.
        """

        def work(connection: sa.Connection, mark: Mark | None) -> None:
            given = {"fingerprint": fingerprint, "contract": contract}
            amendment.admit_input(connection, dataset, **given, besides=besides, mark=mark)

        self._write(work, dataset)

    def verify(self, dataset: str, *, receipts: Iterable[str] = ()) -> Statement:
        """Check that the records of a data set are whole, and its spend within the caps.

        Parameters
        ----------
        dataset : str
        receipts : iterable of str
            Digests noted elsewhere (`Attempt.receipt`, `Statement.head`) that must be in the journal.

        Raises DatasetUnknown; LedgerError: a row was edited, added or deleted outside of dpdist, or more is spent
        than the caps admit.
        """
        noted = tuple(receipts)
        problems = self.database.read(lambda connection: catalogue.problems_of(connection, dataset, noted))
        if problems:
            raise journal.damaged(dataset, problems)
        return self.show(dataset)

    def anchor(self, dataset: str) -> Mark:
        """Set the anchor of a data set to the newest entry of its journal, once all of it is verified.

        Raises DatasetUnknown; LedgerError: the ledger has no anchor, is damaged, or is older than its anchor.
        """
        if self._anchor is None:
            raise LedgerError(f"the ledger has no anchor: set {VARIABLE} to a folder or an S3 prefix outside of it")
        problems = self.database.read(lambda connection: catalogue.problems_of(connection, dataset, ()))
        if problems:
            raise journal.damaged(dataset, problems)
        if self._anchor.is_set(dataset):  # an old backup agrees with itself
            self._read(dataset)
        mark = self._head(dataset)
        self._anchor.write(dataset, mark)
        return mark

    def new_identity(self, dataset: str) -> Ed25519PublicKey:
        """Make a key pair with which the releases of a data set are signed from now on; return the public key.

        Raises DatasetUnknown; KeyUnavailable: there is no key-encryption key that could protect the private key.
        """
        made = signing.make(self.database)
        self._write(lambda connection, mark: signing.enter(connection, dataset, made, mark=mark), dataset)
        return self.public_keys(dataset)[0]

    def public_keys(self, dataset: str) -> tuple[Ed25519PublicKey, ...]:
        """Return the public keys of a data set, that of the present identity first; none where it has none.

        Raises DatasetUnknown.
        """
        return signing.public_keys(self.database, dataset)

    def signing_key(self, dataset: str) -> Ed25519PrivateKey | None:
        """Return the private key of the present identity of a data set, None where it has none.

        Raises DatasetUnknown; KeyUnavailable: the key-encryption key is missing or another one.
        """
        return signing.signing_key(self.database, dataset)

    def period(self, dataset: str) -> Period | None:
        """Return the present period of a data set; None where its contract does not limit what one may spend.

        Raises DatasetUnknown; LedgerError: the ledger is damaged.
        """
        return self._period(self._read(dataset)[0])

    def _period(self, row: rows.Row) -> Period | None:
        return self.database.read(lambda connection: period_of(connection, row, transitions.now()))

    def dataset(self, name: str) -> Dataset:
        """Return a data set.

        Raises DatasetUnknown.
        """
        row = self.database.read(lambda connection: rows.lock_dataset(connection, name, lock=False))
        return rows.dataset_record(row)

    def datasets(self) -> tuple[str, ...]:
        """Return the names of all data sets, in order."""
        return self.database.read(catalogue.datasets)

    def show(self, dataset: str) -> Statement:
        """Return a data set with its budget and its attempts.

        Raises DatasetUnknown; LedgerError: the ledger is damaged.
        """
        row, account, leakage = self._read(dataset, history=True)
        terms = rows.dataset_record(row)
        charges = self.database.read(lambda connection: rows.charges_of(connection, row))
        attempts = tuple(rows.attempt_record(charge, dataset) for charge in charges)
        besides = self.database.read(lambda connection: amendment.besides(connection, row))
        budget = budget_of(terms, account, leakage)
        return Statement(terms, budget, attempts, row["head"], tuple(besides), self._period(row))
