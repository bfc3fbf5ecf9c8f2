"""Schemas drafted from public descriptions of tables, in the formats in which others publish them."""

import datetime
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import Command

from dpdist.errors import SpecError
from dpdist.spec.draft import draft, left_to_decide
from dpdist.spec.schema import Schema
from dpdist.spec.strict_yaml import parse_yaml

NIST = {
    "AGEP": {"description": "Person's age", "values": {"min": 0, "max": 99}},
    "MSP": {
        "description": "Marital Status",
        "values": {"N": "N/A (age less than 15 years)", "1": "Now married", "2": "Widowed"},
    },
    "NOC": {"description": "Own children", "values": {"N": "N/A (GQ/vacant)", "0": "None", "min": 1, "max": 19}},
    "PUMA": {"description": "Area", "values": {"25-00503": "Middlesex", "25-00703": "Essex"}},
    "DENSITY": {"description": "Population density", "values": {"min": 16.3, "max": 52864.7}},
    "PINCP": {"description": "Income", "N": "N/A (less than 15 years old)", "min": -9000, "max": 1341000},
    "INDP": {"description": "Industry codes", "link": "https://www2.census.gov"},
}
CENSUS_API = {
    "variables": {
        "SEX": {"label": "Sex", "values": {"item": {"1": "Male", "2": "Female"}}},
        "AGEP": {"label": "Age", "values": {"item": {"0": "Under 1"}, "range": [{"min": "1", "max": "99"}]}},
        "for": {"label": "Census API FIPS 'for' clause"},
    }
}
CENSUS_CSV = """NAME,MAR,C,1,"Marital status"
VAL,MAR,C,1,1,1,"Married"
VAL,MAR,C,1,2,2,"Widowed"
NAME,WAGP,N,6,"Wages or salary income"
VAL,WAGP,N,6,bbbbbb,bbbbbb,"N/A (less than 15 years old)"
VAL,WAGP,N,6,0,0,"None"
VAL,WAGP,N,6,4,999999,"$4 to $999999"
"""
FRICTIONLESS = {
    "missingValues": ["", "NA"],
    "fields": [
        {
            "name": "id",
            "type": "integer",
            "title": "Age",
            "constraints": {"minimum": 0, "maximum": 120, "required": True},
        },
        {"name": "grade", "type": "string", "categories": ["low", "high"], "categoriesOrdered": True},
        {
            "name": "sex",
            "type": "integer",
            "categories": [{"value": 1, "label": "male"}, {"value": 2, "label": "female"}],
        },
        {"name": "price", "type": "number", "constraints": {"minimum": 0, "maximum": 9.5}},
        {"name": "free", "type": "string"},
        {"name": "employed", "type": "boolean", "constraints": {"required": True}},
    ],
}
CSVW = {
    "@context": "http://www.w3.org/ns/csvw",
    "tableSchema": {
        "columns": [
            {
                "name": "age",
                "titles": "Age",
                "required": True,
                "datatype": {"base": "integer", "minimum": 0, "maximum": 9},
            },
            {"titles": {"en": "region"}, "datatype": {"base": "string", "format": "north|south"}, "null": "?"},
        ]
    },
}
DDI = """<?xml version="1.0"?>
<codeBook xmlns="ddi:codebook:2_5"><dataDscr>
  <var ID="V1" name="SEX" intrvl="discrete" nature="nominal"><labl>Sex of
    respondent</labl>
    <catgry><catValu>1</catValu><labl>Male</labl></catgry>
    <catgry><catValu>2</catValu><labl>Female</labl></catgry>
    <catgry missing="Y"><catValu>9</catValu><labl>Not stated</labl></catgry><varFormat type="numeric"/></var>
  <var ID="V2" name="AGE" intrvl="contin"><labl>Age</labl><valrng><range min="0" max="110"/></valrng>
    <varFormat type="numeric"/></var>
  <var ID="V3" name="HEALTH" nature="ordinal"><catgry><catValu>1</catValu><labl>Good</labl></catgry>
    <catgry><catValu>2</catValu><labl>Bad</labl></catgry></var>
</dataDscr></codeBook>
"""


def drafted(path: Path, **options: Any) -> tuple[str, Schema]:
    """The text of a draft, and the schema that it is."""
    text = draft(path, **options)
    path.with_suffix(".yaml").write_text(text)
    return text, Schema.from_yaml(path.with_suffix(".yaml"))


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_dictionary_of_nist(tmp_path: Path) -> None:
    path = written(tmp_path, "dictionary.json", NIST)
    assert "TODO: declare `values`" in draft(path)
    text, schema = drafted(path, columns=("AGEP", "MSP", "NOC", "PUMA", "DENSITY", "PINCP"))
    age, marital, children, puma, density, income = schema.attributes
    assert "# Person's age" in text
    assert (age.kind, age.bounds) == ("integer", (0, 99))
    assert (marital.values, marital.labels, marital.missing_values) == ((1, 2), ("Now married", "Widowed"), ("N",))
    assert marital.missing_code == 2
    assert children.bounds == (0, 19)
    assert "codes beside the range: 0 = None" in text
    assert puma.values == ("25-00503", "25-00703")
    assert (density.kind, density.bounds) == ("number", (16.3, 52864.7))
    assert income.cardinality == 51
    assert "TODO: choose public bins" in text


def test_dictionaries_of_the_census_bureau(tmp_path: Path) -> None:
    sex, age = drafted(written(tmp_path, "variables.json", CENSUS_API))[1].attributes
    assert (sex.values, sex.labels) == ((1, 2), ("Male", "Female"))
    assert age.bounds == (0, 99)
    marital, wages = drafted(written(tmp_path, "dictionary.csv", CENSUS_CSV))[1].attributes
    assert marital.labels == ("Married", "Widowed")
    area = 'NAME,PUMA,C,5,"Area"\nVAL,PUMA,C,5,00100,70301,"Codes"\nNAME,SERIALNO,C,13,"Housing unit serial number"\n'
    area += 'VAL,SERIALNO,C,13,2024GQ0000001,2024HU9999999,"Unique identifier"\n'
    text = draft(written(tmp_path, "areas.csv", area))
    assert "TODO: the source writes 00100 with zeros" in text
    assert "TODO: it names records or their groups: leave it out" in text
    assert (wages.bounds, wages.missing_values, wages.cardinality) == ((0, 999_999), ("bbbbbb",), 51)


def test_table_schemas_of_frictionless_and_csvw(tmp_path: Path) -> None:
    path = written(tmp_path, "schema.json", FRICTIONLESS)
    assert "TODO" in draft(path)
    wanted = ("id", "grade", "sex", "price", "employed")
    number, grade, sex, price, employed = drafted(path, columns=wanted)[1].attributes
    assert (number.bounds, number.missing) == ((0, 120), "refuse")
    assert (grade.kind, grade.missing_values) == ("ordinal", ("NA",))
    assert sex.labels == ("male", "female")
    assert price.kind == "number"
    assert employed.values == ("true", "false")
    age, region = drafted(written(tmp_path, "csvw.json", CSVW))[1].attributes
    assert age.bounds == (0, 9)
    assert (region.name, region.values, region.missing_values) == ("region", ("north", "south"), ("?",))


def test_a_ddi_codebook(tmp_path: Path) -> None:
    text, schema = drafted(written(tmp_path, "codebook.xml", DDI))
    sex, age, health = schema.attributes
    assert (sex.values, sex.labels, sex.missing_values) == ((1, 2), ("Male", "Female"), ("9",))
    assert "# Sex of respondent" in text
    assert (age.kind, age.bounds) == ("integer", (0, 110))
    assert health.kind == "ordinal"
    bomb = '<!DOCTYPE x [<!ENTITY a "aa">]>' + DDI.split("?>")[1]
    with pytest.raises(SpecError, match="entities of its own"):
        draft(written(tmp_path, "bomb.xml", bomb))


def variable(inside: str, **attributes: str) -> str:
    """A DDI codebook of one variable."""
    about = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    return f'<codeBook xmlns="ddi:codebook:2_5"><dataDscr><var name="V" {about}>{inside}</var></dataDscr></codeBook>'


def range_of(**ends: str) -> str:
    return "<valrng><range " + " ".join(f'{end}="{value}"' for end, value in ends.items()) + "/></valrng>"


NUMERIC = '<varFormat type="numeric"/>'
INVALID = '<invalrng><item VALUE="-1"/><range min="97" max="99"/></invalrng>'
VARIABLES = {
    "real units": (range_of(UNITS="REAL", min="12.0", max="60.0"), {}, {"kind": "number", "bounds": [12.0, 60.0]}),
    "decimals": (range_of(min="12", max="60"), {"dcml": "1"}, {"kind": "number", "bounds": [12.0, 60.0]}),
    "no decimals": (range_of(min="12", max="60"), {"dcml": "0"}, {"kind": "integer", "bounds": [12, 60]}),
    "invalid values": (
        range_of(min="0", max="9") + INVALID,
        {},
        {"kind": "integer", "missing_values": ["-1", "97", "98", "99"], "missing": {"category": "missing"}},
    ),
    "an invalid category": (
        "<invalrng><item VALUE='3'/></invalrng>"
        + "".join(f"<catgry><catValu>{code}</catValu><labl>{code}</labl></catgry>" for code in "123"),
        {},
        {"kind": "categorical", "values": [1, 2], "missing_values": ["3"]},
    ),
    "valid items": ("<valrng><item VALUE='1'/><item VALUE='2'/></valrng>", {}, {"values": [1, 2]}),
    "one end": (range_of(min="0"), {}, {"kind": "integer", "TODO": "from 0"}),
    "texts": ('<varFormat type="character"/>', {}, {"kind": "categorical", "TODO": "declare `values`"}),
    "numbers": (NUMERIC, {}, {"kind": "integer", "TODO": "declare `bounds`"}),
    "real numbers": (NUMERIC, {"dcml": "2"}, {"kind": "number", "TODO": "declare `bounds`"}),
    "an identifier": ("<labl>Identifier of the person</labl>", {}, {"TODO": "it names records"}),
    "a range of identifiers": ("<labl>Person ID</labl>" + range_of(min="1", max="9"), {}, {"TODO": "it names records"}),
}


@pytest.mark.parametrize("case", VARIABLES)
def test_a_variable_of_ddi(case: str, tmp_path: Path) -> None:
    inside, about, expected = VARIABLES[case]
    text = draft(written(tmp_path, "codebook.xml", variable(inside, **about)))
    assert expected.pop("TODO", "") in text
    found = parse_yaml(text)["attributes"][0]
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("given", "drafted"),
    [
        (["9", "10", "-1", "0"], [-1, 0, 9, 10]),
        (["10", "09", "08"], ["08", "09", "10"]),
        (["9", "unknown", "0"], ["9", "unknown", "0"]),
    ],
)
def test_codes_that_are_numbers_are_sorted(given: list[str], drafted: list[Any], tmp_path: Path) -> None:
    codes = {code: f"label of {code}" for code in given}
    path = written(tmp_path, "dictionary.json", {"DECILE": {"values": codes}})
    (found,) = parse_yaml(draft(path))["attributes"]
    assert found["values"] == drafted
    assert found["labels"] == [codes[str(code)] for code in drafted]


def test_codes_with_zeros_go_from_the_draft_to_a_contract_that_is_kept(dpdist: Command, tmp_path: Path) -> None:
    codes = "".join(f"<catgry><catValu>{code}</catValu></catgry>" for code in ("08", "09", "13", "0180"))
    written(tmp_path, "codebook.xml", variable(codes, ID="1"))
    written(tmp_path, "table.csv", "V\n08\n09\n13\n0180\n")
    written(tmp_path, "schema.yaml", dpdist("schema", "draft", "codebook.xml").out)
    assert dpdist("schema", "check", "schema.yaml").code == 0
    said = "--data table.csv --minimum 4 --epsilon 4 --delta 1e-8"
    written(tmp_path, "contract.yaml", dpdist("contract", "draft", "schema.yaml", *said.split()).out)
    kept = dpdist("contract", "check", "contract.yaml")
    assert (kept.code, kept.words.rpartition(" the ")[2]) == (0, "contract is kept"), kept.err
    created = dpdist("ledger", "create", "d", "--contract", "contract.yaml")
    assert "epsilon at most 4, delta at most 1e-8" in created.words
    assert max(map(len, created.out.splitlines()[:2])) <= 80
    written(tmp_path, "shown.yaml", dpdist("contract", "show", "d").out)
    assert dpdist("contract", "check", "shown.yaml").code == 0


def test_a_contract_takes_the_layout_of_the_files_from_a_spec(dpdist: Command, tmp_path: Path) -> None:
    written(tmp_path, "table.txt", "1;x\n0;y\n")
    written(tmp_path, "schema.yaml", "attributes: [{name: age, kind: integer, bounds: [0, 9]}]")
    csv = {"header": False, "columns": ["age", "rest"], "delimiter": ";"}
    data = {"path": "table.txt", "format": "csv", "csv": csv, "extra_columns": "ignore", "minimum_records": 2}
    spec = {"kind": "synthesis", "name": "a", "dataset": "d", "schema": "schema.yaml", "data": data}
    spec |= {"output": {"path": "o"}, "privacy": {"epsilon": 1, "delta": 1e-9}}
    written(tmp_path, "spec.yaml", yaml.safe_dump(spec))
    caps = ("--epsilon", "4", "--delta", "1e-8")
    made = dpdist("contract", "draft", "schema.yaml", *caps, "--spec", "spec.yaml")
    tree = parse_yaml(written(tmp_path, "contract.yaml", made.out).read_text())
    assert (tree["minimum_records"], tree["data"]["csv"]) == (2, csv)
    assert dpdist("contract", "check", "contract.yaml").code == 0
    assert "give --data and --minimum, or --spec" in dpdist("contract", "draft", "schema.yaml", *caps).err


def test_a_check_lists_what_a_draft_leaves_to_decide(dpdist: Command, tmp_path: Path) -> None:
    written(tmp_path, "dictionary.json", NIST)
    written(tmp_path, "schema.yaml", dpdist("schema", "draft", "dictionary.json", "--leave-out", "INDP").out)
    found = dpdist("schema", "check", "schema.yaml")
    assert found.code == 0
    assert re.search(r"line \d+, PINCP: TODO: choose public bins", found.words)
    assert "50 bins of equal width, as drafts have: DENSITY, PINCP" in found.words
    assert "INDP" not in found.out
    assert dpdist("schema", "draft", "dictionary.json", "--leave-out", "AGE").code == 2


def test_types_of_parquet_and_the_values_of_a_public_table(tmp_path: Path) -> None:
    table = pa.table({"region": ["north", "south"], "age": [3, 90], "share": [0.5, 1.5], "flag": [True, None]})
    pq.write_table(table, tmp_path / "table.parquet")
    private = draft(tmp_path / "table.parquet")
    assert "north" not in private
    assert "90" not in private
    assert private.count("TODO") == 3
    region, age, share, flag = drafted(tmp_path / "table.parquet", public=True)[1].attributes
    assert region.values == ("north", "south")
    assert age.bounds == (3, 90)
    assert share.bounds == (0.5, 1.5)
    assert flag.missing_code == 2


def test_listed_integers_that_occur_once_are_a_question(tmp_path: Path) -> None:
    """Amounts with gaps look like codes: another table has some that are not listed, and would be refused."""
    table = pa.table({"wage": [10, 20, 40, 70, 90] * 40 + [75], "state": [8, 9, 13] * 67})
    pq.write_table(table, tmp_path / "table.parquet")
    text, schema = drafted(tmp_path / "table.parquet", public=True)
    assert [len(attribute.values) for attribute in schema.attributes] == [6, 3]
    assert [line for line in left_to_decide(text) if "occur once" in line] == left_to_decide(text)
    assert text.count("1 occur once, so another table may hold others, which are refused") == 1


def test_days_and_moments_of_a_codebook(tmp_path: Path) -> None:
    fields = [
        {"name": "day", "type": "date", "constraints": {"minimum": "2024-01-01", "maximum": "2024-12-31"}},
        {"name": "born", "type": "date", "format": "%d/%m/%Y"},
        {"name": "seen", "type": "datetime", "constraints": {"minimum": "2024-01-01T00:00:00"}},
    ]
    (tmp_path / "table.json").write_text(json.dumps({"fields": fields}))
    text, _ = drafted(tmp_path / "table.json", columns=("day",))
    assert "bounds: ['2024-01-01', '2024-12-31']" in text
    undecided = draft(tmp_path / "table.json", columns=("born", "seen"))
    assert undecided.count("TODO: declare `bounds`, such as ['2024-01-01', '2024-12-31']") == 2
    assert "format: '%d/%m/%Y'" in undecided
    assert "the source says: from 2024-01-01T00:00:00" in undecided


def test_a_public_table_of_many_types(tmp_path: Path) -> None:
    day, large, sizes = datetime.date(2024, 1, 1), 1 << 60, pa.dictionary(pa.int8(), pa.string(), ordered=True)
    table = pa.table(
        {
            "large": [large + 1, large + 6],
            "children": [0.0, float("nan")],
            "weight": [float("inf"), 2.5],
            "height": [1.5, 2.25],
            "unknown": pa.array([None, None], pa.float64()),
            "amount": pa.array([Decimal(3), Decimal(70)], pa.decimal128(9, 0)),
            "size": pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), ["s", "m", "l"]).cast(sizes),
            "day": [day, day - datetime.timedelta(1)],
            "moment": pa.array([0, 1], pa.timestamp("s")),
            "list": [[1], [2]],
        }
    )
    pq.write_table(table, tmp_path / "table.parquet")
    leave_out = ("unknown", "weight", "list")
    text, schema = drafted(tmp_path / "table.parquet", public=True, without=leave_out)
    large_one, children, height, amount, size, date, moment = schema.attributes
    assert large_one.bounds == (large + 1, large + 6)
    assert (children.kind, children.bounds, children.missing_code) == ("integer", (0, 0), 1)
    assert (height.kind, height.bounds, height.out_of_domain) == ("number", (1.5, 2.25), "clip")
    assert (amount.out_of_domain, date.out_of_domain) == ("refuse", "refuse")
    assert (amount.kind, amount.bounds) == ("integer", (3, 70))
    assert (size.kind, size.values) == ("ordinal", ("s", "m", "l"))
    assert (date.kind, date.model_dump()["bounds"]) == ("date", ["2023-12-31", "2024-01-01"])
    assert (moment.kind, moment.model_dump()["bounds"]) == ("datetime", ["1970-01-01 00:00:00", "1970-01-01 00:00:01"])
    assert "# double, of whole numbers" in text
    unheld = draft(tmp_path / "table.parquet", public=True, columns=leave_out)
    assert unheld.count("TODO: no attribute holds this type: convert it, or leave the column out") == 1
    assert "the source says: from 2.5 to 2.5" in unheld
    assert "{name: unknown, kind: number" in unheld.replace("\n    ", ", ").replace("- name", "{name")


def test_a_folder_of_files_is_a_table(tmp_path: Path, dpdist: Command) -> None:
    for place in ("one", "many/k=1"):
        (tmp_path / place).mkdir(parents=True)
        pq.write_table(pa.table({"age": [3]}), tmp_path / place / "part.parquet")
        assert "name: age" in dpdist("schema", "draft", str(tmp_path / place.partition("/")[0])).out
    (tmp_path / "empty").mkdir()
    assert "there is no finished release" in dpdist("schema", "draft", str(tmp_path / "empty")).err


def test_files_that_cannot_be_drafted_from(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "twice.parquet")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    for name, words in (
        ("nowhere.parquet", "there is no such file"),
        ("twice.parquet", "two columns have the same name"),
        ("table.csv", "a table of records is drafted from Parquet"),
    ):
        with pytest.raises(SpecError, match=words):
            draft(tmp_path / name)


def test_the_names_file_of_adult(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    path = written(tmp_path, "adult.names", shared_data("adult.names").read_text())
    text, schema = drafted(path, columns=("workclass", "education", "sex"))
    assert schema.attributes[2].values == ("Female", "Male")
    assert len(schema.attributes[1].values or ()) == 16
    assert schema.attributes[0].missing_values == ("?",)
    assert "UCI names file" in text


@pytest.mark.parametrize("content", ["{}", "[1]", "nonsense", '{"a": 1}'])
def test_what_is_no_description_is_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="format is not known"):
        draft(written(tmp_path, "x.json", content))


def test_the_commands_draft_and_check(dpdist: Command, tmp_path: Path) -> None:
    written(tmp_path, "dictionary.json", NIST)
    made = dpdist("schema", "draft", "dictionary.json", "--column", "AGEP", "--column", "MSP")
    assert made.code == 0
    (tmp_path / "schema.yaml").write_text(made.out)
    checked = dpdist("schema", "check", "schema.yaml")
    assert "a valid schema of 2 attributes" in checked.out
    assert "3 codes" in checked.out
    (tmp_path / "schema.yaml").write_text(made.out.replace("bounds:", "bound:").replace("labels:", "lables:"))
    wrong = dpdist("schema", "check", "schema.yaml")
    assert wrong.code == 2
    assert "did you mean 'bounds'?" in wrong.err
    assert "did you mean 'labels'?" in wrong.err
    assert dpdist("schema", "draft", "nowhere.json").code == 2
    assert dpdist("schema", "draft", "dictionary.json", "--column", "AGE").code == 2
    for kind in ("schema", "spec", "contract"):
        assert json.loads(dpdist("schema", "json", kind).out)["$schema"]


ADULT = {
    "age": {"kind": "integer", "bounds": [17, 90]},
    "education-num": {"kind": "integer", "bounds": [1, 16]},
    "hours-per-week": {"kind": "integer", "bounds": [1, 99], "out_of_domain": "clip"},
}
"""What a reader of Adult's documentation decides about the columns for which the names file has no range."""


def released(dpdist: Command, folder: Path, data: dict[str, Any]) -> Any:
    """Release the columns of ``schema.yaml`` as a reader of the guide does."""
    spec = {
        "kind": "synthesis",
        "name": "first",
        "dataset": "people",
        "schema": "schema.yaml",
        "data": {"minimum_records": 4_000, **data},
        "output": {"path": "out"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "model": {"rounds": 1, "balance": 0},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    for command in ("ledger create people --epsilon 4 --delta 1e-8", "plan spec.yaml", "release spec.yaml"):
        answer = dpdist(*command.split())
        assert answer.code == 0, answer.err
    return pq.read_table(folder / "out")


def test_from_the_names_file_of_adult_to_a_release(
    shared_data: Callable[[str], Path], dpdist: Command, tmp_path: Path
) -> None:
    written(tmp_path, "adult.names", shared_data("adult.names").read_text())
    names = re.findall(r"- name: (\S+)", dpdist("schema", "draft", "adult.names").out)
    assert len(names) == 15
    wanted = ["age", "workclass", "education-num", "sex", "hours-per-week", "class"]
    columns = [part for name in wanted for part in ("--column", name)]
    tree = yaml.safe_load(dpdist("schema", "draft", "adult.names", *columns).out)
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(tree))
    told = dpdist("schema", "check", "schema.yaml")
    assert told.code == 2
    assert "attribute 'age': declare its `bounds`, such as [0, 100]" in told.err
    decided = [{**attribute, **ADULT.get(attribute["name"], {})} for attribute in tree["attributes"]]
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump({"attributes": decided}))
    lines = shared_data("adult.data").read_text().splitlines(keepends=True)
    (tmp_path / "adult.data").write_text("".join(lines[:5_000]))
    csv = {"header": False, "columns": names}
    table = released(dpdist, tmp_path, {"path": "adult.data", "format": "csv", "csv": csv, "extra_columns": "ignore"})
    assert table.column_names == wanted
    assert set(table["class"].unique().to_pylist()) == {">50K", "<=50K"}


def test_from_a_public_table_of_persons_to_a_release(
    shared_data: Callable[[str], Path], dpdist: Command, tmp_path: Path
) -> None:
    (tmp_path / "persons.parquet").symlink_to(shared_data("acs2024_persons.parquet"))
    types = dpdist("schema", "draft", "persons.parquet").out
    assert types.count("TODO") == 23
    all_of_it = dpdist("schema", "draft", "persons.parquet", "--public").out
    assert (
        "it names records or their groups: leave it out\n  # TODO: choose public bins\n  - name: household" in all_of_it
    )
    wanted = ["AGEP", "SEX", "MAR", "SCHL", "OCCP"]
    columns = [part for name in wanted for part in ("--column", name)]
    (tmp_path / "schema.yaml").write_text(dpdist("schema", "draft", "persons.parquet", "--public", *columns).out)
    shown = dpdist("schema", "check", "schema.yaml").out
    assert re.search(r"OCCP +categorical, 531 codes; missing: as 'missing'", shown)
    pq.write_table(pq.read_table(shared_data("acs2024_persons.parquet")).slice(0, 5_000), tmp_path / "sample.parquet")
    table = released(dpdist, tmp_path, {"path": "sample.parquet", "extra_columns": "ignore"})
    assert table.column_names == wanted


def test_a_public_table_is_read_from_parquet_only(tmp_path: Path) -> None:
    (tmp_path / "last_year.csv").write_text("age\n1\n")
    with pytest.raises(SpecError, match="--public reads Parquet files: write the public table as Parquet first"):
        draft(tmp_path / "last_year.csv", public=True)


def test_what_is_left_to_decide_is_said_by_plan_and_contract(dpdist: Command, tmp_path: Path) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text(
        "attributes:\n"
        "  # TODO choose public bins\n"
        "  - {name: pay, kind: integer, bounds: [0, 9999], bins: {count: 50}}\n"
    )
    spec = {
        "kind": "synthesis",
        "name": "pay",
        "dataset": "pay",
        "schema": "schema.yaml",
        "data": {"path": "pay.csv", "minimum_records": 1000},
        "output": {"path": "out"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
    }
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    asked = (
        "contract",
        "draft",
        str(schema),
        "--data",
        "pay.csv",
        "--minimum",
        "1000",
        "--epsilon",
        "1",
        "--delta",
        "1e-9",
    )
    for answer in (dpdist("plan", str(tmp_path / "spec.yaml")), dpdist(*asked)):
        assert answer.code == 0, answer.err
        said = " ".join((answer.out + answer.err).split())
        assert f"TODO 1 of {schema}: see dpdist schema check {schema}" in said
    schema.write_text(schema.read_text().replace("  # TODO choose public bins\n", ""))
    for answer in (dpdist("plan", str(tmp_path / "spec.yaml")), dpdist(*asked)):
        assert "TODO" not in answer.out + answer.err


def test_rules_of_whom_a_question_is_asked(tmp_path: Path) -> None:
    """They are comments till a person takes them."""
    codebook = {
        "AGEP": {"description": "Person's age", "values": {"min": 0, "max": 99}},
        "MSP": {"values": {"N": "N/A (age less than 15 years)", "1": "Married", "2": "Widowed"}},
        "ESR": {"values": {"N": "N/A (less than 16 years old/in group quarters)", "1": "Employed", "2": "Other"}},
        "at school": {"values": {"0": "Not in universe: over 70", "1": "Yes", "2": "No"}},
        "HOME": {"values": {"N": "N/A (group quarters)", "1": "Owned", "2": "Rented"}},
    }
    text = draft(written(tmp_path, "codebook.json", codebook))
    assert not parse_yaml(text).get("rules")
    tree = parse_yaml(text.replace("# rules:", "rules:").replace("\n# - ", "\n- "))
    assert [tuple(rule.items()) for rule in tree["rules"]] == [
        (("missing", "MSP"), ("where", "AGEP < 15")),
        (("impossible", "AGEP < 16 and not ESR is missing"),),
        (("impossible", "AGEP > 70 and `at school` != 0"),),
        (("impossible", "AGEP <= 70 and `at school` == 0"),),
    ]
    assert len(Schema.model_validate(tree).forbidden) == 4
    assert any("take the rules" in line for line in left_to_decide(text))
    assert "rules" not in draft(tmp_path / "codebook.json", without=("AGEP",))
    for other in (
        "less than 18 months",
        "under 15 minutes",
        "less than 5 workers",
        "income less than 15",
        "less than 16 years old and not employed",
        "mother's age less than 15",
    ):  # no age of the person, or not of all of this age
        codebook["MSP"]["values"]["N"] = f"N/A ({other})"
        assert "MSP" not in draft(written(tmp_path, "codebook.json", codebook)).partition("# rules:")[2]
    ddi = DDI.replace("Not stated", "Inapplicable (under 15)")
    assert "# - {missing: SEX, where: AGE < 15}  # Inapplicable (under 15)" in draft(written(tmp_path, "ddi.xml", ddi))
