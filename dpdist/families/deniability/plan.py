"""The plan of a plausible-deniability release.

Every record is sent to one of three splits by a secret coin: structure (T), parameters (P), seeds (S). What is done
to each split is an event; the release is their `RandomSplit`. The model's budget is met by T and P *together*: each
stage may spend more than the budget by itself, by the factor that the random split admits, because a record is in
one split only. With `split.records: all` the stages compose on all records, and the factor is below one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpdist.data.count import pair_cells
from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.plan import Needs, Plan, core_seconds
from dpdist.families.deniability import splits
from dpdist.families.deniability.own_model import DeclaredModel
from dpdist.families.deniability.parameters import ParameterPlan
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.privacy import accountant
from dpdist.privacy.calibrate import BITS, least_scale
from dpdist.privacy.deniability import theorem1
from dpdist.privacy.event import Event
from dpdist.privacy.formatting import Fact
from dpdist.privacy.guarantee import Covers, DifferentialPrivacy, Guarantee, PlausibleDeniability
from dpdist.spec.validation import change

SMALLEST_BATCH = 1 << 12  # candidates in a batch, at least
MEMORY_FOR_SEEDS = 0.1  # share of a worker's memory for the index of the seeds; larger ones are cut into ranges
_LARGEST_FACTOR = 8.0


@dataclass(frozen=True, kw_only=True)
class PlausibleDeniabilityPlan(Plan):
    """Everything a plausible-deniability release will do and cost, before it reads a record."""

    spec: PlausibleDeniabilitySpec
    model: splits.ModelPlan
    seeds: splits.SeedPlan | None  # None when every attribute is resampled
    event: Event = field()  # the charge of the release

    @property
    def kind(self) -> str:
        """Kind of guarantee, as the ledger's policies name it."""
        if self.seeds is not None and not self.seeds.whole_release:
            return "pd-per-record"
        return "dp-declared" if isinstance(self.model.parameters, DeclaredModel) else "dp"

    @cached_property
    def delta(self) -> float:
        """Delta at which the guarantee is stated."""
        privacy = self.spec.privacy
        return privacy.model.delta if self.kind == "pd-per-record" and privacy.model else privacy.release_delta

    @property
    def candidates_at_least(self) -> int:
        """Candidates that are tried in any case."""
        checked = 0 if self.seeds is None or self.seeds.passes is None else self.seeds.passes.candidates
        return max(self.spec.synthesis.records, checked)

    @property
    def candidates_at_most(self) -> int:
        """Candidates after which a release has enough records, or is given up."""
        return self.spec.synthesis.records if self.seeds is None else self.seeds.candidates

    def batch_size(self, slots: float) -> int:
        """Candidates in a batch, where this many tasks run at once; the released records do not depend on it."""
        share = math.ceil(self.candidates_at_least / slots)
        return min(splits.LARGEST_BATCH, max(SMALLEST_BATCH, 1 << math.ceil(math.log2(share))))

    @cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises, the first thing first."""
        if self.kind == "pd-per-record":
            return (self._deniability, self._dp("the model"))
        if self.kind == "dp-declared":
            return (self._dp("the whole release, if its model is as declared"), self._deniability)
        return super().guarantees if self.seeds is None else (*super().guarantees, self._deniability)

    def _dp(self, covers: Covers) -> DifferentialPrivacy:
        right = self.right if covers.startswith("the whole release") else None
        return DifferentialPrivacy(
            epsilon=self.epsilon, delta=self.delta, right=right, adjacency="add/remove", covers=covers
        )

    @property
    def refusal(self) -> str | None:
        """A guarantee per released record has to be asked for."""
        if self.kind != "pd-per-record" or self.spec.privacy.accept_per_record:
            return None
        return (
            "the guarantee would cover each released record, not the whole release: use the randomised test, or accept "
            "it with privacy.accept_per_record=true"
        )

    @property
    def _deniability(self) -> PlausibleDeniability:
        test = self.spec.privacy.deniability
        if test.test == "deterministic":
            return PlausibleDeniability(k=test.k, gamma=test.gamma)
        return theorem1(k=test.k, gamma=test.gamma, epsilon0=test.epsilon0, delta=self.spec.privacy.release_delta)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        spec = self.spec
        seeds, test = self.seeds, spec.privacy.deniability
        out: dict[str, Any] = super().public_parameters()
        out["shares"] = {name: str(share) for name, share in spec.split.shares._asdict().items()}
        out["parameters"] = self.model.parameters.to_json()
        if self.model.structure is not None:
            out["structure"] = self.model.structure.to_json()
        if spec.model.regression:
            out["regression"] = list(spec.model.regression)
        if seeds is not None:
            out["deniability"] = {
                "k": test.k,
                "gamma": test.gamma,
                "epsilon0": test.threshold_noise,
                "test": test.test,
                "omega": list(spec.omegas),
                "seeds_at_least": seeds.minimum if seeds.count is not None else None,
                "passing_mass_at_least": seeds.passing_mass,
            }
        return out

    def needs(self) -> Needs:
        """Memory, tasks and time, from public sizes only."""
        rows, width = self.spec.data.minimum_records, len(self.spec.table.attributes)
        batches = math.ceil(self.candidates_at_most / splits.LARGEST_BATCH)
        parts = math.ceil(self.spec.synthesis.records / self.spec.output.rows_per_part)
        return Needs(
            partitions=self.partitions,
            tasks=3 * self.partitions + batches + parts,
            task_bytes=8 * self.model.parameters.cells_at_most + 40 * (self.row_bytes + 1) * splits.LARGEST_BATCH,
            held_bytes=rows * (self.row_bytes + 1),
            seconds=core_seconds(read=3 * self.values, drawn=self.candidates_at_least * width),
        )

    def errors(self) -> list[Fact]:
        """How far off the counts of the model are."""
        deviation = self.model.parameters.standard_deviation
        if self.spec.model.hook is not None:
            return []
        return [Fact("Error", f"about +-{deviation:.3g} a count of the model's tables", {"deviation": deviation})]

    def details(self) -> list[Fact]:
        """Splits, structure, parameters, seeds and checks."""
        spec, shares = self.spec, self.spec.split.shares._asdict()
        facts = [
            Fact("Records", "all of them in every stage")
            if spec.split.records == "all"
            else Fact("Splits", ", ".join(f"{name} {float(share):.3g}" for name, share in shares.items()))
        ]
        if self.model.structure is not None:
            facts.append(Fact("Structure", self.model.structure.explain()))
        title = "Parameters" if isinstance(self.model.parameters, ParameterPlan) else "Model"
        facts.append(Fact(title, self.model.parameters.explain()))
        if spec.model.regression:
            names = ", ".join(spec.model.regression)
            text = f"{names}: the counts of the codes and their sums by bucket share a table's budget"
            facts.append(Fact("Regression", text))
        facts += self._seed_facts()
        return facts if spec.model.hook is not None else [*facts, Fact("Comparison", self._comparison)]

    def _seed_facts(self) -> list[Fact]:
        """How seeds are tested, and what a check confirms."""
        spec, seeds, test = self.spec, self.seeds, self.spec.privacy.deniability
        if seeds is None:
            return [Fact("Seeds", "not used: every attribute is resampled, so any number of records costs the same")]
        noisy = f", epsilon0 {test.epsilon0:g}" if test.test == "randomised" else ", deterministic"
        drawn = f"omega {', '.join(map(str, spec.omegas))} of {len(spec.table.attributes)} attributes"
        how = drawn if spec.model.hook is None else "each candidate is compared with all of them"
        text = f"at least {seeds.minimum:,}; k {test.k}, gamma {test.gamma:g}{noisy}; {how}"
        facts = [Fact("Seeds", text, {"seeds": seeds.minimum, "k": test.k, "gamma": test.gamma})]
        if seeds.passes is not None:
            text = (
                f"passing mass at least {seeds.passes.passing_mass:,.0f}, confirmed with noise of scale "
                f"{seeds.passes.scale:.3g} among {seeds.passes.candidates:,} candidates"
            )
            facts.append(Fact("Checks", text, {"passing_mass": seeds.passes.passing_mass}))
        elif seeds.passing_mass is not None:
            text = (
                f"passing mass at least {seeds.passing_mass:,} in every table with this many seeds: candidates keep "
                f"{spec.kept_combinations or 0:,} combinations of values at most"
            )
            facts.append(Fact("Checks", text, {"passing_mass": seeds.passing_mass}))
        return facts

    @property
    def _comparison(self) -> str:
        """Whether splits or all records have less noise at the same epsilon; with seeds, how that is found."""
        other = {"all": "disjoint", "disjoint": "all"}[self.spec.split.records]
        if self.seeds is not None:
            return f"with split.records={other} other tests are best: dpdist plan --solve compares"
        try:
            model = _budgeted(change(self.spec, {"split.records": other}), bits=7)
        except (AccountingError, SpecError):
            return f"split.records={other} is not within the budget"
        noise, own = (
            made.parameters.standard_deviation / made.spec.split.shares.parameters for made in (model, self.model)
        )
        words = f"{abs(1 - noise / own):.0%} {'less' if noise < own else 'more'} noise in the count tables"
        return f"split.records={other} has about {words}, relative to the counts, at the same epsilon"


def plan(spec: PlausibleDeniabilitySpec) -> PlausibleDeniabilityPlan:
    """Plan a plausible-deniability release. Raises SpecError: settings contradict each other; AccountingError: no valid
    guarantee, or too few declared records for the checks.
    """
    if spec.model.structure == "learned":
        pair_cells(spec.table.cardinalities)  # refuses domains whose pairs do not fit a worker
    seeds = splits.plan_seeds(spec) if spec.uses_seeds else None
    own = spec.model.hook is not None
    model = splits.declared_model(spec) if own else _budgeted(spec)
    event = model.event if seeds is None or seeds.event is None else splits.with_seeds(model, seeds.event)
    return PlausibleDeniabilityPlan(spec=spec, model=model, seeds=seeds, event=event)


def _budgeted(spec: PlausibleDeniabilitySpec, *, bits: int = BITS) -> splits.ModelPlan:
    """The model whose stages spend as much as its budget admits."""
    budget = spec.privacy.budget

    def cost(scale: float) -> float:
        return accountant.epsilon(splits.plan_model(spec, 1 / scale).event, delta=budget.delta)

    scale = least_scale(cost, epsilon=budget.epsilon, delta=budget.delta, least=1 / _LARGEST_FACTOR, bits=bits)
    return splits.plan_model(spec, 1 / scale)
