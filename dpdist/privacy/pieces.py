"""From events to the dominating pairs that stand for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpdist.errors import AccountingError
from dpdist.privacy.composition import Composition, Piece
from dpdist.privacy.deniability import record_pair
from dpdist.privacy.events import (
    ApproximateDP,
    Composed,
    DiscreteLaplace,
    Event,
    Gaussian,
    LaplaceLeakage,
    NestedLeakage,
    Parallel,
    RandomSplit,
    Replacement,
    SeedRecords,
    SubsampledGaussian,
    SubsampledUnits,
)
from dpdist.privacy.pair import NOTHING, DominatingPair, Side, parallel_pair, split_pair
from dpdist.privacy.sampled_gaussian import SampledUnit, largest_loss, sampled_gaussian_pair


def flat(events: Iterable[Event]) -> Iterator[Event]:
    """The mechanisms that events are composed of, in their order."""
    stack = list(events)[::-1]
    while stack:
        event = stack.pop()
        match event:
            case Composed():
                stack.extend(event.events[::-1])
            case Replacement():
                stack.append(event.event)
            case LaplaceLeakage() | NestedLeakage():
                stack.append(event.equal)
            case _:
                yield event


def gaussian_parts(event: Event) -> tuple[Fraction, Fraction, tuple[Event, ...]]:
    """Of a composition: the Gaussians as their precision, what only fails as its probability, and all else."""
    precision, failure, rest = Fraction(0), Fraction(0), []
    for part in flat([event]):
        match part:
            case Gaussian():
                precision += part.count / Fraction(part.noise_multiplier) ** 2
            case ApproximateDP(epsilon=0.0):
                failure += Fraction(repr(part.delta))
            case _:
                rest.append(part)
    return precision, failure, tuple(rest)


def pieces(events: Iterable[Event]) -> list[Piece]:
    """The pieces of a composition; all its Gaussians are one, exactly (their precisions add)."""
    found: list[Piece] = []
    precision = 0.0
    for event in flat(events):
        if isinstance(event, Gaussian):
            precision += event.count / event.noise_multiplier**2
        else:
            found.append(piece_of(event))
    if precision:
        found.append(_gaussian(1 / math.sqrt(precision)))
    return found


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
    """The largest finite loss (infinity where there is none) and a bound of the mass of infinite loss, exactly."""
    match event:
        case Composed():
            ends = [extreme(part) for part in event.events]
            return math.fsum(loss for loss, _ in ends), math.fsum(mass for _, mass in ends)
        case Parallel():
            ends = [extreme(part) for part in event.events]
            return max((loss for loss, _ in ends), default=0.0), max((mass for _, mass in ends), default=0.0)
        case Gaussian() | SubsampledGaussian() | SubsampledUnits():
            return math.inf, 0.0
        case DiscreteLaplace():
            return event.count * event.sensitivity / event.scale, 0.0
        case LaplaceLeakage() | NestedLeakage():
            return extreme(event.equal)
        case Replacement():
            return extreme(event.event)
        case RandomSplit():
            return _extreme_of_split([(q, *((0.0, 0.0) if e is None else extreme(e))) for q, e in event.stages])
    piece = piece_of(event)
    pair = piece.build(0.0)
    mass = max(pair.upper_infinite, pair.lower_infinite)
    infinite = mass if piece.count == 1 else -math.expm1(piece.count * math.log1p(-min(mass, 1 - 2.0**-53)))
    return piece.count * float(np.abs(pair.losses).max(initial=0.0)), infinite


def _extreme_of_split(parts: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Ends of ``ln sum_j q_j e^{l_j}``, from (share, largest loss, infinite mass) of each stage."""
    infinite = max(math.fsum(q * mass for q, _, mass in parts), math.prod(mass for _, _, mass in parts))
    if max(loss for _, loss, _ in parts) > 700:
        return math.inf, infinite
    most = math.log1p(math.fsum(q * math.expm1(loss) for q, loss, _ in parts))
    # Stages whose B has mass where A has none may contribute nothing, but not all of them at once.
    certain = math.fsum(q * math.exp(-loss) for q, loss, mass in parts if not mass)
    least = certain or min(q * math.exp(-loss) for q, loss, _ in parts)
    return max(most, -math.log(least)) * (1 + 2.0**-50), infinite


@lru_cache(maxsize=512)
def piece_of(event: Event) -> Piece:
    """The piece of one mechanism."""
    match event:
        case DiscreteLaplace():
            return Piece.of(_discrete_laplace(event.scale, event.sensitivity), event.count, symmetric=True)
        case ApproximateDP():
            return Piece.of(_approximate(event.epsilon, event.delta), symmetric=True)
        case SeedRecords():
            pair = record_pair(k=event.k, gamma=event.gamma, epsilon0=event.epsilon0, passing_mass=event.passing_mass)
            return Piece.of(pair, event.records)
        case SubsampledGaussian():
            return _gaussian(event.noise_multiplier, event.sampling_rate, event.count)
        case SubsampledUnits():
            return _sampled_units(event.noise_multiplier, event.sampling_rate, event.records, event.count)
        case RandomSplit():
            return Piece.of(split_pair([(q, None if e is None else dominating_pair(e)) for q, e in event.stages]))
        case Parallel():
            return Piece.of(parallel_pair([dominating_pair(e) for e in event.events]))
    raise AccountingError(f"the accountant does not know the event {type(event).__name__}")


def _discrete_laplace(scale: float, sensitivity: int) -> DominatingPair:
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
    return DominatingPair(
        np.concatenate([[-top], near, far, [top]]),
        np.concatenate([[rare], upper * (1 - share), upper * share, [common]]),
        np.concatenate([[common], lower * share, lower * (1 - share), [rare]]),
    ).ascending()


def _approximate(epsilon: float, delta: float) -> DominatingPair:
    """Randomised response that fails with probability delta dominates every (epsilon, delta)-DP mechanism."""
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    unlikely = likely * math.exp(-epsilon)
    return DominatingPair(
        np.array([-epsilon, epsilon]), np.array([unlikely, likely]), np.array([likely, unlikely]), delta, delta
    )


def require_protection(multiplier: float) -> None:
    """Refuse a Gaussian mechanism whose noise is less than a hundredth of the sensitivity."""
    if multiplier < 0.01:
        raise AccountingError(
            f"a Gaussian mechanism with noise multiplier {multiplier:g} protects nothing: use at least 0.01"
        )


@lru_cache(maxsize=128)
def _gaussian(multiplier: float, rate: float = 1.0, count: int = 1) -> Piece:
    """The Gaussian mechanism on a Poisson sample."""
    require_protection(multiplier)
    mu = 1 / multiplier
    variance = min(mu**2 + mu**4 / 4, rate**2 * math.expm1(min(mu**2, 700.0)) + 1e-24)

    @lru_cache(maxsize=4)
    def build(interval: float) -> DominatingPair:
        return sampled_gaussian_pair(multiplier, rate, interval)

    return Piece(build, count, variance, largest_loss(multiplier, rate), exact=False, symmetric=rate == 1.0)


@lru_cache(maxsize=128)
def _sampled_units(multiplier: float, rate: float, records: int, count: int) -> Piece:
    """The Gaussian mechanism on a Poisson sample of the records of a unit."""
    require_protection(multiplier)
    sampled = SampledUnit(multiplier, rate, records)
    return Piece(lru_cache(maxsize=4)(sampled.pair), count, sampled.variance, sampled.largest_loss, exact=False)
