"""Plausible-deniability synthesis: structure, parameters, network, candidates and the privacy test."""
