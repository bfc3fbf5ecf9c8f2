"""Relative paths of a spec or a contract are from the folder of its file; those that a call sets are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dpdist.families.base.registry import FAMILIES
from dpdist.spec.contract import Contract
from dpdist.spec.data import path_settings
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec

SCHEMA = {"attributes": [{"name": "age", "kind": "integer", "bounds": [0, 9]}]}


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table, a folder of specs with a schema, and a working folder beside them."""
    for name in ("data", "specs", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "people.csv").write_text("age\n1\n")
    (tmp_path / "specs" / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def written(folder: Path, name: str = "spec.yaml", **changes: object) -> Path:
    tree = {
        "kind": "synthesis",
        "name": "people",
        "dataset": "people",
        "schema": "schema.yaml",
        "data": {"path": "../data/people.csv", "minimum_records": 1},
        "output": {"path": "out", "signing_key": "../keys/me.pem"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "synthesis": {"records": 10},
        "cluster": {
            "mode": "address",
            "address": "tls://here:1",
            "security": dict.fromkeys(("ca", "cert", "key"), "a.pem"),
        },
    }
    path = folder / "specs" / name
    path.write_text(yaml.safe_dump({**tree, **changes}))
    return path


def test_all_paths_are_from_the_folder_of_the_spec(house: Path) -> None:
    spec = load(written(house))
    assert spec.data.path == str(house / "data" / "people.csv")
    assert spec.output.path == str(house / "specs" / "out")
    assert spec.work == str(house / "specs" / ".dpdist")
    assert spec.output.signing_key == str(house / "keys" / "me.pem")
    assert spec.cluster.security is not None
    assert spec.cluster.security.ca == str(house / "specs" / "a.pem")


def test_paths_below_the_working_folder_are_short(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(house)
    monkeypatch.chdir(house)
    for given in (path, path.relative_to(house)):
        spec = load(given)
        assert (spec.data.path, spec.output.path, spec.work) == ("data/people.csv", "specs/out", "specs/.dpdist")


def test_addresses_absolute_paths_and_lists(house: Path) -> None:
    paths = ["../data/*.csv", "s3://bucket/people", "/data/people.csv", "~/people.csv"]
    spec = load(written(house, data={"path": paths, "minimum_records": 1}, output={"path": "s3://bucket/out"}))
    assert spec.data.paths == (str(house / "data" / "*.csv"), *paths[1:])
    assert spec.output.path == "s3://bucket/out"


def test_what_a_call_sets_is_from_the_working_folder(house: Path) -> None:
    spec = load(written(house), {"data.path": "here.csv", "output": {"path": "there"}, "cluster.security.ca": "b.pem"})
    assert (spec.data.path, spec.output.path) == ("here.csv", "there")
    assert spec.cluster.security is not None
    assert (spec.cluster.security.ca, spec.cluster.security.key) == ("b.pem", str(house / "specs" / "a.pem"))


def test_a_folder_of_the_same_name_as_the_output_is_no_mistake(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(house)
    (house / "out").mkdir()
    (house / ".dpdist").mkdir()
    monkeypatch.chdir(house)
    assert load(path).output.path == "specs/out"


def test_a_linked_folder_of_specs_is_the_folder_it_links_to(house: Path) -> None:
    written(house)
    (house / "elsewhere" / "linked").symlink_to(house / "specs")
    assert load("linked/spec.yaml").data.path == str(house / "data" / "people.csv")


def test_the_fingerprint_does_not_depend_on_where_files_are(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(house)
    from_elsewhere = load(path).fingerprint
    monkeypatch.chdir(house)
    assert load(path).fingerprint == from_elsewhere
    assert load(path, {"data.path": "s3://bucket/people", "output.signing_key": "k.pem"}).fingerprint == from_elsewhere
    assert load(path, {"data.minimum_records": 2}).fingerprint != from_elsewhere


def test_paths_of_a_contract(house: Path) -> None:
    tree = {
        "schema": "schema.yaml",
        "data": {"path": "../data/people.csv", "later": ["../data/2*.csv"]},
        "minimum_records": 1,
        "epsilon": 1,
        "delta": 1e-9,
        "public_tables": ["../public.csv"],
    }
    (house / "specs" / "contract.yaml").write_text(yaml.safe_dump(tree))
    contract = Contract.from_yaml(house / "specs" / "contract.yaml")
    assert contract.data.paths == (str(house / "data" / "people.csv"),)
    assert contract.data.later == (str(house / "data" / "2*.csv"),)
    assert contract.public_tables == (str(house / "public.csv"),)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_every_family_knows_its_paths(kind: str) -> None:
    spec_class: type[ReleaseSpec] = FAMILIES[kind].spec_class
    names = {".".join(setting) for setting, _ in path_settings(spec_class)}
    assert {
        "data.path",
        "data.parent.path",
        "output.path",
        "output.signing_key",
        "work",
        "cluster.scheduler_file",
    } <= names
    assert ("model.prior.path" in names) is (kind == "synthesis")
