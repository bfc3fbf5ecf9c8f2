"""What a privacy event is: what a stage did to the records, as frozen mathematics.

Events describe, the accountant decides (`dpdist.privacy.accountant`). Unless an event says otherwise its adjacency is
*add/remove*: the two tables differ by the presence of one record. Every event round-trips through JSON exactly
(Python writes a float with the fewest digits that read back to the same float), and the field ``type`` carries a
version, so that a ledger can be recomputed years later.

An event brings its own pair and its own JSON, so a family of another distribution can bring one: a subclass of `Event`
with a `piece`, named by an entry point of the group `GROUP`, by which ledgers and readers find it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dpdist.errors import AccountingError

if TYPE_CHECKING:
    from dpdist.privacy.composition import Piece

OWN = ("dpdist.privacy.events", "dpdist.privacy.deniability")
"""The modules of the events of dpdist."""

GROUP = "dpdist.events"
"""The group of entry points by which events of other distributions are found: the name is the type without version."""

_REGISTRY: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """Base of all events; frozen and hashable."""

    type: ClassVar[str] = ""
    replacement: ClassVar[bool] = False  # whether it holds for replacement only: the number of records is public
    # name of the stage for people. It takes no part in equality, nor in the accounting
    label: str = field(default="", compare=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        known = _REGISTRY.get(cls.type)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise AccountingError(f"the privacy event type {cls.type!r} is taken: name another one")
        if cls.type:
            _REGISTRY[cls.type] = cls

    def piece(self) -> Piece:
        """The pair that dominates it for either direction of add/remove, and how often; unless it has `parts`."""
        raise AccountingError(f"the accountant does not know the event {type(self).__name__}")

    def parts(self) -> tuple[Event, ...] | None:
        """The mechanisms on the same records that it is composed of; None where it is one."""
        return None

    def gaussian(self) -> tuple[Fraction, Fraction] | None:
        """Precision of a Gaussian mechanism, and the probability that a mechanism fails which does nothing else; None
        for all others.
        """
        return None

    def extreme(self) -> tuple[float, float] | None:
        """The largest finite loss and a bound of the mass of infinite loss; None where the pair tells."""
        return None

    def to_json(self) -> dict[str, Any]:
        """The event as a JSON object: ``type`` (with its version) and the fields."""
        body: dict[str, Any] = {"type": self.type}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "label" and not value:
                continue
            body[item.name] = _encode(value)
        return body

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """The event of the fields that `to_json` wrote. Raises TypeError: they are others."""
        return cls(**{name: _decode(value) for name, value in body.items()})


_CHEAPER_LARGER = frozenset({"scale", "noise_multiplier", "passing_mass"})
_CHEAPER_SMALLER = frozenset({"epsilon", "delta", "failure", "sampling_rate"})
_ROUNDING = 1e-12  # of numbers that follow from those of a plan by a few products and quotients
_WITHIN = 1e-8


def covers(reserved: Any, planned: Any, *, name: str = "") -> bool:
    """Whether an event that was planned again, maybe on another processor, costs no more than the reserved one.

    Noise may have been drawn already, and the same draws at two scales would show them. So a plan at another number of
    the grid is not covered, even if it costs less; what else a plan computes may differ by a part in 10^8.

    Both are JSON of events (`Event.to_json`), None where a release has no event, or values of the field `name` of one.
    They have the same structure, labels and whole numbers, no less noise and no larger loss, failure or rate, up to a
    part in 10^12; other numbers are equal up to that.

    >>> from dpdist.privacy.events import Gaussian
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
    Raises AccountingError: the type is unknown, or a field is missing, unknown or out of its range.
    """
    kind = None
    try:
        body = dict(json.loads(data) if isinstance(data, str) else data)
        kind = body.pop("type", None)
        return _class_of(kind).of_json(body)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        named = f" {kind}" if isinstance(kind, str) else ""
        raise AccountingError(f"privacy event{named}: {error}") from None


def _class_of(kind: Any) -> type[Event]:
    """The class of a type, of this distribution or of another one that is installed."""
    for module in OWN:
        import_module(module)
    if isinstance(kind, str) and kind not in _REGISTRY:
        from importlib.metadata import entry_points

        try:
            for entry in entry_points(group=GROUP, name=kind.partition("/")[0]):
                entry.load()
        except Exception as error:  # whatever another distribution raises
            raise AccountingError(f"privacy event {kind!r} cannot be imported ({error}): install it again") from error
    if not isinstance(kind, str) or kind not in _REGISTRY:
        raise AccountingError(
            f"unknown privacy event type {kind!r}: this version knows {', '.join(sorted(_REGISTRY))}; "
            "read the ledger with the version that wrote it or a later one, and with the families that it charged"
        )
    return _REGISTRY[kind]


def check_number(event: Event, name: str, *, low: float, high: float = math.inf, closed: bool = False) -> None:
    """Check that a field is a finite real number in (low, high], or [low, high] when closed."""
    value = getattr(event, name)
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not valid or not (low <= value if closed else low < value) or value > high:
        bracket = "[" if closed else "("
        top = "infinity)" if math.isinf(high) else f"{high}]"
        raise AccountingError(f"{event.type}: {name} must be a finite number in {bracket}{low}, {top}, got {value!r}")
    object.__setattr__(event, name, float(value))


def check_integer(event: Event, name: str, *, low: int) -> None:
    """Check that a field is an integer of at least ``low``."""
    value = getattr(event, name)
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < low:
        raise AccountingError(f"{event.type}: {name} must be an integer of at least {low}, got {value!r}")
    object.__setattr__(event, name, int(value))


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
    held = [part for item in fields(event) for part in _held(getattr(event, item.name))]
    return event.replacement or any(map(takes_size_for_public, (*(event.parts() or ()), *held)))
