"""Synthesis of whole tables: select, measure, fit, rake, draw, in one Gaussian account."""
