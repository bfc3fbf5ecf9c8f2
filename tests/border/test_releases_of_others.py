"""Releases that are not the expected ones, and values of an earlier one."""

import copy
import dataclasses
import hashlib
import json
import pickle
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from cases import CASES, HISTOGRAM, Case
from commands import Command
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federations import NAMES, federation
from published import ROWS, published
from pydantic import BaseModel, ValidationError
from releases import SCHEMA, fund, placed, table

import dpdist
from dpdist.errors import EmptyTable, KeyUnavailable, LedgerError, ReleaseConflict, SpecError, VerificationFailed
from dpdist.families.base.registry import make_plan
from dpdist.families.mixing.federated import stages as mixing
from dpdist.families.mixing.federated.stages import MixingSession
from dpdist.federated import client
from dpdist.ledger import Books, tables
from dpdist.lifecycle.run import Run, run_release
from dpdist.privacy.events import DiscreteLaplace
from dpdist.publish.manifest import MANIFEST
from dpdist.publish.part_format import cautions_of
from dpdist.publish.verify import read_manifest, verify
from dpdist.spec.contract import Contract
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
    fund(f"sqlite:///{folder}/ledger.db")
    return {
        **placed(folder, records=5_000),
        "kind": "synthesis",
        "schema": SCHEMA,
        "cluster": {"mode": "in-process"},
        "privacy": {"epsilon": 8, "delta": 1e-7},
        "model": {"rounds": 1, "balance": 0},
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


STALE = "f" * 64


def derived(value: object) -> set[str]:
    """The names of the properties that an instance of this class may have computed and kept."""
    return {
        name for kind in type(value).__mro__ for name, one in vars(kind).items() if isinstance(one, cached_property)
    }


def own(value: object) -> set[str]:
    """The names of the fields, some of which stand where a base class has a property."""
    if isinstance(value, BaseModel):
        return set(type(value).model_fields)
    return {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()


def parts(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """A value and all that its fields are made of, as far as it is written in this package."""
    if isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from parts(one, seen)
    elif type(value).__module__.startswith("dpdist") and id(value) not in seen:
        seen[id(value)] = value
        yield value
        for name in own(value):
            yield from parts(getattr(value, name, None), seen)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_copies_and_pickles_hold_fields_alone(case: Case, tmp_path: Path) -> None:
    spec = case.project(tmp_path)
    session = MixingSession(spec=spec, name="north", order=8, sigma_over_clip=0.3, attempt="1")  # type: ignore[arg-type]
    contract = Contract.model_validate(
        {"schema": spec.table, "data": {"path": "p.csv"}, "minimum_records": 1, "epsilon": 1, "delta": "1e-8"}
    )
    found = list(parts([make_plan(spec), session, contract], {}))
    assert {type(spec), Contract, MixingSession} <= {type(one) for one in found}
    for one in found:
        kept = derived(one) - own(one)
        one.__dict__.update(dict.fromkeys(kept, STALE))
        copies = [copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
        if isinstance(one, BaseModel):
            copies += [one.model_copy(), one.model_copy(deep=True), one.model_copy(update={})]
            arrived = type(one).__new__(type(one))
            arrived.__setstate__(BaseModel.__getstate__(one))  # from somebody whose pickles hold more
            copies.append(arrived)
        for made in copies:
            assert not kept & set(vars(made)), type(one)
        for name in kept:
            del one.__dict__[name]


def test_a_kept_fingerprint_is_never_believed(tmp_path: Path) -> None:
    spec = HISTOGRAM.spec(tmp_path)
    other = spec.model_copy(update={"name": "second"})
    assert spec.fingerprint != other.fingerprint
    other.__dict__["fingerprint"] = spec.fingerprint
    for made in (other, copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert made.fingerprint == HISTOGRAM.spec(tmp_path, name="second").fingerprint


def test_a_copy_with_other_values_is_validated(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="name"):
        HISTOGRAM.spec(tmp_path).model_copy(update={"name": "no name: a sentence"})
    with pytest.raises(ValidationError, match="nmae"):
        HISTOGRAM.spec(tmp_path).model_copy(update={"nmae": "first"})


def test_a_client_answers_no_other_spec_under_the_agreed_fingerprint(tmp_path: Path) -> None:
    """A coordinator got a second message of the same block under the same noise: their difference bared the records."""
    spec, attempt = federation(tmp_path), str(uuid4())
    assert spec.fingerprint

    def sent(to: str, asked: Any) -> MixingSession:
        told = MixingSession(spec=asked, name=to, order=8, sigma_over_clip=0.3, attempt=attempt)
        arrived: MixingSession = pickle.loads(pickle.dumps(told))
        return arrived

    members = {}
    for name in NAMES:
        members[name] = client.join(sent(name, spec)).value
    for task in (client.read, mixing.confirm):
        assert not task(sent("north", spec)).error
    agreed = mixing.send(sent("north", spec), 0, 0, members)
    assert not agreed.error
    age, *rest = spec.table.attributes
    wider = age.model_copy(update={"bounds": (0, 99)})
    table = spec.table.model_copy(update={"attributes": (wider, *rest)})
    other = spec.model_copy(update={"table": table})
    other.__dict__["fingerprint"] = spec.fingerprint
    for task in (client.join, client.read, mixing.confirm):
        assert task(sent("north", other)).error.startswith("ReleaseConflict"), task
    assert mixing.send(sent("north", other), 0, 0, members).error.startswith("ReleaseConflict")
    again = mixing.send(sent("north", spec), 0, 0, members)
    assert np.array_equal(again.value.steps, agreed.value.steps)


def test_an_attempt_is_not_resumed_with_another_spec(tmp_path: Path) -> None:
    spec = HISTOGRAM.project(tmp_path)
    assert spec.fingerprint
    with Run(spec) as run:
        for name, step in run.steps.items():
            if name != "publish":
                step()
    output = spec.output.model_copy(update={"values": "codes"})
    other = spec.model_copy(update={"output": output})
    other.__dict__["fingerprint"] = spec.fingerprint
    for asked in (other, pickle.loads(pickle.dumps(other))):
        with pytest.raises(ReleaseConflict):
            dpdist.release(asked, attempt="resume")
    assert not (tmp_path / "release" / "manifest.json").exists()
    dpdist.release(spec, attempt="resume")
    assert read_manifest(tmp_path / "release").spec_sha256 == HISTOGRAM.spec(tmp_path).fingerprint
    with closing(Books.open(spec.ledger)) as ledger:
        assert [one.state for one in ledger.show("people").attempts] == ["committed"]


# --- Rows of the ledger that were changed outside of it: nothing is signed, handed out or deleted by what they say


@pytest.fixture
def ledger(ledger_url: str) -> Books:
    """A ledger with one data set, on each database."""
    opened = Books.open(ledger_url)
    opened.create_dataset("acs", epsilon=1, delta="1e-6")
    return opened


def _reserve(ledger: Books, release: str) -> Any:
    request = {"dataset": "acs", "release": release, "spec_hash": "s", "input_fingerprint": "f", "guarantee": "dp"}
    return ledger.reserve(**request, event=DiscreteLaplace(scale=10.0))


def _alter(ledger: Books, table: sa.Table, **values: Any) -> None:
    with ledger.database.engine.begin() as connection:
        connection.execute(sa.update(table).values(**values))


def test_a_replaced_public_key_is_not_handed_out(ledger: Books) -> None:
    """`dpdist ledger identity` printed the key of whoever had written it there, and readers trusted it."""
    own = ledger.public_keys("acs")
    _alter(ledger, tables.identity, public_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex())
    for use in (ledger.public_keys, ledger.signing_key):
        with pytest.raises(LedgerError, match="the signing identities were altered"):
            use("acs")
    assert len(own) == 1


def test_identities_that_followed_are_the_journals(ledger: Books) -> None:
    made = [ledger.new_identity("acs") for _ in range(2)]
    assert ledger.public_keys("acs")[0] == made[-1]
    assert len(ledger.public_keys("acs")) == 3


@pytest.mark.parametrize("column", ["manifest_sha256", "spec_hash", "input_fingerprint"])
def test_an_altered_attempt_is_neither_found_nor_resumed(ledger: Books, column: str) -> None:
    attempt = ledger.mark_drawing(_reserve(ledger, "a"))
    if column == "manifest_sha256":
        ledger.commit(attempt, manifest_sha256="a" * 64)
    _alter(ledger, tables.charge, **{column: "b" * 64})
    with pytest.raises(LedgerError, match=f"was altered: {column}"):
        ledger.find("acs", "a")
    with pytest.raises(LedgerError, match=f"was altered: {column}"):
        ledger.resume(dataset="acs", release="a", spec_hash="s", input_fingerprint="f")


def test_a_file_that_is_no_key_is_left_alone(ledger: Books, tmp_path: Path) -> None:
    """Whoever wrote `key_uri` had any file of the operator overwritten and deleted."""
    precious = tmp_path / "precious.txt"
    precious.write_text("text")
    attempt = ledger.mark_drawing(_reserve(ledger, "a"))
    _alter(ledger, tables.charge, key_uri=str(precious))
    with pytest.raises(KeyUnavailable, match="not the key file"):
        ledger.commit(attempt, manifest_sha256="a" * 64)
    _reserve(ledger, "b")  # which sweeps
    assert precious.read_text() == "text"


def test_a_forged_manifest_is_not_signed_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its digest in the ledger a scheduled run took it for the release, and signed it."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"ill": ["yes", "no"] * 100}), "people.parquet")
    ledger = Books.open("sqlite:///ledger.db")
    ledger.create_dataset("acs", epsilon=1, delta="1e-6")
    spec = load(
        {
            "kind": "histogram",
            "name": "counts",
            "dataset": "acs",
            "schema": {"attributes": [{"name": "ill", "kind": "categorical", "values": ["yes", "no"]}]},
            "data": {"path": "people.parquet", "minimum_records": 1},
            "output": {"path": "out"},
            "ledger": "sqlite:///ledger.db",
            "privacy": {"epsilon": 0.5},
            "histograms": [{"columns": ["ill"]}],
        }
    )
    run_release(spec)
    manifest, signature = Path("out/_manifest.json"), Path("out/_manifest.sig")
    forged = json.dumps(json.loads(manifest.read_text()) | {"created": "2020-01-01"}, indent=2).encode()
    manifest.write_bytes(forged)
    _alter(ledger, tables.charge, manifest_sha256=hashlib.sha256(forged).hexdigest())
    before = signature.read_bytes()
    with pytest.raises(LedgerError, match="was altered: manifest_sha256"):
        run_release(spec, attempt="once")
    assert signature.read_bytes() == before
