"""A series enumerated: what a person in one, two or all of its periods loses, of what is truly measured of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from dpdist.families.base.accuracy import ReleaseAccuracy
from dpdist.families.base.registry import make_plan, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse
from dpdist.families.synthesis import stages
from dpdist.model.earlier import EarlierReleases
from dpdist.model.evidence import Earlier, Related
from dpdist.model.learn import Learned
from dpdist.privacy.gdp import largest_mu_squared
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import Candidates
from dpdist.spec.reader import load

NORMAL = NormalDist()
EPSILON, DELTA = 1, 1e-6
PERIODS = ("2026-01", "2026-02", "2026-q1")
KINDS = ((0, 0, 0), (0, 1, 1))
Kinds = tuple[int, ...]


@cache
def plan_of(period: str) -> Any:
    tree = {
        "kind": "synthesis",
        "name": "s",
        "dataset": "d",
        "schema": {"attributes": [{"name": name, "kind": "categorical", "values": [0, 1]} for name in "abc"]},
        "data": {"path": "{date:%Y-%m}.csv", "minimum_records": 100},
        "output": {"path": "out"},
        "privacy": {"epsilon": EPSILON, "delta": DELTA},
        "synthesis": {"records": 4},
        "series": {
            "every": "month",
            "first": "2026-01",
            "roll_up": ["quarter"],
            "shares": {"month": 0.6, "quarter": 0.4},
            "skip": ["2026-03"],
        },
    }
    return make_plan(load(tree, {"series.period": period}))


@dataclass
class Transcript:
    """What a release adds noise to and picks by, and what came of it. One that follows another has its outcomes."""

    outcomes: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, tuple[np.ndarray, float]] = field(default_factory=dict)
    picks: dict[str, list[float]] = field(default_factory=dict)

    def loss(self, other: Transcript) -> float:
        """The square of mu between two, given the outcomes."""
        assert self.tables.keys() == other.tables.keys()
        found = 0.0
        for name, (exact, sigma) in self.tables.items():
            assert sigma == other.tables[name][1]
            found += float(((exact - other.tables[name][0]) ** 2).sum()) / sigma**2
        for name, ours in self.picks.items():
            tests = _tests(ours, other.picks[name])  # none of a pick that can only stop
            found += max(((NORMAL.inv_cdf(sum(p)) - NORMAL.inv_cdf(sum(q))) ** 2 for p, q in tests), default=0.0)
        return found


def _tests(ours: list[float], theirs: list[float]) -> Iterator[tuple[list[float], list[float]]]:
    """The sets of outcomes that a best test between two laws accepts."""
    order = sorted(range(len(ours)), key=lambda k: ours[k] / theirs[k])
    for end in range(1, len(order)):
        yield [ours[k] for k in order[:end]], [theirs[k] for k in order[:end]]


class Drawn(np.ndarray):
    """Noise that knows what it is added to."""

    about: tuple[Transcript, str, float]

    def __array_finalize__(self, other: Any) -> None:
        self.about = getattr(other, "about", None)  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        plain = [np.asarray(one) for one in inputs]
        made = getattr(ufunc, method)(*plain, **settings)
        assert ufunc is np.add
        transcript, name, sigma = self.about
        (exact,) = (one for one in inputs if not isinstance(one, Drawn))
        transcript.tables[name] = np.array(exact), float(sigma)
        return transcript.outcomes.setdefault(name, made)


@contextmanager
def watched(transcript: Transcript) -> Iterator[None]:
    draw = Noise.gaussian_integers

    def gaussian(noise: Noise, name: str, count: int, *, sigma: float, start: int = 0) -> Any:
        found = draw(noise, name, count, sigma=sigma, start=start).view(Drawn)
        found.about = transcript, name, sigma
        return found

    def pick(noise: Noise, name: str, candidates: Candidates, *, start: int = 0, allowed: Callable[[int], bool]) -> int:
        scores, scale = np.array(candidates._scores, float), float(candidates._scale)
        likely = np.exp((scores - scores.max()) / scale) * [allowed(k) for k in range(len(scores))]
        transcript.picks[name] = [p for p in (likely / likely.sum()).tolist() if p > 0]
        return int(transcript.outcomes.setdefault(name, int(np.flatnonzero(likely)[0])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Noise, "gaussian_integers", gaussian)
        patch.setattr(Noise, "pick", pick)
        yield


def run(period: str, kinds: Kinds, outcomes: dict[str, Any], *related: Related) -> tuple[Transcript, Earlier]:
    """A release of records of these kinds, with earlier ones as evidence."""
    plan, transcript = plan_of(period), Transcript(outcomes)
    codes = [np.array([KINDS[k][i] for k in kinds], np.uint8) for i in range(3)]
    named = [stage for stage in stages_of(plan) if stage.name in ("model", "records", "accuracy")]
    with watched(transcript), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "read_evidence", lambda spec: EarlierReleases(related, {}) if related else None)
        made = rehearse(plan, named, codes, key=key_from(Noise(bytes(32))), until=ReleaseAccuracy)
    learned = made.result(Learned)
    return transcript, Earlier(learned.measurements, learned.report["records"])


def losses(period: str, kinds: Kinds, records: int, *related: Related) -> tuple[dict[Kinds, float], Earlier]:
    """mu^2 of up to so many records more, of all kinds, and what the release is as evidence."""
    outcomes: dict[str, Any] = {}
    base, earlier = run(period, kinds, outcomes, *related)
    found = {(): 0.0}
    for number in range(1, records + 1):
        for more in combinations_with_replacement(range(len(KINDS)), number):
            found[more] = base.loss(run(period, (*kinds, *more), outcomes, *related)[0])
    return found, earlier


def test_a_person_of_one_or_all_periods_loses_what_is_charged() -> None:
    """All tables of up to one record a month; all persons with one record in one month, or one in each, both of which
    the quarter has. What one release published decides what the next one measures.
    """
    charged = {period: plan_of(period).event.events[0].noise_multiplier ** -2 for period in PERIODS}
    whole = float(largest_mu_squared(epsilon=Fraction(EPSILON), delta=Fraction(repr(DELTA))))
    first, second, quarter = PERIODS
    one, both = 0.0, 0.0
    tables: tuple[Kinds, ...] = ((), (0,))
    for ours in tables:
        in_first, january = losses(first, ours, 1)
        for theirs in tables:
            in_second, february = losses(second, theirs, 1, Related("previous", (january,)))
            in_quarter, _ = losses(quarter, ours + theirs, 2, Related("sum", (january, february)))
            for x, y in product(in_first, in_second):
                loss = in_first[x] + in_second[y] + in_quarter[tuple(sorted(x + y))]
                limit = charged[first] * len(x) + charged[second] * len(y) + charged[quarter] * len(x + y) ** 2
                assert loss <= limit
                if x and y:
                    both = max(both, loss / limit)
                else:
                    one = max(one, loss / whole)
    assert 0.96 < one <= 1
    assert both > 0.96
