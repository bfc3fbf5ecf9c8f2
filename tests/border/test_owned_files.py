"""The files of a data set with a contract are read under its name alone, and never as a public table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdist.errors import ContractBroken
from dpdist.families.base.registry import build_spec
from dpdist.ledger import Ledger
from dpdist.ledger.contract import Contract
from dpdist.release.run import run_release
from dpdist.schema.spec import ReleaseSpec

SCHEMA = {
    "attributes": [
        {"name": "ill", "kind": "categorical", "values": ["yes", "no"], "out_of_domain": "drop"},
        {"name": "sex", "kind": "categorical", "values": ["f", "m"]},
    ]
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set with a contract, another one without, and a table of somebody else."""
    monkeypatch.chdir(tmp_path)
    for folder in ("people", "links", "hard"):
        (tmp_path / folder).mkdir()
    table = pa.table({"ill": ["yes", "no"] * 100, "sex": ["f", "m"] * 100})
    pq.write_table(table, "people/a.parquet")
    pq.write_table(table, "people/b.parquet")
    pq.write_table(table, "other.parquet")
    os.symlink(tmp_path / "people/a.parquet", "links/x.parquet")
    os.link("people/a.parquet", "hard/x.parquet")
    ledger = Ledger.open("sqlite:///ledger.db")
    data = {"path": "people", "later": ["people-????.parquet"]}
    terms = {"schema": SCHEMA, "data": data, "minimum_records": 200, "epsilon": 1, "delta": "1e-6"}
    ledger.create_from_contract("people", Contract.model_validate(terms))
    ledger.create_dataset("free", epsilon=1000, delta="1e-3")
    ledger.close()
    return tmp_path


def _spec(path: str, **more: Any) -> ReleaseSpec:
    tree: dict[str, Any] = {
        "kind": "histogram",
        "name": "x",
        "dataset": "free",
        "schema": SCHEMA,
        "data": {"path": path, "minimum_records": 1},
        "output": {"path": "out"},
        "ledger": "sqlite:///ledger.db",
        "privacy": {"epsilon": 1},
        "histograms": [{"columns": ["ill"]}],
    }
    return build_spec({key: value for key, value in (tree | more).items() if value is not None})


@pytest.mark.parametrize("path", ["people/a.parquet", "people/*.parquet", "links", "hard", "./hard/../people"])
def test_no_other_data_set_is_charged_for_them(place: Path, path: str) -> None:
    """A part of the files, a link to them or a changed time had another fingerprint, and no contract."""
    with pytest.raises(ContractBroken, match="belongs to data set 'people'"):
        run_release(_spec(path))
    assert not Ledger.open("sqlite:///ledger.db").show("free").attempts


def test_later_files_are_owned_before_they_are_admitted(place: Path) -> None:
    """A new file was anybody's until its custodian had checked it."""
    (place / "people/a.parquet").rename("people-2027.parquet")
    with pytest.raises(ContractBroken, match="belongs to data set 'people'"):
        run_release(_spec("people-2027.parquet"))


@pytest.mark.parametrize("path", ["people", "links/x.parquet", "hard/x.parquet"])
def test_they_are_no_public_table(place: Path, path: str) -> None:
    """The model of a table under contract was released without noise, as the prior of a dummy table."""
    more = {"kind": "synthesis", "histograms": None, "privacy": {"epsilon": 1, "delta": 1e-6}}
    with pytest.raises(ContractBroken, match="a table that is public"):
        run_release(_spec("other.parquet", **more, model={"prior": {"path": path}}))
    assert not Ledger.open("sqlite:///ledger.db").show("free").attempts


def test_a_table_of_nobody_is_released(place: Path) -> None:
    """Two attributes are enough for a model that starts from a public table."""
    more = {"kind": "synthesis", "histograms": None, "privacy": {"epsilon": 1, "delta": 1e-6}}
    pq.write_table(pa.table({"ill": ["no"] * 90, "sex": ["f"] * 90}), "public.parquet")
    run_release(_spec("other.parquet", **more, model={"prior": {"path": "public.parquet"}}))
