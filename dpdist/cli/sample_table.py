"""A made-up census-like table for trying dpdist out, of any number of rows.

The eleven attributes have the names, domains and buckets of `deploy/releases/schemas/acs2013.yaml`. Their joint
distribution is a fixed, invented Bayesian network: plausible marginals, strong and weak dependences, rare
combinations. No real record went into it. Row r is a pure function of (seed, r).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpdist.errors import OutputExists, OutputUnwritable
from dpdist.families.base.network import Network, thresholds_from_weights
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Width
from dpdist.spec.schema import Schema

ROWS_PER_FILE = 10_000_000
ROWS_PER_GROUP = 500_000


def _schema() -> Schema:
    edu = (1,) * 15 + (2,) * 4 + (3, 4, 5, 6, 7)

    def categories(name: str, count: int, kind: str = "categorical", **more: object) -> Attribute:
        return Attribute.model_validate({"name": name, "kind": kind, "values": tuple(range(1, count + 1)), **more})

    return Schema(
        attributes=(
            Attribute(name="age", kind="integer", bounds=(1, 79), buckets=Width(width=10)),
            categories("wc", 8),
            categories("edu", 24, "ordinal", buckets=edu),
            categories("ms", 5),
            categories("occ", 25),
            categories("rel", 18),
            categories("race", 5),
            categories("sex", 2),
            Attribute(name="hpw", kind="integer", bounds=(1, 99), buckets=Width(width=15)),
            categories("waob", 8),
            categories("incc", 2),
        )
    )


SCHEMA = _schema()
"""Schema of the made-up table."""


def _shape(name: str) -> NDArray[np.float64]:
    """Invented marginal weights of one attribute."""
    if name == "age":
        x = np.arange(1, 80)
        return np.asarray(np.exp(-(((x - 28) / 19.0) ** 2)) + 0.35 * np.exp(-(((x - 8) / 5.0) ** 2)) + 2e-3)
    if name == "hpw":
        x = np.arange(1, 100)
        heaps = np.where(x % 10 == 0, 12.0, np.where(x % 5 == 0, 4.0, 0.4))
        return np.asarray(heaps * np.exp(-(((x - 40) / 14.0) ** 2)) + 20.0 * (x == 40) + 1e-2)
    if name == "edu":
        x = np.arange(1, 25)
        return np.asarray(np.where(x < 16, 0.02 * x, np.exp(-(((x - 19) / 3.0) ** 2)) + 0.1))
    count = dict(zip(SCHEMA.names, SCHEMA.cardinalities, strict=True))[name]
    return np.asarray(1.0 / (1.0 + np.arange(count)) ** (0.2 if count == 2 else 1.1))


PARENTS: dict[str, tuple[str, ...]] = {
    "age": (),
    "sex": (),
    "race": (),
    "waob": ("race",),
    "edu": ("age", "race"),
    "ms": ("age", "sex"),
    "rel": ("age", "ms", "sex"),
    "occ": ("edu", "sex"),
    "wc": ("occ",),
    "hpw": ("age", "sex", "wc"),
    "incc": ("age", "edu", "hpw", "sex"),
}


def network() -> Network:
    """The invented network the table is drawn from."""
    names, public = SCHEMA.names, Noise(hashlib.sha256(b"dpdist sample: public, invented").digest())
    counts, parents, thresholds = SCHEMA.bucket_counts, [], []
    for i, name in enumerate(names):
        above = tuple(sorted(names.index(p) for p in PARENTS[name]))
        logs = np.log(_shape(name))[None, :]
        for p in above:  # log-linear effects of each parent bucket, invented once and for all
            words = public.words(f"sample/{p}/{i}", counts[p] * logs.shape[1]).reshape(counts[p], -1)
            effect = 2.0 * (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 1.0
            logs = (logs[:, None, :] + 1.2 * effect[None, :, :]).reshape(-1, logs.shape[1])
        parents.append(above)
        thresholds.append(thresholds_from_weights(np.exp(logs)))
    return Network(
        cardinalities=SCHEMA.cardinalities,
        bucket_maps=tuple(a.bucket_map for a in SCHEMA.attributes),
        bucket_counts=counts,
        parents=tuple(parents),
        order=tuple(names.index(name) for name in PARENTS),
        thresholds=tuple(thresholds),
    )


def draw(*, seed: int, start: int, count: int, model: Network | None = None) -> Codes:
    """Codes of rows ``start`` to ``start + count - 1`` of the table with this seed."""
    model = model or network()
    noise = Noise(hashlib.sha256(f"dpdist sample {seed}".encode()).digest())
    codes: Codes = [np.empty(0, np.uint8)] * len(model)
    for i in model.order:
        codes[i] = np.zeros(count, np.uint8)
        words = noise.words(f"sample/{i}", count, start=start)
        codes[i] = model.draw(i, model.configuration(i, codes), words)
    return codes


def _tables(rows: int, seed: int) -> Iterator[pa.Table]:
    model = network()
    for start in range(0, rows, ROWS_PER_GROUP):
        codes = draw(seed=seed, start=start, count=min(ROWS_PER_GROUP, rows - start), model=model)
        yield pa.table({name: code + np.uint8(1) for name, code in zip(SCHEMA.names, codes, strict=True)})


def write(
    folder: str | Path, rows: int, *, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Write the table as Parquet files of at most ten million rows each, into a local folder that holds none; another
    seed gives other rows. `progress` is called with (rows written, rows). Raises OutputExists: the folder holds Parquet
    files already; OutputUnwritable: it cannot be made or written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.parquet")):
            raise OutputExists(f"{folder} holds Parquet files already; choose another folder or empty it")
        done, writer = 0, None
        for table in _tables(rows, seed):
            if done % ROWS_PER_FILE == 0:
                if writer is not None:
                    writer.close()
                writer = pq.ParquetWriter(folder / f"census-{done // ROWS_PER_FILE:04d}.parquet", table.schema)
            if writer is not None:
                writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            done += table.num_rows
            progress(done, rows)
        if writer is not None:
            writer.close()
    except OSError as error:
        raise OutputUnwritable(f"cannot write {folder}: {error.strerror or type(error).__name__}") from None
    return folder


def write_uniform(path: Path, schema: Path, rows: int, *, seed: int = 0) -> None:
    """Write a table of a schema, to a .csv file or else as Parquet: all values are equally likely, none is missing.

    Raises OutputExists, OutputUnwritable: the file exists, or cannot be written; SpecError: it is no schema.
    """
    from dpdist.publish.part_format import PartFormat
    from dpdist.publish.parts import decode, write_csv

    if path.exists():
        raise OutputExists(f"{path} exists: choose another file")
    read = Schema.from_yaml(schema)
    rng = np.random.default_rng(seed)
    codes: Codes = [
        rng.uniform(*(a.bounds or (0, 1)), size=rows)
        if a.is_continuous
        else rng.integers(0, a.cardinality - (a.missing_code is not None), rows).astype(a.dtype)
        for a in read.attributes
    ]
    table = decode(read, codes, form=PartFormat(), noise=Noise(hashlib.sha256(f"uniform/{seed}".encode()).digest()))
    try:
        if path.suffix == ".csv":
            write_csv(table, path)
        else:
            pq.write_table(table, path)
    except OSError as error:
        raise OutputUnwritable(f"{path}: the file cannot be written ({error.strerror})") from None
