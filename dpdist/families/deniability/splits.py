"""What is done to each of the three splits, and what it costs: T and P give the model, S the seeds.

Every record is sent to one of them by a secret coin, so the release is the `RandomSplit` of their events. Where each
stage uses all records (`split.records: all`), it is their composition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from dpdist.errors import SpecError
from dpdist.families.deniability.own_model import DeclaredModel
from dpdist.families.deniability.parameters import ParameterPlan, parameter_plan
from dpdist.families.deniability.pool import PoolPlan, pool_plan
from dpdist.families.deniability.spec import CHECK_SHARE, ModelBudget, PlausibleDeniabilitySpec
from dpdist.families.deniability.structure import MAX_CELLS, StructurePlan, structure_plan
from dpdist.model.forecast import draws_at_most
from dpdist.privacy.checks import CountCheck, PassCheck, candidates_needed, count_check, pass_check
from dpdist.privacy.deniability import SeedRecords, certain_mass, growth
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, RandomSplit
from dpdist.privacy.noise import SAMPLER_DELTA
from dpdist.spec.strict import OwnFields

LARGEST_BATCH = 1 << 18  # candidates in a batch, at most
_FEWER = 5_000
_DRAWS_LOST = SAMPLER_DELTA * 2 * MAX_CELLS  # more than the cells of all tables and the statistics of pairs


def _lost(draws: int) -> ApproximateDP:
    """What this many draws may miss of their distributions."""
    return ApproximateDP(0.0, SAMPLER_DELTA * draws, label="draws")


_LOST = _lost(2 * MAX_CELLS)


@dataclass(frozen=True, kw_only=True)
class SeedPlan:
    """What is done to the seeds."""

    minimum: int  # public lower bound of the number of seeds; checked in whole-release mode
    whole_release: bool  # whether the guarantee covers all released records, or each by itself
    # candidates after which a release that passed its checks has enough records, but for a negligible chance
    candidates: int
    # count, passes: the checks of whole-release mode. The pass rate has none where every table with this many
    # seeds passes it (`dpdist.privacy.deniability.certain_mass`)
    count: CountCheck | None = None
    passes: PassCheck | None = None
    passing_mass: int | None = None  # Z, the lower bound that the charge of whole-release mode rests on
    event: Event | None = None  # the charge of the seeds; None per record


@dataclass(frozen=True, kw_only=True)
class ModelPlan(OwnFields):
    """What is done to the splits T and P; with a pool, only to P, and to none by a model of the user's own."""

    spec: PlausibleDeniabilitySpec
    check: CountCheck | None  # of the number of records in T; its minimum scales the noise of the entropies
    structure: StructurePlan | None  # None for independent marginals
    parameters: ParameterPlan | PoolPlan | DeclaredModel

    @property
    def structure_event(self) -> Event | None:
        """What T costs."""
        if self.check is None or self.structure is None:
            return None
        return Composed((self.check.event, self.structure.event, _LOST), label="structure")

    @property
    def parameters_event(self) -> Event:
        """What P costs, or what a model of the user's own did before."""
        if isinstance(self.parameters, DeclaredModel):
            return self.parameters.event
        lost = _LOST
        if isinstance(self.parameters, PoolPlan):
            lost = _lost(draws_at_most(self.parameters.choices, self.spec.table.cardinalities))
        return Composed((self.parameters.event, lost), label="parameters")

    @cached_property
    def event(self) -> Event:
        """What the model costs."""
        if isinstance(self.parameters, DeclaredModel):
            return self.parameters.event
        return combined(self.spec, self.structure_event, self.parameters_event, None)


def plan_model(spec: PlausibleDeniabilitySpec, factor: float) -> ModelPlan:
    """The model's plan when each stage, by itself, spends `factor` times the model's epsilon."""
    epsilon, delta = spec.privacy.budget.epsilon * factor, spec.privacy.budget.delta
    check = structure = None
    if spec.model.structure == "learned":
        spent = CHECK_SHARE
        check = count_check(
            records=spec.data.minimum_records,
            share=float(spec.split.shares.structure),
            epsilon=epsilon * spent,
            delta=delta * spent,
        )
        structure = structure_plan(
            spec.table,
            minimum_records=check.minimum,
            epsilon=epsilon * (1 - spent),
            delta=delta * (1 - spent) - _DRAWS_LOST,
            score=spec.model.score,
        )
    parameters: ParameterPlan | PoolPlan
    if spec.model.structure == "synthesis":
        records = int(spec.data.minimum_records * spec.split.shares.parameters)
        kept = spec.kept_combinations or 1
        parameters = pool_plan(spec.table, records=records, kept=kept, epsilon=epsilon, delta=delta - _DRAWS_LOST)
    else:
        parameters = parameter_plan(
            spec.table, epsilon=epsilon, delta=delta - _DRAWS_LOST, regressed=bool(spec.model.regression)
        )
    return ModelPlan(spec=spec, check=check, structure=structure, parameters=parameters)


def declared_model(spec: PlausibleDeniabilitySpec) -> ModelPlan:
    """The plan of a model of the user's own, which was learned elsewhere."""
    learned = spec.model.learned_from
    epsilon, delta = (learned.epsilon, learned.delta) if isinstance(learned, ModelBudget) else (0.0, 0.0)
    parameters = DeclaredModel(hook=spec.model.hook or "", epsilon=epsilon, delta=delta)
    return ModelPlan(spec=spec, check=None, structure=None, parameters=parameters)


def with_seeds(model: ModelPlan, seeds: Event) -> Event:
    """What model and seeds cost together."""
    spec, parameters = model.spec, model.parameters
    if not isinstance(parameters, DeclaredModel):
        return combined(spec, model.structure_event, model.parameters_event, seeds)
    event = combined(spec, None, None, seeds)
    return event if parameters.public else Composed((parameters.event, event))


def combined(spec: PlausibleDeniabilitySpec, *events: Event | None) -> Event:
    """The stages together: their random split, where a split with no share has no stage, or their composition."""
    if spec.split.records == "all":
        return Composed(tuple(event for event in events if event is not None))
    shares = (float(share) for share in spec.split.shares)
    stages = tuple((share, event) for share, event in zip(shares, events, strict=True) if share > 0)
    total = math.fsum(share for share, _ in stages)
    return RandomSplit(tuple((share / total, event) for share, event in stages))


def plan_seeds(spec: PlausibleDeniabilitySpec) -> SeedPlan:
    """What is done to the seeds and what it costs."""
    test, privacy, synthesis = spec.privacy.deniability, spec.privacy, spec.synthesis
    whole = test.threshold_noise is not None and not privacy.accept_per_record
    spent, delta = CHECK_SHARE, privacy.release_delta
    count = count_check(
        records=spec.data.minimum_records,
        share=float(spec.split.shares.seeds),
        epsilon=privacy.seed_check_epsilon,
        delta=delta * spent / 2,
    )
    if test.k > count.minimum:
        raise SpecError(
            f"privacy.deniability.k: {test.k} plausible seeds are asked for, but data.minimum_records and the share of "
            f"the seeds promise only {count.minimum} seeds: lower k, or raise split.seeds"
        )
    if spec.model.hook is not None and not whole:
        raise SpecError(
            "privacy: a model of your own is released under the guarantee of the whole release only: set "
            "deniability.test=randomised and no accept_per_record"
        )
    most = candidates_needed(records=synthesis.records, pass_rate=synthesis.minimum_pass_rate)
    if not whole:
        return SeedPlan(minimum=count.minimum, whole_release=False, candidates=most)
    own = spec.model.hook is not None
    gamma = 1.0 if len(spec.omegas) == 1 and not own else test.gamma
    mass = math.floor(count.minimum * synthesis.minimum_pass_rate)
    combinations, passes = spec.kept_combinations, None
    if combinations is None or mass > certain_mass(
        seeds=count.minimum - 1, combinations=combinations, k=test.k, epsilon0=test.epsilon0
    ):
        passes = pass_check(
            growth=growth(k=test.k, gamma=gamma, epsilon0=test.epsilon0),
            passing_mass=mass,
            seeds=count.minimum,
            candidates=max(synthesis.records, privacy.checked_candidates),
            epsilon=privacy.seed_check_epsilon,
            delta=delta * spent / 2,
        )
    records = SeedRecords(k=test.k, gamma=gamma, epsilon0=test.epsilon0, passing_mass=mass, records=synthesis.records)
    drawn = max(most, passes.candidates if passes is not None else 0) + LARGEST_BATCH
    lost = ApproximateDP(0.0, SAMPLER_DELTA * drawn * (len(spec.table.attributes) + 3), label="draws")
    return SeedPlan(
        minimum=count.minimum,
        whole_release=True,
        count=count,
        passes=passes,
        passing_mass=mass,
        candidates=most,
        event=Composed((count.event, *((passes.event,) if passes else ()), records, lost), label="seeds"),
    )


def lighter_seeds(spec: PlausibleDeniabilitySpec) -> Event | None:
    """The charge of the seeds, sooner: of fewer records and as much less passing mass, within parts in a thousand."""
    event = plan_seeds(spec).event
    return None if event is None else lighter(event)


def lighter(event: Event) -> Event:
    """Fewer records and as much less passing mass: costs the same within a few parts in a thousand, and sooner."""
    if isinstance(event, Composed):
        return replace(event, events=tuple(map(lighter, event.events)))
    if isinstance(event, SeedRecords) and event.records > _FEWER:
        return replace(event, records=_FEWER, passing_mass=event.passing_mass * _FEWER / event.records)
    return event
