import json
import math
from functools import cache
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, hypergeom

from dpdist.errors import AccountingError
from dpdist.privacy import accountant
from dpdist.privacy.events import Composed, Gaussian, SubsampledGaussian, SubsampledUnits
from dpdist.privacy.mixtures import (
    ClassMixtures,
    account_mixing,
    event_of_units,
    noise_of_units,
    printed_epsilon,
    published_epsilon,
    published_sigma_over_clip,
)
from dpdist.privacy.pieces import SampledUnit

ADULT = {"class_size": 7841, "records": 16280}
MNIST = {"class_size": 5421, "records": 6000}
TABLE = {"paper": True, "table_size": 100, "table_records": 10}


@pytest.mark.parametrize(
    ("table", "order", "epsilon", "expected"),
    [
        (ADULT, 4, 10, 0.199),
        (ADULT, 64, 1, 0.124),
        (ADULT, 64, 10, 0.0255),
        (MNIST, 64, 10, 0.0242),
        pytest.param(ADULT, 4, 1, 0.330, marks=pytest.mark.slow),
    ],
)
def test_reference_noise_is_reproduced(table, order, epsilon, expected):
    out = account_mixing(order=order, epsilon=epsilon, delta=1e-5, **table)
    assert out["sigma_over_clip"] == pytest.approx(expected, rel=0.02)
    assert epsilon * (1 - 3e-3) <= out["epsilon"] <= epsilon
    json.dumps(out)


def test_noise_calibrated_by_renyi_moments_costs_its_target_by_renyi_and_less_by_pld():
    out = account_mixing(order=64, sigma_over_clip=0.0264, delta=1e-5, **ADULT)
    assert out["epsilon_renyi"] == pytest.approx(10, rel=0.02)
    assert out["epsilon"] == out["epsilon_pld"] < 9.3
    assert out["sampling_rate"] == pytest.approx(64 / 7841)
    assert out["noise_multiplier"] == pytest.approx(0.0264 * 32)


def test_the_published_noise_costs_more_than_twice_what_it_says():
    whole = {"table_size": 32561, "table_records": 32561}
    out = account_mixing(order=64, epsilon=10, delta=1e-5, paper=True, **whole, **ADULT)
    assert out["epsilon"] == pytest.approx(10, rel=2e-3)
    assert "not a bound" in out["accounting"]
    assert out["epsilon_true"] == pytest.approx(20.8, rel=0.02)
    correct = account_mixing(order=64, sigma_over_clip=out["sigma_over_clip"], delta=1e-5, **ADULT)
    assert correct["epsilon"] == out["epsilon_true"]
    assert correct["epsilon_renyi"] == pytest.approx(22.6, rel=0.02)


def test_published_formula_from_noise_and_back():
    settings = {"table_size": 32561, "order": 64, "table_records": 32561, "delta": 1e-5}
    sigma = published_sigma_over_clip(epsilon=5.0, **settings)
    assert published_epsilon(sigma_over_clip=sigma, **settings) == pytest.approx(5.0, rel=1e-3)
    out = account_mixing(sigma_over_clip=sigma, paper=True, **settings)
    assert out["epsilon"] == pytest.approx(5.0, rel=1e-3)
    assert "epsilon_true" not in out


def test_the_printed_formula_is_the_paper_s_and_never_below_its_best_reading():
    def printed(q, z, records, a):  # Theorem 9 of Wang, Balle and Kasiviswanathan
        second = q**2 * math.comb(a, 2) * min(4 * math.expm1(1 / z**2), 2 * math.exp(1 / z**2))
        rest = (2 * q**j * math.comb(a, j) * math.exp((j - 1) * j / (2 * z**2)) for j in range(3, a + 1))
        return records * math.log1p(second + sum(rest)) / (a - 1) + math.log(1e5) / (a - 1)

    for order, sigma, most in ((1, 0.7354, 8), (64, 0.0204, 8), (64, 0.5, 60)):
        table = {"table_size": 32561, "order": order, "table_records": 32560, "sigma_over_clip": sigma, "delta": 1e-5}
        by_hand = min(printed(order / 32561, sigma * order / 2, 32560, a) for a in range(3, most))
        assert printed_epsilon(**table) == pytest.approx(by_hand, rel=1e-6)
        assert published_epsilon(**table) < 0.95 * printed_epsilon(**table)
    assert account_mixing(paper=True, **table)["epsilon_printed"] == printed_epsilon(**table)


def test_calibration_is_tight_and_safe():
    mixtures = ClassMixtures(minimum=500, order=20, records=100)
    for epsilon in (0.3, 3.0, 30.0):
        sigma = mixtures.sigma_over_clip(epsilon=epsilon, delta=1e-6)
        assert epsilon * (1 - 3e-3) <= mixtures.epsilon(sigma, delta=1e-6) <= epsilon


# --- the dominating pair, by enumeration ------------------------------------------------------------------------------


def mechanism(rows: np.ndarray, order: int, sigma: float, window: np.ndarray) -> np.ndarray:
    """Exact law of the rounded mechanism on the sums of all sets of rows (steps), sigma being that of the sum."""
    sums = np.array([sum(chosen) for chosen in combinations(rows.tolist(), order)])
    upper = ndtr((window + 0.5 - sums[:, None]) / sigma)
    lower = ndtr((window - 0.5 - sums[:, None]) / sigma)
    return (upper - lower).mean(axis=0)


def hockey_stick(p: np.ndarray, q: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    return np.maximum(p - alphas[:, None] * q, 0).sum(axis=1)


def pair(rate: float, mu: float, alphas: np.ndarray, *, reverse: bool) -> np.ndarray:
    """H_alpha of (1-q) N(0,1) + q N(mu,1) against N(0,1), or the other way round, in closed form."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 1 / alphas if reverse else alphas  # the likelihood ratio at the edge of the best set
        edge = (np.log((ratio - 1 + rate) / rate) + mu**2 / 2) / mu
    edge = np.where(ratio <= 1 - rate, -np.inf, edge)
    above, above_mixed = 1 - ndtr(edge), (1 - rate) * (1 - ndtr(edge)) + rate * (1 - ndtr(edge - mu))
    if reverse:
        return (1 - above) - alphas * (1 - above_mixed)
    return above_mixed - alphas * above


ALPHAS = np.exp(np.linspace(-3, 6, 61))
CLIP = 64  # in grid steps
WINDOW = np.arange(-2000, 2001)


@pytest.mark.parametrize(("size", "order"), [(5, 1), (6, 3), (7, 5)])
@pytest.mark.parametrize("sigma", [40.0, 150.0])
def test_one_mixture_never_exceeds_the_pair_and_attains_it(size, order, sigma):
    rate, mu = order / size, 2 * CLIP / sigma
    up, down = (pair(rate, mu, ALPHAS, reverse=reverse) for reverse in (False, True))
    rng = np.random.default_rng(1)
    tables = [np.full(size - 1, -CLIP), *rng.integers(-CLIP, CLIP + 1, (8, size - 1))]
    worst_up = worst_down = np.zeros(len(ALPHAS))
    for rows in tables:
        without = mechanism(rows, order, sigma, WINDOW)
        for record in (CLIP, -CLIP, int(rng.integers(-CLIP, CLIP + 1))):
            with_record = mechanism(np.append(rows, record), order, sigma, WINDOW)
            worst_up = np.maximum(worst_up, hockey_stick(with_record, without, ALPHAS))
            worst_down = np.maximum(worst_down, hockey_stick(without, with_record, ALPHAS))
    assert np.all(worst_up <= up + 1e-12)
    assert np.all(worst_down <= down + 1e-12)
    seen = up > 1e-6
    assert np.all(worst_up[seen] >= 0.99 * up[seen])
    seen = down > 1e-6
    assert np.all(worst_down[seen] >= 0.99 * down[seen])


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.5])
def test_the_event_is_that_pair(epsilon):
    mixtures = ClassMixtures(minimum=10, order=3, records=1)
    sigma_over_clip = 0.7
    mu = 2 / (sigma_over_clip * mixtures.order)
    alpha = np.array([math.exp(epsilon)])
    exact = max(pair(0.3, mu, alpha, reverse=reverse)[0] for reverse in (False, True))
    charged = accountant.delta(mixtures.event(sigma_over_clip), epsilon=epsilon)
    assert exact <= charged * (1 + 1e-9)
    assert charged <= 1.01 * exact


# --- units of several records -----------------------------------------------------------------------------------------


@cache
def charged(rate: float, records: int, multiplier: float) -> list[np.ndarray]:
    """The profile that a unit is charged for one mixture, in both directions."""
    charge = SampledUnit(multiplier, rate, records)
    pair = charge.pair(charge.largest_loss / 4_000)
    return [pair.hockey_stick(np.log(ALPHAS), reverse=reverse) for reverse in (False, True)]


def profiles(with_unit: np.ndarray, without: np.ndarray) -> list[np.ndarray]:
    return [hockey_stick(with_unit, without, ALPHAS), hockey_stick(without, with_unit, ALPHAS)]


@pytest.mark.parametrize(("others", "order", "sigma"), [(4, 2, 200.0), (4, 3, 60.0)])
def test_no_unit_exceeds_its_charge(others, order, sigma):
    """All units of up to three records beside all sets of others with extreme values, and beside random ones."""
    rng, unit = np.random.default_rng(1), 3
    tables = [np.array(rows) for rows in combinations_with_replacement((-CLIP, CLIP), others)]
    tables.append(rng.integers(-CLIP, CLIP + 1, others))
    for rows in tables:
        without = mechanism(rows, order, sigma, WINDOW)
        for records in (r for k in range(1, unit + 1) for r in combinations_with_replacement((-CLIP, 0, CLIP), k)):
            mixtures = ClassMixtures(minimum=others + unit, order=order, records=1, unit=unit)
            with_unit = mechanism(np.append(rows, records), order, sigma, WINDOW)
            if len(records) < unit:  # then the larger class has fewer records than are confirmed
                mixtures = ClassMixtures(minimum=others + len(records), order=order, records=1, unit=len(records))
            most = charged(mixtures.sampling_rate, mixtures.unit, sigma / (2 * CLIP))
            for found, bound in zip(profiles(with_unit, without), most, strict=True):
                assert np.all(found <= bound + 1e-9)


@pytest.mark.parametrize(("size", "order", "sigma"), [(4_000, 40, 1.0), (2_000, 200, 3.0)])
def test_a_unit_that_stands_against_all_others_attains_its_charge(size, order, sigma):
    """Within 2 %: how many of its records a mixture has is hypergeometric, and binomial in the charge."""
    unit, x = 3, np.linspace(-60, 90, 75_001)
    weights = hypergeom.pmf(np.arange(unit + 1), size, unit, order)
    cells = [np.diff(ndtr((x - j) / sigma)) for j in range(unit + 1)]
    found = profiles(np.sum([w * c for w, c in zip(weights, cells, strict=True)], axis=0), cells[0])
    mixtures = ClassMixtures(minimum=size, order=order, records=1, unit=unit)
    for one, bound in zip(found, charged(mixtures.sampling_rate, unit, sigma), strict=True):
        seen = bound > 1e-5
        assert seen.any()
        assert np.all(one <= bound + 1e-10)
        assert np.all(one[seen & (ALPHAS > 1)] >= 0.98 * bound[seen & (ALPHAS > 1)])


@pytest.mark.parametrize("sizes", [(6, 6), (6, 9)])
def test_records_of_a_unit_in_two_classes_cost_no_more_than_in_one(sizes):
    """Three records, one or two of them in the first class; the mixtures of two classes are enumerated together."""
    order, unit, multiplier = 2, 3, 0.9
    edges = np.linspace(-12, 15, 1_201)
    bound = charged(order / (min(sizes) - unit + 1), unit, multiplier)
    for first in (1, 2):
        laws = []
        for own, size in zip((first, unit - first), sizes, strict=True):
            weights = hypergeom.pmf(np.arange(own + 1), size, own, order)
            cells = [np.diff(ndtr((edges - j) / multiplier)) for j in range(own + 1)]
            laws.append((np.sum([w * c for w, c in zip(weights, cells, strict=True)], axis=0), cells[0]))
        (a, b), (c, d) = laws
        for alpha, most, other in zip(ALPHAS[::6], bound[0][::6], bound[1][::6], strict=True):
            with_unit, without = np.outer(a, c), np.outer(b, d)
            assert np.maximum(with_unit - alpha * without, 0).sum() <= most + 1e-9
            assert np.maximum(without - alpha * with_unit, 0).sum() <= other + 1e-9


def test_mixtures_of_one_number_are_charged_together():
    """The largest rate among the classes that have this many mixtures."""
    classes = (
        ClassMixtures(minimum=1_000, order=10, records=50, unit=4),
        ClassMixtures(minimum=500, order=10, records=20, unit=4),
    )
    short, long = event_of_units(classes, 0.5)
    assert (short.sampling_rate, short.count) == (10 / 497, 20)
    assert (long.sampling_rate, long.count) == (10 / 997, 30)
    assert (short.records, short.noise_multiplier) == (4, 2.5)
    sigma = noise_of_units(classes, epsilon=1, delta=1e-6)
    assert 0.999 < accountant.epsilon(Composed(event_of_units(classes, sigma)), delta=1e-6) <= 1


def test_what_units_cost_agrees_with_other_accounts():
    from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism

    found = accountant.epsilon(SubsampledUnits(1.0, 6.0, 3, 4), delta=1e-6)
    exact = accountant.epsilon(Gaussian(2.0, 4), delta=1e-6)
    assert exact <= found < 1.001 * exact
    counts = range(5)
    theirs = from_mixture_gaussian_mechanism(
        3.0, list(counts), [float(binom.pmf(j, 4, 0.05)) for j in counts], value_discretization_interval=1e-3
    ).self_compose(200)
    found = accountant.epsilon(SubsampledUnits(0.05, 3.0, 4, 200), delta=1e-5)
    assert found == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=2e-3)
    one, alone = SubsampledUnits(0.01, 2.0, 1, 100), SubsampledGaussian(0.01, 2.0, 100)
    assert accountant.epsilon(one, delta=1e-6) == pytest.approx(accountant.epsilon(alone, delta=1e-6), rel=1e-3)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigma_over_clip": 0.1, "epsilon": 1.0, **ADULT}, "and not both"),
        (ADULT, "and not both"),
        ({"epsilon": 1.0}, "give the class size"),
        ({"epsilon": 1.0, "class_size": 100}, "go together"),
        ({"epsilon": 1.0, "records": 100, **TABLE}, "go together"),
        ({"epsilon": 1.0, "table_size": 100, **ADULT}, "published formula .* only"),
        ({"epsilon": -1.0, **ADULT}, "finite epsilon > 0"),
        ({"epsilon": 1.0, "class_size": 63, "records": 5}, "at least as many records"),
        ({"epsilon": 1.0, "class_size": 100, "records": 0}, "must be at least 1"),
        ({"epsilon": 1.0, "paper": True, **ADULT}, "needs the table size"),
        ({"sigma_over_clip": 0.0, **TABLE}, "noise > 0"),
        ({"sigma_over_clip": 0.1, **TABLE, "table_size": 10}, "order <= table size"),
        ({"epsilon": 1.0, **TABLE, "table_size": 10}, "order <= table size"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(AccountingError, match=message):
        account_mixing(order=64, delta=1e-5, **settings)


def test_delta_out_of_range_is_refused():
    with pytest.raises(AccountingError):
        account_mixing(order=64, delta=0.0, epsilon=1.0, **ADULT)
