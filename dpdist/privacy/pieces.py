"""From events to the dominating pairs that stand for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpdist.privacy.composition import Composition, Piece
from dpdist.privacy.event import Event
from dpdist.privacy.mechanisms import approximate, gaussian
from dpdist.privacy.pair import NOTHING, DominatingPair, Side


def flat(events: Iterable[Event]) -> Iterator[Event]:
    """The mechanisms that events are composed of, in their order."""
    stack = list(events)[::-1]
    while stack:
        event = stack.pop()
        parts = event.parts()
        if parts is None:
            yield event
        else:
            stack.extend(parts[::-1])


def gaussian_parts(event: Event) -> tuple[Fraction, Fraction, tuple[Event, ...]]:
    """Of a composition: the Gaussians as their precision, what only fails as its probability, and all else."""
    precision, failure, rest = Fraction(0), Fraction(0), []
    for part in flat([event]):
        own = part.gaussian()
        if own is None:
            rest.append(part)
        else:
            precision, failure = precision + own[0], failure + own[1]
    return precision, failure, tuple(rest)


def pieces(events: Iterable[Event]) -> list[Piece]:
    """The pieces of a composition; all its Gaussians are one, exactly (their precisions add)."""
    found: list[Piece] = []
    precision = Fraction(0)
    for event in flat(events):
        own, failure = event.gaussian() or (Fraction(0), Fraction(0))
        precision += own
        if not own:
            found.append(piece_of(event))
        elif failure:
            found.append(approximate(0.0, math.nextafter(float(failure), 1.0)))
    return [*found, gaussian(1 / math.sqrt(precision))] if precision else found


@lru_cache(maxsize=64)
def composition(event: Event) -> Composition | None:
    """The composition of an event; None where it costs nothing."""
    found = pieces([event])
    return Composition(found) if found else None


@lru_cache(maxsize=64)
def dominating_pair(event: Event) -> DominatingPair:
    """One pair that dominates the event: exact for a single discrete mechanism, else on up to 3000 losses."""
    found = pieces([event])
    if not found:
        return NOTHING
    if len(found) == 1 and found[0].count == 1 and found[0].exact:
        return found[0].build(0.0)
    whole = Composition(found)
    sides = [Side.from_profile(*whole.profile(1500, reverse)) for reverse in whole.directions]
    return DominatingPair.from_sides(sides[0], sides[-1])


@lru_cache(maxsize=512)
def extreme(event: Event) -> tuple[float, float]:
    """The largest finite loss (infinity where none exists) and a bound of the mass of infinite loss, exactly."""
    parts, own = event.parts(), event.extreme()
    if parts is not None:
        ends = [extreme(part) for part in parts]
        return math.fsum(loss for loss, _ in ends), math.fsum(mass for _, mass in ends)
    if own is not None:
        return own
    piece = piece_of(event)
    if not piece.exact:
        return math.inf, 0.0
    pair = piece.build(0.0)
    mass = max(pair.upper_infinite, pair.lower_infinite)
    infinite = mass if piece.count == 1 else -math.expm1(piece.count * math.log1p(-min(mass, 1 - 2.0**-53)))
    return piece.count * float(np.abs(pair.losses).max(initial=0.0)), infinite


@lru_cache(maxsize=512)
def piece_of(event: Event) -> Piece:
    """The piece of one mechanism."""
    return event.piece()
