"""The recipe for raw ACS PUMS person files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.parquet as pq
import pytest

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
