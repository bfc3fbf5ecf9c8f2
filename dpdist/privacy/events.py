"""Privacy events: what a stage did to the records, as frozen mathematics.

Events describe, the accountant decides (`dpdist.privacy.accountant`). Unless an event says otherwise its adjacency is
*add/remove*: the two tables differ by the presence of one record. Every event round-trips through JSON exactly
(Python writes a float with the fewest digits that read back to the same float), and the field ``type`` carries a
version, so that a ledger can be recomputed years later.

>>> event = Composed((DiscreteLaplace(scale=4.0, count=11, label="tables"), ApproximateDP(0.0, 2.0**-40)))
>>> from_json(event.to_json()) == event
True
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from dpdist.errors import AccountingError

_REGISTRY: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """Base of all events; frozen and hashable."""

    type: ClassVar[str] = ""
    # name of the stage for people. It takes no part in equality, nor in the accounting
    label: str = field(default="", compare=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        if cls.type:
            _REGISTRY[cls.type] = cls

    def to_json(self) -> dict[str, Any]:
        """The event as a JSON object: ``type`` (with its version) and the fields."""
        body: dict[str, Any] = {"type": self.type}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "label" and not value:
                continue
            body[item.name] = _encode(value)
        return body


_CHEAPER_LARGER = frozenset({"scale", "noise_multiplier", "passing_mass"})
_CHEAPER_SMALLER = frozenset({"epsilon", "delta", "failure", "sampling_rate"})
_ROUNDING = 1e-12  # of numbers that follow from those of a plan by a few products and quotients
_WITHIN = 1e-8


def covers(reserved: Any, planned: Any, *, name: str = "") -> bool:
    """Whether an event that was planned again, maybe on another processor, costs no more than the reserved one.

    Noise may have been drawn already, and the same draws at two scales would show them. So a plan at another number of
    the grid is not covered, even if it costs less; what else a plan computes may differ by a part in 10^8.

    Parameters
    ----------
    reserved, planned : JSON of events
        As of `Event.to_json`; None where a release has no event.
    name : str
        The field whose value they are; empty for events.

    Returns
    -------
    bool
        True where both have the same structure, labels and whole numbers, no less noise and no larger loss, failure or
        rate, up to a part in 10^12; other numbers are equal up to that.

    Examples
    --------
    >>> reserved, less, more = (Gaussian(noise).to_json() for noise in (2.0, 2.0 - 1e-9, 2.0 + 1e-9))
    >>> covers(reserved, less), covers(reserved, more)
    (False, True)
    """
    if isinstance(reserved, Mapping) and isinstance(planned, Mapping):
        return reserved.keys() == planned.keys() and all(
            covers(reserved[field], planned[field], name=field) for field in planned
        )
    if isinstance(reserved, list | tuple) and isinstance(planned, list | tuple):
        pairs = zip(reserved, planned, strict=False)
        return len(reserved) == len(planned) and all(covers(*pair, name=name) for pair in pairs)
    if not isinstance(planned, float) or not isinstance(reserved, int | float):
        return type(reserved) is type(planned) and bool(reserved == planned)
    most = abs(reserved)
    larger, smaller = ((_WITHIN if name in names else _ROUNDING) for names in (_CHEAPER_LARGER, _CHEAPER_SMALLER))
    return reserved - smaller * most <= planned <= reserved + larger * most


def _encode(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_json()
    if isinstance(value, tuple):
        return [_encode(part) for part in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_json(value)
    if isinstance(value, (list, tuple)):
        return tuple(_decode(part) for part in value)
    return value


def from_json(data: Mapping[str, Any] | str) -> Event:
    """The event that `Event.to_json` wrote.

    Parameters
    ----------
    data : mapping or str
        The JSON object, or its text.

    Raises
    ------
    AccountingError
        The type is unknown, or a field is missing, unknown or out of its range.
    """
    body = dict(json.loads(data) if isinstance(data, str) else data)
    kind = body.pop("type", None)
    if kind not in _REGISTRY:
        raise AccountingError(
            f"unknown privacy event type {kind!r}: this version knows {', '.join(sorted(_REGISTRY))}; "
            "read the ledger with the version that wrote it or a later one"
        )
    try:
        return _REGISTRY[kind](**{name: _decode(value) for name, value in body.items()})
    except TypeError as error:
        raise AccountingError(f"privacy event {kind}: {error}") from None


def _number(event: Event, name: str, *, low: float, high: float = math.inf, closed: bool = False) -> None:
    """Check that a field is a finite real number in (low, high], or [low, high] when closed."""
    value = getattr(event, name)
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not valid or not (low <= value if closed else low < value) or value > high:
        bracket = "[" if closed else "("
        top = "infinity)" if math.isinf(high) else f"{high}]"
        raise AccountingError(f"{event.type}: {name} must be a finite number in {bracket}{low}, {top}, got {value!r}")
    object.__setattr__(event, name, float(value))


def _integer(event: Event, name: str, *, low: int) -> None:
    """Check that a field is an integer of at least ``low``."""
    value = getattr(event, name)
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < low:
        raise AccountingError(f"{event.type}: {name} must be an integer of at least {low}, got {value!r}")
    object.__setattr__(event, name, int(value))


@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """``count`` integers, each with noise ``P(z) ~ exp(-|z| / scale)``."""

    type: ClassVar[str] = "discrete-laplace/1"
    scale: float  # scale of the noise, in units of the lattice the statistic lives on
    sensitivity: int = 1  # most that one record changes each of the integers, in the same units
    count: int = 1  # number of integers that one record can change (composition)

    def __post_init__(self) -> None:
        _number(self, "scale", low=0)
        _integer(self, "sensitivity", low=1)
        _integer(self, "count", low=1)

    @classmethod
    def on_grid(
        cls, *, scale: float, sensitivity: float, grid: float, count: int = 1, label: str = ""
    ) -> DiscreteLaplace:
        """The event for real statistics rounded to multiples of ``grid``.

        Values that differ by at most ``sensitivity`` round to multiples that differ by at most
        ``floor(sensitivity / grid) + 1`` steps; `scale`, `sensitivity` and `grid` have the statistic's unit.
        """
        if not grid > 0 or not sensitivity >= 0:
            raise AccountingError(
                f"discrete-laplace/1: grid must be positive and sensitivity not negative, got {grid}, {sensitivity}"
            )
        return cls(scale=scale / grid, sensitivity=math.floor(sensitivity / grid) + 1, count=count, label=label)


@dataclass(frozen=True)
class Gaussian(Event):
    """``count`` Gaussian mechanisms with standard deviation ``noise_multiplier`` times the L2 sensitivity.

    The rounded Gaussian on integer statistics is a post-processing of this event.
    """

    type: ClassVar[str] = "gaussian/1"
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _number(self, "noise_multiplier", low=0)
        _integer(self, "count", low=1)


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
        _number(self, "sampling_rate", low=0, high=1)
        _number(self, "noise_multiplier", low=0)
        _integer(self, "count", low=1)


@dataclass(frozen=True)
class SubsampledUnits(Event):
    """``count`` Gaussian mechanisms, each on a Poisson sample of rate ``sampling_rate`` of a unit's records.

    The neighbouring tables differ by a unit of ``records`` records, each of which is sampled or not by itself. The pair
    is ``sum_j Bin(records, rate)(j) N(j, s^2)`` against ``N(0, s^2)``.
    """

    type: ClassVar[str] = "subsampled-units/1"
    sampling_rate: float
    noise_multiplier: float  # deviation over what one record moves
    records: int
    count: int = 1

    def __post_init__(self) -> None:
        _number(self, "sampling_rate", low=0, high=1)
        _number(self, "noise_multiplier", low=0)
        _integer(self, "records", low=1)
        _integer(self, "count", low=1)


@dataclass(frozen=True)
class ApproximateDP(Event):
    """Any mechanism of which only its (epsilon, delta) is known."""

    type: ClassVar[str] = "approximate-dp/1"
    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        _number(self, "epsilon", low=0, closed=True)
        _number(self, "delta", low=0, high=1, closed=True)


@dataclass(frozen=True)
class LaplaceLeakage(Event):
    """One histogram with discrete Laplace noise whose pointwise maximal leakage is accounted (replacement)."""

    type: ClassVar[str] = "laplace-leakage/1"
    scale: float | None  # scale of the noise; None for exact counts, which are not differentially private
    alpha: float  # assumed least probability of every bin, for every record
    failure: float = 0.0  # probability that the sampler is not exact

    def __post_init__(self) -> None:
        if self.scale is not None:
            _number(self, "scale", low=0)
        _number(self, "alpha", low=0, high=1)
        _number(self, "failure", low=0, high=1, closed=True)

    @property
    def equal(self) -> Event:
        """The same noise as differential privacy (replacement, and more than enough for add/remove)."""
        if self.scale is None:
            return ApproximateDP(0.0, 1.0, label="exact counts")
        return Composed((DiscreteLaplace(self.scale, count=2), ApproximateDP(0.0, self.failure)))


@dataclass(frozen=True)
class NestedLeakage(Event):
    """Histograms from fine to coarse, each a sum of cells of the one before, with discrete Laplace noise of one scale,
    whose pointwise maximal leakage is accounted (replacement).
    """

    type: ClassVar[str] = "nested-leakage/1"
    scale: float  # of the noise of each
    alphas: tuple[float, ...]  # assumed least probability of the bins of each, for every record
    failure: float = 0.0  # probability that the samplers are not exact

    def __post_init__(self) -> None:
        _number(self, "scale", low=0)
        object.__setattr__(self, "alphas", tuple(self.alphas))
        if not self.alphas or not all(isinstance(a, (int, float)) and 0 < a <= 1 for a in self.alphas):
            raise AccountingError(f"{self.type}: alphas must be above 0 and at most 1, got {self.alphas}")
        _number(self, "failure", low=0, high=1, closed=True)

    @property
    def alpha(self) -> float:
        """The least probability of a bin of the finest."""
        return self.alphas[0]

    @property
    def equal(self) -> Event:
        """The same noise as differential privacy (replacement, and more than enough for add/remove)."""
        noise = DiscreteLaplace(self.scale, count=2 * len(self.alphas))
        return Composed((noise, ApproximateDP(0.0, self.failure)))


@dataclass(frozen=True)
class SeedRecords(Event):
    """``records`` released records, each conditional on passing the randomised plausible-deniability test.

    Attributes
    ----------
    k : int
        Threshold of the test.
    gamma : float
        Width of the buckets of generation probability; 1 where all plausible seeds have the *same* probability
        (fixed omega).
    epsilon0 : float
        Parameter of the discrete Laplace noise on the threshold, ``P(z) ~ exp(-epsilon0 |z|)``.
    passing_mass : float
        Checked lower bound of ``Z = n Pr[pass]``, for the smaller of two adjacent sets of seeds.
    records : int
        Released records R.

    Notes
    -----
    `dpdist.privacy.deniability` derives the dominating pair.
    """

    type: ClassVar[str] = "seed-records/1"
    k: int
    gamma: float
    epsilon0: float
    passing_mass: float
    records: int

    def __post_init__(self) -> None:
        _integer(self, "k", low=1)
        _number(self, "gamma", low=1, closed=True)
        _number(self, "epsilon0", low=0, high=100)
        _number(self, "passing_mass", low=0)
        _integer(self, "records", low=1)


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


@dataclass(frozen=True)
class Replacement(Event):
    """An event of neighbouring tables that differ in the values of one record: their number is taken for public.

    It is composed as it stands. Two records change where one is replaced, so what it says of noisy statistics holds for
    the presence of one record too, except that the number of records is known.
    """

    type: ClassVar[str] = "replacement/1"
    event: Event

    def __post_init__(self) -> None:
        _events(self, "event", (self.event,))


def number_of_events(event: Event) -> int:
    """How many events there are inside an event, those that hold others not counted."""
    held = [part for item in fields(event) for part in _held(getattr(event, item.name))]
    return sum(map(number_of_events, held)) if held else 1


def _held(value: Any) -> list[Event]:
    if isinstance(value, tuple):
        return [event for part in value for event in _held(part)]
    return [value] if isinstance(value, Event) else []


def takes_size_for_public(event: Event) -> bool:
    """Whether a charge, or a part of it, holds for replacement only: the number of records is taken for public."""
    if isinstance(event, Composed):
        return any(map(takes_size_for_public, event.events))
    return isinstance(event, (Replacement, LaplaceLeakage, NestedLeakage))


@dataclass(frozen=True)
class Parallel(Event):
    """Mechanisms on parts of the table fixed by each record's own public attributes (classes): the worst of them."""

    type: ClassVar[str] = "parallel/1"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        _events(self, "events", self.events)


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
