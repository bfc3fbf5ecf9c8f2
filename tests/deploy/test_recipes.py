"""Recipes for raw files: ACS PUMS person files, and tables and images for mixtures."""

import gzip
import importlib.util
import runpy
from pathlib import Path
from types import ModuleType

import forkserver
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from federations import SCHEMA, table

from dpdist.families.mixing.scaling import declared_encoding
from dpdist.families.mixing.spec import MixingSpec
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("acs_pums", DEPLOY / "recipes" / "acs_pums.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HEADER = "RT,SERIALNO,ST,AGEP,COW,SCHL,MAR,OCCP,RAC1P,SEX,WKHP,WAGP,RELP,WAOB,NATIVITY"
GOOD = "P,1,01,{age},1,21,1,{occp},1,2,40,{wage},0,1,1"


def rows(*lines: str) -> str:
    return "\n".join([HEADER, *lines]) + "\n"


def test_recoding_and_cleaning(recipe: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "psam_p01.csv"
    source.write_text(
        rows(
            GOOD.format(age=30, occp="0010", wage=50000),
            GOOD.format(age=95, occp="9760", wage=50001),
            GOOD.format(age=16, occp="0010", wage=100),  # too young
            GOOD.format(age=40, occp="0010", wage=0),  # no wages
            GOOD.format(age=40, occp="9920", wage=10),  # no occupation
            "P,1,01,40,,21,1,0010,1,2,40,10,0,1,1",  # no class of worker
            "P,1,01,40,9,21,1,0010,1,2,40,10,0,1,1",  # unemployed
            "P,1,01,40,1,21,1,0010,7,1,99,10,17,8,2",
        )
    )
    assert recipe.main([str(source), "--out", str(tmp_path / "out"), "--year", "2013"]) == 0
    table = pq.read_table(tmp_path / "out" / "psam_p01.parquet").to_pydict()
    schema = Schema.from_yaml(DEPLOY / "releases" / "schemas" / "acs2013.yaml")
    assert tuple(table) == schema.names
    assert table["age"] == [14, 79, 24]
    assert table["incc"] == [1, 2, 1]
    assert table["race"] == [5, 5, 2]
    assert table["occ"] == [16, 25, 16]
    assert table["rel"] == [1, 1, 18]
    assert table["hpw"] == [40, 40, 99]


def test_files_since_2019(recipe: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "p.csv"
    source.write_text(rows(GOOD.format(age=30, occp="4710", wage=60000)))
    assert recipe.main([str(source), "--out", str(tmp_path), "--year", "2024"]) == 0
    table = pq.read_table(tmp_path / "p.parquet")
    schema = Schema.from_yaml(DEPLOY / "releases" / "schemas" / "acs2024.yaml")
    assert tuple(table.column_names) == schema.names
    assert table["nat"].to_pylist() == [1]
    assert table["state"].to_pylist() == [1]


def test_occupation_groups_cover_the_codes(recipe: ModuleType) -> None:
    names = np.array(["", *recipe.OCCUPATIONS])
    codes = np.array([10, 430, 500, 950, 1240, 1560, 1965, 2060, 2160, 2550, 2920, 3540, 3655, 3955, 4150, 4250])
    wanted = ["MGR", "MGR", "BUS", "FIN", "CMM", "ENG", "SCI", "CMS", "LGL", "EDU", "ENT", "MED", "HLS", "PRT"]
    wanted += ["EAT", "CLN"]
    assert names[recipe.occupation_group(codes)].tolist() == wanted
    codes = np.array([4650, 4965, 5940, 6130, 6765, 6940, 7630, 8965, 9750, 9830, 9920, 5])
    wanted = ["PRS", "SAL", "OFF", "FFF", "CON", "EXT", "RPR", "PRD", "TRN", "MIL", "", ""]
    assert names[recipe.occupation_group(codes)].tolist() == wanted


def test_a_missing_file_is_named(recipe: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "p.csv"
    source.write_text("a,b\n1,2\n")
    assert recipe.main([str(source), "--out", str(tmp_path), "--year", "2013"]) == 3
    assert "expected columns" in capsys.readouterr().err
    assert not (tmp_path / "p.parquet").exists()


# --- Recipes and releases of mixtures: tables are dealt whole, images keep their pixels, the shipped specs load


ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "deploy" / "recipes"


@pytest.mark.parametrize(("name", "width"), [("adult-mixing", 108), ("adult-federated", 108), ("mnist-mixing", 784)])
def test_shipped_specs_load(name: str, width: int) -> None:
    spec = load(ROOT / "deploy" / "releases" / f"{name}.yaml")
    assert isinstance(spec, MixingSpec)
    assert declared_encoding(spec.table, class_attribute=spec.mixing.label).width == width


def test_a_table_is_dealt_to_clients(tmp_path: Path) -> None:
    people = table(100, seed=0)
    pq.write_table(people, tmp_path / "people.parquet")
    clients = [{"name": name, "path": "x", "dataset": f"d-{name}", "work": "x"} for name in ("a", "b", "c")]
    template = {
        "kind": "mixing",
        "name": "dealt",
        "dataset": "all",
        "schema": SCHEMA,
        "data": {"minimum_records": 30},
        "output": {"path": "x"},
        "privacy": {"epsilon": 1, "delta": 1e-6},
        "mixing": {"class": "class", "classes": {"low": {"minimum": 10, "records": 10}}},
        "federated": {"trust": "correlated", "clients": clients},
    }
    (tmp_path / "template.yaml").write_text(yaml.safe_dump(template))
    command = [RECIPES / "deal.py", tmp_path / "template.yaml", tmp_path / "people.parquet", tmp_path / "out"]
    dealt = forkserver.run(*command)
    assert dealt.returncode == 0, dealt.stderr
    again = forkserver.run(*command)
    assert again.returncode == 2
    assert "is there already" in again.stderr
    spec = load(tmp_path / "out" / "spec.yaml")
    assert isinstance(spec, MixingSpec)
    assert spec.federated is not None
    parts = [pq.read_table(client.paths[0]) for client in spec.federated.clients]
    assert sum(part.num_rows for part in parts) == 100
    assert parts[1].equals(people.take(list(range(1, 100, 3))))
    for client in spec.federated.clients:
        assert Path(str(client.identity)).stat().st_mode & 0o077 == 0
        assert (tmp_path / "out" / client.name / "ledger.db").exists()


def test_images_become_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels, digits = rng.integers(0, 256, (50, 784), np.uint8), rng.integers(0, 10, 50).astype(np.uint8)
    (tmp_path / "images").write_bytes(bytes(16) + pixels.tobytes())
    (tmp_path / "labels.gz").write_bytes(gzip.compress(bytes(8) + digits.tobytes()))
    command = [RECIPES / "mnist.py", tmp_path / "images", tmp_path / "labels.gz", "--out", tmp_path / "out"]
    made = forkserver.run(*command, "--test", "10")
    assert made.returncode == 0, made.stderr
    found = [pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("train", "test")]
    assert [part.num_rows for part in found] == [40, 10]
    rows = np.concatenate([np.stack([part[f"p{i}"].to_numpy() for i in range(784)], axis=1) for part in found])
    labels = np.concatenate([part["digit"].to_numpy() for part in found])
    expected = {bytes(row) for row in np.column_stack([pixels, digits])}
    assert {bytes(row) for row in np.column_stack([rows, labels])} == expected


def test_the_shipped_schema_of_images_is_that_of_the_recipe() -> None:
    made = runpy.run_path(str(RECIPES / "mnist.py"))["schema"]()
    assert (ROOT / "deploy" / "releases" / "schemas" / "mnist.yaml").read_text() == made
    assert len(Schema.model_validate(yaml.safe_load(made)).attributes) == 785
