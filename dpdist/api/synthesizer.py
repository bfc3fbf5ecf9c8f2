"""A synthesizer with the conventions of scikit-learn: `fit` makes a release, `sample` costs nothing."""

from __future__ import annotations

import inspect
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.api.calls import IN_MEMORY, AnyLedger, opened_run, plan
from dpdist.api.given import named_arguments
from dpdist.api.ledger import Ledger, url_of
from dpdist.api.released import Release
from dpdist.errors import BudgetExceeded, DatasetExists, SpecError, meant
from dpdist.privacy.formatting import Displayed, Fact, number_of, upwards
from dpdist.spec.schema import Schema
from dpdist.spec.validation import override

if TYPE_CHECKING:
    from distributed import Client

    from dpdist.api.framed import Framed
    from dpdist.families.base.attempt import Progress
    from dpdist.lifecycle.run import AttemptMode

OWN_DATASET = "frame"
"""Data set of tables without a schema, unless another is named."""

LEAST_RECORDS = 1_000
"""Records of the release that `fit` makes, unless `settings` says otherwise."""


class Synthesizer(Displayed):
    """Learns a model of a table under differential privacy, and draws records from it.

    `fit` charges the budget of the data set and publishes a small release, so that what was spent is on record.
    `sample` draws from the model of that release: post-processing, which costs nothing however often it is done::

        model = Synthesizer("census.yaml", epsilon=1, delta=1e-9, ledger=ledger, dataset="census")
        model.fit(frame).sample(1_000_000)

    Parameters
    ----------
    schema : Schema, path or mapping
        The public schema of the table.
    epsilon, delta : float
        Of the whole model.
    ledger : Ledger or URL
    dataset : str
        The data set that is charged.
    name : str, optional
        Name of the release; by default ``synthesizer-`` and a random number, so that each `fit` is one of its own.
    settings : mapping, optional
        Further settings of the spec, by dotted path: ``{"model.target": "income"}``. By default the contract of the
        data set says ``data.minimum_records``, and ``output.path`` is ``releases/NAME``.

    Attributes
    ----------
    release_ : Release
    guarantee_ : str
    epsilon_, delta_ : float
        As the release states them.
    feature_names_in_ : tuple of str
    n_features_in_ : int
    """

    @named_arguments
    def __init__(
        self,
        schema: Schema | str | os.PathLike[str] | Mapping[str, Any],
        *,
        epsilon: float,
        delta: float,
        ledger: AnyLedger,
        dataset: str,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.ledger = ledger
        self.dataset = dataset
        self.name = name
        self.settings = settings
        self._framed: Framed | None = None

    @classmethod
    @named_arguments
    def from_frame(
        cls,
        frame: Any,
        *,
        epsilon: float,
        delta: float,
        drop: Sequence[str] = (),
        public: Mapping[str, Any] | None = None,
        ledger: AnyLedger = None,
        dataset: str | None = None,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Synthesizer:
        """Return a synthesizer for a table without a schema; it reads no record. `fit` finds what is not public.

        Names and types of the columns are taken as public, the order of ordered categories too; those of a CSV file
        follow from its first texts, and digits after a zero are texts. Dates stay dates, and timestamps have a time of
        day, by the clock of their zone, unless nearly all are midnight. Values that many records share, bounds and bins
        are found with noise, for ``discover.share`` of the budget at most (of mu^2, 0.75 by default), in the same
        charge as the model.

        Parameters
        ----------
        frame : table
            As `data` of `dpdist.release`.
        epsilon, delta : float
            Of all of it.
        drop : sequence of str
            Columns to leave out, such as identifiers.
        public : mapping, optional
            By column what is public and costs nothing: bounds ``(0, 110)``, of dates ``("1950-01-01", "2004-12-31")``
            (texts, dates or timestamps), a list of values, keys of an attribute of a schema such as
            ``{"values": [0, 5]}``, or ``"text"``, ``"integer"``, ``"number"``.
        ledger : Ledger or URL, optional
            By default that of the command line (`Ledger`).
        dataset : str, optional
            The data set that is charged; by default ``frame``, with this epsilon and delta for all its releases.
        name, settings
            As for the constructor.

        Raises
        ------
        SpecError
            A column is not there, identifies people or holds free text by its name, or has a type of no attribute.
        """
        from dpdist.api.framed import framed

        found = framed(frame, drop, public or {})
        own: dict[str, Any] = {"data.extra_columns": "ignore", "data.minimum_records": LEAST_RECORDS}
        if found.undeclared:
            own["discover.columns"] = list(found.undeclared)
        ledger = Ledger() if ledger is None else ledger
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "ledger": ledger}
        made = cls(
            found.schema, **budget, dataset=dataset or OWN_DATASET, name=name, settings=own | dict(settings or {})
        )
        made._framed = found
        plan(made._tree(name or "synthesizer"), settings={"data.path": IN_MEMORY})
        return made

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Synthesizer:
        """Set parameters of the constructor.

        Raises
        ------
        SpecError
            There is no such parameter.
        """
        for name, value in params.items():
            if name not in self._names():
                raise SpecError(f"Synthesizer has no parameter {name!r}{meant(name, self._names())}")
            setattr(self, name, value)
        return self

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    @named_arguments
    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        client: Client | None = None,
        progress: bool | Progress = False,
        attempt: AttemptMode = "new",
        test_key: str | None = None,
    ) -> Synthesizer:
        """Charge the data set, learn the model and publish a small release of it.

        Parameters
        ----------
        X : table
            As `data` of `dpdist.release`.
        y : None
            Ignored.
        client, progress, attempt, test_key
            As for `dpdist.release`; to resume, give the synthesizer a name.

        Raises
        ------
        DpdistError
            As `dpdist.release`.
        """
        if self._framed is not None and self.dataset == OWN_DATASET:
            with suppress(DatasetExists):
                Ledger(url_of(self.ledger)).create(self.dataset, epsilon=self.epsilon, delta=self.delta)
        options: dict[str, Any] = {"client": client, "progress": progress, "attempt": attempt, "test_key": test_key}
        with self._told_of_own_dataset(), opened_run(self._spec(), data=X, ledger=self.ledger, **options) as run:
            if run.outcome is not None:
                raise SpecError(f"release {run.spec.name!r} is published: draw from the synthesizer that made it")
            outcome, spec = run.finish(), run.spec
        self.release_ = Release(spec.output.path, outcome=outcome)
        self.guarantee_ = self.release_.guarantee
        self.epsilon_, self.delta_ = self.release_.epsilon, self.release_.delta
        self.feature_names_in_ = spec.table.names
        self.n_features_in_ = len(self.feature_names_in_)
        if self._framed is not None:
            self.schema = self.release_.schema
            self.settings = {n: v for n, v in (self.settings or {}).items() if not n.startswith("discover.")}
        return self

    @named_arguments
    def sample(self, n: int = 1, *, where: str | None = None, seed: int = 0, labels: bool = False) -> Any:
        """Draw records from the published model, as ``dpdist draw`` does. Costs nothing.

        Parameters
        ----------
        n : int
        where : str, optional
            Which records, such as ``"region = 'north' and age >= 65"``.
        seed : int
            The same number, the same records.
        labels : bool
            Whether declared labels take the place of values.

        Returns
        -------
        DataFrame
            With the types of the schema, or of the frame that `from_frame` was given. Categories are those of the
            release: public ones in the order of the schema, found ones in that of an ordered type, else by frequency.

        Raises
        ------
        SpecError
            The model is not fitted, `n` is below 1, or a number is no integer.
        """
        if not hasattr(self, "release_"):
            raise SpecError("sample: the synthesizer is not fitted yet; call fit first")
        if self._framed is None or labels:
            return self.release_.sample(n, where=where, seed=seed, labels=labels)
        return self._framed.restored(self.release_.drawn(n, where=where, seed=seed), self.release_.schema)

    def _facts(self) -> list[Fact]:
        if hasattr(self, "release_"):
            return self.release_._facts()
        facts = [
            Fact("Promise", f"({upwards(self.epsilon)}, {upwards(self.delta)})-differential privacy, charged by fit()")
        ]
        if self._framed is not None:
            names, found = self._framed.schema.names, self._framed.undeclared
            facts += [
                Fact("Public", f"names and types of {len(names)} columns are taken as public"),
                Fact("To find", f"{', '.join(found) or 'nothing'}, with noise and within the same charge"),
            ]
        return [*facts, Fact("Data set", self.dataset)]

    def _spec(self) -> dict[str, Any]:
        """The spec of the release."""
        return self._tree(self.name or f"synthesizer-{secrets.token_hex(4)}")

    def _tree(self, name: str) -> dict[str, Any]:
        schema = self.schema
        if isinstance(schema, str | os.PathLike):
            schema = Schema.from_yaml(Path(schema))
        spec: dict[str, Any] = {
            "kind": "synthesis",
            "name": name,
            "dataset": self.dataset,
            "schema": schema,
            "output": {"path": f"releases/{name}"},
            "privacy": {"epsilon": self.epsilon, "delta": self.delta},
            "synthesis": {"records": LEAST_RECORDS},
        }
        made = override(spec, self.settings or {})
        if "minimum_records" not in made.setdefault("data", {}):
            made["data"]["minimum_records"] = self._minimum()
        return made

    def _minimum(self) -> int:
        """The declared number of records of the data set."""
        url = url_of(self.ledger)
        contract = None if url is None else Ledger(url).contract_of(self.dataset)
        if contract is None:
            raise SpecError(
                "Synthesizer: give settings={'data.minimum_records': …}, a public lower bound on the number of "
                "records; the data set has no contract that declares one"
            )
        return contract.minimum_records

    @contextmanager
    def _told_of_own_dataset(self) -> Iterator[None]:
        """Say what to do where the data set of tables without a schema has too little left."""
        try:
            yield
        except BudgetExceeded:
            if self._framed is None or self.dataset != OWN_DATASET:
                raise
            held = Ledger(url_of(self.ledger)).show(OWN_DATASET)
            budget = f"({upwards(held.dataset.epsilon)}, {upwards(held.dataset.delta)})"
            raise BudgetExceeded(
                f"the data set {OWN_DATASET!r} of this ledger has {budget} for all its releases, "
                f"{number_of(len(held.attempts), 'charge')} before this one, and too little left for "
                f"({upwards(self.epsilon)}, {upwards(self.delta)}). Give ledger= another file, such as "
                "'sqlite:///other.db', or dataset= another name, after Ledger().create(NAME, epsilon=…, delta=…)"
            ) from None
