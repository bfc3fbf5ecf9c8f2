"""The privacy events of dpdist, each with the pair that dominates it.

>>> event = Composed((DiscreteLaplace(scale=4.0, count=11, label="tables"), ApproximateDP(0.0, 2.0**-40)))
>>> from_json(event.to_json()) == event
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from dpdist.errors import AccountingError
from dpdist.privacy.event import (
    Event,
    check_integer,
    check_number,
    covers,
    from_json,
    number_of_events,
    takes_size_for_public,
)

if TYPE_CHECKING:
    from dpdist.privacy.composition import Piece

__all__ = ["Event", "covers", "from_json", "number_of_events", "takes_size_for_public"]


@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """``count`` integers, each with noise ``P(z) ~ exp(-|z| / scale)``."""

    type: ClassVar[str] = "discrete-laplace/1"
    scale: float  # scale of the noise, in units of the lattice the statistic lives on
    sensitivity: int = 1  # most that one record changes each of the integers, in the same units
    count: int = 1  # number of integers that one record can change (composition)

    def __post_init__(self) -> None:
        check_number(self, "scale", low=0)
        check_integer(self, "sensitivity", low=1)
        check_integer(self, "count", low=1)

    def piece(self) -> Piece:
        """The noise around the sensitivity against the noise around 0."""
        from dpdist.privacy import pieces

        return pieces.discrete_laplace(self.scale, self.sensitivity, self.count)

    def extreme(self) -> tuple[float, float]:
        """The sum of the largest losses."""
        return self.count * self.sensitivity / self.scale, 0.0


@dataclass(frozen=True)
class Gaussian(Event):
    """``count`` Gaussian mechanisms with standard deviation ``noise_multiplier`` times the L2 sensitivity.

    The rounded Gaussian on integer statistics is a post-processing of this event.
    """

    type: ClassVar[str] = "gaussian/1"
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        check_number(self, "noise_multiplier", low=0)
        check_integer(self, "count", low=1)

    def piece(self) -> Piece:
        """A normal distribution around 1 against one around 0."""
        from dpdist.privacy import pieces

        return pieces.gaussian(self.noise_multiplier, 1.0, self.count)

    def gaussian(self) -> tuple[Fraction, Fraction]:
        """Its precision."""
        return self.count / Fraction(self.noise_multiplier) ** 2, Fraction(0)


@dataclass(frozen=True)
class SubsampledGaussian(Event):
    """``count`` Gaussian mechanisms, each on a Poisson sample of rate ``sampling_rate``.

    One synthetic point of DP-CDA (``l`` records without replacement out of ``N_k``) is dominated by this pair with rate
    ``l / N_k`` and multiplier ``sigma l / (2 c)``.
    """

    type: ClassVar[str] = "subsampled-gaussian/1"
    sampling_rate: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        check_number(self, "sampling_rate", low=0, high=1)
        check_number(self, "noise_multiplier", low=0)
        check_integer(self, "count", low=1)

    def piece(self) -> Piece:
        """A mixture of two normal distributions against one of them."""
        from dpdist.privacy import pieces

        return pieces.gaussian(self.noise_multiplier, self.sampling_rate, self.count)


@dataclass(frozen=True)
class SubsampledUnits(Event):
    """``count`` Gaussian mechanisms, each on a Poisson sample of rate ``sampling_rate`` of a unit's records.

    The neighbouring tables differ by a unit of ``records`` records, each sampled independently. The pair
    is ``sum_j Bin(records, rate)(j) N(j, s^2)`` against ``N(0, s^2)``.
    """

    type: ClassVar[str] = "subsampled-units/1"
    sampling_rate: float
    noise_multiplier: float  # deviation over what one record moves
    records: int
    count: int = 1

    def __post_init__(self) -> None:
        check_number(self, "sampling_rate", low=0, high=1)
        check_number(self, "noise_multiplier", low=0)
        check_integer(self, "records", low=1)
        check_integer(self, "count", low=1)

    def piece(self) -> Piece:
        """A binomial mixture of normal distributions against one of them."""
        from dpdist.privacy import pieces

        return pieces.sampled_units(self.noise_multiplier, self.sampling_rate, self.records, self.count)


@dataclass(frozen=True)
class ApproximateDP(Event):
    """Any mechanism known by its (epsilon, delta) alone."""

    type: ClassVar[str] = "approximate-dp/1"
    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_number(self, "epsilon", low=0, closed=True)
        check_number(self, "delta", low=0, high=1, closed=True)

    def piece(self) -> Piece:
        """Randomised response that fails with probability delta."""
        from dpdist.privacy import pieces

        return pieces.approximate(self.epsilon, self.delta)

    def gaussian(self) -> tuple[Fraction, Fraction] | None:
        """The failure of a mechanism that loses nothing else."""
        return None if self.epsilon else (Fraction(0), Fraction(repr(self.delta)))


@dataclass(frozen=True)
class LaplaceLeakage(Event):
    """One histogram with discrete Laplace noise whose pointwise maximal leakage is accounted (replacement)."""

    type: ClassVar[str] = "laplace-leakage/1"
    replacement: ClassVar[bool] = True
    scale: float | None  # scale of the noise; None for exact counts, which are not differentially private
    alpha: float  # assumed least probability of every bin, for every record
    failure: float = 0.0  # probability that the sampler is not exact

    def __post_init__(self) -> None:
        if self.scale is not None:
            check_number(self, "scale", low=0)
        check_number(self, "alpha", low=0, high=1)
        check_number(self, "failure", low=0, high=1, closed=True)

    def parts(self) -> tuple[Event, ...]:
        """The same noise as differential privacy (replacement, and more than enough for add/remove)."""
        if self.scale is None:
            return (ApproximateDP(0.0, 1.0, label="exact counts"),)
        return DiscreteLaplace(self.scale, count=2), ApproximateDP(0.0, self.failure)


@dataclass(frozen=True)
class NestedLeakage(Event):
    """Histograms from fine to coarse, each a sum of cells of the one before, with discrete Laplace noise of one scale,
    whose pointwise maximal leakage is accounted (replacement).
    """

    type: ClassVar[str] = "nested-leakage/1"
    replacement: ClassVar[bool] = True
    scale: float  # of the noise of each
    alphas: tuple[float, ...]  # assumed least probability of the bins of each, for every record
    failure: float = 0.0  # probability that the samplers are not exact

    def __post_init__(self) -> None:
        check_number(self, "scale", low=0)
        object.__setattr__(self, "alphas", tuple(self.alphas))
        if not self.alphas or not all(isinstance(a, (int, float)) and 0 < a <= 1 for a in self.alphas):
            raise AccountingError(f"{self.type}: alphas must be above 0 and at most 1, got {self.alphas}")
        check_number(self, "failure", low=0, high=1, closed=True)

    @property
    def alpha(self) -> float:
        """The least probability of a bin of the finest."""
        return self.alphas[0]

    def parts(self) -> tuple[Event, ...]:
        """The same noise as differential privacy (replacement, and more than enough for add/remove)."""
        return DiscreteLaplace(self.scale, count=2 * len(self.alphas)), ApproximateDP(0.0, self.failure)


def _events(event: Event, name: str, parts: Any) -> None:
    if not isinstance(parts, tuple) or not all(isinstance(part, Event) for part in parts):
        raise AccountingError(f"{event.type}: {name} must be a tuple of events")


@dataclass(frozen=True)
class Composed(Event):
    """Mechanisms on the same records, each seeing the outputs of those before it."""

    type: ClassVar[str] = "composed/1"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        _events(self, "events", self.events)

    def parts(self) -> tuple[Event, ...]:
        """The mechanisms."""
        return self.events


@dataclass(frozen=True)
class Replacement(Event):
    """An event of neighbouring tables that differ in the values of one record: their number is taken for public.

    It is composed as it stands. Two records change where one is replaced, so what it says of noisy statistics holds for
    the presence of one record too, except that the number of records is known.
    """

    type: ClassVar[str] = "replacement/1"
    replacement: ClassVar[bool] = True
    event: Event

    def __post_init__(self) -> None:
        _events(self, "event", (self.event,))

    def parts(self) -> tuple[Event, ...]:
        """The event as it stands."""
        return (self.event,)


@dataclass(frozen=True)
class Parallel(Event):
    """Mechanisms on parts of the table fixed by each record's own public attributes (classes): the worst of them."""

    type: ClassVar[str] = "parallel/1"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        _events(self, "events", self.events)

    def piece(self) -> Piece:
        """The pointwise worst of the pairs."""
        from dpdist.privacy.composition import Piece
        from dpdist.privacy.pair import parallel_pair
        from dpdist.privacy.pieces import dominating_pair

        return Piece.of(parallel_pair([dominating_pair(event) for event in self.events]))

    def extreme(self) -> tuple[float, float]:
        """The largest of both."""
        from dpdist.privacy.pieces import extreme

        ends = [extreme(event) for event in self.events]
        return max((loss for loss, _ in ends), default=0.0), max((mass for _, mass in ends), default=0.0)


@dataclass(frozen=True)
class RandomSplit(Event):
    """Stages on disjoint splits, each record sent to split j with probability ``share_j`` independently."""

    type: ClassVar[str] = "random-split/1"
    # share of the split and what is done to it; ``None`` costs nothing. The shares sum to one. A later stage may see
    # the outputs of earlier ones. `dpdist.privacy.pair` proves the bound
    stages: tuple[tuple[float, Event | None], ...]

    def __post_init__(self) -> None:
        shares = [stage[0] for stage in self.stages if len(stage) == 2]
        if not shares or len(shares) != len(self.stages):
            raise AccountingError("random-split/1: stages must be pairs of a share and an event")
        _events(self, "stages", tuple(stage[1] for stage in self.stages if stage[1] is not None))
        if not all(isinstance(q, (int, float)) and 0 < q <= 1 for q in shares) or abs(math.fsum(shares) - 1) > 1e-12:
            raise AccountingError(f"random-split/1: shares must be positive and sum to 1, got {shares}")

    def piece(self) -> Piece:
        """The mixture of the stages' pairs."""
        from dpdist.privacy.composition import Piece
        from dpdist.privacy.pair import split_pair
        from dpdist.privacy.pieces import dominating_pair

        return Piece.of(
            split_pair([(q, None if event is None else dominating_pair(event)) for q, event in self.stages])
        )

    def extreme(self) -> tuple[float, float]:
        """The ends of the mixture."""
        from dpdist.privacy.pair import extreme_of_split
        from dpdist.privacy.pieces import extreme

        return extreme_of_split([(q, *((0.0, 0.0) if e is None else extreme(e))) for q, e in self.stages])
