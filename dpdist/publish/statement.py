"""Whether the guarantees of a manifest follow from the events in it, and its sentences from its numbers.

The events say with which noise the release was made. Whether it was, only its publisher knows: the signature, and the
ledger, say who states it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dpdist.errors import AccountingError, VerificationFailed
from dpdist.limits import EVENT_SECONDS, EVENTS, within
from dpdist.privacy import accountant
from dpdist.privacy.accountant import most_right
from dpdist.privacy.deniability import SeedRecords, theorem1
from dpdist.privacy.event import Event, from_json, number_of_events, takes_size_for_public
from dpdist.privacy.formatting import upwards
from dpdist.privacy.guarantee import PML, DifferentialPrivacy, FederatedPrivacy, Guarantee, PlausibleDeniability
from dpdist.privacy.guarantee import from_json as guarantee_from_json
from dpdist.privacy.leakage import composed, leaking_parts, total_ratio
from dpdist.publish.manifest import MANIFEST, Manifest

TOLERANCE: Final = 1e-4
"""Relative difference between a stated and a recomputed number that versions of SciPy may make."""

_ADVICE = "do not use the release, and ask its publisher for the right one"


def check_statement(manifest: Manifest) -> float | None:
    """Recompute the guarantees of a manifest; return the epsilon of its events, None where they have none. Raises
    VerificationFailed: a guarantee is better than its events, a sentence says something else than its numbers, or there
    are no events.
    """
    try:
        guarantees = [_as_stated(item) for item in manifest.guarantees]
        _check_unit(manifest, guarantees)
        stated: Any = manifest.parameters.get("event")
        event = None if stated is None else from_json(stated)
        require_few(event)
        with within(EVENT_SECONDS, f"{MANIFEST}: recomputing the guarantee from its events"):
            epsilons = [one for item in guarantees for one in _checked(item, guarantees, event)]
    except AccountingError as error:
        raise VerificationFailed(
            f"{MANIFEST} states guarantees or events that are not valid: {error}. {_ADVICE.capitalize()}"
        ) from None
    except (ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise VerificationFailed(
            f"{MANIFEST} states guarantees or events that are not valid ({type(error).__name__}): {_ADVICE}"
        ) from None
    return max(epsilons, default=None)


def _as_stated(item: Mapping[str, Any]) -> Guarantee:
    guarantee = guarantee_from_json(item)
    if guarantee.sentence() != item.get("sentence"):
        raise VerificationFailed(
            f"{MANIFEST}: the sentence of the guarantee does not say what its numbers say, which is: "
            f"{guarantee.sentence()} {_ADVICE.capitalize()}"
        )
    return guarantee


def _check_unit(manifest: Manifest, guarantees: list[Guarantee]) -> None:
    """Whether all guarantees are about the unit that the spec names."""
    unit = manifest.spec.get("unit")
    stated = (unit.get("name"), unit.get("at_most")) if isinstance(unit, dict) else None
    for item in guarantees:
        own = (item.unit, item.records) if isinstance(item, DifferentialPrivacy) and item.records else None
        if own != stated:
            raise VerificationFailed(f"{MANIFEST}: its guarantee is about another unit than its spec: {_ADVICE}")


def require_few(event: Event | None) -> None:
    """Refuse more events than a reader recomputes. Raises AccountingError."""
    if event is not None and not number_of_events(event) <= EVENTS:
        raise AccountingError(f"a release has at most {EVENTS:,} privacy events: measure fewer statistics apart")


def _checked(item: Guarantee, guarantees: list[Guarantee], event: Event | None) -> Iterator[float]:
    """The epsilons that were recomputed for a guarantee."""
    if isinstance(item, PlausibleDeniability):
        if item.epsilon is not None and item.delta is not None and item.epsilon0 is not None:
            found = theorem1(k=item.k, gamma=item.gamma, epsilon0=item.epsilon0, delta=item.delta * (1 + TOLERANCE))
            _compare("epsilon of one record", item.epsilon, found.epsilon or 0.0)
        return
    if not isinstance(item, DifferentialPrivacy | FederatedPrivacy | PML):
        return
    if event is None:
        raise VerificationFailed(f"{MANIFEST} states a guarantee and not the events that it follows from: {_ADVICE}")
    if isinstance(item, PML):
        histograms = leaking_parts(event)
        if not histograms or any(one.alpha != item.alpha for one in histograms):
            raise VerificationFailed(f"{MANIFEST}: the leakage is not that of its events: {_ADVICE}")
        _compare("leakage", item.epsilon, composed(histograms))
        ratios = [ratio for ratio in map(total_ratio, histograms) if ratio is not None]
        if ratios:
            _compare("epsilon beside the leakage", item.dp_epsilon or 0.0, math.fsum(ratios))
        return
    adjacency = "replacement" if takes_size_for_public(event) else "add/remove"
    if item.adjacency != adjacency:
        raise VerificationFailed(
            f"{MANIFEST}: the guarantee is stated for {item.adjacency}, its events are of {adjacency}: {_ADVICE}"
        )
    whole = isinstance(item, DifferentialPrivacy) and item.covers.startswith("the whole release")
    if whole and any(isinstance(other, PlausibleDeniability) for other in guarantees) and not _has_seeds(event):
        raise VerificationFailed(f"{MANIFEST}: the guarantee of the whole release leaves out its seeds: {_ADVICE}")
    found_epsilon = accountant.epsilon(event, delta=item.delta)
    _compare("epsilon", item.epsilon, found_epsilon, f" at delta {upwards(item.delta)}")
    if isinstance(item, DifferentialPrivacy) and item.right is not None:
        _compare("a guess of 1 % right with", item.right, most_right(event))
    yield found_epsilon


def _has_seeds(event: Any) -> bool:
    if isinstance(event, tuple):
        return any(map(_has_seeds, event))
    if isinstance(event, Event) and not isinstance(event, SeedRecords):
        return any(map(_has_seeds, vars(event).values()))
    return isinstance(event, SeedRecords)


def _compare(name: str, stated: float, found: float, where: str = "") -> None:
    if not found <= stated * (1 + TOLERANCE):
        raise VerificationFailed(
            f"{MANIFEST}: its events cost {name} {upwards(found)}{where}, and it states {upwards(stated)}: {_ADVICE}"
        )
