"""The one reader of specs: a file, a mapping or a spec, with what a call sets, becomes a spec that was checked."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Mapping
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from dpdist.errors import SpecError
from dpdist.spec.dates import dated
from dpdist.spec.kinds import FAMILIES
from dpdist.spec.overrides import change, override, validated
from dpdist.spec.paths import from_folder
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema
from dpdist.spec.strict_yaml import load_yaml

AnySpecification = str | os.PathLike[str] | Mapping[str, Any] | ReleaseSpec
"""The path of a spec file, its settings as a mapping, or a spec that was read before."""


def load(
    source: AnySpecification,
    overrides: Mapping[str, Any] | None = None,
    *,
    base: Path | None = None,
    day: date | None = None,
    title: str = "the spec",
) -> ReleaseSpec:
    """Read a spec, apply overrides, resolve its schema and its paths, and validate it.

    Parameters
    ----------
    source : path, mapping or ReleaseSpec
        A YAML file, its settings, or a spec that was read before.
    overrides : mapping of str to object, optional
        Values by dotted path, such as ``{"synthesis.records": 1000}``; their paths are from the working folder.
    base : Path, optional
        The folder that the relative paths of a mapping are from. Without it they are from the working folder, and the
        schema is no path. Those of a file are from its own folder.
    day : date, optional
        The day of ``{date:…}`` where the spec sets none (`dated`).
    title : str
        What a mapping is called in errors.

    Raises
    ------
    SpecError
        The file cannot be read, is not YAML or is not a valid spec, or the schema's path leaves the folder of the spec;
        the message names each setting.
    """
    if isinstance(source, ReleaseSpec):
        return change(source, overrides) if overrides else source
    if isinstance(source, Mapping):
        tree = {name: dict(part) if isinstance(part, Mapping) else part for name, part in source.items()}
    elif isinstance(source, str | os.PathLike):
        tree, base, title = load_yaml(Path(source)), Path(source).parent, os.fspath(source)
        if not isinstance(tree, dict):
            raise SpecError(f"{title} is not a spec: expected a mapping with `kind`, `name`, `data` ...")
    else:
        raise SpecError(f"spec: expected the path of a spec file or a mapping, got {type(source).__name__}")
    try:
        tree = dated(override(tree, overrides or {}), day=day)
    except SpecError as error:
        raise SpecError(f"{title}: {error}") from None
    kind = tree.get("kind")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise SpecError(f"{title}: `kind` is {kind!r}; expected one of {', '.join(FAMILIES)}")
    schema = tree.get("schema")
    if isinstance(schema, str):
        inside = PurePosixPath(schema)
        if base is None or inside.is_absolute() or ".." in inside.parts:
            raise SpecError(f"{title}: `schema` is a path below the folder of the spec, without `..`")
        tree["schema"] = Schema.from_yaml(base / schema)
    spec_class: type[ReleaseSpec] = FAMILIES[kind].spec_class
    if base is not None:
        tree = from_folder(tree, spec_class, base, keep=overrides or ())
    return validated(spec_class, tree, title)


def load_public(public: Mapping[str, Any], schema: Schema, settings: Mapping[str, Any] | None = None) -> ReleaseSpec:
    """The spec of a release as far as its manifest says it; where its files are is not said.

    Parameters
    ----------
    public : mapping
        The public part of the spec (`ReleaseSpec.public`).
    schema : Schema
        Of the table.
    settings : mapping of str to object, optional
        What the public part does not say, by dotted path.

    Raises
    ------
    SpecError
        This version does not know the kind, or the settings.
    """
    elsewhere = {name: {**public.get(name, {}), "path": "unknown"} for name in ("data", "output")}
    return load({**public, **elsewhere, "schema": schema}, settings, title="the manifest's spec")


def json_schema() -> dict[str, Any]:
    """JSON schema of a spec file of any kind (``schema`` may also be the path of a schema file)."""
    kinds = [family.spec_class for family in FAMILIES.values()]
    union: Any = Annotated[functools.reduce(operator.or_, kinds), Field(discriminator="kind")]
    schema = TypeAdapter(union).json_schema(by_alias=True)
    paths = schema["discriminator"]["mapping"].values()
    specs = [schema["$defs"][path.rpartition("/")[2]] for path in paths]
    for spec in specs:
        spec["properties"]["schema"] = {
            "anyOf": [{"type": "string"}, spec["properties"]["schema"]],
            "description": "The schema, or the path of its file below the folder of the spec.",
        }
        name = spec["properties"]["name"]
        spec["properties"]["name"] = {
            "anyOf": [{"type": "string", "pattern": name.pop("pattern")}, {"type": "string", "pattern": r"\{date:"}],
            **{key: value for key, value in name.items() if key != "type"},
        }
        spec["properties"]["date"] = {
            "type": "string",
            "format": "date",
            "description": "The day of `{date:%Y-%m}` in `name`, `output.path` and `data.path`; default: today (UTC).",
        }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
