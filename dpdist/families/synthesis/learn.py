"""The whole of learning: exact pair counts in, a fitted model in integers and the account out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts
from dpdist.families.synthesis.account import Account
from dpdist.families.synthesis.choices import L1_OF_NOISE, Choices
from dpdist.families.synthesis.draw import draw_part
from dpdist.families.synthesis.fitted import Fitted, fitted_of
from dpdist.families.synthesis.inference import Floats
from dpdist.families.synthesis.marginals import OneWay, coding_of, measure_one_way
from dpdist.families.synthesis.rake import rake, shrink
from dpdist.families.synthesis.rounds import Learner
from dpdist.families.synthesis.tables import recode
from dpdist.privacy.noise import Noise


@dataclass(frozen=True, eq=False)
class Learned:
    """What learning gives: computed once, stored, read back. All of it may be published.

    Attributes
    ----------
    fitted : Fitted
    one_way : tuple of ndarray of float64
        Noisy one-way counts.
    report : dict
        ``records``, the noisy number of records; ``pairs``, the measured pairs in order, as places of two attributes
        and whether each is a coarse copy; ``raked``; ``account``, the name of each step and its share of mu^2.
    """

    FILE: ClassVar[str] = "model.npz"

    fitted: Fitted
    one_way: tuple[Floats, ...]
    report: dict[str, Any]

    def to_bytes(self) -> bytes:
        """The arrays in NumPy's archive format, uncompressed and without pickles."""
        report = np.frombuffer(json.dumps(self.report, sort_keys=True).encode(), np.uint8)
        counts = {f"one_way{i}": table for i, table in enumerate(self.one_way)}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, report=report, **counts, **self.fitted.arrays())
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Learned:
        """What `to_bytes` wrote."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            fitted = Fitted.from_arrays(arrays)
            counts = tuple(arrays[f"one_way{i}"] for i in range(len(fitted.fine)))
            return cls(fitted, counts, json.loads(arrays["report"].tobytes()))


def learn(
    counts: PairCounts,
    *,
    choices: Choices,
    noise: Noise,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Learned:
    """Measure, pick, fit and, on large tables, rake.

    Parameters
    ----------
    counts : PairCounts
        Exact counts of all records. Confidential.
    choices : Choices
    noise : Noise
    progress : callable
        Called with (done, total) after each round.

    Raises
    ------
    AccountingError
        The steps would cost more than the account has.
    """
    account = Account(choices.mu, noise)
    one_way = measure_one_way(counts, account, first=choices.one_way, again=choices.one_way_again)
    coding = coding_of(one_way, merge_below=choices.merge_below, coarse=choices.coarse)
    learner = Learner(recode(counts, coding), coding, one_way, account, choices)
    attributes, steps = len(counts.cardinalities), choices.rounds + 3
    progress(1, steps)
    picks = choices.picks / (choices.rounds + 1)
    if choices.tree and learner.round("tree", share=choices.tree, pick_share=picks, most=attributes - 1, tree=True):
        learner.refit(choices.iterations[0])
    for r in range(choices.rounds):
        progress(r + 2, steps)
        share = choices.pairs / choices.rounds
        learner.cells = choices.cells * (r + 1) // choices.rounds
        if share and learner.round(f"round/{r}", share=share, pick_share=picks, most=choices.per_round):
            learner.refit(choices.iterations[min(r + 1, len(choices.iterations) - 1)])
    if learner.model is None:
        learner.refit(choices.iterations[-1])
    raked = bool(choices.rake) and _worth_raking(learner, counts, choices)
    if choices.rake and not raked:
        _more_rounds(learner, choices)
    progress(steps - 1, steps)
    fitted = fitted_of(learner.model or learner.refit(1), coding, learner.marginals if choices.balance else None)
    if raked:
        fitted = _raked(fitted, counts, one_way, account, noise, choices)
    return Learned(fitted, one_way.counts, _report(learner, raked=raked))


def _report(learner: Learner, *, raked: bool) -> dict[str, Any]:
    coding, account = learner.coding, learner.account
    return {
        "records": round(learner.one_way.records),
        "pairs": [
            [[coding.source[a], a not in coding.fine] for a in measurement.attributes]
            for measurement in learner.measurements
            if len(measurement.attributes) == 2
        ],
        "raked": raked,
        "account": [[line.name, line.spent / account.mu**2] for line in account.lines],
    }


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


def _raked(
    fitted: Fitted, counts: PairCounts, one_way: OneWay, account: Account, noise: Noise, choices: Choices
) -> Fitted:
    """Measure all pairs, and adjust the weights of the pool that records will be taken from."""
    d = len(counts.cardinalities)
    pairs = list(combinations(range(d), 2))
    noisy, sigmas = account.measure("all pairs", [counts.pair(*pair) for pair in pairs], share=choices.rake)
    parts = [draw_part(fitted, noise, f"pool/{p}", choices.pool_rows) for p in range(choices.pool_parts)]
    pool = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    scale = one_way.records / len(pool[0])
    targets: dict[tuple[int, ...], Floats] = {}
    for pair, table, sigma in zip(pairs, noisy, sigmas.tolist(), strict=True):
        a, b = pair
        width = counts.cardinalities[b]
        model = np.bincount(pool[a] * width + pool[b], minlength=table.size).astype(np.float64) * scale
        targets[pair] = _share(shrink(table.ravel().astype(np.float64), model, sigma)).reshape(table.shape)
    for i in range(d):
        model = np.bincount(pool[i], minlength=counts.cardinalities[i]).astype(np.float64) * scale
        targets[(i,)] = _share(shrink(one_way.counts[i], model, float(one_way.sigmas[i])))
    adjustment, expected = rake(pool, counts.cardinalities, targets, sweeps=choices.sweeps)
    return replace(
        fitted,
        adjustment=adjustment,
        expected=expected if choices.balance else fitted.expected,
        pool_parts=choices.pool_parts,
        pool_rows=choices.pool_rows,
    )


def _share(table: NDArray[np.float64]) -> NDArray[np.float64]:
    total = float(table.sum())
    return table / total if total > 0 else np.full(table.shape, 1 / table.size)
