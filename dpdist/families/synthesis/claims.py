"""What a synthesis states, attacked: what is measured, and the folder that is published with records.

The stages and functions of a release are run on a small table with and without a canary (`with_canary`), and the
adversary reads what they publish.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from dpdist.accuracy.measured import Accuracy
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.families.base.values import canary_counts
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.regression_steps import Score, scores_operator
from dpdist.families.synthesis.regressions import Regressions, measure_regressions
from dpdist.families.synthesis.stages import stages as stages_of
from dpdist.federated.plan import require_one_curator
from dpdist.model.account import Measurements
from dpdist.model.claims import OTHERS, model_claim, of_accuracy, with_canary
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim
from dpdist.publish.parts import read_parquet
from dpdist.spec.regression import Regression
from dpdist.spec.validation import change

_FOR_EACH = 100  # made-up records for each coefficient
_ANY = 0.1  # part of them with any values; the others have no attribute's last one, which the canary has
# what the made-up table is said to stand for: with this many records the steps stay where they begin, and the canary,
# which the others say nothing of, far from what is predicted
_RECORDS = 1e9


def claims(plan: SynthesisPlan) -> tuple[Claim, ...]:
    """All that is measured, and the folder that is published with what fitting and drawing make of it."""
    require_one_curator(plan)
    if plan.discovery is not None:
        spec = change(plan.spec, {"schema": plan.spec.presumed.model_dump(mode="json"), "discover": None})
        # the counts from which values and bounds are found: of columns of numbers two histograms and their steps
        name = f"values and bounds of {len(plan.spec.undeclared)} columns"
        found = Claim.of(name, partial(_found, plan), (0, 1), epsilon=plan.epsilon, delta=plan.delta)
        return (found, *claims(replace(plan, spec=spec, discovery=None)))
    copies, schema = plan.spec.records_of_a_unit, plan.spec.table
    claim = model_claim(
        schema, plan.choices, accuracy_mu=plan.accuracy_mu, epsilon=plan.epsilon, delta=plan.delta, copies=copies
    )
    if plan.regression_mu:
        table, _, joined = with_canary(schema, copies)
        absent = partial(_with_regressions, plan, claim.absent, table)
        claim = replace(claim, absent=absent, present=partial(_with_regressions, plan, claim.present, joined))
    return (claim, _folder_claim(plan)) if plan.spec.output.measurements else (claim,)


def _found(plan: SynthesisPlan, record: int, noise: Noise) -> Floats:
    how, spec = plan.discovery, plan.spec
    if how is None:
        raise ValueError("nothing is found")
    texts = len(spec.undeclared_texts)
    return canary_counts(
        texts,
        3 * len(spec.undeclared_numbers) + 1,
        record,
        named_as=("gaussian", how.values, how.named_from),
        counted_as=("gaussian", how.cells),
        noise=noise,
        again=("gaussian", *how.naming(how.again, texts)) if texts else None,
    )


def _with_regressions(plan: SynthesisPlan, tables: Callable[[Noise], ArrayLike], codes: Codes, noise: Noise) -> Floats:
    """The evidence of the tables and, joined with it, that of regressions measured beside made-up released records. The
    guarantee holds whatever was released. In the made-up table no two terms depend on each other.
    """
    found, regressions, schema = np.asarray(tables(noise)), plan.spec.parsed_regressions(), plan.spec.table
    rows, rng = _FOR_EACH * max(len(r.names) for r in regressions), np.random.default_rng(0)
    every = rng.random(rows) < _ANY
    released = [
        np.where(every, rng.integers(0, size, rows), rng.integers(0, max(size - 1, 1), rows)).astype(a.dtype)
        for a, size in zip(schema.attributes, schema.cardinalities, strict=True)
    ]

    def count(scores: Sequence[Score]) -> Counts:
        return np.asarray(scores_operator(scores).chunk(codes))

    mu = plan.regression_mu
    measured = measure_regressions(regressions, released, count, records=_RECORDS, mu=mu, noise=noise)
    more = _of_regressions(measured, regressions, plan)
    return np.array([found[0] + more, *found[1:], more], np.float64)


def _of_regressions(measured: Regressions, regressions: Sequence[Regression], plan: SynthesisPlan) -> float:
    """The log likelihood ratio of copies of a canary beside others, over the number of copies."""
    copies = plan.spec.records_of_a_unit
    others, canary, _ = with_canary(plan.spec.table, copies)
    parts = []
    for found, regression in zip(measured.measured, regressions, strict=True):
        for number, noisy in enumerate(found.scores):
            score = found.score(regression, number)
            moved: Floats = score.total([column[:1] for column in canary]).astype(np.float64)
            away = np.array(noisy.noisy) - score.total(others) - copies / 2 * moved
            parts.append(float((away * moved).sum()) / noisy.deviation**2)
    return math.fsum(parts)


def _folder_claim(plan: SynthesisPlan) -> Claim:
    """The published files and records of a table of two kinds of records, with and without one that differs.

    The published noisy tables, scores of regressions and the accuracy are combined into their log likelihood ratio. The
    number of picks, the first of them, and how many values of the canary the records have, in all and in one record at
    most, follow.
    """
    table, _, joined = with_canary(plan.spec.table, plan.spec.records_of_a_unit)
    # fitting and drawing are post-processing: a few steps and records keep the rest near that of a release
    spec = change(plan.spec, {"synthesis.records": OTHERS})
    small = replace(plan, spec=spec, choices=replace(plan.choices, iterations=(5,), balance=0))
    name, run = f"folder of {len(table)} attributes", partial(_of_folder, small)
    return Claim.of(name, run, (table, joined), epsilon=plan.epsilon, delta=plan.delta)


def _of_folder(plan: SynthesisPlan, codes: Codes, noise: Noise) -> Floats:
    """What the folder of a release of a table says of the canary."""
    half = plan.spec.records_of_a_unit / 2
    stages = [stage for stage in stages_of(plan) if stage.name != "write"]
    made = rehearse(plan, stages, codes, key=key_from(noise), until=None)
    files = {record.name.rsplit("/", 1)[-1]: made.output.read_bytes(record.name) for record in made.files}
    noisy = read_parquet(files["tables.columnar"])["noisy"].to_numpy()
    found = Measurements.of(json.loads(files["model.json"])["measured"], noisy)
    evidence, picked = 0.0, [table.attributes for table in found.tables if table.coded]
    for table in found.tables:
        if table.attributes:
            places = zip(table.attributes, table.shape, strict=True)
            last = [int(found.maps[a][-1]) if table.coded else size - 1 for a, size in places]
            cell = int(np.ravel_multi_index(last, table.shape))
            evidence += (float(table.counts[cell]) - half) / table.deviation**2
    accuracy = of_accuracy(Accuracy.from_json(made.public["accuracy"]), half) if plan.accuracy_mu else 0.0
    if plan.regression_mu:
        measured = Regressions.from_bytes(files[Regressions.FILE])
        evidence += _of_regressions(measured, plan.spec.parsed_regressions(), plan)
    ends = [attribute.cardinality - 1 for attribute in plan.spec.table.attributes]
    alike = np.sum([column == end for column, end in zip(released_codes(made), ends, strict=True)], axis=0)
    first = sum(len(found.source) ** k * a for k, a in enumerate(picked[0])) if picked else -1
    return np.array([evidence + accuracy, evidence, accuracy, len(picked), first, alike.sum(), alike.max()], np.float64)
