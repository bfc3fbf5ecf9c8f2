"""The records of each class: gathered, confirmed by noisy counts, and what stages hand on to each other about them.

The curator of a central release and every client of a federated one run the same functions.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import ClassVar, TypeVar

import numpy as np

from dpdist.cluster.executor import Deferred, Executor
from dpdist.data.operators import Operator
from dpdist.errors import DataError
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.calibration import noisily_passes
from dpdist.families.base.passes import Passes
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import SHARD_BYTES, Mixer, Rows, clip_rows
from dpdist.families.mixing.restore import Restoration
from dpdist.families.mixing.scaling import Encoding, moment_sums
from dpdist.families.mixing.spec import MixingSpec
from dpdist.privacy.arrays import Codes, Counts, joined
from dpdist.privacy.noise import Noise
from dpdist.storage.stored import Stored

ClassCodes = list[Codes]  # the codes of the records of each class, the class attribute left out


def class_operator(label: int, classes: Sequence[int], *, by_value: bool = False) -> Operator:
    """The codes of the records of some classes (given by their codes), in the order of rows or values: `ClassCodes`."""
    chunk = partial(_by_class, label=label, classes=tuple(classes))
    classed = Operator(name="classes", chunk=chunk, combine=_joined)
    return replace(classed, finish=_sorted) if by_value else classed


def _by_class(codes: Codes, label: int, classes: tuple[int, ...]) -> ClassCodes:
    features = [column for place, column in enumerate(codes) if place != label]
    chosen = [np.flatnonzero(codes[label] == code) for code in classes]
    return [[column.take(rows) for column in features] for rows in chosen]


def _sorted(classes: ClassCodes) -> ClassCodes:
    return [[column.take(order) for column in codes] for codes in classes for order in [np.lexsort(codes)]]


def _joined(a: ClassCodes, b: ClassCodes) -> ClassCodes:
    return [joined(pair) for pair in zip(a, b, strict=True)]


def _statistics(codes: ClassCodes, encoding: Encoding | None) -> tuple[tuple[int, ...], tuple[Counts, ...]]:
    """Records of each class, and the sums in a declared encoding over all of them, if one is given."""
    sizes = tuple(len(part[0]) for part in codes)
    places = range(0 if encoding is None else len(encoding.attributes))
    sums = (reduce(operator.add, (moment_sums(encoding, i, part[i]) for part in codes)) for i in places if encoding)
    return sizes, tuple(sums)


def class_sums(codes: Codes, encoding: Encoding, mixer: Mixer, noise: Noise, start: int, stop: int) -> Rows:
    """Exact sums of the rows of mixtures `start` to `stop` - 1 of a class, float32[stop - start, d].

    Vectors exist shard by shard inside one task. Raises DataError: the class has fewer records than a mixture.
    """
    size, rows = len(codes[0]), max(1, SHARD_BYTES // (4 * encoding.width))
    total: Rows | None = None
    for first in range(0, size, rows):
        shard = clip_rows(encoding.encode([column[first : first + rows] for column in codes]), clip=mixer.clip)
        sums = mixer.sums(noise, shard, start, stop, first=first, size=size)
        total = sums if total is None else np.add(total, sums, out=total)
    if total is None:
        raise DataError("a class without records is not mixed; leave it out")
    return total


@dataclass(frozen=True, eq=False, repr=False)
class Classes:
    """The records of each class, where they were gathered; confidential."""

    codes: Deferred
    sizes: tuple[int, ...]  # records of each class in `codes`
    sums: tuple[Counts, ...]  # `moment_sums` of each attribute but the class; empty if they are not needed


@dataclass(frozen=True)
class Confirmed(Stored):
    """Which classes have their declared minimum, by the noisy counts: drawn once, stored, read back."""

    FILE: ClassVar[str] = "confirmed.json"

    outcomes: tuple[bool, ...]


@dataclass(frozen=True, eq=False, repr=False)
class ScaledClasses:
    """The confirmed classes, and how their records become vectors."""

    classes: Classes
    confirmed: tuple[bool, ...]
    encoding: Encoding  # by the declared domains, or by noisy moments
    clip: float  # largest norm of a record's vector


@dataclass(frozen=True, eq=False)
class Restorations(Stored):
    """How the mixtures of each class, by its place, become rows: computed once, stored, read back."""

    FILE: ClassVar[str] = "restorations.npz"

    by_class: Mapping[int, Restoration]


@dataclass(frozen=True, eq=False)
class MixedClass:
    """The mixtures of one class, in blocks."""

    place: int  # which of the classes of the spec
    blocks: Sequence[Deferred]  # sequence of Deferred of float32[t, d]
    block: int  # mixtures in each of them but the last


@dataclass(frozen=True, eq=False)
class Mixtures:
    """The noisy mixtures of every confirmed class."""

    classes: tuple[MixedClass, ...]
    encoding: Encoding  # of their rows
    restorations: Restorations  # empty where mixtures are released as they are
    label_sigma: float  # deviation of the published noise on labels; 0 for none
    executor: Executor | None = None  # where the blocks are, if not with the executor of the attempt


MixingPlanT = TypeVar("MixingPlanT", bound=MixingPlan)


def gather(attempt: Attempt[MixingSpec, MixingPlanT]) -> Classes:
    """The records of each class. Raises DataError: a policy is broken."""
    spec, plan, executor = attempt.spec, attempt.plan, attempt.executor
    label, bounded = spec.table.names.index(spec.mixing.label), spec.unit is not None
    by_class = class_operator(label, spec.class_codes, by_value=bounded)  # no order of bounded records is their own
    codes = Passes(attempt).held(by_class, stage="gathering classes")
    summed = None if plan.moments is None else plan.encoding
    sizes, sums = executor.compute([executor.tasks("classes")("count", _statistics, codes, summed)])[0]
    attempt.operator["class_sizes"] = dict(zip((part.value for part in plan.classes), sizes, strict=True))
    return Classes(codes, sizes, sums)


def confirm(attempt: Attempt[MixingSpec, MixingPlanT], sizes: Sequence[int]) -> Confirmed:
    """Whether each class has its declared minimum: noisy counts that are drawn once and stored."""
    return attempt.stored(Confirmed, lambda: confirmed_classes(attempt.noise, attempt.plan, sizes))


def confirmed_classes(noise: Noise, plan: MixingPlan, sizes: Sequence[int]) -> Confirmed:
    """The outcomes of the noisy counts; a class that cannot fill a mixture never passes."""
    outcomes = []
    for part, size in zip(plan.classes, sizes, strict=True):
        passes = noisily_passes(size, part.check, noise=noise, name=f"class/{part.code}")
        outcomes.append(passes and size >= plan.order)
    return Confirmed(tuple(outcomes))


def note_left_out(attempt: Attempt[MixingSpec, MixingPlanT], confirmed: Sequence[bool]) -> None:
    """Publish which classes are left out, and tell who watches the release."""
    left_out = [part.value for part, kept in zip(attempt.plan.classes, confirmed, strict=True) if not kept]
    attempt.public["classes_left_out"] = left_out
    if left_out:
        names = ", ".join(map(repr, left_out))
        attempt.progress(f"left out, its minimum not confirmed: {attempt.spec.mixing.label} {names}", 1, 1)
