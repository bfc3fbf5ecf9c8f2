"""The one reader of specs: a file, a mapping or a spec, with what a call sets, becomes a spec that was checked.

A name by date, such as ``name: acs-{date:%Y-%m}``, makes one spec a release of every month. The day is that of the
setting ``date``, else today (UTC). Name and output follow the same period: with a coarser path the second release would
meet the first one, and with a finer one a repeated run would not find its own release.
"""

from __future__ import annotations

import functools
import operator
import os
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from dpdist.errors import SpecError
from dpdist.spec.data import from_folder
from dpdist.spec.kinds import FAMILIES
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema
from dpdist.spec.series import FIELD, day_of, filled, in_period
from dpdist.spec.strict_yaml import load_yaml
from dpdist.spec.validation import change, override, validated

AnySpecification = str | os.PathLike[str] | Mapping[str, Any] | ReleaseSpec
"""The path of a spec file, its settings as a mapping, or a spec that was read before."""


_DIRECTIVE: Final = re.compile("%(.?)")
_PERIODS: Final = {"Y": "year", "Ym": "month", "Ydm": "day", "Yj": "day", "GV": "week"}
"""The directives of a setting, sorted, and what they tell apart; a month without its year names next year's alike."""

_CONTAINS: Final[Mapping[str | None, tuple[str | None, ...]]] = {
    None: (None,),
    "year": (None, "year"),
    "month": (None, "year", "month"),
    "week": (None, "week"),
    "day": (None, "year", "month", "week", "day"),
}
"""The periods in order, each a part of the one before it; without a period what never changes."""

_EXPECTED: Final = "write {date:%Y}, {date:%Y-%m}, {date:%Y-%m-%d}, {date:%Y-%j} or {date:%G-%V} (weeks)"


def load(
    source: AnySpecification,
    overrides: Mapping[str, Any] | None = None,
    *,
    base: Path | None = None,
    day: date | None = None,
    title: str = "the spec",
) -> ReleaseSpec:
    """Read a spec, apply overrides, resolve its schema and its paths, and validate it.
    Raises SpecError: the file cannot be read, is not YAML or is not a valid spec, or the schema's path leaves the
    folder of the spec; the message names each setting.

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
        tree = override(tree, overrides or {})
        tree = dated(in_period(tree, day=day) if isinstance(tree.get("series"), Mapping) else tree, day=day)
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
    Raises SpecError: this version does not know the kind, or the settings.

    Parameters
    ----------
    public : mapping
        The public part of the spec (`ReleaseSpec.public`).
    schema : Schema
        Of the table.
    settings : mapping of str to object, optional
        What the public part does not say, by dotted path.
    """
    elsewhere = {name: {**public.get(name, {}), "path": "unknown"} for name in ("data", "output")}
    return load({**public, **elsewhere, "schema": schema}, settings, title="the manifest's spec")


def dated(tree: Mapping[str, Any], *, day: date | None = None) -> dict[str, Any]:
    """A spec with the fields ``{date:…}`` of `name`, `output.path` and `data.path` filled, without the setting `date`.
    Raises SpecError: a field is not one of those above, name and paths follow different periods, or `date` is no day.

    Parameters
    ----------
    tree : mapping
        The settings of a spec; left as they are.
    day : date, optional
        The day where the settings name none; by default today, in UTC.
    """
    out = dict(tree)
    chosen = out.pop("date", None)
    at = day_of(chosen, day)
    places: list[tuple[dict[str, Any], str, str]] = [(out, "name", "name")]
    for name in ("output", "data"):
        if isinstance(out.get(name), Mapping):
            out[name] = dict(out[name])
            places.append((out[name], "path", f"{name}.path"))
    periods = {setting: _period(section.get(key), setting) for section, key, setting in places}
    _check_periods(periods)
    if periods["name"] is None:
        if chosen is not None:
            raise SpecError(f"date: the name of the spec does not depend on it: leave it out, or {_EXPECTED}")
        return out
    for section, key, _ in places:
        if key in section:
            section[key] = filled(section[key], at)
    return out


def _period(value: object, setting: str) -> str | None:
    """The shortest period that a setting tells apart; None where it has no field."""
    found: set[str | None] = {None}
    for text in value if isinstance(value, list | tuple) else [value]:
        formats = [match[1] or "" for match in FIELD.finditer(text)] if isinstance(text, str) else []
        letters = "".join(sorted({letter for one in formats for letter in _DIRECTIVE.findall(one)}))
        if formats and letters not in _PERIODS:
            raise SpecError(f"{setting}: this date would name different periods alike, or none: {_EXPECTED}")
        found.add(_PERIODS[letters] if formats else None)
    return max(found, key=lambda period: len(_CONTAINS[period]))


def _check_periods(periods: Mapping[str, str | None]) -> None:
    """Refuse paths that do not go with the name."""
    name, data = periods["name"], periods.get("data.path")
    if periods.get("output.path", name) != name:
        raise SpecError(
            f"output.path: it changes {_words(periods['output.path'])} and the name {_words(name)}: "
            f"{'give both the same dates' if name else 'put the date into the name, too'}, so that each release has "
            "its own folder"
        )
    if data not in _CONTAINS[name]:
        raise SpecError(
            f"data.path: it changes {_words(data)} and the name {_words(name)}: a release that is repeated must find "
            "the same input"
        )


def _words(period: str | None) -> str:
    return "never" if period is None else f"every {period}"


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
