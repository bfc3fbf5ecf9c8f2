"""A family outside dpdist: the number of records of a table, with discrete Laplace noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from dpdist.data.operators import table_counts_operator
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.family import Family, Stage
from dpdist.families.base.noisy_counts import add_noise, deviation
from dpdist.families.base.passes import Passes
from dpdist.families.base.plan import EventPlan
from dpdist.families.base.stored import Stored
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.events import DiscreteLaplace
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import STATISTICS, part_name, write_part
from dpdist.spec.release import PrivacyLimit, ReleaseSpec

SCALE = 2.0
"""Scale of the noise: the release is 1/2-DP, as a record changes the number by one."""


class HeadcountSpec(ReleaseSpec):
    """The spec of a headcount."""

    kind: Literal["headcount"]
    privacy: PrivacyLimit = PrivacyLimit()


@dataclass(frozen=True)
class Headcount(Stored):
    """The number with its noise: drawn once, stored, read back."""

    FILE: ClassVar[str] = "headcount.json"

    noisy: int


class HeadcountPlan(EventPlan):
    """The plan of a release of one statistic."""

    form = PartFormat(layout="statistics", non_negative=True)


def noisy_number(number: int, noise: Noise) -> Counts:
    """The number of records with noise, int64[1]."""
    return add_noise(np.array([number]), mechanism="laplace", scale=SCALE, noise=noise, name="headcount")


def count(attempt: Attempt[HeadcountSpec, EventPlan]) -> Headcount:
    """Count the records and draw the noise."""

    def draw() -> Headcount:
        sizes = [attribute.cardinality for attribute in attempt.spec.table.attributes]
        counts = Passes(attempt).run(table_counts_operator(sizes, [(0,)]), stage="counting")
        return Headcount(int(noisy_number(int(counts.sum()), attempt.noise)[0]))

    return attempt.stored(Headcount, draw)


def write(attempt: Attempt[HeadcountSpec, EventPlan]) -> None:
    """Write the number as a table of statistics."""
    noisy = float(attempt.result(Headcount).noisy)
    row = {"statistic": "count", "of": "records", "cell": "", "noisy": noisy, "value": max(noisy, 0.0)}
    table = pa.Table.from_pylist([row | {"standard_error": deviation("laplace", SCALE)}], schema=STATISTICS)
    attempt.parts = (write_part(attempt.output, part_name(attempt.id, 0), table),)


def audited(number: int, noise: Noise) -> Floats:
    """What an audit sees of a table with so many records."""
    return noisy_number(number, noise).astype(np.float64)


FAMILY = Family(
    kind="headcount",
    spec=HeadcountSpec,
    plan=lambda spec: HeadcountPlan(spec=spec, event=DiscreteLaplace(scale=SCALE)),
    stages=lambda plan: (Stage("count", count), Stage("write", write)),
    claims=lambda plan: (
        Claim(
            name="the number of records",
            absent=lambda noise: audited(0, noise),
            present=lambda noise: audited(1, noise),
            epsilon=plan.epsilon,
        ),
    ),
)
