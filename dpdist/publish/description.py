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
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as Xml

import pyarrow as pa

from dpdist.publish.manifest import MANIFEST, SIGNATURE, Manifest
from dpdist.publish.part_format import FileRecord
from dpdist.publish.parts import arrow_schema
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category
from dpdist.spec.schema import About
from dpdist.storage.store import Store

README, PACKAGE, CROISSANT, CODEBOOK = "_README.md", "_datapackage.json", "_croissant.json", "_ddi.xml"

_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STATISTICS = {
    "statistic": "What was counted or measured.",
    "of": "Of which attributes, or in which.",
    "cell": "The cell, value or bin that it is about.",
    "noisy": "The statistic with its noise, as it was charged.",
    "value": "The same after what the public knows of it.",
    "standard_error": "Of the noise.",
}
_KINDS = {"int": ("integer", "sc:Integer"), "uint": ("integer", "sc:Integer"), "double": ("number", "sc:Float")}
_KINDS |= {"bool": ("boolean", "sc:Boolean"), "date32": ("date", "sc:Date"), "timestamp": ("datetime", "sc:DateTime")}


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


def _columns(manifest: Manifest) -> Iterator[tuple[pa.Field, Attribute | None]]:
    """The columns of the parts with their attributes, where they have one."""
    attributes = {attribute.name: attribute for attribute in manifest.table.attributes}
    with_records = manifest.format.layout == "records"
    for field in arrow_schema(manifest.table, manifest.format):
        yield field, attributes.get(field.name) if with_records else None


def _kind(field: pa.Field) -> tuple[str, str]:
    """The type of a column as a data package and as schema.org name it."""
    found = next((kind for start, kind in _KINDS.items() if str(field.type).startswith(start)), None)
    return found or ("string", "sc:Text")


def _texts(field: pa.Field, attribute: Attribute | None) -> tuple[str, str]:
    """Title and description of a column."""
    if attribute is None:
        return field.name, _STATISTICS.get(field.name, "")
    text = attribute.description or ""
    if attribute.unit:
        text = f"{text.rstrip('. ')}. In {attribute.unit}.".removeprefix(". ")
    return attribute.label or field.name, text


def _categories(attribute: Attribute | None) -> list[tuple[str, str]]:
    """Values and labels, the missing category last."""
    if attribute is None or attribute.values is None:
        return []
    values = [str(value) for value in attribute.values]
    found = list(zip(values, attribute.labels or values, strict=True))
    missing = attribute.missing.category if isinstance(attribute.missing, Category) else None
    return found if missing is None else [*found, (missing, missing)]


def _ends(field: pa.Field, attribute: Attribute | None) -> tuple[Any, Any] | None:
    """The bounds of a column of numbers or days."""
    if attribute is None or attribute.bounds is None or pa.types.is_dictionary(field.type):
        return None
    low, high = map(attribute.shown, attribute.bounds) if attribute.dated else attribute.bounds
    return low, high


def _readme(manifest: Manifest) -> str:
    about, lines = _about(manifest), [f"# {_about(manifest).title or manifest.name}"]
    lines += [about.description] if about.description else []
    lines += [
        f"{manifest.rows:,} {manifest.counted}, released on {manifest.created} by dpdist ({manifest.kind}).",
        *([f"**{manifest.not_private}**"] if manifest.not_private else []),
        f"**What is guaranteed.** {manifest.guarantee}",
        *(f"**Caution.** {caution}" for caution in manifest.cautions),
    ]
    facts = {"Publisher": about.publisher, "Contact": about.contact, "Licence": about.licence, "Period": about.period}
    lines += ["\n".join(f"- {name}: {text}" for name, text in facts.items() if text)]
    lines += ["## Columns", "| column | label | values | about |\n|---|---|---|---|"]
    for field, attribute in _columns(manifest):
        title, text = _texts(field, attribute)
        categories, ends = _categories(attribute), _ends(field, attribute)
        shown = ", ".join(value if value == label else f"{value} = {label}" for value, label in categories[:12])
        shown += f", and {len(categories) - 12} more" if len(categories) > 12 else ""
        shown = shown or " to ".join(str(end).removesuffix(".0") for end in ends or ()) or _kind(field)[0]
        lines[-1] += "\n| " + " | ".join(part.replace("|", "\\|") for part in (field.name, title, shown, text)) + " |"
    lines += [
        "## Read it",
        "```\npandas   pandas.read_parquet('.')\nPolars   polars.read_parquet('data')\n"
        "DuckDB   SELECT * FROM '**/*.parquet'\nR        arrow::open_dataset('data')\n"
        "labels   dpdist export . --to csv|dta|sav|rds\ncheck    dpdist verify .\n```",
        f"`{PACKAGE}` describes it for Frictionless, `{CROISSANT}` for Croissant and schema.org, `{CODEBOOK}` for DDI. "
        f"`{MANIFEST}` has everything, and `{SIGNATURE}` its signature.",
        "## Cite it",
        citation_of(manifest),
        "\n".join(f"- {paper}" for paper in manifest.papers),
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def _package(manifest: Manifest) -> dict[str, Any]:
    """A data package with one resource for each part."""
    about, fields = _about(manifest), []
    for field, attribute in _columns(manifest):
        title, text = _texts(field, attribute)
        one: dict[str, Any] = {"name": field.name, "type": _kind(field)[0], "title": title}
        one |= {"description": text} if text else {}
        told = None if manifest.format.values == "codes" else attribute
        if told is not None and one["type"] in ("string", "integer") and (known := _categories(told)):
            if one["type"] == "integer":
                known = known[: len(told.values or ())]
            values: list[Any] = [int(value) if one["type"] == "integer" else value for value, _ in known]
            one["categories"] = [
                {"value": value, "label": label} for value, (_, label) in zip(values, known, strict=True)
            ]
            one["categoriesOrdered"] = told.kind == "ordinal"
            one["constraints"] = {"enum": values}
        elif ends := _ends(field, attribute):
            one["constraints"] = {"minimum": ends[0], "maximum": ends[1]}
        fields.append(one)
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
        "description": "\n\n".join(filter(None, (about.description, manifest.guarantee))),
        "created": f"{manifest.created}T00:00:00Z",
        "contributors": [{"title": about.publisher, "role": "publisher"}] if about.publisher else None,
        "licenses": [_licence(about.licence)] if about.licence else None,
        "resources": resources,
    }
    return {name: value for name, value in whole.items() if value is not None}


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
    about, fields = _about(manifest), list[dict[str, Any]]()
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
    for field, attribute in _columns(manifest):
        title, text = _texts(field, attribute)
        fields.append(
            {
                **{"@type": "cr:Field", "@id": f"records/{field.name}", "name": field.name},
                **{"description": ". ".join(filter(None, (title, text))), "dataType": _kind(field)[1]},
                "source": {**source, "extract": {"column": field.name}},
            }
        )
    whole = {
        **{"@context": _CONTEXT, "@type": "sc:Dataset", "conformsTo": "http://mlcommons.org/croissant/1.0"},
        "name": _slug(manifest.name),
        "alternateName": about.title,
        "description": "\n\n".join(filter(None, (about.description, manifest.guarantee))),
        "identifier": manifest.attempt,
        "datePublished": str(manifest.created),
        "version": "1.0.0",
        "url": about.url,
        "license": about.licence,
        "creator": {"@type": "sc:Organization", "name": about.publisher} if about.publisher else None,
        "temporalCoverage": about.period,
        "citeAs": citation_of(manifest),
        "isAccessibleForFree": True,
        "variableMeasured": [{"@type": "sc:PropertyValue", "name": field["name"]} for field in fields],
        "distribution": files,
        "recordSet": [{"@type": "cr:RecordSet", "@id": "records", "name": "records", "field": fields}] if files else [],
    }
    return {name: value for name, value in whole.items() if value is not None}


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
    info = Xml.SubElement(study, "stdyInfo")
    _put(info, "abstract", "\n\n".join(filter(None, (about.description, manifest.guarantee))))
    if about.period:
        _put(info, "sumDscr/timePrd", about.period)
    if about.licence:
        _put(study, "dataAccs/useStmt/conditions", about.licence)
    file = Xml.SubElement(root, "fileDscr", {"ID": "F1"})
    _put(file, "fileTxt/fileName", "data/**/*.parquet")
    _put(file, "fileTxt/dimensns/caseQnty", str(manifest.rows))
    _put(file, "fileTxt/fileType", "Parquet")
    data = Xml.SubElement(root, "dataDscr")
    for place, (field, attribute) in enumerate(_columns(manifest), 1):
        _variable(data, f"V{place}", field, attribute)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _variable(data: Xml.Element, number: str, field: pa.Field, attribute: Attribute | None) -> None:
    (title, text), categories, ends = _texts(field, attribute), _categories(attribute), _ends(field, attribute)
    measured = {"intrvl": "discrete" if categories else "contin"}
    variable = Xml.SubElement(
        data, "var", {"ID": number, "name": _NO_XML.sub("", field.name), "files": "F1", **measured}
    )
    _put(variable, "labl", title)
    if ends:
        Xml.SubElement(_put(variable, "valrng", None), "range", {"min": str(ends[0]), "max": str(ends[1])})
    if text:
        _put(variable, "txt", text)
    for value, label in categories:
        category = Xml.SubElement(variable, "catgry")
        _put(category, "catValu", value)
        _put(category, "labl", label)
    Xml.SubElement(variable, "varFormat", {"type": "character" if _kind(field)[0] == "string" else "numeric"})


def _put(parent: Xml.Element, path: str, text: str | None) -> Xml.Element:
    """The element at a path below, made where it lacks, with a text."""
    for name in path.split("/"):
        found = parent.find(name) if "/" in path else None
        parent = Xml.SubElement(parent, name) if found is None else found
    parent.text = None if text is None else _NO_XML.sub("", text)
    return parent
