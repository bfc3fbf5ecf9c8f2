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
from dpdist.families.synthesis.choices import Choices
from dpdist.families.synthesis.draw import draw_part
from dpdist.families.synthesis.fitted import Fitted, fitted_of
from dpdist.families.synthesis.marginals import OneWay
from dpdist.families.synthesis.measure import AllPairs, measure
from dpdist.families.synthesis.measurements import Measurements, measurements_of
from dpdist.families.synthesis.rake import rake, shrink
from dpdist.families.synthesis.rounds import Learner
from dpdist.privacy.arrays import Floats
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
    measurements : Measurements
        The noisy tables.
    """

    FILE: ClassVar[str] = "model.npz"

    fitted: Fitted
    one_way: tuple[Floats, ...]
    report: dict[str, Any]
    measurements: Measurements

    def to_bytes(self) -> bytes:
        """The arrays in NumPy's archive format, uncompressed and without pickles."""
        report, tables = (
            np.frombuffer(json.dumps(item, sort_keys=True).encode(), np.uint8)
            for item in (self.report, self.measurements.to_json())
        )
        counts = {f"one_way{i}": table for i, table in enumerate(self.one_way)}
        buffer = io.BytesIO()
        arrays = counts | self.fitted.arrays()
        noisy = self.measurements.counts
        np.savez(buffer, allow_pickle=False, report=report, tables=tables, noisy=noisy, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Learned:
        """What `to_bytes` wrote."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            fitted = Fitted.from_arrays(arrays)
            counts = tuple(arrays[f"one_way{i}"] for i in range(len(fitted.fine)))
            measurements = Measurements.of(json.loads(arrays["tables"].tobytes()), arrays["noisy"])
            return cls(fitted, counts, json.loads(arrays["report"].tobytes()), measurements)


def learn(
    counts: PairCounts,
    *,
    choices: Choices,
    noise: Noise,
    drawing: Noise,
    prior: PairCounts | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Learned:
    """Measure, pick, fit and, on large tables, rake.

    Parameters
    ----------
    counts : PairCounts
        Exact counts of all records. Confidential.
    choices : Choices
    noise : Noise
        Of the measurements: secret.
    drawing : Noise
        Of the records: public, and independent of `noise`.
    prior : PairCounts, optional
        Of a public table, from which the model starts.
    progress : callable
        Called with (done, total) after each round.

    Raises
    ------
    AccountingError
        The steps would cost more than the account has.
    """
    account = Account(choices.mu, noise)
    measured = measure(counts, choices=choices, account=account, prior=prior, progress=progress)
    learner = measured.learner
    model = learner.model or learner.refit(1)
    fitted = fitted_of(model, learner.coding, learner.marginals if choices.balance else None)
    if measured.all_pairs is not None:
        fitted = _raked(fitted, counts.cardinalities, learner.one_way, measured.all_pairs, drawing, choices)
    report = _report(learner, raked=measured.all_pairs is not None)
    picked = [m.attributes for m in learner.measurements if len(m.attributes) > 1]
    return Learned(fitted, learner.one_way.counts, report, measurements_of(account, learner.coding, picked))


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


def _raked(
    fitted: Fitted,
    cardinalities: tuple[int, ...],
    one_way: OneWay,
    all_pairs: AllPairs,
    drawing: Noise,
    choices: Choices,
) -> Fitted:
    """Adjust the weights of the pool that records will be taken from."""
    d = len(cardinalities)
    parts = [draw_part(fitted, drawing, f"pool/{p}", choices.pool_rows) for p in range(choices.pool_parts)]
    pool = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    scale = one_way.records / len(pool[0])
    targets: dict[tuple[int, ...], Floats] = {}
    found = zip(combinations(range(d), 2), all_pairs.tables, all_pairs.sigmas.tolist(), strict=True)
    for pair, table, sigma in found:
        a, b = pair
        width = cardinalities[b]
        model = np.bincount(pool[a] * width + pool[b], minlength=table.size).astype(np.float64) * scale
        targets[pair] = _share(shrink(table.ravel().astype(np.float64), model, sigma)).reshape(table.shape)
    for i in range(d):
        model = np.bincount(pool[i], minlength=cardinalities[i]).astype(np.float64) * scale
        targets[(i,)] = _share(shrink(one_way.counts[i], model, float(one_way.sigmas[i])))
    adjustment, expected = rake(pool, cardinalities, targets, sweeps=choices.sweeps)
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
