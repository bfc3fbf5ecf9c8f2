"""The model of a table: noisy tables of few attributes, a junction tree fitted to them, and records drawn from it."""
