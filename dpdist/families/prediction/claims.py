"""What the private variant of two-stage synthesis states, mechanism by mechanism, and as a whole.

A few records that all stand at one end of every column, and a canary at the other: its contribution to each statistic
is known and has about the largest norm, so the log-likelihood ratio of the noisy statistic is the number to look at. In
the whole release the later statistics depend on the earlier ones, as they do in a release.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dpdist.errors import SpecError
from dpdist.families.prediction.plan import TwoStagePlan
from dpdist.families.prediction.private.charge import Charge
from dpdist.families.prediction.private.features import cross_products, feature_products
from dpdist.families.prediction.private.mechanisms import (
    FEATURE_STEP,
    RANK_STEP,
    PrivateColumn,
    histogram,
    rank_products,
)
from dpdist.families.prediction.private.model import (
    design,
    input_model,
    noisy_cross,
    noisy_marginals,
    noisy_products,
    noisy_ranks,
)
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.events import Composed, Event
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim

_OTHERS = 20  # records beside the canary
STAGES = ("marginals", "correlations", "products", "cross products")
"""The mechanisms of a private release, as their events are labelled."""


def claims(plan: TwoStagePlan) -> tuple[Claim, ...]:
    """Each mechanism of a plan, and all of them together.

    Raises
    ------
    SpecError
        The release is not differentially private.
    """
    if plan.charge is None:
        raise SpecError("privacy.guarantee: a lid release states no differential privacy, so there is nothing to audit")
    events = {event.label: event for event in _parts(plan.charge.event)}
    made = [
        _claim(plan, stage, accountant.epsilon(events[stage], delta=plan.delta)) for stage in STAGES if stage in events
    ]
    return (*made, _claim(plan, "", plan.epsilon))


def _parts(event: Event) -> tuple[Event, ...]:
    return event.events if isinstance(event, Composed) else (event,)


def _claim(plan: TwoStagePlan, stage: str, epsilon: float) -> Claim:
    if plan.charge is None:
        raise ValueError("the plan is not private")
    settings = plan.spec.prediction.features
    run = partial(
        _evidence, plan.columns, plan.charge, frequencies=settings.frequencies, width=settings.width, stage=stage
    )
    return Claim(
        name=f"two-stage {stage}" if stage else "two-stage, the whole release",
        absent=partial(run, False),
        present=partial(run, True),
        epsilon=epsilon,
        delta=plan.delta,
    )


def _evidence(
    columns: tuple[PrivateColumn, ...],
    charge: Charge,
    present: bool,
    noise: Noise,
    *,
    frequencies: int,
    width: float,
    stage: str,
) -> Floats:
    """Log-likelihood ratios of the noisy statistics, and their sum; or that of one stage."""
    ends = [np.array([column.scale.low, column.scale.high]) for column in columns]
    fine = [column.cells_of(both) for column, both in zip(columns, ends, strict=True)]
    others, canary = [f[:1] for f in fine], [f[1:] for f in fine]
    counts = [_OTHERS * histogram(c, f) for c, f in zip(columns, others, strict=True)]
    mine = [histogram(c, f) for c, f in zip(columns, canary, strict=True)]
    added = int(present)
    noisy = noisy_marginals([a + added * b for a, b in zip(counts, mine, strict=True)], charge=charge, noise=noise)
    ratios = {"marginals": sum(_ratio(n - a, b, charge.marginal) for n, a, b in zip(noisy, counts, mine, strict=True))}
    if stage == "marginals":
        return np.array([ratios[stage]])
    known = input_model(columns, noisy)

    def ranks(cells: list[Counts]) -> Counts:
        return rank_products(np.stack([t[f] for t, f in zip(known.tables, cells, strict=False)], axis=1))

    if charge.correlation:
        base, own = _OTHERS * ranks(others), ranks(canary)
        released = noisy_ranks(base + added * own, charge=charge, noise=noise)
        ratios["correlations"] = _ratio(released - base, own, charge.correlation, RANK_STEP**2)
    if stage == "correlations":
        return np.array([ratios[stage]])
    seen = design(columns, known, frequencies=frequencies, width=width, noise=noise)
    mine_seen, other_seen = seen.feature(canary[:-1]), seen.feature(others[:-1])
    if charge.product:
        base, own = _OTHERS * feature_products(other_seen), feature_products(mine_seen)
        moved = noisy_products(base + added * own, charge=charge, noise=noise) - base
        # Off the diagonal the noise is divided by sqrt(2), and every entry stands twice.
        ratios["products"] = _ratio(moved.ravel(), own.ravel(), charge.product, FEATURE_STEP**2)
    table = seen.window.table()
    response = [table[seen.response.cells_of(np.array([end]))] for end in ends[-1]]
    base, own = _OTHERS * cross_products(other_seen, response[0]), cross_products(mine_seen, response[1])
    released = noisy_cross(base + added * own, charge=charge, noise=noise)
    ratios["cross products"] = _ratio(released - base, own, charge.cross, FEATURE_STEP**2)
    if stage:
        return np.array([ratios[stage]])
    return np.array([*ratios.values(), sum(ratios.values())])


def _ratio(moved: Counts, mine: Counts, sigma: float, step: float = 1.0) -> float:
    """Log-likelihood ratio of a Gaussian statistic moved by `mine` against one that is not."""
    shift = mine * step
    return float((moved * step) @ shift - shift @ shift / 2) / sigma**2
