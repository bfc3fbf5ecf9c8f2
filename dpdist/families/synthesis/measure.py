"""All that a synthesis releases of the exact counts: what follows from it is post-processing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts
from dpdist.families.synthesis.account import Account
from dpdist.families.synthesis.choices import L1_OF_NOISE, Choices
from dpdist.families.synthesis.marginals import coding_of, measure_one_way
from dpdist.families.synthesis.prior import public_model, towards
from dpdist.families.synthesis.rounds import Learner
from dpdist.families.synthesis.tables import recode


@dataclass(frozen=True, eq=False)
class AllPairs:
    """Noisy tables of all pairs of the table's attributes.

    Attributes
    ----------
    tables : tuple of ndarray of int64
        In the order of `itertools.combinations`.
    sigmas : ndarray of float64
    """

    tables: tuple[NDArray[np.int64], ...]
    sigmas: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """What was released, and the model that was fitted between the steps.

    Attributes
    ----------
    learner : Learner
        With the noisy one-way and pair tables; its exact counts are confidential and nothing after this reads them.
    all_pairs : AllPairs or None
        Where records will be raked to them.
    """

    learner: Learner
    all_pairs: AllPairs | None


def measure(
    counts: PairCounts,
    *,
    choices: Choices,
    account: Account,
    prior: PairCounts | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """All steps that read the exact counts.

    Parameters
    ----------
    counts : PairCounts
        Exact counts of all records. Confidential.
    choices : Choices
    account : Account
    prior : PairCounts, optional
        Of a public table, from which the model starts.
    progress : callable
        Called with (done, total) after each round.

    Raises
    ------
    AccountingError
        The steps would cost more than the account has.
    """
    one_way = measure_one_way(counts, account, first=choices.one_way, again=choices.one_way_again)
    if prior is not None:
        one_way = towards(one_way, prior)
    coding = coding_of(one_way, merge_below=choices.merge_below, coarse=choices.coarse)
    learner = Learner(recode(counts, coding), coding, one_way, account, choices)
    attributes, steps = len(counts.cardinalities), choices.rounds + 3
    progress(1, steps)
    picks = choices.picks / max(choices.rounds + bool(choices.tree), 1)
    if prior is not None:
        public = public_model(prior, coding, choices)
        learner.begin(public.model or public.refit(1), public.edges, choices.iterations[-1])
    least = 0 if prior is None else choices.cells // 2  # what the public model may have taken
    if choices.tree and learner.round("tree", share=choices.tree, pick_share=picks, most=attributes - 1, tree=True):
        learner.refit(choices.iterations[0])
    for r in range(choices.rounds):
        progress(r + 2, steps)
        share = choices.pairs / choices.rounds
        learner.cells = least + (choices.cells - least) * (r + 1) // choices.rounds
        if share and learner.round(f"round/{r}", share=share, pick_share=picks, most=choices.per_round):
            learner.refit(choices.iterations[min(r + 1, len(choices.iterations) - 1)])
    if learner.model is None:
        learner.refit(choices.iterations[-1])
    if not choices.rake:
        return Measured(learner, None)
    if not _worth_raking(learner, counts, choices):
        _more_rounds(learner, choices)
        return Measured(learner, None)
    pairs = combinations(range(attributes), 2)
    noisy, sigmas = account.measure("all pairs", [counts.pair(*pair) for pair in pairs], share=choices.rake)
    return Measured(learner, AllPairs(tuple(noisy), sigmas))


def _own_pairs(learner: Learner) -> NDArray[np.int64]:
    """Numbers of the pairs without coarse copies."""
    fine = set(learner.coding.fine)
    return np.array([k for k, pair in enumerate(learner.tables.pairs) if set(pair) <= fine], np.int64)


def _worth_raking(learner: Learner, counts: PairCounts, choices: Choices) -> bool:
    """Whether the model misses more than 0.4 of the noise of a table of all pairs: a noisy mean distance tells."""
    own = _own_pairs(learner)
    distances = learner.tables.distances(learner.expected())[own]
    # the sum of P distances has sensitivity P; divided by P afterwards
    total = np.array([int(distances.sum())], np.int64)
    number = len(own)
    (noisy,), _ = learner.account.measure("misfit", [total], share=choices.misfit, sensitivity=number)
    cells = np.mean([a * b for a, b in combinations(counts.cardinalities, 2)])
    sigma = learner.account.deviations(choices.rake, [1.0] * number)[0]
    return bool(noisy[0] / number >= 0.4 * L1_OF_NOISE * sigma * cells)


def _more_rounds(learner: Learner, choices: Choices) -> None:
    """Spend raking's share on further rounds."""
    for r in range(choices.rounds, 2 * choices.rounds):
        share = choices.rake / choices.rounds
        if learner.round(f"round/{r}", share=0.95 * share, pick_share=0.05 * share, most=choices.per_round):
            learner.refit(choices.iterations[-1])
