"""The stages of a private two-stage release: measure with noise, fit a model to the measurements, draw records, write.

`measure` alone reads the table, in up to three passes; everything after it is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.families.base.attempt import Attempt
from dpdist.families.base.family import Stage
from dpdist.families.base.passes import Passes
from dpdist.families.base.writing import ReleasedRecords, write_records
from dpdist.families.prediction.blocks import generator
from dpdist.families.prediction.columns import Columns, columns_of
from dpdist.families.prediction.latin import FIRST_STAGES, Target
from dpdist.families.prediction.private.features import CHUNK_ROWS, Design
from dpdist.families.prediction.private.model import InputModel, PrivateModel, design, fitted_model, input_model
from dpdist.families.prediction.private.plan import PrivatePlan
from dpdist.families.prediction.private.statistics import (
    NoisyCorrelations,
    NoisyMarginals,
    NoisyRegression,
    marginal_operator,
    rank_operator,
    ridge_operator,
)
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes

PrivateAttempt = Attempt[TwoStageSpec, PrivatePlan]


@dataclass(frozen=True, eq=False)
class FittedInputs:
    """What follows from the noisy statistics of the inputs; the statistics themselves are results of their own."""

    known: InputModel  # marginals of inputs and response
    target: Target  # marginals and correlation of the inputs
    design: Design  # how the regression sees records


def measure(attempt: PrivateAttempt) -> FittedInputs:
    """Marginals, correlations and the statistics of the regression, each drawn once and stored. Raises DataError: the
    table breaks its declared policies.
    """
    plan, columns, passes = attempt.plan, columns_of(attempt.spec), Passes(attempt, repeated=True)
    private, charge = plan.columns, plan.charge

    def marginals() -> NoisyMarginals:
        counts = passes.run(marginal_operator(columns, private), stage="counting")
        return NoisyMarginals.draw(counts, charge=charge, noise=attempt.noise)

    known = input_model(private, attempt.stored(NoisyMarginals, marginals))

    def correlations() -> NoisyCorrelations:
        products = passes.run(rank_operator(columns, private, known.tables), stage="correlating")
        return NoisyCorrelations.draw(products, charge=charge, noise=attempt.noise)

    target = known.target(attempt.stored(NoisyCorrelations, correlations) if charge.correlation else None)
    seen = design(private, known, noise=attempt.noise)

    def regression() -> NoisyRegression:
        sums = passes.run(ridge_operator(columns, private, seen, products=plan.measured), stage="regressing")
        return NoisyRegression.draw(*sums, charge=charge, noise=attempt.noise)

    attempt.stored(NoisyRegression, regression)
    return FittedInputs(known, target, seen)


def fit(attempt: PrivateAttempt) -> PrivateModel:
    """The model that follows from the noisy statistics."""
    plan, measured = attempt.plan, attempt.result(FittedInputs)
    with attempt.stage("fitting"):
        return fitted_model(
            plan.columns,
            measured.known,
            measured.target,
            measured.design,
            attempt.result(NoisyRegression),
            charge=plan.charge,
            noise=attempt.noise,
        )


def draw(attempt: PrivateAttempt) -> ReleasedRecords:
    """Records of the model, part by part."""
    spec, task = attempt.spec, attempt.executor.tasks("release")
    records, rows = spec.prediction.records or 0, spec.output.rows_per_part
    how = task.constant("how", (attempt.result(PrivateModel), columns_of(spec), spec.prediction.first_stage))
    return ReleasedRecords(
        [
            task("part", _part, how, attempt.key, min(rows, records - start), number)
            for number, start in enumerate(range(0, records, rows))
        ]
    )


def _part(how: tuple[PrivateModel, Columns, str], key: KeyRef, rows: int, number: int) -> Codes:
    """Codes of all attributes of drawn records."""
    model, columns, first_stage = how
    inputs = FIRST_STAGES[first_stage](model.target, rows, generator(load_noise(key), "prediction/records", number))
    pieces = [model.predict(inputs[start : start + CHUNK_ROWS]) for start in range(0, rows, CHUNK_ROWS)]
    return columns.codes(inputs, np.concatenate(pieces))


STAGES: Sequence[Stage[TwoStageSpec, PrivatePlan]] = (
    Stage("measure", measure),
    Stage("fit", fit),
    Stage("draw", draw),
    Stage("write", write_records),
)
"""The stages of a private release, in order."""
