"""A family outside dpdist: the number of records of a table, with discrete Laplace noise."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from dpdist.data.operators import table_counts_operator
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.calibration import add_noise, deviation
from dpdist.families.base.family import Family, Stage
from dpdist.families.base.passes import Passes
from dpdist.families.base.plan import EventPlan
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.composition import Piece
from dpdist.privacy.event import Event
from dpdist.privacy.noise import Noise
from dpdist.privacy.pair import DominatingPair
from dpdist.privacy.testing import Claim
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import STATISTICS, part_name, write_part
from dpdist.spec.release import PrivacyLimit, ReleaseSpec
from dpdist.storage.stored import Stored

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


@dataclass(frozen=True)
class HeadcountNoise(Event):
    """Discrete Laplace noise on a number that one record changes by one."""

    type: ClassVar[str] = "headcount/1"
    scale: float

    def piece(self) -> Piece:
        """Whether the noise is on this side or on that: randomised response."""
        rate = 1 / self.scale
        likely = 1 / (1 + math.exp(-rate))
        upper = np.array([1 - likely, likely])
        return Piece.of(DominatingPair(np.array([-rate, rate]), upper, upper[::-1]), symmetric=True)


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
    """What an audit sees of a table with this many records."""
    return noisy_number(number, noise).astype(np.float64)


FAMILY = Family(
    kind="headcount",
    spec=HeadcountSpec,
    plan=lambda spec: HeadcountPlan(spec=spec, event=HeadcountNoise(SCALE)),
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
