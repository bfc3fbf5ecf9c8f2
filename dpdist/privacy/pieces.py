"""From events to the dominating pairs that stand for them, and the pairs of the basic mechanisms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpdist.errors import AccountingError
from dpdist.privacy.composition import Composition, Piece
from dpdist.privacy.event import Event
from dpdist.privacy.pair import NOTHING, DominatingPair, Side
from dpdist.privacy.sampled_gaussian import SampledUnit, largest_loss, sampled_gaussian_pair


def discrete_laplace(scale: float, sensitivity: int, count: int) -> Piece:
    """Discrete Laplace noise around the sensitivity (A) against around 0 (B).

    The loss at z is ``(|z| - |z - sensitivity|)/scale``: constant outside 0 .. sensitivity, in steps of ``2/scale``
    inside. Runs of z (beyond 2048 steps; else single ones) are replaced by their two ends with both masses kept, a
    mean-preserving spread: as ``ln A/B`` of a run is the middle of its ends, A's share of the far end is
    ``1/(1 + e^{-width/2})``, and so is B's of the near one.
    """
    rate, top = 1 / scale, sensitivity / scale
    stop = np.unique(np.linspace(0, sensitivity - 1, min(sensitivity, 2048)).round())[1:]
    start = np.append(1.0, stop[:-1] + 1)[: len(stop)]
    near, far = (2 * start - sensitivity) * rate, (2 * stop - sensitivity) * rate
    with np.errstate(under="ignore"):
        run = math.tanh(rate / 2) * np.expm1(-rate * (stop - start + 1)) / math.expm1(-rate)
        upper, lower = run * np.exp(-rate * (sensitivity - stop)), run * np.exp(-rate * start)
        share = 1 / (1 + np.exp((near - far) / 2))
    common = 1 / (1 + math.exp(-rate))
    rare = common * math.exp(-top)
    pair = DominatingPair(
        np.concatenate([[-top], near, far, [top]]),
        np.concatenate([[rare], upper * (1 - share), upper * share, [common]]),
        np.concatenate([[common], lower * share, lower * (1 - share), [rare]]),
    ).ascending()
    return Piece.of(pair, count, symmetric=True)


def approximate(epsilon: float, delta: float) -> Piece:
    """Randomised response that fails with probability delta dominates every (epsilon, delta)-DP mechanism."""
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    unlikely = likely * math.exp(-epsilon)
    pair = DominatingPair(
        np.array([-epsilon, epsilon]), np.array([unlikely, likely]), np.array([likely, unlikely]), delta, delta
    )
    return Piece.of(pair, symmetric=True)


def require_protection(multiplier: float) -> None:
    """Refuse a Gaussian mechanism whose noise is less than a hundredth of the sensitivity."""
    if multiplier < 0.01:
        raise AccountingError(
            f"a Gaussian mechanism with noise multiplier {multiplier:g} protects nothing: use at least 0.01"
        )


@lru_cache(maxsize=128)
def gaussian(multiplier: float, rate: float = 1.0, count: int = 1) -> Piece:
    """The Gaussian mechanism on a Poisson sample."""
    require_protection(multiplier)
    mu = 1 / multiplier
    variance = min(mu**2 + mu**4 / 4, rate**2 * math.expm1(min(mu**2, 700.0)) + 1e-24)

    @lru_cache(maxsize=4)
    def build(interval: float) -> DominatingPair:
        return sampled_gaussian_pair(multiplier, rate, interval)

    return Piece(build, count, variance, largest_loss(multiplier, rate), exact=False, symmetric=rate == 1.0)


@lru_cache(maxsize=128)
def sampled_units(multiplier: float, rate: float, records: int, count: int) -> Piece:
    """The Gaussian mechanism on a Poisson sample of the records of a unit."""
    require_protection(multiplier)
    sampled = SampledUnit(multiplier, rate, records)
    return Piece(lru_cache(maxsize=4)(sampled.pair), count, sampled.variance, sampled.largest_loss, exact=False)


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
