"""Curves for `deploy/releases/curves.yaml`: the unemployment rate of each whole year, a month per column.

Run ``python deploy/recipes/unrate_years.py data/UNRATE.csv data/unrate_years.csv``.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

MONTHS = 12


def years(rows: list[list[str]]) -> dict[str, list[str]]:
    """Rates by year, January first, of the years that have all months; a row is (YYYY-MM-DD, rate)."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for date, rate in rows:
        found[date[:4]][int(date[5:7])] = rate
    whole = {year: rates for year, rates in sorted(found.items()) if len(rates) == MONTHS}
    return {year: [rates[month] for month in range(1, MONTHS + 1)] for year, rates in whole.items()}


def main(source: str, target: str) -> None:
    """Write one row per year."""
    with Path(source).open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    with Path(target).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["year", *(f"m{month:02d}" for month in range(1, MONTHS + 1))])
        writer.writerows([year, *rates] for year, rates in years(rows).items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="UNRATE.csv: a date (YYYY-MM-DD) and a rate in percent a row")
    parser.add_argument("target", help="CSV file to write")
    given = parser.parse_args()
    main(given.source, given.target)
