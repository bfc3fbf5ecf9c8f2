"""Wide tables: made-up ones of any number of attributes, and the persons of the ACS 2024 with all their codes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.privacy.arrays import Codes

PERSONS = "acs2024_persons.parquet"
_BINS = {
    "PINCP": [
        -20_000,
        0,
        1,
        5_000,
        10_000,
        *range(15_000, 100_000, 5_000),
        100_000,
        125_000,
        150_000,
        200_000,
        300_000,
    ],
    "WAGP": [0, 1, 5_000, 10_000, *range(15_000, 100_000, 5_000), 100_000, 125_000, 150_000, 200_000, 300_000],
    "PWGTP": [1, 25, 50, 75, 100, 150, 200, 300, 500],
}
"""Bins of the amounts; every other code of a person is a value of its own."""


def made_up(attributes: int, rows: int, *, seed: int = 0) -> tuple[Codes, tuple[int, ...], list[tuple[int, int]]]:
    """Records of a random Bayesian network: 2 to 12 values, at most two parents.

    Returns
    -------
    list of ndarray of uint8
    tuple of int
        Numbers of values.
    list of (int, int)
        The edges: pairs that depend on each other.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 13, attributes)
    columns: list[np.ndarray] = []
    edges: list[tuple[int, int]] = []
    for i, size in enumerate(sizes.tolist()):
        parents = rng.choice(i, min(i, int(rng.integers(0, 3))), replace=False).tolist()
        given = np.zeros(rows, np.int64)
        for parent in parents:
            given = given * sizes[parent] + columns[parent]
        edges += [(parent, i) for parent in parents]
        table = rng.dirichlet(np.full(size, 0.5), int(np.prod(sizes[parents]))).cumsum(1)
        columns.append(np.minimum((rng.random(rows)[:, None] > table[given]).sum(1), size - 1).astype(np.uint8))
    return columns, tuple(sizes.tolist()), edges


def schema_of_codes(sizes: tuple[int, ...]) -> dict[str, Any]:
    """A schema whose values are codes."""
    return {
        "attributes": [
            {"name": f"a{i}", "kind": "categorical", "values": list(range(size))} for i, size in enumerate(sizes)
        ]
    }


def schema_of_persons(path: Path) -> dict[str, Any]:
    """Twenty-two attributes of persons; nulls are values. The lists of codes are those of the public file."""
    table = pq.read_table(path)
    attributes: list[dict[str, Any]] = []
    for name in table.column_names:
        if name == "household":
            continue
        column = table[name]
        nulls = {"missing": {"category": "none"}} if column.null_count else {}
        if name in _BINS:
            top = 2_000_000 if name != "PWGTP" else 3_000
            entry = {"kind": "integer", "bounds": [_BINS[name][0], top], "bins": {"edges": _BINS[name]}}
        else:
            entry = {"kind": "categorical", "values": sorted(column.drop_null().unique().to_pylist())}
        attributes.append({"name": name, **entry, **nulls})
    return {"attributes": attributes}


def write_codes(codes: Codes, path: Path) -> None:
    """A Parquet file of codes with the names of `schema_of_codes`."""
    pq.write_table(pa.table({f"a{i}": column for i, column in enumerate(codes)}), path)
