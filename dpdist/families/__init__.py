"""The families of releases."""
