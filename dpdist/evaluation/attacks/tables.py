"""What every attack looks at, and the excess of its successes on training records over those on held-out ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.evaluation.attacks.intervals import Estimate, difference, proportion
from dpdist.evaluation.page.sections import Cell, PageSection, State, does_not_apply
from dpdist.evaluation.records import size
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of samples; tables that are smaller are used whole."""

    targets: int = 10_000  # members, and as many non-members, that counting attacks tell apart
    searched: int = 2_000  # targets of attacks that search nearest records, on each side
    linked: int = 1_000  # the same for linkage, which sorts neighbours
    compared: int = 50_000  # released records that such a search goes through
    game: int = 12_000  # real, and as many released, records of the distinguishing game
    shadows: int = 4  # shadow releases
    confidence: float = 0.95  # of every interval
    least: int = 100  # records below which an attack says nothing


# columns of the cells of an `Excess`
EXCESS = ("training", "low", "high", "hold-out", "low ", "high ", "excess", "low  ", "high  ")
Hits = tuple[int, int]  # successes, and trials


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttackTables:
    """A release, the records it was made from, and records of the same population that it was not made from."""

    released: Codes
    training: Codes
    holdout: Codes | None
    schema: Schema
    seed: int  # of the samples and of the classifiers; the same seed gives the same figures
    sizes: Sizes = Sizes()

    def rng(self, attack: int) -> np.random.Generator:
        """Random numbers of one attack, by its number."""
        return np.random.default_rng([self.seed, attack])

    @property
    def comparable(self) -> tuple[Codes, Codes] | None:
        """Training records and held-out ones; None without a hold-out, or where a table is too small."""
        if self.holdout is None or min(map(size, (self.released, self.training, self.holdout))) < self.sizes.least:
            return None
        return self.training, self.holdout

    def not_comparable(self, name: str, title: str) -> PageSection:
        """Why an attack says nothing without a hold-out, or of so few records."""
        why = f"it needs {self.sizes.least} records in the release, its training and a hold-out."
        return does_not_apply(name, title, why)

    def excess(self, training: Hits, holdout: Hits, *, among: int) -> Excess:
        """The excess of one of several comparisons, which hold together with the confidence of the attack."""
        confidence = self.sizes.confidence
        return Excess(
            proportion(*training, confidence=confidence),
            proportion(*holdout, confidence=confidence),
            difference(training, holdout, confidence=1 - (1 - confidence) / among),
        )

    @property
    def together(self) -> str:
        """What the intervals of excesses mean, for a note."""
        return f"Excesses hold together with {self.sizes.confidence:.0%} confidence."


@dataclass(frozen=True)
class Excess:
    """How often an attack succeeds on training records, on held-out ones, and the difference."""

    training: Estimate
    holdout: Estimate
    more: Estimate

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Cells under `EXCESS`."""
        return (*self.training.cells, *self.holdout.cells, *self.more.cells)


def leak_state(least: float, *, severe: float = 0.01) -> State:
    """How bad an excess is, by the lower end of its interval."""
    return "good" if least <= 0 else "bad" if least > severe else "fair"
