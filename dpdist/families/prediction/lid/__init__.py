"""The published two-stage method: no differential privacy."""
