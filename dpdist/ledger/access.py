"""Opening the database of a ledger, and transactions in it that an anchor outside has seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

import sqlalchemy as sa

from dpdist.errors import LedgerError
from dpdist.ledger import catalogue, rows, tables
from dpdist.ledger.account import Account
from dpdist.ledger.anchor import Anchor, Mark
from dpdist.ledger.budget import PriceOf, accountant_price
from dpdist.ledger.database import Database, create_file

T = TypeVar("T")


class Access:
    """A ledger's database, with the price of a charge and the anchor."""

    def __init__(self, database: Database, price: PriceOf, anchor: Anchor | None = None) -> None:
        self.database = database
        self._price = price
        self._anchor = anchor

    def __repr__(self) -> str:
        return f"Ledger({self.database.name!r})"

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
            Make the ledger, or bring its tables to this version, when needed.
        price : callable
            ``price(event, portfolio)``: what the JSON of a privacy event costs; by the accountant by default.
        anchor : str, optional
            A local folder or ``s3://bucket/prefix`` outside of the database, where the heads of the journals are kept;
            by default what ``DPDIST_LEDGER_ANCHOR`` says. A database that is older is refused.

        Raises LedgerError: there is no usable ledger at `url`. The message never shows credentials.
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

    def _read(self, dataset: str, *, history: bool = False) -> tuple[rows.Row, Account, list[str]]:
        mark = None if self._anchor is None else self._anchor.read(dataset)
        return self.database.read(lambda connection: catalogue.read(connection, dataset, mark, history=history))

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
