"""Public rows as a pool: rows of a public table, weighted to noisy tables of the private one.

Nothing of the public rows is protected: released records are such rows, each as often as the noisy tables say. A
thirtieth of the pool has independent values, so that no combination of values is impossible. Whether the public rows
serve at all, a noisy misfit tells: where they are farther from the table than a release without them is expected to
be, or where all pairs are measured farther than a pool of the model, the model is released. It starts from the public
table's unless that is too far as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dpdist.accuracy.tables import Attributes, Tables, triples_of
from dpdist.data.count import PairCounts
from dpdist.limits import MODEL_VALUES
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import EMPTY, FEWEST, L1_OF_NOISE, PUBLIC_MISFIT, Choices
from dpdist.model.coding import Pair
from dpdist.model.forecast import expected
from dpdist.model.one_way import OneWay, combine
from dpdist.model.pool import Pool, missed
from dpdist.model.rake import rake
from dpdist.model.rounds import pick_sets
from dpdist.privacy.arrays import Codes, Counts, Floats, stable_order
from dpdist.privacy.noise import Noise
from dpdist.spec.rules import Rules, broken_by

MOST_ROWS = 500_000
"""Public rows that are taken at most."""

MOST_ONE_WAY = 0.6
"""Share of mu^2 of all one-way tables, before pairs are picked: public rows know the pairs better than the values."""

MISFIT = "public/misfit"
"""The step that says whether public rows are near enough."""

FAR = 1.2
"""Of what a release without public rows is expected to miss: a public table that is farther off starts no model."""

_INDEPENDENT = 0.03  # part of the pool with independent values
_PICKS = 0.04  # share of mu^2 of all picks
_SURELY = 2.0  # deviations
_NONE = 1e-9  # the least distance that is divided by
_FEWER = 2  # a round has this part of the pairs of a model's round: a model knows no pair before
_KEY = bytes(32)  # what is drawn with it is public


def pool_of(rows: Codes, rules: Rules = ()) -> Codes:
    """Return the rows of a pool: public rows that break no rule, and rows with independent values of theirs."""
    noise = Noise(_KEY)
    if rules:
        kept = ~broken_by(rules, rows)
        rows = [column[kept] for column in rows]
    most = min(MOST_ROWS, MODEL_VALUES // (2 * len(rows)))  # a reader opens no larger model
    if len(rows[0]) > most:
        taken = np.sort(stable_order(noise.words("public/taken", len(rows[0])))[:most])
        rows = [column[taken] for column in rows]
    size = len(rows[0])
    more = int(size * _INDEPENDENT) + 1
    drawn = [column[noise.integers(f"public/{i}", more, high=size)] for i, column in enumerate(rows)]
    if rules:
        kept = ~broken_by(rules, drawn)
        drawn = [column[kept] for column in drawn]
    return [np.concatenate(pair) for pair in zip(rows, drawn, strict=True)]


def with_more(one_way: OneWay, counts: PairCounts, account: GaussianAccount, name: str, share: float) -> OneWay:
    """Return one-way tables for which a further share of the account was spent."""
    tables = [counts.single(i) for i in range(len(counts.cardinalities))]
    weights = [math.sqrt(table.size) for table in tables]
    noisy, sigmas = account.measure(f"one-way/{name}", tables, share=share, weights=weights)
    return combine([one_way.counts, noisy], [one_way.sigmas, sigmas])


def towards(one_way: OneWay, models: Sequence[Floats]) -> list[Floats]:
    """Return noisy one-way counts drawn towards those of a public table, positive.

    The public table's counts m are off by deviations of mean square t m. One t is estimated from all tables, and
    another one for each table that is surely farther off (empirical Bayes).
    """
    seen = list(zip(one_way.counts, models, one_way.sigmas.tolist(), strict=True))
    moments = [
        (float((m * ((y - m) ** 2 - sigma**2)).sum()) / sigma**4, float((m**2).sum()) / sigma**4)
        for y, m, sigma in seen
    ]
    overall = max(sum(a for a, _ in moments) / sum(b for _, b in moments), 0.0)
    found = []
    for (y, m, sigma), (a, b) in zip(seen, moments, strict=True):
        own = a / b if a > _SURELY * math.sqrt(2 * b) else overall
        variance = max(own, overall) * m
        estimate = np.maximum(m + variance / (variance + sigma**2) * (y - m), m / 8)
        found.append(estimate)
    return found


class PublicPool(Pool):
    """A pool of public rows; see `Pool`."""

    _singles: list[Floats]  # shares of the values before the rows have weights

    @classmethod
    def of(cls, rows: Codes, cardinalities: tuple[int, ...], choices: Choices, one_way: OneWay) -> PublicPool:
        """Return the pool, weighted to noisy one-way tables."""
        made = cls(rows, cardinalities, replace(choices, pool_parts=1, pool_rows=len(rows[0])), one_way.records)
        singles = [(i,) for i in range(len(cardinalities))]
        shares = made._rows.shares(singles)
        made._singles = [shares[single] for single in singles]
        made.rake_to_singles(one_way)
        return made

    def rake_to_singles(self, one_way: OneWay) -> None:
        """Fit the weights to one-way tables, drawn towards those of the public table."""
        models = [share * one_way.records for share in self._singles]
        for i, estimate in enumerate(towards(one_way, models)):
            self._targets[(i,)] = estimate / estimate.sum()
        rake(self._rows, self._targets, sweeps=self._choices.sweeps)

    @property
    def rows(self) -> Codes:
        """All rows."""
        return list(self._columns)

    def distance(self, counts: PairCounts, account: GaussianAccount, choices: Choices) -> float:
        """How far the pool's pairs are from the table's, in parts of what a release without the pool is expected to be,
        by noisy mean distances of the pool and of independent attributes. What noise hides counts as near.

        Such a release is off by noise where it measures a pair and by the pair's dependence elsewhere. It measures
        those where noise is less, so half the harmonic mean of the two is expected.
        """
        number, records = len(self._pairs), round(self._records)
        exact: dict[Attributes, Counts] = {pair: counts.pair(*pair).ravel() for pair in self._pairs}
        products: dict[Attributes, Floats] = {
            (i, j): np.outer(self._targets[i,], self._targets[j,]).ravel() for i, j in self._pairs
        }
        sums = [np.array([total]) for total in (self.missed(exact), missed(exact, products, self._records))]
        # each of two sums of P distances has sensitivity P
        noisy, sigmas = account.measure(MISFIT, sums, share=PUBLIC_MISFIT, sensitivity=number)
        near, far = (float(total[0]) / (2 * number * self._records) for total in noisy)
        unclear = _SURELY * float(sigmas[0]) / (2 * number * self._records)
        noise = expected(self._cardinalities, choices, minimum=records, released=records).error
        far = max(far + unclear, _NONE)
        return (near - unclear) * (1 / noise + 1 / far)

    def is_nearer(self, other: Pool, counts: PairCounts | Tables, account: GaussianAccount) -> bool:
        """Whether the pool is nearer to the table's triples than another, by a noisy difference of distances; to its
        pairs where no triples are counted.
        """
        exact: dict[Attributes, Counts] = {}
        if isinstance(counts, Tables):
            exact, counts = dict(zip(triples_of(self._cardinalities), counts.of(3), strict=True)), counts.pairs
        if not exact:  # of two attributes, or of large ones, no triple is compared
            exact = {pair: counts.pair(*pair).ravel() for pair in self._pairs}
        change = self.missed(exact) - other.missed(exact)
        # each of two sums of T distances has sensitivity T
        most = 2 * len(exact)
        (noisy,), _ = account.measure(MISFIT, [np.array([change])], share=PUBLIC_MISFIT, sensitivity=most)
        return bool(noisy[0] < 0)

    def rake_in_rounds(
        self, counts: PairCounts, account: GaussianAccount, left: Callable[[], float]
    ) -> dict[str, list[Pair]]:
        """Pick pairs that the pool misses, measure them, and fit the weights to them, round by round.

        `left` says which share of mu^2 is left. Returns the pairs that each step measured.
        """
        choices = self._choices
        measured: dict[str, list[Pair]] = {}
        tables: dict[Pair, tuple[np.ndarray, float]] = {}
        rounds, most = max(choices.rounds, 1), min(max(choices.per_round // _FEWER, 2), len(self._pairs))
        # a table whose noise is as large as what the pool misses makes others worse; where pairs are few, none is spare
        penalty = 2.0 if choices.per_round <= FEWEST else 1.0
        for r in range(rounds):
            part = left() / (rounds - r)
            sigma = float(account.deviations((1 - _PICKS) * part, [1.0] * most)[0])
            shares = self._rows.shares(self._pairs)
            scores, errors = [], []
            for pair in self._pairs:
                model = np.rint(shares[pair] * self._records).astype(np.int64)
                error = float(np.minimum(L1_OF_NOISE * sigma, model + EMPTY * sigma).sum())
                scores.append(int(np.abs(counts.pair(*pair) - model).sum()) - round(penalty * error))
                errors.append(max(error, 1.0))
            name, scale = f"public/{r}", account.pick_scale(_PICKS * part, most)
            unclear = round(scale * len(scores).bit_length())  # what a pick from all of them adds to the largest
            picked = pick_sets(
                name,
                np.array(scores, np.int64) - unclear,
                self._pairs,
                account,
                scale=scale,
                most=most,
                valid=lambda picked: lambda pair: True,
            )
            if not picked:
                continue
            weights = [errors[self._pairs.index(pair)] ** 0.5 for pair in picked]
            exact = [counts.pair(*pair) for pair in picked]
            noisy, sigmas = account.measure(f"{name}/pairs", exact, share=(1 - _PICKS) * part, weights=weights)
            measured[f"{name}/pairs"] = picked
            for pair, table, deviation in zip(picked, noisy, sigmas.tolist(), strict=True):
                known, before = tables.get(pair, (np.zeros(table.shape), np.inf))
                precision, old = deviation**-2, before**-2
                tables[pair] = (table * precision + known * old) / (precision + old), (precision + old) ** -0.5
            for pair, (table, deviation) in tables.items():
                self._aim(pair, table, deviation, shares[pair])
            rake(self._rows, self._targets, sweeps=choices.sweeps)
        return measured
