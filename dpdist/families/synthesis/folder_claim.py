"""The whole folder of a synthesis, attacked: the stages of a release run, and the adversary reads what they publish."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np

from dpdist.accuracy.measured import Accuracy
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.families.synthesis.measurements import Measurements
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.regression_claim import evidence as of_regressions
from dpdist.families.synthesis.regressions import Regressions
from dpdist.families.synthesis.stages import stages as stages_of
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim
from dpdist.publish.parts import read_parquet
from dpdist.spec.overrides import change

_OTHERS = 40  # records of the table beside the canary


def folder_claim(plan: SynthesisPlan, *, others: int = _OTHERS) -> Claim:
    """The published files and records of a table of two kinds of records, with and without one that differs.

    The published noisy tables, scores of regressions and the accuracy are combined into their log likelihood ratio. The
    number of picks, the first of them, and how many values of the canary the records have, in all and in one record at
    most, follow.
    """
    attributes = plan.spec.table.attributes
    table: Codes = [
        (np.arange(others) % min(max(attribute.cardinality - 1, 1), 2)).astype(attribute.dtype)
        for attribute in attributes
    ]
    copies = plan.spec.records_of_a_unit
    canary: Codes = [np.full(copies, attribute.cardinality - 1, attribute.dtype) for attribute in attributes]
    joined = [np.concatenate(columns) for columns in zip(table, canary, strict=True)]
    # fitting and drawing are post-processing: a few steps and records keep the rest near that of a release
    spec = change(plan.spec, {"synthesis.records": others})
    small = replace(plan, spec=spec, choices=replace(plan.choices, iterations=(5,), balance=0))
    return Claim(
        name=f"folder of {len(attributes)} attributes",
        absent=partial(_evidence, small, (table, canary), table),
        present=partial(_evidence, small, (table, canary), joined),
        epsilon=plan.epsilon,
        delta=plan.delta,
    )


def _evidence(plan: SynthesisPlan, known: tuple[Codes, Codes], codes: Codes, noise: Noise) -> Floats:
    """What the folder of a release of a table says of the canary."""
    half = plan.spec.records_of_a_unit / 2
    stages = [stage for stage in stages_of(plan) if stage.name != "write"]
    made = rehearse(plan, stages, codes, key=key_from(noise), until=None)
    files = {record.name.rsplit("/", 1)[-1]: made.output.read_bytes(record.name) for record in made.files}
    noisy = read_parquet(files["tables.parquet"])["noisy"].to_numpy()
    found = Measurements.of(json.loads(files["model.json"])["measured"], noisy)
    evidence, picked = 0.0, [table.attributes for table in found.tables if table.coded]
    for table in found.tables:
        if table.attributes:
            places = zip(table.attributes, table.shape, strict=True)
            last = [int(found.maps[a][-1]) if table.coded else size - 1 for a, size in places]
            cell = int(np.ravel_multi_index(last, table.shape))
            evidence += (float(table.counts[cell]) - half) / table.deviation**2
    accuracy = _of_accuracy(Accuracy.from_json(made.public["accuracy"]), half) if plan.accuracy_mu else 0.0
    if plan.regression_mu:
        measured, declared = Regressions.from_bytes(files[Regressions.FILE]), plan.spec.parsed_regressions
        evidence += of_regressions(measured, declared, *known, copies=plan.spec.records_of_a_unit)
    ends = [attribute.cardinality - 1 for attribute in plan.spec.table.attributes]
    alike = np.sum([column == end for column, end in zip(released_codes(made), ends, strict=True)], axis=0)
    first = sum(len(found.source) ** k * a for k, a in enumerate(picked[0])) if picked else -1
    return np.array([evidence + accuracy, evidence, accuracy, len(picked), first, alike.sum(), alike.max()], np.float64)


def _of_accuracy(found: Accuracy, half: float) -> float:
    """The log likelihood ratio of the measured accuracy, if the canary's cells are empty in the released records."""
    sums = [(order.sums[0] - order.tables * half) * order.tables / order.deviation**2 for order in found.orders]
    return math.fsum(sums) + math.fsum((distance - half) / found.pairs_deviation**2 for distance in found.pairs)
