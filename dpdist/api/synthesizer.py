"""A synthesizer with the conventions of scikit-learn: `fit` makes a release, `sample` costs nothing."""

from __future__ import annotations

import inspect
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.api.calls import AnyLedger, opened_run
from dpdist.api.frames import to_pandas
from dpdist.api.ledger import Ledger, url_of
from dpdist.api.released import Release
from dpdist.errors import SpecError
from dpdist.spec.overrides import override
from dpdist.spec.schema import Schema

if TYPE_CHECKING:
    from distributed import Client
    from pandas import DataFrame

    from dpdist.families.base.attempt import Progress
    from dpdist.lifecycle.run import AttemptMode

LEAST_RECORDS = 1_000
"""Records of the release that `fit` makes, unless `settings` says otherwise."""


class Synthesizer:
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
                raise SpecError(f"Synthesizer has no parameter {name!r}; it has {', '.join(self._names())}")
            setattr(self, name, value)
        return self

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

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
        options: dict[str, Any] = {"client": client, "progress": progress, "attempt": attempt, "test_key": test_key}
        with opened_run(self._spec(), data=X, ledger=self.ledger, **options) as run:
            if run.outcome is not None:
                raise SpecError(f"release {run.spec.name!r} is published: draw from the synthesizer that made it")
            outcome, spec = run.finish(), run.spec
        self.release_ = Release(spec.output.path, outcome=outcome)
        self.guarantee_ = self.release_.guarantee
        self.epsilon_, self.delta_ = self.release_.epsilon, self.release_.delta
        self.feature_names_in_ = spec.table.names
        self.n_features_in_ = len(self.feature_names_in_)
        return self

    def sample(
        self, n: int = 1, *, where: str | None = None, random_state: int | None = None, labels: bool = False
    ) -> DataFrame:
        """Draw records from the published model, as ``dpdist draw`` does. Costs nothing.

        Parameters
        ----------
        n : int
        where : str, optional
            Which records, such as ``"region = 'north' and age >= 65"``.
        random_state : int, optional
            The same number, the same records; by default others each time.
        labels : bool
            Whether declared labels take the place of values.

        Raises
        ------
        SpecError
            The model is not fitted, `n` is below 1, or a number is no integer.
        """
        from dpdist.inference.published import Published
        from dpdist.inference.records import draw_table

        if not hasattr(self, "release_"):
            raise SpecError("sample: the synthesizer is not fitted yet; call fit first")
        seed = secrets.randbelow(1 << 62) if random_state is None else random_state
        published = Published.open(self.release_.path)
        drawn = draw_table(published, n, where=where, seed=seed).table
        return to_pandas(drawn, self.release_.schema, self.release_.manifest.format, labels=labels)

    def _spec(self) -> dict[str, Any]:
        """The spec of the release."""
        name = self.name or f"synthesizer-{secrets.token_hex(4)}"
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
