"""Discovery of frequent values and of bounds, by counts with noise and a threshold: what schemas are drafted from."""
