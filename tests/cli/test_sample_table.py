"""The made-up table."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import Command

from dpdist.cli import sample_table as sample
from dpdist.errors import OutputExists, OutputUnwritable
from dpdist.spec.schema import Schema

RELEASES = Path(__file__).parents[2] / "deploy" / "releases"


def test_rows_are_a_pure_function_of_seed_and_place() -> None:
    whole = sample.draw(seed=1, start=0, count=1000)
    part = sample.draw(seed=1, start=333, count=100)
    other = sample.draw(seed=2, start=0, count=1000)
    for a, b, c in zip(whole, part, other, strict=True):
        np.testing.assert_array_equal(a[333:433], b)
        assert (a != c).any()


def test_its_schema_is_that_of_the_shipped_file() -> None:
    shipped = Schema.from_yaml(RELEASES / "schemas" / "acs2013.yaml")
    assert shipped.names == sample.SCHEMA.names
    assert shipped.cardinalities == sample.SCHEMA.cardinalities
    for a, b in zip(shipped.attributes, sample.SCHEMA.attributes, strict=True):
        np.testing.assert_array_equal(a.bucket_map, b.bucket_map)


def test_every_attribute_depends_on_its_parents() -> None:
    codes = dict(zip(sample.SCHEMA.names, sample.draw(seed=0, start=0, count=50_000), strict=True))
    for child, parents in sample.PARENTS.items():
        for parent in parents:
            table = np.histogram2d(codes[child], codes[parent], bins=(20, 8))[0] / 50_000
            independent = table.sum(1, keepdims=True) * table.sum(0)
            assert np.abs(table - independent).sum() > 0.02, (child, parent)


def test_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "ROWS_PER_GROUP", 100)
    monkeypatch.setattr(sample, "ROWS_PER_FILE", 200)
    seen: list[tuple[int, int]] = []
    sample.write(tmp_path / "t", 450, progress=lambda done, total: seen.append((done, total)))
    files = sorted((tmp_path / "t").glob("*.parquet"))
    assert [pq.read_metadata(file).num_rows for file in files] == [200, 200, 50]
    assert seen[-1] == (450, 450)
    with pytest.raises(OutputExists):
        sample.write(tmp_path / "t", 1)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputUnwritable):
        sample.write(blocked / "t", 1)


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_a_made_up_table_keeps_its_schema(name: str, dpdist: Command, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(
        "attributes:\n"
        "  - {name: code, kind: categorical, values: ['08', '13'], missing: {category: none}}\n"
        "  - {name: age, kind: integer, bounds: [0, 99], bins: {count: 10}}\n"
        "  - {name: price, kind: number, bounds: [0, 1.5]}\n"
    )
    assert dpdist("sample", name, "--schema", "schema.yaml", "--rows", "200").code == 0
    said = f"--data {name} --minimum 200 --epsilon 1 --delta 1e-9"
    (tmp_path / "contract.yaml").write_text(dpdist("contract", "draft", "schema.yaml", *said.split()).out)
    assert "200 of 200 rows are kept" in dpdist("contract", "check", "contract.yaml").out
    assert dpdist("sample", name, "--schema", "schema.yaml").code != 0
