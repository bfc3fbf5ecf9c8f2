"""What the stages of a mixing release hand on to each other, and what of it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpdist.cluster.executor import Executor
from dpdist.cluster.tasks import Deferred
from dpdist.families.mixing.restore import Restoration
from dpdist.families.mixing.scaling import Encoding
from dpdist.families.mixing.statistics import ClassStatistics
from dpdist.storage.stored import Stored


@dataclass(frozen=True, eq=False, repr=False)
class Classes:
    """The records of each class, where they were gathered; confidential."""

    codes: Deferred
    held_out: Deferred | None  # the records on which orders are compared
    statistics: ClassStatistics  # of `codes`


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


@dataclass(frozen=True)
class ChosenOrder(Stored):
    """The number of the candidate that is released, where orders are tried: drawn once, stored, read back."""

    FILE: ClassVar[str] = "order.json"

    number: int


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
