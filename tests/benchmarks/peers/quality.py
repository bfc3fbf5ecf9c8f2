"""How good a release is: distances of its marginals to the real ones, and what a model learns from it."""

from itertools import combinations
from typing import Any

import numpy as np

from dpdist.spec.schema import Schema

TRIPLES = 100
"""Three-way marginals that are looked at, drawn at random."""


class Quality:
    """Measures releases against one real table.

    Parameters
    ----------
    train, test : ndarray of unsigned int, shape (records, attributes)
        What the releases are made from, and records that were held out.
    schema : Schema
    target : str
        The attribute that models predict.
    seed : int
    """

    def __init__(self, train: np.ndarray, test: np.ndarray, schema: Schema, *, target: str, seed: int) -> None:
        m = len(schema.attributes)
        rng = np.random.default_rng(seed)
        triples = list(combinations(range(m), 3))
        chosen = rng.permutation(len(triples))[:TRIPLES]
        self._ways = {
            1: [(i,) for i in range(m)],
            2: list(combinations(range(m), 2)),
            3: [triples[i] for i in sorted(chosen.tolist())],
        }
        self._sizes, self._test, self._seed = schema.cardinalities, test, seed
        self._target = schema.names.index(target)
        self._rows = len(train)
        self._truth = {places: self._marginal(train, places) for ways in self._ways.values() for places in ways}

    def _marginal(self, codes: np.ndarray, places: tuple[int, ...]) -> np.ndarray:
        index = np.zeros(len(codes), np.int64)
        for place in places:
            index = index * self._sizes[place] + codes[:, place]
        cells = int(np.prod([self._sizes[place] for place in places]))
        return np.bincount(index, minlength=cells) / len(codes)

    def of(self, codes: np.ndarray) -> dict[str, Any]:
        """Average total variation distances of one-, two- and three-way marginals, the error of rare values, and
        accuracies on held-out records.
        """
        distances = {
            f"tvd_{number}": float(np.mean([np.abs(self._marginal(codes, p) - self._truth[p]).sum() / 2 for p in ways]))
            for number, ways in self._ways.items()
        }
        found = distances | {"rare": self._rare(codes)} | self._learned(codes)
        return {name: round(value, 4) for name, value in found.items()}

    def _rare(self, codes: np.ndarray) -> float:
        """Median relative error of values with 20 records to half a percent of the table."""
        errors: list[float] = []
        for place in self._ways[1]:
            truth, ours = self._truth[place] * self._rows, self._marginal(codes, place) * self._rows
            rare = (truth >= 19.5) & (truth < 0.005 * self._rows)
            errors += (np.abs(ours - truth)[rare] / truth[rare]).tolist()
        return float(np.median(errors)) if errors else 0.0

    def _learned(self, codes: np.ndarray) -> dict[str, float]:
        from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

        models = {
            "forest": RandomForestClassifier(n_estimators=50, min_samples_leaf=5, random_state=self._seed, n_jobs=1),
            "boosting": HistGradientBoostingClassifier(max_iter=100, random_state=self._seed),
        }
        rows = np.random.default_rng(self._seed).permutation(len(codes))[:100_000]
        inputs = [i for i in range(len(self._sizes)) if i != self._target]
        accuracies = {}
        for name, model in models.items():
            model.fit(codes[rows][:, inputs], codes[rows][:, self._target])
            right = model.predict(self._test[:, inputs]) == self._test[:, self._target]
            accuracies[f"accuracy_{name}"] = float(right.mean())
        return accuracies
