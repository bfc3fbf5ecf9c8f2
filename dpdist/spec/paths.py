"""Paths in a spec or a contract: relative to the folder of its file, all alike."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

PATH: Final = "a path from the folder of the file"
"""Marks a setting as a path, or several, relative to the folder of the file that says it."""


def path_settings(model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The settings of a model that are paths: their names from the outside in, and their defaults."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        if PATH in field.metadata:
            yield (key,), field.default
        for section in _sections(field.annotation):
            for names, default in path_settings(section):
                yield (key, *names), default


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The models among the types of a field."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]


def from_folder(
    tree: Mapping[str, Any], model: type[BaseModel], base: Path, *, keep: Collection[str] = ()
) -> dict[str, Any]:
    """A spec or contract as a mapping, with its relative paths led from `base` to the working folder.

    Settings in `keep` stay as they are, by dotted path: those of the command line are relative to the working folder.
    """
    return with_paths(tree, model, lambda path: led(path, base), keep=keep)


def with_paths(
    tree: Mapping[str, Any], model: type[BaseModel], change: Callable[[str], str], *, keep: Collection[str] = ()
) -> dict[str, Any]:
    """A spec or contract as a mapping, with all its paths changed but those of the settings in `keep`."""
    found = dict(tree)
    for names, default in path_settings(model):
        section = _section(found, names[:-1])
        if section is None or any(f"{'.'.join(names)}.".startswith(f"{other}.") for other in keep):
            continue
        value = section.get(names[-1], default)
        if isinstance(value, str) and value:
            section[names[-1]] = change(value)
        elif isinstance(value, list | tuple) and value and all(isinstance(path, str) for path in value):
            section[names[-1]] = [change(path) for path in value]
    return found


def without_paths(tree: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """A spec as a mapping, without the settings that say where its files are."""
    for names, _ in path_settings(model):
        section = _section(tree, names[:-1])
        if section is not None:
            section.pop(names[-1], None)
    return tree


def _section(tree: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """A copy of a section, put into the tree in its place; None where the file has none."""
    for name in names:
        inner = tree.get(name)
        if not isinstance(inner, Mapping):
            return None
        tree[name] = dict(inner)
        tree = tree[name]
    return tree


def led(path: str, base: Path) -> str:
    """A path from the working folder, of one from `base`; addresses and absolute paths as they are."""
    if "://" in path or os.path.isabs(path) or path.startswith("~"):
        return path
    here = os.path.realpath(os.curdir)
    whole = os.path.normpath(os.path.join(os.path.realpath(base), path))
    inside = os.path.relpath(whole, here)
    return whole if inside.startswith(os.pardir) else inside
