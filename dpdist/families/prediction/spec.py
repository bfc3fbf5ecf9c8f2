"""The spec of a two-stage release: synthetic inputs, and responses from a regression."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from dpdist.families.prediction.columns import Scale
from dpdist.families.prediction.lid.method import largest_alpha
from dpdist.families.prediction.second_stage import MOST_PARTIES, FeatureSpec, PartySpec, RegressionSpec
from dpdist.federated.spec import FederatedRelease, FederatedSpec, HeldDataSpec, SummedRelease
from dpdist.spec.attribute import Attribute
from dpdist.spec.kinds import HOOK
from dpdist.spec.release import PrivacyLimit
from dpdist.spec.strict import MOST_RECORDS, Section

FIRST_STAGE_NAMES = ("lhs", "gaussian-copula", "uniform", "weibull", "cauchy")
"""First stages; `dpdist.families.prediction.first_stage.FIRST_STAGES` has them."""

LARGEST_CATEGORY = 256
"""Most values of an attribute without order."""


class DisclosureSpec(Section):
    """How much local information a release that is not differentially private may disclose."""

    lid: float = Field(gt=0, le=1)
    """Largest share of released rows that may lie near their originals in some column."""
    eta: float = Field(default=0.01, gt=0, lt=0.5)
    """What is near, as a share of the width of a column's scale."""
    columns: tuple[str, ...] | None = None
    """Columns that are looked at; default: all synthesised ordered ones with at least 1 / eta values."""
    response: float | None = Field(default=None, gt=0, le=1)
    """Largest share of released rows whose response may lie within eta of the original one; default: any share."""


class TwoStagePrivacySpec(PrivacyLimit):
    """Which guarantee the release has, and what it may cost."""

    guarantee: Literal["lid", "dp"]
    """lid: the published method, NOT differentially private, refused unless the data set allows it; dp: the
    differentially private variant, in which nothing original is released."""
    disclosure: DisclosureSpec | None = None
    """With guarantee lid."""
    epsilon: float | None = Field(default=None, ge=1e-6, le=20)
    """With guarantee dp: budget of the whole release (add/remove)."""
    delta: float | None = Field(default=None, ge=1e-10, lt=1, description="With guarantee dp.")

    @model_validator(mode="after")
    def _matching(self) -> TwoStagePrivacySpec:
        if self.guarantee == "lid":
            if self.disclosure is None or self.epsilon is not None or self.delta is not None:
                raise ValueError("guarantee lid takes `disclosure`, and neither epsilon nor delta: it is not DP")
        elif self.disclosure is not None or self.epsilon is None or self.delta is None:
            raise ValueError("guarantee dp takes epsilon and delta, and no `disclosure`")
        return self


class DensitySpec(Section):
    """Densities of the inputs, which the first stage reproduces."""

    bandwidths: Literal["silverman", "paper"] = "silverman"
    """Bandwidths among which 5-fold cross-validation chooses. silverman: 0.02 to 2 times Silverman's rule, the kernel
    reflected at the ends of the scale; paper: 0.05 to 2 of the scale's width, the density cut at its ends. The latter
    smooths more, so synthetic rows lie farther from original ones."""


class PredictionSpec(Section):
    """Columns and stages."""

    response: str
    """The column that is predicted: a number, an integer or an ordinal; with guarantee lid also a category, which is
    classified."""
    log: Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """Columns on a logarithmic scale, sign(v) log(1 + |v| / unit), with the unit of each: amounts that differ by orders
    of magnitude."""
    keep: tuple[str, ...] = ()
    """Columns that stay ORIGINAL (guarantee lid only); all others are synthesised."""
    first_stage: str = Field(
        default="lhs",
        description=f"{', '.join(FIRST_STAGE_NAMES)}, or module:function, which is called as "
        "function(original, rng) and returns as many rows of the unit cube.",
    )
    density: DensitySpec = DensitySpec()
    matching: Literal["nearest", "greedy", "independent"] = "nearest"
    """Mix each original row with its nearest unused synthetic row, by the assignment with the least total distance
    (nearest) or row by row (greedy, as published); or with any row (independent)."""
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Share of the original row; default: the largest within the disclosure (guarantee lid), or 0 (dp)."""
    regression: RegressionSpec = RegressionSpec()
    parties: PartySpec | None = None
    """Parties (hospitals, branches, regions) in one table: the inputs of each are synthesised by themselves, and their
    regressions are correlated (guarantee lid only)."""
    records: int | None = Field(default=None, ge=1, le=MOST_RECORDS, description="Records to release (guarantee dp).")
    features: FeatureSpec = FeatureSpec()

    @model_validator(mode="after")
    def _known(self) -> PredictionSpec:
        if self.first_stage not in FIRST_STAGE_NAMES and not re.match(HOOK, self.first_stage):
            raise ValueError(f"first_stage: one of {', '.join(FIRST_STAGE_NAMES)}, or module:function")
        return self


class TwoStageSpec(SummedRelease):
    """Synthetic inputs mixed with original ones and responses from kernel ridge regression, or the DP variant."""

    papers: ClassVar[tuple[str, ...]] = ("Liu, Lin, Fan, Zhou: Two-stage data synthesization (LK-2SS)",)
    protects_units: ClassVar[bool] = True  # under guarantee dp

    kind: Literal["two-stage"]
    data: HeldDataSpec
    privacy: TwoStagePrivacySpec
    prediction: PredictionSpec

    @property
    def plugins(self) -> frozenset[str]:
        """A first stage and a regression of the user's own."""
        named = (self.prediction.first_stage, self.prediction.regression.hook or "")
        return frozenset(name for name in named if ":" in name)

    def _check_units(self, federated: FederatedSpec) -> None:
        FederatedRelease._check_units(self, federated)

    @model_validator(mode="after")
    def _consistent(self) -> TwoStageSpec:
        names, made = self.table.names, self.prediction
        party = () if made.parties is None else (made.parties.column,)
        for setting, chosen in (
            ("response", (made.response,)),
            ("log", tuple(made.log)),
            ("keep", made.keep),
            ("parties.column", party),
        ):
            unknown = [name for name in chosen if name not in names]
            if unknown:
                raise ValueError(f"prediction.{setting}: the schema has no {', '.join(map(repr, unknown))}")
        if len(names) < 2:
            raise ValueError("prediction: the schema needs an input in addition to the response")
        if made.response in made.keep:
            raise ValueError("prediction.keep: the response is never kept")
        for scale in (*self.inputs, self.response):
            if scale.nominal and scale.name in made.log:
                raise ValueError(f"prediction.log: {scale.name!r} has no order")
        if self.unit is not None and self.privacy.guarantee != "dp":
            raise ValueError("unit: guarantee lid protects single records only: leave the release out")
        if self.federated is not None and self.privacy.guarantee != "dp":
            raise ValueError("federated: clients send noisy sums, which guarantee dp has: leave it out")
        if self.privacy.guarantee == "dp":
            self._private()
        else:
            if made.parties is not None:
                self._divided(made.parties)
            self._disclosing()
        return self

    def _private(self) -> None:
        made = self.prediction
        if self.response.nominal:
            raise ValueError(
                f"prediction.response: under guarantee dp {made.response!r} must be a number or an integer without bins"
            )
        if made.records is None:
            raise ValueError("prediction.records: say how many records to release")
        if made.parties is not None:
            raise ValueError("prediction.parties: the private variant has one regression; parties need guarantee lid")
        if made.keep or made.alpha:
            raise ValueError("prediction: under guarantee dp nothing original is released: no `keep`, no `alpha`")
        if (
            made.first_stage not in ("lhs", "gaussian-copula")
            or made.regression != RegressionSpec()
            or made.density != DensitySpec()
        ):
            raise ValueError(
                "prediction: guarantee dp has its own densities and regression; its first stage is lhs or "
                "gaussian-copula"
            )

    def _divided(self, parties: PartySpec) -> None:
        made, column = self.prediction, parties.column
        if column == made.response:
            raise ValueError("prediction.parties.column: the response names no party")
        if column in made.log:
            raise ValueError(f"prediction.log: {column!r} names the party")
        count = self.inputs[self.input_names.index(column)].count
        if count is None or not 2 <= count <= MOST_PARTIES:
            raise ValueError(f"prediction.parties.column: {column!r} must have 2 to {MOST_PARTIES} values")
        if parties.correlation is not None and made.regression.hook is not None:
            raise ValueError("prediction.parties.correlation: a regression of your own correlates no parties")

    def _disclosing(self) -> None:
        made, disclosure = self.prediction, self.privacy.disclosure
        if made.records is not None or made.features != FeatureSpec():
            raise ValueError("prediction: `records` and `features` belong to guarantee dp")
        if all(scale.name in self.original for scale in self.inputs):
            raise ValueError("prediction.keep: at least one input is synthesised")
        if disclosure is None:
            return
        ordered = [scale.name for scale in self.inputs if not scale.nominal and scale.name not in self.original]
        for name in disclosure.columns or ():
            if name not in ordered:
                raise ValueError(f"privacy.disclosure.columns: {name!r} is no synthesised ordered input")
        if disclosure.response is not None and (self.response.nominal or not self.watched):
            raise ValueError("privacy.disclosure.response: the response has no order, or no column is looked at")
        if not self.watched and made.alpha is None:
            raise ValueError("privacy.disclosure: no column has 1 / eta values; name columns, or give prediction.alpha")
        if made.alpha is None and largest_alpha(disclosure.lid, eta=disclosure.eta, columns=len(self.watched)) is None:
            raise ValueError(
                "privacy.disclosure: by the closed form even alpha 0 discloses more than `lid`: raise it or lower `eta`"
            )

    @property
    def input_attributes(self) -> tuple[Attribute, ...]:
        """The attributes without the response, in the order of the schema."""
        return tuple(a for a in self.table.attributes if a.name != self.prediction.response)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(a.name for a in self.input_attributes)

    @property
    def original(self) -> tuple[str, ...]:
        """Names of the inputs that are released as they are: those that are kept, and the one that names the party."""
        keep, parties = self.prediction.keep, self.prediction.parties
        return keep if parties is None or parties.column in keep else (*keep, parties.column)

    @cached_property
    def inputs(self) -> tuple[Scale, ...]:
        """Scales of the inputs."""
        return tuple(scale_of(a, log=self.prediction.log.get(a.name, 0.0)) for a in self.input_attributes)

    @cached_property
    def response(self) -> Scale:
        """Scale of the response."""
        name = self.prediction.response
        attribute = self.table.attributes[self.table.names.index(name)]
        return scale_of(attribute, log=self.prediction.log.get(name, 0.0))

    @property
    def watched(self) -> tuple[int, ...]:
        """Places of the inputs that the disclosure looks at."""
        disclosure, original = self.privacy.disclosure, self.original
        if disclosure is None:
            return ()
        return tuple(
            i
            for i, scale in enumerate(self.inputs)
            if scale.name not in original
            and (
                scale.name in disclosure.columns
                if disclosure.columns is not None
                else not scale.nominal and (scale.count is None or scale.count * disclosure.eta >= 1)
            )
        )


def scale_of(attribute: Attribute, *, log: float = 0.0) -> Scale:
    """The scale of an attribute.

    Numbers and integers are on the scale of their values; ordinal attributes on that of their codes. Attributes without
    order, with bins or with a missing category are categories.

    Raises ValueError: a category has too many values.
    """
    name = attribute.name
    if attribute.bounds is not None:
        low, high = map(float, attribute.bounds)
        if attribute.kind == "number" and not attribute.is_binned:
            return Scale(name=name, low=low, high=high, log=log)
        if not attribute.is_binned and attribute.missing_code is None:
            return Scale(name=name, low=low, high=high, discrete=True, log=log)
    last = attribute.cardinality - 1
    if attribute.kind == "ordinal" and attribute.missing_code is None:
        return Scale(name=name, low=0, high=last, discrete=True, log=log)
    if attribute.cardinality > LARGEST_CATEGORY:
        raise ValueError(
            f"attribute {name!r} has {attribute.cardinality} values without order, more than {LARGEST_CATEGORY}: "
            "declare it as a number, or leave it out of the schema"
        )
    return Scale(name=name, low=0, high=last, discrete=True, nominal=True)
