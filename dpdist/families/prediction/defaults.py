"""Names and sizes that specs speak of; imports nothing, so that reading a spec is quick."""

from __future__ import annotations

FIRST_STAGE_NAMES = ("lhs", "gaussian-copula", "uniform", "weibull", "cauchy")
"""First stages; `dpdist.families.prediction.latin.FIRST_STAGES` has them."""

EXACT_ROWS = 4096
"""Most rows of one system of the kernel ridge regression."""

DISTRIBUTED_ROWS = 40_000
"""Most rows that the distributed estimator is used for: each prediction takes all of them."""

GROUP_ROWS = 2048
"""Rows of a group of the distributed estimator."""

LANDMARKS = 1000
"""Landmarks of the Nystroem estimator."""
