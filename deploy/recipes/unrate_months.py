"""The 601 months from February 1974 for `deploy/releases/unrate.yaml`: which months are in it is public.

Run ``python deploy/recipes/unrate_months.py data/UNRATE.csv data/unrate_months.csv``.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

FIRST, LAST = "1974-02-01", "2024-02-01"


def main(source: str, target: str) -> None:
    """Write the rows of these months."""
    with Path(source).open(newline="") as file:
        header, *rows = csv.reader(file)
    with Path(target).open("w", newline="") as file:
        csv.writer(file).writerows([header, *(row for row in rows if FIRST <= row[0] <= LAST)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="UNRATE.csv: a date (YYYY-MM-DD) and a rate in percent a row")
    parser.add_argument("target", help="CSV file to write")
    given = parser.parse_args()
    main(given.source, given.target)
