"""A whole plausible-deniability release in this process, coins of the split included, and what is stated for it.

`release_once` calls what the steps of `dpdist.families.deniability.release` call, in their order, from the same
streams: one key
and one table give the records that are published. It needs no cluster, ledger or files, so that thousands of
releases of a small table take seconds.

The adversary sees all that the accounting covers: the noisy statistics, the noisy tables, the records, and whether
anything is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from dpdist.data.count import pair_counts
from dpdist.data.split import split_labels
from dpdist.errors import CheckFailed
from dpdist.families.deniability.candidates import Synthesizer
from dpdist.families.deniability.claims import first_records, resemblance, stacked
from dpdist.families.deniability.deniability import PrivacyTest
from dpdist.families.deniability.estimation import estimate_network
from dpdist.families.deniability.parameters import NoisyTables, count_tables, measure_tables
from dpdist.families.deniability.plan import PlausibleDeniabilityPlan
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.families.deniability.structure import (
    Structure,
    StructureStatistics,
    independent_structure,
    learn_structure,
    measure_structure,
)
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.checks import CountCheck, PassCheck
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Released:
    """Everything that a release makes of its table and that its accounting covers.

    Attributes
    ----------
    statistics : StructureStatistics or None
    structure : Structure
    tables : NoisyTables
    synthesizer : Synthesizer
    records : Codes
    """

    statistics: StructureStatistics | None
    structure: Structure
    tables: NoisyTables
    synthesizer: Synthesizer
    records: Codes


def release_once(plan: PlausibleDeniabilityPlan, codes: Codes, *, noise: Noise) -> Released:
    """One release of a table of one file, in this process: the records that `dpdist release` publishes with this key.

    Raises
    ------
    CheckFailed
        A declared bound is not confirmed: nothing is published.
    """
    spec = plan.spec
    labels = split_labels(noise, file=0, row_start=0, count=len(codes[0]), shares=spec.split.shares)
    of_structure, of_parameters, of_seeds = ([column[labels == label] for column in codes] for label in range(3))
    statistics, structure = _structure(plan, of_structure, noise)
    maps = [attribute.bucket_map for attribute in spec.table.attributes]
    counts = count_tables(of_parameters, structure=structure, bucket_maps=maps)
    tables = measure_tables(counts, structure, plan=plan.model.parameters, noise=noise)
    network = estimate_network(
        tables, structure, spec.table, noise=noise, prior=spec.model.prior, estimate=spec.model.estimate
    )
    synthesizer = Synthesizer(network, spec.omegas)
    records = _records(plan, synthesizer, of_seeds, noise)
    return Released(statistics=statistics, structure=structure, tables=tables, synthesizer=synthesizer, records=records)


def _structure(
    plan: PlausibleDeniabilityPlan, codes: Codes, noise: Noise
) -> tuple[StructureStatistics | None, Structure]:
    spec, model = plan.spec, plan.model
    if model.check is None or model.structure is None:
        return None, independent_structure(spec.table, order=spec.model.order)
    counts = pair_counts(codes, spec.table.cardinalities)
    _confirm(model.check, counts.total, noise=noise, name="structure")
    statistics = measure_structure(counts, spec.table, plan=model.structure, noise=noise)
    structure = learn_structure(
        statistics,
        spec.table,
        records=spec.data.minimum_records * float(spec.split.parameters),
        table_noise=model.parameters.standard_deviation,
        max_parent_configurations=spec.model.max_parent_configurations,
        order=spec.model.order,
    )
    return statistics, structure


def _records(plan: PlausibleDeniabilityPlan, synthesizer: Synthesizer, codes: Codes, noise: Noise) -> Codes:
    wanted, privacy = plan.spec.synthesis.records, plan.spec.privacy.deniability
    epsilon0 = privacy.epsilon0 if privacy.test == "randomised" else None
    test = PrivacyTest(k=privacy.k, gamma=privacy.gamma, epsilon0=epsilon0)
    seeds = plan.seeds
    index, checked, most = None, wanted, wanted
    if seeds is not None:
        code = synthesizer.prefix_code
        index, most = SeedIndex(code, seed_keys(code, codes)), seeds.candidates
        if seeds.count is not None:
            _confirm(seeds.count, index.size, noise=noise, name="seeds")
        checked = max(2 * wanted, seeds.passes.candidates if seeds.passes is not None else 0)
    passed = first_records(synthesizer, test, index, records=wanted, noise=noise, candidates=checked, most=most)
    if seeds is not None and seeds.passes is not None:
        first = int(np.searchsorted(passed.indices, seeds.passes.candidates))
        _confirm(seeds.passes, first, noise=noise, name="passes")
    return [column[:wanted] for column in passed.codes]


def _confirm(check: CountCheck | PassCheck, count: int, *, noise: Noise, name: str) -> None:
    if not check.passes(count + int(noise.discrete_laplace(f"checks/{name}", 1, scale=check.scale)[0])):
        raise CheckFailed(f"a declared public lower bound was not confirmed: {name}")


def release_claim(plan: PlausibleDeniabilityPlan, others: Codes, canary: Codes) -> Claim:
    """A whole release of a table with and without one record.

    Parameters
    ----------
    plan : PlausibleDeniabilityPlan
        Of a spec that fits so small a table.
    others, canary : Codes
        The table without the canary; the canary, one record.
    """
    absent, present = (partial(_everything, plan, canary, codes) for codes in (others, stacked(others, canary)))
    return Claim(name="whole release", absent=absent, present=present, epsilon=plan.epsilon, delta=plan.delta)


def _everything(plan: PlausibleDeniabilityPlan, canary: Codes, codes: Codes, noise: Noise) -> Floats:
    """Whether there is a release, its statistics, the canary's cells, and how many records resemble the canary."""
    schema, structure = plan.spec.table, plan.model.structure
    m = len(schema.attributes)
    statistics = structure.statistics if structure is not None else 0
    kept = sum(omega < m for omega in plan.spec.omegas)
    try:
        made = release_once(plan, codes, noise=noise)
    except CheckFailed:
        return np.zeros(1 + statistics + m + kept)
    maps = [attribute.bucket_map for attribute in schema.attributes]
    own = count_tables(canary, structure=made.structure, bucket_maps=maps) > 0
    cells = np.concatenate([table.reshape(-1) for table in made.tables.tables])[own]
    values = made.statistics.values if made.statistics is not None else ()
    alike_canary = resemblance(made.synthesizer, made.records, canary)[:kept]
    return np.array([1.0, *values, *cells, *alike_canary])
