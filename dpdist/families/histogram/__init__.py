"""Histograms, entropies and function-valued means with differential privacy or a bound on maximal leakage."""
