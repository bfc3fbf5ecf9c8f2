"""One table in every container: the same released bytes, the same identity; attempts stay bound to it."""

import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import releases
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import in_memory as spec

import dpdist
from dpdist.data.arrow import TableInMemory, digest_of
from dpdist.spec.schema import Schema

ROWS = 3_000


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpdist.Ledger:
    monkeypatch.chdir(tmp_path)
    ledger = dpdist.Ledger("sqlite:///ledger.db")
    ledger.create("people", epsilon=100, delta="1e-4")
    return ledger


def _dask(table: pa.Table) -> Any:
    pytest.importorskip("pandas")
    return pytest.importorskip("dask.dataframe").from_pandas(table.to_pandas(), npartitions=3)


def _duckdb(table: pa.Table) -> Any:
    connection = pytest.importorskip("duckdb").connect()
    connection.register("people", table)
    return connection.sql("select * from people")


def _delta(table: pa.Table) -> Any:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake("delta", table)
    return deltalake.DeltaTable("delta")


def _iceberg(table: pa.Table) -> Any:
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("tests", uri="sqlite:///catalog.db", warehouse=f"file://{Path.cwd()}/warehouse")
    catalog.create_namespace("tests")
    made = catalog.create_table("tests.people", schema=table.schema)
    made.append(table)
    catalog.close()
    return made


def _pandas(table: pa.Table) -> Any:
    pytest.importorskip("pandas")
    return table.to_pandas()


def _categories(table: pa.Table) -> Any:
    polars = pytest.importorskip("polars")
    return polars.from_arrow(table).with_columns(polars.col(polars.String).cast(polars.Categorical))


CONTAINERS: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda table: table,
    "reader": lambda table: pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=700)),
    "dataset": lambda table: pyarrow.dataset.dataset("table.parquet"),
    "pandas": _pandas,
    "polars": lambda table: pytest.importorskip("polars").from_arrow(table),
    "polars-categories": _categories,
    "duckdb": _duckdb,
    "dask": _dask,
    "delta": _delta,
    "iceberg": _iceberg,
}


@pytest.fixture(scope="module")
def of_file(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The digests of the parts that the table as a file gives."""
    folder = tmp_path_factory.mktemp("file")
    pq.write_table(releases.table(ROWS), folder / "table.parquet")
    ledger = dpdist.Ledger(f"sqlite:///{folder}/ledger.db")
    ledger.create("people", epsilon=100, delta="1e-4")
    settings = {"output.path": str(folder / "out"), "work": str(folder / "work")}
    data = folder / "table.parquet"
    return digests(dpdist.release(spec("file"), data=data, ledger=ledger, settings=settings, test_key=releases.KEY))


def digests(release: Any) -> list[str]:
    return [part.sha256 for part in release.manifest.parts]


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_the_same_bytes_as_the_file(
    container: str, of_file: list[str], ledger: dpdist.Ledger
) -> None:
    table = releases.table(ROWS)
    pq.write_table(table, "table.parquet")
    data = CONTAINERS[container](table)
    assert digests(dpdist.release(spec(container), data=data, ledger=ledger, test_key=releases.KEY)) == of_file
    if container != "dask":  # which has an identity for each partition
        found = ledger.show("people").attempts[-1].input_fingerprint
        assert found == TableInMemory(table, "a table").fingerprint


def test_a_family_that_splits_records_gives_the_same_bytes(tmp_path: Path) -> None:
    """The split addresses records by their rows, in a table in memory as in a file."""
    (tmp_path / "seeds").mkdir()
    made = releases.project(tmp_path / "seeds", cluster={"mode": "in-process"})
    of_file = dpdist.release(made, test_key=releases.KEY)
    settings = {"name": "memory", "output.path": str(tmp_path / "memory"), "cluster.partitions": 3}
    table = pq.read_table(made.data.path)
    released = dpdist.release(made, data=table, settings=settings, test_key=releases.KEY)
    assert digests(released) == digests(of_file)


def test_an_attempt_is_bound_to_the_rows_of_its_table(ledger: dpdist.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted, then resumed: refused with another table, and the same release with the same rows elsewhere."""
    table = releases.table(ROWS)

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "fitting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpdist.release(spec("first"), data=table, ledger=ledger, progress=interrupt, test_key=releases.KEY)
    other = releases.table(ROWS, seed=1)
    with pytest.raises(dpdist.errors.ReleaseConflict):
        dpdist.release(spec("first"), data=other, ledger=ledger, attempt="resume", test_key=releases.KEY)
    rows = pa.Table.from_batches(table.to_batches(max_chunksize=100))
    resumed = dpdist.release(spec("first"), data=rows, ledger=ledger, attempt="resume", test_key=releases.KEY)
    whole = dpdist.release(spec("second"), data=table, ledger=ledger, test_key=releases.KEY)
    assert digests(resumed) == digests(whole)
    assert len(ledger.show("people").attempts) == 2


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 60), max_size=4), encode=st.booleans())
def test_the_identity_of_a_table_does_not_depend_on_its_chunks(cuts: list[int], encode: bool) -> None:
    table = pa.table(
        {
            "text": [None if i % 7 == 0 else f"value {i % 5}" for i in range(60)],
            "number": pa.array([None if i % 11 == 0 else i / 3 for i in range(60)]),
            "whole": pa.array(range(60), pa.int16()),
            "truth": [i % 2 == 0 for i in range(60)],
        }
    )
    ends = [0, *sorted(cuts), 60]
    pieces = [table.slice(a, b - a) for a, b in pairwise(ends)]
    again = pa.concat_tables(pieces).set_column(2, "whole", pa.chunked_array([pa.array(range(60), pa.int64())]))
    if encode:
        again = again.set_column(0, "text", again["text"].dictionary_encode())
    assert digest_of(again) == digest_of(table)
    assert digest_of(again.slice(1)) != digest_of(table)
    assert digest_of(table.select(table.column_names[::-1])) == digest_of(table)
    assert digest_of(table.rename_columns(["text", "number", "other", "truth"])) != digest_of(table)


def test_a_contract_admits_a_table_once_it_is_checked(ledger: dpdist.Ledger) -> None:
    table = releases.table(ROWS)
    Path("schema.yaml").write_text(Schema.model_validate(releases.SCHEMA).model_dump_json())
    Path("contract.yaml").write_text(
        '{"schema": "schema.yaml", "data": {"path": "none"}, "minimum_records": 2500, "epsilon": 4, "delta": 1.0e-4}'
    )
    ledger.create("bound", contract="contract.yaml")
    bound = spec("first", dataset="bound")
    with pytest.raises(dpdist.errors.ContractBroken):
        dpdist.release(bound, data=table, ledger=ledger)
    ledger.check("bound", table)
    released = dpdist.release(bound, data=table.to_batches()[0], ledger=ledger)
    assert released.epsilon == 2
    assert len(ledger.show("bound").attempts) == 1


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import dpdist, sys; print(sorted(name for name in sys.modules if name.startswith('dpdist')), len(dir(dpdist)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"['dpdist'] {len(dpdist.__all__) + 1}\n"


def test_the_public_names_are_there() -> None:
    assert dir(dpdist) == sorted([*dpdist.__all__, "__version__"])
    for name in dpdist.__all__:
        assert getattr(dpdist, name).__doc__


def test_public_functions_are_functions_that_no_package_replaces() -> None:
    rooms = {module.name for module in pkgutil.iter_modules(dpdist.__path__)}
    for name in ("evaluate", "open_release", "plan", "release", "verify"):
        assert name not in rooms
        assert inspect.get_annotations(getattr(dpdist, name))["return"]
