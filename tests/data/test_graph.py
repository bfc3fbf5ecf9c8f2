"""Passes over a table: any layout, batch size and scheduler gives the bits of the plain reference."""

import pickle
import re
import tempfile
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading import readable

from dpdist.cluster.cluster import Cluster
from dpdist.data.count import PairCounts, pair_counts
from dpdist.data.operators import Operator, Split, gather_operator, pair_counts_operator, together
from dpdist.data.report import check
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.families.base.graph import encoded, partition_codes, run_pass, table_pass
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema
from dpdist.storage import files as storage
from tests.data.strategies import Case, cases, contingency

DASK = Cluster()
KEY = KeyRef.fixed("5a" * 32)
SPLIT = Split(KEY, ("1/3", "0.5", "1/6"))
SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def reference_label(file: int, row: int) -> int:
    word = int(load_noise(KEY).words(f"split/{file}", 1, start=row)[0])
    return sum(Fraction(word, 2**64) >= bound for bound in list(accumulate(SPLIT.shares))[:-1])


def as_rows(codes: list[np.ndarray]) -> list[tuple[float, ...]]:
    return list(zip(*(column.tolist() for column in codes), strict=True))


def brute_force(rows: list[tuple[float, ...]], counts: PairCounts) -> None:
    for i in range(len(counts.cardinalities)):
        seen = Counter(row[i] for row in rows)
        assert counts.single(i).tolist() == [seen[v] for v in range(counts.cardinalities[i])]
    for i, j in combinations(range(len(counts.cardinalities)), 2):
        pairs = Counter((row[i], row[j]) for row in rows)
        assert {k: int(v) for k, v in np.ndenumerate(counts.pair(i, j)) if v} == dict(pairs)
        assert np.array_equal(counts.pair(j, i), counts.pair(i, j).T)


@SETTINGS
@given(cases(continuous=True))
def test_any_layout_gives_the_reference(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = open_table(case.write(Path(folder)), case.schema, partitions=case.partitions)
        assert table.rows == len(case.rows)
        codes, report = run_pass(table, gather_operator(), batch_rows=case.batch_rows)
        expected = [codes for _, _, codes in case.expected if codes is not None]
        assert as_rows(codes) == expected
        assert [column.dtype for column in codes] == [a.dtype for a in case.schema.attributes]
        assert (report.rows, report.kept) == (len(case.rows), len(expected))
        shown = report.confidential(case.schema)["columns"]
        for name, (missing, outside) in zip(case.schema.names, case.troubles, strict=True):
            found = shown.get(name, {"missing": 0, "out_of_domain": 0, "wrong_type": 0})
            assert found == {"missing": missing, "out_of_domain": outside, "wrong_type": 0}
        check(report, case.schema)


@SETTINGS
@given(cases(), st.sampled_from([0, 1, 2]), st.sampled_from(["threads", "synchronous"]))
def test_graphs_give_the_bits_of_the_reference(case: Case, label: int, scheduler: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = case.write(Path(folder))
        table = open_table(source, case.schema, partitions=case.partitions, executor=DASK)
        assert table == open_table(source, case.schema, partitions=case.partitions)
        expected = [c for file, row, c in case.expected if c is not None and reference_label(file, row) == label]
        operator = together([gather_operator(), pair_counts_operator(case.schema.cardinalities)])
        parts = encoded(DASK, table, name="cache", split=SPLIT, batch_rows=case.batch_rows)
        graphs = [
            table_pass(DASK, table, operator, name="pass", split=SPLIT, label=label, batch_rows=case.batch_rows),
            table_pass(DASK, parts, operator, name="later", split=SPLIT, label=label, batch_rows=case.batch_rows),
            table_pass(DASK, encoded(DASK, table, name="part", split=SPLIT, label=label), operator, name="later"),
        ]
        here = run_pass(table, operator, split=SPLIT, label=label)
        for (codes, counts), report in (here, *dask.compute(*graphs, scheduler=scheduler)):
            assert as_rows(codes) == expected
            brute_force(expected, counts)
            assert counts.total == len(expected)
            assert (report.rows, report.kept) == (here[1].rows, here[1].kept)
            assert np.array_equal(report.counts, here[1].counts)
        selected = dask.compute(*partition_codes(DASK, parts, name="seeds", label=label), scheduler=scheduler)
        assert [row for codes in selected for row in as_rows(codes)] == expected


def small_table(folder: Path, rows: int = 1000, row_group: int = 100) -> tuple[TableSource, Schema, list[np.ndarray]]:
    rng = np.random.default_rng(7)
    columns = [rng.integers(0, high, rows) for high in (7, 300, 2)]
    pq.write_table(pa.table(columns, names=["a", "b", "c"]), folder / "t.parquet", row_group_size=row_group)
    schema = Schema(
        attributes=(
            Attribute(name="a", kind="categorical", values=tuple(range(7))),
            Attribute(name="b", kind="integer", bounds=(0, 299)),
            Attribute(name="c", kind="categorical", values=(0, 1)),
        )
    )
    return TableSource((str(folder / "t.parquet"),)), schema, columns


def test_building_graphs_reads_and_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, schema, _ = small_table(tmp_path)
    table = open_table(source, schema, partitions=16)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("building a graph must neither read nor compute")

    monkeypatch.setattr(storage, "filesystem", refuse)
    monkeypatch.setattr("dpdist.families.base.graph.load_noise", refuse)
    operator = Operator(name="never", chunk=refuse, combine=refuse, compact=refuse, finish=refuse)
    with dask.config.set(scheduler=refuse):
        graph = table_pass(DASK, table, operator, name="pass", split=SPLIT, label=0)
        parts = encoded(DASK, table, name="cache", split=SPLIT)
        later = table_pass(DASK, parts, operator, name="later", split=SPLIT, label=1)
        selected = partition_codes(DASK, parts, name="seeds", label=2)
        assert len(parts.partitions) == len(selected) == 16
        with pytest.raises(AssertionError, match="neither read nor compute"):
            graph.compute()
    keys = [str(key) for d in (graph, later, *selected) for key in d.__dask_graph__()]
    assert all(re.fullmatch(r"[a-z]+-[a-z]+-[0-9a-f]{8}-[0-9]+", key) for key in keys), keys
    assert {"pass-never", "pass-sum", "pass-finish", "pass-plan", "cache-encode"} <= {
        "-".join(key.split("-")[:2]) for key in keys
    }


def test_two_graphs_never_share_a_task(tmp_path: Path) -> None:
    source, schema, _ = small_table(tmp_path)
    table = open_table(source, schema, partitions=3)
    first, second = (table_pass(DASK, table, gather_operator(), name="pass") for _ in range(2))
    assert not set(first.__dask_graph__()) & set(second.__dask_graph__())


def test_no_key_enters_a_graph(tmp_path: Path) -> None:
    source, schema, _ = small_table(tmp_path)
    key = KeyRef("attempt-1", str(tmp_path / "key.json"))
    graph = table_pass(
        DASK, open_table(source, schema, partitions=3), gather_operator(), name="pass", split=Split(key, (1,)), label=0
    )
    content = pickle.dumps(dict(graph.__dask_graph__()))
    assert b"attempt-1" in content
    assert b"Noise" not in content


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_processes_give_the_same_bits(tmp_path: Path, partitions: int, client: Any) -> None:
    source, schema, columns = small_table(tmp_path)
    operator = pair_counts_operator(schema.cardinalities)
    table = open_table(source, schema, partitions=partitions)
    assert len(table.partitions) == partitions
    parts = encoded(DASK, table, name="cache", split=SPLIT)
    parts = replace(parts, partitions=client.persist(parts.partitions))
    graphs = [table_pass(DASK, table, operator, name="pass", split=SPLIT, label=1)]
    graphs.append(table_pass(DASK, parts, operator, name="later", split=SPLIT, label=1))
    words = load_noise(KEY).words("split/0", 1000)
    chosen = (words >= int(Fraction(1, 3) * 2**64)) & (words < int(Fraction(5, 6) * 2**64))
    expected = pair_counts([c[chosen] for c in columns], schema.cardinalities)
    for counts, report in client.gather(client.compute(graphs)):
        assert np.array_equal(counts.cells, expected.cells)
        assert report.rows == report.kept == 1000


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_tasks_read_object_storage(tmp_path: Path, client: Any, s3: Any, s3_server: str, scheduler: str) -> None:
    local, schema, _ = small_table(tmp_path)
    s3.put(local.paths[0], "census/t/part-0.parquet")
    s3.put(local.paths[0], "census/t/part-1.parquet")
    options = {"endpoint_url": s3_server, "key": "test", "secret": "test"}
    table = open_table(TableSource(("s3://census/t",), storage_options=options), schema, partitions=6)
    graph = table_pass(DASK, table, pair_counts_operator(schema.cardinalities), name="pass")
    counts, _ = client.compute(graph).result() if scheduler == "processes" else graph.compute(scheduler=scheduler)
    expected, _ = run_pass(open_table(local, schema), pair_counts_operator(schema.cardinalities))
    assert np.array_equal(counts.cells, 2 * expected.cells)


@pytest.fixture(scope="module")
def client() -> Any:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_an_operator_may_finish_what_it_combined(tmp_path: Path) -> None:
    source, schema, columns = small_table(tmp_path)
    joint = Operator(name="joint", chunk=_joint, combine=np.add, finish=np.sum, fan_in=2)
    table = open_table(source, schema, partitions=7)
    ((total, _),) = dask.compute(table_pass(DASK, table, joint, name="pass"), scheduler="threads")
    assert total == 1000
    assert run_pass(table, joint)[0] == 1000
    whole = Operator(name="joint", chunk=_joint, combine=np.add)
    in_place = Operator(name="joint", chunk=_joint, combine=np.add, update=_add_joint)
    assert np.array_equal(run_pass(table, in_place, batch_rows=77)[0], run_pass(table, whole)[0])
    assert np.array_equal(run_pass(table, whole)[0], _joint([c.astype(np.uint16) for c in columns]))


def _joint(codes: list[np.ndarray]) -> np.ndarray:
    return contingency(codes, (2, 0), (2, 7))


def _add_joint(summary: np.ndarray, codes: list[np.ndarray]) -> np.ndarray:
    summary += _joint(codes)
    return summary


def test_misuse_is_refused(tmp_path: Path) -> None:
    source, schema, _ = small_table(tmp_path)
    table = open_table(source, schema, partitions=2)
    operator = gather_operator()
    with pytest.raises(ValueError, match="label"):
        table_pass(DASK, table, operator, name="pass", label=0)
    with pytest.raises(ValueError, match="label"):
        table_pass(DASK, table, operator, name="pass", split=SPLIT, label=3)
    parts = encoded(DASK, table, name="cache")
    with pytest.raises(ValueError, match="no labels"):
        table_pass(DASK, parts, operator, name="later", split=SPLIT, label=0).compute(scheduler="synchronous")


def test_nothing_confidential_is_shown(tmp_path: Path) -> None:
    source, schema, _ = small_table(tmp_path, rows=987)
    table = open_table(source, schema, partitions=2)
    counts, report = run_pass(table, pair_counts_operator(schema.cardinalities), split=SPLIT)
    (part,) = dask.compute(encoded(DASK, table, name="cache", split=SPLIT).partitions[0], scheduler="synchronous")
    for thing in (table, counts, report, part, SPLIT):
        assert "987" not in readable(thing)
        assert "array" not in repr(thing)
    assert "5a5a" not in readable(SPLIT)
    assert part.__sizeof__() >= 4 * len(part.codes[0])
