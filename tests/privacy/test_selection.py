"""What a pick costs as a Gaussian mechanism, and whole adaptive rounds on tiny tables, exactly."""

import math
from collections.abc import Iterator
from itertools import combinations, product
from statistics import NormalDist

import numpy as np
import pytest

from dpdist.errors import AccountingError
from dpdist.privacy.selection import pick_cost, pick_scale

NORMAL = NormalDist()


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta of a mu-GDP mechanism."""
    return NORMAL.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * NORMAL.cdf(-epsilon / mu - mu / 2)


class TestCost:
    @pytest.mark.parametrize("scale", [0.12, 0.3, 1.0, 2.7, 10.0, 316.0, 20_000.0])
    def test_no_kink_lies_above_and_the_middle_attains(self, scale: float) -> None:
        eta, cost = 2 / scale, pick_cost(scale=scale)
        gaps = []
        for t in np.linspace(0, eta, 4003)[1:-1].tolist():
            q = (math.exp(-t) - math.exp(-eta)) / -math.expm1(-eta)
            p = math.exp(t) * q
            gaps.append(NORMAL.inv_cdf(p) - NORMAL.inv_cdf(q))
        assert max(gaps) <= cost
        assert max(gaps) == pytest.approx(cost, rel=1e-4)
        assert gaps.index(max(gaps)) == pytest.approx(2000, abs=max(40, 1e-7 * scale * 4003))

    def test_the_quantities_of_the_proof(self) -> None:
        for u in np.linspace(1e-3, 6, 4001).tolist():
            density, below = NORMAL.pdf(u), NORMAL.cdf(u)
            assert density * (2 * below - 1) > u * below * NORMAL.cdf(-u)

    @pytest.mark.parametrize("cost", [1e-5, 1e-3, 0.01, 0.3, 2.0])
    def test_scale_inverts_cost(self, cost: float) -> None:
        scale = pick_scale(cost=cost)
        assert pick_cost(scale=scale) <= cost
        assert pick_cost(scale=scale * (1 - 2.0**-11)) * (1 + 1e-5) > cost

    @pytest.mark.parametrize("scale", [0.0, 0.05, math.nan, 2.0**41])
    def test_refuses_a_scale(self, scale: float) -> None:
        with pytest.raises(AccountingError, match="scale of a pick"):
            pick_cost(scale=scale)

    @pytest.mark.parametrize("cost", [0.0, -1.0, 7.0, math.nan])
    def test_refuses_a_cost(self, cost: float) -> None:
        with pytest.raises(AccountingError, match="pick can cost"):
            pick_scale(cost=cost)


# --- adaptive rounds, enumerated --------------------------------------------------------------------------------------

CARDS = (2, 2, 2)
PAIRS = tuple(combinations(range(3), 2))
MODELS = (0, 1, 3)


def scores_of(table: tuple[tuple[int, ...], ...], model: int) -> list[int]:
    """L1 distances of the pair tables to a public one, constant here, and the stop."""
    found = []
    for a, b in PAIRS:
        counts = np.zeros((2, 2), int)
        for record in table:
            counts[record[a], record[b]] += 1
        found.append(int(np.abs(counts - model).sum()))
    return [*found, 0]


def outcomes(table: tuple[tuple[int, ...], ...], scale: float, picks: int) -> dict[tuple[int, ...], float]:
    """Exact distribution of the sequences of picks; the public model of a pick depends on those before it."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(picks):
        following: dict[tuple[int, ...], float] = {}
        for taken, probability in found.items():
            if taken and taken[-1] == len(PAIRS):
                following[taken] = probability
                continue
            scores = scores_of(table, MODELS[sum(taken) % len(MODELS)])
            allowed = [k for k in range(len(PAIRS)) if k not in taken] + [len(PAIRS)]
            weights = np.exp(np.array([scores[k] for k in allowed]) / scale)
            for k, weight in zip(allowed, (weights / weights.sum()).tolist(), strict=True):
                following[*taken, k] = probability * weight
        found = following
    return found


def tables(records: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    from itertools import combinations_with_replacement

    yield from combinations_with_replacement(tuple(product(*map(range, CARDS))), records)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_adaptive_picks_of_all_small_tables_cost_no_more(scale: float) -> None:
    picks = 2
    mu = math.sqrt(picks) * pick_cost(scale=scale)
    epsilons = [0.0, 0.1, 0.3, 0.6, 1.0, 1.5]
    limits = [gaussian_delta(mu, epsilon) for epsilon in epsilons]
    known: dict[tuple[tuple[int, ...], ...], np.ndarray] = {}

    def of(table: tuple[tuple[int, ...], ...]) -> np.ndarray:
        key = tuple(sorted(table))
        if key not in known:
            found = outcomes(key, scale, picks)
            known[key] = np.array([found[name] for name in sorted(found)])
        return known[key]

    worst = 0.0
    for records in range(4):
        for table in tables(records):
            p = of(table)
            for extra in product(*map(range, CARDS)):
                q = of((*table, extra))
                for epsilon, limit in zip(epsilons, limits, strict=True):
                    for first, second in ((p, q), (q, p)):
                        delta = float(np.maximum(first - math.exp(epsilon) * second, 0).sum())
                        assert delta <= limit + 1e-12
                        if epsilon == 0:
                            worst = max(worst, delta / limit)
    assert worst > 0.4  # the tables move some scores up and some down


def test_the_cost_of_a_pick_is_attained() -> None:
    """One record raises one of two scores and lowers the other, (0, 1) to (1, 0): the kink in the middle."""
    scale = 2.0
    below, above = (1 / (1 + math.exp(sign / scale)) for sign in (1, -1))
    assert NORMAL.inv_cdf(above) - NORMAL.inv_cdf(below) == pytest.approx(pick_cost(scale=scale), rel=1e-6)
