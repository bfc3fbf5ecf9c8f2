"""Attacks on households of a release (ACS 2024): half of the households are released, the others are held out.

Usage: python tests/benchmarks/bench_household_attacks.py --epsilon 1 4
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_households import SPEC, declare
from harness import DATA, Clock, argument_parser, write_rows

from dpdist.cluster.executor import InProcess
from dpdist.data.released import ReleasedTable
from dpdist.evaluation.linked.attacks import ATTACKS, CONTROL, attacked
from dpdist.evaluation.linked.parents import ParentRecords
from dpdist.evaluation.linked.sections import open_linked
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import linked_rows, tables_of
from dpdist.lifecycle.run import run_release
from dpdist.publish.verify import open_release
from dpdist.spec.reader import load

TABLES = ("persons", "households")


def main() -> None:
    """Release at each epsilon, and list what attacks find, on the table itself first."""
    options = argument_parser(__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of the two files")
    options.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    options.add_argument("--at-most", type=int, default=8)
    options.add_argument("--large", type=int, default=7, help="persons of households of rare composition")
    options.add_argument("--seed", type=int, default=7, help="of the halves and of the attacks")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_rows(asked, rows_of(asked, Path(name)))


def rows_of(asked: argparse.Namespace, folder: Path) -> Iterator[dict[str, str]]:
    """The rows of the table, of each epsilon."""
    split(asked.data, folder, asked.seed)
    for number, epsilon in enumerate(asked.epsilon):
        start = Clock()
        path = release(folder, epsilon, asked.at_most)
        print(f"epsilon {epsilon:g}: {start.cpu:.0f} CPU s to release", flush=True)
        released, real, holdout = read(folder, path)
        if not number:
            yield from report("the table", real, real, holdout, asked)
        yield from report(f"ε = {epsilon:g}", released, real, holdout, asked)


def split(data: Path, folder: Path, seed: int) -> None:
    """Write both tables of a random half of the households, and of the other half."""
    tables = {name: pq.read_table(data / f"acs2024_{name}.parquet") for name in TABLES}
    ids = np.unique(tables["persons"]["household"].to_numpy())
    members = np.random.default_rng(seed).permutation(ids)[: len(ids) // 2]
    for name, table in tables.items():
        own = table["household"].to_numpy()
        inside = np.isin(own, members)
        pq.write_table(table.filter(pa.array(inside)), folder / f"members-{name}.parquet")
        pq.write_table(table.filter(pa.array(~inside & np.isin(own, ids))), folder / f"others-{name}.parquet")


def release(folder: Path, epsilon: float, at_most: int) -> str:
    """A release of the members, as the shipped spec has it."""
    path = str(folder / f"release-{epsilon:g}")
    persons, households = (pq.read_metadata(folder / f"members-{name}.parquet").num_rows for name in TABLES)
    settings = {"privacy.epsilon": epsilon, "unit.at_most": at_most, "output.path": path}
    settings |= {"parent.records": households, "data.minimum_records": 95 * persons // 100}
    settings |= {"ledger": f"sqlite:///{folder}/{epsilon:g}.db", "work": str(folder / "work")}
    settings |= {"data.path": str(folder / "members-persons.parquet")}
    settings |= {"data.parent.path": str(folder / "members-households.parquet")}
    spec = load(SPEC, settings)
    declare(spec)
    run_release(spec)
    return path


def read(folder: Path, path: str) -> tuple[ParentRecords, ParentRecords, ParentRecords]:
    """Released, real and held-out households."""
    store, manifest = open_release(path)
    linked = linked_rows(manifest, None)
    assert linked is not None
    attributes = tuple(linked.read.names[i] for i in linked.parent)

    def files(half: str, part: str) -> tuple[str, ...]:
        return (str(folder / f"{half}-{part}.parquet"),)

    request = Request(
        release=path,
        against=files("members", "persons"),
        parents=files("members", "households"),
        holdout=files("others", "persons"),
        holdout_parents=files("others", "households"),
    )
    found = open_linked(
        ReleasedTable(store, manifest),
        linked,
        tables_of(request, attributes),
        executor=InProcess(),
        seed=0,
        progress=lambda *_: None,
    )
    assert found.holdout is not None
    return found.released, found.real, found.holdout


def report(
    name: str, released: ParentRecords, real: ParentRecords, holdout: ParentRecords, asked: argparse.Namespace
) -> Iterator[dict[str, str]]:
    """Rows of the table: each attack with its own 95 % intervals."""
    for at_least in (asked.large, 1):
        found = attacked(released, real, holdout, at_least=at_least, seed=asked.seed, confidence=0.95)
        assert found is not None
        for kind in (*ATTACKS, CONTROL):
            one = found[kind]
            area, right = (f"{of.value:.4f} ({of.low:.4f} to {of.high:.4f})" for of in (one.attack.area, one.guess))
            targets = f"{at_least} persons and more" if at_least > 1 else "all"
            row = {"release": name, "targets": targets, "attack": kind, "AUC": area, "right guesses": right}
            yield row | {"targets of each kind": f"{one.attack.members:,}"}


if __name__ == "__main__":
    main()
