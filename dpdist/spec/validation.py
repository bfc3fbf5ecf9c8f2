"""What is wrong with a spec, a schema or a contract, in our words in place of those of pydantic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ValidationError

from dpdist.errors import SpecError, meant
from dpdist.spec.strict import kinds_in
from dpdist.spec.strict_yaml import check_characters, parse_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


AnyModel = TypeVar("AnyModel", bound=BaseModel)

_EXPECTED = {
    "tuple_type": "expected a list",
    "dict_type": "expected a section",
    "model_type": "expected a section",
    "too_short": "expected at least {min_length} item(s)",
    "too_long": "expected at most {max_length} item(s)",
    "missing": "is not set, and has no default",
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "expected an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number, such as 0.25"),
    "finite_number": "expected a finite number",
    "string_type": "expected a text; quote it",
    "string_too_short": "expected a text of {min_length} character(s) or more",
    "string_too_long": "expected a text of at most {max_length} character(s)",
    "string_pattern_mismatch": "expected a text of the form {pattern}",
    "literal_error": "expected {expected}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected {ge} or more",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected {le} or less",
    "union_tag_invalid": "expected one of {expected_tags}",
    "union_tag_not_found": "expected {discriminator}",
}
"""What is said in place of the message of pydantic, by its type of error."""

_MEMBER = re.compile(r"int|str|float|bool|(literal|tuple|list|dict|nullable|function-\w+|constrained-\w+)(\[.*\])?")
"""The part of a place that names a member of a union, and no setting."""


NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""The form of the name of a release or a data set."""

MONTH = r"[12]\d{3}-(?:0[1-9]|1[0-2])"
PERIOD = rf"(?:{MONTH}|[12]\d{{3}}-(?:q[1-4]|year))"
"""The form of a month, and that of any period of a series."""

_FORMS = {
    NAME: "expected letters, digits, '.', '_' and '-', at most 100, the first a letter or a digit",
    f"^{MONTH}$": "expected a month, such as 2026-03",
    f"^{PERIOD}$": "expected a period, such as 2026-03, 2026-q1 or 2026-year",
}

_SHAPES = {
    "Category": "{category: NAME}",
    "Count": "{count: n}",
    "Every": "{every: month}",
    "Edges": "{edges: [...]}",
    "Groups": "{groups: [[...], ...]}",
    "Prefix": "{prefix: n}",
    "Width": "{width: n}",
}
"""How members of unions that are sections are written."""


def _plain(value: Any) -> str:
    """A limit as people write it: 0.000001, 1e-15 and 1,000,000."""
    if isinstance(value, float) and not value.is_integer():
        return np.format_float_positional(value) if abs(value) >= 1e-6 else np.format_float_scientific(value, trim="-")
    return f"{int(value):,}" if isinstance(value, int | float) else str(value)


def setting_places(kind: type[BaseModel]) -> dict[str, str]:
    """All settings of a file by their names, whatever section they stand in: the first place of each."""
    places, sections, left = dict[str, str](), {kind}, [(kind, "")]
    for section, place in left:
        for name, field in section.model_fields.items():
            where = f"{place}{field.alias or name}"
            places.setdefault(field.alias or name, where)
            inner = {one for one in kinds_in(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)}
            left += [(one, f"{where}.") for one in sorted(inner - sections, key=lambda one: one.__name__)]
            sections |= inner
    return places


def validated(
    kind: type[AnyModel], tree: Mapping[str, Any], source: str = "the spec", *, what: str = "spec"
) -> AnyModel:
    """A model from a mapping. Raises SpecError: the mapping is not valid; the message names each setting."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise SpecError(f"{source} is not a valid {what}:\n{validation_message(error, setting_places(kind))}") from None


def validation_message(error: ValidationError, settings: Mapping[str, str] | None = None) -> str:
    """The problems of a pydantic error as one text, a line each; a setting that is misspelt, or at the wrong place, may
    mean one of `settings`, which have places.
    """
    told: dict[str, list[str]] = {}
    items = error.errors(include_url=False, include_input=False)
    for item in _meant(items):
        loc = item["loc"]
        if item["type"] == "too_short" and any(
            other["loc"] != loc and other["loc"][: len(loc)] == loc for other in items
        ):
            continue  # pydantic counts only the items that are valid
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] in _EXPECTED:
            message = _EXPECTED[item["type"]].format_map({k: _plain(v) for k, v in item.get("ctx", {}).items()})
        if item["type"] == "string_pattern_mismatch":
            message = _FORMS.get(str(item.get("ctx", {}).get("pattern")), message)
        if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            place = (settings or {}).get(str(loc[-1]))
            near = f"; there is {place}" if place else meant(str(loc[-1]), settings or {}, cutoff=0.75, otherwise="")
            message = f"there is no such setting here{near}"
        where = ".".join(str(part) for part in loc if not _member(part))
        told.setdefault(where, []).append(message)
    return "\n".join(f"{where}: {text}" if where else text for where, found in told.items() for text in _joined(found))


def _member(part: int | str) -> str:
    """The member of a union that a part of a place names; empty where it names a setting."""
    text = str(part)
    name = re.sub(r"^function-.*?(\w+)\]+$", r"\1", text)
    return name if name in _SHAPES or _MEMBER.fullmatch(text) else ""


def _meant(items: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """What is wrong, of each union with the members that the value can be meant to be: those whose settings it has.

    Where it is like none of several sections, one line says how they are written.
    """
    unions: dict[tuple[int | str, ...], dict[str, list[ErrorDetails]]] = {}
    found: list[ErrorDetails] = []
    for item in items:
        place = next((i for i, part in enumerate(item["loc"]) if _member(part)), None)
        if place is None:
            found.append(item)
            continue
        of_union = unions.setdefault(item["loc"][:place], {})
        of_union.setdefault(_member(item["loc"][place]), []).append(item)
    for where, members in unions.items():
        meant = [of for of in members.values() if not any(_is_misfit(item, len(where) + 1) for item in of)]
        if not meant and members.keys() & _SHAPES.keys():
            expected = [{**of[0], "loc": where, **_shape(name)} for name, of in members.items()]
            found += cast("list[ErrorDetails]", expected)
        else:
            found += [item for of in meant or members.values() for item in of]
    return found


def _shape(member: str) -> dict[str, str]:
    """How a section is written, as what is wrong."""
    return {"type": "shape", "msg": f"expected {_SHAPES[member]}"} if member in _SHAPES else {}


def _is_misfit(item: ErrorDetails, depth: int) -> bool:
    """Whether a value is of another type than a member of a union, or has other settings."""
    kind, below = item["type"], len(item["loc"]) - depth
    if below:
        return below == 1 and kind in ("missing", "extra_forbidden")
    return kind in ("literal_error", "int_from_float") or kind.endswith(("_type", "_parsing"))


def _joined(messages: list[str]) -> list[str]:
    """What was expected of the members of a union, in one text, and whatever else is wrong."""
    found = list(dict.fromkeys(messages))
    expected = [text.removeprefix("expected ").partition(";")[0] for text in found if text.startswith("expected ")]
    if len(expected) < 2:
        return found
    others = [text for text in found if not text.startswith("expected ")]
    return [f"expected {', '.join(expected[:-1])} or {expected[-1]}", *others]


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
