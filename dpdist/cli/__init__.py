"""The command line: thin; every command calls one function of the package and prints its answer."""

from dpdist.cli.commands import app, main

__all__ = ["app", "main"]
