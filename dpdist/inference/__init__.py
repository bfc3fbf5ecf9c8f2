"""What readers do with a release: make its records again, draw and condition, tabulate, infer."""
