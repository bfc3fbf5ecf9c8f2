"""Models that are trained on one table and tested on another: encodings, classifiers, what is measured.

Trees see a code for each attribute. Linear models see an indicator for each value and, of ordered attributes, the
standardised code as well. Both see continuous numbers as they are, scaled.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError
from dpdist.evaluation.page.page import PageSection, does_not_apply
from dpdist.evaluation.records import Axis, View, drawn, independent, size, take
from dpdist.privacy.arrays import Codes, Floats

Maker: TypeAlias = Callable[[int], Any]  # a seed to an estimator


def estimator(path: str, **options: Any) -> Maker:
    """What makes an estimator of a class, ``module:class`` below `sklearn`, with some options."""
    return lambda seed: pkgutil.resolve_name(f"sklearn.{path}")(**options, random_state=seed)


Labels = NDArray[np.int64]

TREES = 40


@dataclass(frozen=True)
class ModelKind:
    """A kind of model: how to make one from a seed, and what it sees."""

    make: Maker
    sees: Literal["codes", "indicators"]


def forest(trees: int = TREES) -> Maker:
    """Random forests whose memory is bounded: some hundred leaves for each tree."""
    return estimator("ensemble:RandomForestClassifier", n_estimators=trees, min_samples_leaf=3, max_leaf_nodes=600)


CLASSIFIERS: dict[str, ModelKind] = {
    "tree": ModelKind(estimator("tree:DecisionTreeClassifier", min_samples_leaf=20), "codes"),
    "random forest": ModelKind(forest(), "codes"),
    "AdaBoost": ModelKind(estimator("ensemble:AdaBoostClassifier", n_estimators=50), "codes"),
    "gradient boosting": ModelKind(
        estimator("ensemble:HistGradientBoostingClassifier", max_iter=60, early_stopping=False), "codes"
    ),
    "logistic regression": ModelKind(estimator("linear_model:LogisticRegression", C=1.0, max_iter=300), "indicators"),
    "linear SVM": ModelKind(estimator("svm:LinearSVC", C=0.1, dual=False, max_iter=2000), "indicators"),
}
"""The kinds of models of the paper's Tables 3 and 4, and gradient boosting."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """What models see of some attributes: the same for real and released records."""

    axes: tuple[Axis, ...]  # of the attributes that are seen
    places: tuple[int, ...]  # where they stand in the schema
    scales: tuple[float, ...]  # what continuous numbers are divided by; 1 for the others

    @classmethod
    def of(cls, view: View, places: Sequence[int], training: Codes) -> Encoder:
        """The encoder of some attributes, by their places."""
        axes = tuple(view.axes[i] for i in places)
        scales = [float(np.std(training[i])) if view.axes[i].edges is not None else 1.0 for i in places]
        return cls(axes, tuple(places), tuple(scale or 1.0 for scale in scales))

    def codes(self, records: Codes) -> NDArray[np.float32]:
        """A code, or a scaled number, for each attribute: float32[records, attributes]."""
        return np.stack([column.astype(np.float32) for column, _ in self._columns(records)], axis=1)

    def indicators(self, records: Codes) -> Any:
        """An indicator for each value, a standardised code for each ordered attribute: sparse float64[records, d]."""
        from scipy.sparse import csr_array, hstack

        rows = np.arange(len(records[0]), dtype=np.int32)
        blocks = []
        for column, axis in self._columns(records):
            if axis.edges is not None:
                blocks.append(csr_array(column[:, None]))
                continue
            where = (rows, column.astype(np.int32))
            blocks.append(csr_array((np.ones(len(rows)), where), shape=(len(rows), axis.size)))
            if axis.ordered and axis.size > 2:
                spread = np.sqrt((axis.size**2 - 1) / 12)
                blocks.append(csr_array(((column - (axis.size - 1) / 2) / spread)[:, None]))
        matrix = hstack(blocks, format="csr")
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
        return matrix

    def matrix(self, records: Codes, sees: str) -> Any:
        """What a kind of model sees."""
        return self.codes(records) if sees == "codes" else self.indicators(records)

    def _columns(self, records: Codes) -> Iterator[tuple[np.ndarray, Axis]]:
        for axis, place, scale in zip(self.axes, self.places, self.scales, strict=True):
            column = records[place]
            yield (axis.codes(column) if axis.edges is None else column / scale), axis


@dataclass(frozen=True, eq=False)
class ModelPredictions:
    """What a model says about the test records."""

    predicted: Labels  # int64[records]
    score: Floats | None  # higher where the higher code is likelier; None unless there are two classes

    def accuracy(self, truth: Labels) -> float:
        """Share of the test records whose label is right."""
        return float(np.mean(self.predicted == truth)) if truth.size else float("nan")

    def agreement(self, other: ModelPredictions) -> float:
        """Share of the test records on which two models say the same (PD, Section 6.3)."""
        return float(np.mean(self.predicted == other.predicted)) if self.predicted.size else float("nan")

    def auc(self, truth: Labels) -> float | None:
        """Area under the ROC curve; None unless the test records have two classes and the model has scores."""
        if self.score is None or len(np.unique(truth)) != 2:
            return None
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(truth, self.score))


def fit(make: Maker, seed: int, matrix: Any, labels: Labels, test: Any) -> ModelPredictions:
    """Train a model on numbers and labels, and let it predict the test records; of one label it always says that."""
    classes = np.unique(labels)
    if len(classes) < 2:
        only = int(classes[0]) if classes.size else 0
        return ModelPredictions(np.full(test.shape[0], only, np.int64), None)
    import warnings

    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1):  # threads that wait for each other on a busy machine
        warnings.simplefilter("ignore")  # a model that has not converged is judged like any other
        model = make(seed).fit(matrix, labels)
        predicted = np.asarray(model.predict(test), np.int64)
        score = None
        if len(classes) == 2:
            if hasattr(model, "decision_function"):
                score = np.asarray(model.decision_function(test), np.float64)
            else:
                score = np.asarray(model.predict_proba(test)[:, 1], np.float64)
    return ModelPredictions(predicted, score)


_CLASSES = 10  # values of an attribute that is predicted by default, at most
LEAST = 50  # fewest records to train on, and to test on


@dataclass(frozen=True, eq=False)
class Trial:
    """Records to train on and to test on, as codes of the schema; all training tables have the same size."""

    training: Mapping[str, Codes]  # ``real``, ``released``, and ``independent`` real marginals
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
    """Draw the records of a trial; without a hold-out, at most a third of the real records is for testing."""
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
        return np.asarray(self.view.axes[self.target].codes(records[self.target]), np.int64)

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


def named_target(view: View, name: str | None) -> int:
    """The place of the attribute to predict; by default the last with two to `_CLASSES` values, as the schema has them:
    tables end with what they are about. Raises SpecError: none has the name.
    """
    if name is None:
        declared = [0 if axis.edges is not None else axis.size - (axis.missing is not None) for axis in view.axes]
        few = [i for i, number in enumerate(declared) if 2 <= number <= _CLASSES]
        finite = [i for i, number in enumerate(declared) if number > 1]
        return few[-1] if few else min(finite, key=lambda i: declared[i], default=len(declared) - 1)
    if name not in view.names:
        raise SpecError(f"--target {name}: expected one of {', '.join(view.names)}")
    return view.names.index(name)
