"""Codebooks as people have them: what a draft takes from each form (docs/how-to/schema.md)."""

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdist.errors import SpecError
from dpdist.spec.draft import draft
from dpdist.spec.strict_yaml import parse_yaml

Attributes = dict[str, dict[str, Any]]


def drafted(folder: Path, name: str, content: Any, **options: Any) -> Attributes:
    """The attributes of a draft, by name."""
    path = folder / name
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return {one["name"]: one for one in parse_yaml(draft(path, **options))["attributes"]}


def variable(name: str, inside: str = "", **attributes: str) -> str:
    given = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f'<var ID="{name}" name="{name}"{given}><labl>About {name}</labl>{inside}</var>'


def codebook(*variables: str, head: str = "", files: str = "") -> str:
    return f"{head}<codeBook>{files}<dataDscr>{''.join(variables)}</dataDscr></codeBook>"


def codes(**labels: str) -> str:
    return "".join(
        f"<catgry><catValu>{code[1:]}</catValu><labl>{text}</labl></catgry>" for code, text in labels.items()
    )


NUMERIC = '<varFormat type="numeric"/>'
REAL = '<valrng><range UNITS="REAL" min="{}" max="{}"/></valrng><varFormat type="numeric"/>'
NESSTAR = {"dcml": "0", "intrvl": "contin"}


@pytest.mark.parametrize(
    ("inside", "about", "expected"),
    [
        (REAL.format(1, 2) + codes(_1="Urban", _2="Rural"), NESSTAR, ("categorical", [1, 2], ["Urban", "Rural"], None)),
        (REAL.format(0, 95), NESSTAR, ("integer", None, None, [0, 95])),
        (REAL.format(0, 95), {"intrvl": "contin"}, ("number", None, None, [0.0, 95.0])),
        (REAL.format(0, 2.5), NESSTAR, ("number", None, None, [0.0, 2.5])),
        (REAL.format(0, 97) + codes(_97="97 and more"), NESSTAR, ("integer", None, None, [0, 97])),
        (
            codes(_01="Jan", _02="Feb") + '<varFormat type="numeric"/>',
            {},
            ("categorical", [1, 2], ["Jan", "Feb"], None),
        ),
        (codes(_01="Kyiv", _1="Lviv") + NUMERIC, {}, ("categorical", ["01", "1"], None, None)),
        (codes(_01="Jan") + '<varFormat type="character"/>', {}, ("categorical", ["01"], ["Jan"], None)),
        (codes(_1="one", _2=""), {}, ("categorical", [1, 2], ["one", "2"], None)),
    ],
)
def test_variables_of_a_codebook(inside: str, about: dict[str, str], expected: tuple[Any, ...], tmp_path: Path) -> None:
    (found,) = drafted(tmp_path, "c.xml", codebook(variable("v", inside, **about))).values()
    kind, values, labels, bounds = expected
    assert (found["kind"], found.get("values"), found.get("bounds")) == (kind, values, bounds)
    assert labels is None or found["labels"] == labels


@pytest.mark.parametrize(
    ("encoding", "head"),
    [
        ("iso-8859-1", '<?xml version="1.0" encoding="ISO-8859-1"?>'),
        ("cp1250", '<?xml version="1.0" encoding=\'windows-1250\' standalone="yes"?>'),
        ("utf-16", '<?xml version="1.0" encoding="UTF-16"?>'),
        ("utf-8-sig", ""),
        ("utf-8", '<!DOCTYPE codeBook SYSTEM "http://www.icpsr.umich.edu/DDI/Version1-2.dtd">'),
    ],
)
def test_the_declared_encoding_is_read(encoding: str, head: str, tmp_path: Path) -> None:
    text = codebook(variable("sexo", codes(_1="Varón", _2="Ženy" if encoding != "iso-8859-1" else "Mujer")), head=head)
    found = drafted(
        tmp_path,
        "c.xml",
        text.replace("Varón", "Var&oacute;n" if "DOCTYPE" in head else "Varón").encode(
            encoding, errors="xmlcharrefreplace"
        ),
    )
    assert found["sexo"]["labels"][0] == "Varón"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('<DDIInstance xmlns="ddi:instance:3_2"><V>x</V></DDIInstance>', "<DDIInstance> has no `var`.*DDI-Lifecycle"),
        ("<html><body>x", "is no XML in utf-8"),
        ('<?xml version="1.0" encoding="klingon"?><codeBook/>', "encoding 'klingon' is not known"),
        (b'<?xml version="1.0" encoding="utf-8"?><codeBook>\xff</codeBook>', "is no XML in utf-8"),
        ('<?xml version="1.0" encoding="unicode_escape"?><codeBook/>', "encoding 'unicode_escape' is not known"),
        ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><codeBook>&a;</codeBook>', "entities of its own"),
    ],
)
def test_other_xml_is_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        drafted(tmp_path, "c.xml", content)


def test_a_table_of_several_is_chosen(tmp_path: Path) -> None:
    titles = '<fileDscr ID="F1"><fileTxt><fileName>household</fileName></fileTxt></fileDscr><fileDscr ID="F2"/>'
    text = codebook(
        variable("hid", REAL.format(1, 500), files="F1", **NESSTAR), variable("rooms", REAL.format(1, 9), files="F1"),
        variable("hid", REAL.format(1, 499), files="F2", **NESSTAR), variable("weight", files="F1 F2"), files=titles,
    )  # fmt: skip
    with pytest.raises(SpecError, match=r"several tables: choose --table of F1 \(household\), F2"):
        drafted(tmp_path, "c.xml", text)
    assert drafted(tmp_path, "c.xml", text, table="F2")["hid"]["bounds"] == [1, 499]
    for name in ("F1", "household"):
        assert list(drafted(tmp_path, "c.xml", text, table=name)) == ["hid", "rooms", "weight"]
    with pytest.raises(SpecError, match="no table 'F3'"):
        drafted(tmp_path, "c.xml", text, table="F3")


def test_packages_with_several_resources_and_schemas_by_path(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/s.json").write_text(json.dumps({"fields": [{"name": "age", "type": "integer"}]}))
    notes = {"name": "notes", "path": "notes.pdf"}
    people = {"name": "people", "path": "t.csv", "schema": "schemas/s.json"}
    assert list(drafted(tmp_path, "datapackage.json", {"resources": [notes, people]})) == ["age"]
    homes = {"name": "homes", "path": "h.csv", "schema": {"fields": [{"name": "rooms", "type": "integer"}]}}
    with pytest.raises(SpecError, match="choose --table of people, homes"):
        drafted(tmp_path, "datapackage.json", {"resources": [people, homes]})
    assert list(drafted(tmp_path, "datapackage.json", {"resources": [people, homes]}, table="homes")) == ["rooms"]
    for place in ("https://example.org/s.json", "../s.json", "/etc/hostname", "nowhere.json"):
        with pytest.raises(SpecError, match=f"its schema is in {re.escape(place)}: fetch that"):
            drafted(tmp_path, "datapackage.json", {"resources": [{"name": "x", "schema": place}]})
    with pytest.raises(SpecError, match="columns of no table"):
        drafted(tmp_path, "datapackage.json", {"resources": [notes]})


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"type": "boolean", "trueValues": ["Y"], "falseValues": ["N"]}, {"values": ["Y", "N"]}),
        (
            {"type": "boolean", "trueValues": ["yes", "y"]},
            {"aliases": {"y": "yes", "False": "false", "FALSE": "false", "0": "false"}},
        ),
        ({"type": "boolean"}, {"values": ["true", "false"]}),
        ({"type": "integer", "categories": [{"value": 0, "label": "none"}, {"value": 1}]}, {"labels": ["none", "1"]}),
        ({"type": "integer", "missingValues": [{"value": "-8"}, "-7"]}, {"missing_values": ["-8", "-7"]}),
        ({"type": "integer"}, {"missing_values": ["-9"]}),
        ({"type": "string", "constraints": {"enum": ["01", "02"]}}, {"values": ["01", "02"]}),
    ],
)
def test_fields_of_frictionless(field: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    missing = [{"value": "", "label": "omitted"}, {"value": "-9", "label": "refused"}]
    found = drafted(tmp_path, "s.json", {"fields": [{"name": "q", **field}], "missingValues": missing})["q"]
    assert {key: found.get(key) for key in expected} == expected


def test_columns_of_csvw_have_the_names_of_the_header(tmp_path: Path) -> None:
    columns = [
        {"name": "home_region", "titles": {"en": ["Home Region", "Region"]}, "datatype": "string"},
        {"name": "GID%20code", "datatype": {"base": "boolean", "format": "Y|N"}},
        {"titles": "ok", "datatype": "boolean"},
    ]
    tables = [{"url": f"{name}.csv", "tableSchema": {"columns": columns}} for name in "ab"]
    found = drafted(tmp_path, "m.json", {"tables": tables}, table="b.csv")
    assert list(found) == ["Home Region", "GID code", "ok"]
    assert found["GID code"]["values"] == ["Y", "N"]
    assert found["ok"]["aliases"] == {"1": "true", "0": "false"}


def test_types_of_a_names_file(tmp_path: Path) -> None:
    text = "yes, no.\n\nage: continuous.\nhours: Integer.\nid: ignore.\ncity: discrete 40.\nsex: f, m.\n"
    found = drafted(tmp_path, "x.names", text)
    assert list(found) == ["age", "hours", "city", "sex", "class"]
    assert (found["age"]["kind"], found["hours"]["kind"], found["city"].get("values")) == ("number", "integer", None)
    assert "without id, which it says to ignore" in draft(tmp_path / "x.names")


def test_codes_with_zeros_are_left_to_decide(tmp_path: Path) -> None:
    rows = ["NAME,ST,C,2,State", 'VAL,ST,C,2,01,01,"Alabama"', 'VAL,ST,C,2,02,02,"Alaska"']
    drafted(tmp_path, "d.csv", "\n".join(rows).encode("cp1252"))
    assert "TODO: the source writes codes with zeros" in draft(tmp_path / "d.csv")


def test_types_of_other_systems_are_drafted(tmp_path: Path) -> None:
    table = pa.table(
        {
            "branch": pa.array([Decimal(1), Decimal(9)] * 50, pa.decimal128(5, 0)),
            "big": pa.array([Decimal(10) ** 30, Decimal(9)] * 50, pa.decimal128(38, 0)),
            "price": pa.array([Decimal("1.25"), Decimal("9.75")] * 50, pa.decimal128(5, 2)),
            "until": pa.array([dt.date(9999, 12, 31), None] * 50),
            "far": pa.array([3_000_000, None] * 50, pa.date32()),
            "seen": pa.array([dt.datetime(2024, 1, 1), None] * 50),
            "spent": pa.array([dt.timedelta(1)] * 100),
            "list": pa.array([[1]] * 100),
        }
    )
    found = drafted(tmp_path, "t.parquet", table, public=True)
    assert list(found) == table.column_names
    assert found["branch"]["kind"] in ("integer", "categorical")
    assert found["price"]["bounds"] == [1.25, 9.75]
    assert found["until"]["bounds"] == ["9999-12-31", "9999-12-31"]
    assert (found["far"]["kind"], found["seen"]["kind"]) == ("date", "datetime")
    assert draft(tmp_path / "t.parquet").count("no attribute holds this type") == 2


def test_dates_of_codebooks_have_their_format(tmp_path: Path) -> None:
    csvw = {"name": "day", "datatype": {"base": "date", "format": "d.M.yyyy"}}
    (tmp_path / "t.json").write_text(json.dumps({"tableSchema": {"columns": [csvw]}}))
    assert "format: '%d.%m.%Y'" in draft(tmp_path / "t.json")
    (tmp_path / "t.xml").write_text('<codeBook><var name="day"><varFormat category="date"/></var></codeBook>')
    assert "kind: date" in draft(tmp_path / "t.xml")


def test_files_of_spss_and_stata_have_labels(tmp_path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    frame = pd.DataFrame({"sex": [1.0, 2.0], "health": [1.0, 3.0], "age": [30.0, 97.0], "name": ["a", "b"]})
    frame["seen"] = dt.date(2024, 1, 1)
    told = {"sex": {1: "male", 2: "female", 9: "refused"}, "health": {1: "good", 2: "fair", 3: "bad"}}
    pyreadstat.write_sav(
        frame,
        str(tmp_path / "t.sav"),
        column_labels={"sex": "Sex of the person"},
        variable_value_labels=told | {"age": {97: "refused"}},
        missing_ranges={"sex": [9], "age": [{"lo": 98, "hi": 99}]},
        variable_measure={"sex": "nominal", "health": "ordinal", "age": "scale"},
        variable_format={"age": "F3.0"},
    )
    text = draft(tmp_path / "t.sav")
    found = {one["name"]: one for one in parse_yaml(text)["attributes"]}
    assert (found["sex"]["values"], found["sex"]["labels"]) == ([1, 2], ["male", "female"])
    assert (found["sex"]["missing_values"], found["age"]["missing_values"]) == (["9"], ["98", "99"])
    assert (found["health"]["kind"], found["age"]["kind"], found["name"]["kind"]) == (
        "ordinal",
        "integer",
        "categorical",
    )
    assert found["seen"]["kind"] == "date"
    assert "# Sex of the person" in text
    assert "97 = refused" in text
    pyreadstat.write_dta(frame.astype({"sex": "int8"}), str(tmp_path / "t.dta"), variable_value_labels=told)
    found = {one["name"]: one for one in parse_yaml(draft(tmp_path / "t.dta"))["attributes"]}
    assert found["sex"]["labels"] == ["male", "female", "refused"]
    (tmp_path / "t.sav").write_bytes(b"none")
    with pytest.raises(SpecError, match="is no Stata or SPSS file, or is damaged"):
        draft(tmp_path / "t.sav")


LISTS = """<{0}Codelists><{0}Codelist id="CL_SEX"><Name>Sex</Name><{0}Code {1}="M"><{2}>Male</{2}></{0}Code>
<{0}Code {1}="F"><{2}>Female</{2}></{0}Code></{0}Codelist></{0}Codelists>
<{0}Concepts><{0}Concept id="SEX"><Name>Sex of the person</Name></{0}Concept></{0}Concepts>"""
REF = '<ConceptIdentity><Ref id="{}"/></ConceptIdentity><LocalRepresentation>{}</LocalRepresentation>'
URN = "urn:sdmx:org.sdmx.infomodel.{}=ESTAT:{}"
STRUCTURES = {
    "2.0": LISTS.format("", "value", "Description")
    + """<KeyFamily id="D"><Components><Dimension conceptRef="SEX" codelist="CL_SEX"/>
    <TimeDimension conceptRef="TIME"><TextFormat textType="String"/></TimeDimension>
    <PrimaryMeasure conceptRef="OBS_VALUE"/></Components></KeyFamily>""",
    "2.1": LISTS.format("", "id", "Name")
    + "<DataStructure id='D'><Dimension id='SEX'>"
    + REF.format("SEX", "<Enumeration><Ref id='CL_SEX'/></Enumeration>")
    + "</Dimension><TimeDimension id='TIME'>"
    + REF.format("TIME", "<TextFormat textType='ObservationalTimePeriod'/>")
    + "</TimeDimension><PrimaryMeasure id='OBS_VALUE'>"
    + REF.format("OBS_VALUE", "<TextFormat textType='Double'/>")
    + "<AttributeRelationship><Dimension><Ref id='SEX'/></Dimension></AttributeRelationship></PrimaryMeasure>"
    + "</DataStructure>",
    "3.0": LISTS.format("", "id", "Name")
    + f"""<DataStructure id="D"><Dimension id="SEX">
    <ConceptIdentity>{URN.format("conceptscheme.Concept", "CS(1.0).SEX")}</ConceptIdentity>
    <LocalRepresentation><Enumeration>{URN.format("codelist.Codelist", "CL_SEX(1.0)")}</Enumeration>
    </LocalRepresentation></Dimension><TimeDimension id="TIME">
    <ConceptIdentity>{URN.format("conceptscheme.Concept", "CS(1.0).TIME")}</ConceptIdentity></TimeDimension>
    <Measure id="OBS_VALUE">
    <ConceptIdentity>{URN.format("conceptscheme.Concept", "CS(1.0).OBS_VALUE")}</ConceptIdentity>
    </Measure></DataStructure>""",
}


@pytest.mark.parametrize("version", STRUCTURES)
def test_structures_of_sdmx_have_code_lists(version: str, tmp_path: Path) -> None:
    space = "http://www.sdmx.org/resources/sdmxml/schemas/structure"
    message = f'<Structure xmlns="{space}">{STRUCTURES[version]}</Structure>'
    found = drafted(tmp_path, "t.xml", message)
    assert {name: one["kind"] for name, one in found.items()} == {
        "SEX": "categorical",
        "TIME": "categorical",
        "OBS_VALUE": "number",
    }
    assert (found["SEX"]["values"], found["SEX"]["labels"]) == (["M", "F"], ["Male", "Female"])
    text = draft(tmp_path / "t.xml")
    assert "# Sex of the person" in text
    assert text.count("TODO: declare") == 2
