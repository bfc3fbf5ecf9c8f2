"""The life of a release: preflight, run, publication, history."""
