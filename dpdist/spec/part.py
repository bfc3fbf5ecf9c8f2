"""Whether a schema is a part of another one: some of its attributes, as they are or with coarser public values.

A table that the policies of the whole schema admit is then admitted by those of the part, whatever its records are.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category
from dpdist.spec.schema import Schema

_INTEGER = re.compile(r"[+-]?[0-9]{1,400}(?:\.0*)?", re.ASCII)


def departures(part: Schema, whole: Schema) -> list[str]:
    """What in a schema is no part of another one; empty where all of it is.

    Labels, buckets and levels are free: they decide nothing about a table.
    """
    known = {attribute.name: attribute for attribute in whole.attributes}
    found = []
    for attribute in part.attributes:
        original = known.get(attribute.name)
        if original is None:
            found.append(f"attribute {attribute.name!r}: there is no such attribute")
        elif attribute != original and (why := _departure(attribute, original)):
            found.append(f"attribute {attribute.name!r}: {why}")
    return found or _departures_of_rules(part, whole)


def _departures_of_rules(part: Schema, whole: Schema) -> list[str]:
    """What its rules ask of a table that those of the whole schema do not; rules may be left out.

    A rule means the same where the values of the attributes that it names do; bins may be coarser, as a rule that cuts
    through one is no valid schema.
    """
    found = []
    known = {attribute.name: _unbinned(attribute) for attribute in whole.attributes}
    for place, (rule, forbidden) in enumerate(zip(part.rules, part.forbidden, strict=True)):
        named = [part.attributes[i] for i in forbidden.attributes]
        coarser = [a.name for a in named if _unbinned(a) != known[a.name]]
        if rule not in whole.rules:
            found.append(f"rules.{place} ({rule.text}): there is no such rule")
        elif coarser:
            found.append(
                f"rules.{place} ({rule.text}): the values of {coarser[0]!r} are other ones: leave the rule out"
            )
    return found


def _unbinned(attribute: Attribute) -> dict[str, Any]:
    """Its settings but bins, what is inside of them, and groups."""
    names = set(Attribute.model_fields) - {"bins", "heaps", "step", "buckets", "levels", "label", "unit", "description"}
    return {name: getattr(attribute, name) for name in names}


def _departure(part: Attribute, whole: Attribute) -> str | None:
    """Why an attribute is not a coarser one; None where it is."""
    if part.kind != whole.kind:
        return f"its kind is {whole.kind}"
    if part.format != whole.format:
        return "its `format` is another one"
    if part.missing != whole.missing or set(part.missing_values) != set(whole.missing_values):
        return "its policy for missing values is another one"
    if whole.bounds is not None:
        if part.bounds != whole.bounds:
            return "its bounds are other ones (coarser values are declared by `bins`)"
        if part.out_of_domain != whole.out_of_domain:
            return "its policy `out_of_domain` is another one"
        if whole.is_continuous or (not part.is_continuous and np.isin(part.bin_edges, whole.bin_edges).all()):
            return None
        return "its bins cut through bins that are declared"
    return _departure_of_values(part, whole)


def _departure_of_values(part: Attribute, whole: Attribute) -> str | None:
    if isinstance((part.values or ("",))[0], int) != isinstance((whole.values or ("",))[0], int):
        return "its values are integers in one and texts in the other"
    if _only_integers(part) and not _only_integers(whole):  # such a column may not be one of booleans
        return "its values are all integers, and those of the contract are not: merge them into another name"
    if whole.out_of_domain == "clip" and _only_integers(whole) and not _only_integers(part):
        return (
            "its values are not all integers, and integers outside of the domain are clipped: merge them into integers"
        )
    if _has_integers(whole) and not _has_integers(part):  # a column of floats or decimals is no longer read
        return "integers are among the values or aliases of the contract, and of none of its own: keep them as aliases"
    if _has_integers(part) and not _has_integers(whole) and (odd := _missing_integers(whole)):
        return f"merging integers makes {odd[0]} mean missing, which is {odd[1]!r} in `missing_values`"
    for folded in (False, True):
        if why := _departure_of_spellings(part, whole, folded=folded):
            return why
    expected = whole.out_of_domain
    meanings = _meanings(part, folded=False)
    if isinstance(expected, Category) and expected.category in meanings:
        expected = Category(category=meanings[expected.category] or expected.category)
    return None if part.out_of_domain == expected else "its policy `out_of_domain` is another one"


def _departure_of_spellings(part: Attribute, whole: Attribute, *, folded: bool) -> str | None:
    """Why texts mean something else than before, where spellings are distinguished or (`folded`) not."""
    to_part, to_whole = _meanings(part, folded=folded), _meanings(whole, folded=folded)
    if any(text not in to_part for text in to_whole):
        return "values are left out (merge them into others by `aliases`)"
    for text, value in to_whole.items():
        if (to_part[text] is None) != (value is None):
            return "values are left out that are `missing_values` as well (merge them into others by `aliases`)"
        if to_part[text] != (None if value is None else to_part[_fold(value) if folded else value]):
            return "other spellings of one value, or texts that mean missing, become different values"
    names = set(map(str, part.values or ()))
    added = names - set(_meanings(whole, folded=False))
    if folded:
        twice = any(_fold(name) in to_whole for name in added)
        return "a new value is a text that is known already, but for blanks or zeros" if twice else None
    if set(to_part) - set(to_whole) - names:
        return "`aliases` name values that are not declared"
    if added and whole.out_of_domain != "refuse":  # a value of that name is outside the domain, and has a policy
        return "merged values get the name of one of them where `out_of_domain` is not refuse"
    return None


def _meanings(attribute: Attribute, *, folded: bool) -> dict[str, str | None]:
    """The value of each text that has one, None where it is missing: values over aliases over missing texts."""
    found: dict[str, str | None] = dict.fromkeys(("", *attribute.missing_values))
    found |= {alias: str(value) for alias, value in attribute.aliases.items()}
    found |= {str(value): str(value) for value in attribute.values or ()}
    return {_fold(text): value for text, value in found.items()} if folded else found


def _only_integers(attribute: Attribute) -> bool:
    return all(_INTEGER.fullmatch(text) and _fold(text) == text for text in map(str, attribute.values or ()))


def _has_integers(attribute: Attribute) -> bool:
    """Whether encoders read its values as integers: all of them are, or one of its aliases is."""
    return _only_integers(attribute) or any(
        _INTEGER.fullmatch(text) and _fold(text) == text for text in attribute.aliases
    )


def _missing_integers(attribute: Attribute) -> tuple[str, str] | None:
    """An integer that means missing where values are read as integers only, and how it is spelt; None without one."""
    known = _meanings(attribute, folded=False)
    spelt = ((_fold(text), text) for text in attribute.missing_values if _INTEGER.fullmatch(text))
    return next(((number, text) for number, text in spelt if known.get(number, text) is not None), None)


def _fold(text: str) -> str:
    """A text as encoders may read it: without blanks around it, and an integer in its shortest form."""
    text = text.strip()
    return str(int(text.partition(".")[0])) if _INTEGER.fullmatch(text) else text
