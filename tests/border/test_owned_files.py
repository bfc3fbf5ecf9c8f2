"""The files of a data set with a contract are read under its name alone, and never as a public table."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from pydantic import ValidationError

from dpdist.cli.readers import verify
from dpdist.errors import ContractBroken, SpecError
from dpdist.ledger import Books
from dpdist.ledger.statement import budget_sentence
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.run import run_release
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from tests.buckets import s3_server

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
    ledger = Books.open("sqlite:///ledger.db")
    data = {"path": "people", "later": ["people-????.parquet"]}
    terms = {"schema": SCHEMA, "data": data, "minimum_records": 200, "epsilon": 1, "delta": "1e-6"}
    ledger.create_from_contract("people", Contract.model_validate(terms))
    ledger.create_dataset("free", epsilon=1000, delta="1e-3")
    ledger.close()
    return tmp_path


def _spec(path: str | list[str], **more: Any) -> ReleaseSpec:
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
    return load({key: value for key, value in (tree | more).items() if value is not None})


@pytest.mark.parametrize("path", ["people/a.parquet", "people/*.parquet", "links", "hard", "./hard/../people"])
def test_no_other_data_set_is_charged_for_them(place: Path, path: str) -> None:
    """A part of the files, a link to them or a changed time had another fingerprint, and no contract."""
    with pytest.raises(ContractBroken, match="belongs to data set 'people'"):
        run_release(_spec(path))
    assert not Books.open("sqlite:///ledger.db").show("free").attempts


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
        run_release(
            _spec(
                "other.parquet",
                **more,
                model={"prior": {"public": "Published by the office of statistics, on its site", "path": path}},
            )
        )
    assert not Books.open("sqlite:///ledger.db").show("free").attempts


@pytest.mark.parametrize("as_prior", [False, True])
def test_a_contract_protects_its_files_from_any_folder(
    place: Path, as_prior: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path of a contract was looked for in the folder of whoever ran a release, and not found."""
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    more: dict[str, Any] = {"ledger": f"sqlite:///{place}/ledger.db"}
    if as_prior:
        more |= {"kind": "synthesis", "histograms": None, "privacy": {"epsilon": 1, "delta": 1e-6}}
        more["model"] = {
            "prior": {
                "public": "Published by the office of statistics, on its site",
                "path": str(place / "people/a.parquet"),
            }
        }
    path = [str(place / "other.parquet"), *([] if as_prior else [str(place / "people/a.parquet")])]
    with pytest.raises(ContractBroken, match=r"belongs to data set 'people'"):
        run_release(_spec(path, **more))


def test_a_contract_s_files_are_local_or_in_s3() -> None:
    terms = {"schema": SCHEMA, "minimum_records": 2, "epsilon": 1, "delta": "1e-6"}
    with pytest.raises(ValidationError, match="elsewhere a file has several names"):
        Contract.model_validate({**terms, "data": {"path": "https://host/people.parquet"}})


def test_an_object_has_no_second_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy within a store has the same ETag."""
    import boto3

    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with s3_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        client = boto3.client("s3")
        client.create_bucket(Bucket="owned")
        client.upload_file("people/a.parquet", "owned", "d/people.parquet")
        client.upload_file("people/a.parquet", "owned", "copy.parquet")
        terms = {"schema": SCHEMA, "minimum_records": 200, "epsilon": 1, "delta": "1e-6"}
        contract = Contract.model_validate({**terms, "data": {"path": "s3://owned/d"}})
        Books.open("sqlite:///ledger.db").create_from_contract("stored", contract)
        for path in ("s3://owned/d/people.parquet", "s3a://owned/d/*", "s3://owned/copy.parquet"):
            with pytest.raises(ContractBroken, match="belongs to data set 'stored'"):
                run_release(_spec(path))
        for path in ("s3:///owned/d/people.parquet", "s3://owned/d/people.parquet?versionId=null"):
            with pytest.raises(SpecError, match="no plain address of S3"):
                run_release(_spec(path))


def test_a_test_key_needs_the_operator(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever knows the key computes the counts: the contract admitted it at a small epsilon."""
    ledger = Books.open("sqlite:///ledger.db")
    contract = Contract.from_text(ledger.dataset("people").contract or "")
    ledger.admit_input("people", fingerprint=check_input(contract).fingerprint, contract=contract.digest)
    monkeypatch.delenv("DPDIST_TEST_KEYS", raising=False)
    spec = _spec("people", dataset="people", privacy={"epsilon": 0.1})
    with pytest.raises(ContractBroken, match="a test key hides nothing"):
        run_release(spec, fixed_key="00" * 32)
    assert not Books.open("sqlite:///ledger.db").show("people").attempts
    monkeypatch.setenv("DPDIST_TEST_KEYS", "1")
    run_release(spec, fixed_key="00" * 32)
    said = budget_sentence(Books.open("sqlite:///ledger.db"), "people")
    assert said.startswith("no budget covers the noise of 1 release with a test key; epsilon 0.9 of 1 left")
    with pytest.raises(typer.Exit):
        verify(release="out", public_key=None, endpoint_url=None, ledger="sqlite:///ledger.db", required=True)
    shown = capsys.readouterr()
    assert shown.out.startswith("out: NOT PRIVATE, made with a fixed test key")
    assert "--require-signature: out: it was made with a fixed test key" in shown.err


def test_a_table_of_nobody_is_released(place: Path) -> None:
    """Two attributes are enough for a model that starts from a public table."""
    more = {"kind": "synthesis", "histograms": None, "privacy": {"epsilon": 1, "delta": 1e-6}}
    pq.write_table(pa.table({"ill": ["no"] * 90, "sex": ["f"] * 90}), "public.parquet")
    run_release(
        _spec(
            "other.parquet",
            **more,
            model={"prior": {"public": "Published by the office of statistics, on its site", "path": "public.parquet"}},
        )
    )
