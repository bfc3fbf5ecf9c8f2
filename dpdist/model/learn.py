"""The whole of learning: exact counts in, noisy tables, a fitted model in integers and the account out.

`measure` is all that reads the exact counts; what follows from it is post-processing. A public table is a prior, at no
cost: its model, learned with a public key on this table's coding, is what the private rounds begin with, and noisy
one-way counts are drawn towards its counts, as far as they do not contradict them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from dpdist.accuracy.tables import Attributes, Tables
from dpdist.data.count import PairCounts
from dpdist.model.account import GaussianAccount, Measurements, measurements_of
from dpdist.model.choices import EMPTY, HIGH_ROUNDS, L1_OF_NOISE, OF_ERROR, Choices
from dpdist.model.coding import Coding, Levels, Pair, PairTables, SingleCounts, coding_of, is_kept, recode
from dpdist.model.evidence import Evidence
from dpdist.model.fitted import Fitted, fitted_of
from dpdist.model.grids import pair_grids, triple_grids
from dpdist.model.one_way import OneWay, measure_one_way
from dpdist.model.outside import told_by
from dpdist.model.pool import AllPairs, Pool, measure_small_sets
from dpdist.model.public_rows import FAR, MISFIT, MOST_ONE_WAY, PublicPool, pool_of, with_more
from dpdist.model.rake import shrink
from dpdist.model.rounds import LARGEST_WEIGHT, Learner
from dpdist.model.sums import AskedCounts
from dpdist.privacy.arrays import Codes, Counts
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import LARGEST_COST
from dpdist.spec.rules import Rules
from dpdist.storage.stored import Stored

_TO_SETS = 8  # small sets are picked where the model has this part of its cells, so that there is room for them
REST = 0.02  # a smaller share of the account is not spent
_REMEMBERED = 4  # rounds in which tables of earlier releases enter the model


@dataclass(frozen=True, eq=False)
class Measured:
    """What was released, and the model that was fitted between the steps."""

    learner: Learner  # its exact counts are confidential, and nothing after this reads them
    all_pairs: AllPairs | None  # where records will be raked to them


@dataclass(frozen=True, eq=False)
class Known:
    """What is public of a table before it is measured."""

    rules: Rules = ()  # no record breaks them; what they forbid has probability zero where the model is small enough
    levels: Levels = ()  # hierarchies of the attributes' values
    prior: PairCounts | None = None  # counts of a public table, from which the model starts
    rows: Codes | None = None  # rows of the public table, which may be the pool; None where they may not
    evidence: Evidence | None = None  # noisy tables of earlier releases
    apart: Choices | None = None  # where these, or a public table, are too far to begin with; by default the same
    given: int = 0  # first attributes of the table that rows will be drawn given


def measure(
    counts: PairCounts | SingleCounts | Tables | AskedCounts,
    account: GaussianAccount,
    *,
    choices: Choices,
    known: Known,
    progress: Callable[[int, int], None] = lambda done, total: None,
    one_way: OneWay | None = None,
) -> Measured:
    """All steps that read exact counts, but for one-way tables that are measured already; `progress` is called with
    (done, total). Raises AccountingError: too dear.
    """
    prior, rules, evidence = known.prior, known.rules, known.evidence
    small = counts.small() if isinstance(counts, Tables) and choices.high else {}
    tables_of, counts = counts, counts.pairs if isinstance(counts, Tables) else counts
    one_way = one_way or measure_one_way(counts, account, first=choices.one_way, again=choices.one_way_again)
    if prior is not None:
        one_way = towards(one_way, prior)
    if evidence is not None:
        one_way = evidence.weigh_values(one_way)
    in_rounds = None if evidence is not None and evidence.is_far else evidence
    choices = choices if evidence is in_rounds else known.apart or choices
    coding, tables = _coded(counts, one_way, choices, known, in_rounds)
    learner = Learner(tables, coding, one_way, account, choices, rules, given=known.given)
    if choices.rake and not isinstance(tables_of, SingleCounts) and not isinstance(counts, SingleCounts):
        all_pairs = _all_pairs(tables_of, choices, account, one_way, _weights(learner))
        progress(1, 2)
        share = _learn_from(learner, all_pairs, evidence or Evidence(()), small)
        if share > REST:  # for which no small set was picked
            learner.measure_again(counts, share)
        return Measured(learner, all_pairs)
    if choices.grids:
        learner.grids = pair_grids(coding, one_way, account, choices.grids)
    attributes, steps = len(counts.cardinalities), choices.rounds + 3
    progress(1, steps)
    picks = choices.picks / max(choices.rounds + bool(choices.tree), 1)
    _begin(learner, prior, in_rounds)
    carried = choices.tree  # a share for which no pair was picked goes to the next round
    if choices.tree and learner.round("tree", share=choices.tree, pick_share=picks, most=attributes - 1, tree=True):
        learner.refit(choices.iterations[0])
        carried = 0.0
    begun = prior is not None or in_rounds is not None
    least = max(choices.prior_cells if begun else 0, learner.least_cells if learner.zeros else 0)
    for r in range(choices.rounds):
        progress(r + 2, steps)
        carried += choices.pairs / choices.rounds
        learner.cells = least + (choices.cells - least) * (r + 1) // choices.rounds  # more than in the round before
        small, carried = measure_small_sets(learner, r, small, carried)
        learner.any_pair = r >= choices.rounds - _OUTSIDE and choices.balance > 0
        carried = _round(learner, r, carried, picks)
    if learner.model is None:
        learner.refit(choices.iterations[-1])
    if (share := _left(account, choices)) > REST:  # for which no pair was picked
        learner.measure_again(counts, share)
        learner.refit(choices.iterations[-1])
    return Measured(learner, None)


def _learn_from(learner: Learner, all_pairs: AllPairs, evidence: Evidence, small: dict[Attributes, Counts]) -> float:
    """Learn from noisy tables of all pairs, and of those of `small` sets (exact, confidential) that are picked; return
    what is left of their share.
    """
    for own in (all_pairs, all_pairs.sharpened()):
        evidence.weigh_all_pairs(learner.coding, own.tables, own.sigmas.tolist(), settle=own is all_pairs)
    choices = learner.choices
    remember, share = partial(learner.remember, evidence, iterations=choices.iterations[-1]), choices.of_high
    if small:
        remember(most=choices.cells // _TO_SETS, rounds=-(-choices.rounds // 2))
        learner.cells = choices.cells
        for r in range(max(choices.rounds - HIGH_ROUNDS, 0), choices.rounds):
            small, share = measure_small_sets(learner, r, small, share)
    remember(most=choices.cells, rounds=choices.rounds)
    return share


def _coded(
    counts: PairCounts | SingleCounts | AskedCounts,
    one_way: OneWay,
    choices: Choices,
    known: Known,
    evidence: Evidence | None,
) -> tuple[Coding, PairTables]:
    """The coding of a model, and the exact tables on it."""
    if isinstance(counts, SingleCounts):
        return counts.coded(one_way, choices, known.rules, known.levels)
    if evidence and not evidence.of_all_values:
        coding = evidence.coding(one_way)
    else:
        rules, levels = known.rules, known.levels
        coding = coding_of(one_way, merge_below=choices.merge_below, coarse=choices.coarse, rules=rules, levels=levels)
    return coding, recode(counts, coding)


def _begin(learner: Learner, prior: PairCounts | None, evidence: Evidence | None) -> None:
    """Give the model what is public before the first round."""
    choices = learner.choices
    if prior is not None:
        public = public_model(prior, learner.coding, choices)
        learner.begin(public.model or public.refit(1), public.edges, choices.iterations[-1])
    elif evidence is not None:
        evidence.weigh_pairs(learner.coding)
        learner.remember(evidence, most=choices.prior_cells, rounds=_REMEMBERED, iterations=choices.iterations[0])
    elif learner.zeros:
        learner.refit(choices.iterations[0])


def _round(learner: Learner, number: int, share: float, picks: float) -> float:
    """Do a round with a share of the account; return what is carried to the next, as no pair was picked."""
    choices = learner.choices
    if not share or not learner.round(f"round/{number}", share=share, pick_share=picks, most=choices.per_round):
        return share
    learner.refit(choices.iterations[min(number + 1, len(choices.iterations) - 1)])
    return 0.0


def _all_pairs(
    counts: PairCounts | Tables | AskedCounts,
    choices: Choices,
    account: GaussianAccount,
    one_way: OneWay,
    weights: Sequence[float] | None = None,
) -> AllPairs:
    """The tables of all pairs, and those of triples where these are counted."""
    exact = counts.pairs if isinstance(counts, Tables) else counts
    tables = [exact.pair(*pair) for pair in combinations(range(len(exact.cardinalities)), 2)]
    counted = choices.triple_tables and not isinstance(counts, PairCounts)
    share = choices.rake - choices.of_high + (0.0 if counted else choices.triples)
    noisy, sigmas = account.measure("all pairs", tables, share=share, weights=weights)
    triples = None
    if counted:
        triples = triple_grids(one_way, counts if isinstance(counts, Tables) else None, choices, account)
    return AllPairs(tuple(noisy), sigmas, triples)


def _weights(learner: Learner) -> list[float]:
    """Weights of all pairs: their priorities, and by the cells of a model that hold more than noise."""
    fine, records = learner.coding.fine, learner.one_way.records
    own = {(min(a, b), max(a, b)): weight for a, b, weight in learner.choices.priorities}
    pairs = list(combinations(range(len(fine)), 2))
    sigma = float(learner.account.deviations(learner.choices.rake, [1.0] * len(pairs))[0])
    tables = [learner.marginals[min(fine[i], fine[j]), max(fine[i], fine[j])] for i, j in pairs]
    errors = [float(np.minimum(L1_OF_NOISE * sigma, records * table + EMPTY * sigma).sum()) for table in tables]
    least = max([1.0, *own.values()]) / LARGEST_WEIGHT  # noise of lesser ones may be more than is drawn
    weights = [max(own.get(pair, 1.0), least) for pair in pairs]
    return [weight * max(error, 1.0) ** OF_ERROR for weight, error in zip(weights, errors, strict=True)]


def _left(account: GaussianAccount, choices: Choices) -> float:
    """What is left of the shares that the choices have, but for rounding. A misfit has its own."""
    misfit = math.fsum(line.spent for line in account.lines if line.name == MISFIT) / account.mu**2
    return (account.left - max(1 - choices.spends - misfit, 0.0)) * (1 - 2.0**-30)


_SMOOTHING = 0.05
_OUTSIDE = 3  # last rounds in which pairs are measured for which the tree has no room, too
_MU = 30.0  # the noise of a public table: less than a record a cell
_KEY = bytes(32)  # what is drawn with it is public


def towards(one_way: OneWay, prior: PairCounts) -> OneWay:
    """Noisy one-way counts drawn towards a public table's."""
    scale = one_way.records / prior.total
    counts = tuple(
        shrink(table, prior.single(i).astype(np.float64) * scale, sigma)
        for i, (table, sigma) in enumerate(zip(one_way.counts, one_way.sigmas.tolist(), strict=True))
    )
    return replace(one_way, counts=counts)


def public_model(prior: PairCounts, coding: Coding, choices: Choices) -> Learner:
    """A model of the public table on this table's coding: a tree and, with `Choices.prior_cells`, further pairs."""
    attributes = len(prior.cardinalities)
    exact = tuple(prior.single(i).astype(float) for i in range(attributes))
    account = GaussianAccount(_MU, Noise(_KEY))
    sigmas = account.deviations(0.1, [1.0] * attributes)
    one_way = OneWay(exact, sigmas, float(prior.total))
    learner = Learner(_smoothed(recode(prior, coding)), coding, one_way, account, replace(choices, mu=_MU))
    most = 0.9 * (LARGEST_COST / _MU) ** 2 * attributes  # a share of picks that are as precise as they can be
    if attributes > 1 and learner.round("tree", share=0.2, pick_share=min(0.1, most), most=attributes, tree=True):
        learner.refit(choices.iterations[0])
    for r in range(choices.rounds if choices.prior_cells else 0):
        learner.cells = choices.prior_cells * (r + 1) // choices.rounds
        share = 0.2 / choices.rounds
        if learner.round(f"round/{r}", share=2 * share, pick_share=min(share, most), most=attributes):
            learner.refit(choices.iterations[-1])
    return learner


def _smoothed(tables: PairTables) -> PairTables:
    """Tables with a little of those of independent attributes, so that what the public table lacks stays possible."""
    independent = [np.zeros(0)]
    for k in range(len(tables.pairs)):
        table = tables.table(k)
        independent.append(np.outer(table.sum(1), table.sum(0)).ravel() / table.sum())
    cells = np.rint((1 - _SMOOTHING) * tables.cells + _SMOOTHING * np.concatenate(independent)).astype(np.int64)
    return replace(tables, cells=cells)


@dataclass(frozen=True, eq=False)
class Learned(Stored):
    """What learning gives: computed once, stored, read back. All of it may be published."""

    FILE: ClassVar[str] = "model.npz"

    fitted: Fitted
    # ``records``, the noisy number of records; ``pairs``, measured pairs and small sets in order, as places and
    # whether each is a coarse copy; ``rules``, numbers of the rules that the model keeps by itself; ``raked``;
    # ``account``, the name of each step and its share of mu^2
    report: dict[str, Any]
    measurements: Measurements  # the noisy tables

    def named(self, names: Sequence[str], share: float) -> dict[str, Any]:
        """The report, with names of the attributes and parts of an account; this share of it is the model's."""
        found, pairs = self.report, self.report["pairs"]
        account = [[step, of * share] for step, of in found["account"]]
        coarse = [[f"{names[i]} (coarse)" if is_coarse else names[i] for i, is_coarse in pair] for pair in pairs]
        return found | {"account": account, "pairs": coarse}


def learn(
    counts: PairCounts | SingleCounts | Tables | AskedCounts,
    account: GaussianAccount,
    *,
    choices: Choices,
    drawing: Noise,
    known: Known = Known(),
    progress: Callable[[int, int], None] = lambda done, total: None,
    pooled: Callable[[list[Codes]], None] = lambda parts: None,
) -> Learned:
    """Measure, pick, fit and, on large tables, rake.

    `counts` are exact and confidential, with triples where these are measured, or sums that the account asks for.
    `drawing` is public noise, independent of the account's. `progress` is called with (done, total), `pooled` with
    the parts of the pool, where there is one.
    Raises AccountingError: the steps would cost more than the account has.
    """
    exact = counts.pairs if isinstance(counts, Tables) else counts
    one_way: OneWay | None = None
    own: PublicPool | None = None
    start = known
    if known.rows is not None and isinstance(exact, PairCounts) and len(exact.cardinalities) > 1:
        one_way = measure_one_way(exact, account, first=choices.one_way, again=choices.one_way_again)
        own = PublicPool.of(pool_of(known.rows, known.rules), exact.cardinalities, choices, one_way)
        if not choices.rake:
            distance = own.distance(exact, account, choices)
            if distance <= 1:
                return _of_public_rows(own, exact, one_way, account, choices, known, pooled)
            if distance > FAR:
                start, choices = replace(known, prior=None), known.apart or choices
    measured = measure(counts, account, choices=choices, known=start, progress=progress, one_way=one_way)
    learner = measured.learner
    choices = learner.choices
    fitted = fitted_of(
        learner.model or learner.refit(1), learner.coding, learner.to_balance() if choices.balance else None
    )
    if measured.all_pairs is not None:
        pool = Pool.drawn(
            fitted, exact.cardinalities, drawing, choices, records=learner.one_way.records, rules=known.rules
        )
        if known.evidence is None:
            pool.rake_to_pairs(learner.one_way, measured.all_pairs)
        else:
            told = partial(told_by, known.evidence, learner.coding)
            pool.rake_to_pairs(learner.one_way, measured.all_pairs, told)
        if own is not None and not isinstance(counts, SingleCounts | AskedCounts):
            own.rake_to_pairs(learner.one_way, measured.all_pairs)
            if own.is_nearer(pool, counts, account):
                pool, fitted = own, replace(fitted, public=tuple(own.rows))
        pooled(pool.parts)
        fitted = pool.fitted(fitted)
    triples = None if measured.all_pairs is None else measured.all_pairs.triples
    tables = measurements_of(account, learner.coding, learner.picked, {}, triples)
    report = _report(measured, known)
    if known.prior is not None and start.prior is None:
        report["prior"] |= {"used": False}
    return Learned(fitted, _of_rows(report, known) if fitted.public else report, tables)


def _of_public_rows(
    pool: PublicPool,
    exact: PairCounts,
    one_way: OneWay,
    account: GaussianAccount,
    choices: Choices,
    known: Known,
    pooled: Callable[[list[Codes]], None],
) -> Learned:
    """Measure pairs, and weight public rows to them."""
    pooled(pool.parts)
    picked_by: dict[str, list[Pair]] = {}
    if (share := MOST_ONE_WAY - choices.one_way - choices.one_way_again) > 0:
        one_way = with_more(one_way, exact, account, "public", share)
        pool.rake_to_singles(one_way)
    if _left(account, choices) > REST:  # else even one-way tables are noise
        picked_by.update(pool.rake_in_rounds(exact, account, lambda: _left(account, choices)))
    if (share := _left(account, choices)) > REST:
        one_way = with_more(one_way, exact, account, "rest", share)
        pool.rake_to_singles(one_way)
    coding = coding_of(one_way, merge_below=choices.merge_below, coarse=(), rules=known.rules, levels=known.levels)
    learner = Learner(recode(exact, coding), coding, one_way, account, choices)
    fitted = replace(pool.fitted(fitted_of(learner.refit(1), coding, None)), public=tuple(pool.rows))
    report = _of_rows(_report(Measured(learner, None), known), known)
    pairs = [pair for picked in picked_by.values() for pair in picked]
    report |= {"pairs": [[[i, False] for i in pair] for pair in pairs], "raked": False}
    return Learned(fitted, report, measurements_of(account, coding, (), picked_by))


def _of_rows(report: dict[str, Any], known: Known) -> dict[str, Any]:
    """A report that says that public rows are released: they break no rule."""
    report["prior"] |= {"released": "its rows, reweighted"}
    return report | ({"rules": list(range(len(known.rules)))} if known.rules else {})


def _report(measured: Measured, known: Known) -> dict[str, Any]:
    learner = measured.learner
    coding, account = learner.coding, learner.account
    report: dict[str, Any] = {
        "records": round(learner.one_way.records),
        "pairs": [[[coding.source[a], a not in coding.fine] for a in pair] for pair in learner.picked],
        "raked": measured.all_pairs is not None,
        "account": [[line.name, line.spent / account.mu**2] for line in account.lines],
    }
    if known.rules:
        report["rules"] = sorted(k for k in learner.zeros if is_kept(known.rules[k], coding))
    if known.evidence is not None:
        report["drift"] = known.evidence.report()
    if known.prior is not None:
        report["prior"] = {"records": known.prior.total}
    return report
