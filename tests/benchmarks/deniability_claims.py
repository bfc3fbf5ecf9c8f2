"""Claims about plausible deniability that no plan makes: a whole release, and many canaries in one run."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import CheckFailed
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.families.deniability.claims import resemblance
from dpdist.families.deniability.parameters import (
    NoisyTables,
    ParameterPlan,
    count_tables,
    measure_tables,
    split_tables,
)
from dpdist.families.deniability.plan import PlausibleDeniabilityPlan
from dpdist.families.deniability.pool import PoolPlan
from dpdist.families.deniability.stages import IndexedSeeds, stages
from dpdist.families.deniability.structure import Structure, StructureStatistics, independent_structure
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes, Floats, joined
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Canaries, Claim
from dpdist.spec.schema import Schema


def tables_canaries(schema: Schema, plan: ParameterPlan, *, delta: float) -> Canaries:
    """The noisy count tables of independent attributes; one canary for each code that all attributes have."""
    structure, count = independent_structure(schema), min(schema.cardinalities)
    maps = [attribute.bucket_map for attribute in schema.attributes]

    def scores(noise: Noise, present: NDArray[np.bool_]) -> Floats:
        codes: Codes = [np.flatnonzero(present).astype(attribute.dtype) for attribute in schema.attributes]
        counts = count_tables(codes, structure=structure, bucket_maps=maps)
        noisy = measure_tables(counts, structure, plan=plan, noise=noise)
        rows = np.array([table[0, :count] for table in noisy.tables])
        if noisy.noise == "laplace":  # the log-likelihood ratio, but for a constant
            return np.asarray(np.clip(rows, 0, 1).T @ np.reciprocal(noisy.scales))
        return np.asarray(rows.T @ np.reciprocal(noisy.scales) ** 2)

    epsilon = accountant.epsilon(plan.event, delta=delta)
    return Canaries(
        name=f"count tables ({plan.noise}), one run", scores=scores, count=count, epsilon=epsilon, delta=delta
    )


def release_claim(plan: PlausibleDeniabilityPlan, others: Codes, canary: Codes) -> Claim:
    """A whole release of a table with and without one record, the `canary`; the plan's spec fits so small a table."""
    absent, present = (partial(_everything, plan, canary, codes) for codes in (others, joined([others, canary])))
    return Claim(name="whole release", absent=absent, present=present, epsilon=plan.epsilon, delta=plan.delta)


def _everything(plan: PlausibleDeniabilityPlan, canary: Codes, codes: Codes, noise: Noise) -> Floats:
    """Whether there is a release, its statistics, the canary's cells, and how many records resemble the canary."""
    schema, structure = plan.spec.table, plan.model.structure
    m = len(schema.attributes)
    kept = sum(omega < m for omega in plan.spec.omegas)
    pooled = isinstance(plan.model.parameters, PoolPlan)
    try:
        made = rehearse(plan, stages(plan), codes, key=key_from(noise))
    except CheckFailed:
        return np.zeros(1 + kept + (0 if pooled else m) + (0 if structure is None else structure.statistics))
    alike_canary = resemblance(made.result(IndexedSeeds).synthesizer, released_codes(made), canary)[:kept]
    if pooled:
        return np.array([1.0, *alike_canary])
    values = () if structure is None else made.result(StructureStatistics).values
    maps = [attribute.bucket_map for attribute in schema.attributes]
    learned, noisy = made.result(Structure), made.result(NoisyTables)
    own = split_tables(count_tables(canary, structure=learned, bucket_maps=maps), learned)
    cells = [(table * cell).sum() for table, cell in zip(noisy.tables, own, strict=True)]
    return np.array([1.0, *values, *cells, *alike_canary])
