"""Turn raw ACS PUMS person files into the workers' table of the plausible-deniability paper.

    python deploy/recipes/acs_pums.py psam_p01.csv psam_p02.csv ... --out data/acs --year 2013

Input: the Census Bureau's person files as distributed (CSV, one row a person). Output: one Parquet file per
input file with the columns of `deploy/releases/schemas/acs2013.yaml` (up to 2018) or `acs2024.yaml` (from 2019, when
RELP was replaced by RELSHIPP: no `rel`, no `waob`, but nativity and state).

Cleaning rules of the paper: persons older than 16 who have a class of worker (COW 1-8), usual hours (WKHP) and wages
(WAGP above 0); a row with any attribute missing is left out. Income is one bit: wages above 50,000 USD.

This is preparation, not protection: the table it writes is as private as its input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

# First OCCP code of each major group (2010 and 2018 Census occupation codes), then the group's code: groups are
# numbered in the alphabetical order of their three-letter prefix.
OCCUPATION_STARTS = (
    (10, 16), (500, 1), (800, 12), (1005, 3), (1300, 8), (1600, 24), (2000, 4), (2100, 14), (2200, 7), (2600, 9),
    (3000, 15), (3600, 13), (3700, 21), (4000, 6), (4200, 2), (4300, 20), (4700, 23), (5000, 18), (6005, 11),
    (6200, 5), (6800, 10), (7000, 22), (7700, 19), (9000, 25), (9800, 17),
)  # fmt: skip
LAST_OCCUPATION = 9830
OCCUPATIONS = [
    "BUS",
    "CLN",
    "CMM",
    "CMS",
    "CON",
    "EAT",
    "EDU",
    "ENG",
    "ENT",
    "EXT",
    "FFF",
    "FIN",
    "HLS",
    "LGL",
    "MED",
    "MGR",
    "MIL",
    "OFF",
    "PRD",
    "PRS",
    "PRT",
    "RPR",
    "SAL",
    "SCI",
    "TRN",
]
RACE = {1: 5, 2: 3, 3: 1, 4: 1, 5: 1, 6: 2, 7: 2, 8: 4, 9: 4}  # RAC1P -> code
INPUT = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "RAC1P", "SEX", "WKHP", "WAGP")


def occupation_group(occp: np.ndarray) -> np.ndarray:
    """Major occupation group, 1 to 25, of OCCP codes; 0 where there is none."""
    starts = np.array([start for start, _ in OCCUPATION_STARTS])
    groups = np.array([0] + [group for _, group in OCCUPATION_STARTS])
    group = groups[np.searchsorted(starts, occp, side="right")]
    return np.where(occp <= LAST_OCCUPATION, group, 0)


def recode(table: pa.Table, *, since_2019: bool) -> pa.Table:
    """Clean and recode one block of PUMS person rows.

    Parameters
    ----------
    table : pyarrow.Table
        The PUMS columns the recipe uses, as integers with nulls.
    since_2019 : bool
        Layout of the files from 2019 on.

    Returns
    -------
    pyarrow.Table
        Columns of the schema, uint8, only rows that pass the cleaning rules.
    """
    extra = ("NATIVITY", "ST") if since_2019 else ("RELP", "WAOB")
    table = table.filter(_present(table, INPUT + extra))
    column = {name: table[name].to_numpy().astype(np.int64) for name in INPUT + extra}
    keep = (column["AGEP"] > 16) & (column["WAGP"] > 0) & (column["WKHP"] > 0)
    keep &= (column["COW"] >= 1) & (column["COW"] <= 8)
    occupation = occupation_group(column["OCCP"])
    keep &= occupation > 0
    race = np.zeros(10, np.int64)
    race[list(RACE)] = list(RACE.values())
    out = {
        "age": np.clip(column["AGEP"] - 16, 1, 79),
        "wc": column["COW"],
        "edu": column["SCHL"],
        "ms": column["MAR"],
        "occ": occupation,
        "race": race[np.clip(column["RAC1P"], 0, 9)],
        "sex": column["SEX"],
        "hpw": np.clip(column["WKHP"], 1, 99),
        "incc": 1 + (column["WAGP"] > 50_000),
    }
    if since_2019:
        out = {"state": column["ST"], **out, "nat": column["NATIVITY"]}
        names = ("state", "age", "wc", "edu", "ms", "occ", "race", "sex", "hpw", "nat", "incc")
    else:
        out |= {"rel": column["RELP"] + 1, "waob": column["WAOB"]}
        names = ("age", "wc", "edu", "ms", "occ", "rel", "race", "sex", "hpw", "waob", "incc")
    return pa.table({name: out[name][keep].astype(np.uint8) for name in names})


def _present(table: pa.Table, names: tuple[str, ...]) -> pa.ChunkedArray:
    mask = pc.is_valid(table[names[0]])
    for name in names[1:]:
        mask = pc.and_(mask, pc.is_valid(table[name]))
    return mask


def read_blocks(path: Path, *, since_2019: bool) -> Iterator[pa.Table]:
    """Blocks of the columns the recipe uses, as integers."""
    names = [*INPUT, *(("NATIVITY", "ST") if since_2019 else ("RELP", "WAOB"))]
    options = pyarrow.csv.ConvertOptions(
        include_columns=names, column_types=dict.fromkeys(names, pa.int32()), null_values=["", "N"]
    )
    with pyarrow.csv.open_csv(path, convert_options=options) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def convert(path: Path, out: Path, *, since_2019: bool) -> int:
    """Convert one file; returns the number of rows written."""
    rows, writer = 0, None
    try:
        for block in read_blocks(path, since_2019=since_2019):
            table = recode(block, since_2019=since_2019)
            writer = writer or pq.ParquetWriter(out, table.schema)
            writer.write_table(table)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Command line of the recipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="PUMS person files (CSV)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--year", type=int, required=True, help="survey year of the files")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    total = 0
    for path in options.files:
        target = options.out / (path.stem + ".parquet")
        try:
            total += convert(path, target, since_2019=options.year >= 2019)
        except (OSError, pa.ArrowInvalid, pa.ArrowKeyError, KeyError) as error:
            target.unlink(missing_ok=True)
            reason = (
                str(error).splitlines()[0]
                if isinstance(error, (pa.ArrowKeyError, KeyError))
                else "not a PUMS person file"
            )
            print(f"{path}: {reason} (expected columns {', '.join(INPUT)})", file=sys.stderr)
            return 3
    print(f"{options.out}: {total:,} workers from {len(options.files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
