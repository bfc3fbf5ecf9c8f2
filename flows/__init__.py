"""Releases as Prefect flows. No mathematics here: each flow calls the steps that the command line calls."""
