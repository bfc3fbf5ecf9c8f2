"""A generative model of the user's own, under the privacy test.

The test needs draws given a seed, and the probability of a record given a seed (`OwnModel`). Seeds are whole records,
and a candidate is compared with every seed: `synthesis.max_check_plausible` bounds how many there are.

Log-probabilities are rounded to multiples of 2**-20 and their buckets computed on integers: bucket i holds the
probabilities in (gamma^-(i+1), gamma^-i], as published, for a gamma narrower by two of these steps. So probabilities in
one bucket differ by less than a factor gamma wherever `log_prob` is within 2**-21 (a relative 4.8e-7) of the
probability with which `sample` draws. The accounting (`dpdist.privacy.deniability`) holds for any fixed model. What its
parameters tell of the seeds is charged as well: nothing where they come from public data or from earlier releases, else
the (epsilon, delta) that the spec declares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError
from dpdist.families.deniability.deniability import CandidateRecords, SeedSynthesis
from dpdist.families.deniability.prefixes import SeedIndex
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP
from dpdist.privacy.noise import Noise
from dpdist.spec.kinds import load_hook
from dpdist.spec.schema import Schema

SETTING = "model.hook"
_STEPS = 1 << 20  # of one unit of log-probability
_TILE = 512  # candidates, and seeds, that are compared at a time: their pairs stay in the cache
_NEVER = np.iinfo(np.int64).min  # the bucket of a record that a seed cannot give
_LEAST = -(2.0**40)  # log-probabilities below are those of what a seed cannot give


class OwnModel(Protocol):
    """What ``module:class`` names; it is called with the schema. Its instances can be pickled."""

    draws: int  # uniform numbers that `sample` takes for each record

    def sample(self, seeds: Codes, uniforms: Floats) -> Codes:
        """One record for each of n seeds. `seeds`: codes of the seeds, one array for each attribute, in the order of
        the schema. `uniforms`: independent and uniform on [0, 1), multiples of 2**-53: all that is random. A record is
        a function of its own seed and row of uniforms.
        """
        ...

    def log_prob(self, records: Codes, seeds: Codes) -> Floats:
        """ln of the probability that `sample` gives a record from a seed, element by element; minus infinity where it
        cannot. The arrays of `records` have one shape and those of `seeds` another; the result has the shape to which
        NumPy broadcasts them. Each element is a function of its own record and seed.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class DeclaredModel:
    """A model of the user's own in a plan: in place of the noise with which one is learned."""

    hook: str
    epsilon: float  # epsilon, delta: what its parameters cost on this data set, as declared; 0 where they are public
    delta: float

    standard_deviation: ClassVar[float] = 0.0
    cells_at_most: ClassVar[int] = 0

    @property
    def public(self) -> bool:
        """Whether its parameters are declared to cost nothing more."""
        return self.epsilon == 0 == self.delta

    @property
    def event(self) -> Event:
        """What its parameters cost."""
        return ApproximateDP(self.epsilon, self.delta, label="the model, as declared")

    def to_json(self) -> dict[str, Any]:
        """The declaration as a JSON object."""
        return {
            "hook": self.hook,
            "learned_from": "public" if self.public else "private",
            "event": self.event.to_json(),
        }

    def explain(self) -> str:
        """The declaration in one line."""
        learned = (
            "public data or earlier releases, not charged"
            if self.public
            else f"this data set, charged epsilon {self.epsilon:g} and delta {self.delta:g}"
        )
        return f"{self.hook}, declared to be learned from {learned}; dpdist cannot check it"


@dataclass(frozen=True, eq=False, repr=False)
class OwnSynthesizer(SeedSynthesis):
    """Synthesis from a model of the user's own. Raises SpecError: gamma is near one, or `draws` is no number."""

    model: OwnModel
    schema: Schema
    gamma: float  # of the test
    width: int = field(init=False)  # of a bucket, in steps of the log-probability

    def __post_init__(self) -> None:
        width = math.floor(math.log(self.gamma) * _STEPS) - 2
        if width < 1:
            raise SpecError("privacy.deniability.gamma: with a model of your own, expected at least 1.00001")
        if not isinstance(getattr(self.model, "draws", None), int) or self.model.draws < 0:
            raise SpecError(f"{SETTING}: `draws` must say how many uniform numbers a record takes")
        object.__setattr__(self, "width", width)
        m = len(self.schema.attributes)
        self._keeps(range(m), self.schema.cardinalities, (m,))  # a candidate may depend on its whole seed

    @classmethod
    def of(cls, hook: str, schema: Schema, *, gamma: float) -> OwnSynthesizer:
        """The model that a hook names."""
        return cls(load_hook(hook, setting=SETTING)(schema), schema, gamma)

    def propose(self, noise: Noise, prefix: Sequence[NDArray[Any]], start: int, stop: int) -> CandidateRecords:
        """Candidates `start` to `stop` - 1, drawn by the model given their seeds. Raises SpecError: the model returns
        other than one record of the schema for each seed.
        """
        count, draws = stop - start, self.model.draws
        words = noise.words("candidates/model", count * draws, start=start * draws).reshape(count, draws)
        seeds = [np.ascontiguousarray(column) for column in prefix]
        uniforms: Floats = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        codes = self._records(self.model.sample(seeds, uniforms), count)
        return CandidateRecords(codes, self.buckets(codes, seeds))

    def counts(self, index: SeedIndex, candidates: CandidateRecords) -> Counts:
        """Number of seeds in the bucket of each candidate's own seed, int64[1, n]; ranges of seeds add up."""
        seeds, times = index.distinct
        own, result = candidates.levels, np.zeros((1, len(candidates.levels)), np.int64)
        for start, first in product(range(0, len(own), _TILE), range(0, len(times), _TILE)):
            rows, some = slice(start, start + _TILE), slice(first, first + _TILE)
            records = [column[rows, np.newaxis] for column in candidates.codes]
            same = self.buckets(records, [column[some] for column in seeds]) == own[rows, np.newaxis]
            result[0, rows] += same @ times[some]
        result[0, own == _NEVER] = 0
        return result

    def buckets(self, records: Codes, seeds: Codes) -> Counts:
        """Bucket of the probability that a seed gives a record, broadcast. Raises SpecError: of another shape."""
        shape = np.broadcast_shapes(records[0].shape, seeds[0].shape)
        with np.errstate(divide="ignore"):
            values = np.asarray(self.model.log_prob(records, seeds), np.float64)
        if values.shape != shape:
            raise SpecError(f"{SETTING}: log_prob must return an array of the shape to which its arguments broadcast")
        possible = values >= _LEAST
        steps = np.rint(np.where(possible, values, 0.0) * _STEPS).astype(np.int64)
        return np.where(possible, -steps // self.width, _NEVER)

    def _records(self, drawn: object, count: int) -> Codes:
        """What `sample` returned, if it is what was asked for."""
        columns = [np.asarray(column) for column in drawn] if isinstance(drawn, list | tuple) else []
        fits = len(columns) == len(self.cardinalities) and all(
            column.shape == (count,)
            and np.issubdtype(column.dtype, np.integer)
            and (not count or (column.min() >= 0 and column.max() < size))
            for column, size in zip(columns, self.cardinalities, strict=True)
        )
        if not fits:
            raise SpecError(f"{SETTING}: sample must return a code of each attribute for each seed")
        return [
            column.astype(np.min_scalar_type(size - 1))
            for column, size in zip(columns, self.cardinalities, strict=True)
        ]
