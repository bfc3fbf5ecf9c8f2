"""The life of a release: preflight, run, outcome, history."""
