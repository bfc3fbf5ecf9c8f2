"""The whole of learning: exact pair counts in, a fitted model in integers and the account out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dpdist.accuracy.tables import Attributes
from dpdist.data.count import PairCounts
from dpdist.families.synthesis.account import GaussianAccount
from dpdist.families.synthesis.choices import Choices
from dpdist.families.synthesis.fitted import Fitted, fitted_of
from dpdist.families.synthesis.marginals import Levels
from dpdist.families.synthesis.measure import Measured, measure
from dpdist.families.synthesis.measurements import Measurements, measurements_of
from dpdist.families.synthesis.pool import Pool, fitting_triples
from dpdist.families.synthesis.wide import SingleCounts
from dpdist.families.synthesis.zeros import is_kept
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.rules import Rules
from dpdist.storage.stored import Stored


@dataclass(frozen=True, eq=False)
class Learned(Stored):
    """What learning gives: computed once, stored, read back. All of it may be published.

    Attributes
    ----------
    fitted : Fitted
    one_way : tuple of ndarray of float64
        Noisy one-way counts.
    report : dict
        ``records``, the noisy number of records; ``pairs``, the measured pairs in order, as places of two attributes
        and whether each is a coarse copy; ``rules``, numbers of the rules that the model keeps by itself; ``raked``;
        ``account``, the name of each step and its share of mu^2.
    measurements : Measurements
        The noisy tables.
    """

    FILE: ClassVar[str] = "model.npz"

    fitted: Fitted
    one_way: tuple[Floats, ...]
    report: dict[str, Any]
    measurements: Measurements


def learn(
    counts: PairCounts | SingleCounts,
    *,
    choices: Choices,
    noise: Noise,
    drawing: Noise,
    prior: PairCounts | None = None,
    triples: Mapping[Attributes, Counts] | None = None,
    rules: Rules = (),
    levels: Levels = (),
    prefix: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
    pooled: Callable[[list[Codes]], None] = lambda parts: None,
) -> Learned:
    """Measure, pick, fit and, on large tables, rake.

    Parameters
    ----------
    counts : PairCounts or SingleCounts
        Exact counts of all records. Confidential.
    choices : Choices
    noise, drawing : Noise
        Of the measurements: secret. Of the records: public, and independent of it.
    prior : PairCounts, optional
        Of a public table, from which the model starts.
    triples : mapping, optional
        Exact tables of the triples that may be measured, flat. Confidential. Needed where the choices have any.
    rules : Rules
        No record that the model gives breaks them.
    levels : Levels
        Public hierarchies of the attributes' values.
    prefix : str
        What the names of the measurements' noise begin with, where one key serves several tables.
    progress : callable
        Called with (done, total) after each round.
    pooled : callable
        Called with the parts of the pool, where there is one (`dpdist.families.synthesis.draw.pool_part`).

    Raises
    ------
    AccountingError
        The steps would cost more than the account has.
    """
    account = GaussianAccount(choices.mu, noise, prefix)
    measured = measure(
        counts, choices=choices, account=account, prior=prior, rules=rules, levels=levels, progress=progress
    )
    learner = measured.learner
    fitted = fitted_of(
        learner.model or learner.refit(1), learner.coding, learner.marginals if choices.balance else None
    )
    picked: tuple[Attributes, ...] = ()
    if measured.all_pairs is not None:
        pool = Pool.drawn(fitted, counts.cardinalities, drawing, choices, records=learner.one_way.records, rules=rules)
        pooled(pool.parts)
        pool.rake_to_pairs(learner.one_way, measured.all_pairs)
        if choices.triple_tables:
            picked = pool.rake_to_triples(fitting_triples(triples or {}), account)
        fitted = pool.fitted(fitted)
    coded = [m.attributes for m in learner.measurements if len(m.attributes) > 1]
    tables = measurements_of(account, learner.coding, coded, picked)
    return Learned(fitted, learner.one_way.counts, _report(measured, picked, rules, prior), tables)


def _report(
    measured: Measured, picked: tuple[Attributes, ...], rules: Rules, prior: PairCounts | None
) -> dict[str, Any]:
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
    if rules:
        report["rules"] = sorted(k for k in learner.zeros if is_kept(rules[k], learner.coding))
    if picked:
        report["triples"] = [list(triple) for triple in picked]
    if prior is not None:
        report["prior"] = {"records": prior.total}
    return report
