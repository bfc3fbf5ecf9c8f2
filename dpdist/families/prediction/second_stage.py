"""Settings of the second stage, the regression: of the published method, of several parties, of the private variant."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpdist.spec.kinds import HOOK
from dpdist.spec.strict import Section

EXACT_ROWS = 4096
"""Most rows of one system of the kernel ridge regression."""

DISTRIBUTED_ROWS = 40_000
"""Most rows that the distributed estimator is used for: each prediction takes all of them."""

GROUP_ROWS = 2048
"""Rows of a group of the distributed estimator."""

LANDMARKS = 1000
"""Landmarks of the Nystroem estimator."""

TUNING_ROWS = 800
"""Rows of the sample on which width and penalty are chosen."""

WIDTH = 0.25
"""Width of the Gaussian kernel of the random features, times the root of the number of columns."""

FREQUENCIES = 64
"""Pairs of random Fourier features."""

MOST_PARTIES = 64
"""Most parties of a table."""


class RegressionSpec(Section):
    """Stage 2 of the published method."""

    kernel: Literal["compact", "gaussian", "matern"] = "compact"
    """Wendland's compactly supported kernel, the Gaussian, or Matern 5/2."""
    width: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Width, in units of the columns' deviations; default: by cross-validation."""
    penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """n times lambda; default: by cross-validation on a sample."""
    intercept: bool = True
    """Whether a constant, the mean of the responses, is added to the kernel expansion; the published one has none."""
    estimator: Literal["auto", "exact", "distributed", "nystroem"] = "auto"
    """auto: exact for few rows, then distributed, then Nystroem."""
    group_rows: int = Field(default=GROUP_ROWS, ge=10, le=20_000, description="Rows of a distributed estimator.")
    landmarks: int = Field(default=LANDMARKS, ge=1, le=20_000, description="Landmarks of the Nystroem estimator.")
    hook: str | None = Field(default=None, pattern=HOOK)
    """module:function that makes a regression with fit and predict, in place of kernel ridge; for a response without
    order a classifier, which is given codes and predicts them. Any of scikit-learn will do."""

    def estimator_for(self, rows: int) -> str:
        """The estimator for this many records: exact, distributed or nystroem."""
        if self.estimator != "auto":
            return self.estimator
        if rows <= EXACT_ROWS:
            return "exact"
        return "distributed" if rows <= DISTRIBUTED_ROWS else "nystroem"


class PartySpec(Section):
    """Parties whose distributions differ, in one table."""

    column: str
    """The column that names the party of a record; each of its values is a party. It is released as is."""
    correlation: float | None = Field(default=None, ge=0, le=1)
    """Correlation of the regressions of two parties: 0 fits each by itself, 1 one for all; default: by
    cross-validation."""
    minimum_records: int = Field(default=50, ge=10)
    """Fewest records of a party: if one has fewer, nothing is published."""


class FeatureSpec(Section):
    """Stage 2 of the differentially private variant: ridge regression on random Fourier features."""

    products: Literal["measured", "modelled"] = "measured"
    """Second moments of the features: measured with noise, or as in the released model of the inputs."""
