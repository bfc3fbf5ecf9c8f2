"""The privacy test against enumeration: probabilities, plausible seeds, pass probabilities, released distribution."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise, product
from math import exp, log, prod
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.families.base.network import Network
from dpdist.families.deniability import deniability
from dpdist.families.deniability.deniability import (
    CandidateRecords,
    PrivacyTest,
    SeedSynthesizer,
    candidate_batch,
    log_probabilities,
    plausible_seeds,
    seed_ranks,
)
from dpdist.families.deniability.prefixes import SeedIndex, key_histogram, key_ranges, keys_between, seed_keys
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise

NOISE = Noise(bytes(range(1, 33)))
SIZES = (3, 2, 3, 2)

RandomNetwork = Callable[..., Network]
RandomCodes = Callable[..., Codes]
PValue = Callable[[np.ndarray, np.ndarray], float]
Record = tuple[int, ...]


def records_of(codes: Codes) -> list[Record]:
    return list(zip(*(column.tolist() for column in codes), strict=True))


def codes_of(records: Sequence[Record]) -> Codes:
    return [np.array(column, np.uint8) for column in zip(*records, strict=True)]


def index_of(synthesizer: SeedSynthesizer, seeds: Codes) -> SeedIndex:
    return SeedIndex(synthesizer.prefix_code, seed_keys(synthesizer.prefix_code, seeds))


def chance(network: Network, position: int, y: Record) -> Fraction:
    i = network.order[position]
    row = 0
    for p in network.parents[i]:
        row = row * network.bucket_counts[p] + int(network.bucket_maps[p][y[p]])
    steps = [0, *(int(t) for t in network.thresholds[i][row]), 2**64]
    return Fraction(steps[y[i] + 1] - steps[y[i]], 2**64)


def exact_probability(synthesizer: SeedSynthesizer, seed: Record, y: Record) -> Fraction:
    """p_d(y) by its definition, in rational arithmetic: the mean over omega of the products of chances."""
    network, m = synthesizer.network, len(synthesizer.network)
    total = Fraction(0)
    for omega in synthesizer.omegas:
        if all(seed[i] == y[i] for i in network.order[: m - omega]):
            total += prod((chance(network, j, y) for j in range(m - omega, m)), start=Fraction(1))
    return total / len(synthesizer.omegas)


def bucket(probability: Fraction, gamma: Fraction) -> int:
    """The integer i with gamma^-(i+1) < p <= gamma^-i."""
    i = 0
    while probability <= 1 / gamma ** (i + 1):
        i += 1
    return i


class Enumeration(NamedTuple):
    """A seed, a record it can give, with which probability, and how many of all seeds are plausible for it."""

    seed: Record
    y: Record
    probability: Fraction
    plausible: int


def enumerate_mechanism(synthesizer: SeedSynthesizer, seeds: list[Record], gamma: Fraction) -> list[Enumeration]:
    """Every different seed with every record of the domain that it can give, by going through all seeds."""
    result = []
    copies = Counter(seeds)
    for y in product(*map(range, synthesizer.network.cardinalities)):
        chances = {seed: exact_probability(synthesizer, seed, y) for seed in copies}
        buckets = {seed: bucket(p, gamma) for seed, p in chances.items() if p > 0}
        for seed, own in buckets.items():
            plausible = sum(copies[other] for other, its in buckets.items() if its == own)
            result.append(Enumeration(seed, y, chances[seed], plausible))
    return result


def level(synthesizer: SeedSynthesizer, seed: Record, y: Record) -> int:
    order = synthesizer.network.order
    return sum(all(seed[i] == y[i] for i in order[:n]) for n in synthesizer.lengths) - 1


def uniform_binary(attributes: int) -> Network:
    half = np.full((1, 1), 1 << 63, np.uint64)
    return Network(
        (2,) * attributes,
        (np.arange(2, dtype=np.uint32),) * attributes,
        (2,) * attributes,
        ((),) * attributes,
        tuple(range(attributes)),
        (half,) * attributes,
    )


OMEGAS = [(2,), (4,), (1, 2, 3), (2, 4), (1, 2, 3, 4)]


@pytest.mark.parametrize("omegas", OMEGAS)
def test_probabilities_equal_enumeration(
    omegas: tuple[int, ...], random_network: RandomNetwork, random_codes: RandomCodes
) -> None:
    for number in range(3):
        synthesizer = SeedSynthesizer(random_network(number, SIZES), omegas)
        seeds = records_of(random_codes(number, SIZES, 12))
        cases = enumerate_mechanism(synthesizer, seeds, Fraction(2))
        found = log_probabilities(synthesizer, codes_of([case.y for case in cases]))
        for column, case in zip(found.T, cases, strict=True):
            probability = exp(column[level(synthesizer, case.seed, case.y)])
            assert probability == pytest.approx(float(case.probability), rel=1e-12)


@pytest.mark.parametrize("gamma", [Fraction(6, 5), Fraction(2), Fraction(4), Fraction(50)])
@pytest.mark.parametrize("omegas", OMEGAS)
def test_plausible_seeds_equal_enumeration(
    omegas: tuple[int, ...], gamma: Fraction, random_network: RandomNetwork, random_codes: RandomCodes
) -> None:
    synthesizer = SeedSynthesizer(random_network(11, SIZES), omegas)
    check_plausible_seeds(synthesizer, random_codes(7, SIZES, 40), gamma)


@pytest.mark.parametrize("gamma", [Fraction(2), Fraction(4), Fraction(8)])
@pytest.mark.parametrize("omegas", [(1,), (1, 2), (1, 4), (1, 2, 3, 4)])
def test_probabilities_on_the_edge_of_a_bucket_belong_to_it(omegas: tuple[int, ...], gamma: Fraction) -> None:
    random = np.random.default_rng(2)
    seeds = [random.integers(0, 2, 30).astype(np.uint8) for _ in range(4)]
    check_plausible_seeds(SeedSynthesizer(uniform_binary(4), omegas), seeds, gamma)


def check_plausible_seeds(synthesizer: SeedSynthesizer, seeds: Codes, gamma: Fraction) -> None:
    records = records_of(seeds)
    cases = enumerate_mechanism(synthesizer, records, gamma)
    codes = codes_of([case.y for case in cases])
    levels = np.array([level(synthesizer, case.seed, case.y) for case in cases], np.uint8)
    if synthesizer.uses_seeds:
        counts = index_of(synthesizer, seeds).counts(codes)
    else:
        counts = np.full((1, len(cases)), len(records), np.int64)
    found = plausible_seeds(synthesizer, CandidateRecords(codes, levels), counts, gamma=float(gamma))
    assert found.tolist() == [case.plausible for case in cases]
    assert found.min() >= 1


def test_a_seed_whose_own_values_the_network_never_gives_is_not_plausible() -> None:
    network = uniform_binary(3)
    never = np.zeros((1, 1), np.uint64)  # value 0 of the middle attribute has probability 0
    network = Network(
        network.cardinalities,
        network.bucket_maps,
        network.bucket_counts,
        network.parents,
        network.order,
        (network.thresholds[0], never, network.thresholds[2]),
    )
    seeds = codes_of([(0, 0, 0)] * 5 + [(1, 0, 0)] * 3 + [(0, 1, 0)] * 2)
    synthesizer = SeedSynthesizer(network, (1, 3))
    found = log_probabilities(synthesizer, codes_of([(0, 0, 1)]))
    assert found[0, 0] == -np.inf
    assert found[1, 0] == pytest.approx(log(1 / 4))
    check_plausible_seeds(synthesizer, seeds, Fraction(4))


def test_very_small_probabilities_keep_their_bucket(random_network: RandomNetwork) -> None:
    sizes = (200,) * 300
    network = random_network(1, sizes, parents=1)
    random = np.random.default_rng(0)
    y = tuple(int(v) for v in random.integers(0, 200, 300))
    synthesizer = SeedSynthesizer(network, (300, 299))
    found = log_probabilities(synthesizer, [np.array([v], np.uint8) for v in y])
    exact = exact_probability(synthesizer, y, y)
    assert exact.denominator.bit_length() - exact.numerator.bit_length() > 1100  # below the smallest double
    assert found[1, 0] == pytest.approx(log(exact.numerator) - log(exact.denominator), rel=1e-12)


def pass_probability(plausible: int, *, k: int, epsilon0: float | None) -> float:
    """Pr[plausible >= k + L], by summing the distribution of L."""
    if epsilon0 is None:
        return float(plausible >= k)
    q = exp(-epsilon0)
    noise = np.arange(-400, 401)
    weights = (1 - q) / (1 + q) * q ** np.abs(noise)
    return float(weights[noise <= plausible - k].sum())


@pytest.mark.parametrize(("omegas", "epsilon0"), [((2,), 0.7), ((1, 2, 3), 0.3), ((2, 4), 1.0), ((1, 3), None)])
def test_the_passing_candidates_have_the_exact_distribution(
    omegas: tuple[int, ...],
    epsilon0: float | None,
    random_network: RandomNetwork,
    random_codes: RandomCodes,
    chi_square: PValue,
) -> None:
    synthesizer = SeedSynthesizer(random_network(21, SIZES), omegas)
    seeds = random_codes(21, SIZES, 60)
    test = PrivacyTest(k=9, gamma=2, epsilon0=epsilon0)
    count = 400_000
    passed = candidate_batch(NOISE, synthesizer, index_of(synthesizer, seeds), test, 0, count)
    seen = np.bincount(np.ravel_multi_index(tuple(passed.codes), SIZES), minlength=prod(SIZES))
    seen = np.append(seen, count - len(passed))

    records = records_of(seeds)
    cases = enumerate_mechanism(synthesizer, records, Fraction(2))
    exact = passing_mass(cases, records, k=9, epsilon0=epsilon0)
    assert 0.05 < exact[-1] < 0.95
    assert chi_square(seen, exact * count) > 1e-12
    for k, scale in [(11, 1), (9, 0.7)] if epsilon0 else [(12, 1)]:
        other = passing_mass(cases, records, k=k, epsilon0=epsilon0 and epsilon0 * scale)
        assert chi_square(seen, other * count) < 1e-20


def passing_mass(cases: list[Enumeration], seeds: list[Record], *, k: int, epsilon0: float | None) -> np.ndarray:
    """Probability that one attempt makes and passes each record of the domain; last, that it does not pass."""
    mass = np.zeros(SIZES)
    for case in cases:
        drawn = float(case.probability) * seeds.count(case.seed) / len(seeds)
        mass[case.y] += drawn * pass_probability(case.plausible, k=k, epsilon0=epsilon0)
    return np.append(mass, 1 - mass.sum())


def test_thresholds_are_drawn_by_candidate_index() -> None:
    test = PrivacyTest(k=20, gamma=4, epsilon0=0.1)
    drawn = test.thresholds(NOISE, 0, 1000)
    assert np.array_equal(test.thresholds(NOISE, 300, 500), drawn[300:500])
    expected = 20 + NOISE.discrete_laplace("candidates/threshold", 1000, scale=1 / Fraction(0.1))
    assert np.array_equal(drawn, expected)
    assert PrivacyTest(k=20, gamma=4, epsilon0=None).thresholds(NOISE, 5, 8).tolist() == [20, 20, 20]


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 700), max_size=4), block=st.sampled_from([1, 7, 64, 1 << 16]))
def test_any_division_of_the_candidates_gives_the_same_records(
    cuts: list[int], block: int, random_network: RandomNetwork, random_codes: RandomCodes
) -> None:
    synthesizer = SeedSynthesizer(random_network(4, SIZES), (1, 2, 3))
    index = index_of(synthesizer, random_codes(4, SIZES, 80))
    test = PrivacyTest(k=25, gamma=2, epsilon0=0.5)
    start = 12_345
    whole = candidate_batch(NOISE, synthesizer, index, test, start, start + 700)
    assert 0 < len(whole) < 700
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deniability, "_BLOCK", block)
        edges = sorted({0, 700, *cuts})
        parts = [candidate_batch(NOISE, synthesizer, index, test, start + a, start + b) for a, b in pairwise(edges)]
    assert np.array_equal(np.concatenate([part.indices for part in parts]), whole.indices)
    for i, column in enumerate(whole.codes):
        assert np.array_equal(np.concatenate([part.codes[i] for part in parts]), column)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_ranges_of_seeds_give_the_same_passes(
    shards: int, random_network: RandomNetwork, random_codes: RandomCodes
) -> None:
    synthesizer = SeedSynthesizer(random_network(8, SIZES), (1, 2, 4))
    seeds, code = random_codes(8, SIZES, 200), synthesizer.prefix_code
    test = PrivacyTest(k=30, gamma=2, epsilon0=0.2)
    whole = candidate_batch(NOISE, synthesizer, index_of(synthesizer, seeds), test, 0, 3000)

    keys = seed_keys(code, seeds)
    ranges = key_ranges(code, key_histogram(code, keys), shards)
    parts = [SeedIndex(code, keys_between(keys, low, high)) for low, high in ranges]
    offsets = np.cumsum([0, *(part.size for part in parts)]).tolist()
    ranks = seed_ranks(NOISE, 0, 3000, seeds=offsets[-1])
    found = [part.prefixes(ranks, offset=at) for part, at in zip(parts, offsets, strict=False)]
    prefix = [sum(columns) for columns in zip(*found, strict=True)]
    candidates = synthesizer.propose(NOISE, prefix, 0, 3000)
    counts = np.sum([part.counts(candidates.codes) for part in parts], axis=0)
    passes = test.passes(NOISE, synthesizer, candidates, counts, 0)
    assert np.array_equal(np.flatnonzero(passes), whole.indices)


def test_when_every_attribute_is_resampled_all_pass(random_network: RandomNetwork) -> None:
    synthesizer = SeedSynthesizer(random_network(2, SIZES), (4,))
    test = PrivacyTest(k=10**9, gamma=2, epsilon0=1)
    passed = candidate_batch(NOISE, synthesizer, None, test, 100, 600)
    assert passed.indices.tolist() == list(range(100, 600))
    proposed = synthesizer.propose(NOISE, [], 100, 600).codes
    assert all(np.array_equal(a, b) for a, b in zip(passed.codes, proposed, strict=True))


def test_what_holds_records_does_not_print_them(random_network: RandomNetwork) -> None:
    synthesizer = SeedSynthesizer(random_network(2, SIZES), (4,))
    passed = candidate_batch(NOISE, synthesizer, None, PrivacyTest(k=1, gamma=2, epsilon0=1), 0, 5)
    assert "array" not in repr(passed) + repr(synthesizer.propose(NOISE, [], 0, 5)) + repr(synthesizer)
