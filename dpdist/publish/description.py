"""What lies beside the parts of a release, so that it describes itself to people and to other tools.

A README for people, a data package (Frictionless [1]_), Croissant [2]_, which is also a data set of schema.org, and a
DDI codebook (2.5 [3]_). Their names begin with an underscore, so that readers of the folder as one Parquet data set
pass over them.

.. [1] https://datapackage.org/profiles/2.0/datapackage.json
.. [2] http://mlcommons.org/croissant/1.0
.. [3] https://ddialliance.org/Specification/DDI-Codebook/2.5
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any
from xml.etree import ElementTree as Xml

from dpdist.publish.manifest import MANIFEST, SIGNATURE, Manifest
from dpdist.publish.part_format import FileRecord
from dpdist.publish.variables import Variable, variables
from dpdist.spec.schema import About
from dpdist.storage.store import Store

README, PACKAGE, CROISSANT, CODEBOOK = "_README.md", "_datapackage.json", "_croissant.json", "_ddi.xml"

_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SCHEMA_ORG = {"integer": "Integer", "number": "Float", "boolean": "Boolean", "date": "Date", "datetime": "DateTime"}
_ABSENT = {"integer": "nan", "number": "nan", "date": "NaT", "datetime": "NaT"}
"""How readers by pandas, Frictionless among them, write a null."""
_PATTERNS = {"date": "YYYY-MM-DD", "datetime": "YYYY-MM-DD hh:mm:ss"}
_SYNTHETIC = "The records are synthetic: no row stands for a real person, household or firm."

DESCRIPTIONS = (README, PACKAGE, CROISSANT, CODEBOOK)


def described(manifest: Manifest, work: Store) -> Manifest:
    """Write the descriptions of a release into the attempt's work folder; return its manifest, which lists them. They
    reach the output when the attempt is committed (`dpdist.lifecycle.publication`). Raises as `Store.write_bytes`.
    """
    made = {
        README: _readme(manifest),
        PACKAGE: _json(_package(manifest)),
        CROISSANT: _json(_croissant(manifest)),
        CODEBOOK: _codebook(manifest),
    }
    records = []
    for name, text in made.items():
        content = text.encode()
        work.write_bytes(name, content)
        records.append(FileRecord(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()))
    return manifest.model_copy(update={"files": (*manifest.files, *records)})


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _about(manifest: Manifest) -> About:
    return manifest.table.about or About()


def citation_of(manifest: Manifest) -> str:
    """How to cite a release: as its schema says, else by its name, year and attempt."""
    about = _about(manifest)
    by = f"{about.publisher}: " if about.publisher else ""
    named = f"{by}{about.title or manifest.name} ({manifest.created.year}). Release {manifest.name}, attempt "
    return about.citation or f"{named}{manifest.attempt[:8]}. Made with dpdist, {manifest.kind}."


def _readme(manifest: Manifest) -> str:
    about, name = _about(manifest), _slug(manifest.name)
    lines = [f"# {about.title or manifest.name}", about.description or ""]
    lines += [
        f"{manifest.rows:,} {_counted(manifest)}, released on {manifest.created} by dpdist ({manifest.kind}).",
        *([f"**{manifest.not_private}**"] if manifest.not_private else []),
        f"**What is guaranteed.** {manifest.guarantee}",
        *([f"**How to use it.** {_SYNTHETIC} {_inference(manifest)}"] if manifest.counted == "records" else []),
        *(f"**Caution.** {caution}" for caution in manifest.cautions),
    ]
    facts = {"Publisher": about.publisher, "Contact": about.contact, "Licence": about.licence, "Period": about.period}
    facts["Page"] = about.url
    lines += ["\n".join(f"- {name}: {text}" for name, text in facts.items() if text)]
    lines += ["## Columns", "| column | label | values | about |\n|---|---|---|---|"]
    for one in variables(manifest):
        cells = (one.name, one.title, one.shown, one.text)
        lines[-1] += "\n| " + " | ".join(part.replace("|", "\\|") for part in cells) + " |"
    lines += [
        "## Read it",
        "```\npandas   pandas.read_parquet('.')\nPolars   polars.read_parquet('data')\n"
        "DuckDB   SELECT * FROM '**/*.parquet'\nR        arrow::open_dataset('data')\n"
        f"labels   dpdist export . --to dta --out ../{name}.dta  # or csv, sav (SPSS), rds (R)\n"
        "check    dpdist verify .\n```",
        "In this folder. Polars and R read `data`: they refuse a folder that holds other files than Parquet.",
        f"`{PACKAGE}` describes it for Frictionless, `{CROISSANT}` for Croissant and schema.org, `{CODEBOOK}` for DDI. "
        f"`{MANIFEST}` has everything, and `{SIGNATURE}` its signature.",
        "## Cite it",
        citation_of(manifest),
        "\n".join(f"- {paper}" for paper in manifest.papers),
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def _counted(manifest: Manifest) -> str:
    return "synthetic records" if manifest.counted == "records" else manifest.counted


def _inference(manifest: Manifest) -> str:
    """What a reader does about standard errors."""
    wrong = "Standard errors and tests of ordinary software are wrong for them, as they leave the noise out"
    if not any(file.name.endswith("/model.columnar") for file in manifest.files):
        return f"{wrong}."
    mean = next((f"mean {one.name}" for one in manifest.table.attributes if one.kind in ("integer", "number")), "count")
    return f'{wrong}: ask `dpdist infer . "{mean}"`, which gives intervals where the release has them.'


def _abstract(manifest: Manifest) -> str:
    """What catalogues say of a release, in paragraphs."""
    told = f"{_SYNTHETIC} {_inference(manifest)}" if manifest.counted == "records" else ""
    return "\n\n".join(filter(None, (_about(manifest).description, told, manifest.guarantee)))


def _package(manifest: Manifest) -> dict[str, Any]:
    """A data package with one resource for each part."""
    about = _about(manifest)
    people = [{"title": about.publisher, "roles": ["publisher"]}] if about.publisher else []
    people += [{"title": about.contact, **_reached(about.contact), "roles": ["contact"]}] if about.contact else []
    fields = [*map(_field, variables(manifest))]
    resources = [  # readers take the first alone of several files of Parquet in one resource
        {
            "name": _slug(manifest.name) + (f"-{number:05}" if len(manifest.parts) > 1 else ""),
            "path": part.name,
            "format": "parquet",
            "mediatype": "application/vnd.apache.parquet",
            "schema": {"fields": fields},
        }
        for number, part in enumerate(manifest.parts)
    ]
    whole = {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": _slug(manifest.name),
        "id": manifest.attempt,
        "title": about.title or manifest.name,
        "description": _abstract(manifest),
        "homepage": about.url,
        "created": f"{manifest.created}T00:00:00Z",
        "temporalCoverage": about.period,
        "bibliographicCitation": citation_of(manifest),
        "keywords": _keywords(manifest),
        "contributors": people or None,
        "licenses": [_licence(about.licence)] if about.licence else None,
        "resources": resources,
    }
    return {name: value for name, value in whole.items() if value is not None}


def _field(one: Variable) -> dict[str, Any]:
    """A column of a data package."""
    made: dict[str, Any] = {"name": one.name, "type": one.type, "title": one.title}
    made |= {"description": one.text} if one.text else {}
    made |= {"missingValues": ["", _ABSENT[one.type]]} if one.nullable and one.type in _ABSENT else {}
    if one.type in ("string", "integer") and one.categories:
        values: list[Any] = [int(value) if one.type == "integer" else value for value, _ in one.written]
        made["categories"] = [
            {"value": value, "label": label} for value, (_, label) in zip(values, one.written, strict=True)
        ]
        made["categoriesOrdered"] = one.ordered
        made["constraints"] = {"enum": values}
    elif one.ends:
        made["constraints"] = {"minimum": one.ends[0], "maximum": one.ends[1]}
    return made


def _reached(contact: str) -> dict[str, str]:
    """How a contact is reached, by what it is."""
    found = re.search(r"[\w.+-]+@[\w.-]+\w", contact)
    if found:
        return {"email": found[0]}
    return {"path": contact} if "://" in contact else {}


def _keywords(manifest: Manifest) -> list[str]:
    return [*(["synthetic data"] if manifest.counted == "records" else []), "differential privacy"]


def _licence(text: str) -> dict[str, str]:
    return {"path": text} if "://" in text else {"name": re.sub(r"[^A-Za-z0-9._-]+", "-", text)}


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower())


_CONTEXT: dict[str, Any] = {
    **{"@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/"},
    **{"cr": "http://mlcommons.org/croissant/", "rai": "http://mlcommons.org/croissant/RAI/"},
    **{"dct": "http://purl.org/dc/terms/", "conformsTo": "dct:conformsTo", "citeAs": "cr:citeAs"},
    **{
        name: f"cr:{name}" for name in ("column", "extract", "field", "fileProperty", "fileObject", "fileSet", "format")
    },
    **{name: f"cr:{name}" for name in ("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path")},
    **{name: f"cr:{name}" for name in ("recordSet", "references", "regex", "repeated", "replace", "separator")},
    **{name: f"cr:{name}" for name in ("samplingRate", "source", "subField", "transform", "equivalentProperty")},
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
}


def _croissant(manifest: Manifest) -> dict[str, Any]:
    """A data set of Croissant, and so of schema.org."""
    about, told = _about(manifest), [*variables(manifest)]
    files: list[dict[str, Any]] = [
        {
            **{"@type": "cr:FileObject", "@id": part.name, "name": part.name, "contentUrl": part.name},
            **{"contentSize": f"{part.bytes} B", "encodingFormat": "application/x-parquet", "sha256": part.sha256},
        }
        for part in manifest.parts
    ]
    source: dict[str, Any] = {"fileObject": {"@id": files[0]["@id"]}} if len(files) == 1 else {}
    if len(files) > 1:
        how = {"includes": "data/*/*.parquet", "encodingFormat": "application/x-parquet"}
        files.append({"@type": "cr:FileSet", "@id": "parts", "name": "parts", **how})
        source = {"fileSet": {"@id": "parts"}}
    fields = [
        {
            **{"@type": "cr:Field", "@id": f"records/{_anchor(one)}", "name": one.name},
            **{
                "description": ". ".join(filter(None, (one.title, one.text))),
                "dataType": f"sc:{_SCHEMA_ORG.get(one.type, 'Text')}",
            },
            "source": {**source, "extract": {"column": one.name}},
        }
        for one in told
    ]
    records = {"@type": "cr:RecordSet", "@id": "records", "name": "records", "field": fields}
    organization: dict[str, Any] = {"@type": "sc:Organization", "name": about.publisher or about.contact}
    if about.contact:
        reached = {name if name == "email" else "url": text for name, text in _reached(about.contact).items()}
        organization["contactPoint"] = {"@type": "sc:ContactPoint", "name": about.contact, **reached}
    whole = {
        **{"@context": _CONTEXT, "@type": "sc:Dataset", "conformsTo": "http://mlcommons.org/croissant/1.0"},
        "name": _slug(manifest.name),
        "alternateName": about.title,
        "description": _abstract(manifest),
        "keywords": _keywords(manifest),
        "identifier": manifest.attempt,
        "datePublished": str(manifest.created),
        "version": "1.0.0",
        "url": about.url,
        "license": about.licence,
        "creator": organization if organization["name"] else None,
        "temporalCoverage": about.period,
        "citeAs": citation_of(manifest),
        "isAccessibleForFree": True,
        "variableMeasured": [*map(_measured, told)],
        "distribution": files,
        "recordSet": [records, *(_labels(one) for one in told if one.categories)] if files else [],
    }
    return {name: value for name, value in whole.items() if value is not None}


def _anchor(one: Variable) -> str:
    """The name of a column in ids, which have no spaces."""
    return one.name if re.fullmatch(r"[\w.-]+", one.name) else hashlib.sha256(one.name.encode()).hexdigest()[:12]


def _measured(one: Variable) -> dict[str, Any]:
    """A column as schema.org has it."""
    low, high = one.ends if one.ends and one.type in ("integer", "number") else (None, None)
    made = {
        **{"@type": "sc:PropertyValue", "name": one.name, "alternateName": one.title, "description": one.text or None},
        **{"unitText": one.unit, "minValue": low, "maxValue": high},
    }
    return {name: value for name, value in made.items() if value is not None}


def _labels(one: Variable) -> dict[str, Any]:
    """The values of a column with their labels, as an enumeration of Croissant."""
    place = f"values-{_anchor(one)}"
    fields = [
        {"@type": "cr:Field", "@id": f"{place}/{name}", "name": f"{place}/{name}", "dataType": "sc:Text"}
        for name in ("value", "label")
    ]
    rows = [{f"{place}/value": value, f"{place}/label": label} for value, label in one.written]
    kind = {"@type": "cr:RecordSet", "@id": place, "name": f"values of {one.name}", "dataType": "sc:Enumeration"}
    return {**kind, "key": {"@id": f"{place}/value"}, "field": fields, "data": rows}


def _codebook(manifest: Manifest) -> str:
    """A codebook of DDI 2.5."""
    about = _about(manifest)
    root = Xml.Element("codeBook", {"xmlns": "ddi:codebook:2_5", "version": "2.5"})
    study = Xml.SubElement(root, "stdyDscr")
    citation = Xml.SubElement(study, "citation")
    _put(citation, "titlStmt/titl", about.title or manifest.name)
    if about.publisher:
        _put(citation, "prodStmt/producer", about.publisher)
    if about.contact:
        _put(citation, "distStmt/contact", about.contact)
    _put(citation, "biblCit", citation_of(manifest))
    if about.url:
        _put(citation, "holdings", None).set("URI", about.url)
    info = Xml.SubElement(study, "stdyInfo")
    _put(info, "abstract", _abstract(manifest))
    if about.period:
        _put(info, "sumDscr/timePrd", about.period)
    if about.licence:
        _put(study, "dataAccs/useStmt/conditions", about.licence)
    file = Xml.SubElement(root, "fileDscr", {"ID": "F1"})
    _put(file, "fileTxt/fileName", "data/**/*.parquet")
    _put(file, "fileTxt/dimensns/caseQnty", str(manifest.rows))
    _put(file, "fileTxt/fileType", "Parquet")
    data = Xml.SubElement(root, "dataDscr")
    for place, one in enumerate(variables(manifest), 1):
        _variable(data, f"V{place}", one)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _variable(data: Xml.Element, number: str, one: Variable) -> None:
    measured = {"intrvl": "discrete" if one.categories else "contin"}
    measured |= {"nature": "ordinal" if one.ordered else "nominal"} if one.categories else {}
    variable = Xml.SubElement(data, "var", {"ID": number, "name": _NO_XML.sub("", one.name), "files": "F1", **measured})
    _put(variable, "labl", one.title)
    if one.ends:
        Xml.SubElement(_put(variable, "valrng", None), "range", {"min": str(one.ends[0]), "max": str(one.ends[1])})
    if one.text:
        _put(variable, "txt", one.text)
    for value, label in one.categories:
        absent = {"missing": "Y"} if label == one.missing else {}
        category = Xml.SubElement(variable, "catgry", absent)
        _put(category, "catValu", value)
        _put(category, "labl", label)
    form = {"type": "numeric" if one.type in ("integer", "number") else "character"}
    form |= {"category": "date", "formatname": _PATTERNS[one.type]} if one.type in _PATTERNS else {}
    Xml.SubElement(variable, "varFormat", form)


def _put(parent: Xml.Element, path: str, text: str | None) -> Xml.Element:
    """The element at a path below, made where it lacks, with a text."""
    for name in path.split("/"):
        found = parent.find(name) if "/" in path else None
        parent = Xml.SubElement(parent, name) if found is None else found
    parent.text = None if text is None else _NO_XML.sub("", text)
    return parent
