"""The public tables with their ready-to-run schemas: read as they are distributed, against a second reading."""

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.data.operators import Split, gather_operator, pair_counts_operator, together
from dpdist.data.report import check
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.ledger.keys import KeyRef
from dpdist.spec.data import CsvSpec
from dpdist.spec.schema import Schema

SCHEMAS = Path(__file__).parents[2] / "deploy" / "releases" / "schemas"
SPLIT = Split(KeyRef.fixed("ab" * 32), ("0.1", "0.4", "0.5"))
ADULT = CsvSpec(
    header=False,
    comment="|",
    columns=(
        "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
        "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
    ),
)  # fmt: skip
SharedData = Callable[[str], Path]


def test_acs_2013_csv(shared_data: SharedData) -> None:
    path, schema = shared_data("acs2013_sgf_100k.csv"), Schema.from_yaml(SCHEMAS / "acs2013.yaml")
    source = TableSource((str(path),))
    operator = together([gather_operator(), pair_counts_operator(schema.cardinalities)])
    results = []
    for partitions in (1, 16):
        table = open_table(source, schema, partitions=partitions)
        assert (len(table.partitions), table.rows) == (partitions, 100_000)
        results.append(run_pass(table, operator, split=SPLIT, label=2, batch_rows=10_000))
        check(results[-1][1], schema)
    raw = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64)
    (codes, counts), report = results[0]
    assert report.confidential(schema) == {"rows_read": 100_000, "rows_kept": 100_000, "columns": {}}
    assert 49_000 < counts.total < 51_000
    (other, other_counts), _ = results[1]
    assert all(map(np.array_equal, codes, other))
    assert np.array_equal(counts.cells, other_counts.cells)
    (everything, all_counts), _ = run_pass(table, operator)
    for i, attribute in enumerate(schema.attributes):
        values = attribute.values or attribute.bin_edges
        assert np.array_equal(np.array(values)[everything[i]], raw[:, i])
    seen = Counter(zip(everything[0].tolist(), everything[4].tolist(), strict=True))
    assert {k: v for k, v in np.ndenumerate(all_counts.pair(0, 4)) if v} == seen


@pytest.mark.parametrize("partitions", [None, 5])
def test_adult_raw_files(shared_data: SharedData, partitions: int | None) -> None:
    paths = [shared_data(name) for name in ("adult.data", "adult.test")]
    schema = Schema.from_yaml(SCHEMAS / "adult.yaml")
    source = TableSource(tuple(map(str, paths)), format="csv", csv=ADULT)
    table = open_table(source, schema, partitions=partitions)
    assert table.rows == 48_842
    codes, report = run_pass(table, gather_operator())
    check(report, schema)
    rows = []
    for path in paths:
        with open(path, newline="") as file:
            rows += [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
    assert len(codes[0]) == len(rows) == 48_842
    for column, attribute in enumerate(schema.attributes):
        texts = [row[column].removesuffix(".") for row in rows]
        if attribute.values is None:
            inside = np.clip(np.array(texts, np.int64), *(attribute.bounds or (0, 0)))
            expected = np.searchsorted(attribute.bin_edges, inside, side="right") - 1
        else:
            names = [*map(str, attribute.values), "?"]
            expected = np.array([names.index(text) for text in texts])
        assert np.array_equal(codes[column], expected), attribute.name
    troubles = report.confidential(schema)["columns"]
    assert {name: t["missing"] for name, t in troubles.items()} == {
        "workclass": 2799,
        "occupation": 2809,
        "native-country": 857,
    }


@pytest.mark.parametrize(("heaps", "zeros", "far"), [((), (0.0, 0.02), (0.9, 1.0)), ((0,), (0.9, 0.93), (0.0, 0.15))])
def test_zeros_that_are_declared_are_kept(
    heaps: tuple[int, ...],
    zeros: tuple[float, float],
    far: tuple[float, float],
    shared_data: SharedData,
    tmp_path: Path,
) -> None:
    """91.7 % of Adult have no capital gain. Without a heap each released record has some number of the first bin."""
    names = ["workclass", "education", "sex", "capital-gain", "income"]
    frame = pd.read_csv(shared_data("adult.data"), header=None, names=ADULT.columns, skipinitialspace=True)[names]
    known: list[dict[str, object]] = [
        {"name": name, "kind": "categorical", "values": sorted(frame[name].unique())}
        for name in names
        if name != "capital-gain"
    ]
    edges = [0, 1000, 3000, 5000, 7500, 10000, 20000, 50000]
    gain = {"name": "capital-gain", "kind": "integer", "bounds": [0, 99999], "bins": {"edges": edges}, "heaps": heaps}
    ledger = dpdist.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create("adult", epsilon=2, delta=1e-6)
    spec = {
        "kind": "synthesis",
        "name": "adult",
        "dataset": "adult",
        "schema": {"attributes": [*known, gain]},
        "data": {"minimum_records": 30_000},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "output": {"path": str(tmp_path / "released")},
    }
    found = dpdist.release(spec, data=frame, ledger=ledger).to_pandas().astype({name: str for name in names[:3]})
    assert zeros[0] <= (found["capital-gain"] == 0).mean() <= zeros[1]
    for name in ("sex", "education", "workclass"):
        shares = [one.groupby([name, one["capital-gain"] == 0]).size() / len(one) for one in (found, frame)]
        assert far[0] <= shares[0].sub(shares[1], fill_value=0).abs().sum() / 2 <= far[1]
