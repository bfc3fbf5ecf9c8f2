"""The spec of a histogram release: tables of counts and their entropies, or a function-valued mean."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from dpdist.federated.spec import HeldDataSpec, SummedRelease
from dpdist.spec.release import PrivacyLimit
from dpdist.spec.strict import Exact, Section
from dpdist.spec.unit import Following

MOST_PERIODS = 12  # of a panel: the histories of its units are enumerated
CHECK_SHARE = Fraction(1, 50)  # share of the budget of the check of the declared minimum, where entropies need one


class HistogramPrivacySpec(PrivacyLimit):
    """What the release may cost, for which neighbours, and with which noise."""

    adjacency: Literal["add/remove", "replacement"] = "add/remove"
    """Neighbouring tables: one record more or less, or one exchanged (the number of records is public)."""
    mechanism: Literal["auto", "laplace", "gaussian", "pml"] = "auto"
    """Discrete Laplace or rounded Gaussian noise, whichever errs less (auto), or discrete Laplace noise calibrated to
    pointwise maximal leakage of all together (pml: not differential privacy at that epsilon)."""
    epsilon: float = Field(ge=1e-6, le=1e6, allow_inf_nan=False, description="Budget: epsilon, or PML leakage in nats.")
    delta: float = Field(default=0, ge=0, lt=1, allow_inf_nan=False, description="Budget; 0 takes Laplace noise only.")
    alpha: float | None = Field(default=None, gt=0, le=1)
    """With pml: assumed least probability of every bin, for every record. An assumption about the population, never
    estimated from the data."""
    accept_no_noise: bool = False
    """With pml: release exact counts where epsilon >= ln(1/alpha) needs no noise."""

    @model_validator(mode="after")
    def _fitting(self) -> HistogramPrivacySpec:
        if (self.mechanism == "pml") != (self.alpha is not None):
            raise ValueError("privacy.alpha goes with `mechanism: pml`, and only with it")
        if self.mechanism == "pml" and (self.adjacency != "replacement" or self.delta):
            raise ValueError("`mechanism: pml` is about replacement, with delta 0: set privacy.adjacency: replacement")
        if self.mechanism != "pml" and self.accept_no_noise:
            raise ValueError("privacy.accept_no_noise goes with `mechanism: pml`")
        if self.mechanism == "gaussian" and not self.delta:
            raise ValueError("`mechanism: gaussian` needs privacy.delta above 0")
        return self


class HistogramQuerySpec(Section):
    """One histogram."""

    columns: tuple[str, ...] = Field(min_length=1, description="Columns counted jointly, at least one.")
    buckets: bool = False
    """Count the buckets of the columns instead of their values."""
    adaptive: dict[str, int] = Field(default_factory=dict)
    """Bins of about equal counts instead of values, chosen from the data for a third of the budget: column -> number of
    bins. For ordered columns; their values, or public `bins`, are the grid on which edges lie."""
    share: Exact | None = Field(default=None, gt=0, le=1)
    """Share of the histograms' budget; for all histograms or for none."""


class CountsSpec(Section):
    """What becomes of the noisy counts; costs nothing."""

    non_negative: bool = True
    """Fit non-negative integers to the noisy counts."""
    total: int | Literal["own", "common"] = "own"
    """Total of each histogram: its own noisy one, the best estimate from all, or a public number."""
    hierarchies: tuple[tuple[int, ...], ...] = ()
    """Histograms that are made to agree, by number, each list from fine to coarse: each is a sum of cells of the one
    before."""
    entropies: tuple[float, ...] = ()
    """Orders of entropies of the released counts, to release beside them."""

    @model_validator(mode="after")
    def _countable(self) -> CountsSpec:
        if self.entropies and not self.non_negative:
            raise ValueError("counts.entropies are those of non-negative counts: set counts.non_negative")
        if not all(0 < order < math.inf for order in self.entropies):
            raise ValueError("counts.entropies: orders are finite and above 0; 1 is Shannon's")
        return self


class EntropiesSpec(Section):
    """Entropies of histograms, released with noise of their own."""

    of: tuple[int, ...] | Literal["all"] = "all"
    """Histograms, by number from 0."""
    orders: tuple[float, ...] = Field(default=(1.0,), min_length=1, description="Renyi orders; 1 is Shannon's.")
    share: Exact = Field(default=Fraction(1, 5), gt=0, lt=1, description="Share of the release's budget.")
    mechanism: Literal["auto", "laplace", "gaussian"] = "auto"
    """Their noise."""


class KernelSpec(Section):
    """Covariance kernel of the noise of a function-valued mean; the Matern kernel is that of smoothness 3/2."""

    name: Literal["wiener", "gaussian", "matern"] = "wiener"
    """Kernel on [0, 1]."""
    length: float = Field(
        default=0.1, gt=0, allow_inf_nan=False, description="Length scale of gaussian and matern, share of the domain."
    )


class PanelSpec(Section):
    """The same units in each period: each is followed through one stay, from its first record to the first gap."""

    period: str
    """Column of the periods, in their order; the first column of each histogram."""
    changes: int = Field(ge=0, le=2)
    """How often the counted values of a unit may change in all; later changes are not counted. Noise grows with it."""


class CurvesSpec(Section):
    """A function-valued mean; every record is a curve.

    `data.minimum_records` counts curves: a lower bound of their number (add/remove), or their public number
    (replacement).
    """

    columns: tuple[str, ...] = Field(min_length=2, description="Columns of the values, in the order of the times.")
    times: tuple[float, ...] | None = Field(default=None, min_length=2)
    """Times of the values; by default equidistant over the domain."""
    domain: tuple[float, float] = (0.0, 1.0)
    """First and last time; mapped to [0, 1]."""
    kernel: KernelSpec = KernelSpec()
    penalty: float = Field(gt=0, allow_inf_nan=False, description="Rho: more smooths more and needs less noise.")
    clip: float = Field(gt=0, allow_inf_nan=False, description="Tau: largest L2 norm of a curve; larger are scaled.")
    terms: int | None = Field(default=None, ge=1, description="Terms of the expansion; default: all on the grid.")

    @model_validator(mode="after")
    def _timed(self) -> CurvesSpec:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("curves name a column twice")
        if self.times is not None and len(self.columns) != len(self.times):
            raise ValueError("curves.times has one time per column")
        if not self.domain[0] < self.domain[1]:
            raise ValueError("curves.domain goes from a smaller to a larger time")
        return self

    @property
    def grid(self) -> tuple[float, ...]:
        """Times mapped to [0, 1]."""
        low, high = self.domain
        if self.times is not None:
            return tuple((time - low) / (high - low) for time in self.times)
        last = len(self.columns) - 1
        return tuple(i / last for i in range(last + 1))


class HistogramSpec(SummedRelease):
    """Histograms, cross-tabulations and entropies of one table in one pass, or a function-valued mean."""

    papers: ClassVar[tuple[str, ...]] = (
        "Ma, Wu, Yan: Entropy-calibrated differentially private data release, 2026, doi:10.48550/arXiv.2603.13709",
        "Saeidian et al.: A tight context-aware privacy bound for histogram publication, 2025",
    )
    protects_units: ClassVar[bool] = True
    keeps_rules: ClassVar[bool] = True  # of the table: counts are no records
    weighs: ClassVar[bool] = True

    kind: Literal["histogram"]
    data: HeldDataSpec
    privacy: HistogramPrivacySpec
    histograms: tuple[HistogramQuerySpec, ...] | Literal["each column"] = ()
    """The histograms, or one of each column of the schema."""
    shares: Literal["equal", "optimal"] = "optimal"
    """Split of the histograms' budget if they state no shares: equal, or least total squared error."""
    counts: CountsSpec = CountsSpec()
    entropies: EntropiesSpec | None = None
    """Entropies to release."""
    panel: PanelSpec | None = None
    """Histograms by period of units that seldom change: less noise for levels and changes."""
    curves: CurvesSpec | None = None
    """A function-valued mean; by itself in a release. data.minimum_records is then about curves: with adjacency
    replacement their exact number."""

    @model_validator(mode="after")
    def _consistent(self) -> HistogramSpec:
        names = set(self.table.names)
        self._check_unit()
        if (self.curves is None) == (not self.queries):
            raise ValueError("a release has `histograms` or `curves`, one of the two")
        wanted = {name for query in self.queries for name in query.columns}
        if self.curves is not None:
            wanted = set(self.curves.columns)
            self._check_gaussian("curves take Gaussian noise")
            if self.entropies is not None:
                raise ValueError("`entropies` go with `histograms`")
        if wanted - names:
            raise ValueError(f"the schema has no column {', '.join(map(repr, sorted(wanted - names)))}")
        self._check_kinds()
        self._check_adaptive()
        self._check_federated()
        self._check_panel()
        if any(len(set(query.columns)) != len(query.columns) for query in self.queries):
            raise ValueError("a histogram names a column twice")
        stated = [query.share for query in self.queries if query.share is not None]
        if stated and (len(stated) != len(self.queries) or sum(stated) != 1):
            raise ValueError("histograms.share: state it for all histograms or for none; they sum to exactly 1")
        if self.privacy.mechanism == "pml" and (stated or self.entropies is not None):
            raise ValueError("`mechanism: pml` covers histograms, all with the same noise: no shares and no entropies")
        if self.privacy.accept_no_noise and len(self.queries) > 1:
            raise ValueError("privacy.accept_no_noise: two exact histograms leak without bound; release one")
        dropping = self.table.dropping
        if self.privacy.mechanism == "pml" and dropping:
            raise ValueError(
                "`mechanism: pml` assumes that every record falls in a bin, and records are dropped by "
                f"{', '.join(map(repr, dropping))}: refuse them, clip them, or give them a category"
            )
        numbers = [number for chain in self.counts.hierarchies for number in chain]
        if len(set(numbers)) != len(numbers) or any(len(chain) < 2 for chain in self.counts.hierarchies):
            raise ValueError("counts.hierarchies: lists of at least two histograms, each in at most one list")
        if isinstance(self.counts.total, int) and self.counts.total < 0:
            raise ValueError("counts.total is not negative")
        numbers += self.entropies.of if self.entropies and self.entropies.of != "all" else ()
        if any(not 0 <= number < len(self.queries) for number in numbers):
            raise ValueError(f"histograms are numbered from 0 to {len(self.queries) - 1}")
        return self

    def _check_federated(self) -> None:
        """Clients are asked for sums of tables, to which they add Gaussian noise."""
        if self.federated is None:
            return
        beside: dict[str, object] = {"curves": self.curves, "histograms.adaptive": self.binned, "weight": self.weight}
        beside |= {"entropies": self.entropies, "privacy.adjacency": self.privacy.adjacency != "add/remove"}
        if given := [name for name, value in beside.items() if value]:
            also = "; counts.entropies are those of the released counts" if given[0] == "entropies" else ""
            raise ValueError(
                f"{given[0]}: clients are asked for sums of tables alone: leave it out, or `federated`{also}"
            )
        self._check_gaussian("federated: clients draw Gaussian noise")

    def _check_panel(self) -> None:
        """Tables by period of units that are followed, with one noise for all of them."""
        if self.panel is None:
            return
        name, unit = self.panel.period, self.unit
        periods = next((a for a in self.table.attributes if a.name == name), None)
        if periods is None or periods.kind == "categorical" or periods.missing_code is not None:
            raise ValueError(f"panel.period: {name!r} is no column with an order and without a category for missing")
        number = periods.cardinality
        beside: dict[str, object] = {"curves": self.curves, "federated": self.federated, "entropies": self.entropies}
        beside |= {"counts.hierarchies": self.counts.hierarchies}
        if not 2 <= number <= MOST_PERIODS:
            raise ValueError(f"panel.period: {name!r} has {number} values, and a panel 2 to {MOST_PERIODS}")
        if unit is None or unit.at_most < number:
            raise ValueError(f"panel: declare `unit` with at_most: {number}, a record for each period")
        if any(query.columns[0] != name or query.buckets or query.adaptive for query in self.queries):
            raise ValueError(f"panel: the first column of each histogram is {name!r}, and cells are declared values")
        if given := [setting for setting, value in beside.items() if value]:
            raise ValueError(f"{given[0]}: a panel has histograms by period alone: leave it out")
        self._check_gaussian("panel: its noise is Gaussian")

    def _check_gaussian(self, why: str) -> None:
        if self.privacy.mechanism not in ("auto", "gaussian") or not self.privacy.delta:
            raise ValueError(f"{why}: privacy.delta above 0, mechanism auto or gaussian")

    def _check_unit(self) -> None:
        """What a unit's several records, and a record's weight, have no charge for."""
        if self.unit is None and self.weight is None:
            return
        named = "weight" if self.unit is None else "unit"
        if self.privacy.adjacency != "add/remove" or self.privacy.mechanism == "pml":
            raise ValueError(
                f"{named}: statistics under add/remove protect it; adjacency replacement and `mechanism: pml` protect "
                "single records only: leave them out"
            )

    def _check_kinds(self) -> None:
        """Histograms count codes, curves add up numbers."""
        continuous = set(self.table.continuous)
        if self.curves is not None:
            if wrong := [name for name in self.curves.columns if name not in continuous]:
                raise ValueError(
                    f"curves take the values of columns of kind `number` without bins, and not of "
                    f"{', '.join(map(repr, wrong))}: declare them as numbers with bounds"
                )
        elif wrong := sorted({name for query in self.queries for name in query.columns} & continuous):
            raise ValueError(
                f"histograms need bins, and {', '.join(map(repr, wrong))} is a number without: declare public `bins`"
            )

    def _check_adaptive(self) -> None:
        """Bins are chosen along an order, for histograms that nothing else merges."""
        attributes = {attribute.name: attribute for attribute in self.table.attributes}
        for number, query in enumerate(self.queries):
            for name, count in query.adaptive.items():
                setting = f"histograms.{number}.adaptive"
                if name not in query.columns:
                    raise ValueError(f"{setting}: the histogram has no column {name!r}")
                if attributes[name].kind == "categorical":
                    raise ValueError(
                        f"{setting}: the values of {name!r} have no order; declare kind ordinal if they do"
                    )
                codes = attributes[name].cardinality - (attributes[name].missing_code is not None)
                if not 2 <= count < codes:
                    raise ValueError(
                        f"{setting}: {name!r} has {codes:,} values, which {count:,} bins do not merge: ask for at "
                        "least 2 and for fewer than there are values"
                    )
            if query.adaptive and query.buckets:
                raise ValueError(f"histograms.{number}: `adaptive` merges values, and so does `buckets`: leave one out")
            if query.adaptive and self.privacy.mechanism == "pml":
                raise ValueError(
                    f"histograms.{number}.adaptive: `mechanism: pml` assumes how probable each bin is, which bins "
                    "chosen from the data have no assumption for: declare public `bins`"
                )
            if query.adaptive and any(number in chain for chain in self.counts.hierarchies):
                raise ValueError(
                    f"counts.hierarchies: histogram {number} has adaptive bins, which are no public sums of cells: "
                    "leave it out of the lists"
                )

    @property
    def binned(self) -> tuple[tuple[int, int, str, int], ...]:
        """Axes with adaptive bins: number of the histogram, axis, column and number of bins."""
        return tuple(
            (number, axis, name, query.adaptive[name])
            for number, query in enumerate(self.queries)
            for axis, name in enumerate(query.columns)
            if name in query.adaptive
        )

    @property
    def least_probabilities(self) -> dict[tuple[str, ...], float]:
        """The assumption of pointwise maximal leakage."""
        return {} if self.privacy.alpha is None else {query.columns: self.privacy.alpha for query in self.queries}

    @property
    def following(self) -> Following | None:
        """See `ReleaseSpec.following`: the columns of histograms count."""
        if self.panel is None:
            return None
        period = self.table.names.index(self.panel.period)
        counted = {self.table.names.index(name) for query in self.queries for name in query.columns}
        return Following(period, tuple(sorted(counted - {period})), self.panel.changes)

    @property
    def protects_only_units(self) -> bool:
        """A record more of a unit in a panel changes what its later records count as."""
        return self.panel is not None

    @property
    def queries(self) -> tuple[HistogramQuerySpec, ...]:
        """The histograms, in order."""
        if self.histograms == "each column":
            return tuple(HistogramQuerySpec(columns=(name,)) for name in self.table.names)
        return self.histograms

    @property
    def entropy_targets(self) -> tuple[tuple[int, float], ...]:
        """(number of the histogram, order) of each entropy."""
        if self.entropies is None:
            return ()
        chosen = range(len(self.queries)) if self.entropies.of == "all" else self.entropies.of
        return tuple((number, order) for number in chosen for order in self.entropies.orders)
