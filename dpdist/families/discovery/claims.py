"""What an audit attacks: the counts of a discovery, with one record more in every column.

In columns of texts the record has a value that is frequent without it, and one of no other record in the last of them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from dpdist.data.texts import VALUES
from dpdist.families.discovery.plan import DiscoveryPlan
from dpdist.families.discovery.stages import named, noisy_counts
from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim

_MOST_COLUMNS = 8
_FREQUENT = 20  # deviations above the threshold


def claims(plan: DiscoveryPlan) -> tuple[Claim, ...]:
    """The counts of the first columns, by the functions that a release calls."""
    return (
        Claim(
            name=f"counts of {len(plan.spec.columns)} columns ({plan.mechanism}, values from {plan.named_from:,})",
            absent=partial(_released, plan, 0),
            present=partial(_released, plan, 1),
            epsilon=plan.epsilon,
            delta=plan.delta,
        ),
    )


def _released(plan: DiscoveryPlan, record: int, noise: Noise) -> Floats:
    texts, binned = (min(len(names), _MOST_COLUMNS) for names in (plan.spec.texts, plan.spec.binned))
    how = (plan.mechanism, plan.scale, plan.named_from)
    frequent = plan.named_from + round(_FREQUENT * plan.deviation)
    counts = [0.0] * texts
    for column in range(texts):
        own = {"rare": record} if column and column == texts - 1 else {"frequent": frequent + record}
        values = [value for value, count in own.items() if count]
        table = pa.table([values, [own[value] for value in values]], schema=VALUES)
        counts[column] = float(sum(count for _, _, count in named(table, column, how, noise)))
    bins = noisy_counts(np.full(binned, record, np.int64), how=how[:2], noise=noise, name="bins")
    return np.array([*counts, *bins], np.float64)
