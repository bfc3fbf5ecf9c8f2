"""The privacy test of plausible deniability, with exact probabilities and over all seeds.

Candidates are copies of a seed in which the last omega attributes, in sigma order, are drawn again; candidate c is a
pure function of (key, c). With omega drawn uniformly from Omega, a seed s gives the candidate y with probability

    p_s(y) = 1/|Omega| · sum over omega with m - omega <= l(s, y) of  prod over positions j >= m - omega of
             Pr[y_j | parents of y_j],

where l(s, y) is the length of the longest prefix, in sigma order, that s and y share. It depends on the seed only
through the *level* of l(s, y): how many of the kept lengths m - omega it reaches. So p takes at most |Omega| positive
values, ascending in the level, and each belongs to a number of seeds that is a difference of two prefix counts.

A candidate is released if at least k seeds are plausible (PD Privacy Test 1), or at least k plus discrete Laplace noise
(Test 2), where a seed is plausible if its probability lies in the same bucket (gamma^-(i+1), gamma^-i] as that of the
candidate's own seed, which is counted too. Probabilities are sums of logarithms in floating point. The bucket of a
level is a function of the network and the candidate alone, so the test is an exact count for *some* buckets; they are
narrower than gamma by a factor 2^-30 in the exponent, more than rounding can add.

PD: Bindschaedler, Shokri, Gunter, *Plausible Deniability for Privacy-Preserving Data Synthesis*, 2017, Section 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import CheckFailed
from dpdist.families.base.network import Network
from dpdist.families.deniability.prefixes import PrefixCode, SeedIndex
from dpdist.families.deniability.spec import DeniabilitySpec
from dpdist.privacy.arrays import Codes, Counts, joined
from dpdist.privacy.noise import Noise


@dataclass(frozen=True, eq=False, repr=False)
class CandidateRecords:
    """Candidate records and what the privacy test needs to know of their seeds."""

    codes: Codes  # all attributes in schema order
    # ndarray of uint8 or uint16, shape (n,): the longest of the kept prefix lengths that candidate and seed share, as
    # its place among them. It is at least the one that was kept, and longer where the new values repeat the seed's by
    # chance. Of a model of the user's own: ndarray of int64, the bucket of the probability that the seed gave it
    levels: NDArray[np.integer[Any]]

    def __sizeof__(self) -> int:
        return self.levels.nbytes + sum(column.nbytes for column in self.codes)


@dataclass(frozen=True, eq=False, repr=False)
class SeedSynthesis(ABC):
    """Candidates from seeds: each keeps a prefix of its seed, in an order of the attributes."""

    order: tuple[int, ...] = field(init=False)  # all attributes, those that are kept first
    cardinalities: tuple[int, ...] = field(init=False)  # number of codes of each attribute
    lengths: tuple[int, ...] = field(init=False)  # of the prefix that a candidate may keep of its seed, ascending

    def _keeps(self, order: Sequence[int], cardinalities: tuple[int, ...], lengths: Sequence[int]) -> None:
        """Set what candidates keep, after the other fields."""
        for name, value in (("order", tuple(order)), ("cardinalities", cardinalities), ("lengths", tuple(lengths))):
            object.__setattr__(self, name, value)

    @property
    def uses_seeds(self) -> bool:
        """Whether any candidate keeps values of its seed."""
        return self.lengths[-1] > 0

    @cached_property
    def prefix_code(self) -> PrefixCode:
        """Keys of the seeds; ValueError when they are not used."""
        kept = self.order[: self.lengths[-1]]
        return PrefixCode(kept, tuple(self.cardinalities[i] for i in kept), self.lengths)

    def counts(self, index: SeedIndex, candidates: CandidateRecords) -> Counts:
        """Seeds of an index that the test counts of each candidate, int64[lengths, n]; ranges of the seeds add up."""
        return index.counts(candidates.codes)

    @abstractmethod
    def propose(self, noise: Noise, prefix: Sequence[NDArray[Any]], start: int, stop: int) -> CandidateRecords:
        """Candidates `start` to `stop` - 1, made from their seeds. `prefix` holds the longest prefix that may be kept
        of each candidate's seed (`seed_ranks`), in the order: unsigned integers, shape (stop - start,) each.
        """


@dataclass(frozen=True, eq=False, repr=False)
class SeedSynthesizer(SeedSynthesis):
    """The seed-based synthesis of PD, Section 3: a network, and how many attributes are resampled."""

    network: Network
    omegas: tuple[int, ...]  # numbers of resampled attributes; each candidate takes one of them at random

    def __post_init__(self) -> None:
        m = len(self.network)
        self._keeps(self.network.order, self.network.cardinalities, sorted(m - omega for omega in self.omegas))

    def propose(self, noise: Noise, prefix: Sequence[NDArray[Any]], start: int, stop: int) -> CandidateRecords:
        """Candidates `start` to `stop` - 1: the values that are not kept are drawn from the network."""
        network, count = self.network, stop - start
        levels = self._levels(noise, start, count)
        kept = np.array(self.lengths)[levels]
        codes: Codes = [np.zeros(count, np.min_scalar_type(size - 1)) for size in network.cardinalities]
        for i, values in zip(network.order, prefix, strict=False):
            codes[i] = np.ascontiguousarray(values)
        for position in range(self.lengths[0], len(network)):
            i = network.order[position]
            words = noise.words(f"candidates/value/{i}", count, start=start)
            values = network.draw(i, network.configuration(i, codes), words)
            codes[i] = values if position >= self.lengths[-1] else np.where(kept > position, codes[i], values)
        return CandidateRecords(codes, self._shared(codes, prefix))

    def _levels(self, noise: Noise, start: int, count: int) -> NDArray[np.int64]:
        """Place of each candidate's kept prefix length: uniform over the omegas (ascending, so lengths descend)."""
        if len(self.omegas) == 1:
            return np.zeros(count, np.int64)
        drawn = noise.integers("candidates/omega", count, high=len(self.omegas), start=start)
        return len(self.omegas) - 1 - drawn

    def _shared(self, codes: Codes, prefix: Sequence[NDArray[Any]]) -> NDArray[np.unsignedinteger[Any]]:
        """Place of the longest prefix length that candidates and seeds share."""
        shared = np.ones(len(codes[0]), bool)
        levels = np.zeros(len(codes[0]), np.min_scalar_type(len(self.lengths)))
        for position in range(self.lengths[0], self.lengths[-1]):
            shared &= codes[self.network.order[position]] == prefix[position]
            if position + 1 in self.lengths:
                levels += shared
        return levels


def seed_ranks(noise: Noise, start: int, stop: int, *, seeds: int) -> NDArray[np.int64]:
    """Places of the candidates' seeds in the sorted list of all `seeds` seeds. Raises CheckFailed: none exist."""
    if seeds < 1:
        raise CheckFailed("there is no seed: raise split.seeds, or use a table with more records")
    return noise.integers("candidates/seed", stop - start, high=seeds, start=start)


_BLOCK = 1 << 16  # candidates at a time: their arrays stay in the cache
_NARROWER = 1 - 2.0**-30  # exponent of gamma in the width of a bucket


@dataclass(frozen=True, kw_only=True)
class PrivacyTest:
    """PD's privacy test."""

    k: int  # plausible seeds that a released record needs, at least 1
    gamma: float  # ratio of the edges of a bucket of probabilities, above 1
    # parameter of the threshold noise, P(z) ~ exp(-epsilon0 |z|) (Test 2); None for the fixed threshold (Test 1)
    epsilon0: float | None

    @classmethod
    def of(cls, settings: DeniabilitySpec) -> PrivacyTest:
        """The test that a spec asks for."""
        return cls(k=settings.k, gamma=settings.gamma, epsilon0=settings.threshold_noise)

    def thresholds(self, noise: Noise, start: int, stop: int) -> NDArray[np.int64]:
        """Plausible seeds that candidates `start` to `stop` - 1 need, int64[stop - start]."""
        if self.epsilon0 is None:
            return np.full(stop - start, self.k, np.int64)
        scale = 1 / Fraction(self.epsilon0)
        return self.k + noise.discrete_laplace("candidates/threshold", stop - start, scale=scale, start=start)

    def passes(
        self,
        noise: Noise,
        synthesizer: SeedSynthesis,
        candidates: CandidateRecords,
        counts: NDArray[np.int64],
        start: int,
    ) -> NDArray[np.bool_]:
        """Whether each of n candidates, from number `start` on, passes the test: bool[n]. `counts`, int64[lengths, n],
        are the numbers of all seeds that share each kept prefix length with a candidate, ascending; or int64[1, n], the
        plausible seeds (`SeedSynthesis.counts`, summed over the ranges).
        """
        needed = self.thresholds(noise, start, start + counts.shape[1])
        return plausible_seeds(synthesizer, candidates, counts, gamma=self.gamma) >= needed


def log_probabilities(synthesizer: SeedSynthesizer, codes: Codes) -> NDArray[np.float64]:
    """Exact ln p_s(y) of n candidates (all attributes in schema order) by the level of the seed: float64[lengths, n].

    Row t is for seeds that share a prefix of ``synthesizer.lengths[t]``, and not the next longer one; minus infinity
    where such seeds cannot give the candidate. Seeds that do not share the shortest prefix have probability 0. A
    function of the network and the candidate alone: the sums run in one fixed order.
    """
    network, lengths = synthesizer.network, synthesizer.lengths
    result = np.empty((len(lengths), len(codes[0])))
    resampled = np.full(len(codes[0]), -log(len(lengths)))
    for position in reversed(range(lengths[0], len(network))):
        i = network.order[position]
        resampled += network.log_probability(i, network.configuration(i, codes), codes[i])
        if position in lengths:
            result[lengths.index(position)] = resampled
    for shorter, longer in pairwise(result):
        np.logaddexp(shorter, longer, out=longer)
    return result


def plausible_seeds(
    synthesizer: SeedSynthesis, candidates: CandidateRecords, counts: NDArray[np.int64], *, gamma: float
) -> NDArray[np.int64]:
    """Number of seeds whose probability of giving the candidate is in the bucket of its own seed's: int64[n]. `counts`
    are those of `PrivacyTest.passes`; bucket i is (gamma^-(i+1), gamma^-i].
    """
    result: NDArray[np.int64] = counts[0]
    if len(counts) == 1:  # one omega: all seeds that can give the candidate do so with one probability; or own model
        return result
    if not isinstance(synthesizer, SeedSynthesizer):
        raise TypeError("several numbers of resampled attributes need a network's probabilities")
    width = log(gamma) * _NARROWER
    buckets = np.floor(log_probabilities(synthesizer, candidates.codes) / -width)
    own = np.take_along_axis(buckets, candidates.levels[np.newaxis].astype(np.intp), axis=0)
    same = buckets == own
    result = counts[-1] * same[-1]
    for level in range(len(counts) - 1):
        result += (counts[level] - counts[level + 1]) * same[level]
    return result


@dataclass(frozen=True, eq=False, repr=False)
class Passed:
    """The candidates of a range that pass, in order."""

    indices: NDArray[np.int64]  # ndarray of int64, shape (n,): their numbers, ascending; private
    codes: Codes  # all attributes in schema order

    def __len__(self) -> int:
        return len(self.indices)

    def __sizeof__(self) -> int:
        return self.indices.nbytes + sum(column.nbytes for column in self.codes)

    @classmethod
    def of(cls, candidates: CandidateRecords, passes: NDArray[Any], start: int) -> Passed:
        """The candidates, number `start` and following, that pass."""
        rows = np.flatnonzero(passes)
        return cls(start + rows, [column.take(rows) for column in candidates.codes])


def candidate_batch(
    noise: Noise, synthesizer: SeedSynthesis, seeds: SeedIndex | None, test: PrivacyTest, start: int, stop: int
) -> Passed:
    """Make and test candidates `start` to `stop` - 1: the same for any division of the range. `seeds` indexes all
    seeds; None where every attribute is resampled: such candidates do not depend on a seed, and all of them pass.
    """
    parts = []
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        if seeds is None:
            candidates = synthesizer.propose(noise, [], first, last)
            passes = np.ones(last - first, bool)
        else:
            prefix = seeds.prefixes(seed_ranks(noise, first, last, seeds=seeds.size))
            candidates = synthesizer.propose(noise, prefix, first, last)
            passes = test.passes(noise, synthesizer, candidates, synthesizer.counts(seeds, candidates), first)
        parts.append(Passed.of(candidates, passes, first))
    return Passed(np.concatenate([part.indices for part in parts]), joined(part.codes for part in parts))
