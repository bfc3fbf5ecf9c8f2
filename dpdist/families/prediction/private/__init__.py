"""The differentially private two-stage method."""
