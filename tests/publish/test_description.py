"""A release describes itself: to people, to Frictionless, Croissant and DDI, and to Stata and SPSS."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pyreadr
import pyreadstat
import pytest
import releases
from commands import Command

import dpdist
from dpdist.api.export import export, write_rds
from dpdist.spec.codebooks import described

NAMES = {"_README.md", "_datapackage.json", "_croissant.json", "_ddi.xml"}
ABOUT = {
    "title": "People of Nowhere",
    "description": "A made-up table.",
    "publisher": "Office of Nowhere",
    "contact": "office@nowhere.example",
    "licence": "CC-BY-4.0",
    "period": "2024",
}


@pytest.fixture(scope="module", params=[2_000, 250_000], ids=["parts", "one part"])
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("described")
    attributes = [dict(attribute) for attribute in releases.SCHEMA["attributes"]]
    attributes[1] |= {"label": "Age of the person", "unit": "years", "description": "At the last birthday."}
    attributes[0] |= {"label": "Where | they live\x07"}
    attributes[4] |= {"kind": "ordinal", "values": ["yes", "no", "other"]}
    spec = {
        "kind": "synthesis",
        "name": "people-2024",
        "dataset": "people",
        "schema": {"about": ABOUT, "attributes": attributes},
        "data": {"minimum_records": 5_000},
        "output": {"path": str(folder / "release"), "rows_per_part": request.param},
        "work": str(folder / "work"),
        "privacy": {"epsilon": 2, "delta": 1e-7},
        "model": {"rounds": 1, "balance": 0},
    }
    ledger = dpdist.Ledger(str(folder / "ledger.db"))
    ledger.create("people", epsilon=8, delta="1e-4")
    return dpdist.release(spec, data=releases.table(6_000), ledger=ledger)


def test_the_descriptions_are_files_of_the_manifest(release: Any) -> None:
    assert {file.name for file in release.manifest.files} >= NAMES
    assert release.verify().unlisted == ()
    text = Path(release.path, "_README.md").read_text(encoding="utf-8")
    for said in (*ABOUT.values(), release.guarantee, "Age of the person", "1 = female", "0 to 99 |", "doi:10.29012"):
        assert said in text
    Path(release.path, "_README.md").write_text(text + "more", encoding="utf-8")
    with pytest.raises(dpdist.errors.VerificationFailed, match=r"_README\.md"):
        release.verify()
    Path(release.path, "_README.md").write_text(text, encoding="utf-8")


def test_folders_open_where_tools_look(release: Any) -> None:
    import dask.dataframe

    rows, every = len(release), f"{release.path}/**/*.parquet"
    frame = pd.read_parquet(release.path)
    assert len(frame) == rows
    assert frame["employed"].dtype == pd.CategoricalDtype(["yes", "no", "other"], ordered=True)
    assert frame["region"].dtype == pd.CategoricalDtype(["north", "south", "east", "west"], ordered=False)
    pd.testing.assert_series_equal(frame["employed"], release.to_pandas()["employed"])
    for place in (every, f"{release.path}/data"):
        scanned = pl.scan_parquet(place).collect()
        assert scanned.height == rows
        assert (scanned.schema["employed"], scanned.schema["region"]) == (
            pl.Enum(["yes", "no", "other"]),
            pl.Categorical(),
        )
    assert duckdb.sql(f"SELECT count(*) FROM '{every}' WHERE employed IN ('yes', 'no', 'other')").fetchall() == [
        (rows,)
    ]
    assert len(dask.dataframe.read_parquet(release.path)) == rows


def test_the_readme_opens_it(release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line under *Read it*, as it stands there, in the folder of the release."""
    said = Path(release.path, "_README.md").read_text(encoding="utf-8").split("```")[1].strip()
    lines = dict(line.split(maxsplit=1) for line in said.splitlines())
    monkeypatch.chdir(release.path)
    for name, module in (("pandas", pd), ("Polars", pl)):
        assert len(eval(lines.pop(name), {name.lower(): module})) == len(release)
    assert len(duckdb.sql(lines.pop("DuckDB"))) == len(release)
    arrow = re.fullmatch(r"arrow::open_dataset\('(.*)'\)", lines.pop("R"))
    assert arrow is not None
    assert pyarrow.dataset.dataset(arrow[1]).count_rows() == len(release)
    assert list(lines) == ["labels", "check"]
    assert {line.split()[:3][1] for line in lines.values()} == {"export", "verify"}


def test_parts_tell_of_their_columns(release: Any) -> None:
    told = {field.name: field.metadata for field in pq.read_schema(release.path + "/" + release.manifest.parts[0].name)}
    assert told["age"] == {
        b"label": b"Age of the person",
        b"unit": b"years",
        b"description": b"At the last birthday.",
    }
    assert json.loads(told["sex"][b"labels"]) == {"1": "female", "2": "male"}
    assert told["score"] is None


@pytest.mark.filterwarnings("ignore")
def test_frictionless_finds_it_valid(release: Any) -> None:
    import frictionless

    found = frictionless.validate(f"{release.path}/_datapackage.json", type="package")
    assert found.valid, found.flatten(["title", "message"])
    assert sum(task.stats["rows"] for task in found.tasks) == len(release)


@pytest.mark.filterwarnings("ignore")
def test_croissant_finds_it_valid_and_reads_it(release: Any) -> None:
    import mlcroissant

    found = mlcroissant.Dataset(jsonld=f"{release.path}/_croissant.json")
    assert not found.metadata.issues.errors
    ages = [record["records/age"] for record in found.records("records")]
    assert sorted(ages) == sorted(release.to_pandas()["age"])


@pytest.mark.parametrize("name", ["_ddi.xml", "_datapackage.json"])
def test_schemas_are_drafted_from_the_descriptions(release: Any, name: str) -> None:
    _, columns = described(f"{release.path}/{name}", public=False, table=None)
    assert [column.name for column in columns] == list(release.schema.names)
    assert dict(columns[2].items or {}) == {"1": "female", "2": "male"}
    assert (columns[1].label, columns[1].low, columns[1].high) == ("Age of the person", "0", "99")


def test_the_codebook_is_in_the_order_of_ddi(release: Any) -> None:
    root = ElementTree.parse(f"{release.path}/_ddi.xml").getroot()
    space = "{ddi:codebook:2_5}"
    assert [one.tag.removeprefix(space) for one in root] == ["stdyDscr", "fileDscr", "dataDscr"]
    variable = root.findall(f".//{space}var")[2]
    order = ["labl", "valrng", "txt", "catgry", "varFormat"]
    found = list(dict.fromkeys(one.tag.removeprefix(space) for one in variable))
    assert found == [tag for tag in order if tag in found]


def test_r_reads_the_factors(release: Any, tmp_path: Path) -> None:
    path = export(release, "rds", tmp_path / "people.rds")
    (frame,) = pyreadr.read_r(path).values()
    shown = release.to_pandas(labels=True)
    assert list(frame.columns) == list(shown.columns)
    for name in shown.columns:
        assert frame[name].astype(str).tolist() == shown[name].astype(str).tolist()
    if not shutil.which("Rscript"):
        pytest.skip("R itself is not installed")
    asked = (
        f"d <- readRDS('{path}'); cat(is.ordered(d$employed), levels(d$sex), attr(d$age, 'label'), nrow(d), sep=';')"
    )
    said = subprocess.run(["Rscript", "-e", asked], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said == f"TRUE;female;male;Age of the person;{len(release)}"


def test_every_type_of_r(tmp_path: Path) -> None:
    """Types, missing values and texts as pyreadr, a reader of its own, has them."""
    day, clock = date(1931, 5, 17), datetime(2024, 2, 29, 23, 59, 58, 250_000)
    held: dict[str, pa.Array] = {
        "day": pa.array([day, None]),
        "clock": pa.array([clock, None], pa.timestamp("us")),
        "flag": pa.array([True, None]),
        "whole": pa.array([-7, None], pa.int64()),
        "large": pa.array([2**40, None], pa.int64()),
        "number": pa.array([0.1, None]),
        "text": pa.array(["Zoë ż", None]),
        "kind": pa.array(["b", None]).dictionary_encode(),
        "empty": pa.array([None, None], pa.int64()),
    }
    write_rds(tmp_path / "t.rds", pa.table(held), {"text": {"label": "a name"}})
    (frame,) = pyreadr.read_r(tmp_path / "t.rds").values()
    assert frame.isna().sum().tolist() == [1] * 8 + [2]
    first = frame.iloc[0]
    assert (first["day"], first["clock"].to_pydatetime()) == (day, clock)
    assert (bool(first["flag"]), int(first["whole"]), int(first["large"])) == (True, -7, 2**40)
    assert (first["number"], first["text"], first["kind"]) == (0.1, "Zoë ż", "b")


@pytest.mark.parametrize("width", [pa.int8(), pa.uint8()], ids=str)
def test_factors_of_r_have_all_levels(width: pa.DataType, tmp_path: Path) -> None:
    levels = [f"v{code}" for code in range(128)]
    codes = pa.array([*range(128), None], width)
    write_rds(tmp_path / "t.rds", pa.table({"kind": pa.DictionaryArray.from_arrays(codes, levels)}), {})
    (frame,) = pyreadr.read_r(tmp_path / "t.rds").values()
    assert frame["kind"].astype(object).where(frame["kind"].notna(), None).tolist() == [*levels, None]


@pytest.mark.parametrize("to", ["dta", "sav"])
def test_stata_and_spss_read_the_labels(release: Any, to: str, tmp_path: Path) -> None:
    path = export(release, to, tmp_path / f"people.{to}")
    frame, about = {"dta": pyreadstat.read_dta, "sav": pyreadstat.read_sav}[to](path)
    assert len(frame) == len(release)
    assert about.column_labels[1].startswith("Age of the person (years)")
    assert {int(key): value for key, value in about.variable_value_labels["sex"].items()} == {1: "female", 2: "male"}
    assert set(about.variable_value_labels["region"].values()) == {"north", "south", "east", "west"}
    shown = frame["region"].map(about.variable_value_labels["region"])
    assert shown.value_counts().to_dict() == release.to_pandas()["region"].astype(str).value_counts().to_dict()
    if to == "sav":
        measured = [about.variable_measure[name] for name in ("age", "sex", "employed")]
        assert measured == ["scale", "nominal", "ordinal"]
        assert about.original_variable_types["age"] == "F12.0"
    with pytest.raises(dpdist.errors.SpecError, match="exists already"):
        export(release, to, path)


def test_the_command_exports(release: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    command: Command = request.getfixturevalue("dpdist")
    done = command("export", release.path, "--to", "csv")
    assert (done.code, done.out) == (0, "people-2024.csv\n")
    assert len(Path("people-2024.csv").read_text().splitlines()) == len(release) + 1
    monkeypatch.setitem(sys.modules, "pyreadstat", None)
    done = command("export", release.path, "--to", "dta")
    assert done.code != 0
    assert "pip install 'dpdist[readers]'" in done.err
    assert not os.path.exists("people-2024.dta")


def test_statistics_are_described_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sex": ["f", "m"] * 500}), tmp_path / "t.parquet")
    spec = {
        "kind": "histogram",
        "name": "counts",
        "dataset": "people",
        "schema": {"attributes": [{"name": "sex", "kind": "categorical", "values": ["f", "m"]}]},
        "data": {"path": str(tmp_path / "t.parquet"), "minimum_records": 500},
        "output": {"path": str(tmp_path / "release")},
        "work": str(tmp_path / "work"),
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "histograms": [{"columns": ["sex"]}],
    }
    ledger = dpdist.Ledger(str(tmp_path / "ledger.db"))
    ledger.create("people", epsilon=8, delta="1e-4")
    made = dpdist.release(spec, ledger=ledger)
    fields = json.loads(Path(made.path, "_datapackage.json").read_text())["resources"][0]["schema"]["fields"]
    assert [field["name"] for field in fields][:3] == ["statistic", "of", "cell"]
    assert "With its noise" not in Path(made.path, "_README.md").read_text()
    assert made.verify().unlisted == ()
