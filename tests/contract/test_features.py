"""Every feature that a user can name, against the list `features.json`: what goes, goes on purpose.

The list names each command with its options, each setting with the words it takes, the kinds, the hooks, what is
written, and the public names of `dpdist`. A feature that is gone stands in `removed.json`, with the reason.
New features are added to the list, which never loses one, by::

    python tests/contract/test_features.py --write
"""

import argparse
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command

import dpdist
from dpdist import errors
from dpdist.cli.commands import app
from dpdist.cli.schema import json_schema_of
from dpdist.families.base.family import Family
from dpdist.families.base.registry import FAMILIES
from dpdist.families.prediction.spec import FIRST_STAGE_NAMES
from dpdist.publish import manifest
from dpdist.publish.parts import STATISTICS
from dpdist.spec.reader import json_schema

ROOT = Path(__file__).resolve().parents[2]
LISTED, REMOVED = (Path(__file__).with_name(name) for name in ("features.json", "removed.json"))
KINDS = ("plausible-deniability", "synthesis", "relational", "mixing", "histogram", "discovery", "two-stage")
SECTION = re.compile(
    r'(?:\bPageSection\((?:name=)?|does_not_apply\(|NAME = |NAME, TITLE = |name, title(?:, \w+)* = )"([a-z][a-z -]*)"'
)
"""How the code names a section of an evaluation."""


def commands(command: click.Command, path: str = "") -> Iterator[str]:
    """A command and those below it, each with its options and arguments."""
    if path:
        yield path
    for parameter in command.params:
        for name in parameter.opts + parameter.secondary_opts:
            yield f"{path} {name if name.startswith('-') else name.upper()}".strip()
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(below, f"{path} {name}".strip())


def settings(tree: Mapping[str, Any], defs: Mapping[str, Any], path: str = "", seen: tuple[str, ...] = ()) -> set[str]:
    """The settings of a JSON schema by dotted path, and the words that they take, as ``path = word``."""
    found: set[str] = set()
    reference = tree.get("$ref")
    if reference is not None:
        name = reference.rpartition("/")[2]
        return set() if name in seen else settings(defs[name], defs, path, (*seen, name))
    for word in (*tree.get("enum", ()), *([tree["const"]] if "const" in tree else ())):
        found.add(f"{path} = {word}")
    for member in (*tree.get("anyOf", ()), *tree.get("oneOf", ()), *tree.get("allOf", ())):
        found |= settings(member, defs, path, seen)
    for name, below in tree.get("properties", {}).items():
        at = f"{path}.{name}".lstrip(".")
        found |= {at} | settings(below, defs, at, seen)
    if isinstance(tree.get("items"), Mapping):
        found |= settings(tree["items"], defs, f"{path}[]", seen)
    if isinstance(tree.get("additionalProperties"), Mapping):
        found |= settings(tree["additionalProperties"], defs, f"{path}.*", seen)
    return found


def files() -> dict[str, list[str]]:
    """The settings of each kind of file."""
    tree = json_schema()
    defs = tree["$defs"]
    schema, contract = json_schema_of("schema"), json_schema_of("contract")
    kinds = {}
    for kind in KINDS:
        top = dict(defs[FAMILIES[kind].spec_class.__name__]) if kind in FAMILIES else {"properties": {}}
        top["properties"] = {name: below for name, below in top["properties"].items() if name not in ("schema", "kind")}
        kinds[kind] = settings(top, defs)
    contract["properties"] = {n: b for n, b in contract["properties"].items() if n != "schema"}
    return {
        **{f"settings of {kind}": sorted(found) for kind, found in kinds.items()},
        "settings of schemas": sorted(settings(schema, schema["$defs"])),
        "settings of contracts": sorted(settings(contract, contract["$defs"])),
    }


def hooks() -> Iterator[str]:
    """What a family may bring, and which of it each kind brings."""
    for member in fields(Family):
        yield member.name
        without = None if member.default is MISSING else member.default
        for kind in KINDS:
            if kind in FAMILIES and getattr(FAMILIES[kind], member.name) is not without:
                yield f"{member.name} of {kind}"


def outputs() -> Iterator[str]:
    """Fields of manifests, columns of statistics, sections of evaluations, generators of the first stage."""
    tree = manifest.json_schema()
    yield from (f"manifest: {path}" for path in settings(tree, tree.get("$defs", {})) if not path.startswith("table."))
    yield from (f"statistics: {name}" for name in STATISTICS.names)
    for file in (ROOT / "dpdist" / "evaluation").rglob("*.py"):
        yield from (f"evaluation: {name}" for name in SECTION.findall(file.read_text()))
    yield from (f"first stage: {name}" for name in FIRST_STAGE_NAMES)


def _parameters(value: Any) -> list[str]:
    try:
        names = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in names if name not in ("self", "cls")]


def names() -> Iterator[str]:
    """Public names of `dpdist` with their parameters and members, and those of the objects that it returns."""
    pages = (ROOT / "docs" / "reference" / "api.md").read_text()
    documented = [pkgutil.resolve_name(path) for path in re.findall(r"^::: (\S+)$", pages, re.M)]
    objects = {value.__name__: value for value in documented if not inspect.ismodule(value)}
    for name, value in ({name: getattr(dpdist, name) for name in dpdist.__all__} | objects).items():
        yield name
        yield from (f"{name}({parameter})" for parameter in _parameters(value))
        for base in getattr(value, "__mro__", ()):
            if not base.__module__.startswith("dpdist"):
                continue
            for member, found in vars(base).items():
                if member.startswith("_") or member == "model_config":
                    continue
                yield f"{name}.{member}"
                called = getattr(value, member, None) if callable(getattr(value, member, None)) else found
                yield from (f"{name}.{member}({parameter})" for parameter in _parameters(called) if callable(called))
    for name, value in vars(errors).items():
        if inspect.isclass(value) and value.__module__ == errors.__name__:
            yield f"errors.{name}"


@cache
def features() -> dict[str, list[str]]:
    """All features of the program by what they are."""
    found = {
        "commands": commands(get_command(app)),
        "kinds": [kind for kind in KINDS if kind in FAMILIES],
        **files(),
        "hooks": hooks(),
        "outputs": outputs(),
        "names": names(),
    }
    return {what: sorted(set(of)) for what, of in found.items()}


def listed() -> dict[str, list[str]]:
    """The recorded features."""
    found: dict[str, list[str]] = json.loads(LISTED.read_text())
    return found


def removed() -> list[dict[str, Any]]:
    """What went on purpose: ``what`` it is (``settings``: of all files), the ``features``, the ``reason``."""
    found: list[dict[str, Any]] = json.loads(REMOVED.read_text())
    return found


def goes(feature: str, gone: Sequence[str]) -> bool:
    """Whether a feature is one of those that are gone, or below one of them."""
    return any(feature == one or re.match(re.escape(one) + r"[\[. (=]", feature) for one in gone)


@pytest.mark.parametrize("what", sorted(listed()))
def test_nothing_is_gone_but_on_purpose(what: str) -> None:
    gone = [one for entry in removed() if what.startswith(entry["what"]) for one in entry["features"]]
    missing = sorted(set(listed()[what]) - set(features()[what]))
    assert [feature for feature in missing if not goes(feature, gone)] == []


def test_what_is_gone_was_a_feature_and_has_a_reason() -> None:
    for entry in removed():
        assert entry["reason"].endswith(".")
        before, now = (
            [feature for what, some in of.items() if what.startswith(entry["what"]) for feature in some]
            for of in (listed(), features())
        )
        for one in entry["features"]:
            assert any(goes(feature, [one]) for feature in before), one
            assert not any(goes(feature, [one]) for feature in now), one


@pytest.mark.parametrize("what", sorted(listed()))
def test_every_feature_is_listed(what: str) -> None:
    assert features().keys() == listed().keys()
    added = sorted(set(features()[what]) - set(listed().get(what, ())))
    assert added == [], "record them: python tests/contract/test_features.py --write"


def write() -> None:
    """Add the features of the program to the list."""
    known = listed() if LISTED.exists() else {}
    merged = {what: sorted({*known.get(what, ()), *features().get(what, ())}) for what in {**features(), **known}}
    LISTED.write_text(json.dumps(merged, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True, help="add new features to features.json")
    parser.parse_args()
    write()
