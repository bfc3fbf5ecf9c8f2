"""The stage that measures the declared regressions of a release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpdist.families.base.attempt import Attempt
from dpdist.families.base.passes import Passes
from dpdist.families.base.writing import ReleasedRecords
from dpdist.families.synthesis.learn import Learned
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.regression_scores import Score, scores_operator
from dpdist.families.synthesis.regression_steps import MOST_VALUES
from dpdist.families.synthesis.regressions import Regressions, measure_regressions
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.privacy.arrays import Codes, Counts

if TYPE_CHECKING:
    from dpdist.spec.regression import Regression

STAGE = "regressions"
COVARIANCE_OF = (
    "coefficients of the regression in the private table, with the covariance of their errors: noise, what clipping "
    "may lose, and what the steps leave; for a population add the sampling covariance"
)


def measure_declared(attempt: Attempt[WholeSynthesisSpec, SynthesisPlan]) -> Regressions:
    """Measure the declared regressions, from the records that an earlier stage has drawn."""
    regressions = attempt.spec.parsed_regressions

    def make() -> Regressions:
        noise = attempt.noise
        released = _first_records(attempt, max(len(r.names) for r in regressions), regressions)
        passes = Passes(attempt, repeated=True)

        def count(scores: Sequence[Score]) -> Counts:
            return np.asarray(passes.run(scores_operator(scores), stage=STAGE))

        records = float(attempt.result(Learned).report["records"])
        mu = attempt.plan.regression_mu
        return measure_regressions(regressions, released, count, records=records, mu=mu, noise=noise)

    found = attempt.stored(Regressions, make)
    attempt.public["regressions"] = {"of": COVARIANCE_OF, "measured": [one.found() for one in found.measured]}
    return found


def _first_records(
    attempt: Attempt[WholeSynthesisSpec, SynthesisPlan], coefficients: int, regressions: Sequence[Regression]
) -> Codes:
    """The first released records, as many as Hessians are computed from; attributes that none asks for are left out."""
    most, parts, rows = MOST_VALUES // coefficients, [], 0
    for part, size in zip(attempt.result(ReleasedRecords).parts, attempt.plan.parts, strict=True):
        if rows < most:
            parts.append(part)
            rows += size
    used = {i for r in regressions for i in (*(t.attribute for t in (r.outcome, *r.terms)), *r.where.attributes)}
    task = attempt.executor.tasks(STAGE)
    taken = [task("columns", _columns, part, tuple(sorted(used))) for part in parts]
    with attempt.stage("released records") as progress:
        columns = attempt.executor.compute(taken, progress=progress)
    return [np.concatenate(of_parts) for of_parts in zip(*columns, strict=True)]


def _columns(codes: Codes, used: tuple[int, ...]) -> Codes:
    """Records with some of their attributes: of the others every code is 0."""
    nothing = np.zeros(len(codes[0]), np.uint8)
    return [column if i in used else nothing for i, column in enumerate(codes)]
