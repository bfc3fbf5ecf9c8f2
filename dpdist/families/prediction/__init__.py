"""Two-stage synthesis: synthetic inputs mixed with original ones, responses from a regression."""
