"""What the plausible-deniability family states, mechanism by mechanism, on small tables made to contradict it.

The mechanisms are the functions that the stages of a release call, on tables in memory. Tables and canaries are those
on which the bounds of the accounting are attained, or nearly: all records alike but the canary, which differs
everywhere (*structure*); the cells of one record (*tables*); and k - 1 seeds that share the canary's prefix, so that
the threshold decides (*seeds*).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from dpdist.data.count import PairCounts, pair_counts
from dpdist.families.base.network import Network, thresholds_from_weights
from dpdist.families.base.rehearsal import EXECUTOR, key_from
from dpdist.families.deniability.deniability import PrivacyTest, SeedSynthesis, SeedSynthesizer
from dpdist.families.deniability.graph import candidate_batches, first_passing, released_parts
from dpdist.families.deniability.own_model import DeclaredModel
from dpdist.families.deniability.parameters import ParameterPlan, count_tables, measure_tables
from dpdist.families.deniability.plan import PlausibleDeniabilityPlan
from dpdist.families.deniability.pool import PoolPlan
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.families.deniability.spec import CHECK_SHARE, PlausibleDeniabilitySpec
from dpdist.families.deniability.splits import ModelPlan, SeedPlan
from dpdist.families.deniability.structure import (
    Structure,
    StructurePlan,
    independent_structure,
    measure_structure,
    structure_plan,
)
from dpdist.model.claims import model_claim
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes, Counts, Floats, joined
from dpdist.privacy.deniability import SeedRecords, pass_probability
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim
from dpdist.spec.schema import Schema
from dpdist.spec.validation import change

_PASSING = 3  # seeds beyond k, in scales of the threshold noise: nearly all of them pass
_RECORDS, _SEED_DELTA = 5, 0.05  # of the small release that audits the test of a plan
_MOST = 1 << 24  # candidates


def alike(cardinalities: Sequence[int], records: int, *, code: int = 0) -> Codes:
    """A table of identical records; each attribute has the same code, or its last one where it has fewer."""
    return [np.full(records, min(code, size - 1), np.min_scalar_type(size - 1)) for size in cardinalities]


def structure_claim(schema: Schema, plan: StructurePlan, *, delta: float) -> Claim:
    """The noisy statistics of structure learning on as few records as the plan allows, stated at `delta`."""
    sizes = schema.cardinalities
    one = pair_counts(alike(sizes, 1), sizes)
    others = PairCounts(sizes, one.cells * (plan.minimum_records - 1))
    canary: Codes = [
        np.array([np.argmax(a.bucket_map != a.bucket_map[0]) or a.cardinality - 1], a.dtype) for a in schema.attributes
    ]
    sides, epsilon = (others, others + pair_counts(canary, sizes)), accountant.epsilon(plan.event, delta=delta)
    name = f"structure ({plan.score}, {plan.noise})"
    return Claim.of(name, partial(_measured, schema, plan), sides, epsilon=epsilon, delta=delta)


def _measured(schema: Schema, plan: StructurePlan, counts: PairCounts, noise: Noise) -> Floats:
    return np.array(measure_structure(counts, schema, plan=plan, noise=noise).values)


def tables_claim(schema: Schema, structure: Structure, plan: ParameterPlan, *, delta: float) -> Claim:
    """The noisy count tables, with one record or none; epsilon is stated at `delta`."""
    maps = [attribute.bucket_map for attribute in schema.attributes]
    none = alike(schema.cardinalities, 0)
    canary: Codes = [
        np.array([size - 1 if i in structure.regressed else i % size], column.dtype)
        for i, (size, column) in enumerate(zip(schema.cardinalities, none, strict=True))
    ]
    counts = [count_tables(codes, structure=structure, bucket_maps=maps) for codes in (none, canary)]
    starts = [0, *accumulate(structure.cells)][:-1]
    cells = np.flatnonzero(counts[1][: sum(structure.cells)])
    inside = sorted(set((cells - starts).tolist()))
    places = [
        start + place for start, size in zip(starts, structure.cells, strict=True) for place in inside if place < size
    ]
    places += [place for place in np.flatnonzero(counts[1]).tolist() if place >= sum(structure.cells)]
    noisy, epsilon = partial(_noisy_cells, structure, plan, places), accountant.epsilon(plan.event, delta=delta)
    return Claim.of(f"count tables ({plan.noise})", noisy, counts, epsilon=epsilon, delta=delta)


def _noisy_cells(structure: Structure, plan: ParameterPlan, places: list[int], counts: Counts, noise: Noise) -> Floats:
    noisy = measure_tables(counts, structure, plan=plan, noise=noise)
    cells = [part.reshape(-1) for part in (*noisy.tables, *noisy.sums)]
    return np.concatenate(cells)[places].astype(np.float64)


def regressed_structure(schema: Schema, regressed: Sequence[int]) -> Structure:
    """Independent attributes, then the regressed ones: each is the child of the attribute before it."""
    order = sorted(range(len(schema.attributes)), key=lambda i: (i in regressed, i))
    before = {i: (parent,) for parent, i in pairwise(order) if i in regressed}
    parents = tuple(before.get(i, ()) for i in range(len(order)))
    return replace(independent_structure(schema), parents=parents, order=tuple(order), regressed=tuple(regressed))


def even_network(schema: Schema) -> Network:
    """Independent attributes, every value as likely as any other, small domains first."""
    structure = independent_structure(schema)
    return Network(
        cardinalities=schema.cardinalities,
        bucket_maps=tuple(attribute.bucket_map for attribute in schema.attributes),
        bucket_counts=schema.bucket_counts,
        parents=structure.parents,
        order=structure.order,
        thresholds=tuple(thresholds_from_weights(np.ones((1, size))) for size in schema.cardinalities),
    )


def records_claim(
    synthesizer: SeedSynthesizer, test: PrivacyTest, *, records: int, delta: float, companions: int | None = None
) -> Claim:
    """Records released from seeds, with the network fixed and the passing mass of the table known; epsilon is stated at
    `delta`. Some attribute is kept of the seeds, and the test is randomised (else ValueError). `companions` are the
    other seeds with the canary's prefix: k - 1 by default, so that the canary is the one that is missing. Raises
    AccountingError: no epsilon is finite.
    """
    if test.epsilon0 is None:
        raise ValueError("the fixed threshold states no epsilon: nothing to audit")
    sizes, code = synthesizer.network.cardinalities, synthesizer.prefix_code
    companions = test.k - 1 if companions is None else companions
    many = test.k + math.ceil(_PASSING / test.epsilon0)
    others = joined([alike(sizes, many), alike(sizes, companions, code=1)])
    canary = alike(sizes, 1, code=1)
    # Seeds with the same prefix are in the same bucket: the true passing mass for one omega, a lower bound for several.
    alone = seed_keys(code, others).counts
    mass = float((alone * pass_probability(alone, k=test.k, epsilon0=test.epsilon0)).sum())
    event = SeedRecords(
        k=test.k,
        gamma=1.0 if len(synthesizer.omegas) == 1 else test.gamma,
        epsilon0=test.epsilon0,
        passing_mass=mass,
        records=records,
    )

    def released(codes: Codes) -> partial[Floats]:
        return partial(_released, SeedIndex(code, seed_keys(code, codes)), synthesizer, test, records, canary)

    return Claim(
        name=f"{records} record{'s' if records > 1 else ''} from seeds (k {test.k}, epsilon0 {test.epsilon0:g})",
        absent=released(others),
        present=released(joined([others, canary])),
        epsilon=accountant.epsilon(event, delta=delta),
        delta=delta,
    )


def _released(
    seeds: SeedIndex, synthesizer: SeedSynthesizer, test: PrivacyTest, records: int, canary: Codes, noise: Noise
) -> Floats:
    size = 2 * records + 6
    make = partial(candidate_batches, EXECUTOR, synthesizer, test, [seeds], key_from(noise), batch_size=size)
    batches, counts = first_passing(EXECUTOR, make, records=records, at_most=_MOST, batch_size=size)
    (codes,) = released_parts(EXECUTOR, batches, counts, records=records, rows_per_part=records)
    return resemblance(synthesizer, codes, canary)


def resemblance(synthesizer: SeedSynthesis, codes: Codes, canary: Codes) -> Floats:
    """How many records agree with the canary on each kept prefix, and how many have each value of the first attribute.
    Returns ndarray of float64, shape (kept lengths above zero + values of the first attribute in sigma order,).
    """
    order, lengths = synthesizer.order, synthesizer.lengths
    same = np.cumprod([codes[i] == canary[i][0] for i in order[: lengths[-1]]], axis=0)
    agree = [int(same[length - 1].sum()) for length in lengths if length]
    values = np.bincount(codes[order[0]], minlength=synthesizer.cardinalities[order[0]])
    return np.array([*agree, *values], np.float64)


def claims(plan: PlausibleDeniabilityPlan) -> tuple[Claim, ...]:
    """Each mechanism of a plan, with its noise and parameters, on a small table against it. The seeds' test is audited
    on as few seeds as its k admits and a few records; the epsilon that is stated is that of this small release.
    """
    spec, model = plan.spec, plan.model
    claims = []
    if model.structure is not None:
        claims.append(structure_claim(spec.table, model.structure, delta=spec.privacy.budget.delta))
    omegas = spec.omegas
    match model.parameters:
        case DeclaredModel():  # the test is that of a network, and what the model cost before is not dpdist's to audit
            if len(spec.table.attributes) == 1:
                return ()
            omegas = (len(spec.table.attributes) - 1,)
        case PoolPlan() as pool:
            delta = spec.privacy.budget.delta
            epsilon = accountant.epsilon(pool.event, delta=delta)
            claims.append(model_claim(spec.table, pool.choices, epsilon=epsilon, delta=delta))
        case ParameterPlan() as parameters:
            structure, delta = regressed_structure(spec.table, spec.regressed), spec.privacy.budget.delta
            claims.append(tables_claim(spec.table, structure, parameters, delta=delta))
    if plan.seeds is not None and plan.seeds.whole_release:
        claims.append(
            records_claim(
                SeedSynthesizer(even_network(spec.table), omegas),
                PrivacyTest.of(spec.privacy.deniability),
                records=min(spec.synthesis.records, _RECORDS),
                delta=max(plan.delta, _SEED_DELTA),
            )
        )
    return tuple(claims)


_DECLARED = 0.9  # of the records of a shadow table
_ALWAYS = -(1 << 62)  # a threshold that every count reaches


def shadow(plan: PlausibleDeniabilityPlan, records: int, share: float) -> PlausibleDeniabilityPlan:
    """The plan of a release of a shadow table of `records` records, a `share` of the whole one, with the noise of each
    stage as in the whole release. Released records and k keep their ratio to the records of the table. Checks of
    declared numbers are left out: the adversary knows its own table.
    """
    spec, seeds = plan.spec, plan.seeds
    settings = {
        "data.minimum_records": max(1, int(_DECLARED * records)),
        "synthesis.records": max(1, round(share * spec.synthesis.records)),
        "privacy.deniability.k": max(1, round(share * spec.privacy.deniability.k)),
        "privacy.accept_per_record": True,
        "privacy.limit": None,
    }
    small = change(spec, settings)
    if seeds is not None:
        most = max(1, round(4 * share * seeds.candidates))
        seeds = SeedPlan(minimum=1, whole_release=False, candidates=most)
    return replace(plan, spec=small, model=_shadow_model(plan.model, small), seeds=seeds)


def _shadow_model(model: ModelPlan, spec: PlausibleDeniabilitySpec) -> ModelPlan:
    """The model's plan: statistics whose sensitivity is that of so few records, at the stage's budget."""
    if model.check is None or model.structure is None:
        return replace(model, spec=spec)
    spent = CHECK_SHARE
    least = max(2, int(spec.data.minimum_records * spec.split.shares.structure))
    structure = structure_plan(
        spec.table,
        minimum_records=least,
        epsilon=(1 - spent) / (model.check.scale * spent),
        delta=model.check.delta * (1 - spent) / spent,
        score=spec.model.score,
    )
    return replace(model, spec=spec, check=replace(model.check, minimum=least, threshold=_ALWAYS), structure=structure)
