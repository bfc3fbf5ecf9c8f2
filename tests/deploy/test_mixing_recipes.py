"""Recipes and releases of mixtures: tables are dealt whole, images keep their pixels, the shipped specs load."""

from __future__ import annotations

import gzip
import runpy
from pathlib import Path

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
