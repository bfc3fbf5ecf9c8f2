"""A release of every kind of column, with missing values, describes itself and is exported to every format."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyreadr
import pyreadstat
import pytest
from commands import Command

import dpdist
from dpdist.api.export import export
from dpdist.spec.codebooks import described

ABOUT = {
    "title": "Patients of Nowhere",
    "publisher": "Clinic of Nowhere",
    "contact": "Data desk <data@nowhere.example>",
    "citation": "Clinic of Nowhere (2024)",
    "period": "2020/2021",
    "url": "https://nowhere.example/patients",
}
UNKNOWN = {"missing": {"category": "unknown"}}
BMI = {"label": "Body mass index", "unit": "kg/m2", "description": "Weight over squared height, measured. " * 3}
STAGE: dict[str, Any] = {"kind": "ordinal", "values": [1, 2, 3], "labels": ["early", "middle", "late"]}
ATTRIBUTES: list[dict[str, Any]] = [
    {"name": "ward", "kind": "categorical", "values": ["a", "b"]},
    {"name": "kids", "kind": "integer", "bounds": [0, 6], **UNKNOWN},
    {"name": "bmi", "kind": "number", "bounds": [10, 50], "bins": {"edges": [10, 18.5, 25, 30]}, **UNKNOWN, **BMI},
    {"name": "stage", **STAGE, **UNKNOWN},
    {"name": "shirt size", "kind": "ordinal", "values": ["S", "M", "L"], **UNKNOWN},
    {"name": "smokes", "kind": "categorical", "values": ["false", "true"], **UNKNOWN},
    {"name": "born", "kind": "date", "bounds": ["1950-01-01", "2010-12-31"], "bins": {"every": "year"}, **UNKNOWN},
    {"name": "seen", "kind": "datetime", "bounds": ["2020-01-01", "2021-12-31"], "bins": {"every": "month"}},
]


def table(rows: int = 2_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = {
        "ward": np.array(["a", "b"])[rng.integers(2, size=rows)],
        "kids": rng.integers(7, size=rows),
        "bmi": rng.uniform(10, 50, rows),
        "stage": rng.integers(1, 4, rows),
        "shirt size": np.array(["S", "M", "L"])[rng.integers(3, size=rows)],
        "smokes": rng.random(rows) < 0.3,
        "born": np.datetime64("1950-01-01") + rng.integers(22_000, size=rows),
        "seen": np.datetime64("2020-01-01T00:00:00") + rng.integers(6 * 10**7, size=rows),
    }
    frame = pd.DataFrame(columns).convert_dtypes()
    for name in list(columns)[1:-1]:
        frame.loc[rng.random(rows) < 0.25, name] = pd.NA
    return frame


def make(folder: Path, values: str = "values") -> Any:
    spec = {
        "kind": "synthesis",
        "name": "patients-2024",
        "dataset": "people",
        "schema": {"about": ABOUT, "attributes": ATTRIBUTES},
        "data": {"minimum_records": 1_000},
        "output": {"path": str(folder / "release"), "values": values},
        "work": str(folder / "work"),
        "privacy": {"epsilon": 2, "delta": 1e-7},
        "model": {"rounds": 1, "balance": 0},
    }
    ledger = dpdist.Ledger(str(folder / "ledger.db"))
    ledger.create("people", epsilon=8, delta="1e-4")
    return dpdist.release(spec, data=table(), ledger=ledger)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make(tmp_path_factory.mktemp("kinds"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("values", ["values", "labels", "codes"])
def test_frictionless_finds_missing_values_valid(release: Any, values: str, tmp_path: Path) -> None:
    import frictionless

    made = release if values == "values" else make(tmp_path, values)
    found = frictionless.validate(f"{made.path}/_datapackage.json", type="package")
    assert found.valid, found.flatten(["title", "message"])[:3]
    assert sum(task.stats["rows"] for task in found.tasks) == len(made)


@pytest.mark.filterwarnings("ignore")
def test_croissant_has_the_labels(release: Any) -> None:
    import mlcroissant

    found = mlcroissant.Dataset(jsonld=f"{release.path}/_croissant.json")
    assert not found.metadata.issues.errors
    labels = {row["values-stage/value"]: row["values-stage/label"] for row in found.records("values-stage")}
    assert labels == {"1": "early", "2": "middle", "3": "late"}
    tree = json.loads(Path(release.path, "_croissant.json").read_text())
    assert tree["creator"]["contactPoint"]["email"] == "data@nowhere.example"
    measured = {one["name"]: one for one in tree["variableMeasured"]}
    assert (measured["bmi"]["unitText"], measured["bmi"]["maxValue"]) == ("kg/m2", 50)


def test_no_description_drops_what_the_schema_says(release: Any) -> None:
    package = json.loads(Path(release.path, "_datapackage.json").read_text())
    assert package["contributors"][1] == {
        "title": ABOUT["contact"],
        "email": "data@nowhere.example",
        "roles": ["contact"],
    }
    for name in ("_README.md", "_datapackage.json", "_croissant.json", "_ddi.xml"):
        text = Path(release.path, name).read_text(encoding="utf-8").replace("&lt;", "<").replace("&gt;", ">")
        for said in (*ABOUT.values(), "synthetic", "Standard errors", "dpdist infer"):
            assert said in text, (name, said)
    readme = Path(release.path, "_README.md").read_text(encoding="utf-8")
    assert "1 = early, 2 = middle, 3 = late; null = unknown" in readme


def test_the_codebook_has_dates(release: Any) -> None:
    root = ElementTree.parse(f"{release.path}/_ddi.xml").getroot()
    forms = {one.get("name"): one.find("{*}varFormat") for one in root.iterfind(".//{*}var")}
    assert [forms[name].get("type") for name in ("kids", "bmi", "born", "seen")] == ["numeric"] * 2 + ["character"] * 2
    assert {forms[name].get("category") for name in ("born", "seen")} == {"date"}
    _, columns = described(f"{release.path}/_ddi.xml", public=False, table=None)
    assert [column.dated for column in columns[-3:]] == [None, "date", "datetime"]
    assert [column.absent for column in columns[3:5]] == [("unknown",)] * 2


def test_lines_of_the_readme_work_in_a_shell(
    release: Any, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of `dpdist`, as a shell would split them, in a copy of the release."""
    command: Command = request.getfixturevalue("dpdist")
    copy = tmp_path / "release"
    shutil.copytree(release.path, copy)
    monkeypatch.chdir(copy)
    text = Path("_README.md").read_text(encoding="utf-8")
    block = dict(line.split(maxsplit=1) for line in text.split("```")[1].strip().splitlines())
    asked = text.split("ask `")[1].split("`")[0]
    for line in (block["labels"], block["check"], asked):
        program, *words = shlex.split(line, comments=True)
        assert program == "dpdist"
        assert not set("|<>;&") & set("".join(words)), line
        done = command(*words)
        assert done.code == 0, done.err
    assert "95 % interval" in done.out
    assert (tmp_path / "patients-2024.dta").exists()
    assert release.verify().unlisted == ()


def test_verify_says_each_title_once(release: Any, request: pytest.FixtureRequest) -> None:
    said = request.getfixturevalue("dpdist")("verify", release.path).out
    titles = [line.split()[0] for line in said.splitlines()[1:] if line[:1] != " "]
    assert len(titles) == len(set(titles)), titles


@pytest.mark.parametrize("to", ["csv", "dta", "sav", "rds"])
def test_missing_values_are_missing_in_every_format(release: Any, to: str, tmp_path: Path) -> None:
    """And are as many as the release has; no level or label is called unknown."""
    path, plain = export(release, to, tmp_path / f"t.{to}"), release.to_pandas()
    absent = [int((plain[name].isna() | (plain[name].astype(object) == "unknown")).sum()) for name in plain.columns]
    assert min(absent[1:-1]) > 100
    if to == "csv":
        frame = pd.read_csv(path)
    elif to == "rds":
        (frame,) = pyreadr.read_r(path).values()
        assert list(frame["shirt size"].cat.categories) == ["S", "M", "L"]
    else:
        frame, about = {"dta": pyreadstat.read_dta, "sav": pyreadstat.read_sav}[to](path)
        assert about.variable_value_labels["shirt_size"] == {1: "S", 2: "M", 3: "L"}
        assert about.variable_value_labels["stage"] == {1: "early", 2: "middle", 3: "late"}
    assert frame.isna().sum().tolist() == absent


@pytest.mark.parametrize(("to", "day", "moment"), [("dta", "%td", "%tc"), ("sav", "DATE11", "DATETIME20")])
def test_dates_and_units_reach_stata_and_spss(release: Any, to: str, day: str, moment: str, tmp_path: Path) -> None:
    path = export(release, to, tmp_path / f"t.{to}")
    frame, about = {"dta": pyreadstat.read_dta, "sav": pyreadstat.read_sav}[to](path)
    formats = about.original_variable_types
    assert (formats["born"], formats["seen"]) == (day, moment)
    assert all(isinstance(value, date) for value in frame["born"].dropna())
    label, notes = about.column_labels[2], " ".join(about.notes)
    assert label.startswith("Body mass index (kg/m2)")
    assert (label if to == "dta" else notes).count("Weight over squared height")
    assert len(label) <= 80
    if shutil.which("Rscript"):
        asked = f"d <- haven::read_{to}('{path}'); cat(class(d$born), sum(is.na(d$born)), class(d$seen)[1])"
        said = subprocess.run(["Rscript", "-e", asked], capture_output=True, text=True, timeout=60)
        if said.returncode == 0:  # haven is installed
            assert said.stdout == f"Date {release.to_pandas()['born'].isna().sum()} POSIXct"
