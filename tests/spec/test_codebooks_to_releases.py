"""From codebooks of surveys and censuses, made up here, to releases: drafts, what is left to decide, and the rest."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpdist
from dpdist.cli.sample_table import write_uniform
from dpdist.spec.draft import draft, left_to_decide
from dpdist.spec.schema import Schema
from dpdist.spec.strict_yaml import parse_yaml

ROWS = 4_000
MOST_SECONDS = 300.0


def popstan(path: Path) -> Path:
    """A census in DDI-Codebook 1.2, as NESSTAR writes it: 53 variables in Latin-1, with a document type."""
    variables = ['<var ID="V1" name="HHID" files="F1" intrvl="contin"><labl>Household identification</labl></var>']
    for number in range(2, 54):
        if number % 6 == 0:  # an integer that NESSTAR calls real, with a code for what is not stated
            inside = '<valrng><range UNITS="REAL" min="0" max="98"/></valrng><invalrng><item VALUE="99"/></invalrng>'
            head = 'intrvl="contin" dcml="0"'
        elif number % 16 == 1:
            inside, head = '<valrng><range UNITS="REAL" min="0" max="250000.5"/></valrng>', 'intrvl="contin" dcml="2"'
        else:
            labels = [f"Réponse {code}" for code in range(1, 2 + number % 7)]
            inside = "".join(
                f"<catgry><catValu>{code}</catValu><labl>{text}</labl></catgry>" for code, text in enumerate(labels, 1)
            )
            inside += '<catgry missing="Y"><catValu>9</catValu><labl>Not stated</labl></catgry>'
            head = 'intrvl="discrete"'
        inside = f'<labl>Question {number}</labl>{inside}<varFormat type="numeric"/>'
        variables.append(f'<var ID="V{number}" name="P{number:03d}" files="F1" {head}>{inside}</var>')
    head = '<?xml version="1.0" encoding="ISO-8859-1"?><!DOCTYPE codeBook SYSTEM "Version1-2-2.dtd">'
    files = '<fileDscr ID="F1"><fileTxt><fileName>persons</fileName></fileTxt></fileDscr>'
    text = f"{head}<codeBook>{files}<dataDscr>{''.join(variables)}</dataDscr></codeBook>"
    path = path / "popstan.xml"
    path.write_bytes(text.encode("latin-1"))
    return path


def nhanes(path: Path) -> Path:
    """A health survey as a data package of Frictionless v2: refused and unknown are codes, and measures are numbers."""
    fields: list[dict[str, Any]] = [{"name": "SEQN", "type": "integer", "title": "Respondent sequence number"}]
    for number in range(15):
        answers = [{"value": code, "label": text} for code, text in ((1, "Yes"), (2, "No"))]
        absent = [{"value": "7", "label": "Refused"}, {"value": "9", "label": "Don't know"}]
        fields.append({"name": f"DIQ{number:03d}", "type": "integer", "categories": answers, "missingValues": absent})
    for number in range(15):
        limits = {"minimum": 0, "maximum": 140.5 + number}
        fields.append({"name": f"LBX{number:03d}", "type": "number", "constraints": limits, "missingValues": ["."]})
    fields.append(
        {"name": "RIDAGEYR", "type": "integer", "constraints": {"minimum": 0, "maximum": 80, "required": True}}
    )
    fields.append(
        {"name": "EXAMDATE", "type": "date", "constraints": {"minimum": "2017-01-01", "maximum": "2018-12-31"}}
    )
    fields.append({"name": "WTMEC2YR", "type": "number", "title": "Full sample weight"})
    path = path / "datapackage.json"
    path.write_text(json.dumps({"resources": [{"name": "demo", "schema": {"fields": fields}}]}))
    return path


def eu_silc(path: Path) -> Path:
    """A survey of incomes as CSVW: lists of texts, flags beside each variable, incomes without bounds."""
    columns: list[dict[str, Any]] = [
        {"name": "PB030", "datatype": "integer", "dc:description": "Personal ID"},
        {"name": "PB020", "datatype": {"base": "string", "format": "AT|BE|DE|FR|IT|PL"}, "required": True},
        {"name": "PB040", "datatype": "decimal", "dc:description": "Cross-sectional weight"},
        {"name": "PB130", "datatype": {"base": "gYear", "minimum": 1930, "maximum": 2009}},
    ]
    for number in range(12):
        name = f"PL{number:03d}"
        columns.append({"name": name, "datatype": {"base": "string", "format": "01|02|03|04"}, "null": ["", "-1"]})
        columns.append({"name": f"{name}_F", "datatype": {"base": "string", "format": "-2|-1|1"}, "required": True})
    for number in range(3):
        columns.append({"name": f"PY{number:03d}G", "datatype": {"base": "decimal", "minimum": 0, "maximum": 900000}})
    path = path / "eu-silc.json"
    path.write_text(json.dumps({"url": "p.csv", "tableSchema": {"columns": columns}}))
    return path


CODEBOOKS: dict[Callable[[Path], Path], tuple[int, dict[str, int]]] = {
    popstan: (53, {"choose public bins": 3, "it names records": 1, "declare `bounds`": 1}),
    nhanes: (34, {"choose public bins": 15, "it names records": 1, "declare `bounds`": 2}),
    eu_silc: (31, {"choose public bins": 3, "it names records": 1, "declare `bounds`": 2}),
}


def decided(text: str) -> Schema:
    """What a person decides: identifiers and weights are left out, and bins of the draft are public enough."""
    tree = parse_yaml(text)
    tree["attributes"] = [one for one in tree["attributes"] if "values" in one or "bounds" in one]
    return Schema.model_validate(tree)


@pytest.mark.parametrize("made", CODEBOOKS, ids=lambda made: made.__name__)
def test_a_codebook_leads_to_a_release(made: Callable[[Path], Path], tmp_path: Path) -> None:
    start, (columns, expected) = time.perf_counter(), CODEBOOKS[made]
    text = draft(made(tmp_path))
    kinds = Counter(kind for line in left_to_decide(text) for kind in expected if f"TODO: {kind}" in line)
    assert len(parse_yaml(text)["attributes"]) == columns
    assert (kinds, sum(kinds.values())) == (expected, len(left_to_decide(text)))
    schema = decided(text)
    schema.save(tmp_path / "schema.yaml")
    write_uniform(tmp_path / "table.csv", tmp_path / "schema.yaml", ROWS)
    ledger = dpdist.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create("survey", epsilon=2, delta=1e-6)
    spec = {
        "kind": "synthesis",
        "name": "survey",
        "dataset": "survey",
        "schema": schema.model_dump(mode="json", exclude_defaults=True),
        "data": {"path": str(tmp_path / "table.csv"), "minimum_records": ROWS // 2},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "model": {"rounds": 1, "balance": 0},
        "output": {"path": str(tmp_path / "released")},
    }
    assert dpdist.plan(spec).epsilon <= 1
    released = dpdist.release(spec, ledger=ledger)
    assert list(released.to_pandas().columns) == list(schema.names)
    assert time.perf_counter() - start < MOST_SECONDS
