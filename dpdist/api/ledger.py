"""The ledger of the public API: data sets with their budgets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.api.display import Text
from dpdist.errors import SpecError
from dpdist.spec.release import DEFAULT_LEDGER

if TYPE_CHECKING:
    from dpdist.ledger import Books
    from dpdist.ledger.custodian import Statement
    from dpdist.ledger.records import Rational
    from dpdist.spec.contract import Contract

AnyContract = str | os.PathLike[str]


class Ledger:
    """The budget of data sets across releases.

    Nothing is opened before it is needed: `create` makes the database if none exists.

    Parameters
    ----------
    url : str, optional
        ``sqlite:///path``, ``postgresql+psycopg://user@host/database`` or the path of an SQLite ledger; by default what
        ``DPDIST_LEDGER`` says, else ``dpdist-ledger.db`` in the working folder, as on the command line.
    """

    def __init__(self, url: str | None = None) -> None:
        url = os.environ.get("DPDIST_LEDGER", DEFAULT_LEDGER) if url is None else url
        if not isinstance(url, str) or not url:
            raise SpecError("Ledger: expected a URL such as sqlite:///ledger.db, or the path of an SQLite ledger")
        self.url = url

    def __repr__(self) -> str:
        from dpdist.ledger.database import Database

        return f"Ledger({Database(self.url).name!r})"

    @contextmanager
    def opened(self, *, create: bool = False) -> Iterator[Books]:
        """The ledger of `dpdist.ledger`, opened for the time of a block."""
        from dpdist.ledger import Books

        with closing(Books.open(self.url, create=create)) as ledger:
            yield ledger

    def create(
        self,
        name: str,
        *,
        epsilon: Rational | None = None,
        delta: Rational | None = None,
        contract: AnyContract | None = None,
        guarantees: Iterable[str] = ("dp",),
    ) -> Text:
        """Enter a data set: ``dpdist ledger create``. Returns its budget, in words.

        Parameters
        ----------
        name : str
        epsilon, delta : number or text
            Caps over all releases, kept exactly; with a contract those of the contract.
        contract : path, optional
            The contract of the data set (YAML). Each input must then be checked once (`check`).
        guarantees : iterable of str
            The kinds of guarantee that a release may have.

        Raises
        ------
        SpecError
            Caps are missing, or differ from those of the contract.
        DatasetExists
            The name is taken.
        """
        if contract is None:
            if epsilon is None or delta is None:
                raise SpecError("create: give epsilon and delta, or a contract")
            with self.opened(create=True) as ledger:
                ledger.create_dataset(name, epsilon=epsilon, delta=delta, guarantees=guarantees)
            return self.budget(name)
        declared = _contract(contract)
        for cap, given, said in (("epsilon", epsilon, declared.epsilon), ("delta", delta, declared.delta)):
            if given is not None and _exact(given) != said:
                raise SpecError(f"create: {cap} differs from that of the contract, {said}: leave it out")
        with self.opened(create=True) as ledger:
            ledger.create_from_contract(name, declared)
        return self.budget(name)

    def check(self, name: str, data: Any = None, *, also_charged_to: Sequence[str] = ()) -> Text:
        """Read a table once and admit it if it keeps the contract of the data set: ``dpdist contract check``.

        An act of the custodian. It costs nothing; the answer holds private counts.

        Parameters
        ----------
        name : str
        data : table, optional
            A frame, or paths that the contract admits; by default the contract's own files.
        also_charged_to : sequence of str, optional
            Data sets that charged the same input before: their releases come on top of the caps of this one.

        Raises
        ------
        ContractBroken
            Another data set, not among `also_charged_to`, charged the same input.
        OutOfDomain
            The table does not keep the contract; for the custodian alone.
        SpecError
            The data set has no contract.
        """
        from dpdist.api.given import as_input, is_partitioned, paths_of
        from dpdist.cluster.cluster import Cluster
        from dpdist.data.files import wanted_columns
        from dpdist.lifecycle.conformity import admit, check_input
        from dpdist.spec.contract import Contract

        with self.opened() as ledger:
            text = ledger.dataset(name).contract
            if text is None:
                raise SpecError(f"data set {name!r} has no contract: there is nothing to check")
            contract, paths = Contract.from_text(text), None if data is None else paths_of(data)
            executor = Cluster() if is_partitioned(data) else None
            given = None
            if data is not None and paths is None:
                beside, extra = contract.protected or contract.weight, contract.data.extra_columns
                wanted = wanted_columns(contract.table, beside.by if beside else None) if extra == "ignore" else None
                given = as_input(data, executor=executor, extra_columns=extra, wanted=wanted)
            found = check_input(contract, paths or (), given=given, executor=executor)
            found.refuse()
            admit(ledger, name, contract, found, also_charged_to)
        return Text("\n".join([*found.lines(), "the contract is kept"]))

    def show(self, name: str) -> Statement:
        """A data set with its budget and its attempts. Raises DatasetUnknown."""
        with self.opened() as ledger:
            return ledger.show(name)

    def budget(self, name: str) -> Text:
        """What a data set has left, in words. Raises DatasetUnknown."""
        from dpdist.ledger.statement import budget_sentence

        with self.opened() as ledger:
            return Text(budget_sentence(ledger, name))

    def datasets(self) -> tuple[str, ...]:
        """Names of all data sets."""
        with self.opened() as ledger:
            return ledger.datasets()

    def contract_of(self, name: str) -> Contract | None:
        """The contract of a data set, if it has one."""
        from dpdist.spec.contract import Contract

        with self.opened() as ledger:
            text = ledger.dataset(name).contract
        return None if text is None else Contract.from_text(text)


def url_of(ledger: Ledger | str | None) -> str | None:
    """The URL of a ledger that a call is given. Raises SpecError: it is neither a ledger nor a URL."""
    if ledger is None or isinstance(ledger, Ledger):
        return None if ledger is None else ledger.url
    return Ledger(ledger).url


def _contract(path: AnyContract) -> Contract:
    from dpdist.spec.contract import Contract

    return Contract.from_yaml(Path(path))


def _exact(value: Rational) -> Any:
    from fractions import Fraction

    return Fraction(str(value))
