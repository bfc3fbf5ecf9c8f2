"""Evaluations of two linked tables, such as households and persons: both tables, what is within a parent, attacks."""
