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
from dpdist.families.prediction.columns import Columns, columns_of
from dpdist.families.prediction.first_stage import FIRST_STAGES, Marginal, Target, generator, latin_hypercube
from dpdist.families.prediction.private.mechanisms import (
    FEATURE_STEP,
    Cells,
    Deviations,
    PrivateColumn,
    noisy_total,
    private_correlation,
    private_marginal,
    rank_table,
)
from dpdist.families.prediction.private.plan import PrivatePlan
from dpdist.families.prediction.private.statistics import (
    CHUNK_ROWS,
    Design,
    FeatureMap,
    NoisyCorrelations,
    NoisyMarginals,
    NoisyRegression,
    Window,
    feature_map,
    marginal_operator,
    modelled_products,
    rank_operator,
    response_window,
    ridge_operator,
    ridge_weights,
)
from dpdist.families.prediction.second_stage import FREQUENCIES, WIDTH
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.portable import inner, matmul, positive_part

_MODELLED_ROWS = 1 << 15  # drawn from the released model for the second moments of the features


@dataclass(frozen=True, eq=False)
class InputModel:
    """What noisy marginals say."""

    total: float  # number of records
    marginals: tuple[Marginal, ...]  # of the inputs, then of the response
    tables: tuple[Counts, ...]  # tuple of int64[total]: ranks of the fine cells of each input

    def target(self, noisy: NoisyCorrelations | None) -> Target:
        """Marginals and correlation of the inputs; without products of ranks there is one input."""
        inputs = self.marginals[:-1]
        products = np.zeros(0, np.int64) if noisy is None else noisy.products
        return Target(inputs, private_correlation(products, self.tables, inputs, total=self.total))


def input_model(columns: Sequence[PrivateColumn], noisy: NoisyMarginals) -> InputModel:
    """The marginals of noisy histograms: inputs, then the response."""
    total = noisy_total(noisy.counts)
    marginals = tuple(
        private_marginal(column, counts, total=total) for column, counts in zip(columns, noisy.counts, strict=True)
    )
    tables = tuple(rank_table(column, m) for column, m in zip(columns[:-1], marginals[:-1], strict=True))
    return InputModel(total, marginals, tables)


def design(columns: Sequence[PrivateColumn], known: InputModel, *, noise: Noise) -> Design:
    """How the regression sees records, from what was released."""
    rng = generator(noise, "prediction/directions", 0)
    features = feature_map(columns[:-1], known.tables, frequencies=FREQUENCIES, width=WIDTH, rng=rng)
    return Design(features, response_window(known.marginals[-1]), columns[-1].scale)


@dataclass(frozen=True, eq=False)
class PrivateModel:
    """What was released, and what follows from it."""

    columns: tuple[PrivateColumn, ...]  # the inputs
    target: Target  # marginals and correlation of the inputs
    features: FeatureMap
    weights: Floats  # float64[p]
    window: Window  # of the responses

    def predict(self, inputs: Floats) -> Floats:
        """Responses on the unit interval, for rows of the unit cube, float64[n, d]."""
        predicted = matmul(self.features(_cells(self.columns, inputs)).astype(np.float64), self.weights) * FEATURE_STEP
        return np.clip(self.window.centre + self.window.half * np.clip(predicted, -1.0, 1.0), 0.0, 1.0)


def fitted_model(
    columns: Sequence[PrivateColumn],
    known: InputModel,
    target: Target,
    seen: Design,
    noisy: NoisyRegression,
    *,
    charge: Deviations,
    noise: Noise,
) -> PrivateModel:
    """The model of a private release, from noisy statistics alone."""
    inputs, window = tuple(columns[:-1]), seen.window
    if len(noisy.products):
        second = positive_part(np.asarray(noisy.products * FEATURE_STEP**2, np.float64))
    else:
        drawn = latin_hypercube(target, _MODELLED_ROWS, generator(noise, "prediction/modelled", 0))
        second = modelled_products(seen.features(_cells(inputs, drawn)), total=known.total)
    response = known.marginals[-1]
    values = np.clip((response.middles - window.centre) / window.half, -1, 1)
    weights = ridge_weights(
        second,
        np.asarray(noisy.cross * FEATURE_STEP**2, np.float64),
        noise=charge.cross,
        product_noise=charge.product,
        variance=inner(response.masses, (values - inner(response.masses, values)) ** 2),
    )
    return PrivateModel(inputs, target, seen.features, weights, window)


def _cells(columns: Sequence[PrivateColumn], inputs: Floats) -> list[Cells]:
    """The fine cells of rows of the unit cube."""
    return [
        np.clip((inputs[:, i] * column.total).astype(np.int64), 0, column.total - 1) for i, column in enumerate(columns)
    ]


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
