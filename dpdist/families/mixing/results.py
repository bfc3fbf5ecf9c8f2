"""What the stages of a mixing release hand on to each other, and what of it is stored."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdist.cluster.executor import Executor
from dpdist.cluster.tasks import Deferred
from dpdist.families.mixing.restore import Restoration
from dpdist.families.mixing.scaling import Encoding
from dpdist.families.mixing.statistics import ClassStatistics


@dataclass(frozen=True, eq=False, repr=False)
class Classes:
    """The records of each class, where they were gathered; confidential."""

    codes: Deferred
    held_out: Deferred | None  # the records on which orders are compared
    statistics: ClassStatistics  # of `codes`


@dataclass(frozen=True)
class Confirmed:
    """Which classes have their declared minimum, by the noisy counts: drawn once, stored, read back."""

    FILE: ClassVar[str] = "confirmed.json"

    outcomes: tuple[bool, ...]

    def to_bytes(self) -> bytes:
        """The outcomes as JSON."""
        return json.dumps(self.outcomes).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Confirmed:
        """The outcomes from JSON."""
        return cls(tuple(json.loads(content)))


@dataclass(frozen=True, eq=False, repr=False)
class ScaledClasses:
    """The confirmed classes, and how their records become vectors."""

    classes: Classes
    confirmed: tuple[bool, ...]
    encoding: Encoding  # by the declared domains, or by noisy moments
    clip: float  # largest norm of a record's vector


@dataclass(frozen=True)
class ChosenOrder:
    """The number of the candidate that is released, where orders are tried: drawn once, stored, read back."""

    FILE: ClassVar[str] = "order.json"

    number: int

    def to_bytes(self) -> bytes:
        """The number as JSON."""
        return json.dumps(self.number).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> ChosenOrder:
        """The number from JSON."""
        return cls(json.loads(content))


@dataclass(frozen=True, eq=False)
class Restorations:
    """How the mixtures of each class, by its place, become rows: computed once, stored, read back."""

    FILE: ClassVar[str] = "restorations.npz"

    by_class: Mapping[int, Restoration]

    def to_bytes(self) -> bytes:
        """The restorations as a NumPy archive."""
        buffer = io.BytesIO()
        arrays = {f"{k}/{name}": array for k, one in self.by_class.items() for name, array in vars(one).items()}
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Restorations:
        """The restorations from an archive."""
        arrays: dict[int, dict[str, np.ndarray]] = {}
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            for path, array in stored.items():
                place, name = path.split("/")
                arrays.setdefault(int(place), {})[name] = array
        return cls({place: Restoration(**one) for place, one in arrays.items()})


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
