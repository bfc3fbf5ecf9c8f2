"""Learning from neighbouring tables with the same outcomes: what is released is the same, and what differs was charged.

The first run is recorded. In each later one, steps give what was recorded, whatever the table is.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any

import numpy as np
import pytest
from syntheses import learn

from dpdist.accuracy.tables import Tables
from dpdist.data.count import pair_counts
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import Choices, choose, with_high, with_prior, without_triples
from dpdist.model.public_rows import PublicPool
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import Candidates

CARDS, ROWS, KEY = (6, 3, 4, 2, 25), 400, Noise(bytes(range(32)))


def people(rows: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    own = rng.integers(0, 50, rows)
    return [((own // (i + 1) + rng.integers(0, 2, rows)) % card).astype(np.uint8) for i, card in enumerate(CARDS)]


@dataclass
class Replay:
    """Steps of an account, by their names: what they read, and what they gave the first time."""

    mu: float
    recorded: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    moved: list[float] = field(default_factory=list)  # of mu^2, by the record that is more or less
    left: set[str] = field(default_factory=set)

    def kept(self, name: str, read: Any, given: Any) -> tuple[Any, Any]:
        """What a step read and gave the first time."""
        self.left.discard(name)
        return self.recorded.setdefault(name, (read, given))

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Replay the steps of the account; those of a public table have a mu of their own."""
        measure, pick = GaussianAccount.measure, GaussianAccount.pick

        def measured(account: GaussianAccount, name: str, tables: Sequence[Any], **how: Any) -> Any:
            noisy, sigmas = measure(account, name, tables, **how)
            if account.mu != self.mu:
                return noisy, sigmas
            exact, (first, same) = self.kept(name, [table.copy() for table in tables], (noisy, sigmas))
            assert np.array_equal(same, sigmas)
            away = [float(((one - other) ** 2).sum()) for one, other in zip(exact, tables, strict=True)]
            assert max(away) <= how.get("sensitivity", 1) ** 2
            cost = fsum(square / sigma**2 for square, sigma in zip(away, sigmas.tolist(), strict=True))
            assert cost <= account.lines[-1].spent
            self.moved.append(cost)
            account.noisy[-len(first) :] = [(name, i, *p) for i, p in enumerate(zip(first, same.tolist(), strict=True))]
            return first, sigmas

        def picked(account: GaussianAccount, name: str, candidates: Candidates, **how: Any) -> int:
            given = pick(account, name, candidates, **how)
            if account.mu != self.mu:
                return given
            scores, first = self.kept(name, [*candidates._scores], given)
            assert np.abs(np.subtract(scores, candidates._scores)).max() <= 1
            return int(first)

        patch.setattr(GaussianAccount, "measure", measured)
        patch.setattr(GaussianAccount, "pick", picked)


def said(asked: Callable[..., float], answer: float) -> Callable[..., float]:
    return lambda *given: (asked(*given), answer)[1]


@pytest.mark.parametrize("prior", [None, True, False])
@pytest.mark.parametrize(("records", "mu"), [(30, 0.1), (3_000, 0.3), (20_000, 1.0), (600_000, 1.5)])
def test_a_record_changes_nothing_but_what_is_charged(
    records: int, mu: float, prior: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Choices = choose(CARDS, records=records, mu=mu)
    made = made if mu > 1 or not made.rake else without_triples(made)
    made = made if prior is None else with_prior(made, len(CARDS))
    made = with_high(replace(made, balance=0, pool_rows=min(made.pool_rows, 2_000), cells=20_000), CARDS)
    assert (bool(made.rounds), bool(made.rake), bool(made.triple_tables)) == (mu > 0.1, mu >= 1, mu > 1)
    public, table, replay = people(300, 9), people(ROWS, 1), Replay(mu)
    replay.patch(monkeypatch)
    monkeypatch.setattr(PublicPool, "distance", said(PublicPool.distance, 0.5 if prior else 1.1 if mu < 0.2 else 2.0))
    monkeypatch.setattr(PublicPool, "is_nearer", said(PublicPool.is_nearer, bool(prior)))
    known = {} if prior is None else {"prior": pair_counts(public, CARDS), "rows": public}
    more = [[np.append(column, value % card) for column, card in zip(table, CARDS, strict=True)] for value in (0, 999)]
    less = [[np.delete(column, row) for column in table] for row in (0, ROWS // 2)]
    released = set()
    for codes in (table, *more, *less):
        replay.moved, replay.left = [], set(replay.recorded)
        found = learn(Tables.counted(codes, CARDS, small=True), choices=made, noise=KEY, drawing=KEY, **known)
        assert not replay.left  # all steps are the same
        assert bool(found.fitted.public) is (prior is True)
        released.add(found.to_bytes())
        assert math.fsum(replay.moved) <= mu**2
    assert len(released) == 1
    assert math.fsum(replay.moved) > 0.8 * mu**2
