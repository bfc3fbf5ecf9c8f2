"""Stage 1 of the published method on blocks of records: statistics, synthetic rows, disclosure, mixed rows.

Rows live on the unit cube (`dpdist.families.prediction.scales`). Not differentially private: original rows are mixed
into the output, and the regression is trained on them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np

from dpdist.errors import CheckFailed, SpecError
from dpdist.families.base.plugins import load
from dpdist.families.prediction.blocks import Block, generator
from dpdist.families.prediction.density import FOLDS, Marginal, cell_count, cell_counts, fit_marginal, pooled_deviation
from dpdist.families.prediction.latin import FIRST_STAGES, ScoreSums, Target, score_sums
from dpdist.families.prediction.lid.hybrid import match, mix
from dpdist.families.prediction.lid.method import Method
from dpdist.families.prediction.lid.parties import codes, rows_of_parties
from dpdist.families.prediction.scales import snapped
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Counts, Floats
from dpdist.storage.stored import Stored


@dataclass(frozen=True, eq=False)
class Distribution:
    """The distribution of a party's inputs."""

    records: int
    marginals: tuple[Marginal, ...]  # of all inputs
    correlation: Floats  # float64[d, d]: of the normal scores of the inputs that are synthesised

    def target(self, method: Method) -> Target:
        """What synthetic rows reproduce."""
        return Target(tuple(self.marginals[i] for i in method.made), self.correlation)


@dataclass(frozen=True, eq=False)
class InputDistribution(Stored):
    """The distribution of the inputs as stage 1 sees it."""

    FILE: ClassVar[str] = "target.npz"

    parties: tuple[Distribution, ...]  # one of all records, where no column names the party

    @cached_property
    def deviations(self) -> Floats:
        """Deviation of each input on the unit interval, of all parties together: float64[inputs]."""
        return deviations_of(self.parties)


def deviations_of(parties: Sequence[Distribution]) -> Floats:
    """Deviation of each input of these parties together, float64[inputs]; 1 where it does not vary."""
    records = [party.records for party in parties]
    columns = zip(*(party.marginals for party in parties), strict=True)
    return np.array([pooled_deviation(column, records) for column in columns])


CellCounts = tuple[tuple[Counts, ...], ...]
"""Of each party and input: records in each cell by fold."""


def fold_counts(method: Method, key: KeyRef, block: Block, start: int) -> CellCounts:
    """The counts of a block; `start` is the number of its first record."""
    inputs, _ = block
    words = load_noise(key).words("prediction/folds", len(inputs), start=start)
    folds = (words % np.uint64(FOLDS)).astype(np.int64)
    return tuple(
        tuple(cell_counts(inputs[rows, i], folds[rows], cell_count(scale)) for i, scale in enumerate(method.scales))
        for rows in rows_of_parties(method, block)
    )


def add_counts(parts: Sequence[CellCounts]) -> CellCounts:
    """Counts of several blocks together."""
    return tuple(
        tuple(sum(column[1:], column[0]) for column in zip(*party, strict=True)) for party in zip(*parts, strict=True)
    )


def fit_marginals(method: Method, counts: CellCounts) -> tuple[tuple[Marginal, ...], ...]:
    """The marginals of all inputs of each party."""
    return tuple(
        tuple(fit_marginal(one, scale, rule=method.bandwidth) for one, scale in zip(party, method.scales, strict=True))
        for party in counts
    )


def block_scores(method: Method, marginals: Sequence[Sequence[Marginal]], block: Block) -> tuple[ScoreSums, ...]:
    """Of each party, sums of the products of the normal scores of the inputs that are synthesised."""
    made, parties = list(method.made), rows_of_parties(method, block)
    return tuple(
        score_sums(block[0][rows][:, made], [known[i] for i in made])
        for rows, known in zip(parties, marginals, strict=True)
    )


def add_scores(parts: Sequence[tuple[ScoreSums, ...]]) -> tuple[ScoreSums, ...]:
    """Sums of several blocks together."""
    return tuple(reduce(operator.add, party) for party in zip(*parts, strict=True))


def synthetic_rows(method: Method, inputs: InputDistribution, key: KeyRef, block: Block, number: int) -> Floats:
    """The synthetic row of each record of a block, in the order of the records: float64[n, synthesised inputs]. Those
    of a party are drawn from its own distribution and matched with its own records.
    """
    original = block[0][:, list(method.made)]
    rng = generator(load_noise(key), "prediction/first-stage", number)
    out = np.empty_like(original)
    for rows, party in zip(rows_of_parties(method, block), inputs.parties, strict=True):
        if len(mine := original[rows]):
            out[rows] = _party_rows(method, party, mine, rng)
    return out


def _party_rows(method: Method, party: Distribution, original: Floats, rng: np.random.Generator) -> Floats:
    """A synthetic row for each of a party's records in a block."""
    if method.first_stage in FIRST_STAGES:
        synthetic = FIRST_STAGES[method.first_stage](party.target(method), len(original), rng)
    else:
        hook = load(method.first_stage, setting="prediction.first_stage")
        synthetic = checked_rows(hook(original.copy(), rng), original, setting="prediction.first_stage")
    compared = [place for place, scale in enumerate(method.made_scales) if not scale.nominal]
    weights = 1 / deviations_of([party])[[method.made[place] for place in compared]]
    places = match(
        original[:, compared] * weights,
        synthetic[:, compared] * weights,
        method=method.matching,
        exact_rows=method.exact_rows,
    )
    return synthetic[places]


def near_counts(method: Method, block: Block, synthetic: Floats) -> Counts:
    """How many released rows of each party in a block would be near their originals, for each of the method's alphas:
    int64[parties, alphas].

    Near is within eta in some of the columns that are looked at. `synthetic`, float64[n, synthesised inputs], is
    matched: row i is mixed with record i.
    """
    watched, columns = list(method.watched), list(method.disclosure.columns)
    mine, theirs, scales = block[0][:, columns], synthetic[:, watched], [method.scales[i] for i in columns]
    mixed = np.array([not scale.nominal for scale in scales], bool)
    discrete = any(scale.discrete for scale in scales)
    owners, parties = codes(method, block[0]), max(method.parties, 1)
    counts = np.zeros((parties, len(method.alphas)), np.int64)
    for place, alpha in enumerate(method.alphas):
        released = mix(mine, theirs, alpha=alpha, mixed=mixed)
        if discrete:
            released = snapped(scales, released)
        near = (np.abs(mine - released) <= method.disclosure.eta).any(axis=1)
        counts[:, place] = np.bincount(owners[near], minlength=parties)
    return counts


@dataclass(frozen=True)
class Disclosed(Stored):
    """The measured disclosure, and the share of the original row that follows from it."""

    FILE: ClassVar[str] = "alpha.json"

    alpha: float
    near: int | None  # rows near their originals; confidential. None where no column is looked at


def disclosed(method: Method, counts: Counts, records: Sequence[int]) -> Disclosed:
    """The share of the original row in the release: the one given, or the largest within the disclosure of every party.
    `counts` are those of `near_counts`, over all records, of which each party has so many. Raises CheckFailed: the
    disclosure would exceed the declared bound.
    """
    lid, most = method.disclosure.lid, method.most_alpha if method.alpha is None else method.alpha
    if not method.watched:
        return Disclosed(most, None)
    bounds = [lid * count for count in records]
    within = [
        Disclosed(alpha, sum(near))
        for alpha, near in zip(method.alphas, counts.T.tolist(), strict=True)
        if alpha <= most and all(one <= bound for one, bound in zip(near, bounds, strict=True))
    ]
    if within:
        return within[-1]
    whose = " of some party" if method.parties else ""
    if method.alpha is not None:
        raise CheckFailed(
            f"with alpha {method.alpha:g} more than {lid:g} of the released rows{whose} would be near their originals, "
            "so nothing is published: lower prediction.alpha, or leave it out to have it chosen; a column that hardly "
            "varies is always near (privacy.disclosure.columns says which are looked at)"
        )
    raise CheckFailed(
        f"even with alpha 0 more than {lid:g} of the released rows{whose} would be near their originals, so nothing is "
        "published: raise privacy.disclosure.lid, lower its eta, or set prediction.matching: independent; a column "
        "that hardly varies is always near (privacy.disclosure.columns says which are looked at)"
    )


def mixed_rows(method: Method, inputs: Floats, synthetic: Floats, *, alpha: float) -> Floats:
    """The released inputs of a block, float64[n, inputs], in the order of the records."""
    made, scales = list(method.made), method.made_scales
    out = inputs.copy()
    mixed = np.array([not scale.nominal for scale in scales], bool)
    out[:, made] = snapped(scales, mix(inputs[:, made], synthetic, alpha=alpha, mixed=mixed))
    return out


def checked_rows(rows: object, like: Floats, *, setting: str) -> Floats:
    """What a user's first stage returned, if it is what was asked for. Raises SpecError: it has another shape, or
    values that are not finite; values outside the unit cube are moved to its faces.
    """
    out = np.asarray(rows, np.float64)
    if out.shape != like.shape or not np.all(np.isfinite(out)):
        raise SpecError(f"{setting}: it must return finite rows of the shape it was given")
    return np.clip(out, 0.0, 1.0)
