"""Settings by dotted path: what ``--set a.b=c`` and calls change in a spec before it is validated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from dpdist.errors import SpecError
from dpdist.spec.strict_yaml import check_characters, parse_yaml
from dpdist.spec.validation import validated

AnyModel = TypeVar("AnyModel", bound=BaseModel)


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    node = tree
    for name in parents:
        child = node.setdefault(_key(node, name), {})
        if not isinstance(child, dict):
            raise SpecError(f"{path}: `{name}` is not a section")
        node = child
    node[_key(node, last)] = value


def _key(node: Mapping[Any, Any], name: str) -> Any:
    """The key of a section whose text is a name; YAML reads a key such as 3 as a number."""
    return next((key for key in node if str(key) == name), name)


def override(tree: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping itself, with values set by dotted path. Raises SpecError: a path leads through something that is not
    a section.
    """
    for path, value in settings.items():
        _set(tree, path, value)
    return tree


def parse_overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Turn ``a.b=c`` texts into a mapping from dotted path to value (parsed as YAML). Raises SpecError: a text has no
    ``=``, its value is not YAML, or a path is given twice or stands inside
    of another one.
    """
    out: dict[str, Any] = {}
    for setting in settings:
        try:
            check_characters(setting)
        except SpecError as error:
            raise SpecError(f"--set: {error}") from None
        sign = re.search(r"(?<![<>])=", setting)  # not that of a name such as <=50K
        path, text = (setting[: sign.start()], setting[sign.end() :]) if sign else (setting, "")
        if not sign or not all(path.split(".")):
            name = "" if "://" in path else f" {path}"  # an address may hold a password
            raise SpecError(f"--set{name}: expected a.b=value")
        if path in out:
            raise SpecError(f"--set {path}: given twice; keep one")
        for other in out:
            if f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}."):
                raise SpecError(
                    f"--set {path}: a part of the other, or the whole of it, is set by --set {other}: keep one"
                )
        if path == "date":  # YAML would read a date, or refuse it
            out[path] = text.strip("\"'")
            continue
        try:
            out[path] = parse_yaml(text)
        except SpecError as error:
            raise SpecError(f"--set {path}: {error}") from None
        plain = isinstance(out[path], str) and out[path].isascii() and "_" not in out[path]
        if plain:  # YAML 1.1 reads 1e-9 as text
            try:
                out[path] = float(out[path])
            except ValueError:
                out[path] = out[path]
    return out


def change(spec: AnyModel, settings: Mapping[str, Any]) -> AnyModel:
    """A spec with changed values at some dotted paths. Raises SpecError: the changed spec is not valid."""
    return validated(type(spec), override(spec.model_dump(mode="json", by_alias=True), settings))
