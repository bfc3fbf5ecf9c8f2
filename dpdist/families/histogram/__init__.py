"""Histograms, entropies and function-valued means with differential privacy or a bound on maximal leakage."""

from dpdist.families.base.family import family_in

FAMILY = family_in(
    __name__,
    "histogram",
    "spec:HistogramSpec",
    canaries="claims:canaries",
    truth="stages:truth",
    session="stages:HistogramSession",
)
