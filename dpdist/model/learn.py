"""The whole of learning: exact pair counts in, a fitted model in integers and the account out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from dpdist.accuracy.tables import Attributes, Tables
from dpdist.data.count import PairCounts
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import Choices
from dpdist.model.coding import SingleCounts
from dpdist.model.fitted import Fitted, fitted_of
from dpdist.model.measure import Known, Measured, measure
from dpdist.model.measurements import Measurements, measurements_of
from dpdist.model.pool import Pool, fitting_triples
from dpdist.model.zeros import is_kept
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.storage.stored import Stored


@dataclass(frozen=True, eq=False)
class Learned(Stored):
    """What learning gives: computed once, stored, read back. All of it may be published."""

    FILE: ClassVar[str] = "model.npz"

    fitted: Fitted
    one_way: tuple[Floats, ...]  # noisy one-way counts
    # ``records``, the noisy number of records; ``pairs``, the measured pairs in order, as places of two attributes and
    # whether each is a coarse copy; ``rules``, numbers of the rules that the model keeps by itself; ``raked``;
    # ``account``, the name of each step and its share of mu^2
    report: dict[str, Any]
    measurements: Measurements  # the noisy tables


def learn(
    counts: PairCounts | SingleCounts | Tables,
    account: GaussianAccount,
    *,
    choices: Choices,
    drawing: Noise,
    known: Known = Known(),
    progress: Callable[[int, int], None] = lambda done, total: None,
    pooled: Callable[[list[Codes]], None] = lambda parts: None,
) -> Learned:
    """Measure, pick, fit and, on large tables, rake.

    `counts` are exact counts of all records, confidential, with those of triples where triples are measured. The
    account's noise is secret; `drawing`, that of the records, is public and independent of it. `progress` is called
    with (done, total) after each round, `pooled` with the parts of the pool, where there is one. Raises
    AccountingError: the steps would cost more than the account has.
    """
    exact = counts.pairs if isinstance(counts, Tables) else counts
    measured = measure(exact, account, choices=choices, known=known, progress=progress)
    learner = measured.learner
    fitted = fitted_of(
        learner.model or learner.refit(1), learner.coding, learner.marginals if choices.balance else None
    )
    picked: tuple[Attributes, ...] = ()
    if measured.all_pairs is not None:
        pool = Pool.drawn(
            fitted, exact.cardinalities, drawing, choices, records=learner.one_way.records, rules=known.rules
        )
        pooled(pool.parts)
        pool.rake_to_pairs(learner.one_way, measured.all_pairs)
        if choices.triple_tables and isinstance(counts, Tables):
            picked = pool.rake_to_triples(fitting_triples(counts), account)
        fitted = pool.fitted(fitted)
    coded = [m.attributes for m in learner.measurements if len(m.attributes) > 1]
    tables = measurements_of(account, learner.coding, coded, picked)
    return Learned(fitted, learner.one_way.counts, _report(measured, picked, known), tables)


def _report(measured: Measured, picked: tuple[Attributes, ...], known: Known) -> dict[str, Any]:
    learner = measured.learner
    coding, account = learner.coding, learner.account
    report: dict[str, Any] = {
        "records": round(learner.one_way.records),
        "pairs": [
            [[coding.source[a], a not in coding.fine] for a in measurement.attributes]
            for measurement in learner.measurements
            if len(measurement.attributes) == 2
        ],
        "raked": measured.all_pairs is not None,
        "account": [[line.name, line.spent / account.mu**2] for line in account.lines],
    }
    if known.rules:
        report["rules"] = sorted(k for k in learner.zeros if is_kept(known.rules[k], coding))
    if picked:
        report["triples"] = [list(triple) for triple in picked]
    if known.prior is not None:
        report["prior"] = {"records": known.prior.total}
    return report
