"""Release data about people with a privacy guarantee you can state in one sentence."""

__version__ = "0.1.0"
