"""Records that models are trained on and tested on, and one prediction among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpdist.errors import SpecError
from dpdist.evaluation.attacks.records import drawn, independent, size, take
from dpdist.evaluation.binning import View
from dpdist.evaluation.page.sections import PageSection, does_not_apply
from dpdist.evaluation.utility.models import Encoder, Labels, ModelKind, ModelPredictions, fit, labels_of
from dpdist.privacy.arrays import Codes

LEAST = 50
"""Fewest records to train on, and to test on."""


@dataclass(frozen=True, eq=False)
class Trial:
    """Records to train on and to test on, as codes of the schema; all training tables have the same size."""

    # ``real``, ``released``, ``independent``: real one-way marginals, attributes independent of each other
    training: Mapping[str, Codes]
    test: Codes  # real records that no model of ``real`` is trained on
    fresh: bool  # whether the test records are a hold-out: not in the table that the release was made from
    seed: int

    @property
    def rows(self) -> tuple[int, int]:
        """Number of records to train on and to test on."""
        return len(self.training["real"][0]), len(self.test[0])

    @property
    def figures(self) -> dict[str, int]:
        """Number of records to train on and to test on, and the seed, for the figures of a section."""
        return {"train_rows": self.rows[0], "test_rows": self.rows[1], "seed": self.seed}

    @property
    def too_small(self) -> bool:
        """Whether there is too little to say anything."""
        return min(self.rows) < LEAST

    @property
    def sentence(self) -> str:
        """What was trained and tested on what."""
        train, test = self.rows
        source = "held-out records" if self.fresh else "real records that the release was made from too (no hold-out)"
        return f"Trained on {train:,} records of each table and tested on {test:,} {source}; seed {self.seed}."

    def part(self, train: int, test: int) -> Trial:
        """The first records of each."""
        tables = {name: [column[:train] for column in codes] for name, codes in self.training.items()}
        return Trial(tables, [column[:test] for column in self.test], self.fresh, self.seed)


def make_trial(real: Codes, released: Codes, holdout: Codes | None, *, train: int, test: int, seed: int) -> Trial:
    """Draw the records of a trial, at most `train` and `test`, as codes of the schema. Without a hold-out, a third of
    the real records at most is set aside for testing.
    """
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(size(real))
    if holdout is None:
        test = min(test, len(order) // 3)
        tested, order = take(real, order[:test]), order[test:]
    else:
        tested = drawn(holdout, test, rng)
    train = min(train, len(order), size(released))
    ours = take(real, order[:train])
    training = {
        "real": ours,
        "released": drawn(released, train, rng),
        "independent": independent(ours, np.random.default_rng(seed)),
    }
    return Trial(training, tested, holdout is not None, seed)


@dataclass(frozen=True, eq=False)
class Prediction:
    """One attribute of the records of a trial, predicted from all others."""

    trial: Trial
    view: View
    target: int  # place of the attribute

    @property
    def name(self) -> str:
        """Name of the attribute."""
        return self.view.names[self.target]

    @cached_property
    def encoder(self) -> Encoder:
        """What models see of the other attributes."""
        places = [i for i in range(len(self.view.names)) if i != self.target]
        return Encoder.of(self.view, places, self.trial.training["real"])

    def labels(self, records: Codes) -> Labels:
        """Codes of the attribute."""
        return labels_of(records, self.view, self.target)

    @cached_property
    def truth(self) -> Labels:
        """Codes of the attribute of the test records."""
        return self.labels(self.trial.test)

    @cached_property
    def majority(self) -> float:
        """How often the most frequent value of the real training records is right."""
        labels = self.labels(self.trial.training["real"])
        return float(np.mean(self.truth == np.bincount(labels).argmax()))

    def fit(self, classifier: ModelKind, source: str) -> ModelPredictions:
        """What a model of one training table says about the test records."""
        codes, sees = self.trial.training[source], classifier.sees
        matrix, test = (self.encoder.matrix(records, sees) for records in (codes, self.trial.test))
        return fit(classifier.make, self.trial.seed, matrix, self.labels(codes), test)


def too_small(name: str, title: str) -> PageSection:
    """Why a section says nothing of so few records or attributes."""
    return does_not_apply(name, title, f"it needs {LEAST} records to train on and to test on, and two attributes.")


def default_target(view: View) -> int:
    """The attribute to predict unless one is named: the last with two values, else the one with the fewest."""
    sizes = view.sizes
    finite = [i for i, axis in enumerate(view.axes) if axis.edges is None and axis.size > 1]
    binary = [i for i in finite if sizes[i] == 2]
    return binary[-1] if binary else min(finite, key=lambda i: sizes[i], default=len(sizes) - 1)


def named_target(view: View, name: str | None) -> int:
    """The place of the attribute to predict. Raises SpecError: there is no such attribute."""
    if name is None:
        return default_target(view)
    if name not in view.names:
        raise SpecError(f"--target {name}: expected one of {', '.join(view.names)}")
    return view.names.index(name)
