"""Which release was verified, and what a reader should hear before its numbers."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from commands import Command
from published import ROWS, published
from releases import SCHEMA, table

import dpdist
from dpdist.errors import EmptyTable, SpecError, VerificationFailed
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.publish.manifest import MANIFEST
from dpdist.publish.part_format import cautions_of
from dpdist.publish.verify import read_manifest, verify
from dpdist.spec.reader import load


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("plain"))


def test_a_verification_says_which_release_it_is_about(plain: Path, dpdist: Command) -> None:
    manifest, report = read_manifest(plain), verify(plain)
    assert (report.name, report.dataset, report.attempt) == ("first", "people", manifest.attempt)
    assert report.created == manifest.created.isoformat()
    said = dpdist("verify", str(plain)).words
    assert f"first (synthesis) of data set people, {report.created}, attempt {manifest.attempt}" in said
    assert "2,500 records" in said
    assert {"name", "dataset", "created", "attempt", "cautions"} <= dpdist("verify", str(plain), "--json").json.keys()


def test_another_release_in_its_place_is_refused(plain: Path, dpdist: Command) -> None:
    attempt = read_manifest(plain).attempt
    verify(plain, name="first", attempt=attempt[:8])
    assert dpdist("verify", str(plain), "--name", "first", "--attempt", attempt).code == 0
    for words, found in ((("--name", "second"), "'first'"), (("--attempt", "00000000"), repr(attempt))):
        ended = dpdist("verify", str(plain), *words)
        assert ended.code == VerificationFailed.exit_code
        assert f"this is another release: its {words[0][2:]} is {found}" in ended.err
    with pytest.raises(SpecError, match="at least 8 characters"):
        verify(plain, attempt=attempt[:4])


def test_the_call_of_the_api_insists_too(plain: Path) -> None:
    dpdist.verify(plain, name="first")
    with pytest.raises(VerificationFailed, match="another release"):
        dpdist.verify(plain, name="second")


def _spec(folder: Path, **changes: Any) -> dict[str, Any]:
    with closing(Books.open(f"sqlite:///{folder}/ledger.db")) as ledger:
        ledger.create_dataset("people", epsilon="50", delta="1e-5")
    return {
        "kind": "synthesis",
        "name": "first",
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"path": str(folder / "table.parquet"), "minimum_records": 5_000},
        "output": {"path": str(folder / "release")},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "cluster": {"mode": "in-process"},
        "privacy": {"epsilon": 8, "delta": 1e-7},
    } | changes


def test_a_table_with_fewer_records_than_declared_is_said(tmp_path: Path, dpdist: Command) -> None:
    """A table of 100 records was released as "Records 5,000"."""
    pq.write_table(table(100), tmp_path / "table.parquet")
    (tmp_path / "spec.yaml").write_text(json.dumps(_spec(tmp_path)))
    ended = dpdist("release", str(tmp_path / "spec.yaml"))
    assert ended.code == 0
    about = f"the table has about {read_manifest(tmp_path / 'release').parameters['learned']['records']:,} records"  # type: ignore[index,call-overload]
    for said in (ended.words, dpdist("verify", str(tmp_path / "release")).words):
        assert f"WARNING {about} (a noisy count), and its spec declares at least 5,000" in said
        assert f"{about} (a noisy count), and 5,000 are released" in said
    stored = json.loads((tmp_path / "release" / MANIFEST).read_text())
    assert len(stored["cautions"]) == 2
    assert verify(tmp_path / "release").cautions == tuple(stored["cautions"])


def test_nothing_is_said_where_nothing_is_wrong(plain: Path) -> None:
    assert verify(plain).cautions == ()
    assert "cautions" not in json.loads((plain / MANIFEST).read_text())
    spec, learned = {"data": {"minimum_records": ROWS}}, {"learned": {"records": ROWS - 1}}
    assert len(cautions_of(spec, learned, ROWS)) == 1
    assert cautions_of(spec | {"weight": {"by": "w"}}, learned, ROWS) == ()
    for odd in ({}, {"learned": None}, {"learned": {"records": "x"}}):
        assert cautions_of(spec, odd, ROWS) == ()


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "table.parquet"])
def test_a_file_of_no_bytes_is_refused_before_the_charge(tmp_path: Path, name: str) -> None:
    """A CSV file of 0 bytes was a table of no records, of which noise was released."""
    (tmp_path / name).touch()
    data = {"path": str(tmp_path / name), "minimum_records": 5_000}
    if name.endswith(".gz"):
        with pyarrow.CompressedOutputStream(str(tmp_path / name), "gzip"):
            pass
    with pytest.raises(EmptyTable, match="0 bytes"):
        run_release(load(_spec(tmp_path, data=data)))
    with closing(Books.open(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        assert ledger.show("people").attempts == ()
