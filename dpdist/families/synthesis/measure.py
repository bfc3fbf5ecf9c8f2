"""All that a synthesis releases of the exact counts: what follows from it is post-processing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpdist.accuracy.tables import Attributes
from dpdist.data.count import PairCounts
from dpdist.families.synthesis.account import GaussianAccount
from dpdist.families.synthesis.choices import EMPTY, L1_OF_NOISE, Choices
from dpdist.families.synthesis.marginals import Levels, coding_of, measure_one_way
from dpdist.families.synthesis.prior import public_model, towards
from dpdist.families.synthesis.rounds import Learner, pick_sets
from dpdist.families.synthesis.tables import recode
from dpdist.families.synthesis.wide import SingleCounts
from dpdist.privacy.arrays import Counts, Floats
from dpdist.spec.rules import Rules

REST = 0.02
"""A smaller share of the account is not spent."""


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
    counts: PairCounts | SingleCounts,
    *,
    choices: Choices,
    account: GaussianAccount,
    prior: PairCounts | None = None,
    rules: Rules = (),
    levels: Levels = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """All steps that read the exact counts. Raises AccountingError: they would cost more than the account has.

    Parameters
    ----------
    counts : PairCounts or SingleCounts
        Exact counts of all records. Confidential. Without pairs nothing is raked, and there is no prior.
    choices : Choices
    account : GaussianAccount
    prior : PairCounts, optional
        Of a public table, from which the model starts.
    rules : Rules
        What they forbid has probability zero where the model is small enough.
    levels : Levels
        Public hierarchies of the attributes' values.
    progress : callable
        Called with (done, total) after each round.
    """
    one_way = measure_one_way(counts, account, first=choices.one_way, again=choices.one_way_again)
    if prior is not None:
        one_way = towards(one_way, prior)
    if isinstance(counts, SingleCounts):
        coding, tables = counts.coded(one_way, choices, rules, levels)
    else:
        coding = coding_of(one_way, merge_below=choices.merge_below, coarse=choices.coarse, rules=rules, levels=levels)
        tables = recode(counts, coding)
    learner = Learner(tables, coding, one_way, account, choices, rules)
    attributes, steps = len(counts.cardinalities), choices.rounds + 3
    progress(1, steps)
    picks = choices.picks / max(choices.rounds + bool(choices.tree), 1)
    if prior is not None:
        public = public_model(prior, coding, choices)
        learner.begin(public.model or public.refit(1), public.edges, choices.iterations[-1])
    elif learner.zeros:
        learner.refit(choices.iterations[0])
    carried = choices.tree  # a share for which no pair was picked goes to the next round
    if choices.tree and learner.round("tree", share=choices.tree, pick_share=picks, most=attributes - 1, tree=True):
        learner.refit(choices.iterations[0])
        carried = 0.0
    least = max(0 if prior is None else choices.prior_cells, learner.least_cells if learner.zeros else 0)
    for r in range(choices.rounds):
        progress(r + 2, steps)
        carried = _round(learner, choices, r, least=least, picks=picks, carried=carried)
    if learner.model is None:
        learner.refit(choices.iterations[-1])
    if choices.rake and not isinstance(counts, SingleCounts):
        if _worth_raking(learner, counts, choices):
            return Measured(learner, _all_pairs(counts, choices, account))
        _more_rounds(learner, choices, carried)
    _spend_rest(learner, counts, choices)
    return Measured(learner, None)


def _all_pairs(counts: PairCounts, choices: Choices, account: GaussianAccount) -> AllPairs:
    """The tables of all pairs, with what the account has left but for triples."""
    tables = [counts.pair(*pair) for pair in combinations(range(len(counts.cardinalities)), 2)]
    share = max(_left(account, choices) - choices.triples - choices.triple_picks, choices.rake)
    noisy, sigmas = account.measure("all pairs", tables, share=share)
    return AllPairs(tuple(noisy), sigmas)


def _round(learner: Learner, choices: Choices, r: int, *, least: int, picks: float, carried: float) -> float:
    """One of the rounds, in which the model may have more cells than in those before, and a fit if it measured.

    Returns what the next round has more, where none was picked.
    """
    share = choices.pairs / choices.rounds + carried
    learner.cells = least + (choices.cells - least) * (r + 1) // choices.rounds
    if share and learner.round(f"round/{r}", share=share, pick_share=picks, most=choices.per_round):
        learner.refit(choices.iterations[min(r + 1, len(choices.iterations) - 1)])
        return 0.0
    return share


def _left(account: GaussianAccount, choices: Choices) -> float:
    """What is left of the shares that the choices have, but for rounding."""
    return (account.left - max(1 - choices.spends, 0.0)) * (1 - 2.0**-30)


def _spend_rest(learner: Learner, counts: PairCounts | SingleCounts, choices: Choices) -> None:
    """Measure the one-way tables once more with what no pair was picked for."""
    if (share := _left(learner.account, choices)) > REST:
        learner.measure_again(counts, share)
        learner.refit(choices.iterations[-1])


@dataclass(frozen=True, eq=False)
class Triples:
    """Noisy tables of picked triples of the table's attributes.

    Attributes
    ----------
    attributes : tuple of (int, int, int)
    tables : tuple of ndarray of int64
        Flat.
    sigma : float
    """

    attributes: tuple[Attributes, ...]
    tables: tuple[NDArray[np.int64], ...]
    sigma: float


def measure_triples(
    exact: Mapping[Attributes, Counts],
    expected: Mapping[Attributes, Floats],
    *,
    choices: Choices,
    account: GaussianAccount,
) -> Triples:
    """Pick triples that a public model misses most, and measure their tables.

    A triple's score is as a pair's (`Learner.round`): the L1 distance of its table to the model, less a part of the
    error that measuring it would leave.

    Parameters
    ----------
    exact : mapping
        Tables of the candidates, flat. Confidential.
    expected : mapping
        The model's counts of the same tables. Public.

    Raises
    ------
    AccountingError
        The steps would cost more than the account has.
    """
    most, candidates = choices.triple_tables, tuple(exact)
    sigma = float(account.deviations(choices.triples, [1.0] * most)[0])
    picked = pick_sets(
        "triples",
        triple_scores(exact, expected, sigma=sigma, penalty=choices.penalty),
        candidates,
        account,
        scale=account.pick_scale(choices.triple_picks, most),
        most=most,
        valid=lambda picked: lambda triple: True,
    )
    if not picked:
        return Triples((), (), 0.0)
    noisy, sigmas = account.measure("triples", [exact[triple] for triple in picked], share=choices.triples)
    return Triples(tuple(picked), tuple(noisy), float(sigmas[0]))


def triple_scores(
    exact: Mapping[Attributes, Counts], expected: Mapping[Attributes, Floats], *, sigma: float, penalty: float
) -> Counts:
    """Scores of triples, for noise of this deviation; one record changes each by at most 1. Confidential."""
    scores = []
    for triple, table in exact.items():
        model = np.rint(expected[triple]).astype(np.int64)
        error = np.minimum(L1_OF_NOISE * sigma, model + EMPTY * sigma).sum()
        scores.append(int(np.abs(table - model).sum()) - round(penalty * float(error)))
    return np.array(scores, np.int64)


def _own_pairs(learner: Learner) -> NDArray[np.int64]:
    """Numbers of the pairs without coarse copies."""
    fine = set(learner.coding.fine)
    return np.array([k for k, pair in enumerate(learner.tables.pairs) if set(pair) <= fine], np.int64)


def _worth_raking(learner: Learner, counts: PairCounts, choices: Choices) -> bool:
    """Whether the model misses more than a part of the noise of a table of all pairs: a noisy mean distance tells.

    Two fifths of it; half as much where triples would be measured, which only a pool can follow.
    """
    own = _own_pairs(learner)
    distances = learner.tables.distances(learner.expected())[own]
    # the sum of P distances has sensitivity P; divided by P afterwards
    total = np.array([int(distances.sum())], np.int64)
    number = len(own)
    (noisy,), _ = learner.account.measure("misfit", [total], share=choices.misfit, sensitivity=number)
    cells = np.mean([a * b for a, b in combinations(counts.cardinalities, 2)])
    sigma = learner.account.deviations(choices.rake, [1.0] * number)[0]
    part = 0.2 if choices.triple_tables else 0.4
    return bool(noisy[0] / number >= part * L1_OF_NOISE * sigma * cells)


def _more_rounds(learner: Learner, choices: Choices, carried: float) -> None:
    """Spend the share of raking, and of triples, on further rounds."""
    for r in range(choices.rounds, 2 * choices.rounds):
        share = (choices.rake + choices.triples + choices.triple_picks) / choices.rounds
        carried += 0.95 * share
        if learner.round(f"round/{r}", share=carried, pick_share=0.05 * share, most=choices.per_round):
            learner.refit(choices.iterations[-1])
            carried = 0.0
