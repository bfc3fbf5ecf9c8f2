"""The spec of a plausible-deniability release: full synthetic records from a DP Bayesian network."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from dpdist.families.deniability.regression import check_regressed
from dpdist.spec.kinds import HOOK, named_hook
from dpdist.spec.release import Epsilon, PrivacyLimit, ReleaseSpec
from dpdist.spec.strict import MOST_RECORDS, Exact, Section

CHECK_SHARE = 0.1
"""Share of a stage's epsilon and delta that its checks take: noise grows by a ninth, and few declared minima fail."""


class ModelBudget(Section):
    """An (epsilon, delta) pair."""

    epsilon: Epsilon
    delta: float = Field(ge=1e-10, lt=1, allow_inf_nan=False, description="Delta of the model.")


class DeniabilitySpec(Section):
    """The privacy test of plausible deniability."""

    k: int = Field(default=50, ge=1, description="Plausible seeds a released record needs.")
    gamma: float = Field(default=4, gt=1, le=1e6, description="Largest ratio of probabilities in a bucket.")
    epsilon0: float = Field(default=1, gt=0, le=100, description="Parameter of the threshold noise.")
    test: Literal["randomised", "deterministic"] = "randomised"
    """Privacy Test 2 (noisy threshold) or 1 (fixed threshold, not DP)."""

    @property
    def threshold_noise(self) -> float | None:
        """Epsilon0 of the test, None where its threshold is fixed."""
        return self.epsilon0 if self.test == "randomised" else None


class DeniabilityPrivacySpec(PrivacyLimit):
    """What the release may cost and which guarantee it states."""

    model: ModelBudget | None = None
    """Budget of the model (structure and parameters); required, but for a model of your own."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """Delta of the whole-release guarantee; default: that of the model; required with your own."""
    seed_check_epsilon: float = Field(default=0.02, gt=0, le=10)
    """Epsilon of each of the two checks on the seeds."""
    checked_candidates: int = Field(default=1 << 20, ge=1, le=1 << 32)
    """Candidates drawn at least, among which the pass rate is checked."""
    deniability: DeniabilitySpec = DeniabilitySpec()
    accept_per_record: bool = False
    """Accept a guarantee per released record where the whole release has none that is finite."""

    @property
    def release_delta(self) -> float:
        """Delta of the whole-release guarantee."""
        return self.budget.delta if self.delta is None else self.delta

    @property
    def budget(self) -> ModelBudget:
        """Budget of the model. ValueError for a model of the user's own, which has none."""
        if self.model is None:
            raise ValueError("privacy.model: expected epsilon and delta, the budget of the model")
        return self.model


Share = Annotated[Exact, Field(ge=0, le=1)]


class Shares(NamedTuple):
    """Shares of the records that the stages use."""

    structure: Fraction
    parameters: Fraction
    seeds: Fraction


class SplitSpec(Section):
    """Shares of the records used for structure, parameters and seeds; exact, they sum to one.

    Where every attribute is resampled (`synthesis.omega: all`), the defaults are 1/5, 4/5 and 0.
    """

    records: Literal["disjoint", "all"] = "disjoint"
    """disjoint: a secret coin sends each record to one stage. all: every stage uses all records, their costs compose,
    and the shares have no effect. `dpdist plan` compares the noise."""
    structure: Share = Fraction(1, 10)
    """Share of the records that the parents are learned from."""
    parameters: Share = Fraction(4, 10)
    """Share of the records that the tables of the model are counted from."""
    seeds: Share = Fraction(5, 10)
    """Share of the records that candidates are drawn from and compared with."""

    @model_validator(mode="after")
    def _one(self) -> SplitSpec:
        if self.structure + self.parameters + self.seeds != 1:
            raise ValueError(
                f"the shares sum to {float(self.structure + self.parameters + self.seeds):g}; "
                "structure + parameters + seeds must be exactly 1"
            )
        return self

    @property
    def shares(self) -> Shares:
        """The shares that are used."""
        return ALL_RECORDS if self.records == "all" else Shares(self.structure, self.parameters, self.seeds)


ALL_RECORDS = Shares(Fraction(1), Fraction(1), Fraction(1))

WITHOUT_SEEDS = {"structure": "1/5", "parameters": "4/5", "seeds": "0"}
"""Default shares of a release whose records keep nothing of a seed: no record waits for what is not done."""


class NetworkSpec(Section):
    """The model that generates the records."""

    hook: Annotated[str, BeforeValidator(named_hook)] | None = Field(default=None, pattern=HOOK)
    """module:class of a generative model of your own, in place of a learned one: with `sample` and `log_prob` (see
    docs/how-to/own-model.md). No other setting of `model` goes with it, but learned_from."""
    learned_from: Literal["public"] | ModelBudget | None = None
    """With `hook`, what its parameters cost on this data set. public: nothing, they come from public data or from
    earlier releases alone. Epsilon and delta: they were learned from this data set with that guarantee (add/remove),
    which this release is charged. You answer for it: dpdist cannot check it."""
    structure: Literal["learned", "independent", "synthesis"] = "learned"
    """A Bayesian network with learned parents, or independent marginals (the baseline); or synthesis: records of the
    model of kind: synthesis, one of its records that agrees with the kept values gives the rest."""
    score: Literal["cfs", "total-variation"] = "total-variation"
    """Criterion of the parent search: cfs (the published one, from noisy entropies) or total-variation (lowest expected
    error of the two-way marginals, from distances to independence, whose sensitivity is several times smaller)."""
    order: Literal["learned", "small-first"] | tuple[str, ...] = "small-first"
    """Order of the attributes where the network leaves a choice (small domains first keeps more seeds plausible), or
    the names of all attributes in a declared order: parents then come before their children."""
    regression: tuple[str, ...] = ()
    """Ordered attributes (integers, binned numbers, ordinals) whose conditional is a regression on the buckets of their
    parents, in place of a noisy table with a row for each combination of these."""


class CandidatesSpec(Section):
    """The records to release."""

    records: int = Field(ge=1, le=MOST_RECORDS, description="Number of released records, R.")
    omega: Literal["all"] | int | tuple[int, ...] = "all"
    """How many attributes are resampled: all, a number, or a list from which each candidate draws."""
    minimum_pass_rate: float = Field(default=0.1, gt=0, le=1)
    """Declared public lower bound on the pass rate; checked with noise."""
    max_check_plausible: int | None = Field(default=None, ge=1)
    """With `model.hook`: expected number of seeds, each compared with every candidate, in a table of
    data.minimum_records; default: all records. It goes with `model.hook` only."""


class PlausibleDeniabilitySpec(ReleaseSpec):
    """Full synthetic records from a DP Bayesian network, tested against the seeds."""

    papers: ClassVar[tuple[str, ...]] = (
        "Bindschaedler, Shokri, Gunter: Plausible deniability for privacy-preserving data synthesis, PVLDB 10, 2017, "
        "doi:10.14778/3055540.3055542",
    )

    kind: Literal["plausible-deniability"]
    privacy: DeniabilityPrivacySpec
    split: SplitSpec = SplitSpec()
    model: NetworkSpec = NetworkSpec()
    synthesis: CandidatesSpec

    @model_validator(mode="before")
    @classmethod
    def _seeds_that_are_used(cls, tree: Any) -> Any:
        """Without seeds, shares that are not set are those of the model alone; of a model of the user's own, none."""
        if not isinstance(tree, dict) or not isinstance(tree.get("synthesis", {}), dict):
            return tree
        split = tree.get("split", {})
        if isinstance(tree.get("model"), dict) and tree["model"].get("hook") is not None:
            return tree if "split" in tree else {**tree, "split": _seeds_checked(tree)}
        if tree.get("synthesis", {}).get("omega", "all") == "all" and isinstance(split, dict) and "seeds" not in split:
            return {**tree, "split": WITHOUT_SEEDS | split}
        return tree

    @model_validator(mode="after")
    def _consistent(self) -> PlausibleDeniabilitySpec:
        if self.model.hook is not None:
            self._own_model()
            return self
        if self.model.learned_from is not None:
            raise ValueError("model.learned_from: goes with model.hook, a model of your own")
        if self.synthesis.max_check_plausible is not None:
            raise ValueError("synthesis.max_check_plausible: goes with model.hook; else all seeds are counted")
        if self.split.parameters == 0:
            raise ValueError("split.parameters: must be above 0")
        _ = self.privacy.budget  # refuses where none exists
        m = len(self.table.attributes)
        bad = [w for w in self.omegas if not 1 <= w <= m]
        if bad or not self.omegas:
            raise ValueError(f"synthesis.omega: numbers of attributes lie between 1 and {m}")
        if len(set(self.omegas)) != len(self.omegas):
            raise ValueError("synthesis.omega: a number is listed twice")
        if self.uses_seeds and self.split.shares.seeds == 0:
            raise ValueError("split.seeds: must be above 0 when some attribute keeps its seed's value")
        order = self.model.order
        if isinstance(order, tuple) and sorted(order) != sorted(self.table.names):
            raise ValueError("model.order: a declared order names every attribute of the schema once")
        if self.model.structure == "learned" and self.split.shares.structure == 0:
            raise ValueError("split.structure: must be above 0 when the structure is learned")
        if self.model.structure == "synthesis":
            # Check what a model of kind synthesis needs
            if len(self.omegas) > 1 or not self.uses_seeds:
                raise ValueError(
                    "synthesis.omega: with model.structure=synthesis, one number of attributes below all of them is "
                    "resampled; kind: synthesis resamples all"
                )
            if self.split.records == "disjoint" and self.split.structure:
                raise ValueError("split.structure: expected 0 with model.structure=synthesis, which has one stage")
        if self.model.regression:
            if self.model.structure != "learned":
                raise ValueError("model.regression: regresses on learned parents: goes with model.structure=learned")
            check_regressed(self.model.regression, self.table)
        return self

    def _own_model(self) -> None:
        """Check what a model of the user's own needs."""
        given, most = self.model, self.synthesis.max_check_plausible
        if given.learned_from is None:
            raise ValueError(
                "model.learned_from: say where the model's parameters come from: public, or the epsilon and delta with "
                "which they were learned from this data set"
            )
        if given != NetworkSpec(hook=given.hook, learned_from=given.learned_from):
            raise ValueError("model: with a hook, only learned_from is set")
        if self.privacy.model is not None or self.privacy.delta is None:
            raise ValueError(
                "privacy: with model.hook, set `delta` and no `model`: model.learned_from says what it cost"
            )
        if self.synthesis.omega != "all":
            raise ValueError("synthesis.omega: a model of your own draws all attributes: leave it out")
        if self.split.records != "disjoint" or self.split.structure or not self.split.seeds:
            raise ValueError("split: with model.hook, set `seeds` above 0 and `parameters`, the records not used")
        if most is not None and self.split.seeds * self.data.minimum_records > most:
            raise ValueError("split.seeds: more records than synthesis.max_check_plausible: lower it, or leave it out")

    @property
    def plugins(self) -> frozenset[str]:
        """A model of the user's own."""
        return frozenset(() if self.model.hook is None else (self.model.hook,))

    @property
    def regressed(self) -> tuple[int, ...]:
        """Attributes whose conditional is a regression, ascending."""
        return tuple(sorted(self.table.names.index(name) for name in self.model.regression))

    @property
    def omegas(self) -> tuple[int, ...]:
        """The numbers of resampled attributes, ascending."""
        omega = self.synthesis.omega
        if omega == "all":
            return (len(self.table.attributes),)
        return (omega,) if isinstance(omega, int) else tuple(sorted(omega))

    @property
    def uses_seeds(self) -> bool:
        """Whether any candidate depends on its seed."""
        return self.model.hook is not None or self.omegas != (len(self.table.attributes),)

    @property
    def kept_combinations(self) -> int | None:
        """Combinations of values that candidates can keep of their seeds; None where they are not declared.

        Known where the order is declared, or no network decides it, and one number of attributes is resampled.
        """
        order = self.declared_order
        if order is None or len(self.omegas) > 1:
            return None
        sizes = dict(zip(self.table.names, self.table.cardinalities, strict=True))
        return math.prod(sizes[name] for name in order[: len(order) - self.omegas[0]])

    @property
    def declared_order(self) -> tuple[str, ...] | None:
        """Names of all attributes, those first that candidates keep; None where a network decides."""
        order = self.model.order
        if isinstance(order, tuple):
            return order
        if self.model.structure != "synthesis":
            return None
        sizes = dict(zip(self.table.names, self.table.cardinalities, strict=True))
        return tuple(sorted(sizes, key=sizes.__getitem__))


def _seeds_checked(tree: dict[str, Any]) -> dict[str, str]:
    """The default split of a model of the user's own: as many seeds as each candidate is to be compared with."""
    data, synthesis = tree.get("data"), tree.get("synthesis")
    records = data.get("minimum_records") if isinstance(data, dict) else None
    most = synthesis.get("max_check_plausible") if isinstance(synthesis, dict) else None
    seeds = Fraction(1)
    if isinstance(records, int) and isinstance(most, int) and 0 < most < records:
        seeds = Fraction(most, records)
    return {"structure": "0", "parameters": str(1 - seeds), "seeds": str(seeds)}
