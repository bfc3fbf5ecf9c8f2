"""The spec of a synthesis: records drawn from a model of noisy one-way and pair tables of all records."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from dpdist.errors import SpecError
from dpdist.families.synthesis.regressions import MOST_COEFFICIENTS
from dpdist.federated.spec import HeldDataSpec, SummedRelease
from dpdist.model.choices import MOST_ROUNDS, is_wide
from dpdist.spec.attribute import Attribute
from dpdist.spec.data import PATH, FilesSpec
from dpdist.spec.regression import Means, Regression, parse_regression
from dpdist.spec.release import Delta, Epsilon, OutputSpec, PrivacyLimit
from dpdist.spec.schema import Schema
from dpdist.spec.series import SeriesSpec, epsilon_of, step_of
from dpdist.spec.strict import MOST_RECORDS, Section


class PrivacySpec(PrivacyLimit):
    """What the whole release may cost."""

    epsilon: Epsilon
    delta: Delta
    accuracy_share: float = Field(default=0.03, ge=0, le=0.5)
    """Share of the budget (of mu^2) that measures how accurate the released records are; 0 for none."""
    regression_share: float | None = Field(default=None, gt=0, le=0.5)
    """Share of the budget (of mu^2) that measures the declared regressions; default: 0.1 if any are."""


class PrioritySpec(Section):
    """Pairs of attributes that matter more than others, or less."""

    attributes: tuple[str, ...] = Field(min_length=1, max_length=3)
    """Two attributes; three, for each two of them; or one, for everything by it: all its pairs."""
    weight: float = Field(gt=0, le=100, allow_inf_nan=False, description="Weight of the pairs; others have 1.")


class PriorSpec(FilesSpec):
    """A public table of the same schema, such as last year's release: the model starts from it.

    It is read exactly and without a charge, so whoever names it says in the open that it is public.
    """

    records: bool = True
    """Whether its rows may be the released records, each as often as noisy tables of the private table say, where they
    are near enough; else the model starts from its tables, unless these are far, too."""
    public: str = Field(min_length=20, max_length=500)
    """Why the table is public, in a sentence that the manifest repeats: who published it, and where."""


class EvidenceSpec(Section):
    """Earlier releases of the same schema whose noisy tables the model is fitted to as well, at no charge.

    The manifest names them by hash. How far they differ from this table is estimated from what is published. A folder
    may be a pattern in its last part, such as releases/????-??: those that are there and whose names come before this
    release's.
    """

    previous: Annotated[tuple[str, ...], PATH] = ()
    """Folders of releases of the same population at earlier times, in order."""
    sum: Annotated[tuple[str, ...], PATH] = ()
    """Folders of releases of disjoint tables that make up this one: months of a quarter, regions of a country."""
    larger: Annotated[tuple[str, ...], PATH] = ()
    """Folders of releases of larger disjoint tables that make up this one as well: quarters, beside months as `sum`."""
    part: Annotated[tuple[str, ...], PATH] = ()
    """Folders of releases of tables that this one is a part of."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All folders."""
        return (*self.part, *self.larger, *self.sum, *self.previous)


class ModelSpec(Section):
    """Choices that the plan makes from public facts where they are not set."""

    rounds: int | None = Field(default=None, ge=0, le=50, description="Rounds after the tree.")
    target: str | None = None
    """Attribute that the records are to predict: its pairs have twice the weight."""
    priorities: tuple[PrioritySpec, ...] = ()
    """Pairs with weights of their own, for what is picked and how precisely it is measured."""
    prior: PriorSpec | None = None
    """A public table that the model starts from; never the one that is released."""
    evidence: EvidenceSpec = EvidenceSpec()
    """Earlier releases that say something of this table."""
    balance: int | None = Field(default=None, ge=0, le=MOST_ROUNDS)
    """Rounds in which records are exchanged; 0 for none."""


class SynthesisOutput(OutputSpec):
    """Where and how the release is written."""

    measurements: bool = True
    """Also publish the noisy tables, the model and the key that records are drawn with."""


class SynthesisSpec(Section):
    """The records to release."""

    records: int | None = Field(default=None, ge=1, le=MOST_RECORDS)
    """Number of released records; default: data.minimum_records."""


class DiscoverSpec(Section):
    """What the schema leaves open: it is found before the model is learned, within the same budget."""

    columns: tuple[str, ...] = Field(min_length=1, max_length=500)
    """Attributes of the schema whose values, bounds and bins are found."""
    share: float = Field(default=0.75, gt=0, le=0.9)
    """Share of the budget (of mu^2) that this takes at most; the less, the more records there are for each value."""


REGRESSION_SHARE = 0.1
"""Share of mu^2 that declared regressions take where the spec does not say."""

PRESUMED_VALUES = 30
"""Values of an attribute, about, before they are found."""

MOST_SHARES = 0.9
"""Of mu^2, for the accuracy and the regressions together, at most."""


class WholeSynthesisSpec(SummedRelease):
    """Records drawn from a model that was fitted to noisy tables of all records."""

    papers: ClassVar[tuple[str, ...]] = (
        "McKenna, Miklau, Sheldon: Winning the NIST contest, JPC 11, 2021, doi:10.29012/jpc.778",
    )
    protects_units: ClassVar[bool] = True
    keeps_rules: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    kind: Literal["synthesis"]
    data: HeldDataSpec
    output: SynthesisOutput
    privacy: PrivacySpec
    model: ModelSpec = ModelSpec()
    synthesis: SynthesisSpec = SynthesisSpec()
    series: SeriesSpec | None = None
    """A release of every month, and of what months make up, from one spec."""
    regressions: tuple[str, ...] = Field(default=(), max_length=32)
    """Regressions whose coefficients are measured, as questions of `dpdist infer`, such as "regression wage on age, sex
    = 1" or "logistic regression income = 2 on age, sex = 1 where state = 8"."""
    discover: DiscoverSpec | None = None
    """What the schema leaves open, as `dpdist.Synthesizer.from_frame` and `dpdist synthesize` write it."""

    @model_validator(mode="after")
    def _consistent(self) -> WholeSynthesisSpec:
        if self.table.continuous:
            raise ValueError(f"attribute {self.table.continuous[0]!r} is continuous: declare `bins` for it")
        named = {name for priority in self.model.priorities for name in priority.attributes}
        for name in sorted(named | {self.model.target or self.table.names[0]}):
            if name not in self.table.names:
                raise ValueError(f"model: no attribute is called {name!r}; name attributes of the schema")
        if any(len(set(priority.attributes)) < len(priority.attributes) for priority in self.model.priorities):
            raise ValueError("model.priorities: name different attributes")
        if self.model.prior and self.earlier_releases:
            raise ValueError("model: name a prior or evidence; the records of a public release can be a prior")
        if self.series is not None:
            self._check_series(self.series)
        self._check_regressions()
        if self.discover is not None:
            self._check_discovery(self.discover)
        beside: dict[str, Any] = {"discover": self.discover, "regressions": self.regressions}
        beside |= {"model.prior": self.model.prior, "model.evidence": self.earlier_releases}
        if self.federated is not None and (given := [name for name, value in beside.items() if value]):
            raise ValueError(f"{given[0]}: clients are asked for sums of tables alone: leave it out, or `federated`")
        return self

    def _check_series(self, series: SeriesSpec) -> None:
        if series.period is None or series.epsilon is None:
            raise ValueError("series: read the spec from its file or mapping, which chooses one period")
        share = series.shares[step_of(series.period)]
        if self.privacy.epsilon > epsilon_of(series.epsilon, self.privacy.delta, share):
            raise ValueError("series: the period has a larger epsilon than its share of the whole")
        if self.unit is not None or self.federated is not None:
            raise ValueError("series: a unit may have records in several months, so leave `unit`, `federated` out")

    def decisive(self) -> dict[str, Any]:
        """The settings that decide the released bytes: a series only decides others."""
        return {name: value for name, value in super().decisive().items() if name != "series"}

    def _check_discovery(self, discover: DiscoverSpec) -> None:
        for name in discover.columns:
            if name not in self.table.names:
                raise ValueError(f"discover.columns: no attribute is called {name!r}; name attributes of the schema")
        beside: dict[str, Any] = {"unit": self.unit, "weight": self.weight, "regressions": self.regressions}
        beside |= {"rules": self.table.rules, "model.prior": self.model.prior, "model.evidence": self.earlier_releases}
        if given := [name for name, value in beside.items() if value]:
            raise ValueError(f"discover: leave {given[0]} out, or declare all attributes")

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Names of the attributes whose values are found, in the order of the schema."""
        columns = self.discover.columns if self.discover else ()
        return tuple(name for name in self.table.names if name in columns)

    @property
    def undeclared_texts(self) -> tuple[str, ...]:
        """Those whose values are texts."""
        return tuple(name for name in self.undeclared if self.attribute(name).values is not None)

    @property
    def undeclared_numbers(self) -> tuple[str, ...]:
        """The others."""
        return tuple(name for name in self.undeclared if self.attribute(name).values is None)

    @property
    def undeclared_steps(self) -> tuple[str, ...]:
        """Those of numbers that need not be integers, and of moments that need not be days."""
        return tuple(name for name in self.undeclared_numbers if self.attribute(name).kind in ("number", "datetime"))

    def attribute(self, name: str) -> Attribute:
        """The attribute of this name."""
        return self.table.attributes[self.table.names.index(name)]

    @property
    def presumed(self) -> Schema:
        """The schema, with some number of values for attributes whose values are not found yet."""
        if not self.undeclared:
            return self.table
        open_ = {n: Attribute(name=n, kind="integer", bounds=(1, PRESUMED_VALUES)) for n in self.undeclared}
        return Schema(attributes=tuple(open_.get(a.name, a) for a in self.table.attributes))

    @property
    def asks_of_table(self) -> str | None:
        """Which values there are, where the schema leaves that open."""
        return None if self.discover is None else "discover: the contract has the values; leave the setting out"

    def public(self) -> dict[str, Any]:
        """The public settings, for the manifest."""
        tree = super().public()
        for name in ("discover", "series"):
            if getattr(self, name) is None:
                del tree[name]
        if not self.earlier_releases:
            del tree["model"]["evidence"]
        return tree

    def _check_regressions(self) -> None:
        if not self.regressions and self.privacy.regression_share is not None:
            raise ValueError("privacy.regression_share: declare `regressions`, or leave the share out")
        if self.privacy.accuracy_share + self.regression_share > MOST_SHARES:
            raise ValueError(
                f"privacy: accuracy_share and regression_share sum to more than {MOST_SHARES}; the model needs the rest"
            )
        try:
            parsed = self.parsed_regressions()
        except SpecError as error:
            raise ValueError(f"regressions: {error}") from None
        if len({regression.key for regression in parsed}) < len(parsed):
            raise ValueError("regressions: one is given twice; its coefficients are measured once")
        for regression in parsed:
            check_measurable(regression)

    def parsed_regressions(self, means: Means = MappingProxyType({})) -> tuple[Regression, ...]:
        """The declared regressions. Raises SpecError: one cannot be read."""
        return tuple(parse_regression(text, self.table, means) for text in self.regressions)

    @property
    def regression_share(self) -> float:
        """The share of mu^2 that measures the declared regressions."""
        share = self.privacy.regression_share
        return (REGRESSION_SHARE if share is None else share) if self.regressions else 0.0

    @property
    def accuracy_share(self) -> float:
        """The share of mu^2 that measures the accuracy of the records; none of wide tables."""
        return 0.0 if is_wide(self.presumed.cardinalities) else self.privacy.accuracy_share

    @property
    def model_share(self) -> float:
        """The share of mu^2 that is the model's."""
        return 1 - self.accuracy_share - self.regression_share

    @property
    def public_tables(self) -> tuple[str, ...]:
        """Paths of the public tables that the release reads in addition to its own."""
        return self.model.prior.paths if self.model.prior else ()

    @property
    def earlier_releases(self) -> tuple[str, ...]:
        """Paths of releases that are evidence."""
        return self.model.evidence.paths

    @property
    def records(self) -> int:
        """Number of released records."""
        return self.synthesis.records or self.data.minimum_records


def check_measurable(regression: Regression) -> None:
    """Refuse a regression that no table has coefficients of. Raises ValueError: by the schema alone it has none."""
    if len(regression.names) > MOST_COEFFICIENTS:
        raise ValueError(f"regressions: {regression.text!r} has more than {MOST_COEFFICIENTS} coefficients")
    if len({term.key for term in regression.terms}) < len(regression.terms):
        raise ValueError(f"regressions: a term of {regression.text!r} is given twice")
    for term in (regression.outcome, *regression.terms):
        if np.ptp(term.values[term.counted]) == 0:
            raise ValueError(f"regressions: {term.text.strip()!r} is the same for all values of its attribute")
    if regression.outcome.attribute in {term.attribute for term in regression.terms}:
        raise ValueError(f"regressions: the outcome of {regression.text!r} is about the attribute of a term")
