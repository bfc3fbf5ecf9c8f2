"""Coverage as a figure: of made-up tables whose law is known, and on the page of an evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
from published import published
from releases import KEY, SCHEMA, table
from typer.testing import CliRunner

from dpdist.cli import app
from dpdist.data.released import ReleasedTable
from dpdist.errors import SpecError
from dpdist.evaluation.utility.checks import coverage_section
from dpdist.families.base.registry import make_plan
from dpdist.inference.coverage import against_law, made_up
from dpdist.publish.verify import open_release
from dpdist.spec.reader import load

SPEC = {
    "kind": "synthesis",
    "name": "first",
    "dataset": "people",
    "schema": SCHEMA,
    "data": {"path": "unused", "minimum_records": 5_000},
    "output": {"path": "unused"},
    "privacy": {"epsilon": 4, "delta": 1e-7},
    "synthesis": {"records": 5_000},
}


def test_made_up_records_are_of_one_law() -> None:
    first, second = (made_up((3, 4, 2), 50_000, law=1, seed=seed) for seed in (1, 2))
    assert not np.array_equal(first[1], second[1])
    tables = [np.bincount(codes[0] * 8 + codes[1] * 2 + codes[2], minlength=24) for codes in (first, second)]
    assert np.abs(tables[0] - tables[1]).max() < 700
    other = made_up((3, 4, 2), 50_000, law=2, seed=1)
    assert np.abs(np.bincount(other[1], minlength=4) - np.bincount(first[1], minlength=4)).max() > 1_000


def test_intervals_cover_the_table_and_the_law() -> None:
    found = against_law(make_plan(load(SPEC)), records=6_000, runs=2)
    assert [one.of for one in found["table"]] == ["one-way cells", "two-way cells", "three-way cells", "regression"]
    for covered in found.values():
        assert all(one.coverage > 0.85 for one in covered), covered
        assert all(one.number > 0 and 0.25 < one.width < 3 for one in covered)
    assert found["law"][0].width > found["table"][0].width


def test_the_command_prints_it_and_refuses_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(SPEC | {"privacy": {"epsilon": 4, "delta": 1e-7, "accuracy_share": 0}}))
    with pytest.raises(SpecError, match="accuracy_share"):
        CliRunner().invoke(app, ["audit", str(path), "--coverage", "1"], catch_exceptions=False)


def test_the_page_has_a_section(tmp_path: Path) -> None:
    store, manifest = open_release(published(tmp_path, fixed_key=KEY))
    released = ReleasedTable(store, manifest)
    real = []
    for attribute, column in zip(manifest.table.attributes, table(6_000).columns, strict=True):
        values = attribute.values
        codes = [v // 5 if values is None else values.index(v) for v in column.to_pylist()]  # bins of five years
        real.append(np.array(codes, attribute.dtype))
    (section,) = coverage_section(real, released, known=True)
    assert section.state in ("good", "fair")
    assert [row[0] for row in section.tables[0].rows] == list(section.figures)
    (section,) = coverage_section(real, released, known=False)
    assert "sampled" in section.verdict
