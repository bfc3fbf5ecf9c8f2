"""DP-CDA among clients that each hold their own records."""
