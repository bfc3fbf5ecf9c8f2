"""Stage 1 of the published method on blocks of records: statistics, synthetic rows, disclosure, mixed rows.

Each original row meets its own synthetic neighbour, and both are mixed: ``x* = alpha x + (1 - alpha) s``. The neighbour
is the nearest *unused* one: the assignment with the least total squared distance, or as published the greedy one, in
which each row in turn takes the nearest that is left. Up to `MATCHED_ROWS` rows are assigned together. Beyond, both
sets are halved again and again at the median of the same column until blocks are small, and each pair of blocks is
assigned.

Rows live on the unit cube (`dpdist.families.prediction.columns`). Not differentially private: original rows are mixed
into the output, and the regression is trained on them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import CheckFailed
from dpdist.families.prediction import first_stage
from dpdist.families.prediction.columns import snapped
from dpdist.families.prediction.first_stage import FOLDS, Marginal, Target
from dpdist.families.prediction.lid.method import MATCHED_ROWS, Block, Method, codes, rows_of_parties
from dpdist.families.prediction.lid.regression import own_rows
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import squared_distances
from dpdist.storage.stored import Stored

NEIGHBOURS = 256
"""Most rows of a block beyond that."""

Places = NDArray[np.int64]


def match_exactly(original: Floats, synthetic: Floats) -> Places:
    """The synthetic row of each original one, int64[n]: the assignment with the least total squared distance."""
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(squared_distances(original, synthetic))[1], np.int64)


def match_greedily(original: Floats, synthetic: Floats) -> Places:
    """As `match_exactly`, but each original row, in order, takes the nearest synthetic row that is left."""
    distances = squared_distances(original, synthetic)
    places = np.empty(len(original), np.int64)
    for row, distance in enumerate(distances):
        places[row] = np.argmin(distance)
        distances[row + 1 :, places[row]] = np.inf
    return places


ASSIGNMENTS: dict[str, Callable[[Floats, Floats], Places]] = {"nearest": match_exactly, "greedy": match_greedily}
"""Ways to assign the rows of a block."""


def match(
    original: Floats,
    synthetic: Floats,
    *,
    method: str = "nearest",
    exact_rows: int = MATCHED_ROWS,
    block_rows: int = NEIGHBOURS,
) -> Places:
    """The synthetic row that each original row is mixed with; both float64[n, d], columns on scales that may be
    compared. More than `exact_rows` are assigned within blocks of neighbours of at most `block_rows`.

    The method is one of `ASSIGNMENTS`, or ``independent``: whichever row stands at the same place, so that the
    synthetic row says nothing about the original one.
    """
    places = np.arange(len(original), dtype=np.int64)
    if method == "independent" or not original.shape[1]:
        return places
    most, pending = len(original) if len(original) <= exact_rows else block_rows, [(places.copy(), places.copy())]
    while pending:
        mine, theirs = pending.pop()
        if len(mine) <= most:
            places[mine] = theirs[ASSIGNMENTS[method](original[mine], synthetic[theirs])]
            continue
        column = int(np.argmax(np.ptp(original[mine], axis=0)))
        mine = mine[np.argsort(original[mine, column], kind="stable")]
        theirs = theirs[np.argsort(synthetic[theirs, column], kind="stable")]
        half = len(mine) // 2
        pending += [(mine[:half], theirs[:half]), (mine[half:], theirs[half:])]
    return places


def mix(original: Floats, synthetic: Floats, *, alpha: float, mixed: NDArray[np.bool_] | None = None) -> Floats:
    """``alpha * original + (1 - alpha) * synthetic``; columns not `mixed` stay synthetic, unless alpha is 1."""
    out = alpha * original + (1 - alpha) * synthetic
    if mixed is not None and alpha < 1:
        out[:, ~mixed] = synthetic[:, ~mixed]
    return np.asarray(out)


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


def deviations_of(parties: Sequence[Distribution]) -> Floats:
    """Deviation of each input of these parties together, float64[inputs]; 1 where it does not vary."""
    records = [party.records for party in parties]
    columns = zip(*(party.marginals for party in parties), strict=True)
    return np.array([first_stage.pooled_deviation(column, records) for column in columns])


CellCounts = tuple[tuple[Counts, ...], ...]
"""Of each party and input: records in each cell by fold."""


def fold_counts(method: Method, key: KeyRef, block: Block, start: int) -> CellCounts:
    """The counts of a block; `start` is the number of its first record."""
    inputs, _ = block
    words = load_noise(key).words("prediction/folds", len(inputs), start=start)
    folds = (words % np.uint64(FOLDS)).astype(np.int64)
    return tuple(
        tuple(
            first_stage.cell_counts(inputs[rows, i], folds[rows], first_stage.cell_count(scale))
            for i, scale in enumerate(method.scales)
        )
        for rows in rows_of_parties(method, block)
    )


def added(parts: Sequence[Any]) -> Any:
    """Arrays of several blocks together, in tuples of any depth."""
    if isinstance(parts[0], tuple):
        return tuple(map(added, zip(*parts, strict=True)))
    return reduce(operator.add, parts)


def fit_marginals(method: Method, counts: CellCounts) -> tuple[tuple[Marginal, ...], ...]:
    """The marginals of all inputs of each party."""
    return tuple(
        tuple(
            first_stage.fit_marginal(one, scale, paper=method.paper_bandwidths)
            for one, scale in zip(party, method.scales, strict=True)
        )
        for party in counts
    )


def block_scores(method: Method, marginals: Sequence[Sequence[Marginal]], block: Block) -> tuple[Counts, ...]:
    """Of each party, sums of the products of the normal scores of the inputs that are synthesised."""
    made, parties = list(method.made), rows_of_parties(method, block)
    return tuple(
        first_stage.score_sums(block[0][rows][:, made], [known[i] for i in made])
        for rows, known in zip(parties, marginals, strict=True)
    )


def synthetic_rows(method: Method, inputs: InputDistribution, key: KeyRef, block: Block, number: int) -> Floats:
    """The synthetic row of each record of a block, drawn and matched within its party: float64[n, synthesised]."""
    original = block[0][:, list(method.made)]
    rng = first_stage.generator(load_noise(key), "prediction/first-stage", number)
    out = np.empty_like(original)
    for rows, party in zip(rows_of_parties(method, block), inputs.parties, strict=True):
        if len(mine := original[rows]):
            # A synthetic row for each of a party's records in a block
            if method.first_stage in first_stage.FIRST_STAGES:
                synthetic = first_stage.FIRST_STAGES[method.first_stage](party.target(method), len(mine), rng)
            else:
                synthetic = own_rows(method.first_stage, mine, rng)
            compared = [place for place, scale in enumerate(method.made_scales) if not scale.nominal]
            weights = 1 / deviations_of([party])[[method.made[place] for place in compared]]
            places = match(
                mine[:, compared] * weights,
                synthetic[:, compared] * weights,
                method=method.matching,
                exact_rows=method.exact_rows,
            )
            out[rows] = synthetic[places]
    return out


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


_ALWAYS_NEAR = "a column that hardly varies is always near (privacy.disclosure.columns says which are looked at)"


def disclosed(method: Method, counts: Counts, records: Sequence[int]) -> Disclosed:
    """The share of the original row in the release: the one given, or the largest within the disclosure of every party.
    `counts` are those of `near_counts`, over all records, with the number of each party. Raises CheckFailed: the
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
            f"so nothing is published: lower prediction.alpha, or leave it out to have it chosen; {_ALWAYS_NEAR}"
        )
    raise CheckFailed(
        f"even with alpha 0 more than {lid:g} of the released rows{whose} would be near their originals, so nothing is "
        "published: raise privacy.disclosure.lid, lower its eta, or set prediction.matching: independent; "
        f"{_ALWAYS_NEAR}"
    )


@dataclass(frozen=True)
class ResponsesDisclosed(Disclosed):
    """The same of the response: `near` are rows whose response is near the original one."""

    FILE: ClassVar[str] = "response.json"


def responses_disclosed(
    method: Method, alphas: Sequence[float], counts: Counts, records: Sequence[int]
) -> ResponsesDisclosed:
    """The largest of some alphas with which the responses of every party are within the disclosure; `counts`,
    int64[parties, alphas], are of responses near the original ones. Raises CheckFailed: none is.
    """
    share = method.disclosure.response or 1.0
    for alpha, near in zip(reversed(alphas), reversed(counts.T.tolist()), strict=True):
        if all(one <= share * count for one, count in zip(near, records, strict=True)):
            return ResponsesDisclosed(alpha, sum(near))
    raise CheckFailed(
        f"more than {share:g} of the released responses would be near the original ones, so nothing is published: "
        "raise privacy.disclosure.response, or lower its eta"
    )


def mixed_rows(method: Method, inputs: Floats, synthetic: Floats, *, alpha: float) -> Floats:
    """The released inputs of a block, float64[n, inputs], in the order of the records."""
    made, scales = list(method.made), method.made_scales
    out = inputs.copy()
    mixed = np.array([not scale.nominal for scale in scales], bool)
    out[:, made] = snapped(scales, mix(inputs[:, made], synthetic, alpha=alpha, mixed=mixed))
    return out
