"""The bound for released records against exact enumeration, and the reference values."""

import json
import math
import time
from dataclasses import dataclass

import numpy as np
import pytest

from dpdist.errors import AccountingError
from dpdist.privacy import accountant, deniability

EPSILONS = np.concatenate([np.linspace(0, 0.3, 31), np.linspace(0.35, 4, 74)])


@dataclass
class Universes:
    """Many small universes at once: seed types with their output laws; the last type is the new record's.

    p : [universe, type, output], n : [universe, type] seeds of each type, without the new record.
    """

    p: np.ndarray
    n: np.ndarray
    k: np.ndarray
    gamma: np.ndarray
    epsilon0: np.ndarray

    def passing(self, n: np.ndarray) -> np.ndarray:
        """Q(y): expected seeds that give y and pass, [universe, output]."""
        with np.errstate(divide="ignore"):
            bucket = np.floor(-np.log(self.p) / np.log(self.gamma)[:, None, None])
        bucket = np.where(self.p > 0, bucket, -1 - np.arange(self.p.shape[1])[:, None])  # impossible: in no bucket
        count = np.einsum("utvy,uv->uty", bucket[:, :, None] == bucket[:, None], n)
        above, rate = count - self.k[:, None, None], self.epsilon0[:, None, None]
        tail = np.exp(-rate * np.where(above < 0, -above, above + 1)) / (1 + np.exp(-rate))
        return np.einsum("uty,uty,ut->uy", self.p, np.where(above < 0, tail, 1 - tail), n)

    @property
    def with_new(self) -> np.ndarray:
        n = self.n.copy()
        n[:, -1] += 1
        return n

    def divergences(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """H_{e^eps} of one released record, added and removed [universe, epsilon], and Z [universe]."""
        before, after = self.passing(self.n), self.passing(self.with_new)
        mass = before.sum(axis=1)
        a, b = after / after.sum(axis=1, keepdims=True), before / mass[:, None]
        return hockey_sticks(a, b), hockey_sticks(b, a), mass

    def bounds(self, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `record_pair` says, added and removed [universe, epsilon]."""
        settings = zip(self.k, self.gamma, self.epsilon0, mass, strict=True)
        pairs = [deniability.record_pair(k=int(k), gamma=g, epsilon0=e, passing_mass=z) for k, g, e, z in settings]
        return (
            np.array([pair.hockey_stick(EPSILONS) for pair in pairs]),
            np.array([pair.hockey_stick(EPSILONS, reverse=True) for pair in pairs]),
        )


def hockey_sticks(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.maximum(p[:, None] - np.exp(EPSILONS)[:, None] * q[:, None], 0).sum(axis=-1)


def parameters(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rng.integers(2, 15, size), rng.uniform(1.2, 4, size), rng.uniform(0.1, 1, size)


def random_universes(size: int, seed: int) -> Universes:
    """1-4 seed types, 2-5 outputs, 15-80 seeds; the new record is sometimes of a known type."""
    rng = np.random.default_rng(seed)
    types, outputs = rng.integers(1, 5, size), rng.integers(2, 6, size)
    p = rng.dirichlet(np.full(5, 0.7), (size, 5)) * (np.arange(5) < outputs[:, None])[:, None]
    p /= p.sum(axis=-1, keepdims=True)
    known = rng.random(size) < 0.3
    p[known, 4] = p[known, 0]
    n = rng.integers(1, 60, (size, 5)) * (np.arange(5) < types[:, None])
    total = rng.integers(15, 81, size)
    n = np.floor(n / n.sum(axis=1, keepdims=True) * total[:, None])
    n[:, 0] += total - n.sum(axis=1)
    n[:, 4] = 0
    return Universes(p, n, *parameters(rng, size))


def adversarial_universes(size: int, seed: int) -> Universes:
    """The proof's worst cases: the new record's outputs are given by C others, all at the edge of its bucket."""
    rng = np.random.default_rng(seed)
    k, gamma, epsilon0 = parameters(rng, size)
    outputs = rng.integers(1, 4, size)  # of the new record
    above = (rng.random(size) < 0.5) & (outputs > 1)  # others gamma times likelier than the new record, or less likely
    gamma = np.where(above, outputs * (1 + 1e-9), gamma)
    count = np.minimum(rng.integers(0, 20, size), 60 // outputs)
    types = np.arange(5)
    active = (types < outputs[:, None]) & (types < 3)
    p = np.zeros((size, 5, 5))
    p[:, 4] = active / outputs[:, None]
    level = np.where(above, 1.0, (1 + 1e-12) / (gamma * outputs))
    p[:, types[:3], types[:3]] = np.where(active[:, :3], level[:, None], 0.0)
    p[:, :3, 3] = 1 - p[:, :3, :3].sum(axis=-1)
    p[:, 3, 4] = 1  # a crowd elsewhere
    n = np.where(active, count[:, None], 0).astype(float)
    n[:, 3] = rng.integers(np.maximum(15 - n.sum(axis=1), 1), 81 - n.sum(axis=1))
    return Universes(p, n, k, gamma, epsilon0)


@pytest.mark.parametrize("family", ["random", "adversarial"])
def test_conditional_release_never_exceeds_the_bound(family: str) -> None:
    universes = random_universes(2500, 1) if family == "random" else adversarial_universes(2500, 2)
    assert universes.n.sum(axis=1).min() >= 15
    assert universes.n.sum(axis=1).max() <= 80
    np.testing.assert_allclose(universes.p.sum(axis=-1), 1)
    added, removed, mass = universes.divergences()
    bound_added, bound_removed = universes.bounds(mass)
    assert (added <= bound_added + 1e-13).all()
    assert (removed <= bound_removed + 1e-13).all()
    if family == "adversarial":
        for exact, bound in ((added, bound_added), (removed, bound_removed)):
            visible = bound > 1e-6
            assert (exact[visible] / bound[visible]).max() >= 0.99
            beyond = visible & (EPSILONS > 0.2)
            assert exact is removed or (exact[beyond] / bound[beyond]).max() >= 0.99


def test_several_released_records_never_exceed_the_composed_bound() -> None:
    universes = random_universes(25, 6)
    before, after = universes.passing(universes.n), universes.passing(universes.with_new)
    settings = zip(universes.k, universes.gamma, universes.epsilon0, before, after, strict=True)
    for k, gamma, epsilon0, q, q_new in settings:
        event = deniability.SeedRecords(int(k), gamma, epsilon0, q.sum(), 4)
        one, other = q_new / q_new.sum(), q / q.sum()
        a, b = one, other
        for _ in range(3):
            a, b = np.multiply.outer(a, one).ravel(), np.multiply.outer(b, other).ravel()
        for epsilon in (0.0, 0.05, 0.3, 1.0):
            exact = max(np.maximum(x - math.exp(epsilon) * y, 0).sum() for x, y in ((a, b), (b, a)))
            assert exact <= accountant.delta(event, epsilon=epsilon) * (1 + 1e-9)


def test_one_seed_raises_the_passing_mass_by_at_most_h() -> None:
    ratios = []
    for universes in (random_universes(500, 3), adversarial_universes(500, 4)):
        before, after = (universes.passing(n).sum(axis=1) for n in (universes.n, universes.with_new))
        settings = zip(universes.k, universes.gamma, universes.epsilon0, strict=True)
        h = np.array([deniability.growth(k=int(k), gamma=g, epsilon0=e) for k, g, e in settings])
        assert (after - before >= -1e-12).all()
        assert (after - before <= h + 1e-12).all()
        n = universes.n.sum(axis=1)
        moved = after / (n + 1) - before / n  # of the pass rate
        assert (moved <= h / (n + 1) + 1e-15).all()
        assert (moved >= -1 / (n + 1) - 1e-15).all()
        ratios.append(((after - before) / h).max())
    assert max(ratios) >= 0.99


def test_visible_failures_cost_one_in_n_whatever_k_is() -> None:
    """With "no output" shown, a record that nobody resembles is seen by its failure."""
    for k in (2, 5, 14):
        n = np.array([[79.0, 0.0]])
        universe = Universes(
            p=np.array([[[1.0, 0.0], [0.0, 1.0]]]),
            n=n,
            k=np.array([k]),
            gamma=np.array([2.0]),
            epsilon0=np.array([1.0]),
        )
        before = universe.passing(n)[0] / 79
        after = universe.passing(universe.with_new)[0] / 80
        fails = np.array([1 - before.sum(), 1 - after.sum()])
        shown_before, shown_after = np.append(before, fails[0]), np.append(after, fails[1])
        for epsilon in (0.5, 1.0, 4.0):
            shown = np.maximum(shown_after - math.exp(epsilon) * shown_before, 0).sum()
            assert shown == pytest.approx(1 / 80, rel=0.15)  # about 1/n, at every epsilon
            assert shown > 2 * universe.divergences()[0][0][np.searchsorted(EPSILONS, epsilon)]


@pytest.mark.parametrize(
    "setting", [(2, 1.0, 0.7), (14, 3.0, 0.1), (50, 4.0, 1.0), (2000, 2.0, 0.02), (300, 1.0, 1e-3)]
)
@pytest.mark.parametrize("mass", [20.0, 4e5])
def test_pair_is_the_convex_minorant_of_the_theorem(setting: tuple[int, float, float], mass: float) -> None:
    k, gamma, epsilon0 = setting
    pair = deniability.record_pair(k=k, gamma=gamma, epsilon0=epsilon0, passing_mass=mass)
    assert pair.upper.sum() + pair.upper_infinite == pytest.approx(1, abs=1e-12)
    assert pair.lower.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(pair.upper, pair.lower * np.exp(pair.losses), rtol=1e-9)
    count = np.arange(3 * k + 20 / epsilon0)[:, None]
    kinks = pair.losses[pair.losses > 0]
    some = kinks[np.unique(np.linspace(0, len(kinks) - 1, 100).astype(int))]
    alphas = np.unique(np.exp(np.concatenate([np.linspace(0, 3 * epsilon0 + 1, 100), some])))
    now, after = (deniability.pass_probability(count + i, k=k, epsilon0=epsilon0) for i in (0, 1))
    theorem = np.max([(after * (s + 1) - alphas * now * s).max(axis=0) for s in (count / gamma, count * gamma)], axis=0)
    theorem = np.minimum(theorem / mass, 1)
    h = deniability.growth(k=k, gamma=gamma, epsilon0=epsilon0)
    assert theorem[0] * mass == pytest.approx(min(h, mass), rel=1e-6)
    # Greatest convex minorant on the grid: the best chord of two points, the removed direction's point among them.
    x = np.append(mass / (mass + h), alphas)
    y = np.append(h / (mass + h), theorem)
    found = pair.hockey_stick(np.log(x))
    assert (found <= y * (1 + 1e-7) + 1e-15).all()
    hull = y.copy()
    for i in range(len(x)):
        left, right = slice(0, i + 1), slice(i, len(x))
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = (x[i] - x[left, None]) / (x[None, right] - x[left, None])
            chords = y[left, None] * (1 - weight) + y[None, right] * weight
        hull[i] = min(y[i], np.nanmin(chords))
    np.testing.assert_allclose(found, np.minimum.accumulate(hull), rtol=1e-6, atol=1e-12)


REFERENCE = [
    # Z, k, gamma, epsilon0, R, published, Renyi, PLD
    (367_500, 50, 4, 1, 1_000, 1_167, 8.44, 7.71),
    (367_500, 50, 4, 1, 100_000, 121_100, 59.98, 57.06),
    (367_500, 500, 2, 0.1, 10_000, 200.7, 2.842, 2.662),
    (367_500, 2000, 2, 0.02, 10_000, 21.8, 0.971, 0.913),
    (367_500, 2000, 1, 0.02, 100_000, 99.6, 2.148, 2.035),
    (23_000, 2000, 2, 0.02, 10_000, 21.8, 3.827, 3.635),
    (50_000_000, 50, 4, 1, 1_000_000, 1_236_000, 16.90, 15.65),
    (50_000_000, 500, 2, 0.1, 1_000_000, 14_270, 2.489, 2.325),
    (50_000_000, 2000, 2, 0.02, 1_000_000, 947.8, 0.842, 0.792),
    (50_000_000, 2000, 1, 0.02, 1_000_000, 730.7, 0.624, 0.584),
]


@pytest.mark.parametrize(("mass", "k", "gamma", "epsilon0", "records", "published", "renyi", "pld"), REFERENCE)
def test_reference_table(
    mass: float, k: int, gamma: float, epsilon0: float, records: int, published: float, renyi: float, pld: float
) -> None:
    event = deniability.SeedRecords(k, gamma, epsilon0, mass, records)
    found = accountant.summary(event, delta=1e-9)
    assert found["epsilon"] == pytest.approx(pld, rel=0.005)
    assert found["epsilon_renyi"] == pytest.approx(renyi, rel=0.01)
    composed = deniability.composed_published(k=k, gamma=gamma, epsilon0=epsilon0, records=records, delta=1e-9)
    assert composed == pytest.approx(published, rel=1e-3)


def test_planning_is_quick_and_stable_at_the_extremes() -> None:
    accountant.epsilon(deniability.SeedRecords(50, 4, 1, 1e6, 2), delta=1e-9)  # imports
    previous = math.inf
    start = time.process_time()
    for mass in (1e5, 1e6, 1e7, 1e8, 1e9):
        found = accountant.epsilon(deniability.SeedRecords(2000, 2, 0.02, mass, 10**7), delta=1e-9)
        assert 0 < found < previous
        previous = found
    tiny = accountant.epsilon(deniability.SeedRecords(20_000, 2, 0.001, 1e9, 10), delta=1e-6)
    assert 0 <= tiny < 1e-3
    assert time.process_time() - start < 12


def test_more_records_less_mass_and_smaller_delta_cost_more() -> None:
    def epsilon(mass: float, records: int, delta: float) -> float:
        return accountant.epsilon(deniability.SeedRecords(500, 2, 0.1, mass, records), delta=delta)

    base = epsilon(1e6, 10_000, 1e-9)
    assert base < epsilon(1e6, 20_000, 1e-9)
    assert base < epsilon(0.9e6, 10_000, 1e-9)
    assert base < epsilon(1e6, 10_000, 1e-10)
    assert epsilon(1e6, 1, 1e-4) == 0  # no event moves by as much as delta


def test_cost_of_a_release_without_a_spec() -> None:
    found = accountant.plausible_deniability(
        k=2000, gamma=2, epsilon0=0.02, passing_mass=367_500, records=10_000, delta=1e-9
    )
    assert found["epsilon"] == pytest.approx(0.913, rel=0.005)
    assert found["epsilon_published_composition"] == pytest.approx(21.8, rel=1e-2)
    assert 0 < found["epsilon_one_record"] < found["epsilon"]
    assert 0 < found["epsilon_per_record"] < found["epsilon"]
    assert found["delta_per_record"] <= 1e-9
    json.dumps(found, allow_nan=False)
    small = accountant.plausible_deniability(k=20, gamma=2, epsilon0=1, passing_mass=1e5, records=10, delta=1e-4)
    assert small["epsilon_published_composition"] > small["epsilon"]
    none = accountant.plausible_deniability(k=2, gamma=2, epsilon0=1, passing_mass=1e9, records=1, delta=1e-6)
    assert none["epsilon_per_record"] is None
    assert none["epsilon_published_composition"] is None


def test_theorem_one_takes_the_best_t() -> None:
    found = deniability.theorem1(k=50, gamma=4, epsilon0=1.0, delta=1e-9)
    t = np.arange(1, 50)
    allowed = t[np.exp(-1.0 * (50 - t)) <= 1e-9]
    assert found.epsilon == pytest.approx(1 + math.log(1 + 4 / allowed.max()), rel=1e-5)
    assert found.delta == pytest.approx(math.exp(-(50 - allowed.max())), rel=1e-5)
    with pytest.raises(AccountingError, match="raise k to at least 22"):
        deniability.theorem1(k=10, gamma=4, epsilon0=1.0, delta=1e-9)


def test_pass_probability_is_the_law_of_the_noisy_threshold() -> None:
    z = np.arange(-400, 401)
    masses = math.tanh(0.1) * np.exp(-0.2 * np.abs(z))
    for count in (0, 1, 5, 6, 7, 30):
        expected = masses[count >= 6 + z].sum()
        assert deniability.pass_probability(count, k=6, epsilon0=0.2) == pytest.approx(expected, rel=1e-12)


def test_infinite_mass_above_delta_is_reported() -> None:
    with pytest.raises(AccountingError, match="raise k"):
        accountant.epsilon(deniability.SeedRecords(10, 1, 0.5, 1000, 100), delta=1e-9)


@pytest.mark.parametrize("change", [{"k": 0}, {"gamma": 0.9}, {"epsilon0": 0}, {"epsilon0": 1e-7}, {"passing_mass": 0}])
def test_parameters_out_of_range(change: dict) -> None:
    with pytest.raises(AccountingError):
        deniability.record_pair(**{"k": 50, "gamma": 2.0, "epsilon0": 0.1, "passing_mass": 1e5, **change})


def test_the_certain_mass_of_extreme_settings() -> None:
    assert deniability.certain_mass(seeds=10**6, combinations=11**300, k=50, epsilon0=1.0) == 0
    assert deniability.certain_mass(seeds=10**6, combinations=10**7, k=50, epsilon0=1.0) == 0
    assert 10**6 - 10 * 60 < deniability.certain_mass(seeds=10**6, combinations=10, k=50, epsilon0=1.0) < 10**6
    for epsilon0 in (1e-9, 1e-320, 1000.0):
        with pytest.raises(AccountingError):
            deniability.certain_mass(seeds=10**6, combinations=10, k=50, epsilon0=epsilon0)
