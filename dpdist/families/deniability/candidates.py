"""Candidate records: copies of a seed in which the last omega attributes, in sigma order, are drawn again.

Candidate c is a pure function of (key, c): its seed, its omega and its new values are word c of streams of
their own. Any range of candidates can be made anywhere, in any order, twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import CheckFailed, SpecError
from dpdist.families.base.network import Network
from dpdist.families.deniability.prefixes import PrefixCode, SeedIndex
from dpdist.privacy.arrays import Codes, Counts
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


class SeedSynthesis(ABC):
    """Candidates from seeds: each keeps a prefix of its seed, in an order of the attributes."""

    @property
    @abstractmethod
    def order(self) -> tuple[int, ...]:
        """All attributes, those that are kept first."""

    @property
    @abstractmethod
    def cardinalities(self) -> tuple[int, ...]:
        """Number of codes of each attribute."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the prefix that a candidate may keep of its seed, ascending."""

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
        """Number of seeds, among those of an index, that the test counts of each candidate: int64[lengths, n]. The
        ranges of the seeds add up.
        """
        return index.counts(candidates.codes)

    @abstractmethod
    def propose(self, noise: Noise, prefix: Sequence[NDArray[Any]], start: int, stop: int) -> CandidateRecords:
        """Candidates `start` to `stop` - 1, made from their seeds. `prefix` holds the longest prefix that may be kept
        of each candidate's seed (`seed_ranks`), in the order: unsigned integers, shape (stop - start,) each.
        """


@dataclass(frozen=True, eq=False, repr=False)
class SeedSynthesizer(SeedSynthesis):
    """The seed-based synthesis of PD, Section 3: a network, and how many attributes are resampled. Raises SpecError: a
    number is repeated or not between 1 and the number of attributes.
    """

    network: Network
    omegas: tuple[int, ...]  # numbers of resampled attributes; each candidate takes one of them at random

    def __post_init__(self) -> None:
        m = len(self.network)
        if not self.omegas or len(set(self.omegas)) < len(self.omegas) or not set(self.omegas) <= set(range(1, m + 1)):
            raise SpecError(f"synthesis.omega: expected distinct numbers of attributes between 1 and {m}")

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the prefix, in sigma order, that a candidate may keep of its seed, ascending."""
        return tuple(sorted(len(self.network) - omega for omega in self.omegas))

    @property
    def order(self) -> tuple[int, ...]:
        """Sigma."""
        return self.network.order

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of codes of each attribute."""
        return self.network.cardinalities

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
    """Places, in the sorted list of all `seeds` seeds, of the seeds of candidates `start` to `stop` - 1. Raises
    CheckFailed: there are no seeds.
    """
    if seeds < 1:
        raise CheckFailed("there is no seed: raise split.seeds, or use a table with more records")
    return noise.integers("candidates/seed", stop - start, high=seeds, start=start)
