"""Candidates: pure functions of (key, index), distributed as the mechanism says."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from dpdist.errors import CheckFailed
from dpdist.families.base.network import Network
from dpdist.families.deniability.deniability import CandidateRecords, SeedSynthesizer, seed_ranks
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise

NOISE = Noise(bytes(range(32)))
SIZES = (3, 2, 4, 2)

RandomNetwork = Callable[..., Network]
RandomCodes = Callable[..., Codes]
PValue = Callable[[np.ndarray, np.ndarray], float]


def propose(synthesizer: SeedSynthesizer, index: SeedIndex, start: int, stop: int) -> tuple[Codes, CandidateRecords]:
    prefix = index.prefixes(seed_ranks(NOISE, start, stop, seeds=index.size))
    return prefix, synthesizer.propose(NOISE, prefix, start, stop)


def index_of(synthesizer: SeedSynthesizer, codes: Codes) -> SeedIndex:
    return SeedIndex(synthesizer.prefix_code, seed_keys(synthesizer.prefix_code, codes))


def exact_distribution(network: Network, omegas: tuple[int, ...], seeds: Codes) -> np.ndarray:
    """Probability of every record of the domain: sum over seeds and omegas of what each draws, one by one."""
    m = len(network)
    result = np.zeros(network.cardinalities)
    records = list(zip(*(column.tolist() for column in seeds), strict=True))
    for y in product(*map(range, network.cardinalities)):
        chance = []
        for position in range(m):
            i = network.order[position]
            row = 0
            for p in network.parents[i]:
                row = row * network.bucket_counts[p] + int(network.bucket_maps[p][y[p]])
            steps = [0, *(int(t) for t in network.thresholds[i][row]), 2**64]
            chance.append((steps[y[i] + 1] - steps[y[i]]) / 2**64)
        for omega in omegas:
            kept = network.order[: m - omega]
            sharing = sum(all(s[i] == y[i] for i in kept) for s in records)
            result[y] += sharing / len(records) / len(omegas) * np.prod(chance[m - omega :])
    return result


@pytest.mark.parametrize("omegas", [(2,), (1, 2, 4), (3, 4), (4,)])
def test_candidates_have_the_exact_distribution(
    omegas: tuple[int, ...], random_network: RandomNetwork, random_codes: RandomCodes, chi_square: PValue
) -> None:
    network = random_network(5, SIZES)
    seeds = random_codes(2, SIZES, 60)
    synthesizer = SeedSynthesizer(network, omegas)
    count = 300_000
    prefix: Codes = []
    if synthesizer.uses_seeds:
        index = index_of(synthesizer, seeds)
        prefix = index.prefixes(seed_ranks(NOISE, 0, count, seeds=index.size))
    codes = synthesizer.propose(NOISE, prefix, 0, count).codes
    seen = np.bincount(np.ravel_multi_index(tuple(codes), SIZES), minlength=int(np.prod(SIZES)))
    expected = exact_distribution(network, omegas, seeds).ravel() * count
    assert expected.sum() == pytest.approx(count)
    assert chi_square(seen, expected) > 1e-12
    other = exact_distribution(network, tuple(sorted({1, *omegas} - {4})), seeds).ravel() * count
    assert chi_square(seen, other) < 1e-20


def test_each_choice_has_its_own_stream(random_network: RandomNetwork, random_codes: RandomCodes) -> None:
    network = random_network(9, SIZES)
    synthesizer = SeedSynthesizer(network, (1, 3))
    index = index_of(synthesizer, random_codes(9, SIZES, 50))
    start, stop = 1000, 1400
    assert np.array_equal(
        seed_ranks(NOISE, start, stop, seeds=50), NOISE.integers("candidates/seed", 400, high=50, start=start)
    )
    prefix, candidates = propose(synthesizer, index, start, stop)
    omegas = np.array([1, 3])[NOISE.integers("candidates/omega", 400, high=2, start=start)]
    codes = candidates.codes
    for position, i in enumerate(network.order):
        redrawn = network.draw(
            i, network.configuration(i, codes), NOISE.words(f"candidates/value/{i}", 400, start=start)
        )
        resampled = position >= 4 - omegas
        assert np.array_equal(codes[i][resampled], redrawn[resampled])
        if position < len(prefix):
            assert np.array_equal(codes[i][~resampled], prefix[position][~resampled])
        assert codes[i].dtype == np.uint8
        assert codes[i].flags.c_contiguous


def test_the_level_is_the_longest_shared_prefix(random_network: RandomNetwork, random_codes: RandomCodes) -> None:
    synthesizer = SeedSynthesizer(random_network(3, SIZES), (4, 1, 2))
    assert synthesizer.lengths == (0, 2, 3)
    prefix, candidates = propose(synthesizer, index_of(synthesizer, random_codes(3, SIZES, 100)), 0, 5000)
    y = np.stack([candidates.codes[i] for i in synthesizer.network.order])
    s = np.stack(prefix)
    expected = [sum((y[:n, c] == s[:n, c]).all() for n in synthesizer.lengths) - 1 for c in range(5000)]
    assert candidates.levels.tolist() == expected
    kept = 2 - NOISE.integers("candidates/omega", 5000, high=3)[:, None]
    assert (candidates.levels >= kept[:, 0] - 2).all()
    assert set(expected) == {0, 1, 2}


def test_without_kept_attributes_no_seed_is_needed(random_network: RandomNetwork) -> None:
    synthesizer = SeedSynthesizer(random_network(3, SIZES), (4,))
    assert not synthesizer.uses_seeds
    candidates = synthesizer.propose(NOISE, [], 10, 300)
    assert len(candidates.codes[0]) == 290


def test_an_empty_list_of_seeds_is_refused() -> None:
    with pytest.raises(CheckFailed, match=r"split\.seeds"):
        seed_ranks(NOISE, 0, 10, seeds=0)
