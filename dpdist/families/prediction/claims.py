"""What the private variant of two-stage synthesis states, mechanism by mechanism, and as a whole.

Some records all stand at one end of every column, and a canary (a unit of equal records, where units are protected)
at the other: its contribution to each statistic is
known and has about the largest norm, so the log-likelihood ratio of the noisy statistic is the number to look at. The
statistics are those of the stage `measure` on this table, where the later depend on the earlier.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dpdist.errors import SpecError
from dpdist.families.base.rehearsal import key_from, rehearse
from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.plan import PrivatePlan, TwoStagePlan
from dpdist.families.prediction.private import statistics
from dpdist.families.prediction.private.mechanisms import FEATURE_STEP, RANK_STEP
from dpdist.families.prediction.private.stages import STAGES, FittedInputs
from dpdist.federated.plan import require_one_curator
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim

_OTHERS = 20  # records beside the canary
MECHANISMS = ("marginals", "correlations", "products", "cross products")
"""The mechanisms of a private release, as their events are labelled."""


def claims(plan: TwoStagePlan) -> tuple[Claim, ...]:
    """Each mechanism of a plan, and all together. Raises SpecError: the release is not differentially private, or
    federated.
    """
    require_one_curator(plan)
    if not isinstance(plan, PrivatePlan):
        raise SpecError("privacy.guarantee: a lid release states no differential privacy, so there is nothing to audit")
    events = {event.label: event for event in plan.event.events if event.label in MECHANISMS}
    made = [
        _claim(plan, f"two-stage {name}", place, accountant.epsilon(event, delta=plan.delta))
        for place, (name, event) in enumerate(events.items())
    ]
    return (*made, _claim(plan, "two-stage, the whole release", None, plan.epsilon))


def _claim(plan: PrivatePlan, name: str, place: int | None, epsilon: float) -> Claim:
    absent, present = (partial(_evidence, plan, canaries, place) for canaries in (0, plan.spec.records_of_a_unit))
    return Claim(name=name, absent=absent, present=present, epsilon=epsilon, delta=plan.delta)


def _evidence(plan: PrivatePlan, canaries: int, place: int | None, noise: Noise) -> Floats:
    """Log-likelihood ratios of the noisy statistics and their sum; or that of one statistic."""
    columns, charge, inputs = columns_of(plan.spec), plan.charge, len(plan.spec.inputs)
    ends = columns.codes(np.repeat([[0.0], [1.0]], inputs, axis=1), np.array([0.0, 1.0]))
    others, canary = [end[:1] for end in ends], [end[1:] for end in ends]
    codes = [np.repeat(end, [_OTHERS, canaries]) for end in ends]
    made = rehearse(plan, STAGES, codes, key=key_from(noise), until=FittedInputs)
    known, design = made.result(FittedInputs).known, made.result(FittedInputs).design
    work = statistics.marginal_operator(columns, plan.columns)
    groups = zip(made.result(statistics.NoisyMarginals).counts, work.chunk(others), work.chunk(canary), strict=True)
    ratios = [sum(_ratio(noisy, base, own, charge.marginal) for noisy, base, own in groups)]
    if charge.correlation:
        work = statistics.rank_operator(columns, plan.columns, known.tables)
        noisy = made.result(statistics.NoisyCorrelations).products
        ratios.append(_ratio(noisy, work.chunk(others), work.chunk(canary), charge.correlation, RANK_STEP**2))
    work = statistics.ridge_operator(columns, plan.columns, design, products=plan.measured)
    base, own, found = work.chunk(others), work.chunk(canary), made.result(statistics.NoisyRegression)
    if plan.measured:  # off the diagonal the noise is divided by sqrt(2), and every entry stands twice
        ratios.append(_ratio(found.products, base[0], own[0], charge.product, FEATURE_STEP**2))
    ratios.append(_ratio(found.cross, base[1], own[1], charge.cross, FEATURE_STEP**2))
    return np.array([*ratios, sum(ratios)] if place is None else [ratios[place]])


def _ratio(noisy: Counts, others: Counts, mine: Counts, sigma: float, step: float = 1.0) -> float:
    """Log-likelihood ratio of a Gaussian statistic with the canary's contribution against one without it."""
    moved, shift = (noisy - _OTHERS * others).ravel() * step, mine.ravel() * step
    return float(moved @ shift - shift @ shift / 2) / sigma**2
